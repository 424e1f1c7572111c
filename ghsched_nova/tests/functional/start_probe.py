# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Starts a program of Nova in this process, and reports what it has set up.

usage: start_probe.py REPORT MODULE PROGRAM [ARGUMENT...]

MODULE has the program's ``main()``. Nova's service is created and started,
but its database, nova-conductor, libvirt and the message bus are missing, so
that nothing is served. REPORT gets a JSON document.
"""

import importlib
import importlib.machinery
import importlib.util
import json
import logging
import os
import pathlib
import signal
import sys
import types
from typing import Any

#: Programs of Nova whose main() is run, by the name of their module.
PROGRAMS = ('nova.cmd.compute', 'nova.cmd.scheduler')

#: Options that have been read, as (group, name).
read: set[tuple[str | None, str]] = set()
servers: list[Any] = []
timers: list[Any] = []


class Finder:
    """Changes a program of Nova when it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name in PROGRAMS:
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            spec.loader = Loader(name, spec.origin)
            return spec
        return None


class Loader(importlib.machinery.SourceFileLoader):

    def exec_module(self, module):
        record_reads()
        super().exec_module(module)
        replace_what_is_missing(module)


def record_reads():
    from oslo_config import cfg
    original = cfg.ConfigOpts._get

    def get(self, name, group=None, namespace=None):
        read.add((getattr(group, 'name', group), name))
        return original(self, name, group, namespace)
    cfg.ConfigOpts._get = get


def replace_what_is_missing(module):
    from nova.scheduler.client import report
    report.SchedulerReportClient._create_client = lambda _client: None
    module.service.conductor.API.wait_until_ready = lambda *_more: None
    module.service.utils.raise_if_old_compute = lambda: None
    from nova import objects
    objects.register_all()
    for name in ('CellMappingList', 'AggregateList'):
        kind = getattr(objects, name)
        kind.get_all = lambda _context, kind=kind: kind(objects=[])
    module.service.serve = serve
    module.service.wait = lambda: None


def serve(server, **arguments):
    from nova import manager
    from nova import objects
    from nova.objects import service as service_object
    from nova import rpc
    rpc.get_server = get_server
    kind = next(cls for cls in type(server.manager).__mro__
                if cls.__module__.startswith('nova.'))
    for cls in (kind, manager.Manager):
        for name in ('init_host', 'pre_start_hook', 'post_start_hook'):
            setattr(cls, name, lambda *_more: None)
    objects.Service.get_by_host_and_binary = lambda *_more: (
        types.SimpleNamespace(version=service_object.SERVICE_VERSION))
    server.servicegroup_api = types.SimpleNamespace(
        join=lambda *more: timers.append(['join', *map(str, more[:2])]))
    server.tg = types.SimpleNamespace(
        add_dynamic_timer=lambda function, **more: timers.append(
            [function.__name__, describe_delay(more)]))
    server.start()
    write({
        'serve': arguments, 'servers': servers, 'timers': timers,
        'service': {name: getattr(server, name) for name in (
            'binary', 'topic', 'topic_alt', 'host', 'report_interval',
            'periodic_enable', 'periodic_fuzzy_delay',
            'periodic_interval_max')},
        'tasks': list_tasks(server.manager)})


def describe_delay(arguments):
    """Leave out the random delay of the first run."""
    return {**arguments,
            'initial_delay': arguments['initial_delay'] is not None}


def get_server(target, endpoints, _serializer):
    servers.append({
        'topic': target.topic, 'server': target.server,
        'versions': sorted(
            f'{name} {getattr(one, "target", None)}' for one in endpoints
            if not (name := name_of(one)).startswith('ghsched'))})
    return types.SimpleNamespace(start=lambda: None)


def name_of(endpoint):
    """Return the class of an endpoint; of a manager that of Nova's class."""
    endpoint = vars(endpoint).get('_manager', vars(endpoint).get(
        '_endpoint', endpoint))
    names = [f'{cls.__module__}.{cls.__name__}'
             for cls in type(endpoint).__mro__]
    return next((name for name in names if name.startswith('nova.')),
                names[0])


def list_tasks(manager):
    """Return the periodic tasks of a manager: spacing, and whether at once.
    """
    last = manager._periodic_last_run
    return {name: [manager._periodic_spacing[name], last[name] is None]
            for name, _task in manager._periodic_tasks}


def list_options():
    """Return the registered options of Nova, by group and name."""
    from oslo_config import cfg
    conf = sys.modules['nova.conf'].CONF
    found, read_before = {}, frozenset(read)
    for group in (None, *conf._groups):
        if (group or '').startswith('ghsched'):
            continue
        opts = conf._groups[group]._opts if group else conf._opts
        for name, known in list(opts.items()):
            opt = known['opt']
            try:
                value = repr(conf._get(name, group))
            except cfg.Error as error:
                value = repr(error)
            found[f'{group or "DEFAULT"}.{opt.name}'] = {
                'value': value, 'default': repr(opt.default),
                'read': (group, name) in read_before,
                **describe_type(opt, cfg)}
    return found


def describe_type(opt, cfg):
    kind = opt.type
    return {'type': type(kind).__name__, 'removed': opt.deprecated_for_removal,
            'multi': opt.multi or isinstance(opt, cfg._ConfigFileOpt),
            'min': getattr(kind, 'min', None),
            'max': getattr(kind, 'max', None),
            'choices': sorted(map(str, getattr(kind, 'choices', None) or ()))}


def describe_logger(logger):
    return {'level': logger.level, 'propagate': logger.propagate,
            'disabled': logger.disabled,
            'handlers': [[type(one).__name__, one.level,
                          getattr(one, 'baseFilename', ''),
                          type(one.formatter).__name__,
                          getattr(one.formatter, '_fmt', '')]
                         for one in logger.handlers]}


def describe_logging():
    """Return each logger whose set-up is not that of a new one."""
    new = describe_logger(logging.Logger('new'))
    return {name: found for name, logger in (
        ('', logging.root), *logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger)
        and (found := describe_logger(logger)) != new}


def describe_function(function):
    if isinstance(function, type(None) | int):
        return repr(function)
    function = getattr(function, '__func__', function)
    return (f'{getattr(function, "__module__", "")}.'
            f'{getattr(function, "__qualname__", type(function).__name__)}')


def write(more):
    options = list_options()
    import nova.rpc
    pathlib.Path(report).write_text(json.dumps({
        'options': options, 'logging': describe_logging(),
        'signals': {number.name: describe_function(signal.getsignal(number))
                    for number in signal.valid_signals()
                    if isinstance(number, signal.Signals)},
        'hooks': [describe_function(hook) for hook in (
            sys.excepthook, sys.displayhook)],
        'rpc': [type(nova.rpc.TRANSPORT).__name__,
                type(nova.rpc.NOTIFIER).__name__,
                sorted(nova.rpc.ALLOWED_EXMODS)],
        **more}, default=str))
    logging.shutdown()
    os._exit(0)


def main():
    """Run nova-api as a WSGI server does."""
    from nova.api.openstack import wsgi_app
    wsgi_app._setup_service = lambda *_more: None
    wsgi_app.init_application('osapi_compute', 'nova-api')
    write({})


if __name__ == '__main__':
    _, report, entry, *sys.argv = sys.argv
    if entry == '--api':
        record_reads()
        main()
    else:
        sys.meta_path.insert(0, Finder())
        importlib.import_module(entry).main()

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

"""Installing ghsched changes no process of Nova.

Each service is imported in a fresh process with all entry points of ghsched
loaded. A function is ours when its code is from our files, whatever it is
called and however it got into Nova.
"""

import json
import pathlib
import subprocess
import sys

import ddt

from ghsched_placement.tests import base

TOP = pathlib.Path(__file__).parents[3]

#: Modules that a service of Nova imports.
SERVICES = {
    'nova-api': ('nova.api.openstack.compute.routes',
                 'nova.api.openstack.wsgi_app', 'nova.limit.placement'),
    'nova-conductor': ('nova.cmd.conductor', 'nova.conductor.manager',
                       'nova.conductor.api'),
    'nova-scheduler': ('nova.cmd.scheduler', 'nova.scheduler.manager'),
    'nova-compute': ('nova.cmd.compute', 'nova.compute.manager',
                     'nova.virt.libvirt.driver')}

PROGRAM = r"""
import configparser, functools, importlib, inspect, json, sys, types
top, modules, then = sys.argv[1], sys.argv[2].split(','), sys.argv[3]
for name in modules:
    importlib.import_module(name)
parser = configparser.ConfigParser()
parser.read(top + '/setup.cfg')
for group, lines in parser['entry_points'].items():
    # The others are loaded by programs that are no service of Nova.
    if group.startswith('nova.') or group == 'oslo.config.opts':
        for line in lines.strip().splitlines():
            module, _, function = line.partition('=')[2].strip().partition(':')
            found = importlib.import_module(module)
            getattr(found, function or 'register')()

def is_ours(value):
    while isinstance(value, (staticmethod, classmethod, functools.partial)):
        value = getattr(value, '__func__', None) or value.func
    if isinstance(value, str):
        return value.startswith('ghsched')
    if isinstance(value, types.ModuleType):
        return value.__name__.startswith('ghsched')
    code = getattr(value, '__code__', None)
    if code is not None:
        return code.co_filename.startswith(top + '/ghsched_')
    return str(getattr(value, '__module__', '')).startswith('ghsched')

def list_changes():
    found = set()
    for name, module in list(sys.modules.items()):
        if name == 'nova.virt.ghsched':
            found.add(name)
        # The registry of validators is Nova's extension point.
        if name.partition('.')[0] != 'nova' or name.startswith(
                'nova.api.validation'):
            continue
        for key, value in list(vars(module).items()):
            inner = {}
            if inspect.isclass(value) and value.__module__.startswith('nova.'):
                inner = vars(value)
            elif isinstance(value, dict):
                inner = value
            elif isinstance(value, (list, tuple, set)):
                inner = dict(enumerate(value))
            found |= {f'{name}.{key}.{one}' for one, other in inner.items()
                      if is_ours(other)}
            if is_ours(value):
                found.add(f'{name}.{key}')
    return sorted(found)

before = list_changes()
exec(then)
print(json.dumps([before, list_changes()]))
"""


#: What an operator configures in a service, and a name of Nova that this
#: changes.
CONFIGURED = {
    'nova-api': ('from ghsched_nova.api import server_filter\n'
                 'server_filter.filter_factory({})',
                 'nova.limit.placement._get_deltas'),
    'nova-conductor': ('', None),
    'nova-scheduler': ('import ghsched_nova.scheduler.filters',
                       'nova.virt.hardware.numa_fit_instance_to_host'),
    'nova-compute': (
        'from ghsched_nova.virt import driver\ndriver.prepare_nova()',
        'nova.compute.resource_tracker.ResourceTracker.instance_claim')}


def list_changes(service, then):
    """Return names of Nova that are ours in a fresh process of a service,
    before and after it is configured.
    """
    done = subprocess.run(  # noqa: S603 - a program of this test
        [sys.executable, '-c', PROGRAM, str(TOP), ','.join(SERVICES[service]),
         then], cwd=TOP, capture_output=True, text=True, check=True,
        timeout=base.GIVE_UP_S)
    return json.loads(done.stdout.splitlines()[-1])


@ddt.ddt
class NothingByInstallingTest(base.TestCase):

    @ddt.data(*SERVICES)
    def test_service_with_ghsched_installed_has_no_changed_function(
            self, service):
        then, name = CONFIGURED[service]
        before, after = list_changes(service, then)
        self.assertEqual([], before)
        # So a change can be seen.
        self.assertEqual(
            bool(name), any(one.startswith(name or 'nova.') for one in after),
            after)

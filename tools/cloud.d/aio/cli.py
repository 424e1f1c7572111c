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


"""The commands of tools/cloud."""

import argparse
from collections.abc import Callable, Iterator
from concurrent import futures
import configparser
import contextlib
import fcntl
import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from typing import Any

from aio import catalog
from aio import config
from aio import database
from aio import host
from aio import process
from aio import services
from aio.settings import check_ports
from aio.settings import CloudError
from aio.settings import ComputeHost
from aio.settings import LISTENERS
from aio.settings import read
from aio.settings import Settings
from aio import tenant

_HTTP = ('keystone', 'placement', 'glance', 'neutron', 'nova-api',
         'watcher-api')


def step(text: str, work: Callable[[], object]) -> None:
    """Do a piece of work and say how long it took."""
    print(f'  {text:<52}', end='', flush=True)
    begin = time.monotonic()
    try:
        work()
    except BaseException:
        print(f'{time.monotonic() - begin:7.1f} s  FAILED', flush=True)
        raise
    print(f'{time.monotonic() - begin:7.1f} s', flush=True)


def _together(*works: Callable[[], object]) -> None:
    with futures.ThreadPoolExecutor(len(works)) as pool:
        for running in [pool.submit(work) for work in works]:
            running.result()


# -- up -----------------------------------------------------------------------

def up_with(settings: Settings, hosts: tuple[ComputeHost, ...]) -> None:
    """Bring up the cloud with these hosts and no others.

    :raises CloudError: for a cloud of a release that named its first host
        after the machine; Nova refuses to start there by another name.
    """
    named = settings.state / 'hosts-named'
    if not named.exists() and (settings.state / 'nova'
                               / 'compute_id').exists():
        raise CloudError('this cloud was made by an earlier release, whose '
                         'first host had the name of this machine; remove '
                         'it with: tools/cloud wipe')
    settings.state.mkdir(parents=True, exist_ok=True)
    named.touch()
    kept = {one.name for one in hosts}
    if answers(settings, 'nova-api') and answers(settings, 'keystone'):
        # Before anything is stopped.
        for one in settings.hosts:
            if one.name not in kept:
                catalog.check_empty(settings, one.name)
    for one in settings.each_host:
        if one.host not in hosts:
            # A host with other hardware is another host: it is booted.
            step(f'take down {one.host.name}', lambda one=one: host_down(one))
    before = settings.hosts
    gone = {one.name for one in before} - {one.name for one in hosts}
    settings.save_hosts(hosts)
    up(settings)
    for name in sorted(gone):
        try:
            step(f'give up {name}',
                 lambda name=name: catalog.forget_host(settings, name))
        except CloudError:
            # The next "up" refuses it again, or has the host again.
            settings.save_hosts(before)
            raise
        number = name.rpartition('-')[2]
        shutil.rmtree(settings.state / f'nova-{number}', ignore_errors=True)


def host_down(settings: Settings) -> None:
    """Stop a host and what runs on it."""
    cloud = services.cloud(settings)
    process.stop(one for name, one in cloud.processes.items() if name in (
        services.COMPUTE + settings.host.suffix,
        services.SSH + settings.host.suffix))
    host.down(settings)


def up(settings: Settings) -> None:
    """Bring up whatever is not up as it should be."""
    cloud = _configured(settings)
    if _all_is_well(settings, cloud):
        print(f'The cloud is up ({settings.home}).')
        return
    _stop_outdated(settings, cloud)
    check_ports(settings, cloud.listeners_up)
    step('database, message broker, simulated hosts, guest image',
         lambda: _together(lambda: _database_up(settings, cloud),
                           lambda: _broker_up(cloud),
                           lambda: _host_up(settings),
                           lambda: _guest_image(settings)))
    if not database.is_migrated(settings):
        step('database schemas (once)', lambda: database.migrate(
            settings, cloud['mariadb']))
    step('Keystone', lambda: _keystone_up(settings, cloud))
    step('Placement, Glance, Neutron, Nova', lambda: _apis_up(cloud))
    step('Nova on the simulated hosts', lambda: _compute_up(settings, cloud))
    if settings.watcher:
        step('Watcher', lambda: _watcher_up(settings, cloud))
    step('image, flavors, a tenant', lambda: _content(settings))
    write_openrc(settings)
    print(f'The cloud is up. Credentials: . {settings.home}/openrc, or those '
          f'of a tenant: . {settings.home}/openrc-tenant')


def up_without(settings: Settings, lost: ComputeHost) -> None:
    """Start the services that have ended, but for those of a lost host."""
    cloud = services.cloud(settings)
    _database_up(settings, cloud)
    _broker_up(cloud)
    _start(cloud, *(name for name in cloud.processes if name not in (
        services.COMPUTE + lost.suffix, services.SSH + lost.suffix)))


def _configured(settings: Settings) -> services.Cloud:
    config.write_all(settings)
    config.write(settings.etc / 'rabbitmq' / 'rabbitmq.conf',
                 services.rabbitmq_config(settings))
    return services.cloud(settings)


def _all_is_well(settings: Settings, cloud: services.Cloud) -> bool:
    return (all(one.is_current for one in cloud.processes.values())
            and all(map(host.is_up, settings.each_host))
            and all(answers(settings, name) for name in _HTTP
                    if name in cloud.processes))


def _stop_outdated(settings: Settings, cloud: services.Cloud) -> None:
    """Stop what runs with an older configuration or an older wheel."""
    outdated = [one for one in cloud.processes.values()
                if one.pid is not None and not one.is_current]
    if outdated:
        names = ', '.join(one.name for one in outdated)
        step(f'stop what changed: {names}'[:51],
             lambda: process.stop(outdated))


def _start(cloud: services.Cloud, *names: str) -> None:
    for name in names:
        if cloud[name].pid is None:
            cloud[name].start()


def _database_up(settings: Settings, cloud: services.Cloud) -> None:
    if cloud['mariadb'].pid is None:
        database.prepare_directory(settings)
        cloud['mariadb'].start()
    database.wait(settings, cloud['mariadb'])


def _broker_up(cloud: services.Cloud) -> None:
    settings = cloud.settings
    (settings.state / 'rabbitmq').mkdir(mode=0o700, parents=True,
                                        exist_ok=True)
    _start(cloud, 'epmd')
    process.wait_until(lambda: _listens(settings.port('epmd')), 10,
                       'epmd does not listen', cloud['epmd'])
    _start(cloud, 'rabbitmq')
    process.wait_until(lambda: _listens(settings.port('rabbitmq')), 90,
                       'RabbitMQ does not listen', cloud['rabbitmq'])


def _host_up(settings: Settings) -> None:
    for one in settings.each_host:
        if not host.is_up(one):
            host.up(one)


def _guest_image(settings: Settings) -> None:
    database.run([str(settings.top / 'tools' / 'guest-image.sh'),
                  str(settings.cache / 'guest')])


def _keystone_up(settings: Settings, cloud: services.Cloud) -> None:
    catalog.keystone_keys(settings)
    catalog.bootstrap(settings)
    _start(cloud, 'keystone')
    _wait_http(cloud, 'keystone')
    catalog.users_and_endpoints(settings)


def _apis_up(cloud: services.Cloud) -> None:
    names = ('placement', 'glance', 'neutron', 'nova-api')
    _start(cloud, *names, 'nova-conductor', 'nova-scheduler')
    for name in names:
        _wait_http(cloud, name)


def _compute_up(settings: Settings, cloud: services.Cloud) -> None:
    api = catalog.connect(settings)
    # The last report of a process that was just stopped may come in late;
    # none of the services is up within a second.
    since = time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(time.time() + 1))
    _start(cloud, *(one.name for one in cloud.on_hosts))
    for service in (cloud['nova-conductor'], cloud['nova-scheduler'],
                    *map(cloud.compute, settings.each_host)):
        _wait_report(settings, service, api, since)
    catalog.map_hosts(settings)


def _watcher_up(settings: Settings, cloud: services.Cloud) -> None:
    of = (settings.venv / 'ghsched-watcher').read_text()
    if not catalog.is_done(settings, 'watcher', of):
        database.migrate_watcher(settings)
        catalog.done(settings, 'watcher', of)
    _start(cloud, *services.WATCHER)
    _wait_http(cloud, 'watcher-api')
    process.wait_until(
        lambda: catalog.has_goal(settings, 'ghsched_numa'), 120,
        'Watcher does not know the goal of ghsched',
        cloud['watcher-decision-engine'])


def with_watcher(settings: Settings, wanted: bool) -> None:
    """Record whether the next "up" starts Watcher."""
    if settings.watcher and not wanted:
        cloud = services.cloud(settings)
        step('stop Watcher', lambda: process.stop(
            cloud[name] for name in services.WATCHER))
    settings.save('watcher', wanted)


def _content(settings: Settings) -> None:
    catalog.image_and_flavor(settings)
    tenant.make(settings)


def _wait_report(settings: Settings, service: process.Process, api: object,
                 since: str) -> None:
    process.wait_until(
        lambda: service.name in catalog.reported(settings, api, since), 120,
        f'{service.name} does not report', service)


def _wait_http(cloud: services.Cloud, name: str) -> None:
    process.wait_until(lambda: answers(cloud.settings, name), 120,
                       f'{name} does not answer', cloud[name])


def _listens(port: int) -> bool:
    try:
        socket.create_connection(('127.0.0.1', port), 2).close()
    except OSError:
        return False
    return True


def answers(settings: Settings, name: str) -> bool:
    """Whether a service's version document can be read."""
    link = http.client.HTTPConnection('127.0.0.1', settings.port(name),
                                      timeout=30)
    try:
        link.request('GET', '/')
        return link.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        link.close()


def write_openrc(settings: Settings) -> None:
    for name, found in (('openrc', settings.admin),
                        ('openrc-tenant', tenant.credentials(settings))):
        lines = [f"export {key}='{value}'" for key, value in found.items()]
        lines.append(f'export PATH="{settings.venv}/bin:$PATH"')
        path = settings.home / name
        path.touch(mode=0o600)
        path.write_text('\n'.join(lines) + '\n')


# -- the other commands -------------------------------------------------------

def down(settings: Settings) -> None:
    """Stop everything; the data stays."""
    cloud = services.cloud(settings)
    if not any(one.pid for one in cloud.processes.values()) and \
            not any(map(host.is_up, settings.each_host)):
        print('The cloud is down.')
        return
    step('services', lambda: process.stop(
        one for name, one in cloud.processes.items() if name != 'epmd'))
    for one in settings.each_host:
        step(f'{one.host.name} and its guests', lambda one=one: host.down(one))
    process.stop([cloud['epmd']])
    print('The cloud is down; its data stays for the next "up".')


def wipe(settings: Settings) -> None:
    """Stop everything and forget the data; caches stay."""
    down(settings)
    for one in settings.each_host:
        host.no_small_disk(one)    # of a soak that was ended
    shutil.rmtree(settings.state, ignore_errors=True)
    settings.local_conf.unlink(missing_ok=True)
    print(f'{settings.state} is removed.')


def status(settings: Settings) -> int:
    """Print the health of every service; 0 when all is well."""
    cloud = services.cloud(settings)
    seen = _nova_view(settings, cloud)
    healthy = True
    print(f'{"service":<24}{"pid":>8}{"port":>7}  health')
    for name in cloud.processes:
        health = _health(settings, cloud, name, seen)
        healthy = healthy and health == 'ok'
        port = (settings.port(name) if name in LISTENERS else '-')
        print(f'{name:<24}{cloud[name].pid or "-":>8}{port:>7}  {health}')
    for one in settings.each_host:
        is_up = host.is_up(one)
        healthy = healthy and is_up
        print(f'{one.host.name:<24}{"":>8}{"-":>7}  '
              f'{"ok" if is_up else "down"}')
    for option in options(settings):
        print(f'set: {option}')
    print(f'logs: {settings.log}')
    return 0 if healthy else 1


def _nova_view(settings: Settings, cloud: services.Cloud) -> dict[str, str]:
    needed = ('mariadb', 'keystone', 'nova-api')
    if any(cloud[name].pid is None for name in needed):
        return {}
    try:
        return catalog.compute_services(settings,
                                        catalog.connect(settings))
    except Exception as error:
        return {'error': str(error)}


def _health(settings: Settings, cloud: services.Cloud, name: str,
            seen: dict[str, str]) -> str:
    one = cloud[name]
    if one.pid is None:
        return 'down'
    if name in _HTTP and not answers(settings, name):
        return 'does not answer'
    if name in ('rabbitmq', 'epmd') and not _listens(settings.port(name)):
        return 'does not listen'
    if name.startswith(('nova-conductor', 'nova-scheduler',
                        'nova-compute')) and \
            seen.get(name) != 'up':
        return f'runs, but Nova says {seen.get(name, "nothing of it")}'
    return 'ok'


def restart(settings: Settings, names: list[str]) -> None:
    """Stop services and bring them up again."""
    cloud = _configured(settings)
    unknown = [name for name in names if name not in cloud.processes]
    if unknown:
        raise CloudError(f'no service {", ".join(unknown)}; there are '
                         + ', '.join(cloud.processes))
    chosen = [cloud[name] for name in names]
    step(f'stop {" ".join(names)}', lambda: process.stop(chosen))
    up(settings)


def logs(settings: Settings, names: list[str]) -> int:
    """List the logs, or show the end of some."""
    files = sorted(settings.log.glob('*.log'))
    if not names:
        for path in files:
            print(f'{path.stat().st_size:>10}  {path}')
        return 0
    paths = [settings.log / f'{name}.log' for name in names]
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise CloudError(f'there is no {missing[0]}')
    return subprocess.run(['tail', '-n', '60', *map(str, paths)],
                          check=False).returncode


def _read_options(settings: Settings) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(default_section='none')
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(settings.local_conf)
    return parser


def options(settings: Settings) -> list[str]:
    """The options that were set by hand, as text."""
    parser = _read_options(settings)
    return [f'[{section}] {key} = {value}'
            for section in parser.sections()
            for key, value in parser.items(section)]


def set_option(settings: Settings, section: str, key: str,
               value: str | None) -> str | None:
    """Set an option of Nova's services, or unset it.

    It holds from the next start of a service.

    :returns: what it was set to.
    """
    parser = _read_options(settings)
    before = parser.get(section, key, fallback=None)
    if not parser.has_section(section):
        parser.add_section(section)
    if value is None:
        parser.remove_option(section, key)
    else:
        parser.set(section, key, value)
    settings.local_conf.parent.mkdir(parents=True, exist_ok=True)
    with settings.local_conf.open('w') as out:
        parser.write(out)
    return before


def execute(settings: Settings, command: list[str]) -> None:
    """Run a command on the simulated host, with admin credentials."""
    environment = {**os.environ, **settings.admin,
                   'PATH': f'{settings.venv}/bin:' + os.environ['PATH']}
    argv = host.inside(settings, command)
    os.execvpe(argv[0], argv, environment)  # noqa: S606


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='tools/cloud',
        description='A whole OpenStack on this machine, with simulated '
                    'compute hosts, by default one that has two NUMA nodes '
                    'and openEuler\'s MPAM. Everything is below GHSCHED_HOME '
                    'and listens on 127.0.0.1 from port GHSCHED_PORT_BASE '
                    'on.')
    commands = parser.add_subparsers(dest='command', required=True)
    for name, text in (
            ('down', 'stop everything, keep the data'),
            ('wipe', 'stop everything and remove the data'),
            ('status', 'each service with its pid, port and health'),
            ('openrc', 'print the admin credentials as shell commands')):
        commands.add_parser(name, help=text)
    _add_up(commands)
    one = commands.add_parser('restart', help='stop and start services')
    one.add_argument('service', nargs='+')
    one = commands.add_parser('logs', help='list the logs or show their end')
    one.add_argument('service', nargs='*')
    one = commands.add_parser(
        'set-option', help='set an option of Nova for its next start')
    one.add_argument('section')
    one.add_argument('key')
    one.add_argument('value')
    one = commands.add_parser('unset-option', help='take it back')
    one.add_argument('section')
    one.add_argument('key')
    one = commands.add_parser(
        'exec', help='run a command on the simulated host as cloud admin')
    one.add_argument('--host', type=_host_number, default=1, metavar='HOST',
                     help='on which, by number or by name '
                          '(default: %(default)s)')
    one.add_argument('words', nargs=argparse.REMAINDER)
    return parser


def _host_number(text: str) -> int:
    """Return the number of a host, given as ``2`` or as its name."""
    return int(text.rpartition('-')[2])


def _add_up(commands: Any) -> None:
    one = commands.add_parser(
        'up', help='install what is missing and start what is down',
        allow_abbrev=False)   # tools/cloud reads options, too
    one.add_argument('--hosts', type=int, choices=(1, 2), default=1,
                     help='how many compute hosts (default: %(default)s)')
    one.add_argument(
        '--dialects', type=lambda text: text.split(','),
        default=[], metavar='A,B',
        help=f'of resctrl on each host (default: {ComputeHost.dialect})')
    one.add_argument(
        '--nodes', type=lambda text: list(map(int, text.split(','))),
        default=[], metavar='M,N',
        help=f'NUMA nodes of each host (default: {ComputeHost.nodes})')
    one.add_argument('--watcher', action='store_true',
                     help='Watcher, too, with the goal of ghsched')
    one.add_argument('--older', metavar='REVISION',
                     help='nova-compute of the second host as in this '
                          'revision of the git repository')


def _hosts(given: argparse.Namespace) -> tuple[ComputeHost, ...]:
    """The hosts that the options of "up" describe."""
    numbers = range(1, given.hosts + 1)
    return tuple(ComputeHost(number, dialect, nodes) for (
        number, dialect, nodes) in zip(
            numbers,
            given.dialects or [ComputeHost.dialect] * given.hosts,
            given.nodes or [ComputeHost.nodes] * given.hosts, strict=True))


def _up(settings: Settings, given: argparse.Namespace) -> None:
    with_watcher(settings, given.watcher)
    settings.save('older', bool(given.older))
    up_with(settings, _hosts(given))


def _openrc(settings: Settings) -> None:
    write_openrc(settings)
    print((settings.home / 'openrc').read_text(), end='')


def _execute(settings: Settings, number: int, words: list[str]) -> None:
    settings = settings.on(ComputeHost(number))
    execute(settings, words[1:] if words[:1] == ['--'] else words)


def _set(settings: Settings, given: argparse.Namespace,
         value: str | None) -> None:
    set_option(settings, given.section, given.key, value)


def _run(settings: Settings, given: argparse.Namespace) -> int:
    """Call the command; one without a status of its own has succeeded."""
    calls: dict[str, Callable[[], int | None]] = {
        'up': lambda: _up(settings, given),
        'down': lambda: down(settings),
        'wipe': lambda: wipe(settings),
        'status': lambda: status(settings),
        'openrc': lambda: _openrc(settings),
        'restart': lambda: restart(settings, given.service),
        'logs': lambda: logs(settings, given.service),
        'set-option': lambda: _set(settings, given, given.value),
        'unset-option': lambda: _set(settings, given, None),
        'exec': lambda: _execute(settings, given.host, given.words),
    }
    with _alone(settings, given.command):
        return calls[given.command]() or 0


@contextlib.contextmanager
def _alone(settings: Settings, command: str) -> Iterator[None]:
    """Keep two commands that start or stop services apart."""
    if command not in ('up', 'down', 'wipe', 'restart'):
        yield
        return
    with (settings.home / 'lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    arguments = _parser().parse_args()
    try:
        return _run(read(), arguments)
    except CloudError as error:
        print(f'tools/cloud: {error}', file=sys.stderr)
        return 1
    except BrokenPipeError:    # "tools/cloud logs | head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0

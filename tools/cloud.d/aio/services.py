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


"""The cloud's services, as data."""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import hashlib
from pathlib import Path

from aio import config
from aio import host
from aio.process import Process
from aio.settings import Settings

#: The services of the control plane, in the order in which they are started.
_CONTROL = ('epmd', 'rabbitmq', 'mariadb', 'keystone', 'placement', 'glance',
            'neutron', 'nova-api', 'nova-conductor', 'nova-scheduler')
#: Those of Watcher, if it is in the cloud.
WATCHER = ('watcher-api', 'watcher-decision-engine', 'watcher-applier')
COMPUTE = 'nova-compute'
SSH = 'sshd'

#: The WSGI applications, and how many threads each gets.
_WSGI = {
    'keystone': ('keystone.wsgi.api', 4),
    'placement': ('placement.wsgi.api', 4),
    'glance': ('glance.wsgi.api', 4),
    'neutron': ('neutron.wsgi.api', 4),
    'nova-api': ('nova.wsgi.osapi_compute', 8),
    'watcher-api': ('watcher.wsgi.api', 4),
}

#: The services whose behaviour depends on this project's installed wheel.
_EXTENDED = ('nova-api', 'nova-conductor', 'nova-scheduler', COMPUTE,
             'watcher-decision-engine')


@dataclass(frozen=True)
class Cloud:
    """The settings and the processes that follow from them."""

    settings: Settings
    processes: Mapping[str, Process]

    def __getitem__(self, name: str) -> Process:
        return self.processes[name]

    def compute(self, settings: Settings) -> Process:
        """nova-compute of the host that the settings are seen from."""
        return self[COMPUTE + settings.host.suffix]

    @property
    def on_hosts(self) -> list[Process]:
        """Services that run on the compute hosts."""
        return [one for name, one in self.processes.items()
                if name not in _CONTROL + WATCHER]

    @property
    def listeners_up(self) -> set[str]:
        """Listeners whose port is held by a process of ours."""
        up = {name for name, one in self.processes.items()
              if one.pid is not None}
        return (up | ({'rabbitmq-dist'} if 'rabbitmq' in up else set())
                | ({'ssh'} if SSH in up else set()))


def cloud(settings: Settings) -> Cloud:
    """Describe the cloud; nothing is started."""
    processes = [_process(settings, name) for name in (
        *_CONTROL, *(WATCHER if settings.watcher else ()))]
    for one in settings.each_host:
        processes.append(_process(one, COMPUTE, one.host.suffix))
        # Nova copies disks with it, to another host.
        if len(settings.hosts) > 1:
            processes.append(_process(one, SSH, one.host.suffix))
    return Cloud(settings, {one.name: one for one in processes})


def _process(settings: Settings, name: str, suffix: str = '') -> Process:
    argv, env = _command(settings, name)
    return Process(
        name=name + suffix, argv=argv, env=env,
        log=settings.log / f'{name}{suffix}.log',
        pidfile=settings.run / f'{name}{suffix}.pid',
        grace=3 if name in _EXTENDED else 10,
        revision=_revision(settings, name))


def _command(settings: Settings, name: str
             ) -> tuple[tuple[str, ...], dict[str, str]]:
    if name in _WSGI:
        return _wsgi(settings, name)
    if name in WATCHER:
        return (f'{settings.watcher_packages}/bin/{name}',
                *_watcher_options(settings)), {
                    'PYTHONPATH': str(settings.watcher_packages)}
    return {
        'epmd': _epmd, 'rabbitmq': _rabbitmq, 'mariadb': _mariadb,
        'nova-conductor': _nova_conductor,
        'nova-scheduler': _nova_scheduler, COMPUTE: _nova_compute,
        SSH: _sshd,
    }[name](settings)


def _revision(settings: Settings, name: str) -> str:
    """Hash of the files that a service reads when it starts."""
    suffix = settings.host.suffix if name in (COMPUTE, SSH) else ''
    directory = settings.etc / (name.partition('-')[0] + suffix)
    files = sorted(path for path in directory.rglob('*') if path.is_file()
                   and not path.is_symlink() and path != settings.local_conf)
    files.append(settings.venv / 'ghsched-requirements')
    if name in _EXTENDED:
        wheel = (settings.older_packages if name == COMPUTE and settings.older
                 else settings.venv)
        files.append(wheel / 'ghsched-project')
    data = hashlib.sha256()
    for path in files:
        data.update(path.read_bytes() if path.exists() else b'')
    return data.hexdigest()


def _wsgi(settings: Settings, name: str
          ) -> tuple[tuple[str, ...], dict[str, str]]:
    module, threads = _WSGI[name]
    family = name.partition('-')[0]
    prefix = f'OS_{family.upper()}_CONFIG_'
    directory = settings.etc / family
    env = {prefix + 'DIR': str(directory)}
    if family == 'keystone':
        env[prefix + 'FILES'] = str(directory / 'keystone.conf')
    elif family == 'nova':
        env[prefix + 'FILES'] = ';'.join(
            ('api-paste.ini', 'nova.conf', str(settings.local_conf)))
    return ((
        f'{settings.venv}/bin/uwsgi',
        '--http-socket', f'127.0.0.1:{settings.port(name)}',
        '--module', f'{module}:application', '--pyhome', str(settings.venv),
        '--master', '--workers', '1', '--threads', str(threads),
        '--enable-threads', '--lazy-apps', '--need-app', '--die-on-term',
        '--thunder-lock', '--buffer-size', '65535', '--http-chunked-input',
        '--disable-logging',
        # uWSGI closes the connection without saying so; a client that would
        # use it again gets a reset.
        '--add-header', 'Connection: close',
        # It reads no variable that says where its file is.
        *(('--pyargv', ' '.join(_watcher_options(settings)),
           '--pythonpath', str(settings.watcher_packages))
          if family == 'watcher' else ()),
    ), env)


def _watcher_options(settings: Settings) -> tuple[str, str]:
    return '--config-file', str(settings.etc / 'watcher' / 'watcher.conf')


def _erlang(settings: Settings) -> dict[str, str]:
    return {
        'HOME': str(settings.state / 'rabbitmq'),
        'ERL_EPMD_ADDRESS': '127.0.0.1',
        'ERL_EPMD_PORT': str(settings.port('epmd')),
    }


def _epmd(settings: Settings) -> tuple[tuple[str, ...], dict[str, str]]:
    """Erlang's port mapper, apart from one that the machine may have."""
    return ('epmd',), _erlang(settings)


def _rabbitmq(settings: Settings) -> tuple[tuple[str, ...], dict[str, str]]:
    state = settings.state / 'rabbitmq'
    return ('/usr/lib/rabbitmq/bin/rabbitmq-server',), {
        **_erlang(settings),
        # The machine's own broker may have a file of these.
        'RABBITMQ_CONF_ENV_FILE': str(state / 'no-such-file'),
        'RABBITMQ_NODENAME': 'ghsched@localhost',
        'RABBITMQ_CONFIG_FILE': str(settings.etc / 'rabbitmq'
                                    / 'rabbitmq.conf'),
        'RABBITMQ_MNESIA_BASE': str(state / 'mnesia'),
        'RABBITMQ_LOG_BASE': str(settings.log),
        'RABBITMQ_LOGS': '-',
        'RABBITMQ_PID_FILE': str(state / 'pid'),
        'RABBITMQ_GENERATED_CONFIG_DIR': str(state / 'generated'),
        'RABBITMQ_ENABLED_PLUGINS_FILE': str(state / 'enabled_plugins'),
        'RABBITMQ_DIST_PORT': str(settings.port('rabbitmq-dist')),
        'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS':
            '-kernel inet_dist_use_interface {127,0,0,1} '
            '-start_epmd false +S 2:2 +sbwt none',
    }


def rabbitmq_config(settings: Settings) -> str:
    return '\n'.join((
        f'listeners.tcp.1 = 127.0.0.1:{settings.port("rabbitmq")}',
        'default_user = ghsched',
        f'default_pass = {settings.broker_password}',
        'vm_memory_high_watermark.relative = 0.2',
        'disk_free_limit.absolute = 50MB', ''))


def _mariadb(settings: Settings) -> tuple[tuple[str, ...], dict[str, str]]:
    """A server without a network port; its directory is root's alone."""
    return (
        '/usr/sbin/mariadbd', '--no-defaults', '--user=root',
        f'--datadir={settings.database}',
        f'--socket={settings.database_socket}',
        f'--pid-file={settings.database}/server.pid',
        '--skip-networking', '--skip-log-bin', '--performance-schema=OFF',
        # This database need not outlive a crash of the machine.
        '--innodb-flush-log-at-trx-commit=0', '--innodb-doublewrite=0',
        '--innodb-buffer-pool-size=64M', '--innodb-log-file-size=32M',
        '--max-connections=400'), {}


def _sshd(settings: Settings) -> tuple[tuple[str, ...], dict[str, str]]:
    return host.inside(settings, ('/usr/sbin/sshd', '-D', '-e')), {}


def _nova(settings: Settings, program: Sequence[str],
          path: Path | None = None) -> tuple[str, ...]:
    path = path or settings.etc / 'nova' / 'nova.conf'
    return (*program, '--config-file', str(path),
            '--config-file', str(settings.local_conf))


def _nova_conductor(settings: Settings
                    ) -> tuple[tuple[str, ...], dict[str, str]]:
    return _nova(settings, settings.program('nova-conductor')), {}


def _nova_scheduler(settings: Settings
                    ) -> tuple[tuple[str, ...], dict[str, str]]:
    return _nova(settings, settings.program('ghsched-nova-scheduler')), {}


def _nova_compute(settings: Settings
                  ) -> tuple[tuple[str, ...], dict[str, str]]:
    # Not with an older release, whose modules may be others.
    program = settings.program('ghsched-nova-compute') if settings.older else (
        f'{settings.venv}/bin/python', '-P',
        f'{settings.top}/tools/cloud.d/simulated_compute.py')
    command = _nova(settings, program, config.compute_file(settings))
    return host.inside(settings, command), {
        'PATH': f'{settings.venv}/bin:/usr/sbin:/usr/bin:/sbin:/bin'}

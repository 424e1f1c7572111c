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


"""Settings of the cloud: directories, ports, passwords."""

from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import replace
import json
import os
from pathlib import Path
import secrets
import socket
import sys
import time

#: Services that listen on TCP (on 127.0.0.1 only), in the order of their
#: ports, counted from the port base.
LISTENERS = ('keystone', 'placement', 'glance', 'neutron', 'nova-api',
             'rabbitmq', 'rabbitmq-dist', 'epmd', 'ssh', 'watcher-api')

#: The ports at which each host receives guests that migrate, from the port
#: base on: the first host's, and how many a host has.
_MIGRATION_PORTS = 40
_MIGRATION_PORT_COUNT = 20

REGION = 'RegionOne'
#: Seconds for which a port may be held after its service has ended.
_LISTENS_ON = 10.0


class CloudError(Exception):
    """A failure that the message explains."""


@dataclass(frozen=True)
class ComputeHost:
    """A simulated compute host.

    :param number: from 1 on.
    :param dialect: of its emulated resctrl, see emulator.machines.
    :param nodes: how many NUMA nodes it has.
    """

    number: int = 1
    dialect: str = 'openeuler66'
    nodes: int = 2

    @property
    def name(self) -> str:
        """Name in Nova, libvirt and Placement."""
        return f'simulated-{self.number}'

    @property
    def suffix(self) -> str:
        """Suffix of a host's processes and directories; none for the first."""
        return f'-{self.number}' if self.number > 1 else ''

    @property
    def address(self) -> str:
        """Nova tells hosts apart by it; libvirt refuses 127.0.0.1."""
        return f'127.0.1.{self.number}'


HOST = ComputeHost().name


@dataclass(frozen=True)
class Settings:
    """Settings of this cloud from the environment.

    :param home: everything that the cloud writes is below it.
    :param top: the top of the source tree.
    :param port_base: the first of the TCP ports.
    :param control_groups: how many closids the simulated host has, the
        kernel's default group included.
    :param reserved_bandwidth: the option of this name; empty for its default.
    :param host: the compute host that is looked at.
    """

    home: Path
    top: Path
    port_base: int
    control_groups: int
    reserved_bandwidth: str = ''
    host: ComputeHost = ComputeHost()

    @property
    def hosts(self) -> tuple[ComputeHost, ...]:
        """The hosts of this cloud, as the last "up" wanted them."""
        try:
            saved = json.loads((self.state / 'hosts.json').read_text())
        except OSError:
            return (ComputeHost(),)
        return tuple(ComputeHost(**one) for one in saved)

    def save_hosts(self, hosts: tuple[ComputeHost, ...]) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / 'hosts.json').write_text(
            json.dumps([asdict(one) for one in hosts]))

    @property
    def watcher(self) -> bool:
        """Whether Watcher is in this cloud, as the last "up" wanted it."""
        return (self.state / 'watcher').exists()

    @property
    def older(self) -> bool:
        """Whether this host has the older release, likewise."""
        return bool(self.host.suffix) and (self.state / 'older').exists()

    def save(self, part: str, wanted: bool) -> None:
        """Record whether the next "up" has ``watcher`` or ``older``."""
        self.state.mkdir(parents=True, exist_ok=True)
        if wanted:
            (self.state / part).touch()
        else:
            (self.state / part).unlink(missing_ok=True)

    def on(self, host: ComputeHost) -> 'Settings':
        """The same cloud, seen from a host."""
        return replace(self, host=host)

    @property
    def each_host(self) -> tuple['Settings', ...]:
        return tuple(self.on(host) for host in self.hosts)

    @property
    def venv(self) -> Path:
        return Path(sys.prefix)

    @property
    def watcher_packages(self) -> Path:
        """Directory of the packages that only Watcher needs."""
        return self.venv / 'watcher'

    @property
    def older_packages(self) -> Path:
        """An older release of ghsched, for the last host."""
        return self.venv / 'older'

    def program(self, name: str) -> tuple[str, ...]:
        """The command line of a program of the environment on this host."""
        path = f'{self.venv}/bin/{name}'
        return (('env', f'PYTHONPATH={self.older_packages}', path)
                if self.older else (path,))

    @property
    def log(self) -> Path:
        return self.home / 'log'

    @property
    def run(self) -> Path:
        return self.home / 'run'

    @property
    def etc(self) -> Path:
        return self.home / 'etc'

    @property
    def state(self) -> Path:
        return self.home / 'state'

    @property
    def cache(self) -> Path:
        return self.home / 'cache'

    @property
    def database(self) -> Path:
        return self.state / 'mariadb'

    @property
    def database_socket(self) -> Path:
        return self.database / 'server.sock'

    @property
    def host_state(self) -> Path:
        return self.state / f'testhost{self.host.suffix}'

    @property
    def faults(self) -> Path:
        """File of the faults of the emulated resctrl."""
        return self.state / f'faults{self.host.suffix}.json'

    @property
    def instances(self) -> Path:
        """Path at which each host sees its own :attr:`own_instances`."""
        return self.state / 'instances'

    @property
    def own_instances(self) -> Path:
        return self.state / f'instances{self.host.suffix}'

    @property
    def host_link(self) -> Path:
        """Link to :attr:`host_state`, named after the host."""
        return self.state / 'hosts' / self.host.name

    @property
    def migration(self) -> str:
        """Address and ports at which the host receives guests."""
        first = self.port_base + _MIGRATION_PORTS \
            + (self.host.number - 1) * _MIGRATION_PORT_COUNT
        return (f'{self.host.address}:{first}'
                f'-{first + _MIGRATION_PORT_COUNT - 1}')

    @property
    def local_conf(self) -> Path:
        """Options set with ``tools/cloud set-option``."""
        return self.etc / 'nova' / 'local.conf'

    def port(self, listener: str) -> int:
        return self.port_base + LISTENERS.index(listener)

    def url(self, listener: str) -> str:
        return f'http://127.0.0.1:{self.port(listener)}'

    @property
    def broker_password(self) -> str:
        """Password of RabbitMQ's user, made when first asked for."""
        return _password(self.home / 'password')

    def password_of(self, user: str) -> str:
        """Return the password of a user of Keystone, each another one."""
        directory = self.home / 'passwords'
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _password(directory / user)

    @property
    def admin(self) -> dict[str, str]:
        """The cloud admin's credentials, as OS_* variables."""
        return {
            'OS_AUTH_URL': self.url('keystone') + '/v3',
            'OS_USERNAME': 'admin',
            'OS_PASSWORD': self.password_of('admin'),
            'OS_PROJECT_NAME': 'admin',
            'OS_USER_DOMAIN_ID': 'default',
            'OS_PROJECT_DOMAIN_ID': 'default',
            'OS_REGION_NAME': REGION,
            'OS_IDENTITY_API_VERSION': '3',
            'OS_COMPUTE_API_VERSION': '2.100',
            'OS_PLACEMENT_API_VERSION': '1.39',
        }


def _password(path: Path) -> str:
    """Return the password in a file, which is made if it is not there."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe() + '\n')
    return path.read_text().strip()


def read() -> Settings:
    """The settings of this environment."""
    home = Path(os.environ.get('GHSCHED_HOME', '/var/lib/ghsched'))
    return Settings(
        home=home, top=Path(__file__).resolve().parents[3],
        port_base=_number('GHSCHED_PORT_BASE', 18000, 1024, 65500),
        control_groups=_number('GHSCHED_CLOSIDS', 16, 2, 4096),
        reserved_bandwidth=os.environ.get('GHSCHED_RESERVED_BANDWIDTH', ''))


def _number(name: str, default: int, low: int, high: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdigit() or not low <= int(text) <= high:
        raise CloudError(f'{name} must be a number from {low} to {high}, '
                         f'not {text!r}')
    return int(text)


def check_ports(settings: Settings, mine: set[str]) -> None:
    """Check that each port is free or used by a service of the cloud."""
    for listener in LISTENERS:
        if listener in mine:
            continue
        port = settings.port(listener)
        # A worker of a service that has just ended may listen a moment longer.
        end = time.monotonic() + _LISTENS_ON
        while (refused := _unbindable(port)) and time.monotonic() < end:
            time.sleep(0.2)
        if refused:
            raise CloudError(
                f'port {port}, meant for {listener}, is not free ({refused}); '
                'choose other ports with GHSCHED_PORT_BASE, now '
                f'{settings.port_base}')


def _unbindable(port: int) -> str:
    """Return why nobody can listen on a port; empty if it is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(('127.0.0.1', port))
        except OSError as error:
            return str(error.strerror)
    return ''

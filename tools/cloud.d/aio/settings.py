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


"""Where the cloud lives: directories, ports, the password."""

from dataclasses import dataclass
import os
from pathlib import Path
import secrets
import socket
import sys

#: Services that listen on TCP (on 127.0.0.1 only), in the order of their
#: ports, counted from the port base.
LISTENERS = ('keystone', 'placement', 'glance', 'neutron', 'nova-api',
             'rabbitmq', 'rabbitmq-dist', 'epmd')

REGION = 'RegionOne'
HOST = 'simulated-1'


class CloudError(Exception):
    """A failure that the message explains."""


@dataclass(frozen=True)
class Settings:
    """What the environment says about this cloud.

    :param home: everything that the cloud writes is below it.
    :param top: the top of the source tree.
    :param port_base: the first of the TCP ports.
    :param control_groups: how many closids the simulated host has, the
        kernel's default group included.
    """

    home: Path
    top: Path
    port_base: int
    control_groups: int

    @property
    def venv(self) -> Path:
        return Path(sys.prefix)

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
        return self.state / 'testhost'

    @property
    def faults(self) -> Path:
        """What the emulated resctrl is told to do wrong."""
        return self.state / 'faults.json'

    @property
    def instances(self) -> Path:
        return self.state / 'instances'

    @property
    def local_conf(self) -> Path:
        """Options set with ``tools/cloud set-option``."""
        return self.etc / 'nova' / 'local.conf'

    def port(self, listener: str) -> int:
        return self.port_base + LISTENERS.index(listener)

    def url(self, listener: str) -> str:
        return f'http://127.0.0.1:{self.port(listener)}'

    @property
    def password(self) -> str:
        """The one password of this cloud, made when first asked for."""
        path = self.home / 'password'
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_hex(16) + '\n')
        return path.read_text().strip()

    @property
    def admin(self) -> dict[str, str]:
        """The cloud admin's credentials, as OS_* variables."""
        return {
            'OS_AUTH_URL': self.url('keystone') + '/v3',
            'OS_USERNAME': 'admin',
            'OS_PASSWORD': self.password,
            'OS_PROJECT_NAME': 'admin',
            'OS_USER_DOMAIN_ID': 'default',
            'OS_PROJECT_DOMAIN_ID': 'default',
            'OS_REGION_NAME': REGION,
            'OS_IDENTITY_API_VERSION': '3',
            'OS_COMPUTE_API_VERSION': '2.100',
            'OS_PLACEMENT_API_VERSION': '1.39',
        }


def read() -> Settings:
    """The settings of this environment."""
    home = Path(os.environ.get('GHSCHED_HOME', '/var/lib/ghsched'))
    return Settings(
        home=home, top=Path(__file__).resolve().parents[3],
        port_base=_number('GHSCHED_PORT_BASE', 18000, 1024, 65500),
        control_groups=_number('GHSCHED_CLOSIDS', 16, 2, 4096))


def _number(name: str, default: int, low: int, high: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdigit() or not low <= int(text) <= high:
        raise CloudError(f'{name} must be a number from {low} to {high}, '
                         f'not {text!r}')
    return int(text)


def check_ports(settings: Settings, mine: set[str]) -> None:
    """See that every port is free or held by a running service of ours."""
    for listener in LISTENERS:
        if listener in mine:
            continue
        port = settings.port(listener)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(('127.0.0.1', port))
            except OSError as error:
                raise CloudError(
                    f'port {port}, meant for {listener}, is not free '
                    f'({error.strerror}); choose other ports with '
                    f'GHSCHED_PORT_BASE, now {settings.port_base}') from error

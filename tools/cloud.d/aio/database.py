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


"""MariaDB: its data directory, the services' schemas, a copy of both."""

from collections.abc import Mapping
from concurrent import futures
import hashlib
import importlib.metadata
import os
from pathlib import Path
import subprocess
from types import MappingProxyType

from aio.process import Process
from aio.process import stop
from aio.process import wait_until
from aio.settings import CloudError
from aio.settings import Settings

_NONE: Mapping[str, str] = MappingProxyType({})
_DATABASES = ('keystone', 'placement', 'glance', 'neutron', 'nova_api',
              'nova_cell0', 'nova_cell1')
_DISTRIBUTIONS = ('keystone', 'openstack-placement', 'glance', 'neutron',
                  'neutron-lib', 'nova', 'alembic', 'SQLAlchemy')


def _schema_id() -> str:
    """Names the schemas that the installed services make."""
    versions = [(name, importlib.metadata.version(name))
                for name in _DISTRIBUTIONS]
    server = subprocess.run(['/usr/sbin/mariadbd', '--version'], check=True,
                            capture_output=True, text=True).stdout
    return hashlib.sha256(repr((versions, server)).encode()).hexdigest()[:16]


def _stamp(settings: Settings) -> Path:
    return settings.database / 'ghsched-schemas'


def is_migrated(settings: Settings) -> bool:
    stamp = _stamp(settings)
    return stamp.exists() and stamp.read_text() == _schema_id()


def prepare_directory(settings: Settings) -> None:
    """Create the data directory, from the copy if there is one."""
    if _stamp(settings).exists() or (settings.database / 'mysql').exists():
        return
    settings.database.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy = _copy(settings)
    if copy.exists():
        run(['tar', '-xf', str(copy), '-C', str(settings.database)])
        return
    run(['mariadb-install-db', '--no-defaults', '--user=root',
         f'--datadir={settings.database}', '--skip-test-db',
         '--auth-root-authentication-method=normal'])


def _copy(settings: Settings) -> Path:
    return settings.cache / f'schemas-{_schema_id()}.tar'


def wait(settings: Settings, server: Process) -> None:
    wait_until(lambda: _answers(settings), 60, 'MariaDB does not answer',
               server)


def _answers(settings: Settings) -> bool:
    return subprocess.run(_client(settings, 'select 1'), check=False,
                          capture_output=True).returncode == 0


def _client(settings: Settings, statement: str) -> list[str]:
    return ['mariadb', '--no-defaults', '--batch', '--skip-column-names',
            f'--socket={settings.database_socket}', '-uroot',
            '-e', statement]


def query(settings: Settings, statement: str) -> str:
    """Return the server's answer, one row per line, columns split by tabs."""
    return run(_client(settings, statement))


def migrate(settings: Settings, server: Process) -> None:
    """Make every service's schema, then keep a copy of the directory.

    The four chains take half a minute of two processors; a cloud that is
    made again starts from the copy.
    """
    query(settings, ''.join(
        f'create database if not exists {name} character set utf8mb3;'
        for name in _DATABASES))
    chains = (_keystone(settings), _small_ones(settings),
              _neutron(settings), _nova(settings))
    with futures.ThreadPoolExecutor(len(chains)) as pool:
        list(pool.map(_run_chain, chains))
    _stamp(settings).write_text(_schema_id())
    stop([server])
    settings.cache.mkdir(parents=True, exist_ok=True)
    partial = _copy(settings).with_suffix('.partial')
    run(['tar', '-cf', str(partial), '-C', str(settings.database), '.'])
    partial.rename(_copy(settings))
    server.start()
    wait(settings, server)


def _run_chain(commands: list[list[str]]) -> None:
    for command in commands:
        run(command)


def run(command: list[str], environment: Mapping[str, str] = _NONE) -> str:
    """Run a command that must succeed; its output is shown if it does not.

    :param environment: variables beside those of this process.
    """
    result = subprocess.run(command, stdin=subprocess.DEVNULL, text=True,
                            env={**os.environ, **environment},
                            capture_output=True, check=False)
    if result.returncode:
        end = (result.stdout + result.stderr).splitlines()[-20:]
        raise CloudError(f'{" ".join(command)} failed:\n    '
                         + '\n    '.join(end))
    return result.stdout


def _manage(settings: Settings, tool: str, *files: str) -> list[str]:
    command = [f'{settings.venv}/bin/{tool}']
    for name in files:
        command += ['--config-file', str(settings.etc / name)]
    return command


def _keystone(settings: Settings) -> list[list[str]]:
    return [[*_manage(settings, 'keystone-manage', 'keystone/keystone.conf'),
             'db_sync']]


def _small_ones(settings: Settings) -> list[list[str]]:
    return [
        [*_manage(settings, 'placement-manage', 'placement/placement.conf'),
         'db', 'sync'],
        [*_manage(settings, 'glance-manage', 'glance/glance-api.conf'),
         'db_sync'],
    ]


def _neutron(settings: Settings) -> list[list[str]]:
    return [[*_manage(settings, 'neutron-db-manage', 'neutron/neutron.conf',
                      'neutron/plugins/ml2/ml2_conf.ini'),
             'upgrade', 'head']]


def migrate_watcher(settings: Settings) -> None:
    """Make Watcher's schema, or bring it up to date."""
    query(settings, 'create database if not exists watcher '
                    'character set utf8mb3')
    packages = settings.watcher_packages
    run(['env', f'PYTHONPATH={packages}',
         f'{packages}/bin/watcher-db-manage', '--config-file',
         str(settings.etc / 'watcher' / 'watcher.conf'), 'upgrade'])


def nova_manage(settings: Settings) -> list[str]:
    return _manage(settings, 'nova-manage', 'nova/nova.conf')


def _nova(settings: Settings) -> list[list[str]]:
    """Nova's schemas and its two cells.

    The cells are stored as templates, filled from the configuration when
    they are used, so that a copy serves whatever the password, the ports and
    the directory.
    """
    manage = nova_manage(settings)
    template = '{scheme}://{username}@{hostname}/nova_cell%d?{query}'
    return [
        [*manage, 'api_db', 'sync'],
        [*manage, 'cell_v2', 'map_cell0', '--database_connection',
         template % 0],
        [*manage, 'cell_v2', 'create_cell', '--name', 'cell1',
         '--database_connection', template % 1,
         '--transport-url',
         '{scheme}://{username}:{password}@{hostname}:{port}/'],
        [*manage, 'db', 'sync'],
    ]

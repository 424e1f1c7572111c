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


"""A second simulated host for as long as it is needed.

It has its own nodes, resctrl, libvirtd and nova-compute, and shares the
control plane, so that the scheduler has a choice.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
from pathlib import Path
import shutil
from typing import Any

from aio import config
from aio import database
from aio import host
from aio import process
from aio.settings import Settings

NAME = 'simulated-2'

_BINARY = 'nova-compute'


class _Second(Settings):
    """The same cloud, seen from the second host."""

    @property
    def host_state(self) -> Path:
        return self.state / 'testhost-2'

    @property
    def instances(self) -> Path:
        return self.state / 'instances-2'


@contextlib.contextmanager
def up(settings: Settings, cloud: Any) -> Iterator[None]:
    """Have the host; whoever uses it removes its servers before the end.

    :param cloud: an openstacksdk connection.
    """
    second = _Second(**{field.name: getattr(settings, field.name)
                        for field in dataclasses.fields(settings)})
    compute = _compute(second)
    try:
        host.up(second, host.DIALECT, '--hostname', NAME)
        compute.start()
        process.wait_until(lambda: _is_up(cloud), 120,
                           f'{NAME} does not report', compute)
        database.run([*database.nova_manage(settings), 'cell_v2',
                      'discover_hosts'])
        yield
    finally:
        process.stop([compute])
        host.down(second)
        for service in cloud.compute.services(binary=_BINARY, host=NAME):
            cloud.compute.delete_service(service)


def _compute(second: Settings) -> process.Process:
    """nova-compute on it, with nothing that an earlier one has left."""
    state = second.state / 'nova-2'
    shutil.rmtree(state, ignore_errors=True)
    for directory in (state, second.instances):
        directory.mkdir(parents=True, exist_ok=True)
    sections = dict(config.compute(second))
    sections['DEFAULT'] = {**sections['DEFAULT'], 'host': NAME,
                           'state_path': str(state)}
    # Not in the directory of Nova's files: services are started again when
    # one of those changes.
    conf = second.etc / 'second' / 'nova-compute.conf'
    config.write(conf, config.render(sections))
    return process.Process(
        name=f'{_BINARY}-2',
        argv=host.inside(second, (
            f'{second.venv}/bin/nova-compute', '--config-file', str(conf),
            '--config-file', str(second.local_conf))),
        env={'PATH': f'{second.venv}/bin:/usr/sbin:/usr/bin:/sbin:/bin'},
        log=second.log / f'{_BINARY}-2.log',
        pidfile=second.run / f'{_BINARY}-2.pid', grace=3)


def _is_up(cloud: Any) -> bool:
    """Whether Placement has its last node; Nova lists no unmapped host."""
    found = cloud.placement.get(
        f'/resource_providers?name={NAME}_NUMA{host.NODES - 1}').json()
    services = cloud.compute.services(binary=_BINARY, host=NAME)
    return bool(found['resource_providers']) and any(
        one.state == 'up' for one in services)

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


"""Operations on a guest, by its state."""

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
import random
import time
from typing import Any

from aio.lab import Lab
from ghsched_placement.features.live_change import server_change
from ghsched_placement.flavor import keys
from ghsched_placement.osc import client
from openstack import exceptions

_SNAPSHOT = 'soak-snapshot'
_IMAGE = 'soak-blank'
#: Nothing on it can be booted, so the firmware halts. To boot Linux without
#: hardware virtualisation would take most of the time of most steps.
_DISK = bytes(1 << 20)
FLAVORS = ('soak30', 'soak60', 'soak-wide', 'soak-classes', 'soak-class')


@dataclass(frozen=True)
class Operation:
    """Request of a user.

    :param act: makes the request; what it starts goes on in the cloud.
    """

    name: str
    act: Callable[[Lab, Any, random.Random], object]


def prepare(lab: Lab) -> None:
    """Flavors, and an image that is blank."""
    if lab.cloud.image.find_image(_IMAGE) is None:
        lab.cloud.image.create_image(
            _IMAGE, data=_DISK, disk_format='raw', container_format='bare',
            hw_machine_type='q35')
    lab.image_name = _IMAGE
    lab.flavor(FLAVORS[0], hw__numa_nodes=1, ghsched__mem_bw_min=30)
    lab.flavor(FLAVORS[1], hw__numa_nodes=1, ghsched__mem_bw_min=60)
    lab.flavor(FLAVORS[2], vcpus=2, ram=256, hw__numa_nodes=2,
               ghsched__mem_bw_min__at__0=10, ghsched__mem_bw_min__at__1=20)
    # On two processors, a node of a simulated host has one CPU.
    lab.flavor(FLAVORS[3], vcpus=2, ram=256, hw__numa_nodes=2,
               ghsched__guest_channel='write',
               ghsched__vcpu_classes='latency:0',
               ghsched__mem_bw_min__at__latency=20, ghsched__mem_bw_min=10)
    # One on one node, which can move inside a host.
    lab.flavor(FLAVORS[4], hw__numa_nodes=1, ghsched__guest_channel='write',
               ghsched__vcpu_classes='latency:0',
               ghsched__mem_bw_min__at__latency=15,
               ghsched__mem_bw_max__at__latency=50)


def _call(name: str) -> Operation:
    """A call of openstacksdk's compute proxy that takes a server."""
    return Operation(name.removesuffix('_server'), lambda lab, server, _rng:
                     getattr(lab.cloud.compute, name)(server))


def _live(lab: Lab, server: Any, _rng: random.Random) -> None:
    lab.cloud.compute.live_migrate_server(server, host=None,
                                          block_migration='auto')


def _abort(lab: Lab, server: Any, rng: random.Random) -> None:
    """A live migration that the admin cancels."""
    _live(lab, server, rng)
    end = time.monotonic() + 20
    while time.monotonic() < end and lab.server(server).task_state:
        for one in lab.cloud.compute.server_migrations(server):
            try:
                lab.cloud.compute.abort_server_migration(one, server)
                return
            except exceptions.HttpException:    # not yet, or no more
                time.sleep(0.2)
        time.sleep(0.2)


def _snapshot(lab: Lab, server: Any, _rng: random.Random) -> None:
    """Only the snapshot of before is kept."""
    for one in lab.cloud.image.images(name=_SNAPSHOT):
        lab.cloud.image.delete_image(one)
    lab.cloud.compute.create_server_image(server, _SNAPSHOT)


def _resize(lab: Lab, server: Any, rng: random.Random) -> None:
    other = rng.choice([one for one in FLAVORS[:2]
                        if one != server.flavor.name])
    lab.cloud.compute.resize_server(server,
                                    lab.cloud.compute.find_flavor(other))


def _rebuild(lab: Lab, server: Any, _rng: random.Random) -> None:
    lab.cloud.compute.rebuild_server(
        server, image=lab.cloud.image.find_image(lab.image_name).id)


def _change(lab: Lab, server: Any, rng: random.Random) -> None:
    """Another guarantee, of one class or node if the guest has several."""
    key = rng.choice(sorted(one for one in server.flavor.extra_specs
                            if one.startswith(keys.MEM_BW_MIN.extra_spec)))
    server_change.set_bandwidth_policy(
        client.Client(lab.cloud), server.id,
        {key: str(rng.choice((5, 10, 15)))}, dry_run=False)


def _move_inside(lab: Lab, server: Any, rng: random.Random) -> None:
    """Move one guest node to the other node of its host."""
    cells = lab.topology(server)
    guest = rng.randrange(len(cells))
    server_change.move_server_nodes(
        client.Client(lab.cloud), server.id,
        {guest: 1 - cells[guest]['host_node']}, dry_run=False)


_DELETE = _call('delete_server')
_HARD_REBOOT = Operation('hard reboot', lambda lab, server, _rng:
                         lab.cloud.compute.reboot_server(server, 'HARD'))
_SOFT_REBOOT = Operation('soft reboot', lambda lab, server, _rng:
                         lab.cloud.compute.reboot_server(server, 'SOFT'))

OPERATIONS: Mapping[str, tuple[Operation, ...]] = {
    'ACTIVE': (
        Operation('live-migrate', _live), Operation('abort', _abort),
        _call('migrate_server'), Operation('snapshot', _snapshot),
        Operation('resize', _resize), _call('shelve_server'),
        Operation('rebuild', _rebuild), _call('rescue_server'),
        _call('suspend_server'), _call('pause_server'), _call('stop_server'),
        _SOFT_REBOOT, _HARD_REBOOT,
        Operation('change', _change), Operation('move-node', _move_inside),
        _DELETE),
    'VERIFY_RESIZE': (_call('confirm_server_resize'),
                      _call('revert_server_resize'), _DELETE),
    'SHELVED_OFFLOADED': (_call('unshelve_server'), _DELETE),
    'RESCUE': (_call('unrescue_server'), _DELETE),
    'PAUSED': (_call('unpause_server'), Operation('live-migrate', _live),
               _DELETE),
    'SUSPENDED': (_call('resume_server'), _DELETE),
    'SHUTOFF': (_call('start_server'), _call('migrate_server'), _DELETE),
    'ERROR': (_HARD_REBOOT, _DELETE),
}

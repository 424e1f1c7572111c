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


"""Guests that arrive one after the other in a cloud of Nova functional tests.

nova-api, nova-conductor, nova-scheduler, Placement and one nova-compute for
each host run in one process, each with its real code; below them is Nova's
fake libvirt, and a directory with the files of a resctrl. So the hosts are
simulated, and what is decided about guests is not.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
import logging
import time
from typing import Any

import testtools

# The first import of Nova has to be one of nova.tests.functional.
from ghsched_nova.tests.functional import test_vfs

from nova import context as nova_context
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base
from nova.virt.libvirt import host as libvirt_host
from packing import Flavor
from packing import Placed
from packing import Shape

from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import shared

_ALL = 'nova.scheduler.weights.all_weighers'
_OURS = 'ghsched_nova.scheduler.'
_PACK: Mapping[tuple[str, str], Any] = {
    ('filter_scheduler', 'ram_weight_multiplier'): -1.0,
    ('filter_scheduler', 'cpu_weight_multiplier'): -1.0,
    ('compute', 'packing_host_numa_cells_allocation_strategy'): True,
}


@dataclass(frozen=True)
class Kind:
    """Kind of scheduling to compare.

    :param ours: by ghsched, with the keys of ghsched in the flavors; else by
        Nova alone, with its own keys for VFs.
    :param options: of nova.conf, by section and name.
    """

    ours: bool
    options: Mapping[tuple[str, str], Any] = field(default_factory=dict)


#: By name. Nova's defaults spread guests; packing is what its manual offers.
KINDS = {
    'Nova': Kind(False),
    'Nova, packing': Kind(False, _PACK),
    'ghsched': Kind(True, {
        ('filter_scheduler', 'weight_classes'): [
            _ALL, _OURS + 'weighers.GhschedFragmentationWeigher',
            _OURS + 'bandwidth_weigher.GhschedBandwidthWeigher'],
        ('ghsched', 'fragmentation_weight_multiplier'): 5.0,
        ('compute', 'packing_host_numa_cells_allocation_strategy'): True}),
}


class Cloud(test_vfs.VfsTestCase):
    """Nova's functional tests have all that is needed; this is not a test.

    :param placed: to be filled with where each guest is, None for those that
        were refused.
    """

    def __init__(self, kind: Kind, shape: Shape, guests: Sequence[Flavor],
                 placed: list[Placed | None]) -> None:
        super().__init__('arrive')
        self.kind, self.shape, self.guests = kind, shape, guests
        self.placed = placed

    def track_vfs(self, **aliases: str) -> None:
        super().track_vfs(**aliases)
        if not self.kind.ours:      # Nova's defaults
            self.flags(report_in_placement=False, group='pci')
            self.flags(pci_in_placement=False, group='filter_scheduler')

    def setUp(self) -> None:
        self.flags(initial_ram_allocation_ratio=1.0,
                   reserved_host_memory_mb=0)
        for (section, name), value in self.kind.options.items():
            if section == 'ghsched':
                shared.config()
            self.flags(**{name: value}, group=section)
        self.flags(instances=-1, cores=-1, ram=-1, group='quota')
        super().setUp()

    def _setup_scheduler_service(self) -> Any:
        if self.kind.ours:
            return super()._setup_scheduler_service()
        self.flags(enabled_filters=[
            *base.CONF.filter_scheduler.enabled_filters,
            'NUMATopologyFilter', 'PciPassthroughFilter'],
            group='filter_scheduler')
        return self.start_service('scheduler')

    def _setup_compute_service(self) -> None:
        self.flags(compute_driver='ghsched.GhschedLibvirtDriver'
                   if self.kind.ours else 'libvirt.LibvirtDriver')

    def arrive(self) -> None:
        """Start the hosts, then ask for one guest after the other."""
        for number in range(self.shape.hosts):
            self._start(f'host{number}')
        flavors: dict[str, str] = {}
        for guest in self.guests:
            if guest.name not in flavors:
                flavors[guest.name] = self._flavor(guest)
            self.placed.append(self._boot(flavors[guest.name]))

    def _start(self, name: str) -> None:
        shape = self.shape
        cpus = shape.nodes * shape.node.cpus
        self.flags(cpu_dedicated_set=f'0-{cpus - 1}', group='compute')
        self.kernel.nodes = shape.nodes
        # The kernel's own group is none for guests.
        self.kernel.closids = shape.groups + 1
        self.kernel.write()
        # A mock of Nova's.
        libvirt_host.Host.get_online_cpus.return_value = set(range(cpus))
        # Nova's start_compute() makes a connection to small hosts only.
        self.start_compute(name, connection=fakelibvirt.Connection(
            'qemu:///system', version=fakelibvirt.FAKE_LIBVIRT_VERSION,
            hv_version=fakelibvirt.FAKE_QEMU_VERSION, hostname=name,
            host_info=fakelibvirt.HostInfo(
                cpu_nodes=shape.nodes, cpu_sockets=1,
                cpu_cores=shape.node.cpus, cpu_threads=1,
                kB_mem=shape.nodes * shape.node.memory_mb * 1024),
            pci_info=test_vfs.devices(*(
                (node, shape.node.vfs) for node in range(shape.nodes)))))

    def _flavor(self, guest: Flavor) -> str:
        """The guest's needs, as far as those who schedule have a key."""
        node, specs = guest.node, {}
        if self.kind.ours:
            if node.bandwidth:
                specs['ghsched:mem_bw_min'] = str(node.bandwidth)
            if node.vfs:
                specs['ghsched:vfs'] = f'nic:{node.vfs * guest.nodes}'
                specs['ghsched:vfs_locality'] = 'node'
        elif node.vfs:
            specs['pci_passthrough:alias'] = f'nic:{node.vfs * guest.nodes}'
            specs['hw:pci_numa_affinity_policy'] = 'required'
        return str(self.flavor(vcpus=guest.nodes * node.cpus,
                               nodes=guest.nodes,
                               ram=guest.nodes * node.memory_mb,
                               extra=specs))

    def _boot(self, flavor: str) -> Placed | None:
        server = self.api.post_server({'server': self._build_server(
            flavor_id=flavor, networks='none')})
        while True:
            now = self.api.get_server(server['id'])
            if now['status'] in ('ACTIVE', 'ERROR'):
                break
            time.sleep(0.02)
        if now['status'] == 'ERROR':
            if 'No valid host' not in now['fault']['message']:
                raise RuntimeError(now['fault']['message'])
            return None
        return self._where(server['id'])

    def _where(self, uuid: str) -> Placed:
        instance = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), uuid,
            expected_attrs=['numa_topology', 'pci_devices'])
        return Placed(
            int(instance.host.removeprefix('host')),
            tuple(numa.list_host_nodes(instance.numa_topology)),
            tuple(device.numa_node for device in instance.pci_devices))


def place_guests(kind: Kind, shape: Shape,
                 guests: Sequence[Flavor]) -> list[Placed | None]:
    """Return the final host of each guest; None if it was refused.

    :raises RuntimeError: when the cloud does not work.
    """
    logging.disable(logging.CRITICAL)
    # Nova's test class forgets what it has when it is done.
    placed: list[Placed | None] = []
    result = testtools.TestResult()
    Cloud(kind, shape, guests, placed).run(result)
    for _test, reason in (*result.errors, *result.failures):
        raise RuntimeError(reason)
    return placed

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


"""The demonstration of NUMA-local VFs; called by "tools/demo.sh --vfs".

It needs the virtual compute node (tools/vnode up).
"""

import sys
import time
from typing import Any

from aio.settings import read
from demonstration import claim
from demonstration import command
from demonstration import Demonstration
from demonstration import heading
from demonstration import main
from demonstration import say
from demonstration import show
from vnode.lab import Passed
from vnode.lab import VF
from vnode.lab import VirtualLab
from vnode import machine

BANDWIDTH = 'CUSTOM_MEM_BW_PCT'
_NODES = tuple(range(machine.NODES))


class Demo(Demonstration):
    """NUMA-local VFs, on the virtual compute node."""

    flavor_options = {'vcpus': 2, 'ram': 256}

    def steps(self) -> None:
        self.host()
        self.tree()
        self.without()
        self.one_request()
        self.refusal()

    # -- 1 --------------------------------------------------------------------

    def host(self) -> None:
        heading('1. The virtual compute node')
        say('QEMU emulates a machine with two NUMA nodes, an IOMMU and an '
            'SR-IOV network card (Intel 82576) on each node. The VFs, '
            'vfio-pci, libvirt, QEMU and Nova in it are the real ones; '
            'memory bandwidth is simulated.')
        command('tools/vnode exec cat /sys/bus/pci/devices/*/numa_node')
        devices = self.lab.host_devices()
        show(*(f'{address}  {name}  numa_node={node}'
               for address, name, node in sorted(devices)))
        for node in _NODES:
            count = sum(name == machine.pci_name(machine.VF_ID) and on == node
                        for _address, name, on in devices)
            every = machine.VFS_PER_PF + machine.PORT_VFS
            claim(f'NUMA node {node} has {every} VFs, '
                  f'{machine.PORT_VFS} of them for ports',
                  count == every, count)

    # -- 2 --------------------------------------------------------------------

    def tree(self) -> None:
        heading('2. The node in Placement')
        command('openstack resource provider list --in-tree ...')
        tree = self.lab.providers()
        depth: dict[str | None, int] = {None: -1}
        for one in tree:
            depth[one.uuid] = depth[one.parent] + 1
        for one in _depth_first(tree):
            amounts = ', '.join(
                f'{name} {entry["total"]}'
                for name, entry in self.lab.inventory(one).items()
                if name in (VF, BANDWIDTH))
            show(f'{"  " * depth[one.uuid]}{one.name}  {amounts}'.rstrip())
        for node in _NODES:
            pfs = self.lab.pf_providers(node)
            claim(f'the PF of node {node} is below that node\'s provider',
                  len(pfs) == 1, [one.name for one in tree])

    # -- 3 --------------------------------------------------------------------

    def without(self) -> None:
        heading('3. What Nova does of its own')
        self.flavor('vfs-plain', hw__numa_nodes=2,
                    pci_passthrough__alias='vf:2')
        server = self.active(self.create('plain', 'vfs-plain'))
        passed = self.lab.passed(server)
        self._show_devices(server, passed)
        say('Nova puts each VF on one of the guest\'s host nodes, but does '
            'not care for an even share. The guest is not told where its '
            'VFs are.')
        claim('no VF is behind an expander bus',
              all(one.guest_node is None for one in passed), passed)
        self.lab.delete(server)

    # -- 4 --------------------------------------------------------------------

    def one_request(self) -> None:
        heading('4. CPUs, memory, bandwidth and VFs from one request')
        self.flavor('vfs-local', hw__numa_nodes=2, ghsched__vfs='vf:2',
                    ghsched__device_numa='required',
                    ghsched__mem_bw_min=40)
        begin = time.monotonic()
        server = self.active(self.create('local', 'vfs-local'))
        show(f'ACTIVE after {time.monotonic() - begin:.1f} s')
        self._allocations(server)
        passed = self._host_side(server)
        self._group(server)
        self._guest_side(server, passed)

    def _allocations(self, server: Any) -> None:
        command(f'openstack resource provider allocation show {server.id}')
        seen = self.lab.allocations(server)
        for name, resources in sorted(seen.items()):
            show(f'{name}: ' + ', '.join(
                f'{key} {value}' for key, value in sorted(resources.items())))
        for node in _NODES:
            pf, = self.lab.pf_providers(node)
            claim(f'one VF of {pf.name}, on node {node}',
                  seen.get(pf.name) == {VF: 1}, seen)
            numa = self.lab.node_provider(node)
            claim(f'40 % of node {node}\'s bandwidth',
                  seen.get(numa.name, {}).get(BANDWIDTH) == 40, seen)

    def _host_side(self, server: Any) -> list[Passed]:
        cells = [cell['host_node'] for cell in self.lab.topology(server)]
        show(*(f'guest node {number} is on host node {node}'
               for number, node in enumerate(cells)))
        passed = self.lab.passed(server)
        self._show_devices(server, passed)
        claim('one VF is of each host node',
              sorted(one.host_node for one in passed) == list(_NODES), passed)
        claim('each is behind the bus of the guest node on its host node',
              all(one.guest_node is not None
                  and cells[one.guest_node] == one.host_node
                  for one in passed), passed)
        return passed

    def _group(self, server: Any) -> None:
        group = self.lab.group(server)
        command('tools/vnode exec cat /sys/fs/resctrl/'
                f'{group.name}/schemata    # simulated')
        show(*group.lines())
        minimum = {node: int(value)
                   for node, value in group.schemata['MBMIN'].items()}
        claim('40 % of both nodes are guaranteed',
              minimum == dict.fromkeys(_NODES, 40), minimum)

    def _guest_side(self, server: Any, passed: list[Passed]) -> None:
        command(f'openstack console log show {server.name}')
        lines = self.lab.console(server)
        vfs_seen = self.lab.guest_vfs(server)
        show(*(line for line in lines if 'PCI' not in line
               or any(address in line for address in vfs_seen)))
        claim('the guest sees two NUMA nodes',
              'GUEST-NUMA online=0-1' in lines, lines)
        for one in passed:
            bus, = (address for address in vfs_seen
                    if int(address.split(':')[1], 16) in one.buses)
            claim(f'host {one.host} is the guest\'s {bus}, with numa_node '
                  f'{one.guest_node}', vfs_seen[bus] == one.guest_node,
                  vfs_seen)

    def _show_devices(self, server: Any, passed: list[Passed]) -> None:
        command('tools/vnode exec virsh dumpxml --inactive '
                + self.lab.domain_name(server))
        for one in passed:
            where = ('no node' if one.guest_node is None
                     else f'guest node {one.guest_node}')
            show(f'host VF {one.host}, of host node {one.host_node}: '
                 f'{where}')

    # -- 5 --------------------------------------------------------------------

    def refusal(self) -> None:
        heading('5. More VFs than one node has')
        count = machine.VFS_PER_PF + 1
        self.flavor('vfs-many', vcpus=1, hw__numa_nodes=1,
                    ghsched__vfs=f'vf:{count}',
                    ghsched__device_numa='required')
        server = self.lab.wait(self.create('many', 'vfs-many'))
        fault = self.lab.fault(server)
        show(server.status, fault)
        claim('it is refused', server.status == 'ERROR', server.status)
        claim('the fault names the guest node and what it lacks',
              'guest NUMA node 0' in fault and f'{count} VFs' in fault, fault)

    # -- 6 --------------------------------------------------------------------

    def nothing_left(self) -> None:
        left = [one.name for one in self.lab.groups()]
        claim('no control group is left on the host', not left, left)
        for node in _NODES:
            for one in (self.lab.node_provider(node),
                        *self.lab.pf_providers(node)):
                used = self.lab.usage(one)
                claim(f'nothing of {one.name} is in use',
                      not any(used.values()), used)


def _depth_first(tree: list[Any], parent: str | None = None) -> list[Any]:
    """A tree's providers, each before its children."""
    found = []
    for one in tree:
        if one.parent == parent:
            found += [one, *_depth_first(tree, one.uuid)]
    return found


if __name__ == '__main__':
    settings = read()
    sys.exit(main(
        Demo, lambda: VirtualLab(settings, 'vfs'),
        f'{settings.log}, and tools/vnode exec ls /var/log/vnode',
        ('tools/vnode status',
         'tools/vnode exec virsh list --all',
         'tools/vnode down')))

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


"""End-to-end checks of NUMA-local VFs; called by "tools/e2e.sh --vfs".

They run on the virtual compute node (tools/vnode up), whose VFs are real.
"""

import itertools
import json
import sys
import time
from typing import Any

from aio.settings import read
from e2e_guest_room import BANDWIDTH
from e2e_room import main
from e2e_vfs_bond import VfsBond
from e2e_vfs_busy import VfsBusy
from e2e_vfs_room import VfsRoom
from vnode.lab import VF
from vnode.lab import VirtualLab
from vnode import machine

_NODES = tuple(range(machine.NODES))
_VFS = machine.VFS_PER_PF
#: vCPUs and VFs of flavors with ghsched:numa=auto, and the number of nodes
#: that they need. A host node has one CPU for guests that share CPUs.
_AUTO = {'vfs-auto-one': (1, _VFS, 1), 'vfs-auto-cpus': (2, _VFS, 2),
         'vfs-auto-vfs': (2, _VFS + 1, 2)}
#: In the node, which forgets it.
_REPORT = '/tmp/numa-locality.json'  # noqa: S108


class Vfs(VfsRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def prepare(self) -> None:
        self._flavor('vfs-pair', hw__numa_nodes=2, ghsched__vfs='vf:2',
                     ghsched__device_numa='required', ghsched__mem_bw_min=40)
        self._flavor('vfs-many', vcpus=1, hw__numa_nodes=1,
                     ghsched__vfs=f'vf:{_VFS + 1}',
                     ghsched__device_numa='required')
        for name, (vcpus, vfs, _nodes) in _AUTO.items():
            self._flavor(name, vcpus=vcpus, ghsched__numa='auto',
                         ghsched__vfs=f'vf:{vfs}',
                         ghsched__device_numa='required')
        self._flavor('no-vfs', vcpus=1, hw__numa_nodes=1,
                     ghsched__mem_bw_min=40)

    # -- tests ----------------------------------------------------------------

    def test_providers(self) -> None:
        """Each PF is below its NUMA node, with its VFs as inventory."""
        devices = self.lab.host_devices()
        for node in _NODES:
            pfs = [address for address, name, on in devices
                   if name == machine.pci_name(machine.PF_ID) and on == node]
            providers = self.lab.pf_providers(node)
            self.checks.equal(f'PF providers below node {node}',
                              [one.name for one in providers],
                              [f'{machine.NAME}_{pf}' for pf in pfs])
            for one in providers:
                record = self.lab.inventory(one)[VF]
                self.checks.equal(f'VFs of {one.name}', record['total'], _VFS)
        vfs_of_host = {address for address, name, _node in devices
                       if name == machine.pci_name(machine.VF_ID)}
        ports = set(machine.port_vfs())
        self.checks.equal('VFs, but for those of ports',
                          len(vfs_of_host - ports), _VFS * len(_NODES))
        self.checks.equal('VFs of ports', sorted(vfs_of_host & ports),
                          sorted(ports))
        self.checks.equal('providers', len(self.lab.providers()),
                          1 + 2 * len(_NODES))

    def test_restart(self) -> None:
        """The providers outlive a restart of nova-compute."""
        before = self._tree()
        self.lab.on_host('vnode-service', 'restart', 'nova-compute')
        # The last report of the old process may come in late; the new one
        # does not report within seconds on an emulated machine.
        since = time.strftime('%Y-%m-%dT%H:%M:%S',
                              time.gmtime(time.time() + 3))
        self.lab.until(lambda: self._reports(since), 300,
                       'nova-compute does not report')
        self.lab.until(lambda: self._tree() == before, 60,
                       lambda: f'{self._tree()}, expected {before}')
        self.checks.equal('providers', self._tree(), before)

    def test_pair(self) -> None:
        """All that a guest node has is of one host node, as the guest sees."""
        server = self._active(self.lab.boot('pair', 'vfs-pair'))
        cells = [cell['host_node'] for cell in self.lab.topology(server)]
        self.checks.equal('host nodes of the guest nodes', sorted(cells),
                          list(_NODES))
        self._allocated(server)
        passed = self.lab.passed(server)
        self.checks.equal('host nodes of the VFs',
                          sorted(one.host_node for one in passed),
                          list(_NODES))
        for one in passed:
            self.checks.equal(
                f'host node of {one.host} and of its guest node '
                f'{one.guest_node}', cells[one.guest_node or 0],
                one.host_node)
        minimum = self.lab.group(server).schemata['MBMIN']
        self.checks.equal('MBMIN', {node: int(value) for node, value
                                    in minimum.items()},
                          dict.fromkeys(_NODES, 40))
        self._seen_by_guest(server)
        self.lab.delete(server)
        self.nothing_left()

    def _allocated(self, server: Any) -> None:
        seen = self.lab.allocations(server)
        for node in _NODES:
            pf, = self.lab.pf_providers(node)
            self.checks.equal(f'allocated of {pf.name}', seen.get(pf.name),
                              {VF: 1})
            numa = self.lab.node_provider(node)
            self.checks.equal(f'bandwidth of {numa.name}',
                              seen.get(numa.name, {}).get(BANDWIDTH), 40)

    def _seen_by_guest(self, server: Any) -> None:
        self._ready(server)
        seen = self.lab.guest_vfs(server)
        self.checks.equal('VFs that the guest sees', len(seen), len(_NODES))
        for one in self.lab.passed(server):
            mine = {address: node for address, node in seen.items()
                    if int(address.split(':')[1], 16) in one.buses}
            self.checks.equal(f'numa_node of {one.host} in the guest',
                              list(mine.values()), [one.guest_node])

    def test_auto(self) -> None:
        """A guest with ghsched:numa=auto gets the fewest nodes with its VFs.
        """
        for name, (_vcpus, vfs, nodes) in _AUTO.items():
            row, = self.lab.openstack('flavor', 'check', name,
                                      '--host', machine.NAME)
            self.checks.equal(f'{name}: fits', row['Fits'], True)
            server = self._active(self.lab.boot(name, name))
            cells = [cell['host_node'] for cell in self.lab.topology(server)]
            self.checks.equal(f'{name}: guest nodes', len(cells), nodes)
            passed = self.lab.passed(server)
            self.checks.equal(f'{name}: VFs', len(passed), vfs)
            self.checks.equal(
                f'{name}: host nodes of guest nodes and of their VFs',
                {(one.guest_node or 0, one.host_node) for one in passed},
                set(enumerate(cells)))
            self.lab.delete(server)
            self.nothing_left()

    def test_refused(self) -> None:
        """More VFs than one node has are refused to a guest of one node."""
        server = self.lab.boot('many', 'vfs-many')
        self.checks.equal('status', server.status, 'ERROR')
        fault = self.lab.fault(server)
        for part in ('No valid host', 'guest NUMA node 0',
                     f'{_VFS + 1} VFs of vf'):
            self.checks.note(part in fault,
                             f'fault: {fault!r}, expected {part}')
        self.lab.delete(server)
        self.nothing_left()

    def test_numa_locality(self) -> None:
        """ghsched-bench copies memory of each node from the CPUs of each."""
        before = self._from_elsewhere()
        print(self.lab.on_host(
            f'{self.settings.venv}/bin/ghsched-bench', 'run',
            'numa-locality', '--size', '32', '--runs', '5', '-o', _REPORT))
        report = self.lab.on_host('cat', _REPORT)
        (self.settings.log / 'numa-locality.json').write_text(report)
        result, = json.loads(report)['results']
        measured = result['measured']
        self.checks.equal('status', result['status'], 'done')
        self.checks.equal('NUMA nodes', result['environment']['numa_nodes'],
                          machine.NODES)
        found = [dict(one['conditions']) for one in measured['series']]
        self.checks.equal(
            'nodes of CPUs and of memory',
            [(int(one['CPUs of node']), int(one['at node']))
             for one in found], list(itertools.product(_NODES, _NODES)))
        self.checks.equal('findings', len(measured['findings']),
                          machine.NODES)
        # The kernel counts what was allocated for CPUs of another node.
        for node, pages in self._from_elsewhere().items():
            self.checks.holds(f'pages of node {node} for other CPUs',
                              pages > before[node], f'> {before[node]}')

    def _from_elsewhere(self) -> dict[int, int]:
        """other_node of numastat, by node."""
        found = {}
        for node in _NODES:
            lines = self.lab.on_host(
                'cat', f'/sys/devices/system/node/node{node}/numastat')
            found[node] = int(dict(
                line.split() for line in lines.splitlines())['other_node'])
        return found

    def test_move_node(self) -> None:
        """A guest that runs goes to the other node with its pages, and back.
        """
        server = self._active(self.lab.wait(self.lab.create(
            'moved', 'no-vfs', host=machine.NAME)))
        self._ready(server)
        node, = self.lab.allocated_nodes(server)
        for target in (1 - node, node):
            print(f'        pages by policy and node: '
                  f'{self.lab.memory(server)}')
            self.lab.openstack('server', 'move-node', server.id, '--node',
                               f'0={target}')
            self._is_on_node(server, target, 40)
        self.lab.delete(server)
        self.nothing_left()

    # -- parts of tests -------------------------------------------------------

    def _tree(self) -> dict[str, object]:
        """Providers with their parents and their inventories."""
        return {one.name: (one.uuid, one.parent, {
            name: entry['total']
            for name, entry in self.lab.inventory(one).items()})
            for one in self.lab.providers()}

    def _reports(self, since: str) -> bool:
        return any((one.updated_at or '') > since for one
                   in self.lab.cloud.compute.services(host=machine.NAME))


if __name__ == '__main__':
    sys.exit(main((Vfs, VfsBond, VfsBusy),
                  VirtualLab(read(), 'e2e-vfs'), sys.argv[1:]))

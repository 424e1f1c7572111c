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


"""Checks of many requests at once for the few VFs of a host."""

from typing import Any

from e2e_move_races import WORKERS
from e2e_vfs_room import VfsRoom
from vnode.lab import VF
from vnode import machine

_BOOTS = 40
_VFS = machine.VFS_PER_PF * machine.NODES


class VfsRace(VfsRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def prepare(self) -> None:
        self._flavor('race-vf', vcpus=1, hw__numa_nodes=1, ghsched__vfs='vf:1',
                     ghsched__mem_bw_min=10)

    def test_race(self) -> None:
        """Forty boots at once: each VF goes to one guest, and no more."""
        with self._with(('nova-scheduler', 'nova-conductor'), *WORKERS):
            servers = self._boot_at_once('race', 'race-vf', _BOOTS)
            self._each_has_its_own(
                [one for one in servers if one.status == 'ACTIVE'])
            lost = [one for one in servers if one.status == 'ERROR']
            self.checks.equal('refused', len(lost), _BOOTS - _VFS)
            self._no_host_for(lost)
            self.checks.equal('audit', self.lab.openstack('audit'), [])

    # -- parts of tests -------------------------------------------------------

    def _each_has_its_own(self, servers: list[Any]) -> None:
        passed = [one for server in servers for one in self.lab.passed(server)]
        self.checks.equal('guests that run', len(servers), _VFS)
        self.checks.equal('VFs that they have',
                          len({one.host for one in passed}), _VFS)
        for node in range(machine.NODES):
            pf, = self.lab.pf_providers(node)
            self.checks.equal(f'in use of {pf.name}', self.lab.usage(pf)[VF],
                              machine.VFS_PER_PF)

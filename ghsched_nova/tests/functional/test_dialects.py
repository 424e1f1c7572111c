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


"""A guest's own control group on every kind of kernel, with real threads."""

from pathlib import Path
import tempfile


from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import topology
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import reconcile
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_nova.tests.fixtures import mount
from ghsched_nova.tests.functional import test_host_engine
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

NODES = '0=0-1;1=2-3;2='
UUID = 'a6f2c1de-5b1f-4a43-9d0c-0f6f9d3b2c11'
VCPUS = {0, 1}


class OwnGroupTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.top = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def _sysfs(self, machine):
        sysfs = self.top / machine.dialect
        topology.write_sysfs(machine, sysfs)
        return sysfs

    def _policy(self, host):
        held = host.capabilities()
        node = NodePolicy(
            maximum=41, minimum=11 * ('MEM_BW_MIN' in held),
            priority=5 if 'MEM_BW_PRIORITY' in held else None)
        return GuestPolicy(nodes=(node,))

    def _live(self, resctrl, machine):
        """A guest from its start to its end."""
        root = Path(resctrl.path)
        host = resctrl_host.read_host(
            root, self._sysfs(machine), resctrl_host.HostSettings(
                node_bandwidth={0: 100000, 1: 100000}, cap='hard'))
        desired = resolve.make_desired_lines(
            host, resolve.resolve_settings(host, self._policy(host), (1,)))
        threads = test_host_engine.VcpuThreads(VCPUS)
        self.addCleanup(threads.end)
        (self.top / f'{machine.dialect}.pid').write_text(f'{threads.pid}\n')
        domain = model.Domain(UUID, 1, machine.dialect)
        wanted = model.Wanted(
            (
                model.ResctrlGuest(
                    domain, frozenset(VCPUS), len(VCPUS), desired, 'ghsched'
                ),
            ),
            (domain,),
            others=host.unused_domain_values,
            tolerance=host.tolerance,
            writes=host.values_to_write,
            staged=host.dialect.staged,
        )
        place = reconcile.HostPaths(root, self.top)
        first = reconcile.reconcile_groups(place, wanted)
        self.assertEqual((), first.problems)
        # A line that a new group has by itself is not written.
        self.assertEqual(
            ['make group', 'write line', 'move threads'],
            list(dict.fromkeys(action.kind for action in first.actions)))
        self.assertLessEqual(len(first.actions), len(desired) + 2)
        self.assertEqual(set(threads.tids.values()),
                         set(first.actions[-1].threads))
        self.assertEqual(reconcile.ReconcileReport(),
                         reconcile.reconcile_groups(place, wanted))
        self.assertFalse(fs.remove_group(root, UUID))
        threads.end()
        self.assertTrue(fs.remove_group(root, UUID))
        self.assertFalse((root / naming.render_own_group_name(UUID)).exists())

    def test_every_dialect(self):
        for dialect in spaces.choose(machines.DIALECTS):
            machine = machines.build(dialect, NODES)
            with mount.ResctrlFixture(machine) as resctrl:
                self._live(resctrl, machine)

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

"""Report of a host on a guest, for an admin."""

import types
from unittest import mock

import fixtures
from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.guest import metadata
from ghsched_nova.host import bandwidth_use
from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_nova.host import guest_diagnostics
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.tests.fixtures import options
from ghsched_nova.tests.fixtures import trees
from ghsched_placement.audit import diagnostics
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import threads

GROUP = 'ghsched-' + trees.UUID


class GuestDiagnosticsTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(level=10))
        self.ask(NodePolicy(30, 50, True, 5))

    def ask(self, node, shared=False):
        self.xml = metadata.write_policy('<domain/>', metadata.DomainPolicy(
            GuestPolicy((node,)), (1,), shared))

    def asked(self, dialect, lines=(), group=GROUP, guests=1,
              missing_devices=()):
        """Return a function that requests the diagnostics of a guest."""
        self.host = trees.Host(dialect)
        self.addCleanup(self.host.remove)
        self.host.group(group, 100)
        for line in lines:
            self.host.model.write(f'/{group}/schemata', line + '\n')
        self.host.sync()
        section = self.section = options.Section(
            resctrl_path=str(self.host.root), node_bandwidth={},
            sysfs_path=str(self.host.top / 'sysfs'), bandwidth_cap='hard',
            bandwidth_accounting='min', l3_ways_shared=2)
        own_engine = self.engine = engine.HostEngine(section)
        own_engine.running = lambda: [
            desired.Running(model.Domain(f'{number}', number, 'x'), self.xml)
            for number in range(1, guests)]
        found = guest_diagnostics.GuestDiagnostics(own_engine)
        guest = types.SimpleNamespace(
            name='instance-1', uuid=trees.UUID, id=7,
            get_xml_desc=lambda: self.xml)
        return lambda: found.add_to_diagnostics({'cpu0_time': 1}, guest,
                                                lambda: missing_devices)

    def diagnose(self, *args, **kwargs):
        return diagnostics.parse_guest_diagnostics(
            self.asked(*args, **kwargs)())


class GuestDiagnosticsTest(GuestDiagnosticsTestCase):

    def test_limits_of_the_control_group(self):
        found = self.diagnose('openeuler66', ['MB:1=50', 'MBMIN:1=20',
                                              'MBHDL:1=1', 'MBPRI:1=5'])
        self.assertEqual(
            diagnostics.GuestNodeReport(1, 20, 50, True, 5, 0, '', 30, 50,
                                        False),
            found.get_limits_by_host_node()[1])
        self.assertEqual([0, 1], [node.host_node for node in found.host])
        self.assertEqual(trees.CAPACITY, found.host[1].capacity)

    def test_rounding_by_the_host_is_as_wanted(self):
        for dialect, asked, lines, shown in (
                ('intel', NodePolicy(maximum=95), ['MB:1=95'], (None, 100)),
                ('openeuler66-7bit', NodePolicy(33, 50),
                 ['MB:1=50', 'MBMIN:1=33'], (32, 50)),
                ('openeuler66', NodePolicy(33, 50), ['MB:1=50', 'MBMIN:1=33'],
                 (33, 50))):
            self.ask(asked)
            node = self.diagnose(dialect, lines).get_limits_by_host_node()[1]
            self.assertEqual(shown, (node.minimum, node.maximum))
            self.assertTrue(
                node.get_compliance(asked.minimum, asked.maximum),
                dialect)

    def test_a_group_that_guests_share(self):
        asked = NodePolicy(10, 20)
        self.ask(asked, shared=True)
        name = naming.render_shared_name((asked,), (1,))
        for guests, right in ((3, True), (2, False)):
            node = self.diagnose(
                'openeuler66', ['MB:1=60', 'MBMIN:1=30'], name,
                guests).get_limits_by_host_node()[1]
            self.assertEqual((name, 30, right),
                             (node.group, node.minimum, node.as_wanted))

    def test_a_host_that_has_no_group_for_it(self):
        node = self.diagnose('openeuler66',
                             group='pqos').get_limits_by_host_node()[1]
        self.assertEqual((None, None, 30), (node.as_wanted, node.minimum,
                                            node.asked_minimum))

    def test_a_guest_without_a_policy(self):
        self.xml = '<domain/>'
        self.assertIsNone(self.diagnose('openeuler66'))

    def test_a_host_that_reports_no_bandwidth(self):
        self.assertIn('no memory bandwidth', self.diagnose('mpam71').problem)

    def test_missing_devices_are_reported_by_every_host(self):
        missing = ('1 of 2 devices of alias fast',)
        for dialect in ('openeuler66', 'mpam71'):
            self.assertEqual(missing, self.diagnose(
                dialect, missing_devices=missing).missing_devices)

    def test_diagnostics_of_nova_come_through_whatever_is_wrong(self):
        self.xml = 'no XML'
        self.assertIsNone(self.diagnose('openeuler66'))
        self.assertIn('cannot read the memory bandwidth', self.log.output)


class ThreadsTest(GuestDiagnosticsTestCase):
    """Requests for diagnostics, each in a native thread."""

    def test_diagnostics_of_many_threads_are_whole_and_listed_once(self):
        asked = self.asked('openeuler66')
        reports, listed = [], []
        running = self.engine.running
        self.engine.running = lambda: listed.append(None) or running()

        def step(_chance):
            reports.append(diagnostics.parse_guest_diagnostics(asked()))

        self.assertEqual([], threads.stress([step] * 4, 2))
        self.assertEqual({''}, {found.problem for found in reports})
        self.assertEqual(1, len({found.domains for found in reports}))
        self.assertEqual({0, 1}, {node.host_node for found in reports
                                  for node in found.host})
        # One of several seconds is kept for a moment.
        self.assertLess(len(listed), len(reports))

    def test_bandwidth_use_of_many_threads_makes_one_reader(self):
        self.asked('intel')
        use = bandwidth_use.BandwidthMeter(self.section)
        with mock.patch.object(bandwidth_use.reader, 'Reader',
                               wraps=bandwidth_use.reader.Reader) as made:
            self.assertEqual([], threads.stress(
                [lambda _chance: use.take_bandwidth_snapshot()] * 6, 1))
        self.assertEqual(1, made.call_count)


class LeftBehindTest(base.TestCase):
    """Groups whose guest does not run."""

    @given(st.sets(st.integers(1, 9)), st.sets(st.integers(1, 9)))
    def test_each_group_without_its_guest(self, guests, running):
        def uuid(number):
            return f'{number:08}-1111-1111-1111-111111111111'
        names = {number: {naming.render_own_group_name(uuid(number)),
                          f'qemu-{number}-instance-{number}-vcpus_0-1',
                          naming.render_monitor_path(uuid(number))}
                 for number in guests}
        left = guest_diagnostics.list_leftover_groups(
            {name for some in names.values() for name in some},
            [model.Domain(uuid(number), number, f'instance-{number}')
             for number in running])
        self.assertEqual({name for number in guests - running
                          for name in names[number]}, set(left))

    def test_groups_of_others_and_shared_ones(self):
        self.assertEqual((), guest_diagnostics.list_leftover_groups(
            ['pqos', 'ghsched-default', 'ghsched-shared-0a', 'qemu-x'], ()))

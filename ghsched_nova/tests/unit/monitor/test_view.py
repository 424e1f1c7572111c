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


"""Whose bandwidth it is, and what was asked for beside it.

All figures are simulated.
"""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.guest import metadata
from ghsched_nova.monitor import effective_limits
from ghsched_nova.monitor import rates
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import schemata
from ghsched_nova.tests.fixtures import trees
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.flavor.policy import parse_policy
from ghsched_placement.tests import base

Figure = rates.Figure
State = rates.RateState
HOST = topology.MonitoredHost(
    'openEuler', dialects.OPENEULER_66,
    dialects.Monitor('MB_MON', 'mon_MB_', 'mbm_total_bytes', 'rate_mb'),
    capacity={0: 200 * 10 ** 9}, control={0: (0,), 1: (1,)})
LINES = ('MB:0=60;1=100\nMBMIN:0=20;1=0\nMBHDL:0=0;1=1\n'
         'MBPRI:0=5;1=3\n')


def group(path, lines='MB:0=100;1=100\n', **used):
    """Used bandwidth in GB/s by node (n0, n1); None is unassigned."""
    figures = {(int(node[1:]),): Figure(State.UNASSIGNED, None)
               if rate is None else Figure(State.OK, rate * 1e9)
               for node, rate in used.items()}
    name = naming.parse_group_name(path)
    return view.GroupUsage(
        view.MonitoredGroup(
            name, 1,
            None if name.monitor else schemata.parse_schemata(lines)),
        figures)


def shown(groups, *guests, host=HOST):
    return view.make_bandwidth_snapshot(
        view.Usage(host, tuple(groups)), guests)


class OwnersTest(base.TestCase):

    def owner(self, name, *guests):
        return view.index_guests_by_group(guests).find_guest_of_group(
            view.MonitoredGroup(naming.parse_group_name(name), 1))

    def test_domain_id_is_the_whole_number(self):
        one, twelve = (trees.guest(f'g{number}', f'u{number}', number)
                       for number in (1, 12))
        self.assertIs(one, self.owner('qemu-1-g1-vcpus_0', one, twelve))
        self.assertIs(twelve, self.owner('qemu-12-g12-vcpus_0', one, twelve))

    def test_own_group_and_monitoring_group(self):
        guest = trees.guest()
        for name in (f'ghsched-{trees.UUID}',
                     'mon_groups/qemu-7-inst-vcpus_0',
                     'ghsched-x/mon_groups/qemu-7-inst-vcpus_0-3,8',
                     'qemu-7-inst'):
            self.assertIs(guest, self.owner(name, guest))

    def test_groups_of_others(self):
        for name in ('low_prio_machine', 'qemu', 'qemu-x-y', 'qemu-7',
                     'ghsched', 'ghsched-probe'):
            self.assertIsNone(self.owner(name, trees.guest()), name)

    def test_a_group_that_was_left_is_nobody_elses(self):
        # libvirt can begin to count again.
        guest = trees.guest('instance-00000009', 'u', 3)
        self.assertEqual(
            view.MonitoredGuest('instance-00000003', domain_id=3),
            self.owner('qemu-3-instance-00000003-vcpus_0-1', guest))
        self.assertIs(guest, self.owner('qemu-3-instance-00000009', guest))

    def test_without_libvirt_the_group_tells(self):
        self.assertEqual(
            view.MonitoredGuest('instance-00000001', domain_id=7),
            self.owner('qemu-7-instance-00000001-vcpus_0-1'))
        self.assertEqual(view.MonitoredGuest(trees.UUID, trees.UUID),
                         self.owner(f'ghsched-{trees.UUID}'))

    @given(st.text(alphabet='qemughscd-0123456789/_,vcpus', max_size=40))
    def test_any_name(self, name):
        self.owner(name, trees.guest())


class ClassesTest(base.TestCase):
    """Groups of vCPU classes, made by nova-compute or by libvirt."""

    POLICY = parse_policy({
        'ghsched:vcpu_classes': 'latency:0-1,batch:3',
        'ghsched:mem_bw_min.latency': '20', 'ghsched:mem_bw_max.batch': '40'},
        1, 4)

    def usage(self, *groups):
        guest = dataclasses.replace(
            trees.guest(), policy=metadata.DomainPolicy(self.POLICY, (0,)))
        found, = shown(groups, guest).guests
        return found

    def test_usage_and_limits_are_by_class_and_together(self):
        for latency, batch in (
                (f'ghsched-{trees.UUID}.latency',
                 f'ghsched-{trees.UUID}.batch'),
                ('qemu-7-inst-vcpus_0-1', 'qemu-7-inst-vcpus_3')):
            found = self.usage(
                group(latency, lines='MB:0=100;1=100\nMBMIN:0=20;1=0\n', n0=3),
                group(batch, lines='MB:0=40;1=100\nMBMIN:0=0;1=0\n', n0=5))
            self.assertEqual(
                [('latency', 3e9, 20, 100), ('batch', 5e9, 0, 40)],
                [(one.vcpu_class.name, row.used.rate, row.effective.minimum,
                  row.effective.maximum)
                 for one in found.classes for row in one.nodes])
            row, = found.nodes
            self.assertEqual((8e9, 20, 100), (
                row.used.rate, row.effective.minimum, row.effective.maximum))

    def test_class_without_its_group_has_no_limits(self):
        found = self.usage(group(f'ghsched-{trees.UUID}.latency', n0=3))
        self.assertEqual([1, 0], [len(one.control_groups)
                                  for one in found.classes])


class SnapshotTest(base.TestCase):

    def test_control_groups_add_up_to_the_node(self):
        # The root group has its monitoring groups in it.
        found = shown([
            group('', n0=10, n1=1),
            group('mon_groups/qemu-9-b-vcpus_0', n0=4, n1=0),
            group('qemu-7-inst-vcpus_0', n0=20, n1=0),
            group('qemu-7-inst-vcpus_0/mon_groups/qemu-7-inst-vcpus_0',
                  n0=20, n1=0),
            group('low_prio_machine', n0=3, n1=0),
        ], trees.guest(domain_id=7, nodes=(0,), minimum=20, maximum=60),
            trees.guest('b', 'b', 9))
        node = found.nodes[0]
        self.assertEqual(
            (33e9, 6e9, 24e9, 3e9),
            tuple(figure.rate for figure in (
                node.used, node.default, node.guests, node.others)))
        self.assertEqual((34e9, 200 * 10 ** 9, 20), (
            found.used.rate, node.capacity, node.guaranteed))
        self.assertEqual(['low_prio_machine'],
                         [one.group.path for one in found.others])
        self.assertEqual([20e9, 4e9],
                         [guest.used.rate for guest in found.guests])

    def test_asked_effective_and_used(self):
        asked = {'minimum': 15, 'maximum': 55, 'hardlimit': False,
                 'priority': 5}
        found = shown([group('', n0=0, n1=0),
                       group('qemu-7-inst-vcpus_0', lines=LINES, n0=2, n1=0)],
                      trees.guest(nodes=(0,), **asked))
        row, = found.guests[0].nodes
        self.assertEqual(NodePolicy(**asked), row.asked)
        self.assertEqual(
            effective_limits.EffectiveLimits(20, 60, False, 5, 120 * 10 ** 9),
            row.effective)
        self.assertEqual(2e9, row.used.rate)

    def test_guests_that_share_are_measured_inside_of_their_group(self):
        uuids = [trees.UUID[:-1] + letter for letter in 'abc']
        guests = [trees.guest(uuid, uuid, nodes=(0,), minimum=10)
                  for uuid in uuids]
        guests = [dataclasses.replace(guest, policy=dataclasses.replace(
            guest.policy, shared=True)) for guest in guests]
        shared = naming.render_shared_name(guests[0].policy.policy.nodes, [0])
        found = shown(
            [group('', n0=1), group(shared, lines=LINES, n0=9),
             *(group(naming.render_monitor_path(uuid, shared), n0=rate)
               for uuid, rate in zip(uuids, (2, 4), strict=False))], *guests)
        self.assertEqual([2e9, 4e9, None],
                         [guest.nodes[0].used.rate for guest in found.guests])
        self.assertEqual([20] * 3, [guest.nodes[0].effective.minimum
                                    for guest in found.guests])
        inside = naming.render_monitor_path(uuids[0], shared)
        self.assertEqual((shared, inside),
                         found.guests[0].groups)
        self.assertEqual((shared,), found.guests[2].groups)
        # What nobody's monitor has is the shared group's own.
        node = found.nodes[0]
        self.assertEqual((10e9, 6e9, 3e9, 30), (
            node.used.rate, node.guests.rate, node.others.rate,
            node.guaranteed))

    def test_a_guest_without_a_policy_is_shown_with_its_cap(self):
        found = shown(
            [group('', n0=1), group(naming.DEFAULT, lines=LINES, n0=9),
             group(naming.render_monitor_path(trees.UUID, naming.DEFAULT),
                   n0=2)],
            view.MonitoredGuest('a', trees.UUID, 1))
        row, = found.guests[0].nodes
        self.assertEqual((2e9, 60, None),
                         (row.used.rate, row.effective.maximum, row.asked))

    def test_used_where_nothing_was_asked_for_is_shown(self):
        found = shown([group('', n0=0, n1=0),
                       group('qemu-7-inst-vcpus_0', n0=2, n1=1)],
                      trees.guest(nodes=(0,)))
        self.assertEqual([(0,), (1,)],
                         [row.nodes for row in found.guests[0].nodes])
        self.assertIsNone(found.guests[0].nodes[1].asked)

    def test_unassigned_is_no_zero(self):
        found = shown([group('', n0=5),
                       group('qemu-7-inst-vcpus_0', n0=None)],
                      trees.guest(nodes=(0,)))
        self.assertEqual(Figure(State.UNASSIGNED, None),
                         found.guests[0].nodes[0].used)
        self.assertEqual(Figure(State.UNASSIGNED, 5e9), found.nodes[0].used)

    def test_guest_without_a_group_is_not_measured(self):
        found = shown([group('', n0=5)], view.MonitoredGuest('a', 'a', 1))
        self.assertEqual((rates.NOTHING, (), ()), (
            found.guests[0].used, found.guests[0].groups,
            found.guests[0].nodes))

    def test_lost_group_still_shows_what_was_asked_for(self):
        found = shown([group('', n0=5)], trees.guest(nodes=(0,), minimum=9))
        row, = found.guests[0].nodes
        self.assertEqual((9, None, rates.NOTHING),
                         (row.asked.minimum, row.effective, row.used))

    @given(st.lists(st.tuples(
        st.sampled_from(['qemu-7-inst-vcpus_0', 'ghsched-x', 'other',
                         'qemu-8-b-vcpus_1']),
        st.none() | st.integers(0, 100)), unique_by=lambda pair: pair[0]))
    def test_the_parts_of_a_node_are_the_whole(self, groups):
        node, = shown([group('', n0=1), *(
            group(name, n0=rate) for name, rate in groups)]).nodes
        parts = sum(figure.rate or 0 for figure in (
            node.default, node.guests, node.others))
        self.assertEqual(node.used.rate, parts)


class EffectiveTest(base.TestCase):

    def effective(self, text, host=HOST, node=0, of=()):
        return effective_limits.compute_effective_limits(
            host, schemata.parse_schemata(text), node, of
        )

    def amd(self, **changes):
        return dataclasses.replace(
            HOST, dialect=dialects.AMD, no_cap=2048,
            capacity={0: 230 * 10 ** 9}, control={0: (0, 1, 2)}, **changes)

    def test_caps_of_several_domains_add_up(self):
        found = self.effective('MB:0=185;1=185;2=185\n', self.amd())
        self.assertEqual(555 * 10 ** 9 // 8, found.rate)
        self.assertEqual(30.16, found.maximum)
        self.assertIs(True, found.hardlimit)

    def test_no_cap(self):
        self.assertEqual(
            effective_limits.EffectiveLimits(None, 100, True),
            self.effective('MB:0=2048;1=2048;2=2048\n', self.amd()))

    def test_bandwidth_of_an_unknown_node(self):
        host = dataclasses.replace(self.amd(), capacity={})
        found = self.effective('MB:0=8;1=8;2=2048\n', host)
        self.assertEqual((None, 2064 * 125 * 10 ** 6),
                         (found.maximum, found.rate))

    def clusters(self, *capacity):
        """Nodes below one L3 cache, where a cap is MiB/s."""
        return dataclasses.replace(
            HOST, dialect=dialects.INTEL_MBPS, no_cap=2 ** 32 - 1,
            capacity=dict(enumerate(capacity)),
            control=dict.fromkeys(range(2), (0,)))

    def test_the_cap_of_a_domain_is_of_all_nodes_that_the_guest_has(self):
        text = 'MB:0=60000\n'
        for capacity, of, node, percent, mib in (
                ((100000, 100000), (0, 1), 0, 30, 30000),
                ((100000, 100000), (0, 1), 1, 30, 30000),
                ((150000, 50000), (0, 1), 1, 30, 15000),
                ((100000, 100000), (0,), 0, 60, 60000),
                ((100000, 100000), (), 0, 30, 30000),
                ((), (0, 1), 0, None, 30000)):
            host = self.clusters(*(rate * 2 ** 20 for rate in capacity))
            found = self.effective(text, host, node, of)
            self.assertEqual((percent, mib * 2 ** 20),
                             (found.maximum, found.rate))

    def test_nodes_of_one_figure_have_the_cap_of_both(self):
        for nodes, percent, mib in (((0, 1), 30, 60000), ((1,), 60, 60000)):
            one = group('qemu-7-inst-vcpus_0', lines='MB:0=60000\n')
            both = dataclasses.replace(
                one, used={(0, 1): Figure(State.OK, 2e9)})
            found = shown([both], trees.guest(nodes=nodes, maximum=30),
                          host=self.clusters(*[100000 * 2 ** 20] * 2))
            row, = found.guests[0].nodes
            self.assertEqual((percent, mib * 2 ** 20), (
                row.effective.maximum, row.effective.rate))

    def test_least_of_the_domains_holds(self):
        host = dataclasses.replace(
            HOST, dialect=dialects.INTEL, capacity={}, control={0: (3, 4)})
        self.assertEqual(
            effective_limits.EffectiveLimits(None, 50, True),
            self.effective('MB:3=70;4=50\n', host))

    def test_nothing_is_known(self):
        for text in ('MB:0=x\n', 'L3:0=ff\n', 'MB:7=3\n', ''):
            self.assertIsNone(self.effective(text))
        self.assertIsNone(self.effective('MB:0=5\n', node=9))
        self.assertIsNone(self.effective(
            'MB:0=5\n', dataclasses.replace(HOST, dialect=None)))

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

"""Each resource class of NUMA nodes in all answers to operators."""

import dataclasses
import json

import ddt

from ghsched_placement.audit import audit
from ghsched_placement.audit import diagnostics
from ghsched_placement.audit.findings import Server
from ghsched_placement.fit import capacity as capacities
from ghsched_placement.fit import fitting
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.fit import lack
from ghsched_placement.fit import node_capacity
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.flavor import policy as policies
from ghsched_placement.flavor.resources import BESIDE_BANDWIDTH
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.osc import capacity
from ghsched_placement.osc import host_commands
from ghsched_placement.osc import node_classes
from ghsched_placement.osc import observe
from ghsched_placement.osc import server
from ghsched_placement.providers import names
from ghsched_placement.query import request
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds
from ghsched_placement.tests.fixtures import commands
from ghsched_placement.tests.fixtures import sample_flavors

VCPUS = 2

#: Resource classes of host NUMA nodes that the core and the features have.
KINDS = sorted({names.MEM_BW_PCT, *BESIDE_BANDWIDTH})


def policy_of(kind):
    return policies.parse_policy(sample_flavors.flavor(
        sample_flavors.KEY_OF_CLASS[kind]), 1, VCPUS)


#: What a guest of the sample flavor holds of each class.
AMOUNTS = {kind: policy_of(kind).get_resources_by_node()[0][kind]
           for kind in KINDS}

#: Column of "capacity show" with what is left of a class.
FREE = {names.MEM_BW_PCT: 'BW Free (%)',
        names.MEM_BW_BURST_PCT: 'Bursts Free (%)',
        names.L3_WAYS: 'L3 Ways Free',
        names.RT_CPU_PERMILLE: 'Real Time Free (1/1000 CPU)'}

#: Columns of "server bandwidth show" with what is asked for and allocated.
SHARES = {names.MEM_BW_PCT: ('Min (%)', 'Allocated (%)'),
          names.MEM_BW_BURST_PCT: ('Burst (%)', 'Allocated Burst (%)'),
          names.L3_WAYS: ('L3 Ways', 'Allocated L3 Ways'),
          names.RT_CPU_PERMILLE: ('Real Time (1/1000 CPU)',
                                  'Allocated Real Time (1/1000 CPU)')}

#: Where "host show" has what is left of a class.
FIELDS = {names.MEM_BW_PCT: lambda node: node['free_percent'],
          names.MEM_BW_BURST_PCT: lambda node: node['bursts']['free_percent'],
          names.L3_WAYS: lambda node: node['l3_ways']['free'],
          names.RT_CPU_PERMILLE:
              lambda node: node['real_time_permille']['free']}


def every_class(*answers):
    for answer in answers:
        assert answer.keys() >= {*KINDS}, 'a class is in no answer'


every_class(FREE, SHARES, FIELDS, AMOUNTS)


@ddt.ddt
class ClassTest(base.TestCase):

    def server(self, kind, nodes=(1,)):
        return Server('u', 'web', 'a', policy_of(kind), nodes=nodes)

    def host(self, kind, **left):
        """A host of two nodes; the guest of a class is on node 1.

        :param left: of the class, by node.
        """
        return clouds.host(*(
            clouds.counting_node(number, **(
                {kind: left[f'n{number}']} if f'n{number}' in left else {}))
            for number in (0, 1)), VCPU=64)

    def make_resources(self, kind):
        return {clouds.node_uuid('a', 1): {kind: AMOUNTS[kind]},
                clouds.root_uuid('a'): {names.RESCTRL_GROUP: 1}}

    def wish(self, kind):
        return GuestDemand(self.server(kind).policy, 1)

    @ddt.data(*KINDS)
    def test_flavor_check_names_the_class_that_no_node_has_left(self, kind):
        for few in (0, AMOUNTS[kind] - 1):
            verdict = fitting.check_host_capacity(self.host(kind, n0=few,
                                                            n1=few),
                                                  self.wish(kind))
            self.assertEqual(0, verdict.guests)
            self.assertIn(lack.WORDS[kind], '; '.join(verdict.reason_texts))
            self.assertIn(f'{AMOUNTS[kind]} needed',
                          '; '.join(verdict.reason_texts))

    @ddt.data(*KINDS)
    def test_flavor_check_names_the_class_that_the_host_has_not(self, kind):
        nodes = [clouds.counting_node(number) for number in (0, 1)]
        for node in nodes:
            del node.inventories[kind]
        verdict = fitting.check_host_capacity(clouds.host(*nodes),
                                              self.wish(kind))
        self.assertEqual(0, verdict.guests)
        if kind == names.MEM_BW_PCT:
            self.assertIn('bandwidth cannot be controlled',
                          '; '.join(verdict.reason_texts))
        else:
            one = BESIDE_BANDWIDTH[kind]
            self.assertEqual([
                '; '.join(filter(None, (
                    'NUMA nodes 0-1 cannot take guest NUMA node 0: it has '
                    f'0 {one.on_node}, {AMOUNTS[kind]} needed '
                    f'({one.key.extra_spec})', one.cure)))],
                list(verdict.reason_texts))

    @ddt.data(*KINDS)
    def test_flavor_check_counts_as_many_guests_as_have_room(self, kind):
        most = clouds.OFFERED[kind]
        for left in {AMOUNTS[kind], 2 * AMOUNTS[kind] - 1, most}:
            found = fitting.check_host_capacity(self.host(kind, n0=left, n1=0),
                                                self.wish(kind))
            self.assertEqual(
                min(left // AMOUNTS[kind],
                    31 if self.server(kind).policy.needs_control_group
                    else 1000),
                found.guests)

    @ddt.data(*KINDS)
    def test_host_show_has_what_is_left_and_held(self, kind):
        found = self.host(kind, n0=7)
        shown = host_commands.make_host_report(observe.HostRecords(
            found, (self.server(kind),), {'u': self.make_resources(kind)}, ()))
        plain = dict(zip(shown, commands.plain(shown.values()), strict=True))
        self.assertEqual(7, FIELDS[kind](plain['numa_nodes'][0]))
        self.assertIn(str(AMOUNTS[kind]), shown['guests'].human_readable())
        self.assertIn('on node 1', shown['guests'].human_readable())
        json.dumps(plain)

    @ddt.data(*KINDS)
    def test_server_show_has_what_is_asked_and_allocated(self, kind):
        policy, held = self.server(kind).policy, self.make_resources(kind)
        on = self.host(kind)
        for known in (True, False):
            row, = server.list_node_rows(
                server.ServerRecords(
                    'a', policy, (1, ) if known else (None, ),
                    audit.get_bandwidth_by_node(on, held) if known else None,
                    diagnostics.GuestReport(),
                    node_classes.sum_allocations_by_node(on, held)
                    if known else None))
            shown = dict(zip(server.COLUMNS, commands.plain(row),
                             strict=True))
            asked, allocated = SHARES[kind]
            self.assertEqual(AMOUNTS[kind], shown[asked])
            self.assertEqual(AMOUNTS[kind] if known else None,
                             shown[allocated])
        json.dumps(shown)


#: A guest node, and a host node that lacks one thing for it.
ROOMS = {
    node_capacity.CPUS: (GuestNode(shared=3, memory=64),
                         NodeCapacity(0, cpus=4, vcpus_used=2, memory=512)),
    node_capacity.DEDICATED: (GuestNode(pinned=3, memory=64),
                              NodeCapacity(0, dedicated=4, dedicated_used=2,
                                           memory=512)),
    node_capacity.MEMORY: (GuestNode(shared=1, memory=64),
                           NodeCapacity(0, cpus=4, memory=512,
                                        memory_used=510)),
}

#: Column of "capacity show" and field of "host show" with what is left.
ROOM_FREE = {
    node_capacity.CPUS: ('vCPUs Free', 'vcpus_free'),
    node_capacity.DEDICATED: ('Dedicated CPUs Free', 'dedicated_cpus_free'),
    node_capacity.MEMORY: ('Memory Free (MiB)', 'memory_free_mb')}


@ddt.ddt
class RoomTest(base.TestCase):
    """CPUs and memory, which are no resource classes of a NUMA node."""

    def host(self, kind, second):
        """Return a host whose node 0 lacks a kind of resource.

        :param second: whether node 1 has more of it.
        """
        room = ROOMS[kind][1]
        other = NodeCapacity(1, cpus=8, dedicated=8, memory=4096)
        return capacities.set_node_capacity(
            clouds.host(clouds.node(0), clouds.node(1)),
            [room, other if second else dataclasses.replace(room, node=1)])

    def verdict(self, kind, second):
        policy = policies.parse_policy(sample_flavors.flavor('mem_bw_min'), 1,
                                       1)
        return fitting.check_host_capacity(
            self.host(kind, second), GuestDemand(
                policy, 1, needs=(ROOMS[kind][0],)))

    def test_each_kind_that_a_node_can_be_short_of_is_here(self):
        found = {
            one.resource for guest, room in ROOMS.values()
            for one in dataclasses.replace(
                room, cpus=0, dedicated=0, memory=0).find_shortages(
                    GuestNode(shared=1, pinned=1, memory=1))}
        self.assertEqual(ROOMS.keys(), found)
        self.assertEqual(ROOMS.keys(), ROOM_FREE.keys())

    @ddt.data(*ROOMS)
    def test_flavor_check_names_what_every_node_is_short_of(self, kind):
        found = self.verdict(kind, second=False)
        self.assertEqual(0, found.guests)
        self.assertIn(f'2 {kind} free' if kind != node_capacity.MEMORY
                      else '2 MB of memory free',
                      '; '.join(found.reason_texts))

    @ddt.data(*ROOMS)
    def test_flavor_check_counts_the_node_that_has_enough(self, kind):
        found = self.verdict(kind, second=True)
        self.assertGreater(found.guests, 0)
        self.assertEqual({1}, set(found.nodes))

    @ddt.data(*ROOMS)
    def test_capacity_and_host_show_have_what_is_left(self, kind):
        column, field = ROOM_FREE[kind]
        host_of = self.host(kind, second=False)
        for row in capacity.list_node_rows(host_of):
            self.assertEqual(2, dict(zip(
                capacity.COLUMNS, commands.plain(row), strict=True))[column])
        shown = host_commands.make_host_report(
            observe.HostRecords(host_of, (), {}, ()))
        self.assertEqual([2, 2], [
            node[field] for node in shown['numa_nodes'].machine_readable()])


class GroupTest(base.TestCase):
    """The one class that is counted of the whole host."""

    policy = policy_of(names.MEM_BW_PCT)

    def host(self, used):
        return clouds.host(clouds.node(0), groups=2, groups_used=used)

    def test_control_group_is_the_only_class_that_is_of_no_node(self):
        self.assertEqual(names.OUR_CLASSES - names.NODE_CLASSES,
                         request.build_request(self.policy,
                                               'min').resources.keys())

    def test_flavor_check_counts_control_groups_and_names_their_lack(self):
        wish = GuestDemand(self.policy, 1)
        self.assertEqual(1, fitting.check_host_capacity(self.host(1),
                                                        wish).guests)
        found = fitting.check_host_capacity(self.host(2), wish)
        self.assertEqual((0, ('0 control groups free, 1 needed',)),
                         (found.guests, found.reason_texts))

    def test_capacity_and_host_show_have_what_is_left(self):
        row, = capacity.list_node_rows(self.host(1))
        self.assertEqual(1, dict(zip(
            capacity.COLUMNS, commands.plain(row), strict=True))[
                'Groups Free'])
        shown = host_commands.make_host_report(
            observe.HostRecords(self.host(1), (), {}, ()))
        self.assertEqual(
            {'total': 2, 'reserved': 0, 'used': 1, 'free': 1}, {
                name: commands.plain([shown[f'control_groups_{name}']])[0]
                for name in ('total', 'reserved', 'used', 'free')})

    def test_audit_finds_other_numbers_of_control_groups(self):
        server_of = Server('u', 'web', 'a', self.policy, nodes=(0,))
        for held, text in ((0, 'holds 0 control groups'), (1, ''),
                           (2, 'holds 2 control groups')):
            found = audit.audit_host_allocations(
                self.host(held), [server_of], {'u': {
                    clouds.node_uuid(
                        'a', 0): self.policy.get_resources_by_node()[0],
                    clouds.root_uuid('a'): {names.RESCTRL_GROUP: held}}})
            self.assertIn(text, ' '.join(one.text for one in found))
            self.assertEqual(bool(text), bool(found))


class ColumnTest(base.TestCase):

    def test_columns_of_a_command_have_different_names(self):
        for columns in (capacity.COLUMNS, server.COLUMNS):
            self.assertEqual(len(columns), len(set(columns)))

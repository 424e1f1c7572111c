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

"""Allocations that a repair changes, and those that stay."""


from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.audit import audit
from ghsched_placement.audit.findings import OtherConsumers
from ghsched_placement.audit.findings import Server
from ghsched_placement.audit import repair
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds

A = '11111111-1111-1111-1111-111111111111'
HOST = clouds.host(clouds.node(0), clouds.node(1),
                   clouds.pf('0000:01:00.0', 0))
ROOT, NODE0, NODE1 = (clouds.root_uuid('a'), clouds.node_uuid('a', 0),
                      clouds.node_uuid('a', 1))
ELSEWHERE = '99999999-9999-9999-9999-999999999999'

AMOUNTS = st.dictionaries(
    st.sampled_from([ROOT, NODE0, NODE1, ELSEWHERE]), st.dictionaries(
        st.sampled_from([names.MEM_BW_PCT, names.L3_WAYS,
                         names.RT_CPU_PERMILLE, names.RESCTRL_GROUP,
                         'VCPU']),
        st.integers(1, 100), min_size=1, max_size=3), max_size=4)
SERVERS = st.builds(
    lambda policies, nodes, permille: Server(
        A, 'web', 'a', GuestPolicy(
            nodes=tuple(policies),
            rt_permille=tuple(permille[:len(policies)])),
        nodes=tuple(nodes[:len(policies)])),
    st.lists(st.builds(NodePolicy, st.integers(0, 100),
                       l3_ways=st.integers(0, 3)), max_size=2),
    st.permutations([0, 1]),
    st.lists(st.integers(0, 2000), min_size=2, max_size=2))


def plan(server, held, up=True, known=True, **more):
    holdings = {A: held} if held else {}
    servers = [server] if server else []
    return list(repair.plan_repairs(
        HOST, servers, holdings,
        audit.audit_host_allocations(HOST, servers, holdings, **more), up,
        is_accounting_known=known))


def guest(share=30, node=0):
    return Server(A, 'web', 'a', GuestPolicy(nodes=(NodePolicy(share),)),
                  nodes=(node,))


class HealTest(base.TestCase):

    @given(SERVERS, AMOUNTS)
    def test_healed_allocations_agree(self, server, held):
        repairs = plan(server, held)
        for one in repairs:
            held = repair.compute_repaired_allocation(held, one.wanted)
        found = audit.audit_host_allocations(HOST, [server], {A: held})
        if repairs:
            self.assertEqual((), found)
        self.assertEqual([], plan(server, held))

    @given(SERVERS, AMOUNTS)
    def test_foreign_entries_stay(self, server, held):
        def others(amounts):
            return {(provider, name): amount
                    for provider, resources in amounts.items()
                    for name, amount in resources.items()
                    if name == 'VCPU' or provider == ELSEWHERE}
        for one in plan(server, held):
            self.assertEqual(others(held), others(
                repair.compute_repaired_allocation(held, one.wanted)))

    def test_resources_dropped_by_a_heal_of_nova(self):
        one, = plan(guest(30, 1), {ROOT: {'VCPU': 2}})
        self.assertEqual('set the allocation of web to 30 % on node 1, a '
                         'control group',
                         one.text)
        self.assertEqual(
            {ROOT: {'VCPU': 2, names.RESCTRL_GROUP: 1},
             NODE1: {names.MEM_BW_PCT: 30}},
            repair.compute_repaired_allocation({ROOT: {'VCPU': 2}},
                                               one.wanted))

    @given(SERVERS, AMOUNTS)
    def test_unknown_accounting_lowers_nothing_that_may_be_right(
            self, server, held):
        for one in plan(server, held, known=False):
            healed = repair.compute_repaired_allocation(held, one.wanted)
            for guest_node, policy in enumerate(server.policy.nodes):
                provider = clouds.node_uuid('a', server.nodes[guest_node])
                before, after = (
                    amounts.get(provider, {}).get(names.MEM_BW_PCT, 0)
                    for amounts in (held, healed))
                self.assertGreaterEqual(
                    after, min(before, policy.maximum, 100))
                self.assertGreaterEqual(after, policy.minimum)

    def test_allocation_of_the_cap_is_lowered_where_guarantees_count(self):
        server = Server(A, 'web', 'a', GuestPolicy(nodes=(
            NodePolicy(10, 79),)), nodes=(0,))
        for held, known, percent in (
                (79, True, 10), (50, True, 10), (79, False, None),
                (50, False, None), (90, False, 79), (5, False, 10)):
            found = [one.wanted[NODE0][names.MEM_BW_PCT] for one in plan(
                server, {ROOT: {names.RESCTRL_GROUP: 1},
                         NODE0: {names.MEM_BW_PCT: held}}, known=known)]
            self.assertEqual([] if percent is None else [percent], found)

    def test_leftover_of_another_node_is_removed_without_the_accounting(self):
        one, = plan(guest(30, 1), {
            ROOT: {names.RESCTRL_GROUP: 1}, NODE0: {names.MEM_BW_PCT: 30},
            NODE1: {names.MEM_BW_PCT: 30}}, known=False)
        self.assertEqual((0, 30), (one.wanted[NODE0][names.MEM_BW_PCT],
                                   one.wanted[NODE1][names.MEM_BW_PCT]))

    def test_who_holds_nothing_is_for_nova_first(self):
        self.assertEqual([], plan(guest(), {}))

    def test_a_node_that_is_not_known(self):
        for server in (guest(node=7), Server(A, 'web', 'a', guest().policy)):
            self.assertEqual([], plan(server, {ROOT: {'VCPU': 2}}))

    def test_who_asks_for_nothing_of_ours_is_left_alone(self):
        self.assertEqual([], plan(Server(A, 'web', 'a'),
                                  {NODE0: {names.MEM_BW_PCT: 5}}))


class GiveBackTest(base.TestCase):

    def test_entries_of_other_hosts_stay(self):
        held = {NODE0: {names.MEM_BW_PCT: 30}}
        one, = plan(None, held)
        other = {ELSEWHERE: {'VCPU': 2}}
        self.assertEqual(other,
                         repair.compute_repaired_allocation({**held, **other},
                                                            one.wanted))

    def test_a_consumer_that_holds_nothing_of_ours(self):
        self.assertEqual([], plan(None, {ROOT: {'VCPU': 2}}))

    def test_an_evacuated_server_while_its_old_host_is_down(self):
        held = {NODE0: {names.MEM_BW_PCT: 30}}
        others = OtherConsumers(servers={A: 'b'})
        self.assertEqual([], plan(None, held, up=False, others=others))
        self.assertEqual(1, len(plan(None, held, others=others)))


class BodyTest(base.TestCase):

    @given(AMOUNTS, AMOUNTS)
    def test_the_second_time_there_is_nothing_to_do(self, now, wanted):
        answer = {'allocations': {
            uuid: {'resources': dict(resources), 'generation': 4}
            for uuid, resources in now.items()},
            'project_id': 'p', 'user_id': 'u', 'consumer_generation': 3}
        found = repair.make_repair_body(answer, wanted)
        if found is None:
            return
        self.assertEqual(
            (3, 'p', 'u'), (found['consumer_generation'],
                            found['project_id'], found['user_id']))
        self.assertIsNone(repair.make_repair_body({**answer, **found}, wanted))

    def test_a_consumer_that_is_gone_stays_so(self):
        self.assertIsNone(repair.make_repair_body({'allocations': {}},
                                                  {ROOT: {'VCPU': 2}}))


class BodiesTest(base.TestCase):
    """Allocations that a migration holds for a server that holds none."""

    REPAIR = repair.Repair('a', 'migration', '', {}, A)

    def answer(self, now):
        return {'allocations': {
            uuid: {'resources': dict(resources), 'generation': 4}
            for uuid, resources in now.items()},
            'project_id': 'p', 'user_id': 'u', 'consumer_generation': 3}

    @given(AMOUNTS)
    def test_all_of_it_changes_its_consumer(self, now):
        found = repair.make_transfer_body(self.answer(now),
                                          {'allocations': {}},
                                          self.REPAIR)
        if not now:
            self.assertIsNone(found)
            return
        self.assertEqual({'project_id': 'p', 'user_id': 'u',
                          'allocations': {}, 'consumer_generation': 3},
                         found['migration'])
        self.assertEqual(now, {
            uuid: entry['resources'] for uuid, entry
            in found[A]['allocations'].items()})
        self.assertIsNone(found[A]['consumer_generation'])

    def test_a_server_that_holds_its_part_of_another_host(self):
        found = repair.make_transfer_body(
            self.answer({ROOT: {'VCPU': 2}}),
            self.answer({ELSEWHERE: {'VCPU': 2}}), self.REPAIR)
        self.assertEqual((3, {ROOT}), (found[A]['consumer_generation'],
                                       set(found[A]['allocations'])))

    def test_a_server_that_holds_something_meanwhile(self):
        held = self.answer({ROOT: {'VCPU': 2}})
        self.assertIsNone(repair.make_transfer_body(held, held, self.REPAIR))

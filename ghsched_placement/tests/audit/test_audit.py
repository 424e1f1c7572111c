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

"""Disagreements of records about a host."""

import dataclasses

from ghsched_placement.audit import audit
from ghsched_placement.audit import audit_host
from ghsched_placement.audit import diagnostics
from ghsched_placement.audit.findings import OtherConsumers
from ghsched_placement.audit.findings import Server
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.flavor.policy import Vfs
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds

A = '11111111-1111-1111-1111-111111111111'
B = '22222222-2222-2222-2222-222222222222'


def guest(*shares, nodes=(0, 1), uuid=A, **more):
    """A server with such guarantees by guest NUMA node."""
    policy = GuestPolicy(nodes=tuple(map(NodePolicy, shares)))
    return Server(uuid, 'web', 'a', policy,
                        nodes=tuple(nodes[:len(shares)]), **more)


def make_resources(groups=1, **shares):
    """make_resources(n0=30): 30 % of node 0 and a control group."""
    found = {clouds.node_uuid('a', int(name[1:])): {names.MEM_BW_PCT: share}
             for name, share in shares.items()}
    if groups:
        found[clouds.root_uuid('a')] = {names.RESCTRL_GROUP: groups}
    return found


class AuditTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.host = clouds.host(clouds.node(0), clouds.node(1))

    def kinds(self, host=None, servers=(), holdings=None, **more):
        self.found = audit.audit_host_allocations(host or self.host, servers,
                                                  holdings or {}, **more)
        return [finding.kind for finding in self.found]


class ServersTest(AuditTestCase):

    def test_one_that_holds_nothing_at_all_is_for_nova_manage_first(self):
        self.assertEqual(['allocation-differs'], self.kinds(
            servers=[guest(30, 40)]))
        self.assertIn(f'heal_allocations --instance {A}',
                      self.found[0].remedy)

    @base.needs_features('bursts')
    def test_another_burst_than_asked_for(self):
        server = Server(A, 'web', 'a', GuestPolicy(
            nodes=(NodePolicy(30, burst=20),)), nodes=(0,))
        holds = make_resources(n0=30)
        self.assertEqual(['allocation-differs'], self.kinds(
            servers=[server], holdings={A: holds}))
        self.assertIn('holds 0 % of memory bandwidth as bursts on NUMA node '
                      '0, its flavor needs 20', self.found[0].text)
        holds[clouds.node_uuid('a', 0)][names.MEM_BW_BURST_PCT] = 20
        self.assertEqual([], self.kinds(servers=[server],
                                        holdings={A: holds}))

    def test_another_node_than_it_runs_on(self):
        self.assertEqual(['nodes-differ'], self.kinds(
            servers=[guest(30)], holdings={A: make_resources(n1=30)}))
        self.assertIn('holds 30 % on node 1, and runs on the NUMA nodes 0',
                      self.found[0].text)

    def test_nodes_that_nobody_reported_may_be_any(self):
        server = guest(30, 40, nodes=())
        self.assertEqual([], self.kinds(
            servers=[server], holdings={A: make_resources(n0=40, n1=30)}))
        self.assertEqual(['allocation-differs'], self.kinds(
            servers=[server], holdings={A: make_resources(n0=40, n1=20)}))

    def test_one_that_joined_others_needs_no_control_group(self):
        server = guest(30)
        host = clouds.host(clouds.node(0, traits=clouds.NODE_TRAITS | {
            names.make_share_trait(server.policy.fingerprint, 0)}))
        for groups, found in ((0, []), (1, []), (2, ['allocation-differs'])):
            self.assertEqual(found, self.kinds(
                host, [server], {A: make_resources(groups=groups, n0=30)}))

    def test_who_asks_for_nothing_holds_nothing(self):
        server = Server(A, 'plain', 'a')
        self.assertEqual([], self.kinds(servers=[server]))
        self.assertEqual(['allocation-differs'] * 2, self.kinds(
            servers=[server], holdings={A: make_resources(n0=30)}))

    def test_caps_are_counted_if_the_cloud_does_so(self):
        server = Server(A, 'capped', 'a', GuestPolicy(
            nodes=(NodePolicy(10, 50),)), nodes=(0,))
        holdings = {A: make_resources(n0=50)}
        self.assertEqual([], self.kinds(servers=[server], holdings=holdings,
                                        accounting='max'))
        self.assertEqual(['allocation-differs'], self.kinds(
            servers=[server], holdings=holdings))

    def test_a_flavor_that_makes_no_sense(self):
        self.assertEqual(['flavor-invalid'], self.kinds(servers=[
            Server(A, 'web', 'a', problem='ghsched:x: unknown key')]))

    def test_consumers_that_are_no_servers(self):
        holdings = {B: make_resources(n0=30)}
        self.assertEqual(['allocation-without-server'],
                         self.kinds(holdings=holdings))
        self.assertEqual([], self.kinds(
            holdings=holdings, others=OtherConsumers(frozenset({B}))))

    def test_a_consumer_that_holds_nothing_of_ours(self):
        """The consumer is named, as by nova-manage placement audit."""
        self.assertEqual(['allocation-without-server'], self.kinds(holdings={
            B: {clouds.root_uuid('a'): {'VCPU': 4, 'DISK_GB': 2}}}))
        self.assertIn('holds 2 DISK_GB, 4 VCPU, and', self.found[0].text)

    def test_a_server_of_another_host(self):
        for place, text in (('b', 'the server is on b'),
                            ('', 'the server is on no host')):
            self.assertEqual(['allocation-elsewhere'], self.kinds(
                holdings={B: make_resources(n0=30)},
                others=OtherConsumers(servers={B: place})))
            self.assertIn(text, self.found[0].text)


class EffectiveTest(AuditTestCase):

    def effective(self, policy, **shown):
        server = Server(
            A, 'web', 'a', GuestPolicy(nodes=(policy,)), nodes=(0,),
            effective=({0: diagnostics.GuestNodeReport(0, **shown)} if shown
                       else {}))
        return self.kinds(servers=[server],
                          holdings={A: make_resources(n0=policy.minimum)})

    def test_promised_values_are_set(self):
        self.assertEqual([], self.effective(NodePolicy(30, 52), minimum=30,
                                            maximum=60.0))

    def test_unenforceable_limits_are_shown_with_the_reason(self):
        host = clouds.host(clouds.node(0))
        server = Server(A, 'web', 'a', not_held='no group is free')
        finding, = audit.audit_host_allocations(host, [server], {})
        self.assertEqual('not-protected', finding.kind)
        self.assertIn('no group is free', finding.text)

    def test_server_with_too_few_devices_is_named(self):
        server = Server(A, 'web', 'a', missing_devices=(
            '1 of 2 devices of alias fast',))
        finding, = audit.audit_host_allocations(clouds.host(clouds.node(0)),
                                                [server], {})
        self.assertEqual(('devices-missing', A),
                         (finding.kind, finding.subject))
        self.assertIn('web has 1 of 2 devices of alias fast', finding.text)

    def test_active_server_whose_host_runs_no_domain_is_named(self):
        host = clouds.host(clouds.node(0))
        server = Server(A, 'web', 'a', active=True, absent=True)
        finding, = audit.audit_host_allocations(host, [server], {})
        self.assertEqual('domain-missing', finding.kind)
        self.assertIn('reboot --hard', finding.remedy)
        # On its way it may have none for a while.
        self.assertEqual((), audit.audit_host_allocations(
            host, [dataclasses.replace(server, moving=True)], {}))

    def test_less_is_guaranteed(self):
        for minimum in (None, 20):
            self.assertEqual(['host-differs'], self.effective(
                NodePolicy(30), minimum=minimum, maximum=100))

    def test_no_cap(self):
        self.assertEqual(['host-differs'], self.effective(
            NodePolicy(30, 50), minimum=30, maximum=100))

    def test_rounding_by_the_host_is_no_drift(self):
        for asked, minimum, maximum in (
                (NodePolicy(30, 95), 30, 100),      # caps in steps of 10 %
                (NodePolicy(33, 50), 32, 50),       # what OLK-6.6 may show
                (NodePolicy(1, 100), 0, 100)):
            for right, found in ((True, []), (False, ['host-differs']),
                                 (None, ['host-differs'])):
                self.assertEqual(found, self.effective(
                    asked, minimum=minimum, maximum=maximum,
                    asked_minimum=asked.minimum, asked_maximum=asked.maximum,
                    as_wanted=right))

    def test_values_that_the_host_itself_finds_wrong(self):
        told = {'asked_minimum': 30, 'asked_maximum': 50, 'as_wanted': False}
        self.assertEqual(['host-differs'], self.effective(      # a lower cap
            NodePolicy(30, 50), minimum=30, maximum=40, **told))
        self.assertEqual(['host-differs'], self.effective(  # sum of two: 60
            NodePolicy(30, 50), minimum=30, maximum=100,
            group='ghsched-shared', **told))

    def test_text_has_the_values_that_the_host_finds_wrong(self):
        for maximum, cap in ((60.0, ' and caps at 60 %'), (None, '')):
            self.effective(NodePolicy(25, 60), minimum=90, maximum=maximum,
                           asked_minimum=25, asked_maximum=60,
                           as_wanted=False)
            self.assertIn(f'its control group guarantees 90 %{cap}, which',
                          self.found[0].text)

    def test_a_host_that_enforces_another_policy(self):
        for told in ({'asked_minimum': 20, 'asked_maximum': 100},
                     {'asked_minimum': 30, 'asked_maximum': 100}):
            self.assertEqual(['domain-differs'], self.effective(
                NodePolicy(30, 50), minimum=told['asked_minimum'],
                maximum=100, as_wanted=True, **told))

    def test_a_cap_that_is_not_known_as_a_percentage(self):
        self.assertEqual([], self.effective(
            NodePolicy(30, 50), minimum=30, maximum=None))

    def test_no_control_group(self):
        self.assertEqual(['host-differs'], self.effective(NodePolicy(30)))

    def test_a_host_that_was_not_asked(self):
        self.assertEqual([], self.kinds(
            servers=[guest(30)], holdings={A: make_resources(n0=30)}))


class SumsTest(AuditTestCase):
    """Sums over the guests of a node."""

    def kinds_of_sums(self, *guests, allocated):
        servers = [guest(share, uuid=f'{number}', nodes=(0,), effective={
            0: diagnostics.GuestNodeReport(0, **told)})
            for number, (share, told) in enumerate(guests)]
        return self.kinds(servers=servers, holdings={
            '0': make_resources(n0=allocated),
            **{one.uuid: make_resources() for one in servers[1:]}})

    def test_more_is_held_than_allocated(self):
        self.assertIn('guarantees-exceed', self.kinds_of_sums(
            (30, {'minimum': 30}), (30, {'minimum': 30}), allocated=30))
        self.assertNotIn('guarantees-exceed', self.kinds_of_sums(
            (30, {'minimum': 30}), (30, {'minimum': 30}), allocated=60))

    def test_rounding_up_by_a_host_is_no_excess(self):
        rounded = {'minimum': 40, 'asked_minimum': 33, 'asked_maximum': 100,
                   'as_wanted': True}
        self.assertEqual([], self.kinds_of_sums((33, rounded), allocated=33))

    def test_a_group_that_guests_share_counts_once(self):
        shared = {'minimum': 60, 'group': 'ghsched-shared-x'}
        self.assertNotIn('guarantees-exceed', self.kinds_of_sums(
            (30, shared), (30, shared), allocated=60))


class LeftTest(AuditTestCase):
    """Leftovers on a host of guests that are gone."""

    def list_leftovers(self, servers, *reports):
        return [(one.kind, one.subject)
                for one in audit_host.find_leftover_domains_and_groups(
            self.host, servers, reports)]

    def test_a_domain_without_a_server(self):
        report = diagnostics.GuestReport(domains=(A, B))
        self.assertEqual([('domain-without-server', B)],
                         self.list_leftovers([guest(30)], report))

    def test_a_group_without_a_guest_is_named_once(self):
        report = diagnostics.GuestReport(left=('ghsched-' + B,))
        self.assertEqual([('group-without-guest', 'ghsched-' + B)],
                         self.list_leftovers([guest(30)], report, report))

    def test_a_host_that_does_not_tell(self):
        self.assertEqual([], self.list_leftovers(
            [guest(30)], diagnostics.GuestReport()))


class UncheckedTest(AuditTestCase):

    def unchecked(self, *servers, state='up'):
        return [(one.kind, one.subject, one.text) for one
                in audit_host.find_unreported_servers(self.host, servers,
                                                      state)]

    def test_who_tells_is_checked(self):
        self.assertEqual([], self.unchecked(guest(30)))

    def test_a_guest_of_which_its_host_tells_nothing(self):
        self.assertEqual(
            [('not-checked', A, 'web: resctrl is not mounted')],
            self.unchecked(guest(30, silent='resctrl is not mounted')))

    def test_a_host_that_is_down_is_named_once(self):
        for state, text in (('down', 'nova-compute is down'),
                            (None, 'Nova has no compute node of this name')):
            self.assertEqual([('not-checked', 'a', text)], self.unchecked(
                guest(30, silent='x'), state=state))


class VfsTest(AuditTestCase):

    def setUp(self):
        super().setUp()
        self.host = clouds.host(clouds.node(0), clouds.node(1),
                                clouds.pf('0000:01:00.0', 0),
                                clouds.pf('0000:02:00.0', 1))

    def vfs(self, locality, **counts):
        """vfs('node', n0=2): two on node 0; the guest asks for two on 1."""
        held = {pf.uuid: {clouds.VF: counts.get(f'n{node.number}', 0)}
                for node in self.host.nodes for pf in node.pfs}
        policy = GuestPolicy(vfs=(Vfs(0, 'nic', 2),), vfs_locality=locality)
        return self.kinds(servers=[Server(A, 'web', 'a', policy,
                                          nodes=(1,))], holdings={A: held})

    def test_as_many_as_asked_for_or_more(self):
        for counts in ({'n1': 2}, {'n0': 1, 'n1': 3}):
            self.assertEqual([], self.vfs('node', **counts))

    def test_too_few(self):
        for counts in ({}, {'n1': 1}):
            self.assertEqual(['vfs-missing'], self.vfs('any', **counts))

    def test_on_another_node(self):
        self.assertEqual(['nodes-differ'], self.vfs('node', n0=2))
        self.assertEqual([], self.vfs('any', n0=2))


class ProvidersTest(AuditTestCase):

    def test_a_node_without_bandwidth_next_to_one_with(self):
        self.assertEqual(['inventory-missing'], self.kinds(clouds.host(
            clouds.node(0), clouds.node(1, bandwidth=0))))

    def test_bandwidth_without_control_groups(self):
        self.assertEqual(['inventory-missing'], self.kinds(clouds.host(
            clouds.node(0), groups=0)))

    def test_traits_of_the_host(self):
        self.assertEqual(['traits-missing'], self.kinds(clouds.host(
            clouds.node(0), traits={names.CAPABILITY_TRAITS['DEVICE_NUMA']})))

    def test_traits_of_a_node(self):
        missing = names.CAPABILITY_TRAITS['MEM_BW_MIN']
        self.assertEqual(['traits-missing'], self.kinds(clouds.host(
            clouds.node(0, traits=clouds.NODE_TRAITS - {
                missing, names.OWNER_TRAIT}))))
        self.assertEqual(f'the provider lacks the traits {names.OWNER_TRAIT}, '
                         f'{missing}',
                         self.found[0].text)

    def test_a_node_that_is_of_another_host(self):
        stray = clouds.node(0, name='b')
        stray = type(stray)(**{**vars(stray), 'root': clouds.root_uuid('a'),
                               'name': 'a_NUMA0'})
        self.assertEqual(['provider-unknown'],
                         self.kinds(clouds.host(stray)))

    def test_a_node_that_is_offered_no_more(self):
        self.assertEqual(['inventory-closed'], self.kinds(clouds.host(
            clouds.node(0, used=30, reserved=100), clouds.node(1))))

    def test_more_was_reserved_since(self):
        self.assertEqual(['over-allocated'], self.kinds(clouds.host(
            clouds.node(0, used=30, reserved=80))))

    def test_a_device_on_no_node(self):
        self.assertEqual(['device-without-node'], self.kinds(clouds.host(
            clouds.node(0), clouds.pf('0000:01:00.0', None))))

    def test_every_finding_has_a_remedy(self):
        self.kinds(clouds.host(
            clouds.node(0, used=30, reserved=80),
            clouds.node(1, bandwidth=0), clouds.pf('0000:01:00.0', None)),
            servers=[guest(30)], holdings={B: make_resources(n0=30)})
        self.assertGreater(len(self.found), 4)
        for finding in self.found:
            self.assertTrue(finding.remedy and finding.subject, finding)

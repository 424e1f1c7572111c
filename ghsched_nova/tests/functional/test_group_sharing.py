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

"""Guests that share control groups, with real Placement."""

import os

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import naming
from ghsched_nova.tests.functional import emptied_hosts
from ghsched_nova.tests.functional import nova_base
from ghsched_placement.providers import names


class SharingTest(emptied_hosts.EmptiedHosts, nova_base.GhschedTestCase):
    """Hosts with three control groups for guests."""

    def setUp(self):
        super().setUp()
        self.flags(group_sharing=True, group='ghsched')
        self.kernel.closids = 4
        self.start_host()

    def test_servers_of_one_policy_share_a_group(self):
        self.servers = self.boot_equal(5)
        self.take_steps(
            self.more_equal_guests_than_control_groups,
            self.an_unchanged_host_is_not_written,
            self.a_restart_of_nova_compute_knows_who_shares,
            self.each_has_a_slot_of_its_own,
            self.who_leaves_gives_the_unit_and_the_share_back, tidy=False)
        self.take_steps(
            self.without_sharing_the_fourth_has_no_room,
            self.units_that_are_not_needed_are_given_back_at_once,
            self.a_report_that_fails_is_no_reason_to_stop_a_guest,
            self.one_that_is_stopped_keeps_its_place,
            self.live_migration_leaves_one_group_and_joins_another)

    def test_servers_join_a_group_where_none_is_left(self):
        self.take_steps(self.who_comes_next_need_not_wait_for_a_report)
        self.filled = self.fill(mem_bw_min=10, mem_bw_max=40)
        self.take_steps(
            self.a_guest_that_can_not_join_is_refused_with_the_lack,
            self.where_no_group_is_left_an_equal_guest_joins, tidy=False)
        self.tidy_up()
        self.filled = self.fill(mem_bw_max=40)
        self.take_steps(
            self.a_cap_alone_is_joined_on_its_host_node,
            self.a_group_that_is_gone_is_not_reported_any_more,
            self.a_group_that_went_meanwhile_is_not_joined, tidy=False)

    def boot_equal(self, count, **keys):
        """Guests of one flavor; the host reports when all run."""
        flavor = self.flavor(vcpus=1, **(keys or {'mem_bw_min': 10}))
        servers = [self.boot(flavor) for _ in range(count)]
        self._run_periodics()
        return servers

    def groups(self):
        return {name for name in self.kernel.own_groups()
                if naming.parse_group_name(name).is_shared}

    def count_group_units(self):
        """(units that guests hold, units that are left)"""
        root = self.compute_rp_uuids['host_a']
        record = self._get_provider_inventory(root)[names.RESCTRL_GROUP]
        used = self._get_provider_usages(root)[names.RESCTRL_GROUP]
        return used, record['total'] - record['reserved'] - used

    def more_equal_guests_than_control_groups(self):
        self.assertEqual(
            {desired.parse_running_domain(
                self.domain('host_a', server)).shared_group
             for server in self.servers}, self.groups())
        self.assertEqual(2, len(self.groups()))     # one for each host node
        self.assertEqual((5, 1), self.count_group_units())
        self.assertEqual([10, 40], sorted(
            max(guest['MBMIN'].values()) for _uuid, _vcpus, guest
            in self.kernel.enforced[-2:]))
        for server in self.servers:
            self.assertNotIn('memorytune', self.domain('host_a', server))

    def an_unchanged_host_is_not_written(self):
        root = self.compute_rp_uuids['host_a']
        before = self._get_resource_provider_by_uuid(root)['generation']
        self._run_periodics()
        self.assertEqual(before, self._get_resource_provider_by_uuid(
            root)['generation'])

    def a_restart_of_nova_compute_knows_who_shares(self):
        self.restart_compute_service('host_a')
        self.assertEqual((5, 1), self.count_group_units())

    def each_has_a_slot_of_its_own(self):
        slots = [resource.identifier for server in self.servers
                 for resource in self.instance(server).resources]
        self.assertEqual(5, len(set(slots)))
        self._delete_server(self.servers.pop())
        self._run_periodics()
        self.restart_compute_service('host_a')

    def who_leaves_gives_the_unit_and_the_share_back(self):
        self.assertEqual((4, 2), self.count_group_units())
        self.kernel.enforced.clear()
        self._delete_server(self.servers.pop())
        self.assertEqual({0: 30}, self.kernel.enforced[-1][2]['MBMIN'])
        self._run_periodics()
        self.assertEqual((3, 2), self.count_group_units())
        for server in self.servers:
            self._delete_server(server)
        self.assertEqual(set(), self.groups())
        self._run_periodics()
        self.assertEqual((0, 3), self.count_group_units())

    def without_sharing_the_fourth_has_no_room(self):
        self.flags(group_sharing=False, group='ghsched')
        self.boot_equal(3)
        server = self.boot(self.flavor(vcpus=1, mem_bw_min=10),
                           state='ERROR')
        self.assertIn('no host has a resctrl control group left',
                      self.fault(server))

    def fill(self, **keys):
        """Guests with another policy each; no control group is left."""
        servers = []
        for priority in (1, 2, 3):
            servers += self.boot_equal(1, mem_bw_priority=priority, **keys)
        self.assertEqual((3, 0), self.count_group_units())
        return servers

    def units(self, server):
        held = self.resources(server['id'])
        return held[self.compute_rp_uuids['host_a']].get(
            names.RESCTRL_GROUP, 0)

    def where_no_group_is_left_an_equal_guest_joins(self):
        self._run_periodics()   # Of the host itself nothing is reserved now.
        first, *_others = self.filled
        flavor = self.flavor(vcpus=1, mem_bw_min=10, mem_bw_max=40,
                             mem_bw_priority=1)
        joined = self.boot(flavor)
        self.assertEqual((1, 0), (self.units(first), self.units(joined)))
        self.assertEqual(self.host_nodes(first), self.host_nodes(joined))
        self.assertEqual(*(
            desired.parse_running_domain(
                self.domain('host_a', server)).shared_group
            for server in (first, joined)))
        self._run_periodics()
        self.assertEqual((3, 0), self.count_group_units())
        # The group is there as long as one of them is.
        self._delete_server(first)
        self._run_periodics()
        self.assertEqual((2, 0), self.count_group_units())
        self._reboot_server(joined, hard=True)
        self._delete_server(joined)
        self._run_periodics()
        self.assertEqual((2, 1), self.count_group_units())

    def a_guest_that_can_not_join_is_refused_with_the_lack(self):
        first, *_others = self.filled
        keys = {'mem_bw_min': 10, 'mem_bw_max': 40, 'mem_bw_priority': 1}
        node, = self.host_nodes(first)
        # Placement refuses so much memory, the fit so many CPUs on one node.
        for much in ({'ram': 30000}, {'vcpus': 4}):
            refused = self.boot(self.flavor(**{'vcpus': 1, **much}, **keys),
                                state='ERROR')
            self.assertIn('lack the CPUs, memory', self.fault(refused))
        self.reserve(**{f'n{node}': 100})
        refused = self.boot(self.flavor(vcpus=1, **keys), state='ERROR')
        self.assertIn('one that the guest could share has 10 % of its memory '
                      'bandwidth free (ghsched:mem_bw_min)',
                      self.fault(refused))
        self.reserve(n0=100, n1=100)
        refused = self.boot(self.flavor(vcpus=1, **keys), state='ERROR')
        self.assertNotIn('control group', self.fault(refused))
        other = self.boot(self.flavor(vcpus=1, mem_bw_max=41), state='ERROR')
        self.assertTrue(self.fault(other).endswith(
            'no host has a resctrl control group left'))

    def who_comes_next_need_not_wait_for_a_report(self):
        """Placement knows the sharing of a guest's group once the guest runs.
        """
        self.reserve(n1=100)
        for priority in (1, 2):
            self.boot(self.flavor(vcpus=1, mem_bw_priority=priority,
                                  mem_bw_min=10))
        # The last control group, and two that join.
        flavor = self.flavor(vcpus=1, mem_bw_min=10)
        first, second = self.boot(flavor), self.boot(flavor)
        self.assertEqual((1, 0), (self.units(first), self.units(second)))
        self.assertEqual((3, 0), self.count_group_units())

    def units_that_are_not_needed_are_given_back_at_once(self):
        self.reserve(n1=100)
        flavor = self.flavor(vcpus=1, mem_bw_min=10)
        for left in (2, 2, 2):
            self.boot(flavor)
            self.assertEqual(left, self.count_group_units()[1])
        self.boot(self.flavor(vcpus=1, mem_bw_min=20))
        self.assertEqual((4, 1), self.count_group_units())

    def a_report_that_fails_is_no_reason_to_stop_a_guest(self):
        with fixtures.MockPatch(
                'nova.compute.resource_tracker.ResourceTracker.update_usage',
                side_effect=RuntimeError('no Placement')):
            self.boot(self.flavor(vcpus=1, mem_bw_min=10))

    def a_cap_alone_is_joined_on_its_host_node(self):
        self.flavors = [self.flavor(vcpus=1, mem_bw_max=40,
                                    mem_bw_priority=priority)
                        for priority in (1, 2, 3)]
        self.joined = [self.boot(flavor) for flavor in self.flavors]
        for server, joined in zip(self.filled, self.joined, strict=True):
            self.assertEqual(self.host_nodes(server),
                             self.host_nodes(joined))
            self.assertEqual(0, self.units(joined))
        self.boot(self.flavor(vcpus=1, mem_bw_max=41), state='ERROR')

    def a_group_that_is_gone_is_not_reported_any_more(self):
        provider = self.provider('host_a', self.host_nodes(self.filled[0])[0])
        before = self._get_provider_traits(provider)
        for server in (self.filled[0], self.joined[0]):
            self._delete_server(server)
        self._run_periodics()
        gone = set(before) - set(self._get_provider_traits(provider))
        self.assertEqual(1, len(gone))
        self.assertTrue(names.is_share_trait(gone.pop()))

    def a_group_that_went_meanwhile_is_not_joined(self):
        self.boot(self.flavors[0])      # has a control group of its own again
        self.assertEqual((3, 0), self.count_group_units())
        group = desired.parse_running_domain(
            self.domain('host_a', self.filled[1])).shared_group
        os.rmdir(os.path.join(self.kernel.path, group))
        self.boot(self.flavors[1], state='ERROR')

    def one_that_is_stopped_keeps_its_place(self):
        servers = self.boot_equal(2)
        for server, left in zip(servers, (2, 2), strict=True):
            self._stop_server(server)
            self._run_periodics()
            self.assertEqual((2, left), self.count_group_units())
        self.assertEqual(set(), self.groups())
        for server in servers:
            self._start_server(server)
        self.assertEqual(1, len(self.groups()))
        # Turned off it holds for those that start.
        self.flags(group_sharing=False, group='ghsched')
        self._run_periodics()
        self.assertEqual(1, len(self.groups()))
        self._reboot_server(servers[0], hard=True)
        self._run_periodics()
        self.assertFalse(metadata.read_policy(
            self.domain('host_a', servers[0])).shared)
        self.assertEqual((2, 1), self.count_group_units())
        self.assertEqual({0: 10}, self.kernel.enforced[-1][2]['MBMIN'])

    def live_migration_leaves_one_group_and_joins_another(self):
        self.start_host('host_b')
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']
        flavor = self.flavor(vcpus=1, mem_bw_min=10)
        servers = [self.boot(flavor, host=host)
                   for host in ('host_a', 'host_a', 'host_b')]
        self.kernel.enforced.clear()
        self.server = servers[1]
        self._live_migrate(self.server, 'completed')
        self.assertTrue(desired.parse_running_domain(
            self.domain('host_b', servers[1])).shared_group)
        self.assertEqual({10, 20}, {
            guest['MBMIN'][0] for _uuid, _vcpus, guest
            in self.kernel.enforced})


class DefaultClassTest(emptied_hosts.EmptiedHosts,
                       nova_base.GhschedTestCase):
    """Guests without a policy are held to something, too."""

    def setUp(self):
        super().setUp()
        self.flags(default_bandwidth_max=40, group='ghsched')
        self.kernel.closids = 4
        self.start_host()

    def test_default_class_holds_servers_without_a_policy(self):
        self.take_steps(
            self.a_guest_without_a_policy_is_held_when_it_starts,
            self.one_with_a_policy_is_not,
            self.it_takes_a_group_while_it_is_on,
            self.who_was_promised_nothing_runs_in_any_case,
            self.it_goes_when_it_is_turned_off)

    def offered(self):
        record = self._get_provider_inventory(
            self.compute_rp_uuids['host_a'])[names.RESCTRL_GROUP]
        return record['total'] - record['reserved']

    def a_guest_without_a_policy_is_held_when_it_starts(self):
        self.boot(self.flavor(vcpus=1))
        self.assertEqual([naming.DEFAULT], self.kernel.own_groups())
        (_uuid, vcpus, guest), *_ = self.kernel.enforced
        self.assertEqual(([0], {0: 40, 1: 40}), (vcpus, guest['MB']))

    def one_with_a_policy_is_not(self):
        server = self.boot(self.flavor(mem_bw_min=60))
        self._delete_server(server)
        self.assertEqual([], self.kernel.own_groups())

    def it_takes_a_group_while_it_is_on(self):
        self.assertEqual(2, self.offered())
        self.flags(default_bandwidth_max=100, group='ghsched')
        self._run_periodics()
        self.assertEqual(3, self.offered())

    def who_was_promised_nothing_runs_in_any_case(self):
        self.kernel.error = fs.GroupError('refused')
        server = self.boot(self.flavor(vcpus=1))
        connection = self.computes['host_a'].driver._host.get_connection()
        domain = connection.lookupByUUIDString(server['id'])
        self.assertEqual(fakelibvirt.VIR_DOMAIN_RUNNING, domain.info()[0])

    def it_goes_when_it_is_turned_off(self):
        self.boot(self.flavor(vcpus=1))
        self.flags(default_bandwidth_max=100, group='ghsched')
        self._run_periodics()
        self.assertEqual([], self.kernel.own_groups())

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

"""ghsched:numa=auto: the number of guest NUMA nodes through every move."""

from unittest import mock

import fixtures
from lxml import etree
from nova.virt.libvirt import guest

from ghsched_nova.tests.functional import emptied_hosts
from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import test_lifecycle


class AutoNodesTestCase(emptied_hosts.EmptiedHosts,
                        nova_base.GhschedTestCase):

    def setUp(self):
        super().setUp()
        self.flags(shelved_offload_time=0)
        self.started = {}
        create = guest.Guest.create.__func__

        def noting(cls, xml, host):
            self.started[etree.fromstring(xml).findtext('uuid')] = xml
            return create(cls, xml, host)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.guest.Guest.create', classmethod(noting)))
        self.useFixture(fixtures.MockPatch(
            test_lifecycle.MOVE_DISK, return_value='{}'))
        self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.driver.LibvirtDriver.snapshot'))

    def auto(self, vcpus, **kwargs):
        return self.flavor(vcpus=vcpus, nodes=0, **{'numa': 'auto', **kwargs})

    def fill(self, host, *vcpus):
        """Take CPUs of a host, each number of one of its NUMA nodes."""
        return [self.boot(self.flavor(vcpus=number), host=host)
                for number in vcpus]

    def assert_nodes(self, server, host, nodes):
        """The server's record and the XML of its start agree on the number."""
        self.assertEqual(host, self.api.get_server(server['id'])[
            'OS-EXT-SRV-ATTR:host'])
        self.assertEqual(nodes, len(self.host_nodes(server)))
        domain = etree.fromstring(self.started[server['id']])
        self.assertEqual(nodes, len(domain.findall('cpu/numa/cell')))
        self.assertEqual(nodes, len(domain.findall('numatune/memnode')))


class OneHostTest(AutoNodesTestCase):

    def setUp(self):
        super().setUp()
        self.start_host('host_a')

    def test_host_with_two_nodes_gives_each_server_as_few_as_it_can(self):
        self.take_steps(
            self.guest_that_fits_on_one_node_gets_one,
            self.guest_larger_than_a_node_gets_two_and_keeps_them,
            self.guest_with_bandwidth_gets_it_from_each_of_its_nodes,
            self.guest_that_fits_no_number_of_nodes_is_refused,
            self.reasons_of_all_numbers_are_reported,
            self.servers_of_one_request_have_the_same_number,
            self.forced_host_is_tried_with_each_number,
            self.claim_without_limits_of_scheduler_gets_the_fewest_nodes)

    def guest_that_fits_on_one_node_gets_one(self):
        self.assert_nodes(self.boot(self.auto(4)), 'host_a', 1)

    def guest_larger_than_a_node_gets_two_and_keeps_them(self):
        server = self.boot(self.auto(6))
        self.assert_nodes(server, 'host_a', 2)
        self.assertEqual(
            [3, 3], [len(cell.pcpuset) for cell
                     in self.instance(server).numa_topology.cells])
        self._reboot_server(server, hard=True)
        self.assert_nodes(server, 'host_a', 2)

    def guest_with_bandwidth_gets_it_from_each_of_its_nodes(self):
        self.assert_agreement(self.boot(self.auto(2, mem_bw_min=60)),
                              'host_a', [60])
        self.assert_agreement(self.boot(self.auto(4, mem_bw_min=30)),
                              'host_a', [30])
        self.assert_agreement(self.boot(self.auto(2, mem_bw_min=10)),
                              'host_a', [10])

    def guest_that_fits_no_number_of_nodes_is_refused(self):
        server = self.boot(self.auto(6, numa_max=1), 'ERROR')
        self.assertIn('No valid host', self.fault(server))
        # A number of nodes that does not divide the CPUs is not tried.
        self.boot(self.auto(5), 'ERROR')

    def reasons_of_all_numbers_are_reported(self):
        server = self.boot(self.auto(6, mem_bw_min=60, mem_bw_max=60),
                           'ACTIVE')
        self.assert_nodes(server, 'host_a', 2)
        self.assert_agreement(server, 'host_a', [60, 60])
        refused = self.boot(self.auto(2, mem_bw_min=60), 'ERROR')
        self.assertIn('60', self.fault(refused))

    def servers_of_one_request_have_the_same_number(self):
        self.api.post_server({'server': {
            **self._build_server(flavor_id=self.auto(4), networks='none'),
            'min_count': 2, 'max_count': 2}})
        self.wait_until(lambda: {'ACTIVE'} == {
            server['status'] for server in self.api.get_servers()})
        for server in self.api.get_servers():
            self.assert_nodes(server, 'host_a', 1)

    def forced_host_is_tried_with_each_number(self):
        server = self.boot(self.auto(6, mem_bw_min=20), az='nova:host_a')
        self.assert_nodes(server, 'host_a', 2)
        self.assert_agreement(server, 'host_a', [20, 20])

    def claim_without_limits_of_scheduler_gets_the_fewest_nodes(self):
        others = self.fill('host_a', 2, 2)
        with mock.patch(
                'ghsched_nova.features.numa_auto.nova_seams.'
                'copy_limits_with_numa_count',
                lambda limits, count: limits.obj_clone()):
            server = self.boot(self.auto(4))
        self.assert_nodes(server, 'host_a', 2)
        # A rebuild keeps the number where one node would do.
        for other in others:
            self._delete_server(other)
        self._rebuild_server(server, '70a599e0-31e7-49b7-b260-868f441e862b')
        self.assert_nodes(server, 'host_a', 2)


class SharedCpusTest(AutoNodesTestCase):
    """CPUs that guests share, on hosts without resctrl."""

    def setUp(self):
        super().setUp()
        self.flags(cpu_dedicated_set=None, cpu_shared_set='0-7',
                   group='compute')
        self.flags(cpu_allocation_ratio=1.0)
        self.flags(resctrl_path='/nowhere', group='ghsched')
        self.start_host('host_a')

    def test_host_with_shared_cpus_gives_as_few_as_it_can(self):
        self.take_steps(
            self.guest_gets_one_node_then_two,
            self.guest_larger_than_a_node_gets_two,
            self.memory_of_a_node_counts)

    def shared(self, vcpus, **kwargs):
        return self.auto(vcpus, policy='', **kwargs)

    def guest_gets_one_node_then_two(self):
        self.assert_nodes(self.boot(self.shared(4)), 'host_a', 1)
        first = self.boot(self.shared(2))
        self.assert_nodes(first, 'host_a', 1)
        self.assert_nodes(self.boot(self.shared(2)), 'host_a', 1)

    def guest_larger_than_a_node_gets_two(self):
        self.assert_nodes(self.boot(self.shared(8)), 'host_a', 2)

    def memory_of_a_node_counts(self):
        self.assert_nodes(self.boot(self.shared(2, ram=10 * 1024)),
                          'host_a', 2)


class TwoHostsTest(AutoNodesTestCase):

    def setUp(self):
        super().setUp()
        for name in ('host_a', 'host_b'):
            self.start_host(name)
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']

    def test_server_between_two_hosts_keeps_or_chooses_its_nodes(self):
        self.take_steps(self.live_migration_keeps_one_node)
        # No node of host_a has more than two CPUs left in what follows.
        self.kept = self.fill('host_a', 2, 2)
        self.take_steps(
            self.other_host_with_a_whole_node_is_preferred,
            self.live_migration_keeps_two_nodes,
            self.flavor_that_keeps_the_number,
            self.resize_chooses_again,
            self.cold_migration_and_revert_choose_again,
            self.unshelve_chooses_again)
        self.take_steps(self.evacuation_chooses_again, tidy=False)

    def other_host_with_a_whole_node_is_preferred(self):
        for _ in range(2):
            self.assert_nodes(self.boot(self.auto(4)), 'host_b', 1)
        self.assert_nodes(self.boot(self.auto(4)), 'host_a', 2)

    def live_migration_keeps_one_node(self):
        server = self.boot(self.auto(4), host='host_a')
        self.fill('host_b', 2, 2)
        with self.assertRaises(nova_base.ApiException):
            self._live_migrate(server)
        self.assert_nodes(server, 'host_a', 1)

    def live_migration_keeps_two_nodes(self):
        self.server = server = self.boot(self.auto(4), host='host_a')
        self._live_migrate(server)
        self.assertEqual(2, len(self.host_nodes(server)))

    def cold_migration_and_revert_choose_again(self):
        server = self.boot(self.auto(4), host='host_a')
        self._migrate_server(server)
        self.assert_nodes(server, 'host_b', 1)
        self._revert_resize(server)
        self.assert_nodes(server, 'host_a', 2)
        self._migrate_server(server)
        self._confirm_resize(server)
        self.assert_nodes(server, 'host_b', 1)

    def flavor_that_keeps_the_number(self):
        server = self.boot(self.auto(4, numa_keep=True), host='host_a')
        self._migrate_server(server)
        self._confirm_resize(server)
        self.assert_nodes(server, 'host_b', 2)

    def resize_chooses_again(self):
        server = self.boot(self.flavor(vcpus=2), host='host_a')
        self._resize_server(server, self.auto(8))
        self._confirm_resize(server)
        self.assert_nodes(server, 'host_b', 2)

    def evacuation_chooses_again(self):
        server = self.boot(self.auto(4, mem_bw_min=20), host='host_a')
        self.assert_agreement(server, 'host_a', [20, 20])
        self.stop_host('host_a')
        server = self._evacuate_server(server, expected_host='host_b')
        self.assert_nodes(server, 'host_b', 1)
        self.assertEqual([20], [
            share for provider, share in self.bandwidth(server['id']).items()
            if provider in (self.provider('host_b', 0),
                            self.provider('host_b', 1))])

    def unshelve_chooses_again(self):
        others = self.fill('host_b', 2, 2)
        server = self.boot(self.auto(4))
        self.assertEqual(2, len(self.host_nodes(server)))
        server = self._shelve_server(server)
        for other in others:
            self._delete_server(other)
        server = self._unshelve_server(server)
        self.assert_nodes(server, 'host_b', 1)

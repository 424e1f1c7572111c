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


"""The gradient weigher in the real scheduler, beside Nova's weighers."""

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from ghsched_nova.tests.functional import emptied_hosts
from ghsched_nova.tests.functional import nova_base
from ghsched_placement.features.packing import gradient

WEIGHER = ('ghsched_nova.features.packing.gradient_weigher.'
           'GhschedGradientWeigher')
PRODUCT = fakelibvirt.VF_PROD_ID


class FragmentationTestCase(emptied_hosts.EmptiedHosts,
                            nova_base.GhschedTestCase):
    """Hosts of two nodes, with four CPUs and 8 GiB each."""

    #: More than Nova's weighers of RAM, CPUs and disk add up to, which would
    #: rather have an empty host.
    MULTIPLIER = 5.0
    PACK = False

    def setUp(self):
        self.flags(weight_classes=['nova.scheduler.weights.all_weighers',
                                   WEIGHER], group='filter_scheduler')
        self.flags(gradient_weight_multiplier=self.MULTIPLIER,
                   group='ghsched')
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.packing.fragments.MIX', gradient.Mix()))
        self.flags(packing_host_numa_cells_allocation_strategy=self.PACK,
                   group='compute')
        super().setUp()

    def start(self, name, pfs=0):
        """A host; its NIC, if any, is on node 0."""
        info = fakelibvirt.HostInfo(
            cpu_nodes=2, cpu_sockets=1, cpu_cores=4, cpu_threads=1,
            kB_mem=16 * 1024 * 1024)
        devices = fakelibvirt.HostPCIDevicesInfo(
            num_pci=0, num_pfs=pfs, num_vfs=4 * pfs, numa_node=0)
        self.start_compute(name, host_info=info, pci_info=devices)

    def host(self, server):
        return self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']

    def learn(self, flavor):
        """Make the scheduler expect guests of a flavor."""
        self._delete_server(self.boot(flavor))


class WholeNodesTest(FragmentationTestCase):

    def test_servers_leave_whole_nodes_to_big_ones(self):
        for name in ('host_a', 'host_b'):
            self.start(name)
        self.learn(self.flavor(vcpus=8, nodes=2))
        self.take_steps(
            self.small_guests_share_a_host_and_a_big_one_has_the_other,
            self.so_it_is_with_bandwidth)

    def small_then_big(self, flavor):
        """The small guests' hosts, and where a guest of two nodes goes."""
        first = self.host(self.boot(flavor))
        second = self.host(self.boot(flavor))
        big = self.boot(self.flavor(vcpus=8, nodes=2))
        return first, second, self.host(big)

    def small_guests_share_a_host_and_a_big_one_has_the_other(self):
        first, second, big = self.small_then_big(self.flavor())
        self.assertEqual(first, second)
        self.assertNotEqual(first, big)

    def so_it_is_with_bandwidth(self):
        first, second, big = self.small_then_big(self.flavor(mem_bw_min=10))
        self.assertEqual(first, second)
        self.assertNotEqual(first, big)


class PackedNodesTest(FragmentationTestCase):
    """Nova's own option makes the claim fill nodes that are in use."""

    PACK = True

    def test_a_used_node_is_filled_before_any_other_is_broken(self):
        for name in ('host_a', 'host_b'):
            self.start(name)
        self.learn(self.flavor(vcpus=8, nodes=2))
        first = self.boot(self.flavor())
        second = self.boot(self.flavor())
        self.assertEqual(self.host(first), self.host(second))
        self.assertEqual(self.host_nodes(first), self.host_nodes(second))


class NovasWeighersTest(FragmentationTestCase):
    """Multipliers of weighers, as the documentation describes them."""

    MULTIPLIER = 0.0

    def test_multiplier_of_an_aggregate_wins_over_the_option(self):
        for name in ('host_a', 'host_b'):
            self.start(name)
        self.take_steps(
            self.without_the_weigher_small_guests_break_both_hosts,
            self.an_aggregate_has_a_multiplier_of_its_own)

    def without_the_weigher_small_guests_break_both_hosts(self):
        hosts = {self.host(self.boot(self.flavor())) for _ in range(2)}
        self.assertEqual({'host_a', 'host_b'}, hosts)
        self.boot(self.flavor(vcpus=8, nodes=2), state='ERROR')

    def an_aggregate_has_a_multiplier_of_its_own(self):
        aggregate = self.api.post_aggregate(
            {'aggregate': {'name': 'numa'}})['id']
        self.api.post_aggregate_action(aggregate, {'set_metadata': {
            'metadata': {'gradient_weight_multiplier': '5'}}})
        for name in ('host_a', 'host_b'):
            self.api.post_aggregate_action(
                aggregate, {'add_host': {'host': name}})
        self.learn(self.flavor(vcpus=8, nodes=2))
        hosts = {self.host(self.boot(self.flavor())) for _ in range(2)}
        self.assertEqual(1, len(hosts))


class DevicesTest(FragmentationTestCase):

    def setUp(self):
        self.track_vfs(vf=PRODUCT)
        # Nova's own weigher of devices keeps guests off such hosts too.
        self.flags(pci_weight_multiplier=0.0, group='filter_scheduler')
        super().setUp()
        self.start('host_a', pfs=1)
        self.start('host_b')
        self.learn(self.flavor(
            vcpus=4, extra={'pci_passthrough:alias': 'vf:1'}))

    def test_nics_are_left_to_servers_with_vfs(self):
        self.take_steps(
            self.guests_without_vfs_leave_the_node_of_the_nic,
            self.a_guest_with_vfs_finds_them_and_cpus_near,
            self.guests_with_vfs_share_a_node_and_leave_the_other_nic)

    def guests_without_vfs_leave_the_node_of_the_nic(self):
        for _ in range(3):
            server = self.boot(self.flavor(vcpus=4))
            self.assertNotEqual(('host_a', [0]),
                                (self.host(server), self.host_nodes(server)))

    def a_guest_with_vfs_finds_them_and_cpus_near(self):
        with_vf = self.flavor(extra={'pci_passthrough:alias': 'vf:1'})
        self.boot(self.flavor())
        server = self.boot(with_vf)
        self.assertEqual(('host_a', [0]),
                         (self.host(server), self.host_nodes(server)))

    def guests_with_vfs_share_a_node_and_leave_the_other_nic(self):
        self.start('host_c', pfs=1)
        for vfs in ({'extra': {'pci_passthrough:alias': 'vf:1'}},
                    {'vfs': 'vf:1'}):
            servers = [self.boot(self.flavor(**vfs)) for _ in range(2)]
            self.assertEqual(1, len({self.host(one) for one in servers}))
            self.assertEqual([[0], [0]],
                             [self.host_nodes(one) for one in servers])
            for server in servers:
                self._delete_server(server)

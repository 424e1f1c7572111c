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

"""States of hosts, between two instances of a request."""

import types
from unittest import mock

from nova import objects
from nova.objects import request_spec
from nova.pci import stats
from oslo_utils.fixture import uuidsentinel as uuids

from ghsched_nova.nova_seams import scheduler
from ghsched_nova.scheduler import filters
from ghsched_nova.scheduler import host_view
from ghsched_nova.scheduler import request_filter
from ghsched_nova.scheduler import request_state
from ghsched_nova.tests.fixtures import states
from ghsched_placement.flavor import keys
from ghsched_placement.providers import names
from ghsched_placement.tests import base

REQUEST = '6f70656e-7374-4163-8b3f-000000000001'


def make_host(*free):
    """Return a host with one NUMA node and PFs with numbers of free VFs."""
    state = host_view.GhschedHostState('host_a', 'host_a', 'cell')
    state.numa_topology = objects.NUMATopology(cells=[states.cell(
        0, pages=[objects.NUMAPagesTopology(size_kb=4, total=1024 * 256,
                                            used=0, reserved=0)])])
    state.pci_stats = stats.PciDeviceStats(state.numa_topology)
    state.pci_stats.pools = [
        states.pool(0, count, address=f'0000:8{number}:00.0',
                    rp_uuid=getattr(uuids, f'pf{number}'))
        for number, count in enumerate(free)]
    state.free_ram_mb = state.free_disk_mb = 4096
    state.vcpus_used = 0
    return state


def make_request(requester, *suffixes):
    """Return a request for two VFs, with suffixes of its request groups.

    Placement has found the second PF for each group.
    """
    spec = states.spec(vfs=2)
    spec.pci_requests.requests[0].request_id = REQUEST
    spec.pci_requests.requests[0].requester_id = requester
    spec.requested_resources = [
        request_spec.RequestGroup(requester_id=suffix,
                                  provider_uuids=[uuids.pf1])
        for suffix in suffixes]
    return spec


class ConsumeTest(base.TestCase):

    def consume(self, state, spec):
        """Return the VFs left of each PF."""
        state.consume_from_request(spec)
        return [pool['count'] for pool in state.pci_stats.pools]

    def test_group_of_two_vfs_takes_both_of_its_pf(self):
        spec = make_request('ghsched-vfs-node0', REQUEST + '-0')
        self.assertEqual([4, 2], self.consume(make_host(4, 4), spec))
        self.assertEqual([REQUEST + '-0'],
                         list(spec.get_request_group_mapping()))

    def test_view_takes_the_vfs_of_a_group_as_well(self):
        view = host_view.HostStateView(make_host(4, 4))
        self.assertEqual([4, 2], self.consume(
            view, make_request('ghsched-vfs-node0', REQUEST + '-0')))
        self.assertTrue(view.consumed)

    def test_request_has_the_host_nodes_of_the_guest_afterwards(self):
        spec = make_request('ghsched-vfs-node0', REQUEST + '-0')
        spec.numa_topology.cells[0].id = 5
        state = make_host(4, 4)
        self.consume(state, spec)
        self.assertEqual([0], [cell.id for cell in spec.numa_topology.cells])
        self.assertEqual(2, len(state.numa_topology.cells[0].pinned_cpus))

    def test_other_requests_are_consumed_as_nova_does(self):
        spec = make_request(None, REQUEST + '-0', REQUEST + '-1')
        self.assertEqual([4, 2], self.consume(make_host(4, 4), spec))


class LastGroupTest(base.TestCase):
    """Servers of one request on a host that has few control groups."""

    NODE = names.make_numa_provider_uuid(uuids.host_a, 0)

    def count_servers(self, groups, key, **node_amounts):
        """Return how many servers the filter lets pass, one after the other.

        :param key: key of the flavor.
        :param node_amounts: amounts that Placement counts on the host node.
        """
        state, spec = make_host(), states.spec(cpus=1, memory=16)
        state.uuid, state.stats, state.limits = uuids.host_a, {}, {}
        state.cpu_allocation_ratio = state.ram_allocation_ratio = 1.0
        state.numa_topology.cells[0].network_metadata = (
            objects.NetworkMetadata(physnets={names.make_node_physnet(0)},
                                    tunneled=False))
        spec.flavor.extra_specs = {'hw:numa_nodes': '1', key: '5'}
        spec.image = objects.ImageMeta(properties=objects.ImageMetaProps())
        spec.instance_uuid, spec.scheduler_hints = uuids.server, {}
        taken = {uuids.host_a: {names.RESCTRL_GROUP: 1},
                 self.NODE: node_amounts}
        state.allocation_candidates = [{
            'mappings': {'': [uuids.host_a],
                         names.make_bandwidth_suffix(0): [self.NODE]},
            'allocations': {uuid: {'resources': amounts}
                            for uuid, amounts in taken.items()}}]
        seen = request_state.RequestState()
        seen.summaries = {
            uuids.host_a: {'resources': {names.RESCTRL_GROUP: {
                'capacity': groups, 'used': 0}}},
            self.NODE: {'resources': {names.MEM_BW_PCT: {
                'capacity': 100, 'used': 0}}}}
        request_filter.set_provider_summaries(spec, seen.summaries)
        hosts, passed = [state], 0
        while hosts := list(filters.GhschedNUMATopologyFilter().filter_all(
                hosts, spec)):
            seen.subtract_claim(hosts[0].allocation_candidates[0][
                'allocations'])
            hosts[0].consume_from_request(spec.obj_clone())
            passed += 1
        return passed

    def test_no_server_is_promised_a_group_that_an_earlier_one_took(self):
        for groups in (1, 3):
            self.assertEqual(groups, self.count_servers(
                groups, keys.MEM_BW_MIN.extra_spec, CUSTOM_MEM_BW_PCT=5))
            # No filter of ours chooses its nodes.
            self.assertEqual(groups, self.count_servers(
                groups, keys.MEM_BW_MAX.extra_spec))

    def filter_without_groups(self, servers):
        """Return the hosts that pass the filter, of one that has no groups.

        :param servers: servers of the request.
        """
        state, spec = make_host(), states.spec(cpus=1, memory=16)
        state.limits = {}
        state.cpu_allocation_ratio = state.ram_allocation_ratio = 1.0
        spec.flavor.extra_specs = {'hw:numa_nodes': '1',
                                   keys.MEM_BW_MAX.extra_spec: '5'}
        spec.image = objects.ImageMeta(properties=objects.ImageMetaProps())
        spec.instance_uuid, spec.scheduler_hints = uuids.server, {}
        spec.num_instances = servers
        state.allocation_candidates = [{'mappings': {}, 'allocations': {
            uuids.host_a: {'resources': {names.RESCTRL_GROUP: 1}}}}]
        request_filter.set_provider_summaries(spec, {uuids.host_a: {
            'resources': {names.RESCTRL_GROUP: {'capacity': 1, 'used': 1}}}})
        with mock.patch.object(filters, '_log_refusals_once') as logged:
            passed = list(filters.GhschedNUMATopologyFilter().filter_all(
                [state], spec))
        _spec, refused, _verb = logged.call_args[0]
        return len(passed), refused.list_reasons_by_frequency()

    def test_a_host_that_another_server_of_the_request_filled_has_a_reason(
            self):
        self.assertEqual((0, [filters.TAKEN]), self.filter_without_groups(2))

    def test_the_only_server_of_a_request_has_all_of_placements_hosts(self):
        with mock.patch.object(filters, '_yield_free_candidates') as looked:
            self.assertEqual((1, []), self.filter_without_groups(1))
        self.assertEqual(0, looked.call_count)


class HostStateClassTest(base.TestCase):

    def test_host_manager_makes_states_of_a_class(self):
        manager = types.SimpleNamespace()
        scheduler.set_host_state_class(manager, host_view.GhschedHostState)
        state = manager.host_state_cls('a', 'b', uuids.cell, compute=None)
        self.assertIsInstance(state, host_view.GhschedHostState)
        self.assertEqual(('a', 'b', uuids.cell),
                         (state.host, state.nodename, state.cell_uuid))


class ThreadPolicyTest(base.TestCase):

    def satisfies(self, siblings, policy):
        topology = objects.NUMATopology(cells=[states.cell(0)])
        topology.cells[0].siblings = siblings
        return scheduler.satisfies_cpu_thread_policy(
            topology, states.spec(thread_policy=policy))

    def test_required_threads_need_siblings_on_the_host(self):
        for siblings, policy, expected in (
                ([{0}, {1}], 'require', False),
                ([{0, 1}, {2, 3}], 'require', True),
                ([{0}, {1}], 'prefer', True),
                ([{0}, {1}], None, True)):
            self.assertEqual(expected, self.satisfies(siblings, policy),
                             (siblings, policy))

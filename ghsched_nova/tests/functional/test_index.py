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

"""Requests that use the index of hosts, with Nova's real services."""

import dataclasses
import functools
import types
from unittest import mock

import fixtures
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.scheduler.client import report

from ghsched_nova.features.index import index_feed
from ghsched_nova.features.index import indexed
from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import test_vfs
from ghsched_nova.virt.driver import GhschedLibvirtDriver
from ghsched_placement.features.index import headroom
from ghsched_placement.features.load import load


class IndexTestCase(nova_base.GhschedTestCase):
    """Hosts of two NUMA nodes, and a scheduler that looks at each request."""

    HOSTS = 0    # from which number on the index is used

    def setUp(self):
        self.useFixture(fixtures.MonkeyPatch(
            f'{index_feed.__name__}.REFRESH', 0.0))
        self.useFixture(fixtures.MonkeyPatch(
            f'{indexed.__name__}.MIN_HOSTS', self.HOSTS))
        super().setUp()

    def _setup_scheduler_service(self):
        self.flags(scheduler_index=True, group='ghsched')
        return super()._setup_scheduler_service()

    def ways(self):
        """Return the numbers of requests that used the index, fell back, and
        were not eligible.
        """
        counts = self.scheduler.manager._indexed._counts
        return counts['hits'], counts['fallbacks'], counts['others']

    def tidy_up(self):
        """Leave free hosts and no requests."""
        for server in self.api.get_servers():
            self._delete_server(server)
        self.reserve()
        self.scheduler.manager._indexed._counts.update(
            hits=0, fallbacks=0, others=0)

    def host(self, server):
        return self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']

    def boot_that_fails_once(self, share=20, **flavor):
        """Return a server, and the two hosts on which it was started."""
        spawn, tried = GhschedLibvirtDriver.spawn, []

        def fail_once(driver, *args, **kwargs):
            tried.append(driver._host.get_hostname())
            if len(tried) == 1:
                raise exception.ComputeResourcesUnavailable(reason='a test')
            return spawn(driver, *args, **kwargs)
        self.use_in_step(fixtures.MonkeyPatch(
            'ghsched_nova.virt.driver.GhschedLibvirtDriver.spawn',
            fail_once))
        server = self.boot(self.flavor(mem_bw_min=share, **flavor))
        self.assertEqual(2, len(set(tried)))
        self.assertEqual(tried[1], self.host(server))
        return server, tried

    def record_queries(self):
        """Record queries to Placement for allocation candidates."""
        self.queries = []
        get = report.SchedulerReportClient.get

        def count(client, url, *args, **kwargs):
            if url.startswith('/allocation_candidates'):
                self.queries.append(url)
            return get(client, url, *args, **kwargs)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.scheduler.client.report.SchedulerReportClient.get', count))


class WayTest(IndexTestCase):

    def test_index_answers_what_it_can_and_never_refuses(self):
        self.start_host()
        self.take_steps(
            self.a_guest_with_bandwidth_and_one_without,
            self.guest_with_auto_nodes_is_found_by_the_index,
            self.guest_too_large_for_a_node_gets_two_by_the_index,
            self.a_refusal_is_that_of_the_whole_search,
            self.hosts_unknown_to_the_index_are_found,
            self.an_error_of_the_index_is_no_refusal,
            self.request_that_fails_after_the_claim_holds_nothing,
            self.several_servers_in_one_request_are_by_the_index,
            self.too_many_servers_in_one_request_hold_nothing,
            self.members_of_a_server_group_are_by_the_index,
            self.a_forced_host_is_asked_for_as_before)

    def a_guest_with_bandwidth_and_one_without(self):
        server = self.boot(self.flavor(mem_bw_min=60))
        self.assert_agreement(server, 'host_a', [60])
        self.boot(self.flavor())
        self.assertEqual((2, 0, 0), self.ways())

    def test_a_guest_without_numa_nodes(self):
        self.flags(cpu_dedicated_set=None, cpu_shared_set='0-7',
                   group='compute')
        self.start_host()
        self.boot(self.flavor(nodes=0, policy=None))
        self.assertEqual((1, 0, 0), self.ways())

    def guest_with_auto_nodes_is_found_by_the_index(self):
        self.boot(self.flavor(nodes=0, vcpus=4, numa='auto'))
        self.assertEqual((1, 0, 0), self.ways())
        server = self.boot(self.flavor(nodes=0, vcpus=2, numa='auto',
                                       mem_bw_min=30))
        self.assert_agreement(server, 'host_a', [30])
        self.assertEqual((2, 0, 0), self.ways())

    def guest_too_large_for_a_node_gets_two_by_the_index(self):
        server = self.boot(self.flavor(nodes=0, vcpus=6, numa='auto'))
        self.assertEqual(2, len(self.host_nodes(server)))
        # The index tries both counts before any search of all hosts.
        self.assertEqual((1, 0, 0), self.ways())

    def a_refusal_is_that_of_the_whole_search(self):
        self.reserve(n0=60, n1=60)
        server = self.boot(self.flavor(mem_bw_min=60), state='ERROR')
        self.assertIn('60 % of its memory bandwidth', self.fault(server))
        self.assertEqual((0, 1, 0), self.ways())

    def hosts_unknown_to_the_index_are_found(self):
        self.boot(self.flavor())
        index = self.scheduler.manager._indexed.index
        self.use_in_step(fixtures.MockPatchObject(
            index, 'propose_hosts', return_value=[]))
        server = self.boot(self.flavor(mem_bw_min=60))
        self.assert_agreement(server, 'host_a', [60])
        self.assertEqual(1, self.ways()[1])

    def an_error_of_the_index_is_no_refusal(self):
        index = self.scheduler.manager._indexed.index
        self.use_in_step(fixtures.MockPatchObject(
            index, 'propose_hosts', side_effect=ValueError))
        self.boot(self.flavor(mem_bw_min=60))
        self.assertEqual((0, 1, 0), self.ways())

    def request_that_fails_after_the_claim_holds_nothing(self):
        for target, hits in (
                ('nova.scheduler.manager.SchedulerManager.'
                 '_consume_selected_host', 0),
                ('ghsched_nova.features.index.host_index.Index.add_claim', 1)):
            with mock.patch(target, side_effect=ValueError):
                server = self.boot(self.flavor(mem_bw_min=20),
                                   state='ACTIVE' if hits else 'ERROR')
            self.assertEqual(
                [20] * hits, list(self.bandwidth(server['id']).values()))
            self.assertEqual(hits, self.ways()[0])

    def boot_several(self, count, **hints):
        """Return the servers of one request, once none is being built."""
        body = self._build_server(flavor_id=self.flavor(mem_bw_min=60),
                                  networks='none')
        self.api.post_server({
            'server': {**body, 'min_count': count, 'max_count': count},
            'os:scheduler_hints': hints})
        return [self._wait_for_server_parameter(server, {
            'OS-EXT-STS:task_state': None}) for server
            in self.api.get_servers()]

    def several_servers_in_one_request_are_by_the_index(self):
        servers = self.boot_several(2)
        for server in servers:
            self.assert_agreement(server, 'host_a', [60])
        self.assertEqual([[0], [1]], sorted(map(self.host_nodes, servers)))
        self.assertEqual((1, 0, 0), self.ways())

    def too_many_servers_in_one_request_hold_nothing(self):
        for server in self.boot_several(3):
            self.assertEqual(('ERROR', {}), (
                server['status'], self.bandwidth(server['id'])))
        self.assertEqual((0, 1, 0), self.ways())

    def a_forced_host_is_asked_for_as_before(self):
        self.start_host('host_b')
        # No filter chooses: the claim takes the first node.
        self.reserve(n1=90)
        server = self.boot(self.flavor(mem_bw_min=30), az='nova:host_b')
        self.assertEqual(('host_b', (0, 0, 1)),
                         (self.host(server), self.ways()))

    def members_of_a_server_group_are_by_the_index(self):
        group = self.api.post_server_groups(
            {'name': 'g', 'policy': 'affinity'})
        for _number in range(2):
            self.boot_with_hint(group['id'])
        self.assertEqual((2, 0, 0), self.ways())
        group = self.api.post_server_groups(
            {'name': 'h', 'policy': 'anti-affinity'})
        self.boot_with_hint(group['id'])
        self.boot_with_hint(group['id'], 'ERROR')
        self.assertEqual((3, 1, 0), self.ways())

    def boot_with_hint(self, group, state='ACTIVE'):
        body = self._build_server(flavor_id=self.flavor(mem_bw_min=30),
                                  networks='none')
        server = self.api.post_server({
            'server': body, 'os:scheduler_hints': {'group': group}})
        return self._wait_for_state_change(server, state)


class QueriesTest(IndexTestCase):
    """Queries to Placement for allocation candidates."""

    def setUp(self):
        super().setUp()
        for name in ('host_a', 'host_b'):
            self.start_host(name)
        for _number in range(2):
            # The second report has the traits of the first.
            self.reserve()
        self.record_queries()

    def test_one_query_finds_hosts_that_are_as_reported(self):
        self.take_steps(
            self.reported_shape_is_that_of_the_provider_in_placement,
            self.one_query_places_a_guest_that_has_an_alternate,
            self.a_trait_that_a_host_has_lost_is_noticed_with_its_report)

    def reported_shape_is_that_of_the_provider_in_placement(self):
        for host in ('host_a', 'host_b'):
            node = objects.ComputeNode.get_first_node_by_host_for_old_compat(
                nova_context.get_admin_context(), host)
            uuid = self.compute_rp_uuids[host]
            traits, inventories = (
                self.placement.get(f'/resource_providers/{uuid}/{what}',
                                   version='1.36').body[what]
                for what in ('traits', 'inventories'))
            self.assertEqual(headroom.hash_provider(traits, inventories),
                             headroom.parse_headroom_stats(node.stats).shape)

    def one_query_places_a_guest_that_has_an_alternate(self):
        server, tried = self.boot_that_fails_once(60)
        # nova-conductor claims the alternate without another search.
        self.assertEqual(({'host_a', 'host_b'}, 1, (1, 0, 0)),
                         (set(tried), len(self.queries), self.ways()))
        self.assert_agreement(server, tried[1], [60])
        # An equal guest needs none: its candidate is derived, too.
        self._delete_server(server)
        server = self.boot(self.flavor(mem_bw_min=60))
        self.assert_agreement(server, self.host(server), [60])
        self.assertEqual(1, len(self.queries))

    def a_trait_that_a_host_has_lost_is_noticed_with_its_report(self):
        for host in ('host_a', 'host_b'):
            self.set_traits(host, add={'CUSTOM_FAST'})
        for _number in range(2):
            self.reserve()
        flavor = self.flavor(mem_bw_min=20,
                             extra={'trait:CUSTOM_FAST': 'required'})
        self.set_traits('host_b', remove={'CUSTOM_FAST'})
        for _number in range(2):
            self.reserve()
        for _number in range(3):
            self.assertEqual('host_a', self.host(self.boot(flavor)))

    def set_traits(self, host, add=(), remove=()):
        """Change the traits of a host in Placement, as an admin does."""
        for trait in add:
            self.placement.put(f'/traits/{trait}', {}, version='1.36')
        url = f'/resource_providers/{self.compute_rp_uuids[host]}/traits'
        known = self.placement.get(url, version='1.36').body
        self.placement.put(url, {
            'traits': sorted({*known['traits'], *add} - {*remove}),
            'resource_provider_generation': known[
                'resource_provider_generation']}, version='1.36')


class VfQueriesTest(IndexTestCase, test_vfs.MovesTestCase):
    """Queries to Placement for guests with VFs."""

    def setUp(self):
        super().setUp()
        self.start_two()
        for _number in range(2):
            self.reserve()
        self.record_queries()

    def test_index_places_guests_with_vfs(self):
        self.take_steps(
            self.one_query_places_a_guest_with_vfs_that_has_an_alternate,
            self.guests_with_vfs_fill_two_hosts_by_the_index)

    def one_query_places_a_guest_with_vfs_that_has_an_alternate(self):
        server, tried = self.boot_that_fails_once(
            nodes=2, vfs='nic:4', vfs_locality='node')
        self.assertEqual(({'host_a', 'host_b'}, 1, (1, 0, 0)),
                         (set(tried), len(self.queries), self.ways()))
        self.assert_placed(server, tried[1])

    def guests_with_vfs_fill_two_hosts_by_the_index(self):
        servers = [self.boot(self.big()) for _number in range(4)]
        self.assertEqual((4, 0, 0), self.ways())
        hosts = [self.host(server) for server in servers]
        self.assertEqual({'host_a': 2, 'host_b': 2},
                         {host: hosts.count(host) for host in hosts})
        for server, host in zip(servers, hosts, strict=True):
            self.assertEqual(self.shared(host), self.allocated(server))


class SmallCloudTest(IndexTestCase):

    HOSTS = 2

    def test_the_whole_of_it_is_searched(self):
        self.start_host('host_a')
        self.boot(self.flavor(mem_bw_min=60))
        self.assertEqual((0, 0, 1), self.ways())
        self.start_host('host_b')
        self.boot(self.flavor(mem_bw_min=60))
        self.assertEqual((1, 0, 1), self.ways())


class PlacesTest(IndexTestCase):
    """Conditions of requests that narrow the choice of hosts."""

    def setUp(self):
        super().setUp()
        for name in ('host_a', 'host_b'):
            self.start_host(name)

    def aggregate(self, host, zone=None, metadata=None):
        body = {'aggregate': {'name': f'{host} {zone} {metadata}'}}
        if zone:
            body['aggregate']['availability_zone'] = zone
        found = self.admin_api.post_aggregate(body)
        self.admin_api.add_host_to_aggregate(found['id'], host)
        if metadata:
            self.api.api_post(f'/os-aggregates/{found["id"]}/action', {
                'set_metadata': {'metadata': metadata}})
        return found

    def test_aggregates_are_heeded_by_the_index(self):
        self.take_steps(
            self.an_isolated_aggregate,
            self.an_aggregate_of_a_project,
            self.an_availability_zone)

    def an_availability_zone(self):
        self.aggregate('host_b', zone='far')
        server = self.boot(self.flavor(mem_bw_min=30), az='far')
        self.assertEqual(('host_b', (1, 0, 0)),
                         (self.host(server), self.ways()))

    def an_isolated_aggregate(self):
        self.flags(enable_isolated_aggregate_filtering=True,
                   group='scheduler')
        self.aggregate('host_a', metadata={
            'trait:HW_CPU_X86_VMX': 'required'})
        for _number in range(3):
            server = self.boot(self.flavor(mem_bw_min=20))
            self.assertEqual('host_b', self.host(server))
        self.assertEqual((3, 0, 0), self.ways())

    def an_aggregate_of_a_project(self):
        """Asked of Placement as ``member_of``."""
        self.flags(limit_tenants_to_placement_aggregate=True,
                   group='scheduler')
        self.aggregate('host_b', metadata={
            'filter_tenant_id': self.api.project_id})
        for _number in range(3):
            server = self.boot(self.flavor(mem_bw_min=20))
            self.assertEqual('host_b', self.host(server))
        self.assertEqual((3, 0, 0), self.ways())

    def test_states_of_hosts_are_heeded_by_the_index(self):
        self.take_steps(
            self.a_host_that_is_disabled,
            self.a_host_that_fails_to_start_a_guest_is_not_tried_again,
            self.a_resize_is_by_the_index,
            self.a_host_that_is_down_and_evacuated)

    def a_host_that_fails_to_start_a_guest_is_not_tried_again(self):
        self.boot_that_fails_once()
        # The alternate takes it, without another search.
        self.assertEqual((1, 0, 0), self.ways())

    def a_resize_is_by_the_index(self):
        server = self.boot(self.flavor(mem_bw_min=20), host='host_a')
        before = self.ways()[0]
        self.use_in_step(fixtures.MockPatch(
            'nova.virt.libvirt.driver.LibvirtDriver.'
            'migrate_disk_and_power_off', return_value='{}'))
        self._resize_server(server, self.flavor(mem_bw_min=40))
        self.assertEqual((before + 1, 'host_b'),
                         (self.ways()[0], self.host(server)))
        self._confirm_resize(server)

    def a_host_that_is_disabled(self):
        service = self.admin_api.get_services(
            host='host_a', binary='nova-compute')[0]
        self.admin_api.put_service(service['id'], {'status': 'disabled'})
        for _number in range(3):
            server = self.boot(self.flavor(mem_bw_min=20))
            self.assertEqual('host_b', self.host(server))
        self.assertEqual((3, 0, 0), self.ways())
        self.admin_api.put_service(service['id'], {'status': 'enabled'})

    def a_host_that_is_down_and_evacuated(self):
        server = self.boot(self.flavor(mem_bw_min=20), host='host_a')
        self.computes['host_a'].stop()
        service = self.admin_api.get_services(
            host='host_a', binary='nova-compute')[0]
        self.admin_api.put_service(service['id'], {'forced_down': True})
        before = self.ways()[0]
        for _number in range(3):
            other = self.boot(self.flavor(mem_bw_min=20))
            self.assertEqual('host_b', self.host(other))
        self.assertEqual(before + 3, self.ways()[0])
        self.api.post_server_action(server['id'], {'evacuate': {}})
        self._wait_for_server_parameter(
            server, {'OS-EXT-SRV-ATTR:host': 'host_b', 'status': 'SHUTOFF'})
        self.assertEqual(before + 4, self.ways()[0])


class CellsTest(IndexTestCase):
    """Hosts in two cells."""

    NUMBER_OF_CELLS = 2

    def setUp(self):
        super().setUp()
        for number, name in enumerate(('host_a', 'host_b'), 1):
            with mock.patch.object(
                    self, 'start_compute', functools.partial(
                        self.start_compute, cell_name=f'cell{number}')):
                self.start_host(name)

    def test_hosts_of_all_cells_are_in_the_index(self):
        found = {self.host(self.boot(self.flavor(vcpus=4, nodes=2,
                                                 mem_bw_min=60)))
                 for _number in range(2)}
        self.assertEqual({'host_a', 'host_b'}, found)
        self.assertEqual((2, 0, 0), self.ways())
        cells = {view.row.cell for view in
                 self.scheduler.manager._indexed.index.list_views()}
        self.assertEqual(2, len(cells))


class ReportTest(IndexTestCase):

    def test_report_has_what_is_left_and_is_written_when_it_changes(self):
        self.start_host()
        self.take_steps(
            self.remaining_amounts_are_in_the_stats,
            self.unchanged_report_is_not_written_again)

    def remaining_amounts_are_in_the_stats(self):
        self.boot(self.flavor(mem_bw_min=60))
        self.reserve(n0=10)
        self.reserve(n0=10)
        node = objects.ComputeNode.get_first_node_by_host_for_old_compat(
            nova_context.get_admin_context(), 'host_a')
        left = headroom.parse_headroom_stats(node.stats)
        self.assertEqual((1, {0: 30, 1: 100}), (left.guests, left.bandwidth))

    def unchanged_report_is_not_written_again(self):
        measured = load.HostLoad(1e9, 60.,
                                 (load.HostNodeLoad(0, cpu_load=.5),))
        driver = self.computes['host_a'].manager.driver
        # Nova 34 reports the text of uptime, with the seconds of the clock.
        self.patch(driver, 'get_host_uptime', lambda: 'up 1 day')
        loads = next(part for feature, part in driver._hooks._hooks
                     if feature.name == 'load')
        self.patch(loads, '_meter', types.SimpleNamespace(
            load=measured, measure_host_load=lambda *_args: ()))
        for _time in range(2):
            self.reserve()
        with mock.patch.object(objects.ComputeNode, 'save') as save:
            for later, busy in ((60, .52), (80, .48)):
                loads._meter.load = dataclasses.replace(
                    measured, time=1e9 + later,
                    nodes=(load.HostNodeLoad(0, cpu_load=busy),))
                self.reserve()
            self.assertEqual(0, save.call_count)
            loads._meter.load = dataclasses.replace(
                measured, time=1e9 + 120)
            self.reserve()
            self.assertEqual(1, save.call_count)

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

"""Boot: Placement's choice of host NUMA nodes is what the guest gets."""

import inspect

import fixtures
from nova.pci import request as pci_request
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt
from nova import utils
from oslo_utils.fixture import uuidsentinel

from ghsched_nova.tests.functional import nova_base
from ghsched_placement.providers import names


class StockFilterTest(nova_base.GhschedTestCase):
    """Scheduling without the filter of ghsched: the gap that this project
    closes.
    """

    FILTER_NAME = 'NUMATopologyFilter'

    def test_a_claim_on_another_node_than_the_allocation_never_starts(self):
        self.start_host()
        self.reserve(n0=60)
        server = self.boot(self.flavor(mem_bw_min=60), state='ERROR')
        self.assertEqual([], self.kernel.enforced)
        self.assertEqual({}, self.bandwidth(server['id']))


class TopologyTest(nova_base.GhschedTestCase):
    """Guest NUMA topologies of flavors with bandwidth keys, which an image
    cannot extend.
    """

    IMAGE = '155d900f-4e14-4e4c-a73d-069cbf4541e6'
    REASON = ('ghsched:mem_bw_min: needs a guest NUMA topology; set '
              'hw:numa_nodes or ghsched:numa in the flavor')

    def setUp(self):
        super().setUp()
        self.start_host()
        # Pinned CPUs alone make a guest of one NUMA node.
        self.unsaid = self.unchecked_flavor(nodes=0, mem_bw_min=30)

        self.image = self.glance.create(None, {
            **self.glance.show(None, self.IMAGE), 'id': uuidsentinel.image,
            'properties': {'hw_numa_nodes': '2'}})['id']

    def test_bandwidth_needs_guest_numa_nodes_of_the_flavor(self):
        self.take_steps(
            self.the_api_refuses_a_boot_and_a_resize,
            self.an_image_cannot_add_nodes_to_those_of_the_flavor,
            self.the_scheduler_refuses_what_another_api_lets_through)

    def the_api_refuses_a_boot_and_a_resize(self):
        plain = self.boot(self.flavor())
        for refused in (
                lambda: self.boot(self.unsaid),
                lambda: self.boot(self.unsaid, image_uuid=self.image),
                lambda: self._resize_server(plain, self.unsaid)):
            error = self.assertRaises(nova_base.ApiException, refused)
            self.assertEqual(400, error.response.status_code)
            self.assertIn(self.REASON, error.response.text)

    def the_scheduler_refuses_what_another_api_lets_through(self):
        # As where nova-api does not have this extension.
        self.use_in_step(fixtures.MonkeyPatch(
            'nova.pci.request.get_pci_requests_from_flavor',
            inspect.unwrap(pci_request.get_pci_requests_from_flavor)))
        for image in ({}, {'image_uuid': self.image}):
            server = self.boot(self.unsaid, state='ERROR', **image)
            self.assertIn(self.REASON, self.fault(server))
            self.assertEqual({}, self.bandwidth(server['id']))

    def an_image_cannot_add_nodes_to_those_of_the_flavor(self):
        error = self.assertRaises(
            nova_base.ApiException, self.boot,
            self.flavor(nodes=1, mem_bw_min=30), image_uuid=self.image)
        self.assertEqual(400, error.response.status_code)


class BootTest(nova_base.GhschedTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            level=20, format='%(message)s'))

    def tidy_up(self):
        for server in self.api.get_servers():
            self._delete_server(server)
        self.reserve()

    def test_host_with_two_nodes_fills_by_the_keys_of_flavors(self):
        self.start_host()
        self.take_steps(
            self.the_guest_is_started_paused_and_its_policy_written_first,
            self.two_guests_of_60_percent_take_a_node_each_and_a_third_none,
            self.the_claim_follows_placement_off_the_node_nova_would_take,
            self.each_guest_node_gets_its_own_share,
            self.which_guest_node_goes_where_is_placements_choice,
            self.a_node_with_bandwidth_but_no_cpus_is_reported,
            self.memory_that_no_host_has_is_the_reason_and_no_key_is,
            self.a_key_for_a_guest_node_that_is_not_there_is_named,
            self.caps_can_be_what_is_counted,
            self.a_forced_host_past_the_scheduler_starts_nothing,
            self.a_request_that_lost_its_node_to_a_rival_takes_another,
            self.a_host_that_can_not_hold_the_policy_is_no_candidate)

    def two_guests_of_60_percent_take_a_node_each_and_a_third_none(self):
        flavor = self.flavor(mem_bw_min=60)
        servers = [self.boot(flavor) for _ in range(2)]
        self.assertEqual([[0], [1]],
                         sorted(self.host_nodes(s) for s in servers))
        for server in servers:
            self.assert_agreement(server, 'host_a', [60])
        third = self.boot(flavor, state='ERROR')
        self.assertIn('No valid host was found. no host NUMA node has 60 % '
                      'of its memory bandwidth left', self.fault(third))
        self.assertIn('no host NUMA node has 60 % of its memory bandwidth '
                      'left (ghsched:mem_bw_min); the most free on one node '
                      'is 40 %', self.log.output)

    def the_claim_follows_placement_off_the_node_nova_would_take(self):
        self.reserve(n0=60)
        server = self.boot(self.flavor(mem_bw_min=60))
        self.assertEqual([1], self.host_nodes(server))
        self.assert_agreement(server, 'host_a', [60])
        plain = self.boot(self.flavor())
        self.assertEqual([0], self.host_nodes(plain))
        self.assertEqual({}, self.bandwidth(plain['id']))

    def test_host_with_shared_cpus_follows_as_well(self):
        self.flags(cpu_dedicated_set=None, cpu_shared_set='0-7',
                   group='compute')
        self.start_host()
        self.take_steps(
            self.floating_vcpus_follow_as_well,
            self.a_measured_guest_needs_no_numa_topology)

    def floating_vcpus_follow_as_well(self):
        self.reserve(n0=60)
        server = self.boot(self.flavor(mem_bw_min=60, policy=None))
        self.assertEqual([1], self.host_nodes(server))
        self.assert_agreement(server, 'host_a', [60])

    def the_guest_is_started_paused_and_its_policy_written_first(self):
        self.boot(self.flavor(mem_bw_min=30, mem_bw_max=50,
                              mem_bw_hardlimit='false', mem_bw_priority=5))
        (_domain, vcpus, desired), *_ = self.kernel.enforced
        self.assertEqual([0, 1], vcpus)
        self.assertEqual({'MB': {0: 50}, 'MBMIN': {0: 30}, 'MBHDL': {0: 0},
                          'MBPRI': {0: 5}}, desired)

    def each_guest_node_gets_its_own_share(self):
        self.reserve(n0=60)
        server = self.boot(self.flavor(
            nodes=2, mem_bw_min__0=30, mem_bw_min__1=70))
        self.assertEqual([0, 1], self.host_nodes(server))
        self.assert_agreement(server, 'host_a', [30, 70])

    def test_host_with_four_nodes_has_two_for_a_guest(self):
        self.start_host(nodes=4, cores=2)
        self.take_steps(
            self.two_nodes_of_four,
            self.bandwidth_on_too_few_nodes_of_each_host_is_reported,
            self.two_nodes_that_novas_own_fit_mixes_up)

    def two_nodes_of_four(self):
        self.reserve(n0=60, n1=60)
        server = self.boot(self.flavor(nodes=2, mem_bw_min=60))
        self.assertEqual([2, 3], sorted(self.host_nodes(server)))
        self.assert_agreement(server, 'host_a', [60, 60])

    def bandwidth_on_too_few_nodes_of_each_host_is_reported(self):
        self.reserve(n0=50, n1=50, n2=50)
        server = self.boot(self.flavor(nodes=2, mem_bw_min=60),
                           state='ERROR')
        self.assertIn(
            'no host has 2 NUMA nodes with enough of their memory bandwidth '
            'in all, 60 % and 60 % for the guest NUMA nodes 0 and 1 '
            '(ghsched:mem_bw_min)', self.fault(server))
        self.boot(self.flavor(mem_bw_min=60))

    def two_nodes_that_novas_own_fit_mixes_up(self):
        # Its cache (fit_cache) would pin guest node 1 to CPUs of node 2.
        self.reserve(n0=60, n2=60)
        server = self.boot(self.flavor(nodes=2, mem_bw_min=60))
        self.assertEqual([1, 3], self.host_nodes(server))
        self.assert_agreement(server, 'host_a', [60, 60])

    def which_guest_node_goes_where_is_placements_choice(self):
        self.reserve(n0=60)
        server = self.boot(self.flavor(nodes=2, mem_bw_min__0=70,
                                       mem_bw_min__1=30))
        self.assertEqual([1, 0], self.host_nodes(server))
        self.assert_agreement(server, 'host_a', [70, 30])

    def a_node_with_bandwidth_but_no_cpus_is_reported(self):
        self.reserve(n0=60)
        self.boot(self.flavor(vcpus=4, mem_bw_min=10))
        self.reserve(n0=100)
        self.boot(self.flavor(vcpus=4, mem_bw_min=10))
        self.reserve(n0=0, n1=100)
        server = self.boot(self.flavor(vcpus=4, mem_bw_min=10),
                           state='ERROR')
        self.assertIn('no host has 4 dedicated CPUs left',
                      self.fault(server))

    def test_reason_of_two_hosts_is_short_and_true(self):
        for host in ('host_a', 'host_b'):
            self.start_host(host)
        self.take_steps(
            self.many_candidates_are_logged_in_one_line_per_reason,
            self.a_nova_compute_that_is_down_is_the_reason_and_no_key_is)

    def a_nova_compute_that_is_down_is_the_reason_and_no_key_is(self):
        for compute in self.computes.values():
            self.api.put_service_force_down(
                self.api.get_services(binary='nova-compute',
                                      host=compute.host)[0]['id'], True)
        for keys in ({'mem_bw_min': 10}, {'monitor': 'true'}):
            fault = self.fault(self.boot(self.flavor(**keys), state='ERROR'))
            self.assertIn(
                "of 2 hosts with room in Placement, nova-scheduler's "
                'ComputeFilter removed 2', fault)
            self.assertNotIn('ghsched:', fault)
        self.assertNotIn('host_', fault)
        self.assertIn('openstack compute service list', self.log.output)

    def memory_that_no_host_has_is_the_reason_and_no_key_is(self):
        self.flags(ram=-1, group='quota')
        fault = self.fault(self.boot(
            self.flavor(mem_bw_min=10, ram=10 ** 8), state='ERROR'))
        self.assertIn('no host has 100000000 MB of memory in all', fault)
        self.assertNotIn('ghsched:', fault)

    def test_a_cloud_that_never_had_resctrl_has_a_reason(self):
        self.kernel.vanish()
        self.start_compute('host_a')
        server = self.boot(self.flavor(mem_bw_min=10), state='ERROR')
        self.assertIn('no host can hold ghsched:mem_bw_min',
                      self.fault(server))

    def test_every_guest_takes_a_named_control_group(self):
        self.kernel.closids = 3
        self.start_host()
        flavor = self.flavor(mem_bw_max=50)
        slots = {self.instance(self.boot(flavor)).resources[0].identifier
                 for _ in range(2)}
        self.assertEqual({'ghsched-group-1', 'ghsched-group-2'}, slots)
        third = self.boot(flavor, state='ERROR')
        self.assertIn('no host has a resctrl control group left',
                      self.fault(third))
        classes = self.boot(self.flavor(
            vcpus=3, vcpu_classes='a:0,b:1', mem_bw_max=50, **{
                'mem_bw_max.a': 40, 'mem_bw_max.b': 40}), state='ERROR')
        self.assertIn('no host has 3 resctrl control groups in all, one for '
                      'each vCPU class', self.fault(classes))

    def test_pages_of_1_gb_that_are_used_up_are_counted_by_node(self):
        info = fakelibvirt.HostInfo(
            cpu_nodes=2, cpu_sockets=1, cpu_cores=4, cpu_threads=1,
            kB_mem=16 * 1024 * 1024)
        for cell, pages in zip(info.numa_topology.cells, (2, 1), strict=True):
            cell.mempages = fakelibvirt.create_mempages([
                (4, (8 - pages) * 2 ** 18), (1048576, pages)])
        self.start_compute('host_a', host_info=info)
        flavor = self.flavor(ram=1024, extra={'hw:mem_page_size': '1GB'},
                             mem_bw_min=10)
        self.assertEqual([[0], [0], [1]], sorted(
            self.host_nodes(self.boot(flavor)) for _ in range(3)))
        self.assertIn('no NUMA node has 1 pages of 1 GB free',
                      self.fault(self.boot(flavor, state='ERROR')))
        self.assertIn('0 of 2 free on NUMA node 0, 0 of 1 free on NUMA node 1',
                      self.log.output)

    def a_host_that_can_not_hold_the_policy_is_no_candidate(self):
        self.kernel.vanish()
        self.reserve()
        server = self.boot(self.flavor(mem_bw_min=10), state='ERROR')
        self.assertIn('no host can hold ghsched:mem_bw_min',
                      self.fault(server))

    def a_measured_guest_needs_no_numa_topology(self):
        server = self.boot(self.flavor(nodes=0, policy=None, monitor='true'))
        self.assertEqual({}, self.bandwidth(server['id']))
        self.assertIn('<monitor', self.domain('host_a', server))

    def a_key_for_a_guest_node_that_is_not_there_is_named(self):
        server = self.boot(self.unchecked_flavor(mem_bw_min__3=10),
                           state='ERROR')
        self.assertIn('ghsched:mem_bw_min.3: the guest has no NUMA node 3',
                      self.fault(server))

    def caps_can_be_what_is_counted(self):
        self.flags(bandwidth_accounting='max', group='ghsched')
        flavor = self.flavor(mem_bw_min=10, mem_bw_max=60)
        server = self.boot(flavor)
        node = self.host_nodes(server)[0]
        self.assertEqual({self.provider('host_a', node): 60},
                         self.bandwidth(server['id']))

    def a_forced_host_past_the_scheduler_starts_nothing(self):
        self.reserve(n0=60)
        server = self.boot(self.flavor(mem_bw_min=60), state='ERROR',
                           az='nova:host_a')
        self.assertEqual([], self.kernel.enforced)
        self.assertEqual({}, self.bandwidth(server['id']))

    def a_request_that_lost_its_node_to_a_rival_takes_another(self):
        claim, lost = report.SchedulerReportClient.claim_resources, []

        def rival_first(client, *args, **kwargs):
            if not lost:
                lost.append(args)
                return False
            return claim(client, *args, **kwargs)

        self.use_in_step(fixtures.MonkeyPatch(
            'nova.scheduler.client.report.SchedulerReportClient.'
            'claim_resources', rival_first))
        server = self.boot(self.flavor(mem_bw_min=60))
        self.assert_agreement(server, 'host_a', [60])
        self.assertIn('another request claimed the resources first',
                      self.log.output)

    def many_candidates_are_logged_in_one_line_per_reason(self):
        self.boot(self.flavor(vcpus=4, nodes=1, mem_bw_min=10))
        log = self.use_in_step(fixtures.FakeLogger(
            level=20, format='%(message)s'))
        server = self.boot(self.flavor(vcpus=6, nodes=1, mem_bw_min=10),
                           state='ERROR')
        self.assertIn(
            'GhschedNUMATopologyFilter removed 1: the host NUMA nodes with '
            'the memory bandwidth and VFs lack the CPUs', self.fault(server))
        lines = [line for line in log.output.splitlines()
                 if 'refused on' in line]
        self.assertEqual(len(lines), len(set(lines)))
        self.assertGreaterEqual(2, len(lines))


class BadFlavorTest(nova_base.GhschedTestCase):

    def test_api_refuses_what_it_can_know_of_a_flavor(self):
        self.take_steps(
            self.the_api_refuses_what_it_can_know,
            self.keys_that_are_nearly_ours_are_refused_with_the_nearest,
            self.contradictions_are_refused_when_the_flavor_is_made,
            self.a_value_is_refused_with_the_name_of_its_key)

    def the_api_refuses_what_it_can_know(self):
        flavor = self._create_flavor(vcpu=1)
        for key, value in (('ghsched:mem_bw_min', '101'),
                           ('ghsched:mem_bw_max', '0'),
                           ('ghsched:mem_bw_priority', '8'),
                           ('ghsched:mem_bw_hardlimit', 'maybe'),
                           ('ghsched:monitor.0', 'true'),
                           ('ghsched:memory_bandwidth', '10')):
            response = self.api.api_post(
                f'/flavors/{flavor}/os-extra_specs',
                {'extra_specs': {key: value}},
                check_response_status=[400])
            self.assertIn(key, str(response.body) + key)

    def refused(self, specs, *texts, flavor=None, version='latest'):
        flavor = flavor or self._create_flavor(vcpu=1)
        with utils.temporary_mutation(self.api, microversion=version):
            body = self.api.api_post(
                f'/flavors/{flavor}/os-extra_specs', {'extra_specs': specs},
                check_response_status=[400]).body
        for text in texts:
            self.assertIn(text, body['badRequest']['message'])

    def keys_that_are_nearly_ours_are_refused_with_the_nearest(self):
        for key in ('Ghsched:mem_bw_min', 'gsched:mem_bw_min',
                    'ghsched:mem_bw_mim', 'ghsched:mem_bw_min.x'):
            self.refused({key: '10', 'hw:numa_nodes': '1'}, key)
        self.refused({'gsched:mem_bw_mim.1': '10', 'hw:numa_nodes': '2'},
                     'do you mean ghsched:mem_bw_min.1?')
        for key in ('sched:x', 'hw:mem_page_size',
                    'quota:vif_inbound_average'):
            self.api.post_extra_spec(
                self._create_flavor(vcpu=1), {'extra_specs': {key: '1'}}
                if key != 'hw:mem_page_size' else
                {'extra_specs': {key: 'any'}})

    def contradictions_are_refused_when_the_flavor_is_made(self):
        self.refused({'ghsched:mem_bw_min': '10'},
                     'ghsched:mem_bw_min', 'set hw:numa_nodes')
        self.refused({'ghsched:mem_bw_min': '60', 'hw:numa_nodes': '1',
                      'ghsched:mem_bw_max': '50'}, 'ghsched:mem_bw_m')
        self.refused({'ghsched:mem_bw_min.7': '60', 'hw:numa_nodes': '2'},
                     'ghsched:mem_bw_min.7', 'no NUMA node 7')
        # With what the flavor has already, and at any microversion.
        made = self._create_flavor(vcpu=1, extra_spec={
            'hw:numa_nodes': '1', 'ghsched:mem_bw_max': '50'})
        for version in ('2.1', 'latest'):
            self.refused({'ghsched:mem_bw_min': '51'}, 'ghsched:mem_bw_m',
                         flavor=made, version=version)

    def a_value_is_refused_with_the_name_of_its_key(self):
        self.refused({'ghsched:mem_bw_min': '30%', 'hw:numa_nodes': '1'},
                     'ghsched:mem_bw_min', "'30%'")


class MultiCreateTest(nova_base.GhschedTestCase):

    def create(self, flavor, count):
        body = self._build_server(flavor_id=flavor, networks='none')
        body['min_count'] = body['max_count'] = count
        self.api.post_server({'server': body})
        return self.api.get_servers()

    def test_servers_of_one_request_have_their_own_nodes_or_none(self):
        self.start_host()
        self.take_steps(
            self.each_of_two_servers_gets_its_own_node_and_limits,
            self.one_too_many_leaves_nothing_behind)

    def each_of_two_servers_gets_its_own_node_and_limits(self):
        servers = self.create(self.flavor(mem_bw_min=60), 2)
        nodes = []
        for server in servers:
            server = self._wait_for_state_change(server, 'ACTIVE')
            self.assert_agreement(server, 'host_a', [60])
            nodes += self.host_nodes(server)
            self._delete_server(server)
        self.assertEqual([0, 1], sorted(nodes))

    def test_four_servers_on_three_hosts_all_agree(self):
        for host in ('host_a', 'host_b', 'host_c'):
            self.start_host(host)
        for server in self.create(self.flavor(mem_bw_min=60), 4):
            server = self._wait_for_state_change(server, 'ACTIVE')
            host = self.api.get_server(
                server['id'])['OS-EXT-SRV-ATTR:host']
            self.assert_agreement(server, host, [60])

    def one_too_many_leaves_nothing_behind(self):
        for server in self.create(self.flavor(mem_bw_min=60), 3):
            self._wait_for_state_change(server, 'ERROR')
            self.assertEqual({}, self.bandwidth(server['id']))


class ProviderTest(nova_base.GhschedTestCase):

    def inventory(self, node):
        return self._get_provider_inventory(
            self.provider('host_a', node)).get(names.MEM_BW_PCT)

    def test_tree_of_a_host_follows_the_host_until_it_is_deleted(self):
        self.start_host()
        self.take_steps(
            self.the_tree_is_as_designed,
            self.an_unchanged_host_makes_no_write,
            self.a_larger_reserve_than_is_free_keeps_the_guest,
            self.lost_control_keeps_what_is_held_and_removes_the_rest,
            self.fewer_control_groups_keep_those_in_use,
            self.deleting_the_service_removes_the_whole_tree)

    def the_tree_is_as_designed(self):
        root = self.compute_rp_uuids['host_a']
        self.assertEqual(
            31, self._get_provider_inventory(root)[
                names.RESCTRL_GROUP]['total'])
        self.assertIn('CUSTOM_GHSCHED_MEM_BW_MIN',
                      self._get_provider_traits(root))
        for node in range(2):
            traits = self._get_provider_traits(self.provider('host_a', node))
            self.assertLessEqual(
                {'HW_NUMA_ROOT', 'OWNER_NOVA', names.NUMA_NODE_TRAIT},
                set(traits))

    def an_unchanged_host_makes_no_write(self):
        server = self.boot(self.flavor(mem_bw_min=60))
        self._run_periodics()
        written = []

        for verb in ('put', 'post', 'delete'):
            method = getattr(report.SchedulerReportClient, verb)

            def noted(client, url, *args, _method=method, **kwargs):
                written.append(url)
                return _method(client, url, *args, **kwargs)

            self.use_in_step(fixtures.MonkeyPatch(
                'nova.scheduler.client.report.SchedulerReportClient.'
                + verb, noted))
        self._run_periodics()
        self._run_periodics()
        self.assertEqual([], written)
        self._delete_server(server)

    def a_larger_reserve_than_is_free_keeps_the_guest(self):
        server = self.boot(self.flavor(mem_bw_min=60))
        node = self.host_nodes(server)[0]
        self.reserve(**{f'n{node}': 90})
        # The guest keeps 60; all that is left is reserved.
        self.assertEqual(40, self.inventory(node)['reserved'])
        self.assert_agreement(server, 'host_a', [60])
        self._delete_server(server)
        self._run_periodics()
        self.assertEqual(90, self.inventory(node)['reserved'])

    def lost_control_keeps_what_is_held_and_removes_the_rest(self):
        server = self.boot(self.flavor(mem_bw_min=60))
        held = self.host_nodes(server)[0]
        self.kernel.vanish()
        self.reserve()
        self.assertEqual(100, self.inventory(held)['reserved'])
        self.assertEqual({}, self._get_provider_inventory(
            self.provider('host_a', 1 - held)))
        self.restart_compute_service('host_a')
        self.assert_agreement(server, 'host_a', [60])
        self.kernel.write()
        self.reserve()
        self.assertEqual(0, self.inventory(1 - held)['reserved'])
        self.assertEqual(0, self.inventory(held)['reserved'])
        self._delete_server(server)

    def fewer_control_groups_keep_those_in_use(self):
        server = self.boot(self.flavor(mem_bw_max=50))
        self.kernel.closids = 4
        self.kernel.write()
        self.reserve()
        record = self._get_provider_inventory(
            self.compute_rp_uuids['host_a'])[names.RESCTRL_GROUP]
        self.assertEqual(3, record['total'] - record['reserved'])
        self.restart_compute_service('host_a')
        self._delete_server(server)
        self.reserve()
        record = self._get_provider_inventory(
            self.compute_rp_uuids['host_a'])[names.RESCTRL_GROUP]
        self.assertEqual(3, record['total'])

    def deleting_the_service_removes_the_whole_tree(self):
        service = self.computes['host_a'].service_ref.uuid
        self.computes['host_a'].stop()
        self.api.put_service_force_down(service, True)
        self.api.api_delete(f'/os-services/{service}')
        for uuid in (self.compute_rp_uuids['host_a'],
                     self.provider('host_a', 0)):
            self.assertEqual(404, self.placement.get(
                f'/resource_providers/{uuid}').status)

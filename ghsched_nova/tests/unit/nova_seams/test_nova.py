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

import inspect
from unittest import mock

from nova import context
from nova import objects
from nova.scheduler.client import report

from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import signatures
from ghsched_placement.tests import base


class ReliedOnTest(base.TestCase):
    """Fails when Nova changes what we rely on without a contract."""

    def setUp(self):
        super().setUp()
        registry.load_all_seams()

    def test_signatures_of_nova_are_those_we_were_written_for(self):
        # What is decorated is read by tools/signatures.py from the source.
        self.assertEqual((), signatures.list_mismatches(registry.SEAMS))

    def test_later_fields_are_left_out_of_earlier_releases(self):
        seam = registry.SEAMS['nova.config.parse_args']
        names = ('argv', 'default_config_files', 'configure_db', 'init_rpc')
        self.assertTrue(seam.accepts(names))
        self.assertTrue(seam.accepts((*names, 'prog')))
        self.assertFalse(seam.accepts((*names, 'other')))
        self.assertFalse(seam.accepts(names[1:]))

    def test_only_known_parameters_are_optional(self):
        for seam in registry.SEAMS.values():
            self.assertLessEqual(seam.optional, set(seam.parameters or ()))

    def test_a_claim_that_is_refused_has_changed_no_instance(self):
        from nova.compute import resource_tracker
        source = inspect.getsource(
            resource_tracker.ResourceTracker._move_claim)
        self.assertLess(source.index('claims.MoveClaim('),
                        source.index('instance.save()'))

    def test_request_filters_are_a_list_that_is_walked(self):
        from nova.scheduler import request_filter
        self.assertIsInstance(request_filter.ALL_REQUEST_FILTERS, list)
        source = inspect.getsource(request_filter.process_reqspec)
        self.assertIn('in ALL_REQUEST_FILTERS', source)

    def test_the_scheduler_service_looks_its_manager_up_by_name(self):
        from nova import service
        self.assertIn('nova-scheduler', service.SERVICE_MANAGERS)

    def test_the_claim_honours_physical_networks(self):
        from nova.virt import hardware
        source = inspect.getsource(hardware.numa_fit_instance_to_host)
        self.assertIn('_numa_cells_support_network_metadata', source)

    def test_cells_are_sorted_only_where_there_are_more_than_needed(self):
        from nova.virt import hardware
        source = inspect.getsource(hardware.numa_fit_instance_to_host)
        self.assertIn('if len(host_topology) > len(instance_topology):',
                      source)
        self.assertIn('itertools.permutations(', source)

    def test_who_fits_looks_the_function_up_in_its_module(self):
        from nova.compute import claims
        from nova.scheduler import host_manager
        for module in (claims, host_manager):
            self.assertIn('hardware.numa_fit_instance_to_host(',
                          inspect.getsource(module))

    def test_who_makes_pci_requests_looks_the_function_up(self):
        from nova.compute import api
        from nova.compute import resource_tracker
        for module in (api, resource_tracker):
            self.assertIn('pci_request.get_pci_requests_from_flavor(',
                          inspect.getsource(module))

    def test_providers_are_reported_before_a_move_is_claimed(self):
        from nova.compute import manager
        source = inspect.getsource(manager.ComputeManager._prep_resize)
        self.assertLess(
            source.index('compute_utils.update_pci_request_with_placement_'
                         'allocations('),
            source.index('rt.resize_claim('))

    def test_starting_a_guest_goes_through_one_method(self):
        from nova.virt.libvirt import driver
        source = inspect.getsource(driver)
        # _create_guest, which our driver overrides, and _soft_reboot and
        # _resume_guest_after_snapshot, see compute.around_launch.
        self.assertEqual(3, source.count('.launch('))
        for method in (driver.LibvirtDriver._soft_reboot,
                       driver.LibvirtDriver.snapshot):
            self.assertIn('self._host.get_guest(instance)',
                          inspect.getsource(method))

    def test_compute_locks_an_instance_by_its_uuid(self):
        from nova.compute import manager
        from nova import utils
        self.assertIn('@utils.synchronized(instance.uuid)',
                      inspect.getsource(manager))
        self.assertEqual(({'lock_file_prefix': 'nova-'}, ()), (
            utils.synchronized.keywords, utils.synchronized.args))

    def test_a_restarted_compute_frees_a_guest_that_was_to_be_resized(self):
        from nova.compute import manager
        source = inspect.getsource(manager.ComputeManager._init_instance)
        _before, found, after = source.partition(
            'instance.task_state in [task_states.RESIZE_PREP]')
        self.assertTrue(found)
        self.assertIn('instance.task_state = None', after[:400])

    def test_a_client_follows_the_cell_of_its_context(self):
        from nova import rpc
        self.assertIn('transport = context.mq_connection',
                      inspect.getsource(rpc.ClientRouter.client))


class KindsOfCellsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        objects.register_all()

    def kinds(self, *cells, **values):
        """Return the kinds of guest nodes of some CPUs and memory."""
        return numa.map_to_first_equal_guest_node(
            objects.InstanceNUMATopology(cells=[
                objects.InstanceNUMACell(
                    id=number, cpuset=set(), pcpuset=set(range(cpus)),
                    memory=memory) for number, (cpus, memory)
                in enumerate(cells)], **values))

    def test_kinds_of_cells_with_the_same_needs_are_one(self):
        self.assertEqual((0, 1, 0, 3, 1), self.kinds(
            (2, 512), (1, 512), (2, 512), (2, 256), (1, 512)))

    def test_kinds_of_cells_with_isolated_emulator_threads_differ(self):
        self.assertEqual((0, 1, 1), self.kinds(
            *[(2, 512)] * 3, emulator_threads_policy='isolate'))

    def test_kinds_of_cells_without_a_topology_are_none(self):
        self.assertEqual((), numa.map_to_first_equal_guest_node(None))


class ClaimTest(base.TestCase):
    """Requests of a claim to Placement, for a guest with allocations or
    without.
    """

    CONFLICT = {'errors': [{'code': 'placement.concurrent_update',
                            'detail': 'consumer generation conflict'}]}
    SOURCE = {'allocations': {'source': {'resources': {'VCPU': 1}}},
              'consumer_generation': 7}

    def claim(self, *answers, resource='CUSTOM_MEM_BW_PCT'):
        """Return the providers claimed, and the number of GETs and PUTs."""
        adapter = mock.Mock()
        adapter.put.side_effect = [
            mock.Mock(status_code=code, json=lambda: self.CONFLICT)
            for code in answers]
        adapter.get.return_value = mock.Mock(
            status_code=200, json=lambda: self.SOURCE)
        claimed = scheduler.claim_resources(
            report.SchedulerReportClient(adapter=adapter),
            context.get_admin_context(), 'guest',
            {'allocations': {'target': {'resources': {resource: 1}}}},
            'project', 'user', '1.36')
        return (set(claimed), adapter.get.call_count,
                [set(call.kwargs['json']['allocations'])
                 for call in adapter.put.call_args_list])

    def test_claim_of_a_new_guest_takes_one_request(self):
        self.assertEqual(({'target'}, 0, [{'target'}]), self.claim(204))

    def test_claim_of_a_guest_without_our_classes_is_that_of_nova(self):
        self.assertEqual(({'target'}, 1, [{'source', 'target'}]),
                         self.claim(204, resource='VCPU'))

    def test_claim_of_an_evacuated_guest_adds_to_its_allocation(self):
        self.assertEqual(({'target'}, 2, [{'target'}, {'source', 'target'}]),
                         self.claim(409, 204))

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

"""Parts of ghsched that are off in a service whose Nova differs."""

import io
from unittest import mock

import ddt
from nova import exception
from nova import objects
from nova.scheduler.filters import numa_topology_filter
from nova.scheduler import manager as nova_manager
from nova import version
import oslo_messaging as messaging

from ghsched_nova.api import extra_specs
from ghsched_nova.api import nova_changes
from ghsched_nova.api import server_filter
from ghsched_nova.features import declared_scheduler
from ghsched_nova.nova_fixes import table
from ghsched_nova.nova_seams import parts
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova.nova_seams import signatures
from ghsched_nova.scheduler import filters
from ghsched_nova.scheduler import off
from ghsched_nova.tests.fixtures.nova_parts import BasePartsTestCase

registry.load_all_seams()

#: Versions of Nova: a release, between two releases, before a release.
VERSIONS = ('33.0.0', '34.0.0', '33.1.0.dev347', '34.1.0.dev1',
            '34.0.0.0rc1', '35.0.0.0b1.dev7')


def list_differences(process):
    """Return each seam of a service with what Nova may have in its place.

    None is for nothing. Seams that repairs alone use are left out.
    """
    fixes = table.list_fix_only_functions()
    return [(name, parameters)
            for name in sorted(signatures.iterate_seam_names(process))
            for parameters in (None, ('other',))
            if name not in fixes
            and not registry.SEAMS[name].may_be_missing
            and not (parameters and registry.SEAMS[name].parameters is None)]


@ddt.ddt
class ApiTest(BasePartsTestCase):

    def setUp(self):
        super().setUp()
        shared.config().set_override(
            'driver', 'nova.quota.UnifiedLimitsDriver', 'quota')
        self.addCleanup(shared.config().clear_override, 'driver', 'quota')

    @ddt.data(*list_differences(registry.API))
    @ddt.unpack
    def test_api_with_any_other_function_starts_with_an_error(
            self, name, parameters):
        before = self.start_api()
        self.assertEqual('', self.log.output)
        self.lose(name, parameters)
        replaced = self.start_api()
        self.assertIn(name, self.log.output)
        self.assertNotIn(name, replaced)
        # Less than all is off.
        self.assertNotEqual(set(), replaced & before)
        self.assertIn(name, str(parts.find_incompatible_parts(registry.API)))

    def test_keys_without_limits_are_refused_with_the_reason(self):
        self.lose('nova.limit.placement._get_deltas')
        self.start_api()
        validator, = (one for one in extra_specs.register()
                      if one.name == 'ghsched:mem_bw_min')
        for refuse in (
                lambda: validator.validate('ghsched:mem_bw_min', '5'),
                lambda: nova_changes.refuse_flavor_of_disabled_part(
                    mock.Mock(), {'extra_specs': {'ghsched:mem_bw_min': '5'}})
        ):
            error = self.assertRaises(exception.NovaException, refuse)
            self.assertIn('ghsched:mem_bw_min cannot be offered: the unified '
                          'limits', str(error))
            self.assertIn('_get_deltas', str(error))
        nova = mock.Mock()
        self.assertEqual(nova.return_value,
                         nova_changes.refuse_flavor_of_disabled_part(
                             nova, {'extra_specs': {'hw:numa_nodes': '2'}}))
        self.assertIn('unified limits', nova_changes.find_api_refusal())

    def test_keys_without_limits_are_accepted_where_limits_are_not_used(self):
        shared.config().set_override('driver', 'nova.quota.DbQuotaDriver',
                                     'quota')
        self.lose('nova.limit.placement._get_deltas')
        self.start_api()
        self.assertEqual('', parts.find_refusal(registry.API,
                                                ['ghsched:mem_bw_min']))
        self.assertEqual('', nova_changes.find_api_refusal())

    def test_keys_of_vfs_alone_are_refused_without_pci_requests(self):
        self.lose('nova.pci.request.get_pci_requests_from_flavor')
        self.start_api()
        self.assertEqual('', parts.find_refusal(registry.API,
                                                ['ghsched:mem_bw_min']))
        self.assertIn('PCI requests', parts.find_refusal(
            registry.API, ['ghsched:mem_bw_min', 'ghsched:vfs.0']))

    def test_actions_that_are_off_answer_503_and_others_go_to_nova(self):
        self.lose('nova.rpc.get_client')
        self.start_api()
        application = server_filter.Filter(lambda *_more: 'Nova')

        def ask(body):
            answer = []
            found = application(
                {'REQUEST_METHOD': 'POST', 'wsgi.input': io.BytesIO(body),
                 'CONTENT_LENGTH': str(len(body)),
                 'PATH_INFO': '/servers/' + 'a' * 32 + '/action'},
                lambda status, _headers, *_more: answer.append(status))
            return answer or found
        self.assertEqual('Nova', ask(b'{"reboot": {}}'))
        self.assertEqual(['503 Service Unavailable'],
                         ask(b'{"ghsched": {"dry_run": true}}'))


@ddt.ddt
class SchedulerTest(BasePartsTestCase):

    def spec(self, **extra):
        return objects.RequestSpec(
            flavor=objects.Flavor(name='a', extra_specs=extra, vcpus=1),
            scheduler_hints={})

    def start(self):
        """Return the manager and the filter that Nova gets."""
        with mock.patch.object(nova_manager.SchedulerManager, '__init__',
                               return_value=None):
            made = declared_scheduler.GhschedSchedulerManager.__new__(
                declared_scheduler.GhschedSchedulerManager)
        return made, filters.GhschedNUMATopologyFilter()

    def test_scheduler_with_the_nova_it_knows_is_that_of_ghsched(self):
        self.assertEqual(
            (declared_scheduler.GhschedSchedulerManager,
             filters.GhschedNUMATopologyFilter),
            tuple(map(type, self.start())))
        self.assertEqual('', self.log.output)

    @ddt.data(*list_differences(registry.SCHEDULER))
    @ddt.unpack
    def test_scheduler_with_any_other_function_refuses_keys_alone(
            self, name, parameters):
        self.lose(name, parameters)
        made = self.start()
        self.assertIn(name, self.log.output)
        needed_by = {part for service, part in registry.SEAMS[name].parts
                     if service == registry.SCHEDULER}
        if needed_by == {registry.INDEX}:
            self.assertEqual(declared_scheduler.GhschedSchedulerManager,
                             type(made[0]))
            return
        self.assertEqual((off.RefusingManager, off.RefusingFilter),
                         tuple(map(type, made)))
        self.assert_refused(name, *made)

    def assert_refused(self, name, made, chosen):
        with mock.patch.object(nova_manager.SchedulerManager,
                               'select_destinations',
                               return_value='Nova'), \
                mock.patch.object(numa_topology_filter.NUMATopologyFilter,
                                  'filter_all', return_value='Nova'):
            plain, ours = self.spec(), self.spec(**{'ghsched:vcpu_quota': '1'})
            self.assertEqual('Nova', made.select_destinations(
                None, spec_obj=plain))
            self.assertEqual('Nova', chosen.filter_all([], plain))
            error = self.assertRaises(
                messaging.ExpectedException, made.select_destinations, None,
                spec_obj=ours)
            self.assertIsInstance(error.exc_info[1], exception.NoValidHost)
            self.assertIn(name, str(error.exc_info[1]))
            error = self.assertRaises(exception.NoValidHost,
                                      chosen.filter_all, [], ours)
            self.assertIn(name, str(error))


@ddt.ddt
class VersionTest(BasePartsTestCase):

    @ddt.data(*VERSIONS)
    def test_version_of_nova_decides_nothing(self, number):
        self.patch_version(number)
        self.assertEqual((), signatures.list_mismatches(registry.SEAMS))
        for process in registry.PROCESSES:
            self.assertEqual({}, parts.find_incompatible_parts(process))
            signatures.require_seams(process)
        self.assertNotEqual(set(), self.start_api())

    @ddt.data(*VERSIONS)
    def test_version_is_named_where_nova_differs(self, number):
        self.patch_version(number)
        self.lose('nova.virt.hardware.numa_fit_instance_to_host')
        error = self.assertRaises(registry.IncompatibleNova,
                                  signatures.require_seams, registry.COMPUTE)
        self.assertIn(f'Nova {number}, nova-compute does not start',
                      str(error))
        self.assertIn(number, str(parts.find_incompatible_parts(
            registry.COMPUTE)))

    def patch_version(self, number):
        self.enterContext(mock.patch.object(version, 'version_string',
                                            lambda: number))

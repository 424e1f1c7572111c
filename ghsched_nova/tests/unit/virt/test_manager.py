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

import contextlib
import types
from unittest import mock

from nova.compute import build_results
from nova.compute import manager as nova_manager
from nova.compute import resource_tracker
from nova import objects

from ghsched_nova.nova_seams import shared
from ghsched_nova.virt import instance_claims
from ghsched_nova.virt import manager
from ghsched_placement.tests import base

shared.config()


class TrackerTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.entered = []
        self.tracker = manager.GhschedResourceTracker(
            'host_a', mock.Mock(), mock.Mock())

    @contextlib.contextmanager
    def context(self, *args):
        self.entered.append(args)
        yield
        self.entered.append('left')

    def replace(self, ours, novas):
        self.enterContext(mock.patch.object(instance_claims, ours,
                                            self.context))
        return self.enterContext(mock.patch.object(
            resource_tracker.ResourceTracker, novas,
            side_effect=lambda *_args, **_kwargs: self.entered.append(
                'claimed')))

    def test_new_instance_is_claimed_within_the_context_of_its_claim(self):
        nova = self.replace('claiming_instance', 'instance_claim')
        self.tracker.instance_claim('context', 'vm', 'node', {}, None)
        self.assertEqual([('vm',), 'claimed', 'left'], self.entered)
        nova.assert_called_once_with('context', 'vm', 'node', {}, None)

    def test_move_is_claimed_within_a_context_with_image_and_kind(self):
        self.replace('claiming_move', '_move_claim')
        self.tracker._move_claim('context', 'vm', 'flavor', 'node', None, {},
                                 move_type='live-migration',
                                 image_meta={'properties': {}})
        (instance, flavor, image, is_live), *rest = self.entered
        self.assertEqual(('vm', 'flavor', True), (instance, flavor, is_live))
        self.assertIsInstance(image, objects.ImageMeta)
        self.assertEqual(['claimed', 'left'], rest)


class ManagerTest(base.TestCase):

    def test_endpoint_is_added_once_after_the_driver_is_initialized(self):
        endpoint = object()
        ours = manager.GhschedComputeManager.__new__(
            manager.GhschedComputeManager)
        ours.driver, ours.additional_endpoints = types.SimpleNamespace(), []

        def init(_self, _service):
            ours.driver.rpc_endpoints = [endpoint]
        with mock.patch.object(nova_manager.ComputeManager, 'init_host',
                               init):
            ours.init_host(None)
            ours.init_host(None)
        self.assertEqual([endpoint], ours.additional_endpoints)

    def test_retries_are_dropped_for_our_servers_on_the_last_host(self):
        ours = manager.GhschedComputeManager.__new__(
            manager.GhschedComputeManager)
        ours_specs = {'ghsched:monitor': 'true'}
        for specs, hosts, accelerators, kept in (
                (ours_specs, [], None, False), (ours_specs, ['b'], None, True),
                (ours_specs, [], ['uuid'], True),
                ({'hw:numa_nodes': '1'}, [], None, True)):
            instance = types.SimpleNamespace(
                flavor=types.SimpleNamespace(extra_specs=specs))
            given = ('image', 'spec', {'retry': {'num_attempts': 1}},
                     *'123456', 'limits', hosts, accelerators)
            with mock.patch.object(
                    nova_manager.ComputeManager,
                    '_do_build_and_run_instance') as nova:
                ours._do_build_and_run_instance('context', instance, *given)
            nova.assert_called_once_with('context', instance, *given)
            self.assertEqual(kept, 'retry' in given[2])

    def test_allocation_of_refused_group_member_is_deleted_on_last_host(self):
        ours = manager.GhschedComputeManager.__new__(
            manager.GhschedComputeManager)
        flavor = types.SimpleNamespace(
            extra_specs={'ghsched:monitor': 'true'})
        instance = types.SimpleNamespace(uuid='u', flavor=flavor)
        for result, hosts, deleted in (
                (build_results.FAILED_BY_POLICY, [], 1),
                (build_results.FAILED_BY_POLICY, ['b'], 0),
                (build_results.FAILED, [], 0)):
            ours.reportclient = mock.Mock()
            with mock.patch.object(
                    nova_manager.ComputeManager,
                    '_do_build_and_run_instance', return_value=result):
                self.assertEqual(result, ours._do_build_and_run_instance(
                    'context', instance, 'image', 'spec', {}, *'123456',
                    'limits', hosts, None))
            self.assertEqual([mock.call('context', 'u', force=True)] * deleted,
                             ours.reportclient
                             .delete_allocation_for_instance.mock_calls)

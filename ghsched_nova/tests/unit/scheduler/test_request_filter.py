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

"""The query that nova-scheduler makes of a request that was filtered."""

from unittest import mock
from urllib import parse

from nova import exception
from nova import objects
from nova.scheduler import utils
from oslo_utils.fixture import uuidsentinel as uuids

from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import request_filter
from ghsched_nova.tests.fixtures import modules
from ghsched_placement.tests import base


class QueryTest(base.TestCase):

    def spec(self, nodes, requested=(), **specs):
        """Return a request for memory bandwidth."""
        specs = {'hw:numa_nodes': str(nodes), 'ghsched:mem_bw_min': '5',
                 **specs}
        return objects.RequestSpec(
            flavor=objects.Flavor(
                name='f', vcpus=nodes, memory_mb=1024 * nodes, root_gb=1,
                ephemeral_gb=0, swap=0, extra_specs=specs),
            image=objects.ImageMeta(properties=objects.ImageMetaProps()),
            numa_topology=objects.InstanceNUMATopology(cells=[
                objects.InstanceNUMACell(
                    id=node, cpuset={node}, pcpuset=set(), memory=1024)
                for node in range(nodes)]),
            pci_requests=objects.InstancePCIRequests(requests=[]),
            instance_uuid=uuids.server, is_bfv=False,
            requested_resources=list(requested),
            request_level_params=objects.RequestLevelParams())

    def filtered(self, nodes, requested=(), **specs):
        """Return Nova's parameters of the request, once filtered."""
        spec = self.spec(nodes, requested, **specs)
        request_filter.ghsched_request_filter(None, spec)
        with mock.patch.object(utils.LOG, 'warning'):
            found = utils.ResourceRequest.from_request_spec(
                spec, enable_pinning_translate=False)
        return dict(parse.parse_qsl(found.to_querystring()))

    def setUp(self):
        super().setUp()
        objects.register_all()
        config = mock.Mock()
        config.ghsched.bandwidth_accounting = 'min'
        self.patch(shared, 'config', lambda: config)

    def test_filter_comes_back_to_a_module_as_seldom_as_documented(self):
        spec = self.spec(2)
        with modules.Modules() as walk:
            request_filter.ghsched_request_filter(None, spec)
        self.assertLessEqual(
            walk.returns, modules.allowed_returns('request filter'),
            walk.stays)

    def test_host_nodes_of_one_guest_are_isolated(self):
        self.assertEqual('isolate', self.filtered(2)['group_policy'])
        self.assertNotIn('group_policy', self.filtered(1))

    def test_group_policy_of_the_flavor_is_kept(self):
        self.assertEqual('none', self.filtered(
            2, group_policy='none')['group_policy'])

    def test_groups_of_the_flavor_and_of_ports_are_not_isolated(self):
        self.assertNotEqual('isolate', self.filtered(
            2, **{'resources1:CUSTOM_A': '1'}).get('group_policy'))
        port = objects.RequestGroup(
            use_same_provider=True, requester_id=uuids.port,
            resources={'NET_BW_EGR_KILOBIT_PER_SEC': 1})
        self.assertNotEqual('isolate', self.filtered(
            2, [port]).get('group_policy'))

    def test_flavor_that_is_too_large_for_placement_is_refused(self):
        self.filtered(8)
        with self.assertRaisesRegex(exception.RequestFilterFailed,
                                    'hw:numa_nodes: 9 guest NUMA nodes'):
            self.filtered(9)

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

from nova import objects
from nova.pci import request as pci_request
from oslo_serialization import jsonutils

from ghsched_nova.api import limits
from ghsched_nova.nova_seams import shared
from ghsched_nova import pci_requests
from ghsched_placement.tests import base

objects.register_all()

BANDWIDTH = {'CUSTOM_MEM_BW_PCT': 30, 'CUSTOM_RESCTRL_GROUP': 1}


class AmountsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        pci_requests.patch_nova_pci_requests()
        self.conf = shared.config()
        # Nova reads the aliases once in a process.
        cached = pci_request.get_alias_from_config
        cached.cache_clear()
        self.addCleanup(cached.cache_clear)
        self.override('pci', alias=[jsonutils.dumps(
            {'vendor_id': '8086', 'product_id': '1520', 'name': 'nic',
             'device_type': 'type-VF', 'resource_class': 'nic'})])
        self.override('filter_scheduler', pci_in_placement=True)

    def override(self, group, **options):
        for name, value in options.items():
            self.conf.set_override(name, value, group=group)
            self.addCleanup(self.conf.clear_override, name, group=group)

    def spec(self, **specs):
        return objects.RequestSpec(flavor=objects.Flavor(
            vcpus=2, extra_specs={'hw:numa_nodes': '2'} | {
                f'ghsched:{name.replace("__", ".")}': value
                for name, value in specs.items()}))

    def amounts(self, **specs):
        return dict(limits.count_server_resources(self.spec(**specs)))

    def test_shares_of_all_guest_nodes_and_one_group(self):
        self.assertEqual(BANDWIDTH, self.amounts(mem_bw_min='20',
                                                 mem_bw_min__1='10'))
        self.assertEqual({'CUSTOM_RESCTRL_GROUP': 1},
                         self.amounts(mem_bw_max='20'))

    def test_the_cap_where_that_is_counted(self):
        self.override('ghsched', bandwidth_accounting='max')
        self.assertEqual({'CUSTOM_MEM_BW_PCT': 40, 'CUSTOM_RESCTRL_GROUP': 1},
                         self.amounts(mem_bw_max='20'))

    def test_vfs_unless_nova_counts_them(self):
        self.assertEqual({'CUSTOM_NIC': 3}, self.amounts(vfs='nic:3'))
        spec = self.spec(vfs='nic:3')
        spec.pci_requests = objects.InstancePCIRequests(requests=[])
        self.assertEqual({}, dict(limits.count_server_resources(spec)))
        self.override('filter_scheduler', pci_in_placement=False)
        self.assertEqual({}, self.amounts(vfs='nic:3'))

    def test_nothing_for_others_and_for_what_is_refused_anyway(self):
        for specs in ({}, {'monitor': 'true'}, {'mem_bw_min': 'x'}):
            self.assertEqual({}, self.amounts(**specs))

    def test_novas_amounts_are_kept_and_all_is_per_server(self):
        self.assertEqual(
            {'servers': 2, 'class:CUSTOM_MEM_BW_PCT': 67,
             'class:CUSTOM_RESCTRL_GROUP': 2},
            limits.add_usage_deltas(
                lambda spec, count: {'servers': count,
                                     'class:CUSTOM_MEM_BW_PCT': 7},
                self.spec(mem_bw_min='20', mem_bw_min__1='10'), 2))

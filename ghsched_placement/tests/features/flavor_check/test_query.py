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


from ghsched_placement.features.flavor_check import query
from ghsched_placement.flavor import policy
from ghsched_placement.query import request
from ghsched_placement.tests import base

ROOT = ('root_required', 'OWNER_NOVA,!COMPUTE_STATUS_DISABLED')


def query_of(flavor, wanted=None):
    return dict(query.make_candidates_query(flavor,
                                            wanted or request.Request()))


def flavor(**extra_specs):
    return query.FlavorAmounts(vcpus=4, pcpus=0, memory_mb=512, disk_gb=1,
                               extra_specs={key.replace('__', ':'): value
                                            for key,
                                            value in extra_specs.items()})


class BaseTest(base.TestCase):

    def test_a_plain_flavor(self):
        self.assertEqual(
            [('limit', '1000'), ('resources', 'DISK_GB:1,MEMORY_MB:512,'
                                              'VCPU:4'), ROOT],
            query.make_candidates_query(flavor(), request.Request()))

    def test_no_disk_is_not_asked_for(self):
        got = query_of(query.FlavorAmounts(1, 0, 512))
        self.assertEqual('MEMORY_MB:512,VCPU:1', got['resources'])

    def test_swap_is_rounded_up_to_whole_gigabytes(self):
        for swap_mb, gigabytes in ((0, 5), (1, 6), (1024, 6), (1025, 7)):
            self.assertEqual(gigabytes, query.FlavorAmounts(
                1, 0, 1, disk_gb=5, swap_mb=swap_mb).total_disk_gb)

    def test_dedicated_and_mixed_cpus(self):
        for vcpus, pcpus, cpus in ((0, 4, 'PCPU:4'), (3, 1, 'PCPU:1,VCPU:3')):
            got = query_of(query.FlavorAmounts(vcpus, pcpus, 512))
            self.assertEqual(f'MEMORY_MB:512,{cpus}', got['resources'])


class FlavorTest(base.TestCase):

    def test_resources_and_traits(self):
        got = query_of(flavor(resources__VCPU='0', resources__MEMORY_MB='7',
                              resources__BAD='1', resources__CUSTOM_A='x',
                              trait__CUSTOM_T='required',
                              trait__CUSTOM_U='forbidden', trait__CUSTOM_V='x',
                              resources_b__CUSTOM_B='2'))
        self.assertEqual('DISK_GB:1,MEMORY_MB:7', got['resources'])
        self.assertEqual('CUSTOM_T,!CUSTOM_U', got['required'])
        self.assertEqual('CUSTOM_B:2', got['resources_b'])

    def test_hidden_values(self):
        self.assertEqual(
            ('hw:mem_encryption', 'pci_passthrough:alias'),
            query.list_ignored_extra_specs({'pci_passthrough:alias': 'a:1',
                                            'hw:x': '1',
                                            'hw:mem_encryption': '1',
                                            'hw:numa_nodes': '1'}))


class GhschedTest(base.TestCase):

    def wanted(self, nodes=1):
        parsed = policy.parse_policy({'ghsched:mem_bw_min': '60'}, nodes)
        assert parsed is not None
        return request.build_request(parsed, 'min')

    def test_our_groups_and_traits(self):
        got = query_of(flavor(), self.wanted())
        self.assertEqual('CUSTOM_MEM_BW_PCT:60', got['resourcesghsched_bw0'])
        self.assertEqual(
            'CUSTOM_RESCTRL_GROUP:1,DISK_GB:1,MEMORY_MB:512,VCPU:4',
            got['resources'])
        self.assertEqual('CUSTOM_GHSCHED_MEM_BW_MIN,OWNER_NOVA,'
                         '!COMPUTE_STATUS_DISABLED', got['root_required'])

    def test_a_cloud_with_older_compute_services_asks_for_no_owner(self):
        asked = dict(query.make_candidates_query(flavor(), self.wanted(),
                                                 require_owner=False))
        self.assertEqual('CUSTOM_GHSCHED_MEM_BW_MIN,!COMPUTE_STATUS_DISABLED',
                         asked['root_required'])

    def test_group_policy_isolates_host_nodes_of_one_guest(self):
        wanted, alone = self.wanted(nodes=2), self.wanted()
        for specs, groups, expected in (
                ({}, wanted, 'isolate'), ({}, alone, None),
                ({'group_policy': 'none'}, wanted, 'none'),
                ({'group_policy': 'isolate'}, wanted, 'isolate'),
                ({'group_policy': 'x'}, wanted, 'isolate'),
                ({'resources1__CUSTOM_A': '1'}, alone, 'none'),
                ({'resources1__CUSTOM_A': '1',
                  'resources2__CUSTOM_A': '1'}, wanted, None)):
            self.assertEqual(
                expected,
                query_of(flavor(**specs), groups).get('group_policy'))

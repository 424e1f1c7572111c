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

"""``ghsched explain`` prints the query that nova-scheduler sends."""

import itertools
import re
from urllib import parse

import fixtures
from nova.scheduler.client import report

from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import test_vfs
from ghsched_placement.features.flavor_check import query
from ghsched_placement.features.planner.flavors import Flavor
from ghsched_placement.features.planner import need as needs
from ghsched_placement.flavor import policy as policies
from ghsched_placement.query import request

KEYS = {'ghsched:mem_bw_min': '30', 'ghsched:mem_bw_max': '50',
        'ghsched:mem_bw_hardlimit': 'false', 'ghsched:mem_bw_priority': '5',
        'ghsched:mem_bw_min.1': '40'}


class ExplainedQueryTest(test_vfs.VfsTestCase):

    def setUp(self):
        super().setUp()
        self.sent = []
        get = report.SchedulerReportClient.get

        def noted(client, url, *args, **kwargs):
            if url.startswith('/allocation_candidates?'):
                self.sent.append(url.partition('?')[2])
            return get(client, url, *args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(
            'nova.scheduler.client.report.SchedulerReportClient.get', noted))
        # Pinned guests are otherwise asked for a second time, with VCPU.
        self.flags(disable_fallback_pcpu_query=True, group='workarounds')

    def test_printed_and_sent_values_agree(self):
        self.start_host()
        self.boot(self.flavor(
            vcpus=2, nodes=2, ram=512,
            **{key.removeprefix('ghsched:').replace('.', '__'): value
               for key, value in KEYS.items()}))
        flavor = query.FlavorAmounts(vcpus=0, pcpus=2, memory_mb=512,
                                     disk_gb=1,
                                     extra_specs={'hw:numa_nodes': '2',
                                                  'hw:cpu_policy': 'dedicated',
                                                  **KEYS})
        printed = query.make_candidates_query(
            flavor,
            request.build_request(policies.parse_policy(KEYS, 2), 'min'),
            require_owner=nova_base.RELEASE >= 34)
        (sent,) = self.sent
        self.assertEqual(sorted(printed), sorted(parse.parse_qsl(sent)))

    def test_the_query_for_hosts_without_pcpus_agrees(self):
        self.flags(disable_fallback_pcpu_query=False, group='workarounds')
        self.start_host()
        specs = {'hw:numa_nodes': '1', 'hw:cpu_policy': 'dedicated',
                 'hw:cpu_thread_policy': 'prefer', 'ghsched:mem_bw_min': '30'}
        self.boot(self.flavor(vcpus=2, nodes=1, ram=512, mem_bw_min=30))
        flavor = query.make_shared_cpu_flavor(query.FlavorAmounts(
            vcpus=0, pcpus=2, memory_mb=512, disk_gb=1, extra_specs=specs))
        printed = query.make_candidates_query(
            flavor, request.build_request(policies.parse_policy(
                {'ghsched:mem_bw_min': '30'}, 1), 'min'),
            require_owner=nova_base.RELEASE >= 34)
        _first, second = self.sent
        self.assertEqual(sorted(printed), sorted(parse.parse_qsl(second)))

    def test_vfs_are_asked_for_as_printed(self):
        self.start((0, 4), (1, 4), nodes=2, sockets=1)
        keys = {'ghsched:vfs': 'nic:3', 'ghsched:mem_bw_min.0': '10'}
        self.boot(self.flavor(nodes=2, vfs='nic:3', mem_bw_min__0=10))
        printed = needs.build_flavor_need(
            Flavor(
                'f', vcpus=2, ram=512, disk=1, extra_specs={
                    'hw:numa_nodes': '2', 'hw:cpu_policy': 'dedicated',
                    **keys}), aliases={'nic': test_vfs.VF_CLASS},
            needs_owner_trait=nova_base.RELEASE >= 34).make_nova_query(
                'node', {})
        (sent,) = self.sent
        # What is printed has names where Nova has random numbers.
        ids = set(re.findall('resources([0-9a-f-]{36})-0=', sent))
        found = []
        for order in itertools.permutations(ids):
            text = sent
            for number, request_id in enumerate(order):
                text = text.replace(
                    request_id, f'vfs0-nic-node{number}')
            found.append(self.canonical(parse.parse_qsl(text)))
        self.assertIn(self.canonical(printed), found)

    def canonical(self, parameters):
        """Independent of the order of words in a value."""
        return sorted((name, sorted(value.split(',')))
                      for name, value in parameters)

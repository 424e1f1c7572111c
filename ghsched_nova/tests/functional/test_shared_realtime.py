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

"""Real-time vCPUs on shared CPUs, counted by Placement."""

import fixtures

from ghsched_nova.tests.functional import nova_base
from ghsched_placement import names


class SharedRealTimeTest(nova_base.GhschedTestCase):

    def setUp(self):
        super().setUp()
        self.flags(cpu_dedicated_set=None, cpu_shared_set='0-7',
                   group='compute')
        self.flags(realtime_shared_percent=50, group='ghsched')
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.virt.scheduling._realtime_refused', str))
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.virt.scheduling._sysctl',
            lambda _name, default: default))
        self.start_host()

    def rr(self, runtime=4000, **more):
        return self.flavor(policy='shared', vcpu_scheduler='rr',
                           vcpu_priority=10, vcpu_runtime_us=runtime,
                           vcpu_period_us=10000, **more)

    def offered(self, node):
        record = self._get_provider_inventory(
            self.provider('host_a', node))[names.RT_CPU_PERMILLE]
        return record['total'] - record['reserved']

    def held(self, server):
        allocations = self.placement.get(
            f'/allocations/{server["id"]}').body['allocations']
        return {provider: one['resources'][names.RT_CPU_PERMILLE]
                for provider, one in allocations.items()
                if names.RT_CPU_PERMILLE in one['resources']}

    def test_no_more_than_a_node_offers_and_on_that_node(self):
        # 4 CPUs, of each of which the kernel leaves 90 %, and half of that.
        self.assertEqual([1800, 1800], list(map(self.offered, (0, 1))))
        servers = [self.boot(self.rr()) for _number in range(4)]
        nodes = [self.host_nodes(server)[0] for server in servers]
        self.assertEqual([0, 0, 1, 1], sorted(nodes))
        for server, node in zip(servers, nodes, strict=True):
            self.assertEqual({self.provider('host_a', node): 800},
                             self.held(server))
        refused = self.boot(self.rr(), state='ERROR')
        self.assertIn('no host NUMA node has 800 thousandths of a shared CPU '
                      'for real-time vCPUs left (ghsched:vcpu_runtime_us)',
                      self.fault(refused))
        self.assertEqual({}, self.held(refused))
        # One of another class needs none of it.
        self.boot(self.flavor(policy='shared', vcpu_scheduler='batch'))
        # What is held is not taken away, and nobody gets more.
        self.flags(realtime_shared_percent=0, group='ghsched')
        self.reserve()
        self.assertEqual([0, 0], list(map(self.offered, (0, 1))))
        self._delete_server(servers[0])
        self.boot(self.rr(), state='ERROR')

    def test_bandwidth_of_the_same_node(self):
        self.reserve(n0=60)
        server = self.boot(self.rr(mem_bw_min=60))
        self.assertEqual([1], self.host_nodes(server))
        self.assert_agreement(server, 'host_a', [60])
        self.assertEqual({self.provider('host_a', 1): 800},
                         self.held(server))

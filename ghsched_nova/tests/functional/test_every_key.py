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

"""Each key alone through node moves, live changes, limits and the audit.

Generated over the table of keys. Whatever a key makes Placement count goes
with the guest, or the guest stays and nothing changes.
"""

import ddt
import fixtures
from nova import objects
from testtools import content

from ghsched_nova.api import limits
from ghsched_nova.guest import metadata
from ghsched_nova.guest import move_record
from ghsched_nova.live import errors
from ghsched_nova.live import records
from ghsched_nova.live import servers
from ghsched_nova.tests.fixtures import guest_memory
from ghsched_nova.tests.functional import openstack_base
from ghsched_nova.tests.functional import test_vfs
from ghsched_placement import names
from ghsched_placement.osc import audit
from ghsched_placement import policy as policies
from ghsched_placement.tests.fixtures import sample_flavors

#: Key names in parts, so that tests can run beside each other.
_KEYS = sorted(sample_flavors.SAMPLES)
_PARTS = [_KEYS[first::5] for first in range(5)]


class AllCapabilitiesTestCase(openstack_base.CommandTestCase,
                              test_vfs.VfsTestCase):
    """A host of two NUMA nodes that can hold every key."""

    def setUp(self):
        super().setUp()
        self.flags(cpu_shared_set='0-2,6-8', cpu_dedicated_set='3-5,9-11',
                   group='compute')
        self.flags(realtime_shared_percent=50, deadline_guests=True,
                   irq_bypass=['posted'],
                   bandwidth_bursts={'0': 40, '1': 40},
                   node_bandwidth={'0': 10000, '1': 10000}, group='ghsched')
        for name in ('probe_realtime', 'probe_deadline'):
            self.useFixture(fixtures.MonkeyPatch(
                f'ghsched_nova.threads.privileged.{name}',
                lambda *_args: ''))
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.host.scheduling._sysctl',
            lambda _name, default: default))
        self.useFixture(guest_memory.FakeMemory())
        self.kernel.divides_l3 = True
        self.start((0, 2), (1, 2), nodes=2, sockets=1)

    def boot_with(self, extra_specs):
        return self.boot(self.flavor(nodes=0, policy=None, extra=extra_specs))

    def move(self, server, node):
        with records.in_cell(server['id']) as context:
            return servers.move(context, server['id'], {0: node}, False)

    def change(self, server, **asked):
        with records.in_cell(server['id']) as context:
            return servers.change(context, server['id'], {
                f'ghsched:{name}': value for name, value in asked.items()},
                False)

    def held(self, server):
        """{host node: {class: amount}} of our classes of NUMA nodes."""
        found = {}
        for node in (0, 1):
            amounts = self.resources(server['id']).get(
                self.provider('host_a', node), {})
            ours = {name: amount for name, amount in amounts.items()
                    if name in names.NODE_CLASSES}
            if ours:
                found[node] = ours
        return found

    def xml(self, server):
        return self.domain('host_a', server)

    def counted(self, extra_specs):
        """Amounts by class that nova-api counts for a resize to a flavor."""
        return dict(limits.amounts(objects.RequestSpec(flavor=objects.Flavor(
            vcpus=2, extra_specs=extra_specs))))


@ddt.ddt
class SingleKeyTest(AllCapabilitiesTestCase):

    @ddt.data(*_PARTS)
    def test_server_with_one_key_moves_or_stays_with_all_records(self, part):
        for name in part:
            self.addDetail('key', content.text_content(name))
            server = self.boot_with(sample_flavors.flavor(name))
            self.check_records(server, name)
            self.check_limits(server, name)
            self.check_move(server, name)
            self.check_live_change(server, name)
            self._delete_server(server)

    def check_records(self, server, name):
        """Placement, domain, report and audit agree on the node."""
        node, = self.host_nodes(server)
        policy = policies.parse(sample_flavors.flavor(name), 1, 2)
        wanted = policy.resources()
        self.assertEqual({node: wanted[0]} if wanted else {},
                         self.held(server))
        domain = metadata.read_policy(self.xml(server))
        self.assertLessEqual(set(domain.counted_nodes), {node})
        self.assertEqual(wanted, domain.policy.resources())
        self.assertIsNone(move_record.read_record(self.xml(server)))
        self._run_periodics()
        self.assertEqual(
            {}, self.computes['host_a'].driver._ghsched.uncounted)
        self.assertEqual((0, []), self.outcome(audit.Audit,
                                               '--no-effective'))

    def check_limits(self, server, name):
        """nova-api counts what Placement holds of our classes and of VFs."""
        held = {}
        for amounts in self.resources(server['id']).values():
            for kind, amount in amounts.items():
                if kind in names.OUR_CLASSES or 'PCI' in kind:
                    held[kind] = held.get(kind, 0) + amount
        self.assertEqual(held, self.counted(sample_flavors.flavor(name)))

    def check_move(self, server, name):
        start, = self.host_nodes(server)
        if 'ghsched:vfs' in sample_flavors.flavor(name):
            error = self.assertRaises(errors.Refused, self.move, server,
                                      1 - start)
            self.assertIn('0000:8', str(error))
            self.check_records(server, name)
            return
        for node in (1 - start, start):
            self.assertTrue(self.move(server, node).needed)
            self.assertEqual([node], self.host_nodes(server))
            self.check_records(server, name)

    def check_live_change(self, server, name):
        """A running guest with bandwidth gets another cap, all else stays."""
        before, xml = self.held(server), self.xml(server)
        if metadata.read_policy(xml).policy.controlled:
            self.assertTrue(self.change(server, mem_bw_max='70').needed)
            self.assertEqual(
                [70], [node.maximum for node in
                       metadata.read_policy(self.xml(server)).policy.nodes])
        else:
            error = self.assertRaises(Exception, self.change, server,  # noqa
                                      mem_bw_max='70')
            self.assertIn('ghsched:mem_bw', str(error))
            self.assertEqual(xml, self.xml(server))
        self.assertEqual(before, self.held(server))


class AllClassesTest(AllCapabilitiesTestCase):
    """A server that every resource class of a NUMA node is counted of."""

    def test_all_classes_move_in_one_request_each_way(self):
        specs = sample_flavors.flavor(*sample_flavors.KEY_OF_CLASS.values())
        server = self.boot_with(specs)
        node, = self.host_nodes(server)
        self.assertEqual(names.NODE_CLASSES, self.held(server)[node].keys())
        amounts = self.held(server)[node]
        self.move(server, 1 - node)
        self.assertEqual({1 - node: amounts}, self.held(server))

    def test_class_without_room_on_the_other_node_refuses_the_move(self):
        for kind, key in sample_flavors.KEY_OF_CLASS.items():
            mover = self.boot_with(sample_flavors.flavor(key))
            node, = self.host_nodes(mover)
            provider = self.provider('host_a', 1 - node)
            record = self._get_provider_inventory(provider)[kind]
            capacity = int((record['total'] - record['reserved'])
                           * record['allocation_ratio'])
            self.occupy(provider, kind, capacity)
            before = self.held(mover)
            error = self.assertRaises(errors.Refused, self.move, mover,
                                      1 - node)
            self.assertIn(f'host NUMA node {1 - node} has 0', str(error))
            self.assertEqual(before, self.held(mover))
            self.assertEqual([node], self.host_nodes(mover))
            self.placement.put('/allocations/' + self.consumer, {
                'allocations': {}, 'project_id': 'p', 'user_id': 'u',
                'consumer_generation': 1}, version='1.28')
            self._delete_server(mover)

    consumer = 'c0ffee00-35f5-4c4b-9f38-1c6f2f3f8d55'

    def occupy(self, provider, kind, amount):
        answer = self.placement.put('/allocations/' + self.consumer, {
            'allocations': {provider: {'resources': {kind: amount}}},
            'project_id': 'p', 'user_id': 'u', 'consumer_generation': None},
            version='1.28')
        self.assertEqual(204, answer.status)

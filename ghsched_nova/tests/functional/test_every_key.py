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

"""Each key alone through moves, live changes, limits and the audit.

Generated over the table of keys. Whatever a key makes Placement count goes
with the guest, or the guest stays and nothing changes.
"""

import os

import ddt
import fixtures
from nova import context as nova_context
from nova import objects
from testtools import content

from ghsched_nova.api import limits
from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.live_change import move_xml
from ghsched_nova.features.live_change import records
from ghsched_nova.features.live_change import servers
from ghsched_nova.guest import metadata
from ghsched_nova.tests.fixtures import guest_memory
from ghsched_nova.tests.fixtures import realtime
from ghsched_nova.tests.functional import openstack_base
from ghsched_nova.tests.functional import test_lifecycle
from ghsched_nova.tests.functional import test_moves
from ghsched_nova.tests.functional import test_vfs
from ghsched_placement.features.live_change import change as changes
from ghsched_placement.flavor import policy as policies
from ghsched_placement.osc import audit
from ghsched_placement.providers import names
from ghsched_placement.tests.fixtures import sample_flavors
from ghsched_placement.tests.fixtures import spaces

_ALL = os.environ.get('GHSCHED_KEY_JOURNEYS') == 'all'
_KEYS = sorted(sample_flavors.SAMPLES)

#: Key names in parts, so that tests can run beside each other. By default one
#: key of each kind: counted by Placement with and without a control group, by
#: node, by host, as devices, not counted; a commit runs one of each part.
_PARTS = ([_KEYS[first::5] for first in range(5)] if _ALL else
          [spaces.choose(['mem_bw_min', 'vfs', 'monitor']),
           spaces.choose(['l3_ways', 'numa', 'vcpu_runtime_us',
                          'affinity_group', 'vcpu_classes'])])

#: Those that are taken through all moves between hosts, in parts. By default
#: those that have no bandwidth, which other tests have: one with a control
#: group, one that is counted without one, one that is not counted; and one
#: with several control groups.
_JOURNEYS = (_PARTS if _ALL else
             [spaces.choose(['l3_ways', 'vcpu_runtime_us', 'affinity_group',
                             'vcpu_classes'])])

#: A value of each key that can change while a guest runs; no sample has it.
CHANGED = {'mem_bw_min': '25', 'mem_bw_max': '65',
           'mem_bw_hardlimit': 'false', 'mem_bw_priority': '3'}
assert CHANGED.keys() == {key.name for key in changes.CHANGEABLE}


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
        self.useFixture(realtime.PermittedRealtime())
        self.useFixture(guest_memory.FakeMemory())
        self.kernel.divides_l3 = True
        self.start((0, 2), (1, 2), nodes=2, sockets=1)

    def boot_with(self, extra_specs, **where):
        return self.boot(self.flavor(nodes=0, policy=None, extra=extra_specs),
                         **where)

    def move(self, server, node):
        with records.open_cell_context(server['id']) as context:
            return servers.move_server(context, server['id'], {0: node}, False)

    def change(self, server, **asked):
        with records.open_cell_context(server['id']) as context:
            return servers.change_server_policy(context, server['id'], {
                f'ghsched:{name}': value for name, value in asked.items()},
                False)

    def host(self, server):
        return self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']

    def allocated_by_node(self, server):
        """{host node: {class: amount}} of our classes of NUMA nodes."""
        found = {}
        for node in (0, 1):
            amounts = self.resources(server['id']).get(
                self.provider(self.host(server), node), {})
            ours = {name: amount for name, amount in amounts.items()
                    if name in names.NODE_CLASSES}
            if ours:
                found[node] = ours
        return found

    def xml(self, server):
        return self.domain(self.host(server), server)

    def count_for_limits(self, extra_specs):
        """Amounts by class that nova-api counts for a resize to a flavor."""
        return dict(
            limits.count_server_resources(
                objects.RequestSpec(
                    flavor=objects.Flavor(vcpus=2, extra_specs=extra_specs)
                )
            )
        )

    def check_place(self, server, extra_specs):
        """Placement and domain agree on the node, with all of each class."""
        node, = self.host_nodes(server)
        policy = policies.parse_policy(extra_specs, 1, 2)
        wanted = policy.get_resources_by_node()
        self.assertEqual({node: wanted[0]} if wanted else {},
                         self.allocated_by_node(server))
        domain = metadata.read_policy(self.xml(server))
        self.assertLessEqual(set(domain.allocated_nodes), {node})
        self.assertEqual(wanted, domain.policy.get_resources_by_node())
        self.assertEqual(policy.nodes, domain.policy.nodes)
        self.assertIsNone(move_xml.read_move_record(self.xml(server)))

    def check_records(self, server, extra_specs):
        """Placement, domain, report and audit agree on the node."""
        self.check_place(server, extra_specs)
        self._run_periodics()
        for compute in self.computes.values():
            self.assertEqual({}, compute.driver._ghsched.uncounted)
            self.assertEqual({}, compute.driver._ghsched.not_held)
        self.assertEqual((0, []), self.outcome(audit.Audit,
                                               '--no-effective'))


@ddt.ddt
class SingleKeyTest(AllCapabilitiesTestCase):

    @ddt.data(*_PARTS)
    def test_server_with_one_key_moves_or_stays_with_all_records(self, part):
        for name in part:
            self.addDetail('key', content.text_content(name))
            specs = sample_flavors.flavor(name)
            server = self.boot_with(specs)
            self.check_records(server, specs)
            self.check_limits(server, specs)
            self.check_move(server, specs)
            self.check_live_change(server, specs)
            self._delete_server(server)

    def check_limits(self, server, specs):
        """nova-api counts what Placement holds of our classes and of VFs."""
        held = {}
        for amounts in self.resources(server['id']).values():
            for kind, amount in amounts.items():
                if kind in names.OUR_CLASSES or 'PCI' in kind:
                    held[kind] = held.get(kind, 0) + amount
        self.assertEqual(held, self.count_for_limits(specs))

    def check_move(self, server, specs):
        start, = self.host_nodes(server)
        if 'ghsched:vfs' in specs:
            error = self.assertRaises(errors.Refused, self.move, server,
                                      1 - start)
            self.assertIn('0000:8', str(error))
            self.check_records(server, specs)
            return
        for node in (1 - start, start):
            self.assertTrue(self.move(server, node).is_needed)
            self.assertEqual([node], self.host_nodes(server))
            self.check_records(server, specs)

    def check_live_change(self, server, specs):
        """A running guest with bandwidth gets other values, the rest stays."""
        xml = self.xml(server)
        if not metadata.read_policy(xml).policy.needs_control_group:
            error = self.assertRaises(policies.PolicyError, self.change,
                                      server, mem_bw_max='70')
            self.assertIn('ghsched:mem_bw', str(error))
            self.assertEqual(xml, self.xml(server))
            self.check_records(server, specs)
            return
        self.assertTrue(self.change(server, **CHANGED).needed)
        self.check_records(server, {**specs, **{
            f'ghsched:{name}': value for name, value in CHANGED.items()}})


@ddt.ddt
class JourneyTest(AllCapabilitiesTestCase):
    """Servers with one key each through all moves between two hosts."""

    def setUp(self):
        super().setUp()
        # No guest of Nova's fixture shuts down when it is asked to. A busy
        # machine takes longer for a move than Nova waits for an answer.
        self.flags(shelved_offload_time=0, shutdown_timeout=0,
                   rpc_response_timeout=1200, long_rpc_timeout=1200)
        self.useFixture(fixtures.MonkeyPatch(test_lifecycle.MOVE_DISK,
                                             test_moves.move_disk))
        self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.driver.LibvirtDriver.snapshot'))
        self.start((0, 2), (1, 2), name='host_b', nodes=2, sockets=1)
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']

    @ddt.data(*_JOURNEYS)
    def test_server_with_one_key_takes_all_with_it_to_other_hosts(self, part):
        for name in part:
            self.addDetail('key', content.text_content(name))
            specs = sample_flavors.flavor(name)
            server = self.boot_with(specs, host='host_a')
            self.check_moves(server, specs)
            self._delete_server(server)
            self._run_periodics()
            self.assert_nothing_left()

    def check_moves(self, server, specs):
        # A live migration comes first: the domain that Nova's fixture makes
        # of it is gone when it is shut down.
        here, there = 'host_a', 'host_b'
        if 'ghsched:vfs' not in specs:
            self.server = server
            self._live_migrate(server)
            self.check_on('host_b', server, specs)
            here, there = there, here
        for host, moves in (
                (here, (self._migrate_server, self._revert_resize)),
                (there, (self._migrate_server,)),
                (there, (self._confirm_resize,))):
            for move in moves:
                move(server)
            self.check_on(host, server, specs)
        self.wait_until(lambda: not self.domains(here))
        self._shelve_server(server)
        self.assertEqual({}, self.resources(server['id']))
        self._unshelve_server(server)
        self.check_records(server, specs)

    @ddt.data(*_JOURNEYS)
    def test_server_with_one_key_takes_all_with_it_when_evacuated(self, part):
        servers_of = {name: self.boot_with(sample_flavors.flavor(name),
                                           host='host_a') for name in part}
        self.stop_host('host_a')
        for name, server in servers_of.items():
            self.addDetail('key', content.text_content(name))
            self._evacuate_server(server, expected_host='host_b')
            self._start_server(server)
            self.check_place(server, sample_flavors.flavor(name))
        host = self.computes['host_b']
        host.manager.update_available_resource(
            nova_context.get_admin_context())
        self.assertEqual({}, host.driver._ghsched.uncounted)
        self.assertEqual({}, host.driver._ghsched.not_held)

    def check_on(self, host, server, specs):
        self.assertEqual(host, self.host(server))
        self.check_records(server, specs)

    def assert_nothing_left(self):
        for host in self.computes:
            self.wait_until(lambda host=host: not self.domains(host))
            for provider in (self.compute_rp_uuids[host],
                             self.provider(host, 0), self.provider(host, 1)):
                used = self._get_provider_usages(provider)
                self.assertEqual({}, {
                    kind: amount for kind, amount in used.items() if amount})


class AllClassesTest(AllCapabilitiesTestCase):
    """A server that every resource class of a NUMA node is counted of."""

    def test_all_classes_move_in_one_request_each_way(self):
        specs = sample_flavors.flavor(*sample_flavors.KEY_OF_CLASS.values())
        server = self.boot_with(specs)
        node, = self.host_nodes(server)
        amounts = self.allocated_by_node(server)[node]
        self.assertEqual(names.NODE_CLASSES, amounts.keys())
        self.move(server, 1 - node)
        self.assertEqual({1 - node: amounts}, self.allocated_by_node(server))

    def test_class_without_room_on_the_other_node_refuses_the_move(self):
        for kind, key in sample_flavors.KEY_OF_CLASS.items():
            mover = self.boot_with(sample_flavors.flavor(key))
            node, = self.host_nodes(mover)
            provider = self.provider('host_a', 1 - node)
            record = self._get_provider_inventory(provider)[kind]
            capacity = int((record['total'] - record['reserved'])
                           * record['allocation_ratio'])
            self.occupy(provider, kind, capacity)
            before = self.allocated_by_node(mover)
            error = self.assertRaises(errors.Refused, self.move, mover,
                                      1 - node)
            self.assertIn(f'host NUMA node {1 - node} has 0', str(error))
            self.assertEqual(before, self.allocated_by_node(mover))
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

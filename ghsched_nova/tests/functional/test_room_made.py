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

"""After an event that gives resources back an equal boot is not refused.

No host makes a periodic report after the event. GHSCHED_ROOM_SEQUENCES sets
the number of random sequences of events, GHSCHED_ROOM_SEED the first seed.
"""

import os
import random
import time
from unittest import mock

import fixtures
from nova.scheduler.client import report
from nova.tests.functional.api import client

from ghsched_nova.features.live_change import records
from ghsched_nova.features.live_change import servers
from ghsched_nova.tests.fixtures import guest_memory
from ghsched_nova.tests.functional import test_index
from ghsched_placement.providers import names

SEQUENCES = int(os.environ.get('GHSCHED_ROOM_SEQUENCES', '1'))

SEED = int(os.environ.get('GHSCHED_ROOM_SEED', '1'))

#: Events of one random sequence.
EVENTS = 4


class RoomMadeTestCase(test_index.IndexTestCase):
    """Guests of 60 % on hosts of two NUMA nodes, and what frees their room."""

    def setUp(self):
        super().setUp()
        self.memory = self.useFixture(guest_memory.FakeMemory())
        self.flags(allow_resize_to_same_host=True)
        self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.driver.LibvirtDriver.'
            'migrate_disk_and_power_off', return_value='{}'))
        self.wanted = self.flavor(vcpus=1, mem_bw_min=60)

    @property
    def repeated(self):
        """Number of refusals that were repeated without a search."""
        return self.scheduler.manager._indexed._counts['remembered']

    def try_to_boot(self, flavor=None):
        """Return a new server; None if it is refused."""
        server = self.api.post_server({'server': self._build_server(
            flavor_id=flavor or self.wanted, networks='none')})
        while server.get('status', 'BUILD') == 'BUILD':
            time.sleep(.1)
            server = self.api.get_server(server['id'])
        if server['status'] == 'ACTIVE':
            return server
        self.assertIn('No valid host', self.fault(server))
        self._delete_server(server)
        return None

    def fill(self, flavor=None):
        """Boot guests until one is refused; return them."""
        found = []
        while (server := self.try_to_boot(flavor)) is not None:
            found.append(server)
        return found

    def refuse_again(self, flavor=None):
        """Boot an equal server, which is refused without a search."""
        before = self.repeated
        self.assertIsNone(self.try_to_boot(flavor))
        self.assertEqual(before + 1, self.repeated)

    # -- events ---------------------------------------------------------------

    def delete(self, server):
        self._delete_server(server)

    def lower(self, server):
        with records.open_cell_context(server['id']) as context:
            servers.change_server_policy(
                context, server['id'], {'ghsched:mem_bw_min': '30'}, False)

    def move_inside(self, server):
        node, = self.host_nodes(server)
        domains = {domain.UUIDString(): domain
                   for domain in self.domains(self.host(server))}
        self.memory.nodes[domains[server['id']].name()] = frozenset({node})
        with records.open_cell_context(server['id']) as context:
            servers.move_server(context, server['id'], {0: 1 - node}, False)

    def shelve(self, server):
        self.api.post_server_action(server['id'], {'shelve': {}})
        self._wait_for_state_change(server, 'SHELVED_OFFLOADED')

    def resize_down(self, server):
        if self.try_to_resize(server, self.flavor(vcpus=1, mem_bw_min=10)):
            self._confirm_resize(self.api.get_server(server['id']))

    def revert(self, server):
        if self.try_to_resize(server, self.flavor(vcpus=1, mem_bw_min=10)):
            self._revert_resize(server)

    def try_to_resize(self, server, flavor):
        """Return whether a host has room for a server with a new flavor."""
        try:
            self.api.post_server_action(server['id'],
                                        {'resize': {'flavorRef': flavor}})
        except client.OpenStackApiException as error:
            # Nova's fixture makes a call of the cast to nova-conductor.
            self.assertIn('NoValidHost', str(error))
        while (server := self.api.get_server(server['id']))['status'] not in (
                'VERIFY_RESIZE', 'ACTIVE'):
            time.sleep(.1)
        return server['status'] == 'VERIFY_RESIZE'

    def release_by_hand(self, server):
        """Remove a server's bandwidth from Placement; no host reports it."""
        held = self.placement.get(f"/allocations/{server['id']}").body
        allocations = {
            provider: {'resources': {
                name: amount for name, amount in one['resources'].items()
                if name != names.MEM_BW_PCT}}
            for provider, one in held['allocations'].items()}
        self.placement.put(f"/allocations/{server['id']}", {
            **held, 'allocations': {
                provider: one for provider, one in allocations.items()
                if one['resources']}})


class RoomMadeTest(RoomMadeTestCase):

    def setUp(self):
        super().setUp()
        self.start_host()

    def test_bandwidth_given_back_is_found_at_once(self):
        first, second = self.fill()
        self.refuse_again()
        for event, server in ((self.lower, first), (self.delete, second)):
            event(server)
            second = self.try_to_boot()
            self.assertIsNotNone(second)
            self.assertIsNone(self.try_to_boot())
            self.refuse_again()

    def test_node_that_a_move_empties_is_found_at_once(self):
        small = self.flavor(vcpus=1, mem_bw_min=40)
        big = self.flavor(vcpus=1, mem_bw_min=80)
        guests = self.fill(small)
        nodes = {}
        for server in guests:
            node, = self.host_nodes(server)
            if node in nodes:
                self._delete_server(server)
            nodes.setdefault(node, server)
        self.assertIsNone(self.try_to_boot(big))
        self.refuse_again(big)
        self.move_inside(nodes[0])
        self.assertIsNotNone(self.try_to_boot(big))

    def test_boot_amid_a_deletion_is_refused_only_until_it_ends(self):
        flavor = self.flavor(vcpus=4)
        first, _second = self.fill(flavor)
        self.refuse_again(flavor)
        release = report.SchedulerReportClient.delete_allocation_for_instance
        amid = []

        def boot_and_release(client, context, uuid, *args, **kwargs):
            if uuid == first['id']:
                amid.append(self.try_to_boot(flavor))
            return release(client, context, uuid, *args, **kwargs)
        with mock.patch.object(report.SchedulerReportClient, release.__name__,
                               boot_and_release):
            self._delete_server(first)
        self.assertEqual([None], amid)
        self.assertIsNotNone(self.try_to_boot(flavor))


class RandomRoomMadeTest(RoomMadeTestCase):

    def setUp(self):
        super().setUp()
        for name in ('host_a', 'host_b'):
            self.start_host(name)

    def test_refusals_after_random_events_are_those_of_a_search(self):
        events = (self.delete, self.lower, self.shelve, self.resize_down,
                  self.revert, self.release_by_hand)
        for seed in range(SEED, SEED + SEQUENCES):
            chance = random.Random(seed)  # noqa: S311
            with self.subTest(seed=seed):
                guests = self.fill()
                self.assertIsNone(self.try_to_boot())
                for event in chance.choices(events, k=EVENTS):
                    guest = guests.pop(chance.randrange(len(guests)))
                    event(guest)
                    self.assert_refused_rightly(guests)
            for server in self.api.get_servers():
                self._delete_server(server)
            # Without a report Nova's host keeps the CPUs of a server that is
            # deleted soon after its resize was confirmed
            # (ResourceTracker.update_usage()).
            self._run_periodics()
        # Not each is repeated: a row of a host may change meanwhile.
        self.assertGreater(self.repeated, 0)

    def assert_refused_rightly(self, guests):
        """Boot; if that is refused, so is a boot without the memory."""
        server = self.try_to_boot()
        if server is None:
            self.scheduler.manager._indexed.drop_cached_refusals()
            server = self.try_to_boot()
            self.assertIsNone(server, 'a repeated refusal was not true')
        else:
            guests.append(server)

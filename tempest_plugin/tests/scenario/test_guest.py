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

"""Guests that see their host, and the nodes that they get."""

import json

from tempest.lib import decorators
from tempest.lib import exceptions

from tempest_plugin.tests import base

#: Printed when the guest has shown what it sees.
READY = 'GUEST-READY'

#: Before each line that comes on the channel.
HEARD = 'GUEST-CHANNEL {'

#: Name of the guest's port in the XML of its domain.
PORT = 'org.openstack.ghsched.0'


class GuestTest(base.GhschedTest):
    """Guests with the host's topology, with a channel, and of any size."""

    @decorators.idempotent_id('6c7f8193-ab5c-46ed-8081-3c4d5e6f7032')
    @base.needs('GUEST_TOPOLOGY')
    @base.reads_console
    def test_guest_sees_its_nodes_and_their_distances(self):
        server = self._boot_server(self._create_flavor(
            nodes=2, guest_topology='host'))
        lines = self._read_console(server, READY).splitlines()
        self.assertIn('GUEST-NUMA online=0-1', map(str.strip, lines))
        distances = [line.partition('distance=')[2].split() for line in lines
                     if line.startswith('GUEST-NODE')]
        self.assertEqual(['10', '10'], [
            distances[node][node] for node in (0, 1)])
        self.assertGreater(int(distances[0][1]), 10)

    @decorators.idempotent_id('7d809204-bc6d-47fe-9192-4d5e6f708133')
    @base.needs('GUEST_CHANNEL', 'MEM_BW_MIN')
    @base.reads_console
    def test_guest_reads_its_policy_on_its_channel(self):
        server = self._boot_server(self._create_flavor(
            mem_bw_min=20, guest_channel='read'))
        console = self._read_console(server, READY, HEARD, '"effective":')
        line = console[console.index(HEARD):].splitlines()[0]
        message = json.loads(line[line.index('{'):])
        self.assertEqual(
            [20], [node['mem_bw_min'] for node in message['policy']['nodes']])

    @decorators.attr(type='negative')
    @decorators.idempotent_id('8e91a315-cd7e-4802-a2a3-5e6f70819234')
    @base.needs('MEM_BW_MIN')
    @base.looks_at_host
    def test_guest_without_the_key_has_no_channel(self):
        server = self._boot_server(self._create_flavor(
            mem_bw_min=20, guest_channel='none'))
        self.assertEqual([], self._read_xml(server).findall(
            f'./devices/channel/target[@name="{PORT}"]'))

    @decorators.idempotent_id('9fa2b426-de8f-4913-b3b4-6f708192a335')
    @base.needs('NUMA_AUTO', 'MEM_BW_MIN')
    @base.looks_at_host
    def test_scheduler_chooses_the_number_of_nodes(self):
        """Each guest node has the share, so two take two host nodes."""
        server = self._boot_server(self._create_flavor(
            nodes=2, specs={'hw:numa_nodes': None}, numa='auto', numa_max=2,
            numa_keep=True, mem_bw_min=10))
        cells = self._read_xml(server).findall('./numatune/memnode')
        self.assertIn(len(cells), (1, 2))
        self.assertEqual(
            {int(cell.get('nodeset')): 10 for cell in cells},
            self._get_host_nodes(server))

    @decorators.idempotent_id('a0b3c537-ef90-4a24-84c5-708192a3b436')
    @base.needs('MEM_BW_MIN')
    def test_guest_of_an_affinity_group_boots_with_its_group(self):
        """The group is a wish, so any node will do."""
        flavor = self._create_flavor(mem_bw_min=10, affinity_group='web')
        for _ in range(2):
            server = self._boot_server(flavor)
            self.assertEqual(
                'web', server['flavor']['extra_specs'][
                    'ghsched:affinity_group'])

    @decorators.idempotent_id('b1c4d648-f0a1-4b35-95d6-8192a3b4c537')
    @base.looks_at_host
    def test_memory_is_locked_or_the_refusal_names_the_key(self):
        """Whether a host may lock memory is known to libvirt alone."""
        flavor = self._create_flavor(lock_memory=True)
        try:
            server = self._boot_server(flavor)
        except base.ServerFailed as refused:
            self.assertIn('ghsched:lock_memory', str(refused))
        else:
            self.assertIsNotNone(
                self._read_xml(server).find('./memoryBacking/locked'))

    @decorators.attr(type='negative')
    @decorators.idempotent_id('c2d5e759-01b2-4c46-a6e7-92a3b4c5d638')
    def test_vfs_of_an_unknown_alias_are_refused_by_nova(self):
        refused = self.assertRaises(
            exceptions.BadRequest, self._boot_server, self._create_flavor(
                vfs='ghsched-none:1', device_numa='required',
                vfs_locality='node'))
        self.assertIn('ghsched-none', str(refused))

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

"""Guests whose flavors ask for memory bandwidth, from Nova to the host."""

from tempest import config
from tempest.lib import decorators

from ghsched_placement.providers import names
from tempest_plugin.tests.scenario import base

CONF = config.CONF

#: Shares of one host NUMA node, in percent. More than half of a node, so
#: that no two such guests share one.
MINIMUM = 60
MAXIMUM = 80
PRIORITY = 3


class MemoryBandwidthTest(base.GhschedTest):
    """Placement, the host and the scheduler agree on a guest's share."""

    # -- steps --------------------------------------------------------------

    def _host_node(self, server):
        """The host NUMA node that a server's bandwidth is allocated on."""
        allocations = self.placement.list_allocations(
            server['id'])['allocations']
        holders = [uuid for uuid, allocation in allocations.items()
                   if names.MEM_BW_PCT in allocation['resources']]
        self.assertEqual(1, len(holders), allocations)
        provider = self._list_numa_providers()[holders[0]]
        return int(provider['name'].rpartition('_NUMA')[2])

    def _free(self, uuid):
        """Bandwidth that Placement may still give away on one provider."""
        inventory = self.providers.list_resource_provider_inventories(
            uuid)['inventories'].get(names.MEM_BW_PCT)
        if inventory is None:
            return 0
        used = self.providers.list_resource_provider_usages(
            uuid)['usages'].get(names.MEM_BW_PCT, 0)
        capacity = ((inventory['total'] - inventory['reserved'])
                    * inventory['allocation_ratio'])
        return int(capacity) - used

    # -- tests --------------------------------------------------------------

    @decorators.idempotent_id('0f0f9e0c-2a5b-4a53-8a5b-7d1d3f3c5a11')
    def test_guarantee_is_allocated_on_a_numa_node(self):
        self._need('MEM_BW_MIN')
        server = self._boot_server(self._create_flavor(mem_bw_min=MINIMUM))
        allocations = self.placement.list_allocations(
            server['id'])['allocations']
        providers = self._list_numa_providers()
        shares = {uuid: allocation['resources'][names.MEM_BW_PCT]
                  for uuid, allocation in allocations.items()
                  if names.MEM_BW_PCT in allocation['resources']}
        self.assertEqual([MINIMUM], list(shares.values()))
        self.assertIn(next(iter(shares)), providers)
        groups = [allocation['resources'][names.RESCTRL_GROUP]
                  for allocation in allocations.values()
                  if names.RESCTRL_GROUP in allocation['resources']]
        self.assertEqual([1], groups)

    @decorators.idempotent_id('7c2d2f0e-93d5-4d0b-b0d1-0f6f1b0f4c52')
    def test_host_enforces_what_the_flavor_asks(self):
        if not CONF.ghsched.host_command:
            raise self.skipException('[ghsched]host_command is not set')
        needed = ('MEM_BW_MIN', 'MEM_BW_MAX', 'MEM_BW_HARDLIMIT')
        self._need(*needed)
        keys = {'mem_bw_min': MINIMUM, 'mem_bw_max': MAXIMUM,
                'mem_bw_hardlimit': True}
        if self._can(*needed, 'MEM_BW_PRIORITY'):
            keys['mem_bw_priority'] = PRIORITY
        server = self._boot_server(self._create_flavor(**keys))
        node = self._host_node(server)
        domain = server['OS-EXT-SRV-ATTR:instance_name']

        self._check_xml(self.host.read_domain_xml(domain), node)
        group = self.host.find_group_of_threads(
            self.host.read_vcpu_threads(domain))
        held = {
            resource: values.get(node)
            for resource, values in self.host.read_schemata(group).items()}
        # The hardware rounds a cap up to its next step.
        self.assertIn(
            int(held['MB']),
            range(MAXIMUM, MAXIMUM + self.host.read_bandwidth_step()))
        expected = {'MBMIN': MINIMUM, 'MBHDL': 1, 'MBPRI': PRIORITY}
        self.assertEqual(
            {resource: value for resource, value in expected.items()
             if resource in held},
            {resource: int(held[resource]) for resource in expected
             if resource in held})

    def _check_xml(self, xml, node):
        """The domain is on its node, and says what it was started with.

        It has <memorytune> only where the host's libvirt can use the
        kernel's resctrl; see the manual, "Compute hosts".
        """
        self.assertEqual(
            [str(node)], [memnode.get('nodeset') for memnode
                          in xml.findall('./numatune/memnode')])
        self.assertEqual(
            [(str(node), str(MINIMUM), str(MAXIMUM))],
            [(asked.get('host'), asked.get('min'), asked.get('max'))
             for asked in xml.findall('./metadata/{*}policy/{*}node')])
        cap = xml.find(f'./cputune/memorytune/node[@id="{node}"]')
        if cap is not None:
            self.assertEqual(str(MAXIMUM), cap.get('bandwidth'))

    @decorators.idempotent_id('c9a3f0b6-5a0d-44b8-8a4f-63f5b2d8a7e3')
    def test_guest_is_refused_when_no_node_has_its_share(self):
        self._need('MEM_BW_MIN')
        places = sum(max(self._free(uuid), 0) // MINIMUM
                     for uuid in self._list_numa_providers())
        if places > CONF.ghsched.max_guests:
            raise self.skipException(
                f'{places} guests fit, [ghsched]max_guests is '
                f'{CONF.ghsched.max_guests}')
        flavor = self._create_flavor(mem_bw_min=MINIMUM)
        for _ in range(places):
            self._boot_server(flavor)
        refused = self._boot_server(flavor, status='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])

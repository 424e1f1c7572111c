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

"""Guests with guaranteed, capped and measured memory bandwidth, and cache."""

from tempest import config
from tempest.lib import decorators
from tempest.lib import exceptions

from ghsched_placement.providers import names
from tempest_plugin.tests import base

CONF = config.CONF

#: Percent of a host NUMA node's memory bandwidth. The cap is a step of all
#: known hosts. Two such guests fit on a node.
MINIMUM = 20
MAXIMUM = 60
PRIORITY = 3


class MemoryBandwidthTest(base.GhschedTest):
    """Placement, the host and the scheduler agree on a guest's share."""

    @decorators.attr(type='smoke')
    @decorators.idempotent_id('0f0f9e0c-2a5b-4a53-8a5b-7d1d3f3c5a11')
    @base.needs('MEM_BW_MIN')
    def test_guarantee_is_allocated_on_a_numa_node(self):
        server = self._boot_server(self._create_flavor(mem_bw_min=MINIMUM))
        self.assertEqual(
            [MINIMUM], list(self._get_host_nodes(server).values()))
        self.assertEqual([1], self._get_amounts(server, names.RESCTRL_GROUP))

    @decorators.idempotent_id('2f1b8d7c-6f0e-4d1e-8f57-91a6a4c5de04')
    def test_plain_guest_holds_nothing_of_ghsched(self):
        server = self._boot_server(self._create_flavor())
        classes = {one for resources in self._get_allocations(server).values()
                   for one in resources}
        self.assertEqual(set(), classes & names.OUR_CLASSES)

    @decorators.idempotent_id('7c2d2f0e-93d5-4d0b-b0d1-0f6f1b0f4c52')
    @base.needs('MEM_BW_MIN', 'MEM_BW_MAX', 'MEM_BW_HARDLIMIT')
    @base.looks_at_host
    def test_host_enforces_what_the_flavor_asks(self):
        server = self._boot_server(self._create_flavor(
            mem_bw_min=MINIMUM, mem_bw_max=MAXIMUM, mem_bw_hardlimit=True))
        node, = self._get_host_nodes(server)
        self._check_xml(self._read_xml(server), node)
        self._check_schemata(server, node, MBMIN=MINIMUM, MBHDL=1)

    @decorators.idempotent_id('06192b3d-45f6-4087-aa2b-dcedfe0f1a26')
    @base.needs('MEM_BW_MAX', 'MEM_BW_SOFTLIMIT', 'MEM_BW_PRIORITY')
    @base.looks_at_host
    def test_soft_limit_and_priority_reach_the_host(self):
        server = self._boot_server(self._create_flavor(
            mem_bw_max=MAXIMUM, mem_bw_hardlimit=False,
            mem_bw_priority=PRIORITY))
        node = int(self._read_xml(server).find(
            './numatune/memnode').get('nodeset'))
        self._check_schemata(server, node, MBHDL=0, MBPRI=PRIORITY)

    def _check_schemata(self, server, node, **expected):
        """The group of a server has the cap and what its host has besides."""
        held = {resource: int(values[node]) for resource, values
                in self._read_schemata(server).items()
                if resource in ('MB', *expected)}
        # The hardware rounds a cap up to its next step.
        step = self._host(server).read_bandwidth_step()
        self.assertIn(held.pop('MB'), range(MAXIMUM, MAXIMUM + step))
        self.assertEqual({resource: value for resource, value
                          in expected.items() if resource in held}, held)

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

    @decorators.idempotent_id('172a3c4e-5607-4198-bb3c-edfe0f1a2b27')
    @base.needs('MEM_BW_MIN')
    @base.looks_at_host
    def test_each_guest_node_has_its_own_share(self):
        server = self._boot_server(self._create_flavor(
            nodes=2, **{'mem_bw_min.0': 10, 'mem_bw_min.1': 30}))
        xml = self._read_xml(server)
        cells = {int(memnode.get('cellid')): int(memnode.get('nodeset'))
                 for memnode in xml.findall('./numatune/memnode')}
        wanted = {cells[0]: 10, cells[1]: 30}
        self.assertEqual(wanted, self._get_host_nodes(server))
        minimum = self._read_schemata(server).get('MBMIN')
        if minimum is not None:
            self.assertEqual(wanted, {node: int(minimum[node])
                                      for node in wanted})

    @decorators.idempotent_id('5d7e2b41-c0a8-4f3e-9b6a-1c2d3e4f5a61')
    @base.needs('MEM_BW_MIN', 'MEM_BW_MAX')
    @base.looks_at_host
    def test_each_vcpu_class_has_a_control_group(self):
        server = self._boot_server(self._create_flavor(
            nodes=2, **{'vcpu_classes': 'latency:0',
                        'mem_bw_min.latency': 20, 'mem_bw_max': 60}))
        self.assertEqual({20}, set(self._get_host_nodes(server).values()))
        self.assertEqual([2], self._get_amounts(server, names.RESCTRL_GROUP))
        host = self._host(server)
        threads = set(self._read_threads(server))
        groups = {name for name, tasks in host.read_control_groups().items()
                  if threads & set(tasks)}
        self.assertEqual(2, len(groups))

    @decorators.idempotent_id('283b4d5f-6718-42a9-8c4d-fe0f1a2b3c28')
    @base.needs('MEM_BW_MIN', 'MEM_BW_BURST_PCT')
    def test_burst_is_allocated_on_the_node_of_the_guarantee(self):
        server = self._boot_server(self._create_flavor(
            mem_bw_min=MINIMUM, mem_bw_burst=10))
        self.assertEqual(
            self._get_host_nodes(server).keys(),
            self._get_host_nodes(server, names.MEM_BW_BURST_PCT).keys())
        self.assertEqual(
            [10], self._get_amounts(server, names.MEM_BW_BURST_PCT))

    @decorators.idempotent_id('394c5e60-7829-43ba-9d5e-0f1a2b3c4d29')
    @base.needs('L3_WAYS')
    @base.looks_at_host
    def test_l3_ways_are_allocated_and_belong_to_the_guest_alone(self):
        server = self._boot_server(self._create_flavor(l3_ways=2))
        self.assertEqual([2], self._get_amounts(server, names.L3_WAYS))
        host = self._host(server)
        group = host.find_group_of_threads(self._read_threads(server))
        own = self._list_masks(host.read_schemata(group))
        self.assertIn(2, [mask.bit_count() for mask in own.values()])
        # The default group has all guests without ways of their own.
        masks = self._list_masks(host.read_schemata(CONF.ghsched.resctrl_path))
        self.assertEqual({}, {
            domain: mask for domain, mask in own.items()
            if mask.bit_count() == 2 and mask & masks[domain]})

    @staticmethod
    def _list_masks(schemata):
        return {domain: int(mask, 16)
                for domain, mask in schemata.get('L3', {}).items()}

    @decorators.idempotent_id('4a5d6f71-893a-44cb-ae6f-1a2b3c4d5e30')
    @base.needs('MEM_BW_MONITOR')
    @base.looks_at_host
    def test_monitored_guest_is_measured_without_a_control_group(self):
        server = self._boot_server(self._create_flavor(monitor=True))
        self.assertEqual([], self._get_amounts(server, names.RESCTRL_GROUP))
        threads = self._read_threads(server)
        self._wait(
            lambda: any(threads <= members for members in self._host(
                server).read_monitoring_groups().values()),
            f'a monitoring group has the vCPUs of {server["id"]}')

    @decorators.attr(type='negative')
    @decorators.idempotent_id('b3a4c9de-52e6-4b7f-8e19-7a6d5c4b3a05')
    @base.needs('MEM_BW_MIN')
    def test_guest_that_fits_nowhere_is_refused_with_the_reason(self):
        """The largest guest that the API takes needs eight whole nodes."""
        refused = self._boot_server(
            self._create_flavor(nodes=8, mem_bw_min=100), status='ERROR')
        fault = refused['fault']['message']
        self.assertIn('No valid host', fault)
        self.assertIn('ghsched', fault)
        self.assertEqual({}, self._get_allocations(refused))

    @decorators.attr(type='negative')
    @decorators.idempotent_id('5b6e7082-9a4b-45dc-bf70-2b3c4d5e6f31')
    @base.needs('MEM_BW_MIN')
    def test_reason_of_a_refusal_names_no_host_to_a_tenant(self):
        refused = self._boot_server(
            self._create_flavor(nodes=8, mem_bw_min=100), status='ERROR')
        shown = self.servers.show_server(refused['id'])['server']
        hosts = {provider['name'].rpartition('_NUMA')[0]
                 for provider in self._list_numa_providers().values()}
        self.assertNotEqual(set(), hosts)
        for host in hosts:
            self.assertNotIn(host, shown['fault']['message'])


class QuotaTest(base.GhschedTest):
    """Nova's quota comes before the scheduler."""

    @decorators.attr(type='negative')
    @decorators.idempotent_id('f1e2d3c4-b5a6-4978-8a9b-0c1d2e3f4a09')
    def test_guest_beyond_the_quota_is_refused_before_it_is_scheduled(self):
        """The project is this class's own."""
        quotas = self.os_admin.quotas_client
        project = self.servers.tenant_id
        old = quotas.show_quota_set(project)['quota_set']['cores']
        self.addCleanup(quotas.update_quota_set, project, cores=old)
        quotas.update_quota_set(project, cores=0)
        self.assertRaises(
            (exceptions.Forbidden, exceptions.OverLimit),
            self._boot_server, self._create_flavor(mem_bw_min=10))

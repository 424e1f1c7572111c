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

"""Guests with virtual functions of their own NUMA nodes."""

from tempest import config
from tempest.lib.common.utils import test_utils
from tempest.lib import decorators

from ghsched_placement.providers import names
from tempest_plugin.services import devices
from tempest_plugin.tests import base

CONF = config.CONF

#: Share of a host NUMA node's memory bandwidth, in percent, of a guest node.
SHARE = 40


class VirtualFunctionTest(base.GhschedTest):
    """Placement, the host and the guest agree on where a VF is."""

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        if not CONF.ghsched.vf_alias:
            raise cls.skipException('[ghsched]vf_alias is not set')
        if not CONF.ghsched.host_command:
            raise cls.skipException('[ghsched]host_command is not set')

    @classmethod
    def setup_clients(cls):
        super().setup_clients()
        cls.ports = cls.os_admin.ports_client
        cls.interfaces = cls.os_primary.interfaces_client

    # -- steps --------------------------------------------------------------

    def _boot_with_vfs(self, flavor, status='ACTIVE'):
        image = CONF.ghsched.vf_image_ref or CONF.compute.image_ref
        return self._boot_server(flavor, status, image_id=image)

    def _vfs(self, count):
        return f'{CONF.ghsched.vf_alias}:{count}'

    def _pf_providers(self):
        """The PFs' providers below each NUMA node's, by the node's name."""
        found = {}
        for uuid, node in self._list_numa_providers().items():
            tree = self.providers.list_resource_providers(
                in_tree=uuid)['resource_providers']
            found[node['name']] = [
                one for one in tree if one['parent_provider_uuid'] == uuid]
        return found

    def _vf_inventory(self, provider):
        """The only inventory of a PF's provider."""
        inventories = self.providers.list_resource_provider_inventories(
            provider['uuid'])['inventories']
        return next(iter(inventories.values()), {'total': 0})

    def _passed(self, server):
        return devices.parse_passthrough_devices(self._read_xml(server))

    def _read_device(self, server, address):
        return self._host(server).read_pci_device(address)

    def _check_nodes(self, server, passed):
        """Each device is on the host node that backs its guest node."""
        xml = self._read_xml(server)
        for one in passed:
            self.assertIsNotNone(one.guest_node, f'{one} has no guest node')
            self.assertEqual(
                devices.parse_memory_node(xml, one.guest_node),
                self._read_device(server, one.host).node, one)

    def _check_guest(self, server, passed):
        """The guest sees each device on the node that the XML says."""
        if not CONF.ghsched.console_timeout:
            return
        kinds = {self._read_device(server, one.host).ids
                 for one in passed}
        self._wait_for_guest(server, kinds, sorted(
            one.guest_node for one in passed))

    def _wait_for_guest(self, server, kinds, nodes):
        """Wait until the guest sees devices of a kind on these nodes."""
        last = []

        def agrees():
            console = self.servers.get_console_output(
                server['id'])['output']
            last[:] = [one for one in devices.parse_reported_devices(console)
                       if one.ids in kinds]
            return devices.shows_all_boot_devices(console) and nodes == sorted(
                one.node for one in last)
        seen = test_utils.call_until_true(
            agrees, CONF.ghsched.console_timeout, 1)
        self.assertTrue(seen, f'the guest must see devices {kinds} on its '
                              f'nodes {nodes}, but sees {last}')

    # -- tests --------------------------------------------------------------

    @decorators.idempotent_id('3a9c5a68-6b7e-4f0c-9a6e-0e4a1d6f2b01')
    def test_each_guest_node_has_a_vf_of_its_host_node(self):
        share = ({'mem_bw_min': SHARE}
                 if 'MEM_BW_MIN' in CONF.ghsched.capabilities else {})
        server = self._boot_with_vfs(self._create_flavor(
            nodes=2, vfs=self._vfs(2), device_numa='required', **share))
        allocated = self._get_allocations(server)
        pfs = [one['name'] for providers in self._pf_providers().values()
               for one in providers if one['uuid'] in allocated]
        passed = self._passed(server)

        self.assertEqual([0, 1], sorted(one.guest_node for one in passed))
        self._check_nodes(server, passed)
        # Nova ends a PF's provider's name with the PF's address.
        self.assertEqual(
            sorted(
                self._read_device(server, one.host).physfn
                for one in passed),
            sorted(name.rpartition('_')[2] for name in pfs),
        )
        for one in passed:
            self.assertEqual(
                'vfio-pci', self._read_device(server, one.host).driver)
        self._check_allocation(allocated, share)
        self._check_guest(server, passed)

    def _check_allocation(self, allocated, share):
        """A guest node's VF and bandwidth are below one NUMA node."""
        nodes = {provider['name']: provider['uuid']
                 for provider in self._list_numa_providers().values()}
        used = {}
        for name, providers in self._pf_providers().items():
            for provider in providers:
                amounts = allocated.get(provider['uuid'], {}).values()
                used[name] = used.get(name, 0) + sum(amounts)
        used = {name: count for name, count in used.items() if count}
        self.assertEqual([1, 1], list(used.values()), used)
        if share:
            self.assertEqual(
                [SHARE, SHARE],
                [allocated[nodes[name]][names.MEM_BW_PCT] for name in used])

    @decorators.attr(type='negative')
    @decorators.idempotent_id('9d0a1f0e-5f0c-4b7a-8a3f-7c6f5f1b8e02')
    def test_more_vfs_than_one_node_has_are_refused(self):
        most = max(sum(self._vf_inventory(one)['total'] for one in providers)
                   for providers in self._pf_providers().values())
        self.assertGreater(most, 0, 'no NUMA node of a host has a PF')
        refused = self._boot_with_vfs(
            self._create_flavor(
                vfs=self._vfs(most + 1), device_numa='required'),
            status='ERROR',
        )
        fault = refused['fault']['message']
        self.assertIn('No valid host', fault)
        self.assertIn('ghsched:vfs', fault)
        self.assertEqual({}, self._get_allocations(refused))

    @decorators.attr(type='slow')
    @decorators.idempotent_id('5e7b0b9a-1a52-4a34-8df9-1f0d8e3a9c03')
    def test_port_is_attached_behind_its_node_and_detached(self):
        if not CONF.ghsched.vf_network:
            raise self.skipException('[ghsched]vf_network is not set')
        # VFs of the flavor bring the guest to a host that has some.
        server = self._boot_with_vfs(self._create_flavor(
            nodes=2, vfs=self._vfs(2), device_numa='required'))
        before = self._passed(server)
        self._check_guest(server, before)
        allocated = self._get_allocations(server)

        port = self._attach(server, len(before))
        after = self._passed(server)
        new, = (one for one in after if one not in before)
        self._check_nodes(server, after)
        self._check_guest(server, after)
        self.assertEqual(
            'vfio-pci', self._read_device(server, new.host).driver)
        # Nova keeps the devices of ports out of Placement.
        self.assertEqual(allocated, self._get_allocations(server))

        self._detach(server, port, before)
        self._check_guest(server, before)
        self._wait(
            lambda: self._read_device(server, new.host).driver is None,
            f'{new.host} is given back to the host')

    def _attach(self, server, count):
        """A port with a VF; answers when the host has passed it through."""
        port = self.ports.create_port(
            network_id=CONF.ghsched.vf_network,
            project_id=server['tenant_id'],
            **{'binding:vnic_type': 'direct'})['port']['id']
        self.addCleanup(test_utils.call_and_ignore_notfound_exc,
                        self.ports.delete_port, port)
        self.interfaces.create_interface(server['id'], port_id=port)
        self._wait(lambda: len(self._passed(server)) > count,
                   'the port is attached',
                   CONF.ghsched.vf_attach_timeout)
        return port

    def _detach(self, server, port, left):
        self.interfaces.delete_interface(server['id'], port)
        self._wait(lambda: self._passed(server) == left and not self._has(
            server, port), 'the port is detached',
            CONF.ghsched.vf_attach_timeout)

    def _has(self, server, port):
        interfaces = self.interfaces.list_interfaces(
            server['id'])['interfaceAttachments']
        return port in [one['port_id'] for one in interfaces]

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

"""Devices of aliases and of ``ghsched:vfs`` are those that Placement gave."""

import collections
import contextlib
import time
from unittest import mock

from nova import context as nova_context
from nova import objects

from ghsched_nova.nova_fixes import devices_of_far_pf
from ghsched_nova.tests.functional import emptied_hosts
from ghsched_nova.tests.functional import test_vfs
from ghsched_placement.audit import diagnostics

ALIAS = {'pci_passthrough:alias': 'fast:2'}


class DevicesTestCase(emptied_hosts.EmptiedHosts, test_vfs.MovesTestCase):

    def try_boot(self, flavor):
        """Return a server that is ACTIVE or in ERROR."""
        server = self.api.post_server({'server': self._build_server(
            flavor_id=flavor, networks='none')})
        while server.get('status', 'BUILD') == 'BUILD':
            time.sleep(.1)
            server = self.api.get_server(server['id'])
        return server

    def claimed(self, server):
        """{name of the PF's provider: devices}, with all requests met."""
        instance = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), server['id'],
            expected_attrs=['pci_requests', 'pci_devices'])
        counts = collections.Counter(
            device.request_id for device in instance.get_pci_devices())
        self.assertEqual(
            {request.request_id: request.count
             for request in instance.pci_requests.requests}, counts)
        names = self.provider_names()
        return collections.Counter(
            names[device.extra_info['rp_uuid']]
            for device in instance.get_pci_devices())

    def allocated_devices(self, server):
        """{name of the PF's provider: devices} that Placement holds."""
        names = self.provider_names()
        return {names[uuid]: amount
                for uuid, amounts in self.resources(server['id']).items()
                for name, amount in amounts.items() if 'PCI' in name}

    def assert_devices_agree(self, server):
        """Claim, Placement and domain have all devices of each request."""
        self.assertEqual(self.allocated_devices(server), self.claimed(server))
        host = self.api.get_server(
            server['id'])['OS-EXT-SRV-ATTR:host']
        self.assertEqual(sum(self.claimed(server).values()),
                         self.domain(host, server).count('<hostdev '))


class BootTest(DevicesTestCase):

    def test_server_with_alias_and_key_has_all_its_devices(self):
        self.start((3, 4), (1, 3, '1520'), (3, 7, '1520'))
        for keys in ({'mem_bw_min': 5},
                     {'mem_bw_min': 5, 'device_numa': 'required'},
                     {'vfs': 'nic:2', 'vfs_locality': 'node'},
                     {'monitor': 'true'}, {'affinity_group': 'web'}):
            self.keys = keys
            self.take_steps(self.two_servers_have_all_their_devices)

    def two_servers_have_all_their_devices(self):
        for _number in range(2):
            server = self.boot(self.flavor(vcpus=1, extra=ALIAS, **self.keys))
            self.assert_devices_agree(server)

    def test_server_with_alias_fills_pfs_of_two_nodes_or_is_refused(self):
        self.start((0, 3, '1520'), (1, 3, '1520'), nodes=2)
        states = []
        for _number in range(3):
            server = self.try_boot(
                self.flavor(vcpus=1, mem_bw_min=5, extra=ALIAS))
            states.append(server['status'])
            if server['status'] == 'ACTIVE':
                self.assert_devices_agree(server)
        self.assertEqual(['ACTIVE', 'ACTIVE', 'ERROR'], states)

    def test_vf_is_taken_far_where_the_other_guest_node_has_some_near(self):
        self.start((2, 2), (3, 2))
        self.reserve(n0=0, n1=100, n2=80, n3=100)
        flavor = self.flavor(nodes=2, vfs__0='nic:1', mem_bw_min__0=50,
                             mem_bw_min__1=10)
        for _number in range(2):
            server = self.boot(flavor)
            self.assertEqual([0, 2], self.host_nodes(server))
            self.assert_devices_agree(server)
        server = self.boot(flavor, 'ERROR')
        self.assertIn('has 50 % of its memory bandwidth left',
                      self.fault(server))

    def test_vfs_of_two_guest_nodes_come_from_pfs_of_three_nodes(self):
        self.start((0, 2), (1, 2), (2, 4))
        self.reserve(n0=0, n1=50, n2=100, n3=100)
        server = self.boot(self.flavor(
            nodes=2, vfs__0='nic:3', vfs__1='nic:2', mem_bw_min__0=60,
            mem_bw_min__1=30))
        self.assertEqual([0, 1], self.host_nodes(server))
        self.assert_devices_agree(server)

    def test_strict_affinity_takes_the_pf_that_nova_allows(self):
        # A VF is far from guest node 0 in any case; Nova wants it on a node
        # of the guest, and six of seven PFs are on none.
        self.start(*[(3, 1)] * 6, (2, 1))
        self.reserve(n0=0, n1=100, n2=80, n3=100)
        server = self.boot(self.flavor(
            nodes=2, vfs__0='nic:1', mem_bw_min__0=50, mem_bw_min__1=10,
            extra={'hw:pci_numa_affinity_policy': 'required'}))
        self.assertEqual([0, 2], self.host_nodes(server))
        self.assertEqual({0: [2]}, self.vf_nodes(server))
        self.assert_devices_agree(server)

    def test_servers_of_one_request_have_all_their_devices(self):
        self.start((0, 4), (1, 4), (0, 4, '1520'), (1, 4, '1520'), nodes=2)
        for keys in {'vfs': 'nic:4'}, {'vfs': 'nic:2', 'extra': ALIAS}:
            self.keys = keys
            self.take_steps(self.two_servers_of_one_request_have_them)

    def two_servers_of_one_request_have_them(self):
        body = self._build_server(networks='none', flavor_id=self.flavor(
            mem_bw_min=60, **self.keys))
        self.api.post_server({'server': {**body, 'min_count': 2,
                                         'max_count': 2}})
        for server in self.api.get_servers(detail=False):
            self._wait_for_state_change(server, 'ACTIVE')
            self.assert_devices_agree(server)


class RefusedTest(DevicesTestCase):
    """A claim that takes other devices than Placement gave."""

    def test_short_claim_is_refused_before_the_guest_starts(self):
        self.start((0, 3, '1520'), (1, 3, '1520'), nodes=2)
        flavor = self.flavor(vcpus=1, mem_bw_min=5, extra=ALIAS)
        with mock.patch.object(devices_of_far_pf,
                               'limited_to_allocated_devices',
                               lambda _flavor: contextlib.nullcontext()):
            for _number in range(3):
                server = self.try_boot(flavor)
                if server['status'] == 'ACTIVE':
                    self.assert_devices_agree(server)


class ReportedTest(DevicesTestCase):

    def test_running_server_with_too_few_devices_is_reported(self):
        self.start((0, 4, '1520'), nodes=2)
        server = self.boot(self.flavor(vcpus=1, mem_bw_min=5, extra=ALIAS))
        self.assertEqual((), self.missing(server))
        device = objects.PciDeviceList.get_by_instance_uuid(
            nova_context.get_admin_context(), server['id'])[0]
        device.instance_uuid = None
        device.status = 'available'
        device.save()
        self.assertEqual(('1 of 2 devices of alias fast',),
                         self.missing(server))

    def missing(self, server):
        # The domain of Nova's fake libvirt has statistics of another time.
        with mock.patch('nova.virt.libvirt.driver.LibvirtDriver.'
                        'get_diagnostics', return_value={}):
            found = self.computes['host_a'].driver.get_diagnostics(
                objects.Instance.get_by_uuid(
                    nova_context.get_admin_context(), server['id']))
        return diagnostics.parse_guest_diagnostics(found).missing_devices


class JourneyTest(DevicesTestCase):
    """Devices of an alias through all moves of a server with a key."""

    def setUp(self):
        super().setUp()
        self.flags(shelved_offload_time=0)
        for name in ('host_a', 'host_b'):
            self.start(*((node, 2, '1520') for node in (0, 1, 0, 1)),
                       name=name, nodes=2, sockets=1)
        self.move_disk()

    def test_devices_follow_placement_through_all_moves(self):
        keys = {'vcpus': 1, 'device_numa': 'preferred'}
        server = self.boot(self.flavor(**keys))
        flavor = self.flavor(**keys, extra=ALIAS)
        for move in (lambda: self._resize_server(server, flavor),
                     lambda: self._revert_resize(server),
                     lambda: self._resize_server(server, flavor),
                     lambda: self._confirm_resize(server),
                     lambda: self._migrate_server(server),
                     lambda: self._confirm_resize(server),
                     self._run_periodics,
                     lambda: self._shelve_server(server),
                     self._run_periodics,
                     lambda: self._unshelve_server(server),
                     lambda: self._reboot_server(server, hard=True)):
            move()
            if self.api.get_server(server['id'])['status'].startswith('SHEL'):
                continue
            self.assert_devices_agree(server)
        host = self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']
        # The old host of a move destroys its domain when all else is done.
        old = self.computes[self.other(host)].driver
        self.wait_until(lambda: not old.list_instance_uuids())
        self.stop_host(host)
        self._evacuate_server(server, expected_host=self.other(host))
        gone = {name: amount
                for name, amount in self.allocated_devices(server).items()
                if name.startswith(self.other(host))}
        self.assertEqual(gone, self.claimed(server))

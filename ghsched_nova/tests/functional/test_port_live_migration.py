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

"""Live migration of guests whose ports have VFs (``vnic_type=direct``)."""

import os
import unittest
from unittest import mock

import fixtures
from nova import context as nova_context
from nova import objects

from ghsched_nova.nova_seams import numa
from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import test_ports


nightly = unittest.skipUnless(os.environ.get('GHSCHED_LIVE_MIGRATIONS'),
                              'nightly: GHSCHED_LIVE_MIGRATIONS is not set')


class PortLiveMigrationTestCase(test_ports.PortsTestCase):
    """Two hosts whose VFs for ports are on given NUMA nodes."""

    def setUp(self):
        super().setUp()
        self.flags(device_detach_timeout=1, group='libvirt')

    def start_hosts(self, source, dest):
        """Start two hosts with two VFs for ports on each NUMA node given."""
        for name, nodes in (('host_a', source), ('host_b', dest)):
            self.start(*((node, 2, test_ports.PORT_VF) for node in nodes),
                       name=name, nodes=2, sockets=1)
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']

    def boot_guest(self, *ports, nodes=1, **keys):
        keys.setdefault('device_numa', 'required')
        self.server = self.boot_with(
            self.flavor(vcpus=2, nodes=nodes, mem_bw_min=20,
                        extra=test_ports.FAR_IS_ALLOWED, **keys),
            *ports, host='host_a')
        return self.server

    def statuses(self, host):
        """Statuses of the VFs of a host in Nova's records."""
        context = nova_context.get_admin_context()
        node = objects.ComputeNode.get_first_node_by_host_for_old_compat(
            context, host)
        return sorted(device.status for device in
                      objects.PciDeviceList.get_by_compute_node(
                          context, node.id)
                      if device.dev_type == 'type-VF')

    def assert_it_stays(self):
        self._run_periodics()
        self.assertEqual('host_a', self.api.get_server(
            self.server['id'])['OS-EXT-SRV-ATTR:host'])
        self.assert_agreement(self.server, 'host_a',
                              [20] * len(self.host_nodes(self.server)))
        self.assertEqual(self.port_nodes(self.server),
                         self.seen_nodes(self.server))
        self.assertEqual({'available'}, set(self.statuses('host_b')))
        self.assertEqual([], self.domains('host_b'))


class MovesTest(PortLiveMigrationTestCase):

    def test_port_follows_its_guest(self):
        self.start_hosts([0], [1])
        server = self.boot_guest(self.port())
        self._live_migrate(server, 'completed')
        self.assertEqual([1], self.host_nodes(server))
        self.assertEqual([1], self.port_nodes(server))
        self.assertEqual([1], self.seen_nodes(server, 'host_b'))
        self.assert_agreement(server, 'host_b', [20])
        self._run_periodics()
        self.assertEqual({'available'}, set(self.statuses('host_a')))


class RefusedTest(PortLiveMigrationTestCase):

    def take_near_vfs_after_claim(self):
        """Remove the near VFs from the pool after the claim of NUMA nodes."""
        manager = self.dest.manager
        claim = manager._live_migration_claim
        tracker = manager.rt.pci_tracker

        def claim_and_take(context, instance, *args, **kwargs):
            data = claim(context, instance, *args, **kwargs)
            nodes = numa.list_host_nodes(
                instance.migration_context.new_numa_topology)
            for device in tracker.pci_devs:
                if device.numa_node in nodes:
                    tracker.stats.remove_device(device)
            return data
        self.useFixture(fixtures.MockPatchObject(
            manager, '_live_migration_claim', claim_and_take))

    def test_destination_that_claims_a_far_vf_refuses(self):
        self.start_hosts([0], [0, 1])
        self.boot_guest(self.port())
        self.take_near_vfs_after_claim()
        self.assertRaises(nova_base.ApiException, self._live_migrate,
                          self.server, 'error')
        self.assertIn('would not see the NUMA node of a passthrough port',
                      self.stdlog.logger.output)
        self.assert_it_stays()

    def test_guest_without_free_pci_port_stays(self):
        self.flags(device_numa_spare_ports=0, group='ghsched')
        self.start_hosts([0], [1])
        self.boot_guest(self.port(), nodes=2)
        self._live_migrate(self.server, 'failed')
        self.assertIn('0 PCI ports are free behind its expander bus',
                      self.stdlog.logger.output)
        self.assert_it_stays()


class CopiedTest(PortLiveMigrationTestCase):
    """Ports whose place is lost after Nova's point of no return."""

    def lose_place(self):
        return fixtures.MonkeyPatch(
            'ghsched_nova.guest.device_numa.find_free_address',
            lambda xml, node: None)

    def test_port_without_place_is_attached_without_node(self):
        self.start_hosts([0], [1])
        server = self.boot_guest(self.port())
        with self.lose_place():
            self._live_migrate(server, 'completed')
        self.assertEqual([1], self.port_nodes(server))
        self.assertEqual([-1], self.seen_nodes(server, 'host_b'))
        self.assert_agreement(server, 'host_b', [20])
        self.assertIn('attaching the passthrough device of a port without a '
                      'guest NUMA node', self.stdlog.logger.output)

    @nightly
    def test_policy_is_enforced_although_nova_attaches_no_port(self):
        self.start_hosts([0], [1])
        server = self.boot_guest(self.port())
        driver = self.dest.driver
        with (mock.patch.object(driver, '_reattach_instance_vifs',
                                side_effect=RuntimeError('no')),
              mock.patch.object(
                  driver, '_reconcile_arrived_guest') as reconcile):
            self._live_migrate(server, 'error', server_expected_state='ERROR',
                               wait_for_fault_key=False)
        reconcile.assert_called_once()

    @nightly
    def test_port_returns_after_failed_copy(self):
        self.start_hosts([0], [1])
        self.boot_guest(self.port())
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Domain.migrateToURI3',
            lambda domain, *_args, **_kwargs: domain.fail_job()))
        self._live_migrate(self.server, 'failed')
        self.assert_it_stays()

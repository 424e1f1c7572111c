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

"""Addresses of passthrough devices in the XML of a live migration."""

import itertools
from unittest import mock

import fixtures
from lxml import etree
from nova import exception
from nova import objects
from nova.virt.libvirt import migration

from ghsched_nova.nova_fixes import live_migrated_devices
from ghsched_placement.tests import base

objects.register_all()

UUID = '11111111-2222-4333-8444-555555555555'
OURS = {'ghsched:mem_bw_min': '20'}

ADDRESSES = [f'0000:81:00.{function}' for function in range(4)]


def domain(addresses):
    """A domain with these devices, in this order."""
    root = etree.Element('domain')
    devices = etree.SubElement(root, 'devices')
    for address in addresses:
        bus, function = address[5:7], address[-1]
        source = etree.SubElement(etree.SubElement(
            devices, 'hostdev', type='pci'), 'source')
        etree.SubElement(source, 'address', domain='0x0000', bus=f'0x{bus}',
                         slot='0x00', function=f'0x{function}')
    return root


def make_migration(uuid, status, kind='live-migration'):
    return objects.Migration(instance_uuid=uuid, status=status,
                             migration_type=kind)


class FailedLiveMigrationsTest(base.TestCase):

    def test_servers_with_any_other_migration_are_left_out(self):
        self.assertEqual(
            {'failed'},
            live_migrated_devices.find_failed_live_migrations([
                make_migration('failed', 'error'),
                make_migration('failed', 'error'),
                make_migration('again', 'error'),
                make_migration('again', 'running'),
                make_migration('resized', 'error', 'resize'),
                make_migration('both', 'error', 'migration'),
                make_migration('both', 'error')]))


class ReleaseTest(base.TestCase):
    """Devices of a server that a failed live migration did not bring here."""

    def setUp(self):
        super().setUp()
        self.tracker = mock.Mock(
            host='here', pci_tracker=mock.Mock(claims={UUID: ['a device']}))
        self.get_guest = self.tracker.driver._host.get_guest
        self.get_guest.side_effect = exception.InstanceNotFound(
            instance_id=UUID)
        self.log = self.useFixture(fixtures.FakeLogger())

    def count_released(self, specs, host='there', status='error'):
        """Return how often devices are released, for a server's flavor."""
        one = make_migration(UUID, status)
        one.instance = objects.Instance(
            uuid=UUID, host=host, flavor=objects.Flavor(extra_specs=specs),
            old_flavor=None, new_flavor=None)
        original = mock.Mock(return_value='Nova')
        self.assertEqual(
            'Nova', live_migrated_devices._update_usage_from_migrations(
                original, self.tracker, None, [one], 'node'))
        original.assert_called_once_with(self.tracker, None, [one], 'node')
        return self.tracker.pci_tracker.free_instance_claims.call_count

    def test_devices_of_a_server_on_another_host_are_released(self):
        self.assertEqual(1, self.count_released(OURS))

    def test_server_without_our_keys_is_not_touched(self):
        self.assertEqual(0, self.count_released({}))
        self.get_guest.assert_not_called()

    def test_server_on_this_host_and_one_that_moves_keep_their_devices(self):
        self.assertEqual(0, self.count_released(OURS, host='here'))
        self.assertEqual(0, self.count_released(OURS, status='running'))

    def test_guest_of_this_host_keeps_its_devices(self):
        self.get_guest.side_effect = None
        self.assertEqual(0, self.count_released(OURS))

    def test_devices_are_kept_while_libvirt_does_not_answer(self):
        self.get_guest.side_effect = exception.InternalError('no libvirt')
        self.assertEqual(0, self.count_released(OURS))

    def test_update_goes_on_if_devices_cannot_be_released(self):
        self.tracker.pci_tracker.free_instance_claims.side_effect = OSError
        self.count_released(OURS)
        self.assertIn('retrying in the next periodic task', self.log.output)


class OrderTest(base.TestCase):

    def test_nova_replaces_each_address_by_its_own(self):
        """Over all ways to give two or three devices four addresses."""
        for count in (2, 3):
            for old, new in itertools.product(
                    itertools.permutations(ADDRESSES, count), repeat=2):
                found = migration._update_pci_dev_xml(
                    domain(old),
                    live_migrated_devices.order_address_replacements(
                        dict(zip(old, new, strict=True))))
                self.assertEqual(etree.tostring(domain(new)),
                                 etree.tostring(found))

    def test_addresses_without_overlap_are_replaced_directly(self):
        one, two, three, four = ADDRESSES
        self.assertEqual({one: three, two: four},
                         live_migrated_devices.order_address_replacements(
                             {one: three, two: four}))

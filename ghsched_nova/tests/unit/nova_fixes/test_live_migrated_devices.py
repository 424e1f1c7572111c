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

from lxml import etree
from nova import objects
from nova.virt.libvirt import migration

from ghsched_nova.nova_fixes import live_migrated_devices
from ghsched_placement.tests import base

objects.register_all()

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

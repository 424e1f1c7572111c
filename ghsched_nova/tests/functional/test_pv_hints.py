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

"""Hints of KVM through the life of a server, and in unmodified libvirt."""

import os
import tempfile
import unittest

from lxml import etree
from nova.tests.functional.api import client

from ghsched_nova.features.pv_hints import hint_xml
from ghsched_nova.guest import thread_pins
from ghsched_nova.lab.emulator import testhost
from ghsched_nova.tests.functional import test_every_key
from ghsched_placement.tests import base

REASON = testhost.missing()

FLAVOR = {'hw:numa_nodes': '1', 'hw:cpu_policy': 'dedicated',
          'hw:emulator_threads_policy': 'share',
          'ghsched:pv_hints': 'dedicated', 'ghsched:mem_bw_min': '20'}

DOMAIN = '''<domain type="{kind}"><name>hints</name>
 <memory unit="MiB">64</memory><vcpu>1</vcpu>
 <cputune><vcpupin vcpu="0" cpuset="0"/><emulatorpin cpuset="0-1"/></cputune>
 <os><type arch="x86_64" machine="q35">hvm</type></os>
 <features><acpi/><apic/></features>
 <cpu mode="custom" match="exact" check="none"><model>qemu64</model></cpu>
 <devices/></domain>'''


class JourneyTest(test_every_key.AllCapabilitiesTestCase):

    def setUp(self):
        super().setUp()
        self.start((0, 2), (1, 2), name='host_b', nodes=2, sockets=1)
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']

    def assert_hints(self, server):
        """The guest has both hints, and its vCPUs their CPUs alone."""
        root = etree.fromstring(self.xml(server))
        self.assertEqual(
            ['hint-dedicated', 'poll-control'],
            [one.tag for one in root.findall('features/kvm/*')
             if one.get('state') == 'on'])
        pins = thread_pins.parse_pins(root)
        vcpus = pins['vcpu', 0] | pins['vcpu', 1]
        self.assertEqual(2, len(vcpus))
        self.assertTrue(pins['emulator', 0])
        self.assertFalse(pins['emulator', 0] & vcpus)

    def test_hints_stay_through_moves_and_changes_of_other_keys(self):
        server = self.boot_with(FLAVOR, host='host_a')
        self.assert_hints(server)
        node, = self.host_nodes(server)
        self.assertTrue(self.move(server, 1 - node).is_needed)
        self.assertEqual([1 - node], self.host_nodes(server))
        self.assert_hints(server)
        self.assertTrue(self.change(server, mem_bw_min='25').needed)
        self.assert_hints(server)
        self.server = server
        self._live_migrate(server)
        self.assertEqual('host_b', self.host(server))
        self.assert_hints(server)

    def test_flavor_is_refused_with_what_to_set(self):
        for missing in ('hw:cpu_policy', 'hw:emulator_threads_policy'):
            specs = {key: value for key, value in FLAVOR.items()
                     if key != missing}
            error = self.assertRaises(client.OpenStackApiException,
                                      self.boot_with, specs)
            self.assertIn(f'set {missing}=', str(error))


@unittest.skipIf(REASON, REASON)
class LibvirtTest(base.TestCase):

    def test_unmodified_libvirt_starts_a_guest_with_hints(self):
        with tempfile.TemporaryDirectory(prefix='pv-hints-') as directory:
            host = testhost.TestHost(os.path.join(directory, 'state'))
            self.addCleanup(host.down)
            host.up(testhost.Settings(nodes=1))

            def virsh(*words):
                done = host.run(['virsh', '-q', *words])
                self.assertEqual(0, done.returncode, done.stderr)
                return done.stdout

            for kind in ('kvm', 'qemu'):
                path = os.path.join(directory, f'{kind}.xml')
                with open(path, 'w') as stream:
                    stream.write(hint_xml.render_hints(
                        DOMAIN.format(kind=kind)))
                self.assertIn(
                    '-cpu qemu64,kvm-hint-dedicated=on,kvm-poll-control=on ',
                    virsh('domxml-to-native', 'qemu-argv', path))
            virsh('define', '--validate', path)
            virsh('start', 'hints')
            features = etree.fromstring(virsh('dumpxml', 'hints')).find(
                'features/kvm')
            virsh('destroy', 'hints')
            self.assertEqual(['hint-dedicated', 'poll-control'],
                             [one.tag for one in features])

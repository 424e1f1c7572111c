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

"""A libvirt that keeps the attributes of openEuler's, on its kernels.

There is no package of it for Debian. The tests run where the environment
names a build (``GHSCHED_OPENEULER_LIBVIRT``: the directory ``src`` of libvirt
9.0 with the memorytune, cachetune and hostdev of openEuler's libvirt), and are
skipped elsewhere.
"""

import json
import os
import sys
import unittest

from fixtures import EnvironmentVariable

from ghsched_nova.lab.emulator import testhost
from ghsched_nova.tests.fixtures import libvirt_host
from ghsched_nova.tests.functional import test_host_command

BUILD = os.environ.get('GHSCHED_OPENEULER_LIBVIRT', '')

#: What nova-compute does before it starts a guest: ask libvirt what it keeps,
#: and write the policy into the XML.
_RENDER = """
import json
import sys
import libvirt
from oslo_config import cfg
from ghsched_nova import conf
from ghsched_nova.guest import libvirt_probes
from ghsched_nova.host import domain_xml
from ghsched_nova.host import engine
from ghsched_placement.flavor import policy
options = cfg.ConfigOpts()
conf.register_opts(options)
options([], default_config_files=[], default_config_dirs=[])
connection = libvirt.open('qemu:///system')
def kept(xml):
    domain = connection.defineXML(xml)
    text = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    domain.undefine()
    return text
features = domain_xml.LibvirtFeatures(
    extended=libvirt_probes.EXTENDED_MEMORYTUNE.is_kept(kept(
        libvirt_probes.EXTENDED_MEMORYTUNE.xml)),
    numa_element=libvirt_probes.DEVICE_NODE.is_kept(kept(
        libvirt_probes.DEVICE_NODE.xml)))
host = engine.HostEngine(options.ghsched)
host.domain_xml.libvirt = features
given = json.load(sys.stdin)
print(json.dumps([features.extended, features.numa_element,
                  host.domain_xml.render_policy(
                      given['xml'], policy.parse_policy(given['specs'], 1),
                      (1,))]))
"""

ALL = {'ghsched:mem_bw_min': '20', 'ghsched:mem_bw_max': '60',
       'ghsched:mem_bw_hardlimit': 'false', 'ghsched:mem_bw_priority': '5',
       'ghsched:monitor': 'true'}
HOSTDEV = """<hostdev mode='subsystem' type='pci' managed='yes'>
  <source><address domain='0x0000' bus='0x5e' slot='0x01' function='0x2'/>
  </source><numa node='0'/></hostdev>"""


@unittest.skipUnless(BUILD, 'no build of openEuler\'s libvirt is named')
class OpenEulerTestCase(test_host_command.CommandTestCase):

    specs = ALL

    @classmethod
    def setUpClass(cls):
        for name, value in (('PATH', f'{BUILD}:{os.environ["PATH"]}'),
                            ('LD_LIBRARY_PATH', BUILD),
                            ('LIBVIRT_DRIVER_DIR', BUILD)):
            variable = EnvironmentVariable(name, value)
            variable.setUp()
            cls.addClassCleanup(variable.cleanUp)
        super().setUpClass()

    def rendered(self, xml):
        done = self.host.run(
            [sys.executable, '-W', 'ignore', '-c', _RENDER],
            input=json.dumps({'xml': xml, 'specs': self.specs}))
        self.assertEqual(0, done.returncode, done.stderr)
        extended, numa, text = json.loads(done.stdout)
        self.assertTrue(extended and numa)
        return text

    def read_group_values(self, name):
        """Values of node 1 by line, in the group that libvirt has made."""
        group, = self.resctrl(
            'sh', '-c', f'ls -d /sys/fs/resctrl/*-{name}-*').split()
        text = self.resctrl('cat', f'{group}/schemata')
        return {line.partition(':')[0].strip(): int(
            line.partition('1=')[2].partition(';')[0])
            for line in text.splitlines() if 'MB' in line}


class OpenEulerLibvirtTest(OpenEulerTestCase):
    """OLK-6.6: all that a guest can ask for."""

    settings = testhost.Settings(dialect='openeuler66')

    def test_libvirt_makes_the_group_and_nothing_is_left_to_do(self):
        self.start('a', '')
        self.assertEqual({'MB': 60, 'MBMIN': 20, 'MBPRI': 5, 'MBHDL': 0},
                         self.read_group_values('a'))
        self.in_order()
        self.assertEqual((0, []), self.kinds('reconcile'))
        self.assertIn("hardlimit='0' priority='5' min_bandwidth='20'",
                      self.virsh('dumpxml', 'a').stdout)

    def test_a_device_keeps_its_node(self):
        xml = self.rendered(libvirt_host.DOMAIN.format(
            name='b', tune='', cpus='1').replace(
                "<memorytune vcpus='0-1'></memorytune>", ''))
        self.write('b.xml', xml.replace('</devices>',
                                        f'{HOSTDEV}</devices>'))
        self.addCleanup(self.virsh, 'undefine', 'b')
        self.assertEqual('', self.virsh('define', self.path('b.xml')).stderr)
        self.write('device.xml', HOSTDEV.replace("'0x2'", "'0x3'"))
        self.assertEqual('', self.virsh(
            'attach-device', 'b', self.path('device.xml'),
            '--config').stderr)
        self.assertEqual(2, self.virsh('dumpxml', 'b').stdout.count(
            "<numa node='0'/>"))

    def path(self, name):
        return os.path.join(self.host.state, name)

    def write(self, name, text):
        with open(self.path(name), 'w') as stream:
            stream.write(text)


class WithoutPriorityTest(OpenEulerTestCase):
    """Hardware without priorities: libvirt starts no guest that names one."""

    settings = testhost.Settings(dialect='openeuler66', without=('MBPRI',))
    specs = {'ghsched:mem_bw_min': '20', 'ghsched:mem_bw_max': '60'}

    def test_features_missing_in_the_kernel_are_not_in_the_xml(self):
        self.start('a', '')
        self.assertEqual({'MB': 60, 'MBMIN': 20, 'MBHDL': 1},
                         self.read_group_values('a'))
        self.in_order()

    def test_libvirt_refuses_what_the_kernel_lacks(self):
        self.assertIn(
            'does not support tuning for scope type', self.refusal(
                "<node id='1' bandwidth='60' priority='5'/>"))

    def refusal(self, tune):
        return libvirt_host.HostTestCase.start(self, 'b', tune)

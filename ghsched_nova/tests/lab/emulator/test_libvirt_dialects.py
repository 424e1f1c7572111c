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


"""Behaviour of this machine's libvirt with each dialect of resctrl.

:attr:`ResctrlHost.libvirt_reads` is built on it: where libvirt refuses,
nova-compute makes the control groups itself.
"""

from ghsched_nova.lab.emulator import testhost
from ghsched_nova.tests.fixtures import libvirt_host

TUNE = "<node id='{}' bandwidth='{}'/>"


class MonitorMixin:
    """A monitor alone, for which libvirt reads no line."""

    def test_a_monitor_alone_is_made(self):
        self.assertEqual('', self.start('a', libvirt_host.MONITOR))
        self.assertEqual(1, len(self.groups('mon_groups')))


class AmdTest(MonitorMixin, libvirt_host.HostTestCase):
    settings = testhost.Settings(dialect='amd')

    def test_a_lowest_cap_of_0_is_a_broken_host(self):
        self.assertIn(
            'Missing or inconsistent resctrl info for memory bandwidth '
            'allocation', self.start('a', TUNE.format(0, 60)))


class SoftwareControllerTest(libvirt_host.HostTestCase):
    settings = testhost.Settings(dialect='intel-mbps')

    def test_a_cap_is_no_more_than_100(self):
        # Since 10.8 it may be more.
        self.assertEqual('', self.start('a', TUNE.format(1, 60)))
        if self.libvirt_version() < (10, 8):
            self.assertIn('exceeding 100', self.start(
                'b', TUNE.format(1, 5000)))

    def libvirt_version(self):
        words = self.virsh('--version').stdout.strip().split('.')
        return tuple(map(int, words[:2]))


class MpamTest(MonitorMixin, libvirt_host.HostTestCase):
    settings = testhost.Settings(dialect='mpam')

    def test_ids_must_be_dense(self):
        self.assertIn(
            "Missing or inconsistent resctrl info for memory bandwidth node "
            "'5'", self.start('a', TUNE.format(5, 60)))


class NvidiaTest(MonitorMixin, libvirt_host.HostTestCase):
    settings = testhost.Settings(dialect='nvidia')

    def test_mb_hlim_is_taken_for_mb(self):
        self.assertIn('Missing or inconsistent resctrl info',
                      self.start('a', TUNE.format(1, 60)))


class OpenEuler510Test(libvirt_host.HostTestCase):
    settings = testhost.Settings(dialect='openeuler510')

    def test_there_is_no_resctrl_for_libvirt(self):
        for tune in (TUNE.format(1, 60), libvirt_host.MONITOR):
            self.assertIn('Resource control is not supported',
                          self.start('a', tune))

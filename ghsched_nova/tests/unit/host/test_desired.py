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

"""The desired state as libvirt's running domains tell it."""

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.base import bounds
from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.resctrl import model
from ghsched_nova.tests.fixtures import captured
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

DOMAIN = model.Domain('3f0c6a51-16d5-4d5e-8a0c-1f5b2b0d7c11', 4, 'g')
POLICY = GuestPolicy(nodes=(NodePolicy(minimum=20, maximum=60),))


def running(tune='', vcpu='<vcpu>4</vcpu>', policy=POLICY):
    xml = f'<domain>{vcpu}<cputune>{tune}</cputune></domain>'
    if policy:
        xml = metadata.write_policy(xml, metadata.DomainPolicy(
            policy, tuple(range(1, 1 + len(policy.nodes)))))
    return desired.Running(DOMAIN, xml)


def read(*args, **kwargs):
    found, = desired.make_desired_groups(captured.openeuler(),
                                         running(*args, **kwargs))
    return found


class DesiredTest(base.TestCase):

    NODE = '<node id="1" bandwidth="60"/>'

    def test_without_memorytune_the_group_is_ours(self):
        guest = read()
        self.assertEqual(('ghsched', frozenset(range(4)), 4),
                         (guest.maker, guest.vcpus, guest.online))
        self.assertEqual({1: 20}, guest.desired['MBMIN'])
        self.assertEqual('ghsched-' + DOMAIN.uuid, guest.group)

    def test_a_monitor_alone_makes_no_group(self):
        tune = '<memorytune vcpus="0-3"><monitor vcpus="0-3"/></memorytune>'
        self.assertEqual('ghsched', read(tune).maker)

    def test_with_memorytune_it_is_libvirts(self):
        guest = read(f'<memorytune vcpus="0-3">{self.NODE}</memorytune>')
        self.assertEqual(('libvirt', 'qemu-4-g-vcpus_0-3'),
                         (guest.maker, guest.group))

    def test_without_vcpus_it_is_the_whole_process(self):
        guest = read(f'<memorytune>{self.NODE}</memorytune>')
        self.assertEqual(('libvirt-process', 'qemu-4-g', 4),
                         (guest.maker, guest.group, guest.online))

    def test_vcpus_that_are_not_plugged_in_are_not_expected(self):
        guest = read(vcpu='<vcpu placement="static" current="1">4</vcpu>')
        self.assertEqual((4, 1), (len(guest.vcpus), guest.online))

    def test_unreadable_input_is_reported(self):
        two = f'<memorytune vcpus="0">{self.NODE}</memorytune>' * 2
        for args in ((two,), ('', '<vcpu/>'), ('', ''), (
                f'<memorytune vcpus="x">{self.NODE}</memorytune>',)):
            self.assertRaises(desired.DomainError, read, *args)
        self.assertRaises(desired.DomainError, read, policy=None)

    def test_text_that_is_no_xml_is_a_policy_that_cannot_be_read(self):
        for xml in ('', '<domain>', f'<domain {metadata.NAMESPACE}', '\0'):
            self.assertRaises(metadata.MetadataError, metadata.read_policy,
                              xml)
            self.assertRaises(metadata.MetadataError,
                              desired.parse_running_domain, xml)
            found = desired.Running(DOMAIN, xml)
            self.assertRaises(metadata.MetadataError, getattr, found, 'root')
            self.assertFalse(found.reserves_l3_ways)

    def test_only_guests_with_bandwidth_need_a_group(self):
        self.assertTrue(running().needs_control_group)
        for policy in (None, GuestPolicy(monitor=True)):
            found = running(policy=policy)
            self.assertFalse(found.needs_control_group)
            self.assertEqual(policy is not None,
                             desired.may_have_policy(found.xml))

    def test_who_is_to_be_measured_and_not_held(self):
        alone = GuestPolicy(monitor=True)
        both = GuestPolicy(nodes=POLICY.nodes, monitor=True)
        tune = '<memorytune vcpus="0-3"><monitor vcpus="0-3"/></memorytune>'
        for policy, xml, measured in (
                (alone, '', True), (alone, tune, True), (both, '', False),
                (POLICY, '', False), (None, '', False),
                (GuestPolicy(device_numa='required'), '', False)):
            self.assertEqual(measured,
                             running(xml,
                                     policy=policy).needs_monitoring_group)
        guest = read(policy=alone)
        self.assertEqual('mon_groups/ghsched-' + DOMAIN.uuid, guest.group)
        self.assertEqual((True, {}), (guest.is_only_measured, guest.desired))

    @given(st.text(max_size=40), st.text(max_size=40))
    def test_no_xml_brings_it_down(self, vcpus, count):
        xml = running(f'<memorytune vcpus="1">{self.NODE}</memorytune>').xml
        for char in '<&"\'':
            vcpus = vcpus.replace(char, '')
            count = count.replace(char, '')
        xml = xml.replace('vcpus="1"', f'vcpus="{vcpus}"').replace(
            '>4<', f'>{count}<')
        try:
            guest, = desired.make_desired_groups(
                captured.openeuler(), desired.Running(DOMAIN, xml))
        except (desired.DomainError, metadata.MetadataError):
            return
        bounds.check(model.Wanted((guest,)))

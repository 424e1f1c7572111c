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

"""Hints of KVM in the domain XML."""

from lxml import etree

from ghsched_nova.features.pv_hints import hint_xml
from ghsched_nova.features.pv_hints import pv_hints
from ghsched_nova.guest import thread_pins
from ghsched_nova.host import compute_hooks
from ghsched_nova.tests.fixtures import samples
from ghsched_placement.base.errors import PolicyError
from ghsched_placement.flavor import policy
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.tests import base

#: A guest of Nova, with a CPU for QEMU beside those of the vCPUs.
APART = samples.NOVA.replace('emulatorpin cpuset="0-1,80-81"',
                             'emulatorpin cpuset="1-2"').replace(
    '  <cpu mode', '  <features>\n    <acpi/>\n  </features>\n  <cpu mode')

HINTS = policy.parse_policy({
    'ghsched:pv_hints': 'dedicated', 'hw:cpu_policy': 'dedicated',
    'hw:emulator_threads_policy': 'share'}, 0)


def render(xml, found=HINTS):
    return pv_hints.ParavirtualHints('x86_64').render(
        xml, compute_hooks.StartingGuest(found, (0,), (9, 0, 0)))


class RenderTest(base.TestCase):

    def refused(self, xml, text):
        self.assertRaisesRegex(PolicyError, f'^ghsched:pv_hints: .*{text}',
                               render, xml)

    def test_domain_without_hints_stays_as_it_is(self):
        self.assertIs(APART, render(APART, policy.GuestPolicy()))
        self.assertEqual((), hint_xml.make_hint_elements(policy.GuestPolicy()))

    def test_hints_are_next_to_the_features_of_nova(self):
        features = etree.fromstring(render(APART)).find('features')
        self.assertEqual(['acpi', 'kvm'], [one.tag for one in features])
        self.assertEqual(
            [('hint-dedicated', 'on'), ('poll-control', 'on')],
            [(one.tag, one.get('state')) for one in features.find('kvm')])
        element, = hint_xml.make_hint_elements(HINTS)
        self.assertEqual(
            '<features><kvm><hint-dedicated state="on"/>'
            '<poll-control state="on"/></kvm></features>', element)

    def test_domain_with_hints_stays_as_it_is(self):
        self.assertEqual(render(APART), render(render(APART)))

    def test_other_threads_are_kept_off_the_cpus_of_vcpus(self):
        pins = thread_pins.parse_pins(etree.fromstring(render(APART)))
        self.assertEqual({2}, pins['emulator', 0])

    def test_guest_whose_emulator_has_no_other_cpu_is_refused(self):
        self.refused(samples.NOVA, 'set .compute.cpu_shared_set on the host')
        self.refused(samples.WITHOUT_CPUTUNE, 'no CPUs other than')

    def test_guest_with_a_vcpu_that_is_not_pinned_is_refused(self):
        self.refused(APART.replace('<vcpupin vcpu="3" cpuset="81"/>', ''),
                     'no CPUs other than')

    def test_guest_of_another_architecture_is_refused(self):
        self.refused(APART.replace('x86_64', 'aarch64'),
                     'for x86 only, not for aarch64')

    def test_guest_that_does_not_see_kvm_is_refused(self):
        for state, is_refused in (('on', True), ('off', False)):
            xml = APART.replace(
                '<acpi/>', f'<kvm><hidden state="{state}"/></kvm>')
            if is_refused:
                self.refused(xml, 'remove img_hide_hypervisor_id')
            else:
                self.assertIn('hint-dedicated', render(xml))


class HostTest(base.TestCase):

    def test_hosts_with_x86_alone_offer_hints(self):
        for machine, offers in (('x86_64', True), ('aarch64', False)):
            found = pv_hints.ParavirtualHints(machine).describe_host(
                HostDescription(capabilities=frozenset({'MEM_BW_MAX'})))
            self.assertIn('MEM_BW_MAX', found.capabilities)
            self.assertEqual(offers, 'PV_HINTS' in found.capabilities)

    def test_arrival_without_other_cpus_for_the_emulator_is_refused(self):
        part = pv_hints.make_compute_hooks(None)
        for found, emulator, has_shared, is_refused in (
                (HINTS, 'share', False, True), (HINTS, 'share', True, False),
                (HINTS, 'isolate', False, False),
                (policy.GuestPolicy(), 'share', False, False)):
            arguments = found, emulator, has_shared
            if is_refused:
                self.assertRaisesRegex(PolicyError, 'cpu_shared_set',
                                       part.check_arrival, *arguments)
            else:
                part.check_arrival(*arguments)

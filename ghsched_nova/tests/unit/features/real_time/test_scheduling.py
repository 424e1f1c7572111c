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


"""Scheduling classes in the domain XML."""

from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from ghsched_nova.features.real_time import scheduling
from ghsched_nova.tests.fixtures import samples
from ghsched_placement.base import cpulist
from ghsched_placement.features.real_time.scheduling import REALTIME
from ghsched_placement.features.real_time.scheduling import Scheduling
from ghsched_placement.features.real_time.scheduling import ThreadPolicy
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.policy import PolicyError
from ghsched_placement.tests import base

PINNED = (
    '<domain><vcpu>2</vcpu><iothreads>1</iothreads><cputune>'
    '<vcpupin vcpu="0" cpuset="2"/><vcpupin vcpu="1" cpuset="3"/>'
    '<emulatorpin cpuset="0-2"/><iothreadpin iothread="1" cpuset="3-4"/>'
    '</cputune></domain>')
BARE = '<domain><vcpu>2</vcpu><iothreads>2</iothreads></domain>'


def classes():
    return st.none() | st.sampled_from(keys.SCHEDULERS).flatmap(
        lambda name: st.integers(1, 99).map(
            lambda number: Scheduling(
                name, number if name in REALTIME else None)))


class RenderTest(base.TestCase):

    def render(self, xml, *args, **kwargs):
        return scheduling.render_scheduling(xml, ThreadPolicy(*args, **kwargs))

    def test_without_a_class_the_text_stays_as_it_is(self):
        self.assertIs(samples.NOVA, self.render(samples.NOVA))

    def test_each_kind_has_its_element_behind_the_pins(self):
        root = etree.fromstring(self.render(
            samples.NOVA, Scheduling('fifo', 5), '^0', Scheduling('rr', 2)))
        cputune = root.find('cputune')
        self.assertEqual(
            [('vcpusched', {'scheduler': 'fifo', 'priority': '5',
                            'vcpus': '1-3'}),
             ('emulatorsched', {'scheduler': 'rr', 'priority': '2'})],
            [(one.tag, dict(one.attrib)) for one in list(cputune)[-2:]])

    def test_iothreads_have_one_where_the_domain_has_iothreads(self):
        policy = ThreadPolicy(iothreads=Scheduling('batch'))
        self.assertIn('<iothreadsched scheduler="batch" iothreads="1-2"/>',
                      scheduling.render_scheduling(BARE, policy))
        self.assertNotIn('iothreadsched',
                         scheduling.render_scheduling(samples.NOVA, policy))

    def test_locked_memory_stays_next_to_hugepages(self):
        root = etree.fromstring(self.render(samples.NOVA, lock_memory=True))
        self.assertEqual(['hugepages', 'nosharepages', 'locked'],
                         [one.tag for one in root.find('memoryBacking')])
        self.assertIn('<memoryBacking><nosharepages/><locked/>',
                      self.render(BARE, lock_memory=True))

    def test_a_mask_beyond_the_guest_is_refused(self):
        self.assertRaisesRegex(PolicyError, 'the guest has 4', self.render,
                               samples.NOVA, Scheduling('rr', 1), '2-4')

    def test_deadline_is_in_the_metadata_alone(self):
        wanted = Scheduling('deadline', None, 1000, 2000, 3000)
        text = self.render(samples.NOVA, wanted, '^0')
        self.assertNotIn('vcpusched', text)
        for xml in text, self.render(text, wanted, '^0'):
            self.assertEqual(dict.fromkeys((1, 2, 3), wanted),
                             scheduling.read_domain_threads(
                                 etree.fromstring(xml)).vcpus)

    def test_pins_are_read_with_the_classes(self):
        pins = scheduling.read_domain_threads(
            etree.fromstring(samples.NOVA)).pins
        self.assertEqual(frozenset({80}), pins['vcpu', 2])
        self.assertEqual(frozenset({0, 1, 80, 81}), pins['emulator', 0])

    def test_qemu_is_kept_off_the_cpus_that_interrupts_go_to(self):
        for bypass in ('required', 'preferred'):
            text = self.render(PINNED, irq_bypass=bypass)
            pins = scheduling.read_domain_threads(etree.fromstring(text)).pins
            self.assertEqual({('vcpu', 0): {2}, ('vcpu', 1): {3},
                              ('emulator', 0): {0, 1},
                              ('iothread', 1): {4}}, pins)
            self.assertEqual(text, self.render(text, irq_bypass=bypass))

    def test_qemu_without_other_cpus_is_refused_only_when_required(self):
        for xml in (PINNED.replace('0-2', '2-3'), BARE,
                    PINNED.replace('<emulatorpin cpuset="0-2"/>', ''),
                    PINNED.replace('iothreadpin', 'x')):
            self.assertRaisesRegex(
                PolicyError, '^ghsched:irq_bypass: QEMU has no CPUs',
                self.render, xml, irq_bypass='required')
        all_pinned = PINNED.replace('0-2', '2-3').replace('3-4', '4')
        self.assertEqual(all_pinned,
                         self.render(all_pinned, irq_bypass='preferred'))
        self.assertEqual(BARE, self.render(BARE, irq_bypass='preferred'))

    def test_qemu_is_kept_off_the_cpus_of_realtime_vcpus(self):
        for one in (Scheduling('fifo', 5), Scheduling('rr', 10),
                    Scheduling('deadline', None, 1000, 2000, 3000)):
            text = self.render(PINNED, one, '^0')
            pins = scheduling.read_domain_threads(etree.fromstring(text)).pins
            self.assertEqual({('vcpu', 0): {2}, ('vcpu', 1): {3},
                              ('emulator', 0): {0, 1, 2},
                              ('iothread', 1): {4}}, pins)

    def test_qemu_on_the_cpus_of_realtime_vcpus_alone_is_refused(self):
        shared = PINNED.replace('0-2', '2-3')
        for xml, thread in ((shared, 'emulator'),
                            (PINNED.replace('3-4', '3'), 'iothread'),
                            (shared.replace('3-4', '2'),
                             'emulator and iothread')):
            self.assertRaisesRegex(
                PolicyError, f'the {thread} threads of QEMU .*cpu_shared_set',
                self.render, xml, Scheduling('rr', 10))
        for scheduler in ('batch', 'idle', 'other'):
            self.assertIn('cpuset="2-3"', self.render(
                shared, Scheduling(scheduler, None)))
        # On shared CPUs their time is counted.
        self.assertIn('cpuset="2-3"', self.render(
            shared, Scheduling('rr', 10), permille=(200,)))

    def test_steering_is_in_the_metadata_once(self):
        text = self.render(PINNED, irq_affinity='housekeeping')
        self.assertEqual(text, self.render(text,
                                           irq_affinity='housekeeping'))
        self.assertTrue(scheduling.has_housekeeping_irqs(
            etree.fromstring(text)))
        self.assertFalse(scheduling.has_housekeeping_irqs(
            etree.fromstring(PINNED)))
        self.assertIn('interrupts/1.0', scheduling.render_thread_elements(
            ThreadPolicy(irq_affinity='housekeeping'), 2))

    @given(st.sets(st.integers(0, 5), min_size=1),
           st.sets(st.integers(0, 5), min_size=1))
    def test_no_thread_of_qemu_is_where_a_vcpu_is(self, vcpus, emulator):
        domain = etree.fromstring(PINNED)
        for path, cpus in (('vcpupin', vcpus), ('emulatorpin', emulator)):
            domain.find(f'cputune/{path}').set(
                'cpuset', cpulist.render_cpu_list(cpus))
        xml = etree.tostring(domain, encoding='unicode')
        try:
            text = self.render(xml, irq_bypass='required')
        except PolicyError:
            self.assertTrue(emulator <= vcpus | {3} or {4} <= vcpus)
            return
        pins = scheduling.read_domain_threads(etree.fromstring(text)).pins
        for kind in (('emulator', 0), ('iothread', 1)):
            self.assertTrue(pins[kind])
            self.assertFalse(pins[kind] & (vcpus | {3}))

    @given(classes(), classes(), classes(), st.booleans())
    def test_written_values_are_read_back(self, vcpus, emulator, iothreads,
                                          lock):
        text = self.render(BARE, vcpus, '', emulator, iothreads, lock)
        found = scheduling.read_domain_threads(etree.fromstring(text))

        def without_other(one):
            return None if one and one.scheduler == 'other' else one
        self.assertEqual(
            (dict.fromkeys(range(2), without_other(vcpus))
             if without_other(vcpus) else {},
             without_other(emulator)), (found.vcpus, found.emulator))
        self.assertEqual(set(filter(None, [without_other(iothreads)])),
                         set(found.iothreads.values()))

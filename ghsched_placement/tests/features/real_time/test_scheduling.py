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


"""Scheduling classes of a guest's threads."""

import random

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.flavor_check import flavor_errors
from ghsched_placement.features.real_time import scheduling
from ghsched_placement.features.real_time.scheduling import Scheduling
from ghsched_placement.features.real_time import thread_keys
from ghsched_placement.flavor import policy
from ghsched_placement.providers import names
from ghsched_placement.tests import base

SHARED = {'hw:cpu_policy': 'shared', 'hw:numa_nodes': '1'}
DEDICATED = {'hw:cpu_policy': 'dedicated',
             'hw:emulator_threads_policy': 'share'}


def parsed(specs, **ours):
    result = policy.parse_policy({**specs, **{
        f'ghsched:{name}': str(value) for name, value in ours.items()}}, 1)
    return result.get_part(scheduling.ThreadPolicy)


def problems(specs, **ours):
    every = {**specs, **{f'ghsched:{name}': str(value)
                         for name, value in ours.items()}}
    return [str(error) for error
            in flavor_errors.find_all_flavor_errors(every, 1)]


class ParseTest(base.TestCase):

    def refused(self, specs, **ours):
        with self.assertRaises(policy.PolicyError) as caught:
            parsed(specs, **ours)
        self.assertEqual([str(caught.exception)], problems(specs, **ours))
        return str(caught.exception)

    def test_each_kind_of_thread_has_its_own(self):
        threads = parsed(DEDICATED, vcpu_scheduler='rr', vcpu_priority=10,
                         emulator_scheduler='fifo',
                         iothread_scheduler='batch', lock_memory='true')
        self.assertEqual(
            scheduling.ThreadPolicy(
                Scheduling('rr', 10), '', Scheduling('fifo', 1),
                Scheduling('batch'), True), threads)
        self.assertEqual((True, 10),
                         (threads.realtime, threads.highest_priority))

    def test_a_guest_without_the_keys_is_scheduled_as_all_others(self):
        self.assertIs(False, parsed({}, monitor='true').realtime)
        self.assertEqual(scheduling.ThreadPolicy(), parsed({}, monitor='true'))

    def test_realtime_needs_dedicated_cpus(self):
        for name in ('fifo', 'rr'):
            text = self.refused({}, vcpu_scheduler=name)
            self.assertIn('ghsched:vcpu_scheduler: ', text)
            self.assertIn('hw:cpu_policy=dedicated', text)
        for name in ('batch', 'idle', 'other'):
            self.assertEqual(Scheduling(name),
                             parsed({}, vcpu_scheduler=name).vcpus)

    def test_realtime_leaves_a_cpu_for_qemu(self):
        specs = {'hw:cpu_policy': 'dedicated'}
        self.assertIn('hw:emulator_threads_policy',
                      self.refused(specs, vcpu_scheduler='fifo'))
        self.assertEqual('^0', parsed(specs, vcpu_scheduler='fifo',
                                      vcpu_scheduler_mask='^0').mask)
        self.assertIn('hw:emulator_threads_policy', self.refused(
            specs, vcpu_scheduler='fifo', vcpu_scheduler_mask='^0',
            emulator_scheduler='rr'))

    def test_shared_emulator_needs_shared_cpus_of_the_host(self):
        def warning(specs, **ours):
            return scheduling.get_shared_emulator_warning(
                parsed(specs, **ours), specs)

        self.assertIn('[compute]cpu_shared_set',
                      warning(DEDICATED, vcpu_scheduler='rr'))
        isolated = DEDICATED | {'hw:emulator_threads_policy': 'isolate'}
        for specs, ours in ((isolated, {'vcpu_scheduler': 'rr'}),
                            (DEDICATED, {'vcpu_scheduler': 'batch'}),
                            (DEDICATED, {'vcpu_scheduler': 'rr',
                                         'vcpu_scheduler_mask': '^0'}),
                            (DEDICATED, {'lock_memory': 'true'}),
                            (SHARED, {'vcpu_scheduler': 'rr',
                                      'vcpu_runtime_us': 1000,
                                      'vcpu_period_us': 10000})):
            self.assertEqual('', warning(specs, **ours), (specs, ours))

    def test_novas_realtime_cannot_be_combined(self):
        self.assertIn('hw:cpu_realtime', self.refused(
            {**DEDICATED, 'hw:cpu_realtime': 'yes'}, vcpu_scheduler='rr'))

    def test_dependent_keys_name_the_other_key(self):
        self.assertIn('needs ghsched:vcpu_scheduler=fifo or rr',
                      self.refused({}, vcpu_priority=3))
        self.assertIn('needs ghsched:emulator_scheduler=fifo or rr',
                      self.refused({}, emulator_scheduler='batch',
                                   emulator_priority=3))
        self.assertIn('needs ghsched:vcpu_scheduler',
                      self.refused({}, vcpu_scheduler_mask='1'))

    def test_contradictions_of_unrelated_keys_are_all_named(self):
        self.assertEqual(
            ['ghsched:mem_bw_min', 'ghsched:iothread_priority',
             'ghsched:vfs_locality'],
            [':'.join(text.split(':')[:2]) for text in problems(
                {'hw:numa_nodes': '1'}, mem_bw_min=60, mem_bw_max=50,
                iothread_priority=13, device_numa='required',
                vfs_locality='any')])

    def test_a_priority_out_of_range_names_its_key(self):
        for value in (0, 100, 'x'):
            with self.assertRaisesRegex(policy.PolicyError,
                                        '^ghsched:vcpu_priority: '):
                policy.check_extra_spec('ghsched:vcpu_priority', value)

    def test_deadline_has_times_that_the_kernel_takes(self):
        vcpus = parsed(DEDICATED, vcpu_scheduler='deadline',
                       vcpu_runtime_us=1000, vcpu_period_us=3000).vcpus
        self.assertEqual(Scheduling('deadline', None, 1000, 3000, 3000),
                         vcpus)
        self.assertEqual((334, True), (vcpus.cpu_permille, vcpus.realtime))
        self.assertEqual('deadline 1000/3000/3000 us', str(vcpus))

    def test_deadline_is_refused_with_the_key_that_is_wrong(self):
        ours = {'vcpu_scheduler': 'deadline', 'vcpu_period_us': 1000}
        for changes, text in (
                ({}, 'needs ghsched:vcpu_runtime_us'),
                ({'vcpu_runtime_us': 901}, 'more than 90 %'),
                ({'vcpu_runtime_us': 500, 'vcpu_deadline_us': 400},
                 'longer than the deadline'),
                ({'vcpu_runtime_us': 500, 'vcpu_deadline_us': 1001},
                 'longer than the period'),
                ({'vcpu_runtime_us': 500, 'vcpu_scheduler': 'rr'},
                 'needs ghsched:vcpu_scheduler=deadline'),
                ({'vcpu_runtime_us': 500, 'vcpu_priority': 3},
                 'ghsched:vcpu_priority')):
            self.assertIn(text, self.refused(DEDICATED, **ours | changes))
        self.assertIn('hw:cpu_policy', self.refused(
            {}, **ours | {'vcpu_runtime_us': 500}))

    def test_shared_cpus_are_for_what_says_how_much_it_takes(self):
        times = {'vcpu_runtime_us': 1000, 'vcpu_period_us': 3000}
        for name in ('fifo', 'rr'):
            threads = parsed(SHARED, vcpu_scheduler=name, **times)
            self.assertEqual((Scheduling(name, 1), 334, {'VCPU_REALTIME'}),
                             (threads.vcpus, threads.permille,
                              threads.get_needed_capabilities()))
            self.assertIn(f'{name} on shared CPUs needs ghsched:vcpu_runtime',
                          self.refused(SHARED, vcpu_scheduler=name))
            self.assertIn('needs ghsched:vcpu_scheduler=deadline',
                          self.refused(SHARED, vcpu_scheduler=name,
                                       vcpu_deadline_us=2000, **times))
            self.assertIn('more than 90 %', self.refused(
                SHARED, vcpu_scheduler=name, vcpu_runtime_us=901,
                vcpu_period_us=1000))
        threads = parsed(SHARED, vcpu_scheduler='deadline', **times)
        self.assertEqual(
            (Scheduling('deadline', None, 1000, 3000, 3000), 334,
             {'VCPU_DEADLINE_SHARED'}),
            (threads.vcpus, threads.permille,
             threads.get_needed_capabilities()))
        self.assertIn('set hw:numa_nodes', self.refused(
            {'hw:cpu_policy': 'shared'}, vcpu_scheduler='rr', **times))
        self.assertIn('hw:cpu_policy=shared with fifo or rr', self.refused(
            DEDICATED, vcpu_scheduler='rr', **times))

    def test_each_guest_node_takes_what_its_vcpus_do(self):
        def count_realtime_cpu(vcpus, nodes=1, **specs):
            return policy.parse_policy(
                {**SHARED, 'ghsched:vcpu_scheduler': 'rr',
                 'ghsched:vcpu_runtime_us': '100',
                 'ghsched:vcpu_period_us': '300',
                 'hw:numa_nodes': str(nodes), **specs}, nodes,
                vcpus).get_resources_by_node()

        def amounts(*permille):
            return {node: {names.RT_CPU_PERMILLE: amount}
                    for node, amount in enumerate(permille) if amount}
        mask = {'ghsched:vcpu_scheduler_mask': '^0-1'}
        self.assertEqual(amounts(1336), count_realtime_cpu(4))
        self.assertEqual(amounts(668, 668), count_realtime_cpu(4, 2))
        self.assertEqual(amounts(0, 668), count_realtime_cpu(4, 2, **mask))
        self.assertEqual(amounts(334, 1002), count_realtime_cpu(
            4, 2, **{'hw:numa_cpus.0': '3', 'hw:numa_cpus.1': '0-2'}))
        with self.assertRaisesRegex(policy.PolicyError, 'split evenly'):
            count_realtime_cpu(3, 2)

    def test_interrupts_that_bypass_the_host_need_cpus_of_their_own(self):
        for value in ('required', 'preferred'):
            self.assertIn('set hw:cpu_policy=dedicated',
                          self.refused({}, irq_bypass=value))
            text = self.refused({'hw:cpu_policy': 'dedicated'},
                                irq_bypass=value)
            self.assertTrue(text.startswith('ghsched:irq_bypass: '), text)
            self.assertIn('hw:emulator_threads_policy=share or isolate', text)
            threads = parsed(DEDICATED, irq_bypass=value)
            self.assertEqual(scheduling.ThreadPolicy(irq_bypass=value),
                             threads)
            self.assertEqual({'IRQ_BYPASS'} if value == 'required' else set(),
                             threads.get_needed_capabilities())
        self.assertIn('is not one of required, preferred',
                      self.refused(DEDICATED, irq_bypass='none'))

    def test_interrupts_are_steered_for_any_flavor(self):
        self.assertEqual(
            scheduling.ThreadPolicy(irq_affinity='housekeeping'),
            parsed({}, irq_affinity='housekeeping'))
        self.assertIn('ghsched:irq_affinity: ',
                      self.refused({}, irq_affinity='all'))

    def test_realtime_asks_the_host_for_it(self):
        def asked(**ours):
            return policy.GuestPolicy(parts=(
                parsed(DEDICATED, **ours),)).get_needed_capabilities()
        self.assertEqual({'VCPU_REALTIME'}, asked(vcpu_scheduler='fifo'))
        self.assertEqual({'VCPU_DEADLINE'}, asked(
            vcpu_scheduler='deadline', vcpu_runtime_us=10,
            vcpu_period_us=100))
        self.assertEqual(set(), asked(vcpu_scheduler='idle'))


class MaskTest(base.TestCase):

    def chosen(self, mask, count=4, name='batch'):
        return set(scheduling.list_scheduled_vcpus(scheduling.ThreadPolicy(
            Scheduling(name), mask), count))

    def test_vcpus_of_a_mask(self):
        for mask, vcpus in (('', {0, 1, 2, 3}), ('2-3', {2, 3}),
                            ('^0-1', {2, 3}), ('0-3,^1', {0, 2, 3}),
                            ('^0, ^3', {1, 2})):
            self.assertEqual(vcpus, self.chosen(mask), mask)
        self.assertEqual(frozenset(),
                         scheduling.list_scheduled_vcpus(
                             scheduling.ThreadPolicy(), 4))

    def test_invalid_masks(self):
        for mask in ('x', '1-', '3-1', '1,,2', '^0-3', '4', '0-4'):
            with self.assertRaisesRegex(
                    policy.PolicyError, '^ghsched:vcpu_scheduler_mask: '):
                self.chosen(mask)

    def test_a_mask_of_realtime_leaves_a_vcpu_out(self):
        self.assertEqual({0, 1, 2, 3}, self.chosen('0-3'))
        with self.assertRaisesRegex(policy.PolicyError, 'must leave out at '):
            self.chosen('0-3', name='rr')

    @given(st.text('0123456789-,^ x', max_size=12), st.integers(1, 8))
    def test_any_text_is_a_set_of_its_vcpus_or_refused(self, mask, count):
        try:
            vcpus = self.chosen(mask, count)
        except policy.PolicyError as error:
            self.assertEqual(thread_keys.VCPU_SCHEDULER_MASK.extra_spec,
                             error.key)
            return
        self.assertLessEqual(vcpus, set(range(count)))
        self.assertTrue(vcpus)


class AdmissionTest(base.TestCase):
    """Sets of threads on dedicated CPUs, which the kernel's own test must
    admit.

    The rule is that of ``__dl_overflow`` in kernel/sched/sched.h and
    ``to_ratio`` in kernel/sched/core.c: the sum of runtime / period, in
    units of 2^-20, is at most that of ``sched_rt_runtime_us`` for each CPU
    of the root domain, and 50 ms of each second are those of the kernel's
    server for other classes (sched_init_dl_servers).
    """

    LIMIT = (950000 << 20) // 1000000 - (50 << 20) // 1000

    def test_ten_thousand_random_sets_of_fifo_and_rr(self):
        """The kernel admits all; no CPU must have two, and QEMU has some."""
        chance = random.Random(11)  # noqa: S311
        admitted = refused = 0
        for _set in range(10000):
            free = list(range(chance.randint(1, 32)))
            housekeeping = {1000}
            realtime: set[int] = set()
            for _guest in range(chance.randint(1, 8)):
                count = chance.randint(1, 8)
                specs, ours = self.realtime_flavor(chance)
                try:
                    vcpus = scheduling.list_scheduled_vcpus(
                        parsed(specs, **ours), count)
                except policy.PolicyError:
                    refused += 1
                    continue
                emulator = specs.get('hw:emulator_threads_policy')
                isolated = 1 if emulator == 'isolate' else 0
                if count + isolated > len(free):
                    continue
                own = [free.pop() for _vcpu in range(count)]
                # Where nova.virt.libvirt.driver pins the emulator thread.
                others = (housekeeping if emulator == 'share'
                          else {free.pop()} if isolated else set(own))
                first = {own[vcpu] for vcpu in vcpus}
                self.assertFalse(first & realtime)
                realtime |= first
                self.assertTrue(others - realtime, specs)
                admitted += 1
        self.assertGreater(admitted, 5000)
        self.assertGreater(refused, 5000)

    def realtime_flavor(self, chance):
        ours = {'vcpu_scheduler': chance.choice(['fifo', 'rr']),
                'vcpu_priority': chance.randint(1, 99)}
        mask = chance.choice(['', '', '0', '^0', '^1-2', '1-3', '0-7'])
        if mask:
            ours['vcpu_scheduler_mask'] = mask
        specs = {'hw:cpu_policy': chance.choice(
            ['dedicated', 'dedicated', 'shared'])}
        emulator = chance.choice(['', 'share', 'isolate'])
        if emulator:
            specs['hw:emulator_threads_policy'] = emulator
        return specs, ours

    def test_ten_thousand_random_sets(self):
        chance = random.Random(7)  # noqa: S311
        admitted = 0
        for _set in range(10000):
            free = cpus = chance.randint(1, 64)
            total = 0
            for _guest in range(chance.randint(1, 12)):
                vcpus = self.flavor(chance)
                count = chance.randint(1, 16)
                if vcpus is None or count > free:
                    continue
                free -= count
                admitted += 1
                total += count * ((vcpus.runtime_us << 20)
                                  // vcpus.period_us)
            self.assertLessEqual(total, cpus * self.LIMIT)
        self.assertGreater(admitted, 10000)

    def test_ten_thousand_random_sets_on_shared_cpus(self):
        """Beside as many on dedicated CPUs as there can be."""
        chance = random.Random(19)  # noqa: S311
        admitted = 0
        for _set in range(10000):
            dedicated, shared = chance.randint(0, 64), chance.randint(1, 64)
            left = scheduling.compute_rt_capacity(shared, 950000, 1000000,
                                                  chance.choice([50, 100]))
            total = dedicated * ((scheduling.DEADLINE_SHARE << 20) // 100)
            for _guest in range(chance.randint(1, 12)):
                vcpus = self.flavor(chance, SHARED)
                count = chance.randint(1, 16)
                if vcpus is None or count * vcpus.cpu_permille > left:
                    continue
                left -= count * vcpus.cpu_permille
                admitted += 1
                total += count * ((vcpus.runtime_us << 20)
                                  // vcpus.period_us)
            self.assertLessEqual(total, (dedicated + shared) * self.LIMIT)
        self.assertGreater(admitted, 10000)

    def test_no_room_without_a_budget_of_the_kernel(self):
        self.assertEqual(0, scheduling.compute_rt_capacity(4, 0, 1000000, 100))
        self.assertEqual(4000,
                         scheduling.compute_rt_capacity(4, -1, 1000000, 100))
        self.assertEqual(1800, scheduling.compute_rt_capacity(4, 950000,
                                                              1000000, 50))

    def flavor(self, chance, specs=DEDICATED):
        period = chance.randint(100, 4194304)
        ours = {'vcpu_scheduler': 'deadline', 'vcpu_period_us': period,
                'vcpu_runtime_us': chance.randint(2, period)}
        try:
            return parsed(specs, **ours).vcpus
        except policy.PolicyError:
            return None

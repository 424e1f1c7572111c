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

"""Counters of the kernel: real ones of software, and stand-ins of a PMU."""

import errno
import mmap
import os
from pathlib import Path
import struct
import tempfile
import threading
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.tests.fixtures import fake_qemu
from ghsched_nova.threads import counters
from ghsched_placement.tests import base

#: PERF_TYPE_SOFTWARE and PERF_COUNT_SW_PAGE_FAULTS.
FAULTS = {'faults': counters.Event(1, 2)}
PAGES = 500


class Worker:
    """A thread that touches pages when it is told to."""

    def __init__(self):
        self.begin, self.done = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        self.begin.wait()
        with mmap.mmap(-1, PAGES * mmap.PAGESIZE) as area:
            area.madvise(mmap.MADV_NOHUGEPAGE)
            for page in range(PAGES):
                area[page * mmap.PAGESIZE] = 1
        self.done.set()

    def work(self, _seconds):
        self.begin.set()
        self.done.wait(base.GIVE_UP_S)


class KernelTest(base.TestCase):
    """Events that the kernel of every machine counts."""

    def count(self, tids, events, sleep=lambda _seconds: None):
        try:
            return counters.count_events(tids, 1.0, events, sleep)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.ENOSYS):
                self.skipTest(f'perf_event_open may not be used: {error}')
            raise

    def test_page_faults_of_a_thread_are_counted_and_of_no_other(self):
        worker, other = Worker(), Worker()
        found = self.count([worker.thread.native_id], FAULTS, worker.work)
        self.assertLessEqual(PAGES, found['faults'])
        self.assertGreater(2 * PAGES, found['faults'])
        other.work(0)

    def test_page_faults_of_threads_are_summed(self):
        workers = Worker(), Worker()
        found = self.count(
            [one.thread.native_id for one in workers], FAULTS,
            lambda seconds: [one.work(seconds) for one in workers])
        self.assertLessEqual(2 * PAGES, found['faults'])

    def test_event_that_no_machine_has_is_left_out(self):
        found = self.count(
            [threading.get_native_id()],
            {'unknown': counters.Event(1, 2 ** 20), **FAULTS})
        self.assertEqual({'faults'}, set(found))

    def test_thread_that_has_ended_counts_nothing(self):
        # PID_MAX_LIMIT of include/linux/threads.h.
        self.assertEqual({}, self.count([2 ** 22], FAULTS))

    def test_descriptors_are_closed(self):
        before = len(os.listdir('/proc/self/fd'))
        self.count([threading.get_native_id()], counters.EVENTS)
        self.assertEqual(before, len(os.listdir('/proc/self/fd')))


class PmuTest(base.TestCase):
    """Readings in the format of the kernel, in place of a PMU."""

    def count(self, *readings):
        """Count one event of threads with these readings."""
        fds = []
        for reading in readings:
            ours, theirs = os.pipe()
            os.write(theirs, struct.pack('=3Q', *reading))
            os.close(theirs)
            fds.append(ours)
        with mock.patch.object(counters, '_open_counter', side_effect=fds):
            return counters.count_events(
                range(len(fds)), 0.0, {'cycles': counters.Event(0, 0)},
                lambda _seconds: None)

    def test_counters_that_take_turns_are_extrapolated(self):
        # 1000 in a quarter of the time, and 50 in all of it.
        self.assertEqual({'cycles': 4050.0}, self.count(
            (1000, 8000, 2000), (50, 8000, 8000)))

    def test_thread_that_never_ran_counts_zero(self):
        self.assertEqual({'cycles': 50.0}, self.count(
            (0, 0, 0), (50, 8000, 8000)))

    def test_event_whose_turn_never_came_is_left_out(self):
        self.assertEqual({}, self.count((0, 8000, 0), (50, 8000, 8000)))

    def test_kernel_that_refuses_raises_its_error(self):
        with mock.patch.object(counters, '_open_counter',
                               side_effect=OSError(errno.EACCES, 'refused')):
            error = self.assertRaises(OSError, counters.count_events, [1],
                                      0.0)
        self.assertEqual(errno.EACCES, error.errno)

    @given(st.integers(0, 2 ** 64 - 1), st.integers(0, 2 ** 40),
           st.integers(0, 2 ** 40))
    def test_scaled_count_is_never_below_the_counted(self, value, one, two):
        running, enabled = sorted((one, two))
        found = counters.scale_count(value, enabled, running)
        if running:
            self.assertGreaterEqual(found, value * (1 - 1e-9))
        else:
            self.assertIn(found, (None, 0.0))


class GuestTest(base.TestCase):

    def list_counted(self, *names):
        """Return the names of the threads that are counted."""
        run_path = Path(self.enterContext(tempfile.TemporaryDirectory()))
        qemu = self.useFixture(fake_qemu.Qemu(run_path, 'web', *names))
        with mock.patch.object(counters, 'count_events') as count:
            counters.count_guest_events(run_path, 'web', qemu.process.pid,
                                        1500)
        tids, seconds = count.call_args.args
        self.assertEqual(1.5, seconds)
        return [Path(f'/proc/{qemu.process.pid}/task/{tid}/comm').read_text()
                .strip() for tid in tids]

    def test_vcpus_are_counted_and_no_other_thread(self):
        self.assertEqual({'CPU 0/KVM', 'CPU 1/KVM'}, set(self.list_counted(
            'CPU 0/KVM', 'worker', 'CPU 1/KVM')))

    def test_qemu_without_a_thread_per_vcpu_is_counted_as_a_whole(self):
        self.assertIn('worker', self.list_counted('worker'))

    def test_threads_that_are_counted_have_a_bound(self):
        self.assertEqual(counters.MOST_THREADS, len(self.list_counted(
            *(f'CPU {number}/KVM' for number
              in range(counters.MOST_THREADS + 3)))))

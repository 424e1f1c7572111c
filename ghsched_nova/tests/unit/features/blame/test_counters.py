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

from ghsched_nova.features.blame import counters
from ghsched_nova.tests.fixtures import fake_qemu
from ghsched_placement.tests import base

#: PERF_TYPE_SOFTWARE and PERF_COUNT_SW_PAGE_FAULTS.
FAULTS = {'faults': counters.Event(1, 2)}
PAGES = 500


class Worker:
    """A thread that writes to new pages of memory when work() is called."""

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
            found, = counters.count_events([(tids, events)], 1.0, sleep)
            return found
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

    def test_groups_of_threads_are_counted_apart_and_at_the_same_time(self):
        workers = Worker(), Worker()

        def work_twice(seconds):
            for one in workers:
                one.work(seconds)

        first, second = (([one.thread.native_id], FAULTS) for one in workers)
        try:
            found = counters.count_events(
                [first, ([], FAULTS), second], 1.0, work_twice)
        except PermissionError as error:
            self.skipTest(f'perf_event_open may not be used: {error}')
        self.assertEqual({}, found[1])
        for one in found[::2]:
            self.assertLessEqual(PAGES, one['faults'])
            self.assertGreater(2 * PAGES, one['faults'])


class Kernel:
    """A stand-in of perf_event_open(2) on a machine with a PMU.

    :param lacks: error by number of a hardware event that the CPU lacks.
    :param error: error of each call, of a kernel that refuses.
    """

    def __init__(self, lacks=(), error=0):
        self.lacks, self.error, self.opened = dict(lacks), error, []

    def open(self, attr, tid):
        kind, size, number, *rest = struct.unpack('=IIQQQQQIIQ', attr)
        # PERF_ATTR_SIZE_VER0; no sampling, both times, no flag: guest and
        # host are counted, from now on.
        assert (size, rest) == (len(attr), [0, 0, 3, 0, 0, 0, 0]), rest
        error = self.error or (kind == 0 and self.lacks.get(number))
        if tid == 404:
            error = errno.ESRCH
        if error:
            raise OSError(error, os.strerror(error))
        self.opened.append((tid, kind, number))
        ours, theirs = os.pipe()
        os.write(theirs, struct.pack('=3Q', 100 * number + tid, 8, 4))
        os.close(theirs)
        return ours

    def count(self, tids=(1, 2)):
        """Count all events of threads."""
        with mock.patch.object(counters, '_perf_event_open', self.open):
            found, = counters.count_events([(tids, counters.EVENTS)], 0.0)
        return found


class StandInTest(base.TestCase):
    """Errors of the kernel, by a stand-in of its system call."""

    def test_events_of_a_pmu_are_opened_for_each_thread_and_scaled(self):
        kernel = Kernel()
        found = kernel.count()
        self.assertEqual(set(counters.EVENTS), set(found))
        # Half of the time each; two threads.
        self.assertEqual(2 * (301 + 302), found['cache_misses'])
        self.assertEqual(10, len(kernel.opened))

    def test_event_that_the_cpu_lacks_is_left_out(self):
        for error in (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL,
                      errno.ENODEV):
            found = Kernel({8: error}).count()
            self.assertEqual(set(counters.EVENTS) - {'stalled_cycles'},
                             set(found))

    def test_machine_without_a_pmu_counts_the_time_only(self):
        kernel = Kernel(dict.fromkeys(range(10), errno.ENOENT))
        self.assertEqual({'cpu_ns'}, set(kernel.count()))

    def test_kernel_that_refuses_raises_its_error_and_leaks_nothing(self):
        for error in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENOSYS):
            before = len(os.listdir('/proc/self/fd'))
            kernel = Kernel({1: error})
            raised = self.assertRaises(OSError, kernel.count)
            self.assertEqual(error, raised.errno)
            self.assertEqual([(1, 1, 1)], kernel.opened)
            self.assertEqual(before, len(os.listdir('/proc/self/fd')))

    def test_thread_that_has_ended_is_left_out_of_the_sum(self):
        found = Kernel().count((404, 1))
        self.assertEqual(2 * 301, found['cache_misses'])


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
            found, = counters.count_events(
                [(range(len(fds)), {'cycles': counters.Event(0, 0)})], 0.0,
                lambda _seconds: None)
            return found

    def test_counters_that_take_turns_are_extrapolated(self):
        # 1000 in a quarter of the time, and 50 in all of it.
        self.assertEqual({'cycles': 4050.0}, self.count(
            (1000, 8000, 2000), (50, 8000, 8000)))

    def test_thread_that_never_ran_counts_zero(self):
        self.assertEqual({'cycles': 50.0}, self.count(
            (0, 0, 0), (50, 8000, 8000)))

    def test_event_whose_turn_never_came_is_left_out(self):
        self.assertEqual({}, self.count((0, 8000, 0), (50, 8000, 8000)))

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
            counters.count_guest_events(
                run_path, ('web', qemu.process.pid), (), False, 1500)
        ((tids, events),), seconds = count.call_args.args
        self.assertEqual((1.5, counters.EVENTS), (seconds, events))
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

    def test_other_guests_are_counted_within_their_bound(self):
        run_path = Path(self.enterContext(tempfile.TemporaryDirectory()))
        web, big, small = (
            self.useFixture(fake_qemu.Qemu(run_path, name, *(
                f'CPU {number}/KVM' for number in range(vcpus)))).process.pid
            for name, vcpus in (('web', 1), ('big', 3), ('small', 2)))
        others = [('big', big), ('gone', 2 ** 22), ('small', small)]
        for most, sizes in ((5, [1, 3, 0, 2]), (4, [1, 3, 0, 0]),
                            (2, [1, 0, 0, 2])):
            with mock.patch.object(counters, 'count_events') as count, \
                    mock.patch.object(counters, 'MOST_OTHER_THREADS', most):
                counters.count_guest_events(
                    run_path, ('web', web), others, False, 1)
            groups, _seconds = count.call_args.args
            self.assertEqual(sizes, [len(tids) for tids, _events in groups])
            self.assertEqual({'cache_misses'}, set(groups[1][1]))

    def test_trial_counts_two_events_of_the_server_and_no_other_guest(self):
        run_path = Path(self.enterContext(tempfile.TemporaryDirectory()))
        process = self.useFixture(
            fake_qemu.Qemu(run_path, 'web', 'CPU 0/KVM')).process.pid
        with mock.patch.object(counters, 'count_events') as count:
            counters.count_guest_events(
                run_path, ('web', process), [], True, 1)
        ((_tids, events),), _seconds = count.call_args.args
        self.assertEqual(['cpu_ns', 'instructions'], [*events])

    def test_descriptors_of_two_investigations_fit_in_a_process(self):
        # The default of systemd for services, less those of the helper.
        most = 2 * (counters.MOST_THREADS * len(counters.EVENTS)
                    + counters.MOST_OTHER_THREADS)
        self.assertGreater(1024 - 64, most)

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


"""The resctrl emulator as a mounted file system, used by plain file calls."""

import errno
import fcntl
import os
import subprocess
import sys
import time
import unittest


from ghsched_nova.lab.emulator import machines
from ghsched_nova.tests.fixtures import mount
from ghsched_placement.tests import base

REASON = mount.missing()


@unittest.skipIf(REASON, REASON)
class EmulatorTestCase(base.TestCase):
    dialect = 'openeuler66'
    closids = 3

    def setUp(self):
        super().setUp()
        cpus = sorted(os.sched_getaffinity(0))
        nodes = machines.evenly(cpus, min(2, len(cpus)))
        self.resctrl = self.useFixture(mount.ResctrlFixture(
            machines.build(self.dialect, nodes, closids=self.closids)
        ))

    def path(self, name):
        return os.path.join(self.resctrl.path, name)

    def read(self, name):
        with open(self.path(name)) as stream:
            return stream.read()

    def write(self, name, text):
        # As libvirt opens it: O_TRUNC, and one write.
        fd = os.open(self.path(name), os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def refused(self, number, method, *args):
        exc = self.assertRaises(OSError, method, *args)
        self.assertEqual(errno.errorcode[number], errno.errorcode[exc.errno])

    def process(self, code):
        process = subprocess.Popen([sys.executable, '-c', code])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process


class FilesTest(EmulatorTestCase):
    def test_group_from_mkdir_to_rmdir(self):
        os.mkdir(self.path('a'))
        self.write('a/schemata', 'MB:0=60\n')
        self.assertIn('   MB:0=0000060', self.read('a/schemata'))
        self.assertEqual('ok\n', self.read('info/last_cmd_status'))
        os.rmdir(self.path('a'))
        self.assertNotIn('a', os.listdir(self.resctrl.path))

    def test_errors_have_the_kernels_numbers_and_text(self):
        self.refused(errno.EINVAL, self.write, 'schemata', 'MB:0=101\n')
        self.assertEqual(
            'MB value 101 out of range [1,100]\n',
            self.read('info/last_cmd_status'),
        )
        self.refused(errno.ESRCH, self.write, 'tasks', '4194305')
        self.refused(errno.E2BIG, self.write, 'schemata', 5000 * ' ')
        os.mkdir(self.path('a'))
        os.mkdir(self.path('b'))
        self.refused(errno.ENOSPC, os.mkdir, self.path('c'))
        self.assertEqual(
            'Out of CLOSIDs\n', self.read('info/last_cmd_status')
        )
        self.refused(errno.EEXIST, os.mkdir, self.path('a'))
        self.refused(errno.EPERM, os.mkdir, self.path('a/b'))
        self.refused(errno.EPERM, os.rmdir, self.path('info'))
        self.refused(errno.ENOENT, os.rmdir, self.path('x'))
        self.refused(errno.EPERM, os.unlink, self.path('a/tasks'))
        self.refused(errno.EPERM, os.rename, self.path('a'), self.path('x'))
        self.refused(errno.EACCES, self.write, 'size', 'x\n')
        self.refused(errno.EACCES, open, self.path('new'), 'w')

    def test_lock_on_the_root_directory(self):
        first = os.open(self.resctrl.path, os.O_RDONLY)
        self.addCleanup(os.close, first)
        second = os.open(self.resctrl.path, os.O_RDONLY)
        self.addCleanup(os.close, second)
        fcntl.flock(first, fcntl.LOCK_EX)
        self.refused(
            errno.EWOULDBLOCK, fcntl.flock, second,
            fcntl.LOCK_EX | fcntl.LOCK_NB,
        )
        fcntl.flock(first, fcntl.LOCK_UN)
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_a_long_file_is_read_in_parts(self):
        with open(self.path('tasks'), 'rb', buffering=0) as stream:
            parts = []
            while part := stream.read(16):
                parts.append(part)
        self.assertIn(f'{os.getpid()}\n'.encode(), b''.join(parts))

    def test_only_root_may_write(self):
        mode = os.stat(self.path('schemata')).st_mode & 0o777
        self.assertEqual(0o644, mode)
        self.assertEqual(0, os.stat(self.path('schemata')).st_size)

    def test_root_directory_can_be_closed_to_others(self):
        os.chmod(self.resctrl.path, 0o750)
        os.chown(self.resctrl.path, -1, 4711)
        status = os.stat(self.resctrl.path)
        self.assertEqual((0o750, 0, 4711), (
            status.st_mode & 0o777, status.st_uid, status.st_gid))
        self.assertEqual(0, os.stat(self.path('schemata')).st_gid)

    def test_log_has_every_operation(self):
        self.write('schemata', 'MB:0=50\n')
        self.refused(errno.EINVAL, self.write, 'schemata', 'MB:0=0\n')
        writes = [x for x in self.resctrl.operations() if x['op'] == 'write']
        self.assertEqual(
            [('MB:0=50\n', None), ('MB:0=0\n', 'EINVAL')],
            [(x['data'], x.get('err')) for x in writes],
        )


class ThreadsTest(EmulatorTestCase):
    def test_ended_thread_vanishes(self):
        process = self.process('import time; time.sleep(9999)')
        os.mkdir(self.path('a'))
        self.write('a/tasks', str(process.pid))
        self.assertEqual(f'{process.pid}\n', self.read('a/tasks'))
        process.kill()
        process.wait()
        self.assertEqual('', self.read('a/tasks'))

    def test_rate_comes_from_the_cpu_time_of_the_tasks(self):
        process = self.process('while True: pass')
        os.mkdir(self.path('a'))
        self.write('a/tasks', str(process.pid))
        rate = 0
        deadline = time.monotonic() + base.GIVE_UP_S
        while not rate and time.monotonic() < deadline:
            time.sleep(0.2)
            rate = sum(
                int(self.read(f'a/mon_data/{name}/mbm_total_bytes'))
                for name in os.listdir(self.path('a/mon_data'))
                if name.startswith('mon_MB_')
            )
        self.assertGreater(rate, 0)


class FaultsTest(EmulatorTestCase):
    def test_faults_last_as_long_as_their_context(self):
        with self.resctrl.faults({'schemata:MBMIN': 'EINVAL'}, mon='Error'):
            self.write('schemata', 'MB:0=50\n')
            self.refused(errno.EINVAL, self.write, 'schemata', 'MBMIN:0=5\n')
            with self.resctrl.faults(mkdir='EBUSY'):
                self.refused(errno.EBUSY, os.mkdir, self.path('a'))
            os.mkdir(self.path('a'))
            self.assertEqual(
                'Error\n', self.read('mon_data/mon_MB_00/mbm_total_bytes')
            )
        self.write('schemata', 'MBMIN:0=5\n')


@unittest.skipIf(REASON, REASON)
class FixtureTest(base.TestCase):
    def test_nothing_is_left(self):
        fixture = mount.ResctrlFixture(
            machines.build('intel', '0=0')
        )
        with fixture:
            os.mkdir(os.path.join(fixture.path, 'a'))
        self.assertFalse(os.path.exists(os.path.dirname(fixture.path)))
        with open('/proc/self/mountinfo') as stream:
            self.assertNotIn(fixture.path, stream.read())

    def test_nothing_is_left_of_a_crash(self):
        fixture = mount.ResctrlFixture(
            machines.build('intel', '0=0')
        )
        with fixture:
            fixture._process.kill()
            fixture._process.join()
        self.assertFalse(os.path.exists(os.path.dirname(fixture.path)))

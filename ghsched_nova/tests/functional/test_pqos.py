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

"""Debian's pqos (intel-cmt-cat) as a client of the emulated resctrl.

A tool that knows nothing of ghsched reads and writes it through the kernel's
interface (``pqos --iface=os``). It asks the processor itself (CPUID) for its
make, and for an AMD one takes a cap as a number of steps up to 2048. So each
host here comes with a processor of its make (:mod:`as_cpu`), whatever machine
the tests run on; where pqos cannot be run so, its tests are skipped on a
machine of another make.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest


from ghsched_nova.lab.emulator import testhost
from ghsched_nova.tests.fixtures import libvirt_host
from ghsched_nova.tests.functional import as_cpu
from ghsched_placement.tests import base

REASON = libvirt_host.REASON
if not REASON and not shutil.which('pqos'):
    REASON = 'pqos is missing (package intel-cmt-cat)'
#: pqos counts events of the processor beside resctrl's, unless it is told
#: not to; a virtual machine often has no counters for that.
NO_PERF = ('--disable-mon-ipc', '--disable-mon-llc_miss')


def library():
    """The library of pqos that asks for the make of the processor."""
    linked = subprocess.run(
        ['ldd', shutil.which('pqos')], check=True, capture_output=True,
        text=True).stdout
    return re.search(r'libpqos\S* => (\S+)', linked)[1]


def no_stand_in():
    """Return the reason why pqos can have no stand-in for this processor;
    empty if it can.
    """
    if platform.machine() != 'x86_64':
        return 'not an x86-64 machine'
    try:
        with open(library(), 'rb') as stream:
            as_cpu.patched(stream.read())
    except ValueError as exc:
        return f'{library()}: {exc}'
    return ''


def make_of_machine():
    with open('/proc/cpuinfo', encoding='utf-8') as stream:
        text = stream.read()
    return next((make for make, name in as_cpu.VENDORS.items()
                 if name.decode() in text), 'other')


@unittest.skipIf(REASON, REASON)
class PqosTestCase(base.TestCase):

    #: Of the processor that pqos finds.
    make = 'intel'
    settings = testhost.Settings(dialect='intel', closids=4, log_fs=True)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.command = ['pqos']
        if reason := no_stand_in():
            if make_of_machine() != cls.make:
                raise unittest.SkipTest(
                    f'pqos cannot be run as on {cls.make} here ({reason})')
        else:
            directory = tempfile.mkdtemp(prefix='pqos-')
            cls.addClassCleanup(shutil.rmtree, directory)
            cls.command = [sys.executable, as_cpu.__file__, library(),
                           directory, cls.make, 'pqos']
        cls.host = testhost.Host(libvirt_host.state())
        cls.addClassCleanup(cls.host.down)
        cls.host.up(cls.settings)

    def setUp(self):
        super().setUp()
        self.addCleanup(self.host.run, [
            'sh', '-c', 'rmdir /sys/fs/resctrl/COS* '
            '/sys/fs/resctrl/mon_groups/*'])

    def run_pqos(self, *args):
        return self.host.run([*self.command, '--iface=os', *args])

    def pqos(self, *args):
        done = self.run_pqos(*args)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def shown(self, what='MBA'):
        """Return the values that ``pqos -s`` shows, by socket and class."""
        found, socket = {}, None
        for line in self.pqos('-s').splitlines():
            if match := re.search(r'definitions for Socket (\d+)', line):
                socket = int(match[1])
            elif match := re.match(rf'\s+{what} COS(\d+) => (?:MASK )?(\w+)',
                                   line):
                found[socket, int(match[1])] = match[2]
        return found

    def read(self, path):
        return self.host.run(['cat', f'/sys/fs/resctrl/{path}']).stdout

    def process(self, code):
        # On the host: others do not count for it.
        process = subprocess.Popen(
            self.host.command(
                [sys.executable, '-c', f'print(flush=True); {code}']),
            stdout=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        process.stdout.readline()
        return process.pid

    def monitor(self, *what):
        """The last line of a monitoring run of one second, by column."""
        rows = self.pqos(*NO_PERF, *what, '-t', '1', '-u', 'csv').splitlines()
        rows = [row.split(',') for row in rows if ',' in row]
        return dict(zip(rows[0], rows[-1], strict=True))

    def sleeper(self):
        return self.process('import time; time.sleep(9999)')

    def assert_of(self, features):
        text = self.pqos('-D')
        for feature in features:
            self.assertRegex(text, feature)


class IntelTest(PqosTestCase):

    def test_capabilities_of_the_host(self):
        self.assert_of((
            r'LLC Occupancy \(LLC\)\n *scale factor: 1\n *max rmid: 224\n',
            r'Total Memory Bandwidth \(TMEM\)\n *scale factor: 1\n',
            r'L3 CAT\n *CDP: disabled\n *Num COS: 4\n',
            r'Min CBM bits: 1\n *Max CBM bits: 20\n',
            r'\(MBA\)\n *Num COS: 4\n *Granularity: 10\n *Min B/W: 10\n'
            r' *Type: linear\n'))

    def test_caps_and_masks_are_written_rounded_and_read(self):
        # A domain is a "core complex" on AMD and a socket on Intel.
        self.assertRegex(self.pqos('-e', 'mba:1=50'),
                         r' 0 MBA COS1 => 50%? requested, 50%? applied')
        self.assertRegex(self.pqos('-e', 'mba@1:2=35'),
                         r' 1 MBA COS2 => 35%? requested, 40%? applied')
        self.pqos('-e', 'llc:1=0x3')
        self.assertEqual(
            {(0, 0): '100', (1, 0): '100', (0, 1): '50', (1, 1): '50',
             (0, 2): '100', (1, 2): '40', (0, 3): '100', (1, 3): '100'},
            self.shown())
        self.assertEqual('0x3', self.shown('L3CA')[1, 1])
        self.assertEqual('    MB:0=50;1=50\n    L3:0=00003;1=00003\n',
                         self.read('COS1/schemata'))

    def test_a_cap_below_the_lowest_is_raised_by_pqos(self):
        self.assertRegex(self.pqos('-e', 'mba@0:1=5'),
                         r' 0 MBA COS1 => 5%? requested, 10%? applied')
        self.assertEqual('10', self.shown()[0, 1])

    def test_a_core_and_a_process_are_put_into_a_class(self):
        pid = self.sleeper()
        self.pqos('-a', 'core:1=1')
        self.pqos('-a', f'pid:2={pid}')
        self.assertEqual(('1\n', '0\n'), (self.read('COS1/cpus_list'),
                                          self.read('cpus_list')))
        self.assertEqual(f'{pid}\n', self.read('COS2/tasks'))
        text = self.pqos('-s')
        self.assertRegex(text, r'Core 1, L2ID \d+, L3ID 1 => COS1')
        self.assertRegex(text, rf'COS2 => {pid}\b')

    def test_a_process_is_monitored(self):
        row = self.monitor('-p', f'llc:{self.sleeper()}')
        # Simulated: 64 KiB for each thread.
        self.assertEqual(64.0, float(row['LLC[KB]']))

    def test_a_busy_core_is_distinguished_from_the_other(self):
        cpus = sorted(os.sched_getaffinity(0))
        self.process(f'import os; os.sched_setaffinity(0, [{cpus[1]}]);\n'
                     'while True: pass')
        row = self.monitor('-m', f'mbt:{cpus[1]}')
        # Simulated: 4 GB/s of a thread that has the core for itself.
        self.assertTrue(0 < float(row['MBT[MB/s]']) < 4200, row)


class LowestCapTest(PqosTestCase):

    # So that pqos takes the figure for a number of steps and writes it as is.
    make = 'amd'

    def test_a_cap_below_the_lowest_is_refused(self):
        done = self.run_pqos('-e', 'mba:1=5')
        self.assertEqual(1, done.returncode)
        self.assertIn('MBA COS1 - FAILED!', done.stdout)
        self.assertEqual('100', self.shown()[0, 1])


class SoftwareControllerTest(PqosTestCase):

    settings = testhost.Settings(dialect='intel-mbps', closids=3)

    def test_caps_are_bandwidths(self):
        self.assertIn('CTRL: enabled', self.pqos('-D'))
        self.pqos('-e', 'mba_max:1=5000')
        self.assertEqual(
            {(0, 0): str(2 ** 32 - 1), (1, 0): str(2 ** 32 - 1),
             (0, 1): '5000', (1, 1): '5000',
             (0, 2): str(2 ** 32 - 1), (1, 2): str(2 ** 32 - 1)},
            self.shown())
        self.assertIn('MB:0=5000;1=5000\n', self.read('COS1/schemata'))


class CdpTest(PqosTestCase):

    settings = testhost.Settings(dialect='intel-snc-cdp')

    def test_code_and_data_are_distinguished(self):
        self.assert_of((r'L3 CAT\n *CDP: enabled\n *Num COS: 7\n',))


class AmdTest(PqosTestCase):

    make = 'amd'
    settings = testhost.Settings(dialect='amd', closids=3)

    def test_caps_are_steps_of_a_bandwidth(self):
        self.assert_of((r'\(MBA\)\n *Num COS: 3\n *Granularity: 1\n',
                        r'Max CBM bits: 16\n'))
        self.pqos('-e', 'mba:1=60')
        # It takes the number of a socket for that of a domain here.
        shown = self.shown()
        self.assertEqual(['2048', '60', '2048'],
                         [shown[0, number] for number in range(3)])
        self.assertIn('    MB:0=  60;8=  60\n', self.read('COS1/schemata'))

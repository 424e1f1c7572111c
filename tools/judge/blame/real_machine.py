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

"""Loads in control groups of this machine, and a server on its real memory.

The victim runs on CPU 0, all others on CPU 1. Each has a control group of the
controller cpu (version 1) with a quota, so that one that stops gives its time
to a filler that only computes, and to no other load. There is no resctrl here:
a quota of CPU time stands for the cap on a guest's bandwidth, and each load
counts its own bytes in place of a monitoring group.
"""

import mmap
import os
from pathlib import Path
import signal
import struct
import subprocess  # noqa: S404
import time

from ghsched_placement import blame

ROOT = Path('/sys/fs/cgroup/cpu/ghsched-judge')
#: Period of a quota, in microseconds.
PERIOD_US = 10000
#: Weight of the loads beside what else runs on the machine, and of the filler.
WEIGHT, FILLER_WEIGHT = 262144, 8192
#: Percent of a CPU that a capped load has.
CAP = 10
#: Bytes of a slot of the shared file, and its fields.
SLOT, SLOTS = 64, 16
BYTES, READY, PERIOD, ON, OFFSET, ALWAYS, CPU_NS = range(7)
START_LIMIT_S = 30
VICTIM, FILLER = 'victim', 'filler'


class Load:
    """A process of real_load in its own control group.

    :param quota: percent of a CPU.
    """

    def __init__(self, machine, number, name, cpu, kind, quota=100,
                 megabytes=64, chains=1, compute=0.0, phases=None):
        self.name, self.quota, self.number = name, quota, number
        self.machine, self.group = machine, ROOT / name
        self.group.mkdir()
        (self.group / 'cpu.cfs_period_us').write_text(str(PERIOD_US))
        (self.group / 'cpu.shares').write_text(str(
            FILLER_WEIGHT if name == FILLER else WEIGHT))
        period, part, offset = phases or (0, 1, 0)
        for field, value in ((PERIOD, period), (ON, period * part),
                             (OFFSET, offset)):
            machine.write(number, field, int(value * 1e9))
        self.process = subprocess.Popen(  # noqa: S603
            ['taskset', '-c', str(cpu), machine.program, machine.path,
             str(number), kind, str(megabytes), str(chains), str(compute)])
        (self.group / 'cgroup.procs').write_text(str(self.process.pid))

    def wait_until_ready(self):
        limit = time.monotonic() + START_LIMIT_S
        while not self.machine.read(self.number, READY):
            if self.process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f'load {self.name} does not start')
            time.sleep(0.01)
        self.set_quota(self.quota)

    def set_quota(self, percent):
        """Limit the load to a percent of a CPU; 100 is no limit."""
        (self.group / 'cpu.cfs_quota_us').write_text(str(
            -1 if percent >= 100 else round(PERIOD_US * percent / 100)))

    def read_quota(self):
        return (self.group / 'cpu.cfs_quota_us').read_text().strip()

    def read_bytes(self):
        return self.machine.read(self.number, BYTES)

    def read_times(self):
        """Return seconds on a CPU, and ready without one.

        The load itself reads its CPU time, because the kernel brings that of
        schedstat up to date with the tick only.
        """
        waited = Path(
            f'/proc/{self.process.pid}/schedstat').read_text().split()[1]
        return (self.machine.read(self.number, CPU_NS) / 1e9,
                int(waited) / 1e9)

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def end(self):
        self.process.kill()
        self.process.wait()
        # The group is busy until the kernel has let the process go.
        for _attempt in range(100):
            try:
                self.group.rmdir()
                return
            except OSError:
                time.sleep(0.01)


class Machine:
    """The loads of one case."""

    def __init__(self, program, path):
        self.program, self.path = program, path
        Path(path).write_bytes(bytes(SLOT * SLOTS))
        self._file = open(path, 'r+b')
        self._memory = mmap.mmap(self._file.fileno(), SLOT * SLOTS)
        self.loads = {}

    def __enter__(self):
        for old in ROOT.glob('*/'):
            old.rmdir()
        ROOT.mkdir(exist_ok=True)
        (ROOT / 'cpu.shares').write_text(str(WEIGHT))
        return self

    def __exit__(self, *_error):
        for load in self.loads.values():
            load.end()
        ROOT.rmdir()
        self._memory.close()
        self._file.close()

    def read(self, number, field):
        return struct.unpack_from('Q', self._memory,
                                  SLOT * number + 8 * field)[0]

    def write(self, number, field, value):
        struct.pack_into('Q', self._memory, SLOT * number + 8 * field, value)

    def add(self, name, cpu, kind, **more):
        self.loads[name] = Load(self, len(self.loads), name, cpu, kind, **more)

    def start(self):
        for load in self.loads.values():
            load.wait_until_ready()

    def work_always(self, wanted):
        """Switch all loads to work without a rest, or in their phases."""
        for load in self.loads.values():
            self.write(load.number, ALWAYS, int(wanted))


def read_steal():
    """Return the CPU seconds that the hypervisor gave to others so far."""
    words = Path('/proc/stat').read_text().split('\n', 1)[0].split()
    return int(words[8]) / os.sysconf('SC_CLK_TCK')


class RealProbe:
    """The victim and its neighbours, see blame_session.Probe.

    :param factor: seconds of the product in a second of this machine.
    :param peak: bytes per second that the memory delivers to both CPUs.
    """

    def __init__(self, machine, factor, peak):
        self.machine, self.factor, self.peak = machine, factor, peak
        self.victim = machine.loads[VICTIM]
        self.guests = [one for name, one in machine.loads.items()
                       if name != FILLER]
        self._capped = self._last = None
        self._limits = {}

    def get_time(self):
        return time.monotonic() * self.factor

    def wait(self, seconds):
        time.sleep(seconds / self.factor)

    def measure(self):
        before, self._last = self._last, (
            time.monotonic(), self.victim.read_times(),
            {one.name: one.read_bytes() for one in self.guests})
        self._limits = {one.name: one.read_quota() for one in self.guests}
        if before is None:
            return None
        seconds = self._last[0] - before[0]
        rates = {name: (count - before[2][name]) / seconds
                 for name, count in self._last[2].items()}
        busy, waited = (
            (after - earlier) / seconds for after, earlier
            in zip(self._last[1], before[1], strict=True))
        return blame.Sample(
            time.time(), seconds, {**rates, blame.HOST: 0.0},
            load=sum(rates.values()) / self.peak, busy=min(1.0, busy),
            cpu_wait=waited, stalled=0.0, io_wait=0.0)

    def get_limits(self, uuid):
        return self._limits.get(uuid)

    def cap(self, uuid):
        load = self.machine.loads[uuid]
        load.set_quota(min(CAP, load.quota))
        self._capped = load

    def restore_limits(self):
        if self._capped is not None:
            self._capped.set_quota(self._capped.quota)
            self._capped = None

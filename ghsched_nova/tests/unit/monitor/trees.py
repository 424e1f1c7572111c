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


"""Emulated machines with threads that are as busy as a test says.

All figures are simulated, see ghsched_nova.lab.emulator.traffic.
"""

import contextlib
import os
from pathlib import Path
import shutil
import tempfile

from ghsched_nova.guest import metadata
from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import topology
from ghsched_nova.monitor import reader
from ghsched_nova.monitor import view
from ghsched_placement.policy import GuestPolicy
from ghsched_placement.policy import NodePolicy

NODES = '0=0-3;1=4-7;2='
UUID = '6d0a1c9e-9a2f-4c2b-8d3e-0b6f6a7c1e55'
#: MiB/s in the firmware's table.
SPEED = 195312
CAPACITY = SPEED * 2 ** 20


class Threads:
    """Threads on CPUs of the test's choice."""

    def __init__(self):
        self.seconds = 100.0
        self.cpus = {}
        self.spent = {}

    def sample(self, tid):
        if tid not in self.cpus:
            return None
        return kernel.Sample(1, self.spent[tid], self.cpus[tid])

    def all(self):
        return set(self.cpus)

    def offspring(self, _tid):
        return set()

    def now(self):
        return 1


class Host:
    """A machine, as files that follow it, and a reader of them."""

    def __init__(self, dialect: str, nodes: str = NODES,
                 speed: int = SPEED) -> None:
        self.threads = Threads()
        self.model = kernel.ResctrlModel(
            machines.build(dialect, nodes), self.threads,
            clock=lambda: self.threads.seconds)
        self.top = Path(tempfile.mkdtemp())
        self.root = self.top / 'resctrl'
        self.speed = speed
        self._sysfs()
        self.sync()
        self.reader = reader.Reader(self.root, self.top / 'sysfs',
                                    clock=lambda: self.threads.seconds)

    def remove(self) -> None:
        shutil.rmtree(self.top)

    def _sysfs(self):
        topology.write_sysfs(self.model.machine, self.top / 'sysfs',
                             self.speed)

    def sync(self) -> None:
        """Let the files say what the kernel says now."""
        self._directory('', self.root)

    def _directory(self, path, target):
        target.mkdir(parents=True, exist_ok=True)
        names = self.model.listdir(path or '/')
        for gone in set(os.listdir(target)) - set(names):
            shutil.rmtree(target / gone)
        for name in names:
            if self.model.lookup(f'{path}/{name}').children is not None:
                self._directory(f'{path}/{name}', target / name)
                continue
            with contextlib.suppress(kernel.ResctrlError):
                (target / name).write_text(
                    self.model.read(f'{path}/{name}'))

    def group(self, name, tid=None, cpu=4):
        """A group with a thread in it."""
        self.model.mkdir(f'/{name}')
        if tid is not None:
            self.threads.cpus[tid] = cpu
            self.threads.spent[tid] = 0.0
            self.model.write(f'/{name}/tasks', f'{tid}\n')

    def run(self, seconds=1.0, busy=1.0):
        """Let time go by, with all threads so busy."""
        self.threads.seconds += seconds
        for tid in self.threads.spent:
            self.threads.spent[tid] += seconds * busy
        self.sync()

    def snapshot(self, *guests):
        return view.snapshot(self.reader.usage(), guests)


def guest(name='instance-00000001', uuid=UUID, domain_id=7, nodes=(1,),
          **asked):
    policy = metadata.DomainPolicy(
        GuestPolicy(nodes=tuple(NodePolicy(**asked) for _ in nodes)), nodes)
    return view.Guest(name, uuid, domain_id, policy)

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


"""A host with guests: an emulated kernel, a made-up /proc and libvirt's files.
"""

import contextlib
import functools
import itertools
from pathlib import Path
import shutil
import tempfile

from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import reconcile
from ghsched_nova.resctrl import resolve
from ghsched_nova.resctrl import schemata
from ghsched_nova.resctrl import tasks
from ghsched_nova.tests.unit.resctrl import emulated
from ghsched_placement.policy import GuestPolicy
from ghsched_placement.policy import NodePolicy

UUID = '3f0c6a51-16d5-4d5e-8a0c-1f5b2b0d7c{:02}'
OTHERS = ('low_prio', 'pqos-1', 'ghsched-by-hand', 'qemu-monitor')
SPEED = 195312      # MiB/s


@functools.cache
def _host(dialect):
    with tempfile.TemporaryDirectory() as top:
        return emulated.read_host(
            emulated.model(dialect), Path(top), SPEED,
            resctrl_host.Told(cap='hard'))


class Threads(emulated.NoThreads):
    """Those that a test has put there."""

    def __init__(self):
        self.alive = set()

    def sample(self, tid):
        return kernel.Sample(1, 0.0, 0) if tid in self.alive else None

    def all(self):
        return set(self.alive)

    def now(self):
        return 1


@contextlib.contextmanager
def _os_error(path):
    try:
        yield
    except kernel.ResctrlError as exc:
        raise OSError(exc.number, 'refused', str(path)) from exc


class Files(fs.Files):
    """The kernel below the root; a test can come between.

    :ivar operations: (what, group, text) of everything that changes.
    :ivar before: called with an operation before it is done.
    """

    def __init__(self, model, root):
        self.model, self.root, self.operations = model, root, []
        self.before = lambda *operation: None

    def kill_at(self, moment):
        """Kill the process before its next operation but so many."""
        left = itertools.count(moment, -1)

        def before(*_operation):
            if next(left) <= 0:
                raise KeyboardInterrupt

        self.before = before

    def _path(self, path):
        return '/' + str(path.relative_to(self.root)).removeprefix('.')

    def _note(self, what, path, text=''):
        group = path if what in ('mkdir', 'rmdir') else path.parent
        self.operations.append((what, group.name, text))
        self.before(what, group.name, text)

    def read(self, path):
        with _os_error(path):
            return self.model.read(self._path(path))

    def write(self, path, text):
        self._note(path.name, path, text)
        with _os_error(path):
            self.model.write(self._path(path), text)

    def make_directory(self, path):
        self._note('mkdir', path)
        with _os_error(path):
            self.model.mkdir(self._path(path))

    def remove_directory(self, path):
        self._note('rmdir', path)
        with _os_error(path):
            self.model.rmdir(self._path(path))

    def directories(self, path):
        with _os_error(path):
            entries = self.model.lookup(self._path(path)).children()
        return sorted(name for name, entry in entries.items()
                      if entry.children is not None)

    @contextlib.contextmanager
    def locked(self, path, timeout):
        yield


class World:
    """:param makers: who makes the group of each guest."""

    def __init__(self, top: Path, dialect='openeuler66',
                 makers=('ghsched', 'libvirt', 'libvirt-process')):
        self.threads = Threads()
        self.model = kernel.ResctrlModel(
            machines.build(dialect, emulated.NODES), self.threads)
        self.host = _host(dialect)
        self.root, self.proc = top / 'resctrl', top / 'proc'
        self.run = top / 'run'
        for path in (self.root / 'info', self.proc, self.run):
            path.mkdir(parents=True)
        self.files = Files(self.model, self.root)
        self.place = reconcile.Place(self.root, self.run, self.proc)
        self.guests: list[model.Guest] = []
        for number, maker in enumerate(makers):
            self.add(number, maker)

    def policy(self):
        held = self.host.capabilities()
        return GuestPolicy(nodes=(NodePolicy(
            maximum=41, minimum=11 * ('MEM_BW_MIN' in held),
            priority=5 if 'MEM_BW_PRIORITY' in held else None),))

    def add(self, number, maker, vcpus=2):
        domain = model.Domain(UUID.format(number), number + 1,
                              f'instance-{number:08x}')
        desired = resolve.desired_lines(self.host, resolve.resolve(
            self.host, self.policy(), (number % 2,)))
        self.guests.append(model.Guest(
            domain, frozenset(range(vcpus)), vcpus, desired, maker))
        self.start(number, ['qemu-system-x86', 'CPU 0/KVM', 'CPU 1/KVM',
                            'IO mon_iothread'])

    def process(self, number):
        return 1000 * (number + 1)

    def start(self, number, names):
        process = self.process(number)
        name = self.guests[number].domain.name
        (self.run / f'{name}.pid').write_text(f'{process}\n')
        for place, thread in enumerate(names):
            self.thread(process, process + place, thread)

    def thread(self, process, tid, name, flags=0x400000):
        """A thread of a user process, unless its flags say otherwise."""
        (self.proc / str(process) / 'task' / str(tid)).mkdir(parents=True)
        (self.proc / str(tid)).mkdir(exist_ok=True)
        (self.proc / str(tid) / 'comm').write_text(name + '\n')
        (self.proc / str(tid) / 'stat').write_text(
            f'{tid} ({name}) S 2 0 0 0 -1 {flags} 0 0 0 0\n')
        (self.proc / str(tid) / 'status').write_text(f'Tgid:\t{process}\n')
        self.threads.alive.add(tid)

    def end(self, number):
        """QEMU dies; nobody tidies up."""
        process = self.process(number)
        for task in list((self.proc / str(process) / 'task').iterdir()):
            self.threads.alive.discard(int(task.name))
            if int(task.name) != process:
                shutil.rmtree(self.proc / task.name)
        shutil.rmtree(self.proc / str(process))

    def wanted(self, without=(), **more):
        guests = tuple(guest for number, guest in enumerate(self.guests)
                       if number not in without)
        return model.Wanted(
            guests, tuple(guest.domain for guest in guests),
            frozenset(self.groups()), resolve.other_domains(self.host),
            lossy=self.host.dialect.lossy, writes=self.host.writes, **more)

    def look(self, **more):
        return reconcile.look(self.place, self.wanted(**more), self.files)

    def reconcile(self, **more):
        self.files.operations.clear()
        return reconcile.reconcile(self.place, self.wanted(**more),
                                   self.files)

    def groups(self):
        return [name for name in self.files.directories(self.root)
                if name not in naming.NOT_GROUPS]

    def schemata(self, group):
        return schemata.read(self.model.read(f'/{group}/schemata'))

    def tasks(self, group):
        return tasks.threads(self.model.read(f'/{group}/tasks'))

    def foreign(self):
        """What the groups of others hold."""
        return {name: (self.model.read(f'/{name}/schemata'),
                       self.model.read(f'/{name}/tasks'))
                for name in self.groups() if name in OTHERS}

    def wrong(self, without=()):
        """Guests whose group is not as it should be, by looking there."""
        others = resolve.other_domains(self.host)
        found = []
        for number, guest in enumerate(self.guests):
            if number in without:
                continue
            process = self.process(number)
            if (guest.group not in self.groups()
                    or resolve.differences(self.schemata(guest.group),
                                           guest.desired, others,
                                           self.host.dialect.lossy,
                                           written=True)
                    or not {process + 1, process + 2}
                    <= self.tasks(guest.group)):
                found.append(guest.group)
        return found

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

"""The emulator answers as a kernel did (tools/record_vectors.py).

After each operation of a recorded sequence are compared: the error, what
info/last_cmd_status says, and the text of each file that operations change.
"""

import dataclasses
import errno
import gzip
import importlib.util
import json
from pathlib import Path
import re


from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import schemata
from ghsched_nova.tests.lab.emulator import test_kernel
from ghsched_placement.tests import base

VECTORS = Path(__file__).parent / 'vectors'
RECORDER = Path(__file__).resolve().parents[4] / 'tools/record_vectors.py'
#: Nodes of the machine that a sequence was recorded on, by its kind.
NODES = {'amd': '0=0-1;1=2-3', 'intel-snc-cdp': '0=0-1;1=2-3'}


class Replay:
    """A recorded sequence on the emulator.

    :ivar compared: how many answers and texts.
    :ivar wrong: (step, what, recorded, emulated).
    """

    def __init__(self, path):
        with gzip.open(path) as stream:
            self.recorded = json.load(stream)
        threads = test_kernel.FakeThreads()
        self.names = {f'T{number}': 1000 + number for number in range(6)}
        for tid in self.names.values():
            threads.add(tid)
        dialect = re.sub(r'-[0-9]+\.json\.gz|\.json\.gz', '', path.name)
        info = self.recorded['info']
        limit = min(int(text) for name, text in info.items()
                    if name.endswith('num_closids') and text != 'ENOENT')
        rmids = info['L3_MON/num_rmids'].strip()
        machine = machines.build(
            dialect, NODES.get(dialect, '0=0;1=1'), limit,
            int(rmids) if rmids.isdigit() else None)
        self.model = kernel.ResctrlModel(self.as_wide(machine), threads)
        self.compared, self.wrong = 0, []

    def as_wide(self, machine):
        """Return a machine with the cache portions of the recorded machine.

        No device uses those of made-up hardware.
        """
        start = schemata.parse_schemata(self.recorded['start']['schemata'])
        lines = []
        for line in machine.lines:
            if line.base == 16:
                full = max(start.values(line.name, 16).values())
                line = dataclasses.replace(line, maximum=full, default=full,
                                           shareable=False)
            lines.append(line)
        # All sequences so far are of Linux 7.2.
        return dataclasses.replace(machine, lines=tuple(lines),
                                   linux73=False)

    def run(self):
        state = dict(self.recorded['start'])
        self.check(-1, state)
        for number, step in enumerate(self.recorded['steps']):
            what, path, text, answer, status, changed = step
            self.same(number, f'{what} {path} {text!r}', answer,
                      self.do(what, '/' + path, text))
            self.same(number, f'status of {what} {path} {text!r}', status,
                      self.status())
            state |= changed
            state = {name: text for name, text in state.items()
                     if text is not None}
            self.check(number, state)
            if self.wrong and len(self.wrong) > 20:
                return

    def same(self, number, what, recorded, emulated):
        self.compared += 1
        if recorded != emulated:
            self.wrong.append((number, what, recorded, emulated))

    def check(self, number, state):
        for path, text in sorted(state.items()):
            try:
                found = self.model.read('/' + path)
            except kernel.ResctrlError as error:
                found = errno.errorcode[error.number]
            if path.rpartition('/')[2] == 'tasks':
                found = ' '.join(sorted(
                    name for name, tid in self.names.items()
                    if str(tid) in found.split()))
            elif path.rpartition('/')[2] in ('schemata', 'io_alloc_cbm'):
                text, found = unpadded(text), unpadded(found)
            self.same(number, path, text, found)

    def status(self):
        text = self.model.read('/info/last_cmd_status')
        for name, tid in self.names.items():
            text = re.sub(rf'(?<=task ){tid}\b', f'<{name}>', text)
        return text

    def do(self, what, path, text):
        for name, tid in self.names.items():
            text = text.replace(f'<{name}>', str(tid))
        try:
            if what == 'write':
                self.model.write(path, text)
            else:
                getattr(self.model, what)(path)
        except kernel.ResctrlError as error:
            return errno.errorcode[error.number]
        return ''


def unpadded(text):
    """Remove blanks and zeros before names and values.

    Kernels before 7.2 pad values, later ones do not; names are padded to the
    longest that there is.
    """
    return re.sub(r'(?m)^ +|(?<==)[ 0]*(?=[0-9a-f])', '', text)


class VectorsTest(base.TestCase):

    def test_each_kind_of_hardware_is_replayed(self):
        compared = 0
        for path in sorted(VECTORS.glob('*/*.json.gz')):
            replay = Replay(path)
            replay.run()
            self.assertEqual([], replay.wrong, path.name)
            compared += replay.compared
        print(f'{compared} comparisons with kernels, no difference')
        self.assertTrue(compared >= 90000, compared)


class RecorderTest(base.TestCase):

    def test_status_names_threads_and_leaves_equal_numbers(self):
        if not RECORDER.exists():
            self.skipTest('there is no source tree')
        spec = importlib.util.spec_from_file_location('recorder', RECORDER)
        recorder = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(recorder)
        kernel_of = object.__new__(recorder.Kernel)
        kernel_of.names = {20: 'T1', 3: 'T2'}
        for text, expected in (
                ('No task 20\nError while processing task 20\n',
                 'No task <T1>\nError while processing task <T1>\n'),
                ('No task 203\n', 'No task 203\n'),
                ('MB value 3 out of range [20,100]\n',) * 2,
                ('Task list parsing error pid 20x\n',) * 2,
                ('Invalid pid -3\n',) * 2,
                ('No space on L3:20\n',) * 2):
            kernel_of.read = {'info/last_cmd_status': text}.get
            self.assertEqual(expected, kernel_of.status())

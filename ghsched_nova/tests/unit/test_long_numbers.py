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

"""Numbers of 5000 digits wherever the kernel shows one.

int() raises ValueError for more than 4300 digits, which no caller of a parser
expects. Each number of each file of an emulated host is replaced in turn.
"""

import ast
from pathlib import Path
import re
import shutil
import tempfile

import ghsched_nova
from ghsched_nova.features.exporter import repair_metrics
from ghsched_nova.features.interrupts import model as interrupts_model
from ghsched_nova.features.live_change import numa_maps
from ghsched_nova.features.load import load_files
from ghsched_nova.monitor import reader
from ghsched_nova.monitor import topology
from ghsched_nova.resctrl import counters
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import sysfs as sysfs_files
from ghsched_nova.tests.fixtures import captured
import ghsched_placement
from ghsched_placement.tests import base

LONG = '9' * 5000
_NUMBER = re.compile('[0-9]+')
#: Numbers of one file that are replaced.
_MOST = 12
#: Group of a regular expression with digits without end, as int() gets them.
_ENDLESS = re.compile(r'\((\?P<\w+>)?\[0-9\][+*]\)')


def with_long_numbers(text):
    """Yield a text once for each number in it, which is too long there."""
    for match in list(_NUMBER.finditer(text))[:_MOST]:
        yield text[:match.start()] + LONG + text[match.end():]


class TreeTest(base.TestCase):
    """Captured hosts: each kind of file once, whichever host has it."""

    def setUp(self):
        super().setUp()
        self.top = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_read_host_with_a_long_number_raises_what_is_documented(self):
        seen = set()
        for name in captured.all_machines():
            machine = self.top / name
            shutil.copytree(captured.MACHINES / name, machine)
            for path in sorted(machine.rglob('*')):
                kind = _NUMBER.sub('', str(path.relative_to(machine)))
                if path.is_file() and kind not in seen:
                    seen.add(kind)
                    self._change(machine, path)
        self.assertGreater(len(seen), 20)

    def _change(self, machine, path):
        text = path.read_text(errors='replace')
        for changed in with_long_numbers(text):
            path.write_text(changed)
            self._read(machine / 'resctrl', machine / 'sysfs')
        path.write_text(text)

    def _read(self, root, sysfs):
        for read, documented in (
            (
                lambda: resctrl_host.read_host(root, sysfs).make_description(),
                resctrl_host.ResctrlUnavailable),
            (
                reader.Reader(
                    root, sysfs, occupancy=True).measure_group_bandwidth,
                topology.MonitorUnavailable),
        ):
            try:
                read()
            except documented:
                pass


#: Functions, each with a text that it reads.
TEXTS = (
    (interrupts_model.parse_interrupts,
     '40: 7 8 IR-PCI-MSI 524288-edge vfio-msix[0](0000:18:00.2)'),
    (lambda text: counters._parse_assignments('', text),
     'mbm_total_bytes:0=e;1=e'),
    (lambda text: numa_maps.parse_bound_areas(text.splitlines(), [
        '7f0000000000-7f0020000000 rw-p 00000000 00:00 0']),
     '7f0000000000 bind:0 anon=1 N0=1 N1=2 kernelpagesize_kB=4'),
    (repair_metrics.FORMAT.parse,
     '{"version": 1, "repairs": {"write line": 12}}'),
    (load_files.parse_cpu_times, 'cpu0 1 2 3 4 5 6 7 8 9 10\n'),
    (load_files.parse_run_times, '1 2 3'),
    (load_files.parse_stall_time, 'some avg10=0.00 total=12345\n'),
    (load_files.parse_vmstat, 'pgsteal_kswapd 12\n'),
    (load_files.parse_diskstats,
     '8 0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14\n'),
    (sysfs_files.parse_node_memory,
     'Node 0 MemTotal: 12 kB\nNode 0 MemFree: 3 kB\n'),
    (load_files.parse_memory_numa_stat, 'anon N0=1 N1=2\n'),
    (load_files.parse_numa_maps,
     '7f0000 bind:0 anon=1 N0=1 kernelpagesize_kB=4\n'),
)


class TextTest(base.TestCase):

    def test_texts_with_a_long_number_are_read(self):
        for read, text in TEXTS:
            for changed in with_long_numbers(text):
                read(changed)


class SourceTest(base.TestCase):
    """Decisions in the source whether a text is a number.

    int() raises for 4,301 digits, and for some texts of which str.isdigit()
    says that they are digits.
    """

    def test_source_takes_no_digits_without_limit_for_a_number(self):
        found = []
        for package in (ghsched_nova, ghsched_placement):
            top = Path(package.__file__).parent
            for path in sorted(top.rglob('*.py')):
                # Neither runs on a node of a cloud.
                if not {'tests', 'lab'} & set(path.parts):
                    found += [f'{path}:{line}'
                              for line in list_unlimited(path.read_text())]
        self.assertEqual([], found)


def list_unlimited(source):
    """Return the lines on which digits without limit are taken for a number.

    These are calls of str.isdigit() and the like, and regular expressions.
    """
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree)
                  if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            bad = node.attr in ('isdecimal', 'isdigit', 'isnumeric')
        else:
            bad = (isinstance(node, ast.Constant)
                   and isinstance(node.value, str)
                   and id(node) not in docstrings
                   and (r'\d' in node.value or _ENDLESS.search(node.value)))
        if bad:
            found.append(node.lineno)
    return found

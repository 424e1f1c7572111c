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

"""No unit test fails because a machine is busy.

A test gives up after ``base.GIVE_UP_S``, which is a hang. Shorter limits and
readings of a clock are found in the source; each is in a table here.
"""

import ast
from pathlib import Path

import ghsched_nova
from ghsched_placement.tests import base

TOP = Path(ghsched_nova.__file__).parents[1]
FOLDERS = ('ghsched_nova/tests/fixtures', 'ghsched_nova/tests/lab/bench',
           'ghsched_nova/tests/lab/emulator', 'ghsched_nova/tests/unit',
           'ghsched_placement/tests')

#: Methods that wait for the number of seconds that they are given.
WAITS = frozenset({'acquire', 'get', 'join', 'result', 'settimeout', 'wait'})
#: Functions of modules that read a clock.
CLOCKS = frozenset({
    'datetime.now', 'datetime.utcnow', 'time.monotonic', 'time.perf_counter',
    'time.process_time', 'time.thread_time', 'time.time',
    'timeutils.utcnow'})

_GIVES_UP = 'its end is GIVE_UP_S away'
_ATTACK = 'an entry point that has to be too late'
#: Why a short limit, or a clock, makes no test fail, by file and finding.
HARMLESS = {
    ('ghsched_nova/tests/fixtures/blame_cases.py', 'wait(60.0)'):
        'seconds of a simulated host',
    ('ghsched_nova/tests/fixtures/mount.py', 'join(_STOP_TIMEOUT)'):
        'what has not ended is killed',
    ('ghsched_nova/tests/fixtures/mount.py', 'time.monotonic'): _GIVES_UP,
    ('ghsched_nova/tests/fixtures/mpam_driver.py', 'timeout=600'): _GIVES_UP,
    ('ghsched_nova/tests/fixtures/privsep_attacks.py', 'time.monotonic'):
        'compared with GIVE_UP_S',
    ('ghsched_nova/tests/fixtures/privsep_attacks.py', 'timeout=1.0'):
        _ATTACK,
    ('ghsched_nova/tests/fixtures/privsep_attacks.py', 'timeout=2.0'):
        _ATTACK,
    ('ghsched_nova/tests/fixtures/privsep_attacks.py', 'timeout=30.0'):
        'as entry points of the project have it',
    ('ghsched_nova/tests/unit/features/exporter/test_exporter.'
     'py', 'time.monotonic'):
        _GIVES_UP,
    ('ghsched_nova/tests/lab/emulator/test_testhost.py', 'time.monotonic'):
        _GIVES_UP,
    ('ghsched_nova/tests/unit/features/blame/test_blame_session.'
     'py', 'wait(1.5)'):
        'seconds of a simulated host',
    ('ghsched_nova/tests/lab/emulator/test_qemu_probes.py',
     'time.monotonic'): _GIVES_UP,
    ('ghsched_nova/tests/unit/monitor/test_reader.py', 'join(0.2)'):
        'the thread is not to end',
    ('ghsched_nova/tests/unit/features/top/test_top_history.'
     'py', 'time.time'):
        'an hour, to the minute, and a record of two',
    ('ghsched_nova/tests/unit/resctrl/test_cache_facts.py', 'get(1)'):
        'the key of a table',
    ('ghsched_nova/tests/unit/resctrl/test_fs.py', 'wait(0.3)'):
        'the event is not to be set',
    ('ghsched_nova/tests/unit/features/index/test_index_feed.py',
     'timeutils.utcnow'): 'two readings, and what is between them',
    ('ghsched_nova/tests/unit/features/index/test_index_judge.py',
     'time.monotonic'): "the index' own clock: claims expire after minutes",
    ('ghsched_nova/tests/unit/features/real_time/test_threads.'
     'py', 'time.monotonic'):
        'skips where others use the machine',
    ('ghsched_placement/tests/features/rebalance/test_rebalance.'
     'py', 'datetime.now'):
        'the time of a move, which counts for hours',
}


def constants(tree):
    """Return the numbers above 0 that a module gives names to."""
    numbers = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            numbers |= dict(zip(
                map(ast.unparse, getattr(target, 'elts', [target])),
                map(number_of, getattr(value, 'elts', [value])),
                strict=False))
    return {name: number for name, number in numbers.items() if number}


def number_of(node):
    """Return the number above 0 that is written; None: there is none."""
    if (isinstance(node, ast.Constant) and type(node.value) in (int, float)
            and node.value > 0):
        return node.value
    return None


def limits(call, named=()):
    """Yield the limits of seconds, and the clocks, of one call.

    :param named: names of numbers.
    """
    def is_limit(node):
        return number_of(node) is not None or ast.unparse(node) in named

    for keyword in call.keywords:
        if 'timeout' in (keyword.arg or '') and is_limit(keyword.value):
            yield f'{keyword.arg}={ast.unparse(keyword.value)}'
    if isinstance(call.func, ast.Attribute):
        name = call.func.attr
        if name in WAITS and call.args and is_limit(call.args[0]):
            yield f'{name}({ast.unparse(call.args[0])})'
        clock = '.'.join(ast.unparse(call.func).split('.')[-2:])
        if clock in CLOCKS:
            yield clock


def found():
    """Return file and finding of all tests."""
    findings = set()
    for folder in FOLDERS:
        for path in sorted((TOP / folder).rglob('*.py')):
            tree = ast.parse(path.read_text())
            named = constants(tree)
            findings |= {(str(path.relative_to(TOP)), one)
                         for node in ast.walk(tree)
                         if isinstance(node, ast.Call)
                         for one in limits(node, named)}
    return findings


def subprocess_limits(source):
    """Return lines in which subprocess is to raise TimeoutExpired."""
    return [node.lineno for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Attribute)
            and node.attr == 'TimeoutExpired'
            or isinstance(node, ast.Call)
            and ast.unparse(node.func).startswith('subprocess.')
            and any(one.arg == 'timeout' for one in node.keywords)]


class SubprocessTest(base.TestCase):
    """Under eventlet, subprocess raises a TimeoutExpired of its own.

    It is none of those that a handler names: eventlet.green.subprocess
    derives its Popen from a copy of the module. timeout(1) is the way.
    """

    def test_runtime_modules_do_not_rely_on_it(self):
        self.assertEqual({}, {
            str(path): lines for path in (TOP / 'ghsched_nova').rglob('*.py')
            if not {'tests', 'bench'} & set(path.parts)
            and (lines := subprocess_limits(path.read_text()))})


class TimeLimitsTest(base.TestCase):

    def test_short_limits_and_clocks_of_tests_are_harmless(self):
        self.assertEqual([], sorted(found() - HARMLESS.keys()))

    @base.needs_features('index')
    def test_each_entry_of_the_table_is_found(self):
        self.assertEqual([], sorted(HARMLESS.keys() - found()))

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

"""The order of things, and what becomes of trouble."""

from pathlib import Path
import sys

import fixtures

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import machine
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench import run
from ghsched_nova.lab.bench.scenario import Bench
from ghsched_nova.lab.bench.scenario import common
from ghsched_nova.lab.bench.scenario import Need
from ghsched_nova.lab.bench.scenario import Parameter
from ghsched_nova.lab.bench.scenario import Scenario
from ghsched_placement.tests import base


class RunTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.events = []

    def scenario(self, missing='', trouble='', wrong=()):
        def set_up(bench):
            self.events.append('set up')
            self.work = bench.work
            self.process, _log = bench.start(['sleep', '9999'])
            bench.undo.callback(self.events.append, 'undone')

        def measure(bench):
            self.events.append('run')
            if trouble:
                raise errors.BenchError(trouble)
            taken = iter(range(10))
            return Measured((Series('x', 's', 'lower', tuple(map(
                float, bench.repeat('x', lambda: next(taken)))),
                (), bench.values.integer('warm-up')),))

        def tear_down(bench):
            self.events.append('tear down')
            bench.close()

        return Scenario(
            'toy', 'a toy', (*common(runs=2, warm_up=1),
                             Parameter('clients', 'local', 'x',
                                       private=True)),
            lambda _values: (), lambda _values: (
                Need('x', lambda _machine: missing),),
            measure, lambda _values, _measured: wrong, set_up, tear_down)

    def result(self, given=(), **kinds):
        return run.run(self.scenario(**kinds), dict(given),
                       machine.Machine(), lambda _text: None)

    def test_all_goes_well(self):
        found = self.result()
        self.assertEqual(('done', ()), (found.status, found.reasons))
        self.assertEqual(['set up', 'run', 'tear down', 'undone'],
                         self.events)
        self.assertEqual(((1.0, 2.0), 1), (
            found.measured.series[0].samples,
            found.measured.series[0].warm_up))
        self.assertFalse(self.process.alive())
        self.assertFalse(Path(self.work).exists())

    def test_trouble_is_a_failure_and_all_is_torn_down(self):
        found = self.result(trouble='it broke')
        self.assertEqual(('failed', ('it broke',)),
                         (found.status, found.reasons))
        self.assertEqual(['tear down', 'undone'], self.events[-2:])
        self.assertFalse(self.process.alive())

    def test_samples_that_can_not_be_trusted_are_kept(self):
        found = self.result(wrong=('they differ',))
        self.assertEqual(('failed', ('they differ',)),
                         (found.status, found.reasons))
        self.assertEqual(1, len(found.measured.series))

    def test_names_of_hosts_do_not_get_into_a_report(self):
        found = self.result(
            {'clients': 'local,ssh:root@secret'},
            trouble='ssh: connect to host secret port 22: refused')
        self.assertEqual('local,ssh:(not shown)',
                         dict(found.parameters)['clients'])
        self.assertEqual(
            ('ssh: connect to host (not shown) port 22: refused',),
            found.reasons)

    def test_unknown_parameter(self):
        self.assertRaises(errors.BenchError, self.result, {'x': 1})


class ProcessesTest(base.TestCase):

    def test_program_that_is_not_there(self):
        error = self.assertRaises(errors.BenchError, machine.Machine().run,
                                  ['/nonexistent/x'])
        self.assertIn('/nonexistent/x cannot be started', str(error))

    def test_program_that_fails(self):
        error = self.assertRaises(
            errors.BenchError, machine.Machine().check,
            ['sh', '-c', 'echo because >&2; exit 3'])
        self.assertIn('ended with 3: because', str(error))

    def test_program_that_does_not_end(self):
        error = self.assertRaises(errors.BenchError, machine.Machine().run,
                                  ['sleep', '9999'], 0.1)
        self.assertIn('did not end within', str(error))

    def test_children_of_a_program_end_with_it(self):
        child = ('import subprocess, time; '
                 'print(subprocess.Popen(["sleep", "9999"]).pid, flush=True); '
                 'time.sleep(9999)')
        bench = Bench(machine.Machine(), None, Path(
            self.useFixture(fixtures.TempDir()).path), print)
        self.addCleanup(bench.close)
        process, log = bench.start([sys.executable, '-c', child])
        self.addCleanup(log.unlink)
        machine.wait_until(lambda: log.read_text().strip(),
                           base.GIVE_UP_S, 'no child')
        pid = int(log.read_text())
        self.assertEqual((pid,), bench.machine.children(process.pid))
        process.stop()
        self.assertFalse(process.alive())
        machine.wait_until(lambda: not Path(f'/proc/{pid}').exists(),
                           base.GIVE_UP_S, 'the child lives on')

    def test_time_and_language_are_those_that_parsers_know(self):
        output = machine.Machine().check(
            ['sh', '-c', 'echo $LC_ALL $S_TIME_FORMAT'])
        self.assertEqual('C ISO\n', output)

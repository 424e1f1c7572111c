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

"""The curve of loaded-latency: what is made of samples, and a real one."""

import unittest

import yaml

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.machine import Machine
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench import run
from ghsched_nova.lab.bench.scenarios import loaded_latency
from ghsched_placement.features.density import curve as curves
from ghsched_placement.tests import base


def samples(*steps, writes=0, spread=0.0):
    """Series of (MB/s, ns) of each step."""
    found = []
    for step, (bandwidth, latency) in enumerate(steps):
        of = (('writes', str(writes)), ('step', str(step)))
        found += [
            Series('latency of an access', 'ns', 'lower',
                   tuple(latency * (1 + spread * part)
                         for part in (-1, 0, 1)), of),
            Series('bandwidth', 'MB/s', 'higher', (bandwidth,) * 3, of)]
    return found


class CurveTest(base.TestCase):

    def test_it_is_one_of_the_contention_model(self):
        text = loaded_latency.curve(
            [*samples((600, 90), (5000, 99), (9000, 180)),
             *samples((600, 90), (8000, 200), writes=50)], 10000)
        found = curves.LatencyCurve.from_mapping(
            yaml.safe_load(text)['latency_curve'])
        self.assertEqual('measured', found.basis)
        self.assertAlmostEqual(1.1, found.get_latency(0.5, 0.0))
        self.assertAlmostEqual(2.0, found.get_latency(0.9, 0.0))
        self.assertAlmostEqual(200 / 90, found.get_latency(0.8, 0.5), 2)

    def test_a_noisy_machine_is_named(self):
        quiet = samples((10, 100), (500, 200))
        self.assertEqual((), loaded_latency.verify(None, Measured(
            tuple(quiet))))
        reason, = loaded_latency.verify(None, Measured(tuple(
            samples((10, 100), (500, 200), spread=0.2))))
        self.assertIn('too noisy', reason)

    def test_a_load_that_does_nothing_is_named(self):
        reason, = loaded_latency.verify(None, Measured(tuple(
            samples((10, 100), (10, 100)))))
        self.assertIn('no load made', reason)

    def test_output_of_the_program(self):
        self.assertEqual((97.5, 8000.25),
                         loaded_latency.parse('97.500 8000.250\n'))
        self.assertRaises(errors.BenchError, loaded_latency.parse, 'oops\n')


@unittest.skipUnless(Machine().which('cc'), 'there is no C compiler')
class RealTest(base.TestCase):

    def test_the_program_measures_something(self):
        result = run.run(loaded_latency.SCENARIO, {
            'runs': 1, 'warm-up': 0, 'size': 1, 'seconds': 0.02,
            'writes': '50'}, Machine(), lambda _text: None)
        # How quiet the machine is decides between done and failed.
        self.assertIn(result.status, ('done', 'failed'))
        self.assertEqual(2 * len(loaded_latency.PAUSES),
                         len(result.measured.series))
        self.assertGreater(min(one.samples[0]
                               for one in result.measured.series), 0)

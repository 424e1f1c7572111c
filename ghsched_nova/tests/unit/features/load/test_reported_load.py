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

"""Loads that a scheduler believes, and loads that the host has measured."""

import types

import fixtures
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_nova.features.load import by_load
from ghsched_nova.features.load import load_use
from ghsched_nova.host import compute_hooks
from ghsched_nova.nova_seams import shared
from ghsched_placement.features.load import load
from ghsched_placement.tests import base

MAX_AGE = 180

#: Steps of a host: seconds since the last, what happens, and by how much the
#: load and the queue change.
STEPS = st.lists(st.tuples(
    st.sampled_from((20, 55, 60, 60, 60, 65, 150, 400)),
    st.sampled_from(('report',) * 6 + ('lost', 'restart', 'back', 'ahead')),
    st.sampled_from((0., .01, -.02, .049, -.052, .3)),
    st.sampled_from((0., .1, -.24, .49, -.52, 3.))), max_size=40)


class Host:
    """A host, its record in Nova's database, and a scheduler that reads it.

    :ivar rival: the record as it would be if each measurement were written.
    :ivar written: number of times the record was written.
    :ivar measured: load and queue of the last report that was not lost.
    """

    def __init__(self):
        self.now, self.offset, self.written = 1e6, 0., 0
        self.busy, self.queue = .5, 2.
        self.record, self.rival = {}, {}
        self.measured = None
        self.restart()

    def restart(self):
        """Start nova-compute, which writes a record without a load."""
        section = types.SimpleNamespace(load_max_age=MAX_AGE)
        self.use = load_use.LoadReporter(section, lambda *_args: None)
        self.use._meter = types.SimpleNamespace(
            load=None, measure_host_load=lambda *_args: ())
        self.record, self.rival, self.measured = {}, {}, None

    def report(self, lost=False):
        self.use._meter.load = load.HostLoad(self.now + self.offset, 60., (
            load.HostNodeLoad(0, cpus=8, cpu_load=self.busy,
                              io_wait=self.queue),))
        self.use.observe(compute_hooks.HostSnapshot(time=self.now))
        found = self.use.make_stats()
        if lost:
            return
        # Nova compares with what it wrote last.
        self.written += found != self.record
        self.record, self.measured = found, (self.busy, self.queue)
        self.rival = load.make_load_stats(self.use.load)

    def step(self, seconds, event, change, queue=0.):
        self.now += seconds
        self.busy = min(1., max(0., self.busy + change))
        self.queue = max(0., self.queue + queue)
        if event == 'restart':
            self.restart()
            return
        self.offset += {'back': -30., 'ahead': 30.}.get(event, 0.)
        self.report(event == 'lost')


class BelievedLoadTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.clock = 0.
        self.useFixture(fixtures.MonkeyPatch(
            f'{by_load.__name__}.time.time', lambda: self.clock))
        self.useFixture(fixtures.MonkeyPatch(
            f'{shared.__name__}.config', lambda: types.SimpleNamespace(
                ghsched=types.SimpleNamespace(load_max_age=MAX_AGE))))

    def believe(self, stats, now):
        """Return the load that a scheduler believes; None if unknown."""
        self.clock = now
        return by_load.get_fresh_load(types.SimpleNamespace(stats=stats))

    @settings(max_examples=300)
    @given(STEPS)
    def test_believed_load_is_near_the_load_of_the_last_report(self, steps):
        host = Host()
        for step in steps:
            host.step(*step)
            for later in (0, 30, 59, 300):
                found = self.believe(host.record, host.now + later)
                if found is not None:
                    (node,) = found.nodes
                    busy, queue = host.measured
                    self.assertAlmostEqual(busy, node.cpu_load, delta=.0501)
                    self.assertAlmostEqual(queue, node.io_wait, delta=.501)

    @settings(max_examples=300)
    @given(STEPS)
    def test_dead_host_is_unknown_as_early_as_if_each_load_were_written(
            self, steps):
        host = Host()
        for seconds, event, *changes in steps:
            # By clocks that do not jump.
            host.step(seconds, event if event in ('lost', 'restart')
                      else 'report', *changes)
            for later in range(0, 400, 20):
                if self.believe(host.rival, host.now + later) is None:
                    self.assertIsNone(
                        self.believe(host.record, host.now + later))

    @given(st.sampled_from((5, 20, 60, 89, 90, 91, 120, 179)),
           st.lists(st.sampled_from((0., .01, -.02, .049, -.06, .3)),
                    min_size=1, max_size=30))
    def test_load_of_a_living_host_is_known_to_the_release_before(
            self, interval, changes):
        host = Host()
        for change in changes:
            host.step(interval, 'report', change)
            # At the last moment before the next report.
            self.assertIsNotNone(
                self.believe(host.record, host.now + interval - .1))

    def test_load_that_changes_little_is_written_every_other_time(self):
        host = Host()
        for _number in range(100):
            host.step(60, 'report', 0.)
        self.assertEqual(50, host.written)

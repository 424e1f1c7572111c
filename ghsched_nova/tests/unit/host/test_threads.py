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

"""Objects that nova-compute shares among its native threads."""

from collections import Counter
import json
from pathlib import Path
import time
from types import SimpleNamespace
from unittest import mock

import fixtures
from oslo_config import cfg

from ghsched_nova import conf
from ghsched_nova.features.blame import blame_record
from ghsched_nova.features.bursts import burst_use
from ghsched_nova.features.exporter import repair_counts
from ghsched_nova.features.history import history_use
from ghsched_nova.features.load import load_use
from ghsched_nova.features.real_time import host_scheduling
from ghsched_nova.features.rebalance import flow_source as sources
from ghsched_nova.features.rebalance import traffic_report
from ghsched_nova.features.service_level import protection_events
from ghsched_nova.features.service_level import service_level_use
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import engine
from ghsched_nova.host import readings
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import reconcile
from ghsched_nova.tests.fixtures import captured
from ghsched_nova.tests.fixtures import engine_base
from ghsched_nova.tests.fixtures import observing
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import threads

#: Percentages that a line shows for those that are written.
SHOWN = tuple(range(101))


class EngineStressTest(engine_base.EngineTestCase):
    """Reports of the host, and guests that start and end meanwhile."""

    def setUp(self):
        super().setUp()
        self.inside = []
        self.call.side_effect = self.reconcile_alone

    def reconcile_alone(self, _root, _run_path, _wanted):
        self.inside.append(None)
        assert len(self.inside) == 1, 'two threads write to resctrl'
        report = reconcile.ReconcileReport()
        self.inside.pop()
        return report

    def test_engine_under_native_threads_keeps_the_newest_reasons(self):
        looks, kept = [], []

        def running():
            looks.append(None)
            return [engine_base.running(1)]

        def keep(own, name, value):
            object.__setattr__(own, name, value)
            if name == 'not_held':
                kept.append(int(value['guest']))

        self.engine.running = running
        self.engine._make_desired_groups = lambda _guests: (
            captured.openeuler(), [],
            [model.PolicyProblem('guest', '', str(len(looks)))])
        self.useFixture(fixtures.MonkeyPatch(
            f'{engine.__name__}.HostEngine.__setattr__', keep))

        def report(chance):
            # Repairs are written to the disk.
            self.engine.reconcile_groups(
                lambda _kinds: time.sleep(chance.random() / 10))
            self.engine.describe_bandwidth_control()

        self.assertEqual([], threads.stress(
            [report] * 5
            + [lambda _chance: self.engine.release_group('guest')], 10))
        self.assertEqual(sorted(kept), kept)
        self.assertEqual({'guest': str(len(looks))}, self.engine.not_held)

    def test_engine_under_native_threads_writes_one_state_at_a_time(self):
        guests = [engine_base.running(number) for number in range(1, 5)]
        self.engine.running = lambda: guests

        def step(chance):
            self.engine.reconcile_guest(chance.choice(guests))
            self.engine.reconcile_groups()

        self.assertEqual([], threads.stress([step] * 4, 3))
        self.assertEqual({}, self.engine.not_held)


class _Alone(compute_hooks.ComputeHooks):
    """Observer that no other thread may enter."""

    def __init__(self):
        self.inside = []

    def observe(self, snapshot):
        self.inside.append(None)
        assert len(self.inside) == 1, 'two reports are observed at a time'
        self.inside.pop()


class _Flows(sources.Source):
    """Source of the same flow of traffic, which grows."""

    def __init__(self):
        self.count = iter(range(10 ** 9, 10 ** 12, 10 ** 6))

    def flows(self, addresses):
        return [sources.Flow('a', '10.0.0.5', '10.0.0.6', next(self.count))]


def _make_traffic(section):
    found = traffic_report.GuestTraffic(section)
    found._meter = sources.Meter(
        _Flows(), traffic_report.affinity.AffinitySettings())
    return found


#: Parts of features: functions of options and a folder, and what they need.
OBSERVERS = (
    ('bursts', lambda section, top: burst_use.BurstRecorder(
        section, top / 'bursts')),
    ('load', lambda section, _top: load_use.LoadReporter(
        section, mock.Mock())),
    ('blame', lambda _section, top: blame_record.BlameRecord(top / 'blame'),
     'load'),
    ('service_level', lambda _section, top: (
        service_level_use.ServiceLevelRecorder(top / 'levels')), 'load'),
    ('history', lambda _section, top: history_use.HistoryRecorder(
        top / 'history')),
    ('exporter', lambda _section, top: repair_counts.RepairCounts(
        top / 'repairs')),
    ('rebalance', lambda section, _top: _make_traffic(section)),
    ('alone', lambda _section, _top: _Alone()),
)


class ReportStressTest(base.TestCase):
    """State that each report of the host extends while requests read it."""

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(level=30))
        self.top = Path(self.useFixture(fixtures.TempDir()).path)
        config = cfg.ConfigOpts()
        conf.register_opts(config)
        config([], project='nova', default_config_files=[],
               default_config_dirs=[])
        for name, value in (('bandwidth_bursts', {'0': 40}),
                            ('sysfs_path', str(self.top)),
                            ('libvirt_run_path', str(self.top)),
                            ('load_period', 1e-9),
                            ('affinity_source', 'conntrack')):
            config.set_override(name, value, 'ghsched')
            self.addCleanup(config.clear_override, name, 'ghsched')
        self.section = config.ghsched

    def make_parts(self):
        """Return the parts of nova-compute that observe its reports."""
        return observing.make_parts(*(
            (name, make(self.section, self.top), *needs)
            for name, make, *needs in OBSERVERS))

    def test_reports_under_native_threads_are_observed_in_turn(self):
        host = self.make_parts()
        bandwidth = observing.burst_snapshot(
            observing.burst_guest(0, project='a'),
            observing.guest(100.0))
        node = self.top / 'devices/system/node/node0'
        node.mkdir(parents=True)
        (node / 'cpulist').write_text('0-255\n')
        clock = iter(range(1200, 10 ** 9))
        guest = SimpleNamespace(name='one', uuid='u',
                                get_xml_desc=lambda: '<domain/>')

        def report(_chance):
            host.count_repairs(['write line'])
            host.observe(lambda: compute_hooks.HostSnapshot(
                time=next(clock), bandwidth=bandwidth))

        def read(_chance):
            host.add_stats({})
            host.add_diagnostics({}, guest)

        self.assertEqual([], threads.stress([report] * 4 + [read] * 2, 2))
        self.assertEqual('', self.log.output)
        self.assertEqual(Counter(), host.failures)
        count = 8 * threads.SCALE
        found = {path.name: json.loads(path.read_text())
                 for path in self.top.iterdir() if path.is_file()}
        if 'repairs' in found:
            self.assertEqual({'write line': count},
                             found['repairs']['repairs'])
        if 'bursts' in found:
            (hour,) = found['bursts']['nodes']['0']['hours']
            self.assertEqual(count, hour['periods'])
        if 'blame' in found:
            times = [one['time'] for one in found['blame']['periods']]
            self.assertEqual(sorted(set(times)), times)
        if 'levels' in found:
            self.assertEqual({'': count - 1, 'u': count - 1}, {
                uuid: level['seconds']
                for uuid, _node, level in found['levels']['levels']})

    def test_notices_under_native_threads_are_sent_in_turn(self):
        sent = []
        found = protection_events.ProtectionNotifier(
            lambda event, payload: sent.append(
                (payload['server'], event.rpartition('.')[2])))

        def report(chance):
            found.notify_protection_changes('host_a', dict.fromkeys(
                chance.sample('abcdef', chance.randrange(7)), 'no group'))

        self.assertEqual([], threads.stress([report] * 6, 20))
        self.assertEqual('', self.log.output)
        for server in 'abcdef':
            events = [event for one, event in sent if one == server]
            self.assertEqual((['start', 'end'] * len(events))[:len(events)],
                             events)

    def test_classes_under_native_threads_are_tried_once(self):
        tried = []

        def refused(name):
            tried.append(name)
            return ''

        for name, value in (('realtime_priority_max', 10),
                            ('deadline_guests', True),
                            ('realtime_shared_percent', 50)):
            self.section._conf.set_override(name, value, 'ghsched')
            self.addCleanup(self.section._conf.clear_override, name,
                            'ghsched')
        keeper = host_scheduling.ThreadScheduler(
            self.section, lambda: refused('fifo'),
            lambda places: refused(str(sorted(map(sorted, places)))), [0, 1],
            lambda: {0: frozenset({2, 3})})

        def step(_chance):
            assert keeper.capabilities() and keeper.compute_realtime_capacity()

        self.assertEqual([], threads.stress([step] * 6, 3))
        self.assertEqual(['[[0], [1]]', '[[2, 3]]', 'fifo'], sorted(tried))


class ReadingsStressTest(base.TestCase):

    def test_readings_under_native_threads_are_measured_once(self):
        top = Path(self.useFixture(fixtures.TempDir()).path)
        (top / 'resctrl/info').mkdir(parents=True)
        host = captured.openeuler(unmeasured=('MB',))
        measured = []

        def measure(_root, lines, _domain):
            measured.append(lines)
            return dict.fromkeys(lines, SHOWN)

        found = readings.RoundingCache(top / 'resctrl', top / readings.FILE,
                                       measure)

        def step(_chance):
            if not found.get_measured_rounding():
                assert found.measure_missing_percentages(host)
            assert found.get_measured_rounding() == {'MB': SHOWN}

        self.assertEqual([], threads.stress([step] * 6, 5))
        self.assertEqual([('MB',)], measured)
        self.assertEqual({'MB'}, set(json.loads(
            (top / readings.FILE).read_text())['lines']))

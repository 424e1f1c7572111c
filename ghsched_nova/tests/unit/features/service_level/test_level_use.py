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

import dataclasses
from pathlib import Path
import types

import fixtures

from ghsched_nova.features.metering import metering_notices
from ghsched_nova.features.service_level import service_level_use
from ghsched_nova.host import compute_hooks
from ghsched_nova.monitor import view
from ghsched_nova.tests.fixtures import observing
from ghsched_placement.features.load import load
from ghsched_placement.features.metering import metering
from ghsched_placement.features.service_level import service_level
from ghsched_placement.features.service_level.service_level import LevelKey
from ghsched_placement.flavor.vcpu_classes import VcpuClass
from ghsched_placement.tests import base

guest = observing.guest
snapshot = observing.snapshot


def busy(share, uuid='u'):
    return load.HostLoad(1.0, 60.0, (), (
        load.GuestNodeLoad(uuid, 0, 0, 2, 1024, cpu_load=share),))


class PeriodsTest(base.TestCase):

    def period(self, usage, measured=None, not_held=(), uncounted=(),
               **of_host):
        found = dict(service_level_use.yield_received_bandwidth(
            snapshot(usage, **of_host), measured, not_held, uncounted))
        return found.get(LevelKey('u', 0), (None, None))[1]

    def test_figures_are_in_percent_of_the_node(self):
        self.assertEqual(
            service_level.LevelPeriod(30, 80, 30, 29.0, 12.5, 50.0, 0.75,
                                      True),
            self.period(guest(125.0, held=29.0, maximum=80), busy(0.75)))

    def test_unknown_figures_are_none(self):
        found = self.period(guest(None, group=False), capacity=None)
        self.assertEqual(
            (None, None, None, None, False),
            (found.got, found.node_used, found.held, found.busy,
             found.protected))

    def test_policy_that_is_not_held_and_share_that_placement_lacks(self):
        found = self.period(guest(1.0), not_held={'u'}, uncounted={'u'})
        self.assertEqual((False, None), (found.protected, found.allocated))

    def test_classes_have_periods_of_their_own_and_add_up(self):
        first, second = (dataclasses.replace(
            guest(used, minimum=minimum, held=held), guest=view.MonitoredGuest(
                'i', 'u')) for used, minimum, held in (
                    (100.0, 30, 30.0), (250.0, 10, 10.0)))
        usage = dataclasses.replace(guest(350.0, minimum=40), classes=tuple(
            view.ClassUsage(VcpuClass(name, frozenset({vcpu})), one.nodes,
                            one.control_groups if name == 'latency' else ())
            for vcpu, (name, one) in enumerate({
                'latency': first, 'default': second}.items())))
        found = dict(service_level_use.yield_received_bandwidth(
            snapshot(usage), busy(0.75), (), ()))
        self.assertEqual(
            {('u', 0, 'latency'): (30, 10.0, True),
             ('u', 0, 'default'): (10, 25.0, False)},
            {key: (one.asked, one.got, one.protected)
             for key, (_owner, one) in found.items()})
        metered = metering.make_bandwidth_notification('h', 60.0, found)
        self.assertEqual([40, 35.0], [
            one['value'] for one in metered['measurements']])

    def test_server_without_a_promise_has_no_period(self):
        self.assertIsNone(self.period(guest(1.0, minimum=0)))


class UseTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(level=30))
        self.path = Path(self.useFixture(fixtures.TempDir()).path, 'levels')
        self.make(self.path)

    def make(self, path):
        self.use = service_level_use.ServiceLevelRecorder(path)
        self.reports = observing.Reports(self.use, ['load'])

    def measure(self, now, *guests, **of_host):
        self.reports.report(now, snapshot(*guests, **of_host),
                            {'load': busy(1.0)})

    def test_time_between_reports_is_counted_and_kept_in_the_file(self):
        for now in (1000.0, 1060.0, 1130.0):
            self.measure(now, guest(100.0), used=990.0)
        level = self.use.levels[LevelKey('u', 0)]
        self.assertEqual((130.0, {'host_moved': 60.0, 'node_full': 70.0}),
                         (level.seconds, level.short))
        self.assertEqual(service_level.Owner('instance-1', 'p', 'f'),
                         level.owner)
        before = self.use.levels
        self.make(self.path)
        self.assertEqual(before, self.use.levels)

    def sent_with(self, *guests):
        """Return the notifications of two reports with these guests."""
        sent = []
        host = observing.make_parts(
            ('service_level', self.use),
            ('metering', metering_notices.BandwidthNotifier(
                types.SimpleNamespace(
                    host_name='h', notify=lambda *one: sent.append(one))),
             'service_level'))
        for now in (1000.0, 1060.0):
            host.observe(lambda now=now: compute_hooks.HostSnapshot(
                time=now, bandwidth=snapshot(*guests)))
        return sent

    def test_bandwidth_since_the_last_report_is_sent(self):
        (event, payload), = self.sent_with(guest(100.0))
        self.assertEqual((metering.EVENT, 'h', 60.0), (
            event, payload['host'], payload['seconds']))
        self.assertEqual({metering.ALLOCATED: 30.0, metering.USED: 10.0}, {
            one['name']: one['value'] for one in payload['measurements']})

    def test_report_without_servers_sends_nothing(self):
        self.assertEqual([], self.sent_with())

    def test_pause_of_nova_compute_is_not_counted_as_one_period(self):
        self.measure(1000.0, guest(100.0))
        self.measure(1000.0 + 86400, guest(100.0))
        self.assertEqual(compute_hooks.PERIOD_MAX_S,
                         self.use.levels[LevelKey('u', 0)].seconds)

    def test_host_without_bandwidth_writes_nothing(self):
        for now in (1000.0, 1060.0):
            self.reports.report(now)
        self.assertFalse(self.path.exists())

    def test_error_is_logged_and_not_raised(self):
        self.make(Path('/none/levels'))
        for now in (1000.0, 1060.0):
            self.measure(now, guest(100.0))
        self.assertIn('cannot run hook observe', self.log.output)
        self.assertEqual(60.0, self.use.levels[LevelKey('u', 0)].seconds)

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

"""Guests of which an investigation counts events, and their counts."""

import contextlib
import functools
import os
import threading
from unittest import mock

from oslo_config import cfg

from ghsched_nova import conf
from ghsched_nova.features.blame import blame_cap
from ghsched_nova.features.blame import blame_probe
from ghsched_nova.features.blame import counters
from ghsched_nova.features.blame import host_blame
from ghsched_nova.tests.fixtures import blame_cases
from ghsched_nova.tests.fixtures import blame_hosts
from ghsched_placement.features.blame import blame as evidence
from ghsched_placement.features.blame import blame_report
from ghsched_placement.features.load import pressure
from ghsched_placement.tests import base

SEED = '1'


class CountingTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.stack = self.enterContext(contextlib.ExitStack())
        self.case = blame_cases.make_case(SEED, 5)
        self.host = blame_hosts.open_host(self.case, SEED, self.stack)
        self.answer = mock.Mock(
            side_effect=lambda process, others, _brief, _ms: [
                {'instructions': 5.0},
                *({'cache_misses': float(pid)} for _name, pid in others)])
        guests = self.host.view_guests()
        self.mine, = (one for one in guests
                      if one.uuid == self.case.victim.uuid)
        self.others = [one for one in guests if one is not self.mine]
        capper = blame_cap.Capper(self.host.engine, threading.RLock(),
                                  self.host.find)
        self.count = host_blame.Investigator(
            capper, 'host', self.host.list_running, lambda: (),
            count_events=self.answer)._make_event_counter(
                self.mine, self.others)

    def get_pid(self, guest):
        return int((self.host.top / 'run' / f'{guest.name}.pid').read_text())

    def test_misses_of_other_guests_are_known_by_their_uuids(self):
        found = self.count(1000, False)
        self.assertEqual(blame_probe.Counts(
            {'instructions': 5.0},
            {one.uuid: float(self.get_pid(one)) for one in self.others}),
            found)
        self.answer.assert_called_once_with(
            (self.mine.name, self.get_pid(self.mine)),
            [(one.name, self.get_pid(one)) for one in self.others],
            False, 1000)

    def test_only_the_speed_of_the_server_is_counted_when_asked_to(self):
        self.assertEqual({}, self.count(1000, True).misses)
        self.assertEqual(
            ([], True, 1000), self.answer.call_args.args[1:])

    def test_guest_that_has_ended_is_not_counted(self):
        gone, *there = self.others
        (self.host.top / 'run' / f'{gone.name}.pid').unlink()
        self.assertEqual({one.uuid for one in there},
                         set(self.count(1000, False).misses))

    def test_event_that_was_not_counted_of_a_guest_is_left_out(self):
        self.answer.side_effect = lambda _process, others, _brief, _ms: [
            {}, *({} for _one in others)]
        self.assertEqual(blame_probe.Counts(), self.count(1000, False))

    def test_guests_beyond_the_bound_are_not_counted(self):
        with mock.patch.object(counters, 'MOST_OTHERS', 1):
            self.assertEqual({self.others[0].uuid},
                             set(self.count(1000, False).misses))

    def test_server_whose_process_is_unknown_is_an_error(self):
        (self.host.top / 'run' / f'{self.mine.name}.pid').unlink()
        self.assertRaises(ProcessLookupError, self.count, 1000, False)
        self.answer.assert_not_called()

    def test_guests_are_sorted_by_their_bandwidth(self):
        record = [evidence.BlameSample(1.0, 60.0, {
            one.uuid: float(number)
            for number, one in enumerate(self.others)})]
        self.assertEqual(
            [*reversed(self.others)], host_blame._sort_by_bandwidth(
                self.others, record))
        self.assertEqual(self.others,
                         host_blame._sort_by_bandwidth(self.others, []))


class LimitTest(base.TestCase):
    """Investigations that begin while others go on."""

    def investigate(self):
        with self.assertRaises(host_blame.NotInvestigated) as raised:
            self.investigator.investigate_server('u', False)
        return str(raised.exception)

    def test_third_at_the_same_time_is_refused_and_the_next_is_not(self):
        reasons = []

        def list_running():
            reasons.append(self.investigate())
            return ()

        self.investigator = host_blame.Investigator(
            mock.Mock(), 'host', list_running, lambda: ())
        for _time in range(2):
            reasons.clear()
            gone = self.investigate()
            self.assertEqual('the server does not run on this host', gone)
            self.assertEqual(
                ['2 servers of this host are being investigated; try again '
                 'in a minute', gone], reasons)


class InvestigationTest(base.TestCase):
    """Whole investigations of a simulated host."""

    def investigate(self, count):
        """Return the report of an investigation, and the host.

        :param count: counts events, with the simulated host before its other
            arguments.
        """
        stack = self.enterContext(contextlib.ExitStack())
        case = blame_cases.make_case(SEED, 5)
        host = blame_hosts.open_host(case, SEED, stack)
        conf.register_opts(cfg.CONF)
        for name in ('resctrl_path', 'sysfs_path', 'libvirt_run_path'):
            cfg.CONF.set_override(name, getattr(host.section, name),
                                  'ghsched')
            self.addCleanup(cfg.CONF.clear_override, name, 'ghsched')
        host.engine.section = cfg.CONF.ghsched
        clocks = blame_probe.Clocks(lambda: host.now, lambda: host.now,
                                    host.sleep)
        # Each measurement begins at the end of the last one.
        host.sleep(1.0)
        return host, host_blame.Investigator(
            blame_cap.Capper(host.engine, threading.RLock(), host.find),
            'host', host.list_running, lambda: (),
            functools.partial(count, host), clocks,
            self.write_pressure(host, case.victim.uuid)).investigate_server(
                case.victim.uuid, False)

    def write_pressure(self, host, uuid):
        path = host.top / pressure.FILE
        path.write_text(pressure.FILE_FORMAT.render({
            uuid: pressure.ReportedPressure(pressure.Pressure(40, 3, 1))}))
        os.utime(path, (host.now, host.now))
        return path

    def test_misses_are_shown_of_guests_on_the_nodes_of_the_server(self):
        counted = set()

        def count(host, _process, others, _brief, milliseconds):
            counted.update(name for name, _pid in others)
            host.sleep(milliseconds / 1000)
            return [{'instructions': 1e9, 'cpu_ns': 1e9},
                    *({'cache_misses': 100.0} for _one in others)]

        host, shown = self.investigate(count)
        victim, = (one for one in host.tenants if one.name == 'victim')
        self.assertEqual({one.name for one in host.tenants
                          if one is not victim and one.node == victim.node},
                         counted)
        self.assertEqual(('instructions', None),
                         (shown['figure'], shown['uncounted']))
        self.assertEqual({round(1 / len(counted), 3)}, {
            round(one['miss_share'], 3) for one in shown['suspects']
            if one['uuid']})

    def test_report_of_a_host_without_counters_has_the_reason(self):
        _host, shown = self.investigate(
            lambda _host, _process, others, _brief, _ms: [
                {'cpu_ns': 1e9}, *({} for _one in others)])
        self.assertEqual([0.4, 0.03, 0.01], [
            shown['own'][f'reported_{name}']
            for name in ('cpu', 'memory', 'steal')])
        self.assertEqual(('bandwidth', 'no counters'),
                         (shown['figure'], shown['uncounted']))
        self.assertEqual({None}, {one['miss_share']
                                  for one in shown['suspects']})
        self.assertIn('the host has no performance counters',
                      blame_report.summarize_verdict(shown))

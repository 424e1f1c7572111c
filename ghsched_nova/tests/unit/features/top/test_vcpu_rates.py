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

"""Columns of ghsched-top with rates of the vCPUs of guests."""

import json
from types import SimpleNamespace

from ghsched_nova.features.top import guest_reader
from ghsched_nova.features.top import top
from ghsched_nova.features.top import top_screen
from ghsched_nova.features.top import top_source
from ghsched_nova.features.top import vcpu_rates
from ghsched_nova.monitor import rates
from ghsched_nova.monitor import view
from ghsched_nova.tests.fixtures import pylibvirt
from ghsched_nova.tests.fixtures import top_case

GUESTS = [SimpleNamespace(uuid='one', domain_id=1, cells=[
    SimpleNamespace(vcpus={0, 1}), SimpleNamespace(vcpus={2, 3})])]


class VcpuRatesTest(top_case.TopTestCase):

    def setUp(self):
        super().setUp()
        self.now = 100.0
        self.meter = vcpu_rates.VcpuMeter(lambda: self.now)

    def measure(self, seconds, guests=GUESTS, **counters):
        self.now += seconds
        return {uuid: (found.exits_per_second, found.halt_poll_percent,
                       found.steal_percent)
                for uuid, found in self.meter.measure_rates(
                    guests, {'one': counters}).items()}

    def test_rates_are_those_of_all_vcpus_since_the_last_reading(self):
        polls = 'halt_poll_success_ns', 'halt_poll_fail_ns'
        self.assertEqual({}, self.measure(
            1, exits=70, delay=5, **dict.fromkeys(polls, 0)))
        # One vCPU of four waits for half of two seconds.
        self.assertEqual({'one': (50.0, 25.0, 12.5)}, self.measure(
            2, exits=170, delay=1_000_000_005,
            **dict.fromkeys(polls, 1_000_000_000)))

    def test_figure_that_the_host_does_not_count_is_unknown(self):
        self.measure(1, delay=0, halt_poll_fail_ns=0)
        self.assertEqual({'one': (None, None, 25.0)}, self.measure(
            1, delay=1_000_000_000, halt_poll_fail_ns=9))
        # It is counted from now on.
        self.assertEqual({'one': (None, None, 0.0)}, self.measure(
            1, delay=1_000_000_000, exits=1000))
        self.assertEqual({}, self.measure(1))

    def test_counters_of_a_guest_that_began_again_give_no_rates(self):
        self.measure(1, exits=100)
        self.assertEqual({'one': (None, None, None)},
                         self.measure(1, exits=40))
        restarted = [SimpleNamespace(**{**vars(GUESTS[0]), 'domain_id': 2})]
        self.assertEqual({}, self.measure(1, restarted, exits=500))
        self.assertEqual({'one': (1.0, None, None)},
                         self.measure(1, restarted, exits=501))

    def test_guest_without_known_vcpus_has_exits_only(self):
        guests = [SimpleNamespace(uuid='one', domain_id=1, cells=())]
        self.measure(1, guests, exits=0, delay=0)
        self.assertEqual({'one': (4.0, None, None)}, self.measure(
            1, guests, exits=4, delay=1_000_000_000))

    def show(self, **rates_of):
        """Return the titles, and the words of each row of a guest, by title.
        """
        guest = view.MonitoredGuest('web', 'one')
        node = view.GuestNodeBandwidth(
            (0,), None, None, rates.Figure(1.0, rates.RateState.OK))
        shown = top_screen.Top(SimpleNamespace(libvirt_error=''))
        shown._snapshot = top_source.TopSnapshot(
            'x', 'rate_mb', (), (view.GuestUsage(
                guest, (), (node, node), rates.ZERO),), (), rates.ZERO,
            guest_rates={'one': vcpu_rates.VcpuRates(**rates_of)})
        lines = shown.render_last_measurement().splitlines()
        start = next(number for number, line in enumerate(lines)
                     if line.startswith('GUEST'))
        return lines[start], [line.split() for line in lines[start + 1:]]

    def test_only_known_rates_have_a_column_after_all_others(self):
        titles, _rows = self.show()
        self.assertTrue(titles.endswith('EPRIO'))
        titles, rows = self.show(steal_percent=12.345)
        self.assertTrue(titles.endswith('EPRIO  STEAL %'))
        # The second row is of the same guest.
        self.assertEqual(['12.3', '-'], [row[-1] for row in rows])
        titles, rows = self.show(exits_per_second=5.0, halt_poll_percent=0.0,
                                 steal_percent=1.0)
        self.assertTrue(titles.endswith('EPRIO  EXITS/s  POLL %  STEAL %'))
        self.assertEqual(['5.0', '0.0', '1.0'], rows[0][-3:])

    def test_first_frame_has_the_rates_that_libvirt_reports(self):
        tree = self.host('openeuler66')
        tree.group(top_case.QEMU, tid=100)
        module = pylibvirt.Module(pylibvirt.Domain(7, pylibvirt.ELEMENT))
        delays = iter(range(0, 10 ** 12, 10 ** 9))
        self.patch(guest_reader.LibvirtReader, '_load', lambda reader: setattr(
            reader, '_module', module))
        self.patch(guest_reader.LibvirtReader, 'read_vcpu_counters',
                   lambda _reader: {
                       guest.uuid: {'delay': next(delays)}
                       for guest in _reader.read_guests()})
        self.paths = lambda host: [
            '--resctrl', str(host.root), '--sysfs', str(host.top / 'sysfs')]
        slept = []
        self.patch(top.time, 'sleep', slept.append)
        status, text, errors = self.run_top(tree, '--json', '-n', '1')
        self.assertEqual((0, '', 1), (status, errors, len(slept)))
        guest, = json.loads(text)['guests']
        self.assertGreater(guest['steal_percent'], 0.0)
        self.assertIsNone(guest['exits_per_second'])
        self.assertIsNone(guest['halt_poll_percent'])

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
"""Channels of the guests of one host."""

import dataclasses
import json
from pathlib import Path
import threading
from types import SimpleNamespace
from unittest import mock

import fixtures

from ghsched_nova.features.guest_channel import channel
from ghsched_nova.features.guest_channel import class_moves
from ghsched_nova.features.guest_channel import guest_channel
from ghsched_nova.features.guest_channel import lines
from ghsched_nova.features.guest_channel import stream
from ghsched_nova.guest import metadata
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_nova.monitor import view
from ghsched_nova.tests.unit.features.guest_channel import test_lines
from ghsched_nova.tests.unit.features.guest_channel import test_stream
from ghsched_placement.features.load import pressure
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base

UUID = 'c2d4e6f8-0000-4000-8000-000000000001'
XML = f'<domain><uuid>{UUID}</uuid><devices></devices></domain>'


def make_running(nodes=(0,), mode='write', number=1, **values):
    """Return a running domain as libvirt shows it: with its XML alone."""
    found = policy.parse_policy({
        'ghsched:monitor': 'true', 'ghsched:guest_channel': mode,
        **{f'ghsched:{name}': str(value) for name, value in values.items()}},
        1)
    xml = guest_channel.add_channel_port(XML, mode)
    return desired.parse_running_domain(metadata.write_policy(
        xml, metadata.DomainPolicy(
            found, tuple(nodes) if found.nodes else ())), number)


class Connection:
    """A connection of libvirt; the guest is gone where it must fail."""

    def __init__(self):
        self.streams = []
        self.error = None

    def newStream(self, flags):  # noqa: N802
        self.streams.append(test_stream.FakeStream())
        return self.streams[-1]

    def lookupByUUIDString(self, uuid):  # noqa: N802
        return self

    def openChannel(self, name, opened, flags):  # noqa: N802
        if self.error:
            raise self.error
        assert (name, flags) == (lines.PORT, stream.FORCE)


class LibvirtError(Exception):
    """An error of libvirt, with its code."""

    def get_error_code(self):
        return self.args[0]


class ChannelTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.connection = Connection()
        self.path = Path(self.useFixture(fixtures.TempDir()).path,
                         pressure.FILE)
        self.not_held = {}
        self.asked = []
        self.running = {}
        self.measured = []
        self.listed = 0
        self.useFixture(fixtures.MockPatchObject(threading, 'Thread'))
        self.part = guest_channel.GuestChannels(
            lambda: self.connection, lambda: self.not_held, self.set_classes,
            self.list_running, self.measure, self.path)

    def list_running(self):
        self.listed += 1
        return [*self.running.values()]

    def measure(self, guests):
        """Measure no bandwidth, as on a host that has no monitoring."""
        self.measured.append([one.uuid for one in guests])

    def set_classes(self, uuid, wanted):
        self.asked.append((uuid, wanted))
        if 'odd' in wanted:
            raise class_moves.NotMovedError('odd is no class')
        if 'broken' in wanted:
            raise OSError('the kernel is broken')
        self.running[UUID] = make_running(mode='write', mem_bw_min=40)
        return self.running[UUID]

    def wish(self, **classes):
        one = self.connection.streams[-1]
        one.incoming = json.dumps({'ghsched': 1, 'classes': classes}
                                  ).encode() + b'\n'
        one.callback(one, stream.READABLE, one.kept[1])
        self.part.serve_vcpu_move_requests()

    def observe(self, *running, changed=None, limits=None):
        """Observe guests of which one may have changed since they were read.
        """
        self.running.update((one.domain.uuid, one)
                            for one in changed or running)
        self.part.observe(compute_hooks.HostSnapshot(
            time=0.0, since=None, running=running, bandwidth=limits))

    def read_reasons(self):
        """Return the reasons that were written since the last call."""
        return [line['reason'] for line in self.read_lines()]

    def read_lines(self):
        found = []
        for one in self.connection.streams:
            one.run()
            found += [json.loads(line)
                      for line in one.written.split(b'\n') if line]
            one.written = b''
        return found

    def render(self, mode):
        return self.part.render(XML, compute_hooks.StartingGuest(
            policy.parse_policy({'ghsched:guest_channel': mode}, 0), (), (9,)))


class GuestChannelsTest(ChannelTestCase):

    def test_port_is_added_once_for_guests_with_the_key(self):
        self.assertEqual(XML, self.render('none'))
        xml = self.render('read')
        self.assertEqual(1, xml.count('name="org.openstack.ghsched.0"'))
        self.assertEqual(xml, guest_channel.add_channel_port(xml, 'read'))

    def test_guest_is_informed_when_it_starts_and_when_it_arrives(self):
        for number, has_arrived, reasons in (
                (1, False, [lines.STARTED]),
                # A reboot inside the guest, or a resumption.
                (1, False, []),
                (2, False, [lines.STARTED]),
                (3, True, [lines.MOVED])):
            self.part.reconcile_guest(make_running(number=number), has_arrived)
            self.assertEqual(reasons, self.read_reasons())
        self.assertEqual([True, True, False], [
            one.is_aborted for one in self.connection.streams])

    def test_guest_that_a_report_finds_before_its_move_ends_hears_of_it(self):
        self.observe(make_running(mem_bw_min=30))
        self.assertEqual([lines.REPEATED], self.read_reasons())
        self.part.reconcile_guest(make_running(mem_bw_min=30), True)
        self.assertEqual([(lines.MOVED, '')], [
            (line['reason'], line['why']) for line in self.read_lines()])
        self.observe(make_running(mem_bw_min=30))
        self.assertEqual([], self.read_reasons())
        self.assertEqual(1, len(self.connection.streams))

    def test_news_of_a_stream_that_ended_is_in_the_next(self):
        self.part.reconcile_guest(make_running(mem_bw_min=30))
        self.connection.streams[0].room = 0
        self.read_reasons()
        for minimum, expected in ((30, lines.STARTED), (40, lines.CHANGED)):
            self.observe(make_running(mem_bw_min=minimum))
            ended = self.connection.streams[-1]
            ended.callback(ended, stream.HANGUP, ended.kept[1])
            self.observe(make_running(mem_bw_min=minimum))
            self.assertEqual([expected], self.read_reasons())
        ended = self.connection.streams[-1]
        ended.callback(ended, stream.HANGUP, ended.kept[1])
        self.observe(make_running(mem_bw_min=40))
        self.assertEqual([lines.REPEATED], self.read_reasons())

    def test_guest_that_starts_while_the_host_is_read_keeps_its_channel(self):
        for older in ([], [make_running(number=1)]):
            self.part.reconcile_guest(make_running(number=2))
            opened = len(self.connection.streams)
            self.observe(*older)
            self.assertEqual(opened, len(self.connection.streams))
            self.assertEqual([lines.STARTED], self.read_reasons())
            self.observe(make_running(number=2))
            self.assertEqual(opened, len(self.connection.streams))
            self.observe()
            self.assertTrue(self.connection.streams[-1].is_aborted)

    def test_line_is_repeated_after_a_restart_of_libvirtd(self):
        self.part.reconcile_guest(make_running())
        self.assertEqual([lines.STARTED], self.read_reasons())
        lost, self.connection = self.connection, Connection()
        self.observe(make_running())
        self.assertTrue(lost.streams[0].is_aborted)
        self.assertEqual([lines.REPEATED], self.read_reasons())
        self.observe(make_running())
        self.assertEqual(1, len(self.connection.streams))

    def test_channel_is_opened_once_libvirtd_answers(self):
        self.observe(make_running())
        self.read_reasons()
        lost = self.connection

        def refuse():
            raise OSError('no libvirtd')
        with mock.patch.object(self.part, '_connect', refuse), \
                self.assertLogs(channel.LOG):
            self.observe(make_running())
        self.assertTrue(lost.streams[0].is_aborted)
        self.observe(make_running())
        self.assertEqual([lines.REPEATED], self.read_reasons())

    def test_guest_that_ends_before_it_is_listed_has_its_channel_closed(self):
        self.part.reconcile_guest(make_running(number=2))
        self.observe()
        self.assertFalse(self.connection.streams[-1].is_aborted)
        self.observe()
        self.assertTrue(self.connection.streams[-1].is_aborted)

    def test_guest_that_is_not_protected_is_informed_by_the_engine(self):
        engine = SimpleNamespace(not_held={})
        part = guest_channel.make_compute_hooks(SimpleNamespace(
            engine=engine, state_path=self.path.parent, section=None,
            list_running=lambda: [make_running()],
            libvirt_host=SimpleNamespace(
                get_connection=lambda: self.connection)))
        part.reconcile_guest(make_running())
        self.assertEqual([lines.STARTED], self.read_reasons())
        engine.not_held = {
            UUID: 'as HostEngine.reconcile_groups() replaces it'}
        part.observe(compute_hooks.HostSnapshot(
            time=0.0, running=[make_running()]))
        self.assertEqual([lines.UNPROTECTED], self.read_reasons())

    def test_name_of_the_port_elsewhere_in_the_domain_opens_nothing(self):
        self.observe(desired.parse_running_domain(
            XML.replace('<devices>', f'<name>{lines.PORT}</name><devices>'),
            1))
        self.assertEqual([], self.connection.streams)

    def test_malformed_line_is_logged_once(self):
        self.observe(make_running())
        with self.assertLogs(channel.LOG) as logged:
            for data in (b'{\n', b''):
                self.connection.streams[0].incoming = data
                self.read_reasons()
                self.observe(make_running())
                self.part._channels[UUID].logged_at = float('-inf')
        self.assertEqual(1, len(logged.output))

    def test_error_that_ended_a_stream_is_logged_and_an_open_one_is_not(self):
        for is_open, logs in ((True, self.assertNoLogs),
                              (False, self.assertLogs)):
            self.observe(make_running())
            opened = self.part._channels[UUID].stream
            opened.error, opened.is_open = OSError('reset'), is_open
            with logs(channel.LOG):
                self.observe(make_running())

    def test_guest_is_informed_of_changes_and_nothing_else(self):
        for nodes, minimum, held, reasons in (
                ((0,), 30, True, [lines.REPEATED]),
                ((0,), 30, True, []),
                ((0,), 40, True, [lines.CHANGED]),
                ((0,), 40, False, [lines.UNPROTECTED]),
                ((0,), 40, True, [lines.RESTORED])):
            self.not_held.clear()
            if not held:
                self.not_held[UUID] = 'of host seven'
            self.observe(make_running(nodes, mem_bw_min=minimum))
            self.assertEqual(reasons, self.read_reasons())
        self.assertEqual(1, len(self.connection.streams))

    def test_channel_that_ended_is_opened_again(self):
        self.observe(make_running())
        self.read_reasons()
        ended, = self.connection.streams
        ended.callback(ended, stream.HANGUP, ended.kept[1])
        self.observe(make_running())
        self.assertEqual([lines.REPEATED], self.read_reasons())
        self.assertEqual(2, len(self.connection.streams))

    def test_channel_of_a_guest_that_is_gone_is_closed(self):
        self.observe(make_running())
        self.observe()
        self.assertTrue(self.connection.streams[0].is_aborted)
        self.assertEqual({}, self.part._channels)

    def test_guest_that_has_just_stopped_or_left_is_no_problem(self):
        for code in stream.GONE:
            self.connection.error = None
            self.observe(make_running(number=code))
            ended = self.connection.streams[-1]
            ended.callback(ended, stream.HANGUP, ended.kept[1])
            self.connection.error = LibvirtError(code, 'Domain not found')
            self.part._channels[UUID].stream.error = self.connection.error
            with self.assertNoLogs(channel.LOG):
                self.observe(make_running(number=code))
            self.assertEqual({}, self.part._channels)
        self.connection.error = LibvirtError(1, 'internal error')
        with self.assertLogs(channel.LOG):
            self.observe(make_running())

    def test_guest_without_a_channel_and_errors_disturb_nobody(self):
        self.connection.error = OSError('no port')
        with self.assertLogs(channel.LOG) as logged:
            for _ in range(5):
                self.observe(make_running())
                self.part.reconcile_guest(make_running())
        self.assertLessEqual(len(logged.output), 6)
        self.connection.error = None
        self.observe(make_running())
        self.assertEqual([lines.REPEATED], self.read_reasons())
        self.observe(desired.parse_running_domain(XML, 1))
        self.assertEqual([], self.read_reasons())

    def test_pressure_is_in_the_diagnostics(self):
        guest = SimpleNamespace(uuid=UUID)
        self.assertEqual({}, self.part.make_diagnostics(guest, {}))
        for mode, found in (('read', None),
                            ('write', pressure.Pressure(2.0))):
            self.part.reconcile_guest(make_running(
                mode=mode, number=len(self.connection.streams)))
            self.connection.streams[-1].incoming = test_stream.PRESSURE
            self.read_reasons()
            self.assertEqual(found, pressure.FORMAT.parse(
                self.part.make_diagnostics(guest, {})))

    def test_pressure_is_in_the_file_until_it_is_old(self):
        self.observe(make_running())
        self.assertFalse(self.path.exists())
        self.connection.streams[0].incoming = test_stream.PRESSURE
        self.read_reasons()
        for guests, found in (([make_running()], {UUID: pressure.Pressure(
                2.0)}), ([], {})):
            self.observe(*guests)
            self.assertEqual(found, {
                uuid: one.pressure for uuid, one in pressure.read_pressures(
                    self.path, self.path.stat().st_mtime).items()})


class NewsTest(ChannelTestCase):
    """Moved vCPUs, changes and lost protection."""

    def test_guest_moves_its_vcpus_between_its_classes(self):
        self.observe(make_running(mode='write', mem_bw_min=30))
        self.read_reasons()
        self.wish(latency='0-1')
        self.assertEqual([(UUID, {'latency': '0-1'})], self.asked)
        self.assertEqual([lines.CHANGED], self.read_reasons())
        self.part.serve_vcpu_move_requests()
        self.assertEqual(1, len(self.asked))
        # Nothing changes, and the guest waits for an answer.
        self.wish(latency='0-1')
        self.assertEqual([lines.REPEATED], self.read_reasons())
        self.wish(odd='0')
        self.assertEqual([lines.REFUSED], self.read_reasons())
        with self.assertLogs(channel.LOG):
            self.wish(broken='0')
        self.assertEqual([lines.REFUSED], self.read_reasons())

    def test_request_on_a_stream_that_ended_is_dropped(self):
        self.observe(make_running(mode='write'))
        one = self.connection.streams[-1]
        one.incoming = (b'{"ghsched":1,"classes":{"latency":"0"}}\n'
                        + b'x' * (stream.MAX_RECEIVED + 1))
        one.callback(one, stream.READABLE, one.kept[1])
        self.part.serve_vcpu_move_requests()
        self.assertEqual([], self.asked)
        self.assertEqual(1, len(self.connection.streams))

    def test_stream_that_ends_with_the_answer_ends_nothing_else(self):
        self.observe(make_running(mode='write'))
        one = self.connection.streams[-1]
        self.read_reasons()
        one.incoming = b'{"ghsched":1,"classes":{"odd":"0"}}\n'
        one.callback(one, stream.READABLE, one.kept[1])
        one.eventUpdateCallback = mock.Mock(side_effect=OSError('gone'))
        with self.assertLogs(channel.LOG):
            self.part.serve_vcpu_move_requests()

    def test_snapshot_of_before_a_move_informs_of_nothing(self):
        self.observe(make_running(mode='write', mem_bw_min=30))
        self.wish(latency='0-1')
        self.read_reasons()
        self.observe(make_running(mode='write', mem_bw_min=30),
                     changed=[self.running[UUID]])
        self.assertEqual([], self.read_reasons())

    def test_changed_guest_hears_at_once_what_has_changed(self):
        usage = dataclasses.replace(
            test_lines.usage(n0=test_lines.LIMITS),
            guest=view.MonitoredGuest('one', UUID))
        self.observe(make_running(mem_bw_min=30, mem_bw_max=60),
                     limits=SimpleNamespace(guests=[usage], nodes=[]))
        self.assertEqual([30], [
            one['mem_bw_min'] for line in self.read_lines()
            for one in line['effective']])
        for nodes, limits, reason, why in (
                ((0,), {'mem_bw_min': 40, 'mem_bw_max': 60}, lines.CHANGED,
                 'changed in the policy: mem_bw_min'),
                ((1,), {'mem_bw_min': 40, 'mem_bw_max': 60}, lines.MOVED,
                 'the server runs on other NUMA nodes of its host')):
            self.part.reconcile_guest(make_running(nodes, **limits))
            # The limits of before the change are not sent.
            self.assertEqual([(reason, why, [])], [
                (line['reason'], line['why'], line['effective'])
                for line in self.read_lines()])
            self.assertEqual([UUID], self.measured.pop())

    def test_guest_hears_within_a_second_whether_it_is_protected(self):
        self.observe(make_running(mem_bw_min=30))
        self.read_reasons()
        for not_held, reason, why in (
                ({UUID: 'of host seven'}, lines.UNPROTECTED,
                 'the host cannot enforce the policy now; its operators see '
                 'the reason'),
                ({}, lines.RESTORED, 'the host enforces the policy again')):
            self.not_held.clear()
            self.not_held.update(not_held)
            self.part.inform_of_enforcement_changes()
            self.assertEqual([(reason, why)], [
                (line['reason'], line['why']) for line in self.read_lines()])
            self.part.inform_of_enforcement_changes()
            self.assertEqual([], self.read_reasons())
        # A stream that has ended waits for the next report.
        ended = self.connection.streams[-1]
        ended.callback(ended, stream.HANGUP, ended.kept[1])
        self.not_held[UUID] = 'of host seven'
        self.part.inform_of_enforcement_changes()
        self.assertEqual(1, len(self.connection.streams))
        # A guest that has just stopped.
        self.observe(make_running(mem_bw_min=30))
        self.running.clear()
        self.not_held.clear()
        self.part.inform_of_enforcement_changes()

    def test_guest_that_cannot_be_read_is_informed_of_protection_once(self):
        for broken in (lambda xml: '',
                       lambda xml: xml.replace('host="0"', 'host="odd"')):
            self.observe(make_running(mem_bw_min=30))
            self.read_reasons()
            whole = self.running[UUID]
            self.running[UUID] = dataclasses.replace(
                whole, xml=broken(whole.xml))
            self.not_held[UUID] = 'its policy cannot be read'
            for reasons in ([lines.UNPROTECTED], [], []):
                self.part.inform_of_enforcement_changes()
                self.observe(self.running[UUID])
                self.assertEqual(reasons, self.read_reasons())
            self.assertEqual(1, len(self.measured))
            self.measured.clear()
            self.not_held.clear()
            self.running[UUID] = whole
            self.part.inform_of_enforcement_changes()
            self.assertEqual(
                [(lines.RESTORED, 30)],
                [(line['reason'], line['policy']['nodes'][0]['mem_bw_min'])
                 for line in self.read_lines()])
            self.measured.clear()

    def test_guests_with_news_are_listed_once(self):
        guests = [desired.parse_running_domain(
            make_running(mem_bw_min=30).xml.replace(UUID, f'guest{number}'),
            number) for number in range(5)]
        self.observe(*guests)
        self.read_reasons()
        self.assertEqual(0, self.listed)
        for inform in (self.part.inform_of_enforcement_changes,
                       lambda: self.observe(*guests)):
            self.listed = 0
            self.not_held.update(
                {one.domain.uuid: 'of host seven' for one in guests})
            inform()
            self.assertEqual([lines.UNPROTECTED] * 5, self.read_reasons())
            self.assertEqual(1, self.listed)
            self.not_held.clear()
            self.part.inform_of_enforcement_changes()
            self.part.inform_of_enforcement_changes()
            self.assertEqual(2, self.listed)
            self.read_reasons()

    def test_guest_that_may_only_read_moves_nothing(self):
        self.observe(make_running(mode='read'))
        self.wish(latency='0-1')
        self.assertEqual([], self.asked)

    def test_guest_moves_its_vcpus_six_times_a_minute(self):
        self.observe(make_running(mode='write'))
        for _count in range(8):
            self.wish(latency='0-1')
        self.assertEqual(channel.MOVES_PER_MINUTE, len(self.asked))
        self.assertIn(lines.REFUSED, self.read_reasons())


class SetClassesTest(base.TestCase):
    """Moves of vCPUs of a running domain."""

    FLAVOR = {'ghsched:vcpu_classes': 'a:0', 'ghsched:mem_bw_min.a': '30',
              'ghsched:mem_bw_max': '50'}

    def setUp(self):
        super().setUp()
        self.xml = metadata.write_policy(
            f'<domain><uuid>{UUID}</uuid><vcpu>3</vcpu></domain>',
            metadata.DomainPolicy(
                policy.parse_policy(self.FLAVOR, 1, 3), (0,)))
        self.domain = mock.Mock()
        self.domain.jobInfo.return_value = [0]
        self.domain.XMLDesc.side_effect = lambda _flags: self.xml
        self.domain.setMetadata.side_effect = self.write
        self.engine = mock.Mock()
        self.services = SimpleNamespace(
            engine=self.engine, changing=mock.MagicMock(),
            find_running=lambda _uuid: desired.parse_running_domain(
                self.xml, 7),
            libvirt_host=SimpleNamespace(get_connection=lambda: mock.Mock(
                lookupByUUIDString=lambda _uuid: self.domain)))

    def write(self, _kind, text, _prefix, _namespace, flags):
        self.assertEqual(1, flags)
        self.xml = self.xml.replace(
            self.xml[self.xml.index('<metadata>'):
                     self.xml.index('</metadata>')],
            '<metadata>' + text.replace('<', '<ghsched:').replace(
                '<ghsched:/', '</ghsched:').replace(
                    '<ghsched:policy', f'<ghsched:policy xmlns:ghsched='
                    f'"{metadata.NAMESPACE}"'))

    def members(self):
        return {one.name: set(one.current) for one in metadata.read_policy(
            self.xml).policy.classes}

    def move(self, **asked):
        return guest_channel.set_vcpu_classes(self.services, UUID, asked)

    def test_domain_keeps_the_classes_and_the_engine_enforces_them(self):
        moved = self.move(a='0,2')
        self.assertEqual({'a': {0, 2}, 'default': {1}}, self.members())
        self.engine.reconcile_guest.assert_called_once_with(moved)

    def test_refusal_by_the_kernel_restores_the_classes(self):
        self.engine.reconcile_guest.side_effect = [OSError('no'), None]
        self.assertRaises(OSError, self.move, a='0,2')
        self.assertEqual({'a': {0}, 'default': {1, 2}}, self.members())
        self.assertEqual(2, self.engine.reconcile_guest.call_count)

    def test_server_that_is_moved_keeps_its_classes(self):
        self.domain.jobInfo.return_value = [2]
        error = self.assertRaises(class_moves.NotMovedError, self.move, a='1')
        self.assertIn('is being moved', str(error))
        self.services.changing.__enter__.assert_not_called()

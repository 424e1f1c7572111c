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


import contextlib
from pathlib import Path
import threading
from unittest import mock

from fixtures import FakeLogger
from fixtures import TempDir

from ghsched_nova.features.blame import blame_cap
from ghsched_nova.features.blame import host_blame
from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.tests.fixtures import blame_cases
from ghsched_nova.tests.fixtures import blame_hosts
from ghsched_nova.tests.fixtures import crowded_host
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

UUID = '3f0c6a51-16d5-4d5e-8a0c-1f5b2b0d7c11'
XML = crowded_host.XML.format(name='guest', uuid=UUID, vcpus=2, node=0)


def running(*nodes, xml=XML, **more):
    policy = metadata.DomainPolicy(
        GuestPolicy(nodes=nodes, monitor=True), tuple(range(len(nodes))),
        **more)
    return desired.Running(model.Domain(UUID, 7, 'guest'),
                           metadata.write_policy(xml, policy))


class LowerCapTest(base.TestCase):

    def test_cap_of_a_guest_keeps_its_guarantee(self):
        for policy, maximum in ((NodePolicy(), 10),
                                (NodePolicy(minimum=25), 25),
                                (NodePolicy(minimum=5, maximum=40), 10)):
            found = blame_cap.make_capped_domain(running(policy), {0}).policy
            self.assertEqual((policy.minimum, maximum), (
                found.policy.nodes[0].minimum, found.policy.nodes[0].maximum))

    def test_cap_is_on_the_nodes_of_the_server_alone(self):
        found = blame_cap.make_capped_domain(
            running(NodePolicy(maximum=80), NodePolicy(maximum=90)), {1})
        self.assertEqual([80, 10], [
            one.maximum for one in found.policy.policy.nodes])

    def test_guest_without_a_policy_has_one_for_the_trial(self):
        before = running()
        found = blame_cap.make_capped_domain(before, {1, 0}).policy
        self.assertEqual(((0, 1), [10, 10], True), (
            found.host_nodes, [one.maximum for one in found.policy.nodes],
            found.policy.monitor))
        self.assertFalse(before.needs_control_group)

    def test_guest_whose_limits_are_not_its_own_is_not_capped(self):
        tuned = XML.replace('</domain>', (
            '<cputune><memorytune vcpus="0-1"><node id="0" bandwidth="60"/>'
            '</memorytune></cputune></domain>'))
        for one, reason in (
                (running(NodePolicy(maximum=50), shared=True), 'shares'),
                (running(NodePolicy(minimum=50, maximum=50)), 'guarantee'),
                (running(NodePolicy(maximum=9)), 'guarantee'),
                (desired.Running(model.Domain(UUID, 7, 'guest'), tuned),
                 'libvirt')):
            error = self.assertRaises(blame_cap.NotCapped,
                                      blame_cap.make_capped_domain, one, {0})
            self.assertIn(reason, str(error))


class CapperTest(base.TestCase):

    def setUp(self):
        super().setUp()
        case = blame_cases.make_case('cap', 1)
        self.host = blame_hosts.open_host(
            case, 'cap', self.enterContext(contextlib.ExitStack()))
        self.before = self.host.show()
        self.guests = [one for one in case.tenants if one.node == 0]
        self.told = []
        self.capper = blame_cap.Capper(
            self.host.engine, threading.RLock(), self.host.find,
            lambda event, uuid: self.told.append((event, uuid)))

    def cap(self, number=0):
        self.capper.cap(self.guests[number].uuid, frozenset({0}))

    def test_second_cap_releases_the_first(self):
        self.cap(0)
        once = self.host.show()
        self.cap(1)
        first, second = (one.uuid for one in self.guests[:2])
        self.assertEqual([('start', first), ('end', first),
                          ('start', second)], self.told)
        self.assertNotEqual(once, self.host.show())
        self.capper.restore_limits()
        self.assertEqual(self.before, self.host.show())
        self.assertEqual(('end', second), self.told[-1])

    def test_cap_ends_by_itself_after_its_limit(self):
        self.patch(blame_cap, 'CAP_LIMIT_S', 0.01)
        ended = threading.Event()
        self.capper.report = lambda event, _uuid: (
            ended.set() if event == 'end' else None)
        self.cap()
        self.assertTrue(ended.wait(base.GIVE_UP_S))
        self.assertEqual(self.before, self.host.show())

    def test_cap_that_the_kernel_refuses_leaves_nothing(self):
        def refuse(*_operation):
            raise fs.GroupError('no')

        self.host.engine.run_reconcile = mock.Mock(side_effect=refuse)
        self.useFixture(FakeLogger())
        self.assertRaises(blame_cap.NotCapped, self.cap)
        self.host.engine.run_reconcile = self.host.apply
        self.assertEqual(self.before, self.host.show())
        self.assertIsNone(self.capper._timer)

    def test_guest_that_has_ended_is_not_capped(self):
        self.assertRaises(blame_cap.NotCapped, self.capper.cap, UUID, {0})
        self.assertEqual([], self.told)

    def test_release_that_fails_is_left_to_the_next_report(self):
        self.cap(next(number for number, one in enumerate(self.guests)
                      if one.policy))
        log = self.useFixture(FakeLogger())
        self.host.engine.run_reconcile = mock.Mock(
            side_effect=fs.GroupError('no'))
        self.capper.restore_limits()
        self.assertIn('retrying in the next periodic task', log.output)
        self.host.engine.run_reconcile = self.host.apply
        self.host.engine.reconcile_groups()
        self.assertEqual(self.before, self.host.show())

    def test_caps_under_native_threads_are_released_in_turn(self):
        def work(number):
            with contextlib.suppress(blame_cap.NotCapped):
                self.cap(number)
            self.capper.restore_limits()

        threads = [threading.Thread(target=work, args=(number % 2,))
                   for number in range(6)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        capped = ''
        for event, uuid in self.told:
            self.assertEqual('' if event == 'start' else uuid, capped)
            capped = uuid if event == 'start' else ''
        self.assertEqual(self.before, self.host.show())


class TrialLockTest(base.TestCase):

    def test_two_proofs_on_one_host_are_refused(self):
        host = blame_hosts.open_host(
            blame_cases.make_case('cap', 1), 'cap',
            self.enterContext(contextlib.ExitStack()))
        with blame_cap.guest_cap_lock(host.root):
            error = self.assertRaises(
                blame_cap.NotCapped,
                blame_cap.guest_cap_lock(host.root).__enter__)
            self.assertIn('--prove', str(error))
        with blame_cap.guest_cap_lock(host.root):
            pass

    def test_host_without_resctrl_is_refused(self):
        self.assertRaises(
            blame_cap.NotCapped, blame_cap.guest_cap_lock(
                Path(self.useFixture(TempDir()).path)).__enter__)


class PausesTest(base.TestCase):
    """Investigations one after the other, on one host."""

    def setUp(self):
        super().setUp()
        case = blame_cases.make_case('cap', 1)
        host = blame_hosts.open_host(
            case, 'cap', self.enterContext(contextlib.ExitStack()))
        self.guests = [one.uuid for one in case.tenants if one.node == 0]
        self.now = 0.0
        self.capper = blame_cap.Capper(
            host.engine, threading.RLock(), host.find,
            pauses=blame_cap.Pauses(lambda: self.now))
        self.investigator = host_blame.Investigator(
            self.capper, 'host', host.list_running, lambda: ())

    def investigate(self, *uuids, prove=True):
        """Return why each guest was not capped, in one investigation."""
        def cap_all(_server, _prove):
            found = []
            for uuid in uuids:
                try:
                    self.capper.cap(uuid, {0})
                    found.append('')
                except blame_cap.NotCapped as error:
                    found.append(str(error))
            self.now += 56
            return found

        with mock.patch.object(host_blame.Investigator, '_investigate',
                               side_effect=cap_all):
            return self.investigator.investigate_server('x', prove)

    def test_host_has_a_pause_after_caps(self):
        one = self.guests[0]
        self.assertEqual(['', ''], self.investigate(one, one))
        error = self.assertRaises(host_blame.NotInvestigated, self.investigate,
                                  *self.guests)
        self.assertIn('try again in 300 s', str(error))
        self.assertEqual([], self.investigate(prove=False))
        self.now += 300
        self.investigate()

    def test_investigation_without_caps_needs_no_pause(self):
        self.investigate()
        self.assertEqual([''], self.investigate(self.guests[0]))

    def test_guest_has_a_longer_pause_than_the_host(self):
        one, other = self.guests[:2]
        self.investigate(one)
        self.now += 300
        refused, capped = self.investigate(one, other)
        self.assertIn('again in 600 s', refused)
        self.assertEqual('', capped)
        self.now += 600
        self.assertEqual('', self.investigate(one)[0])

    def test_guest_is_capped_a_small_part_of_the_time(self):
        ended = 100 * [0]
        one = self.guests[0]
        for number, _slot in enumerate(ended):
            with contextlib.suppress(host_blame.NotInvestigated):
                ended[number] = self.investigate(one) == ['']
            self.now += 10
        self.assertLess(56 * sum(ended), self.now / 10)

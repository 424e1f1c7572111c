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

"""The order of the steps, and the way back from each.

Each of Nova, Placement and the host keeps a state and can fail at any call,
so that what is left after any failure can be compared.
"""

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.live_change import change
from ghsched_nova.features.live_change import messages
from ghsched_placement.flavor import policy as policies
from ghsched_placement.providers import names
from ghsched_placement.tests import base

ROOT = '3a0e6a0c-7e0a-4b0f-9e59-8d1c2a6a2f11'
NODE = names.make_numa_provider_uuid(ROOT, 1), names.MEM_BW_PCT
SPECS = {'ghsched:mem_bw_min': '30', 'ghsched:mem_bw_max': '60'}
WISH = {'ghsched:mem_bw_min': '20', 'ghsched:mem_bw_max': '70'}


class World:
    """Three places with a state each.

    :ivar calls: what was written, and attempts that failed.
    :ivar failing: what happens at a write, by its name, one after the other;
        None lets it succeed.
    """

    def __init__(self, running=True):
        self.specs, self.task_state = dict(SPECS), None
        self.share = 30
        self.policy = self.packed(SPECS) if running else None
        self.running = running
        self.calls, self.failing = [], {}

    def packed(self, specs):
        return messages.pack_policy(policies.parse_policy(specs, 1), (1,))

    def state(self):
        return (dict(self.specs), self.task_state, self.share, self.policy)

    def write(self, name):
        self.calls.append(name)
        answers = self.failing.get(name, [])
        error = answers.pop(0) if answers else None
        if error is not None:
            raise error

    def change(self, wish=None, dry_run=False):
        return change.PolicyChanger(
            Records(self), lambda guest: GuestAllocation(self), Host(self),
            'min').change_policy(WISH if wish is None else wish, dry_run)


class Records:

    def __init__(self, world):
        self.world = world

    def read_guest(self):
        world = self.world
        return change.GuestRecord('uuid', 'name', 'host_a', ROOT, (1,),
                                  dict(world.specs), world.running)

    def lock_server(self):
        self.world.write('lock')
        self.world.task_state = 'locked'
        return 'lock'

    def check_lock(self):
        """The lock is never taken over here."""

    def unlock_server(self):
        if self.world.task_state:
            self.world.write('unlock')
            self.world.task_state = None
        return ''

    def save_extra_specs(self, extra_specs):
        self.world.write('save')
        self.world.specs, self.world.task_state = dict(extra_specs), None


class GuestAllocation:

    def __init__(self, world):
        self.world = world

    def read_allocated_amounts(self):
        return {NODE: self.world.share}

    def write_amounts(self, wanted):
        if wanted == self.read_allocated_amounts():
            return False
        self.world.write('put')
        self.world.share = wanted[NODE]
        return True

    def check_capacity(self, wanted):
        if wanted[NODE] > 50:
            raise errors.Refused('full')

    def check_policy_traits(self, compute_node_uuid, policy):
        assert compute_node_uuid == ROOT


class Host:

    def __init__(self, world):
        self.world, self.void = world, set()

    def check_policy(self, guest, policy):
        self.world.failing.get('check') and self.world.write('check')
        return {'policy': self.world.policy, 'effective': [],
                'same': self.world.policy == policy}

    def set_policy(self, guest, policy, token, lock):
        self.world.write('set')
        assert lock == 'lock'
        assert token not in self.void
        self.world.policy = list(policy)

    def cancel_call(self, guest, void):
        self.world.failing.get('policy_of') and self.world.write('policy_of')
        self.void.add(void)
        return self.world.policy


class LiveChangeTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.world = World()
        self.before = self.world.state()

    def assert_done(self):
        self.assertEqual(
            ({**SPECS, **WISH}, None, 20, self.world.packed(WISH)),
            self.world.state())

    def test_placement_then_the_host_then_the_records(self):
        self.world.change({'ghsched:mem_bw_min': '40'})
        self.assertEqual(['lock', 'put', 'set', 'save'], self.world.calls)
        self.assertEqual(40, self.world.share)

    def test_a_share_is_given_up_when_the_host_has_taken_the_policy(self):
        self.world.change()
        self.assertEqual(['lock', 'set', 'put', 'save'], self.world.calls)
        self.assert_done()

    def test_a_refusal_of_the_host_does_not_need_the_share_again(self):
        self.world.failing['set'] = [errors.Refused('no')]
        self.assertRaises(errors.Refused, self.world.change)
        self.assertNotIn('put', self.world.calls)
        self.assertEqual(self.before, self.world.state())

    def test_once_more_writes_nothing(self):
        self.world.change()
        self.world.calls.clear()
        self.assertFalse(self.world.change().needed)
        self.assertEqual([], self.world.calls)

    def test_leftovers_of_a_killed_command_are_completed(self):
        for broken in ({'specs': {**SPECS, **WISH}}, {'share': 20},
                       {'policy': self.world.packed(WISH)}):
            self.world = World()
            vars(self.world).update(broken)
            self.assertTrue(self.world.change().needed)
            self.assert_done()

    def test_a_stopped_guest(self):
        self.world = World(running=False)
        self.world.change()
        self.assertEqual(['lock', 'put', 'save'], self.world.calls)

    def test_a_dry_run(self):
        self.assertTrue(self.world.change(dry_run=True).needed)
        self.assertRaises(errors.Refused, self.world.change,
                          {'ghsched:mem_bw_min': '51'}, True)
        self.assertEqual(([], self.before),
                         (self.world.calls, self.world.state()))

    def test_a_guest_without_a_policy(self):
        self.world.specs = {}
        error = self.assertRaises(policies.PolicyError, self.world.change)
        self.assertTrue(error.key.startswith('ghsched:mem_bw_'))
        self.assertRaises(policies.PolicyError, self.world.change,
                          {'ghsched:mem_bw_min': None})

    def test_each_refusal_leaves_all_as_it_was(self):
        for name in ('check', 'lock', 'put', 'set', 'save'):
            self.world = World()
            self.world.failing[name] = [errors.Refused(f'{name} said no')]
            error = self.assertRaises(errors.Refused, self.world.change)
            self.assertEqual(f'{name} said no', str(error))
            self.assertEqual(self.before, self.world.state())

    def test_an_error_that_nobody_foresaw(self):
        self.world.failing['save'] = [KeyError('x')]
        error = self.assertRaises(errors.Refused, self.world.change)
        self.assertIn('KeyError', str(error))
        self.assertEqual(self.before, self.world.state())

    def test_an_interruption_is_one_after_all_was_put_back(self):
        for name in ('put', 'set', 'save'):
            self.world = World()
            self.world.failing[name] = [KeyboardInterrupt()]
            self.assertRaises(KeyboardInterrupt, self.world.change)
            self.assertEqual(self.before, self.world.state())

    def test_each_step_back_that_fails_is_reported(self):
        self.world.failing = {
            'save': [errors.Refused('no database')],
            'set': [None, errors.Refused('the kernel refused')],
            'put': [None, None, errors.Refused('full')],
            'unlock': [RuntimeError('gone')]}
        error = self.assertRaises(errors.RollbackIncomplete, self.world.change)
        self.assertEqual('no database', error.reason)
        host, lock = error.manual_steps
        self.assertIn('hard reboot', host)
        self.assertIn('RuntimeError: gone', lock)
        self.assertEqual(3, len(str(error).splitlines()))
        # The larger share is allocated; nothing else is written.
        self.assertEqual((30, 20), (self.world.share,
                                    self.world.policy[0]['min']))

    def test_share_that_another_guest_has_taken_leaves_the_lower_policy(self):
        for running in (True, False):
            self.world = World(running)
            self.world.failing = {
                'save': [errors.Refused('no database')],
                'put': [None, errors.Refused('full')]}
            error = self.assertRaises(errors.RollbackIncomplete,
                                      self.world.change)
            left, = error.manual_steps
            self.assertIn('(full)', left)
            self.assertIn('with the new values', left)
            self.assertEqual(20, self.world.share)
            self.assertEqual(SPECS, self.world.specs)
            if running:
                self.assertEqual(self.world.packed(WISH), self.world.policy)
            # What the text says can be done.
            self.world.change()
            self.assertEqual({**SPECS, **WISH}, self.world.specs)
            self.assertFalse(self.world.change().needed)

    def test_share_is_allocated_again_before_the_host_enforces_it(self):
        self.world.failing = {'save': [errors.Refused('no database')]}
        self.assertRaises(errors.Refused, self.world.change)
        self.assertEqual(['lock', 'set', 'put', 'save', 'put', 'set',
                          'unlock'], self.world.calls)
        self.assertEqual(self.before, self.world.state())

    def test_records_that_could_not_be_put_back_are_reported_as_well(self):
        self.world.failing = {
            'save': [errors.RollbackIncomplete('no database',
                                               ['repair the records'])],
            'put': [None, errors.Refused('full')]}
        error = self.assertRaises(errors.RollbackIncomplete, self.world.change)
        self.assertEqual('no database', error.reason)
        records, placement = error.manual_steps
        self.assertEqual('repair the records', records)
        self.assertIn('full', placement)
        self.assertIsNone(self.world.task_state)

    def test_room_stays_for_what_the_host_could_not_put_back(self):
        wish = {'ghsched:mem_bw_min': '50'}
        for again, share, policy in (
                (errors.Refused('the kernel refused'), 50, 50),
                (errors.HostSilent('silent'), 50, 50), (None, 30, 30)):
            world = World()
            done = Host.set_policy

            def half(host, *args, world=world, done=done):
                first = 'set' not in world.calls
                done(host, *args)
                if first:
                    raise errors.HostRollbackFailed('refused, and stuck')

            world.failing = {'set': [None, again]}
            with mock.patch.object(Host, 'set_policy', half):
                error = self.assertRaises(
                    errors.RollbackIncomplete if again else errors.Refused,
                    world.change, wish)
            self.assertIn('stuck', str(error))
            self.assertEqual((dict(SPECS), None, share),
                             world.state()[:3])
            self.assertEqual(policy, world.policy[0]['min'])

    def test_a_guest_that_is_gone_has_nothing_left_over(self):
        self.world.failing = {
            'save': [errors.GuestGone('deleted')], 'put': [
                None, errors.GuestGone('deleted')],
            'set': [None, errors.GuestGone('deleted')]}
        self.assertRaises(errors.GuestGone, self.world.change)


class SilenceTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.world = World()
        self.before = self.world.state()
        self.silent = errors.HostSilent('no answer')

    def test_a_host_that_does_not_answer_at_all(self):
        self.world.failing['check'] = [self.silent]
        self.assertRaises(errors.Refused, self.world.change)
        self.assertEqual(self.before, self.world.state())

    def test_it_has_done_nothing(self):
        self.world.failing['set'] = [self.silent]
        self.assertRaises(errors.Refused, self.world.change)
        self.assertEqual(self.before, self.world.state())

    def test_it_has_done_it(self):
        done = Host.set_policy

        def lose_the_answer(host, *args):
            done(host, *args)
            raise self.silent

        self.patch(Host, 'set_policy', lose_the_answer)
        self.world.change()
        self.assertEqual({**SPECS, **WISH}, self.world.specs)

    def test_nobody_knows(self):
        self.world.failing = {'set': [self.silent],
                              'policy_of': [self.silent]}
        error = self.assertRaises(errors.RollbackIncomplete, self.world.change)
        self.assertIn('run this command again', str(error))
        self.assertEqual((dict(SPECS), None, 30), self.world.state()[:3])

    @given(data=st.data())
    def test_all_or_nothing_or_reported(self, data):
        """Whatever fails, and however often."""
        world = World()
        for name in ('put', 'set', 'save', 'policy_of'):
            world.failing[name] = data.draw(st.lists(st.sampled_from(
                (None, errors.Refused('no'), errors.HostSilent('silent'))
                if name in ('set', 'policy_of')
                else (None, errors.Refused('no'))), max_size=3))
        told = None
        try:
            world.change({'ghsched:mem_bw_min': '50'})
        except (errors.Refused, errors.RollbackIncomplete) as error:
            told = error
        if told is None or isinstance(told, errors.Refused):
            minimum = int(world.specs['ghsched:mem_bw_min'])
            self.assertEqual(50 if told is None else 30, minimum)
            self.assertEqual(minimum, world.share)
            self.assertEqual(minimum, world.policy[0]['min'])
        else:
            self.assertTrue(told.manual_steps)
        # Nobody else can be given what the host may hold.
        self.assertGreaterEqual(world.share, world.policy[0]['min'])
        self.assertIsNone(world.task_state)

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


import random

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.rebalance import affinity
from ghsched_placement.features.rebalance.affinity import Member
from ghsched_placement.tests import base

SETTINGS = affinity.AffinitySettings(half_life=60, least=1, delay=120)
_NAMES = 'abcdefgh'
_LOADS = st.integers(0, 64).map(lambda eighths: eighths / 8)


@st.composite
def clouds(draw):
    """Members, what they said in a minute, and bounds."""
    names = draw(st.lists(st.sampled_from(_NAMES), unique=True, min_size=1))
    members = [Member(name, draw(_LOADS), draw(st.integers(0, 64)),
                      draw(st.sampled_from(['', '', 'web', 'db'])))
               for name in names]
    sent = draw(st.dictionaries(
        st.tuples(st.sampled_from(_NAMES), st.sampled_from(_NAMES)),
        st.integers(0, 10 ** 6)))
    bounds = affinity.Bounds(draw(_LOADS), draw(st.integers(1, 8)),
                             draw(st.integers(0, 128)))
    return members, sent, bounds


def tied(sent, now=60.0, settings=SETTINGS):
    return affinity.update_traffic_averages(affinity.TrafficAverages(), sent,
                                            now, settings)


def list_members(found):
    return {group.members for group in found}


class TiesTest(base.TestCase):

    @given(clouds())
    def test_who_talks_to_whom_does_not_matter(self, cloud):
        _members, sent, _bounds = cloud
        turned = {(other, one): count for (one, other), count in sent.items()}
        ties = tied(sent)
        self.assertEqual(ties, tied(turned))
        for one, other in sent:
            self.assertEqual(ties.get_mean_traffic(one, other),
                             ties.get_mean_traffic(other, one))

    @given(st.floats(1, 1e12), st.floats(0.1, 600), st.floats(0.1, 600))
    def test_decay_does_not_depend_on_how_often_one_looks(
            self, strength, first, second):
        settings = affinity.AffinitySettings(half_life=60, least=0, delay=1)
        before = affinity.TrafficAverages(
            0, {('a', 'b'): affinity.PairTraffic(strength, 0)})
        once = affinity.update_traffic_averages(before, {}, first + second,
                                                settings)
        twice = affinity.update_traffic_averages(
            affinity.update_traffic_averages(before, {}, first, settings), {},
            first + second, settings)
        self.assertAlmostEqual(
            1, once.by_pair['a', 'b'].strength
            / twice.by_pair['a', 'b'].strength)

    def test_unused_weight_halves_with_each_half_life(self):
        before = affinity.TrafficAverages(
            0, {('a', 'b'): affinity.PairTraffic(40.0, 0)})
        for half_lives, expected in ((1, 20.0), (2, 10.0), (3, 5.0)):
            found = affinity.update_traffic_averages(
                before, {}, 60.0 * half_lives, SETTINGS)
            self.assertEqual(expected, found.get_mean_traffic('b', 'a'))

    @given(st.lists(st.integers(0, 1000), min_size=1))
    def test_strength_stays_between_the_rates_that_were_seen(self, rates):
        ties = affinity.TrafficAverages()
        for turn, rate in enumerate(rates, 1):
            ties = affinity.update_traffic_averages(ties, {
                ('a', 'b'): rate * 10}, turn * 10.0, SETTINGS)
        self.assertLessEqual(ties.get_mean_traffic('a', 'b'),
                             max(rates) + 1e-9)

    def test_a_tie_ends_a_while_after_it_has_decayed(self):
        ties = tied({('a', 'b'): 240})          # 2 bytes per second by now
        # 1, or just below.
        ties = affinity.update_traffic_averages(ties, {}, 121, SETTINGS)
        self.assertEqual(0.0, ties.get_mean_traffic('a', 'b'))
        self.assertEqual({('a', 'b')}, set(ties.by_pair))
        self.assertEqual(60, ties.by_pair['a', 'b'].alive)
        self.assertEqual({},
                         affinity.update_traffic_averages(
                             ties, {}, 180, SETTINGS).by_pair)

    def test_a_clock_that_stands_still_changes_nothing(self):
        ties = tied({('a', 'b'): 240})
        self.assertIs(
            ties,
            affinity.update_traffic_averages(ties, {('a', 'b'): 9}, 60,
                                             SETTINGS))


class GroupsTest(base.TestCase):

    @given(clouds(), st.randoms(use_true_random=False))
    def test_order_does_not_matter(self, cloud, order: random.Random):
        members, sent, bounds = cloud
        shuffled, items = list(members), list(sent.items())
        order.shuffle(shuffled)
        order.shuffle(items)
        self.assertEqual(
            affinity.group_guests_by_traffic(members, tied(sent), bounds),
            affinity.group_guests_by_traffic(shuffled, tied(dict(items)),
                                             bounds))

    @given(clouds())
    def test_every_guest_is_in_one_group_within_bounds(self, cloud):
        members, sent, bounds = cloud
        found = affinity.group_guests_by_traffic(members, tied(sent), bounds)
        self.assertEqual(
            sorted(member.uuid for member in members),
            sorted(uuid for group in found for uuid in group.members))
        loads = {member.uuid: member.load for member in members}
        for group in found:
            self.assertIn(group.lead, group.members)
            self.assertEqual(group.load, sum(map(loads.get, group.members)))
            if len(group.members) > 1:
                self.assertTrue(bounds.can_hold_group(group))

    @given(clouds())
    def test_nobody_is_with_others_without_a_tie_or_a_name(self, cloud):
        members, sent, bounds = cloud
        ties = tied(sent)
        names = {member.uuid: member.declared for member in members}
        for group in affinity.group_guests_by_traffic(members, ties, bounds):
            for one in group.members:
                self.assertTrue(len(group.members) == 1 or any(
                    names[one] and names[one] == names[other]
                    or affinity.make_pair_key(one, other) in ties.by_pair
                    for other in group.members - {one}))

    def test_small_goes_to_large(self):
        members = [Member('a', 1, 8), Member('b', 4, 4), Member('c', 1, 9)]
        found, = affinity.group_guests_by_traffic(
            members, tied({('a', 'c'): 600, ('a', 'b'): 300}),
            affinity.Bounds())
        self.assertEqual('b', found.lead)
        self.assertEqual((6, 21), (found.load, found.memory))

    def test_a_bound_keeps_groups_apart_and_the_strongest_together(self):
        members = [Member(name, 1, 1) for name in 'abc']
        ties = tied({('a', 'b'): 600, ('b', 'c'): 900, ('a', 'c'): 300})
        for bounds in (affinity.Bounds(members=2), affinity.Bounds(load=2),
                       affinity.Bounds(memory=2)):
            self.assertEqual(
                {frozenset('bc'), frozenset('a')},
                list_members(affinity.group_guests_by_traffic(
                    members, ties, bounds)))

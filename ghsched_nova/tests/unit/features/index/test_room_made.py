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

"""A refusal is not repeated once an event has made room for the guest.

The cloud is a model of three records of what guests hold: Placement, what the
host has saved in Nova, and the bandwidth that its last periodic report has
named. Each event changes them one after the other, and equal requests come
after each step. They are judged by exhaustive search.
"""

import collections
import itertools
import random
import types

from ghsched_nova.features.index.host_capacity import ReportedHost
from ghsched_nova.features.index.host_capacity import ReportedNode
from ghsched_nova.features.index.host_capacity import RequestNeed
from ghsched_nova.features.index.host_capacity import RequestNodeNeed
from ghsched_nova.features.index import host_index
from ghsched_nova.features.index import refusal_cache
from ghsched_placement.features.index import headroom
from ghsched_placement.fit import cloud_lack
from ghsched_placement.flavor.policy import parse_policy
from ghsched_placement.tests import base

SEQUENCES = 200

CPUS = 8
PERCENT = 100

#: Dedicated CPUs and percent of bandwidth by guest NUMA node.
FLAVORS = (((1, 60),), ((4, 0),), ((8, 10),), ((2, 30), (2, 30)),
           ((5, 0), (5, 0)), ((3, 25),))


class Cloud:
    """Hosts, and the records of what guests hold on them.

    :ivar placement: percent by consumer and host node; the rows of Nova and
        the last reports have the same form.
    """

    def __init__(self, chance):
        self.chance, self.number = chance, 0
        self.nodes = [(host, node) for host in 'ab' for node in range(2)]
        self.placement, self.rows, self.headroom = {}, {}, {}
        self.report()

    def report(self):
        """Make the periodic reports of all hosts."""
        self.headroom = dict(self.placement)

    @staticmethod
    def _sum(record, place, column):
        return sum(held[place][column] for held in record.values()
                   if place in held)

    def free(self, place):
        """Return CPUs and bandwidth that Nova and Placement would give."""
        return (CPUS - self._sum(self.rows, place, 0),
                PERCENT - self._sum(self.placement, place, 1))

    def find_places(self, flavor):
        """Return the host nodes for a guest, one of those that fit, or None.
        """
        ways = [
            some for host in 'ab' for some in itertools.permutations(
                [place for place in self.nodes if place[0] == host],
                len(flavor))
            if all(have >= want for place, wants
                   in zip(some, flavor, strict=True)
                   for have, want in zip(self.free(place), wants,
                                         strict=True))]
        return self.chance.choice(ways) if ways else None

    def claim(self, flavor, places):
        self.number += 1
        name = f'guest {self.number}'
        held = dict(zip(places, flavor, strict=True))
        self.placement[name] = self.rows[name] = held
        return name

    def make_rows(self):
        """Return the reports of the hosts as the index reads them."""
        self.number += 1
        return [self._make_row(host) for host in 'ab']

    def _make_row(self, host):
        return ReportedHost(
            host, host, 'c', self.number, tuple(
                ReportedNode(node, CPUS - self._sum(
                    self.rows, (host, node), 0), 0, {0: 99})
                for node in range(2)),
            guests=sum(host in {name for name, _node in held}
                       for held in self.rows.values()),
            has_driver=True, placement_headroom=headroom.Headroom(
                0.0, 0, 99, {node: PERCENT - self._sum(
                    self.headroom, (host, node), 1) for node in range(2)}))

    def has_candidates(self, query):
        """Answer a query of ghsched for the reason of a refusal."""
        resources = dict(query)['resources'].split(',')
        return any(all(
            self.free(place)[1] >= int(amount)
            for name, _, amount in (one.partition(':') for one in resources)
            if name == 'CUSTOM_MEM_BW_PCT') for place in self.nodes)


# -- events that give resources back, step by step ----------------------------


def delete(cloud, guest):
    """Delete a server: Nova saves the host first."""
    del cloud.rows[guest]
    yield
    del cloud.placement[guest]


def delete_reported_meanwhile(cloud, guest):
    """Delete a server, and the host reports before Placement is updated."""
    for _step in delete(cloud, guest):
        cloud.report()
        yield


def leave_a_leftover(cloud, guest):
    """Delete a server whose allocation an admin removes later."""
    del cloud.rows[guest]
    yield
    cloud.report()
    yield
    del cloud.placement[guest]


def give_in_placement(cloud, guest):
    """Change an allocation by hand: nothing reports it."""
    del cloud.placement[guest]
    yield
    del cloud.rows[guest]


def shrink(cloud, guest):
    """Resize a server on its host: Nova saves the host first."""
    smaller = {place: (1, share // 3)
               for place, (_cpus, share) in cloud.rows[guest].items()}
    cloud.rows[guest] = smaller
    yield
    cloud.placement[guest] = smaller


def lower(cloud, guest):
    """Lower the bandwidth of a running server."""
    cloud.placement[guest] = cloud.rows[guest] = {
        place: (cpus, share // 2)
        for place, (cpus, share) in cloud.rows[guest].items()}
    yield


def move_inside(cloud, guest):
    """Move a guest to other nodes of its host."""
    held = cloud.placement[guest]
    (host, _node), *_others = held
    yield from _move(cloud, guest, [
        place for place in cloud.nodes
        if place[0] == host and place not in held])


def migrate(cloud, guest):
    """Move a guest to another host, with an allocation of both meanwhile."""
    (host, _node), *_others = cloud.placement[guest]
    yield from _move(cloud, guest, [
        place for place in cloud.nodes if place[0] != host])


def evacuate(cloud, guest):
    """Move a guest whose host releases its own only when it is back."""
    old = dict(cloud.rows[guest])
    yield from migrate(cloud, guest)
    if cloud.rows[guest] != old:
        cloud.rows['evacuated'] = old
        yield
        del cloud.rows['evacuated']


def _move(cloud, guest, targets):
    held = cloud.placement[guest]
    new = dict(zip(targets, held.values(), strict=False))
    if len(new) < len(held) or not all(
            have >= want for place, wants in new.items()
            for have, want in zip(cloud.free(place), wants, strict=True)):
        return
    both = {**held, **new}
    cloud.placement[guest] = both
    yield
    cloud.rows[guest] = both
    yield
    cloud.rows[guest] = new
    yield
    cloud.placement[guest] = new


EVENTS = (delete, delete_reported_meanwhile, leave_a_leftover,
          give_in_placement, shrink, lower, move_inside, migrate, evacuate)

#: Moves come often, because most find no room for their guest.
_WEIGHTS = (1, 1, 1, 1, 1, 1, 4, 3, 3)


class Scheduler:
    """The cache of refusals as nova-scheduler uses it."""

    def __init__(self, cloud, test):
        self.cloud, self.test = cloud, test
        self.index = host_index.Index()
        self.cache = refusal_cache.RefusalCache(
            self.index.has_cpus_and_memory_for)
        self.counts = collections.Counter()
        self.refused = set()

    def boot(self, flavor):
        """Return a new guest; None if it is refused, which must be true."""
        self.index.update_hosts(self.cloud.make_rows(), (), 0)
        spec = types.SimpleNamespace(obj_to_primitive=lambda: flavor)
        need = RequestNeed(tuple(RequestNodeNeed(pinned=cpus, bandwidth=share)
                                 for cpus, share in flavor), 0, True)
        places = self.cloud.find_places(flavor)
        reason = self.cache.find_refusal_reason(spec, need,
                                                self.cloud.has_candidates)
        if reason is not None:
            self.counts.update(repeated=1)
            self.test.assertIsNone(places, f'{flavor}: {reason}')
            self._assert_true(reason)
            return None
        if places is None:
            self.refused.add(flavor)
            self._cache(spec, flavor,
                        not self.index.has_cpus_and_memory_for(need))
            return None
        self.counts.update(after_refusal=flavor in self.refused)
        self.refused.discard(flavor)
        guest = self.cloud.claim(flavor, places)
        self.index.add_claim(places[0][0], guest, need, 0)
        return guest

    def _cache(self, spec, flavor, is_proven):
        policy = parse_policy({f'ghsched:mem_bw_min.{node}': str(share)
                               for node, (_cpus, share) in enumerate(flavor)
                               if share}, len(flavor))
        lacks = policy and cloud_lack.find_refusal_reasons(
            policy, 'min', cloud_lack.CloudQueries(
                self.cloud.has_candidates)) or []
        self.cache.add_refusal(
            spec, '; '.join(item.reason for item in lacks),
            [item.query for item in lacks], is_proven)

    def _assert_true(self, reason):
        """Check a reason that names an amount of bandwidth."""
        words = reason.split(' % of its memory bandwidth left')
        if len(words) > 1 and 'no host NUMA node has' in words[0]:
            wanted = int(words[0].split()[-1])
            self.test.assertLess(max(self.cloud.free(place)[1]
                                     for place in self.cloud.nodes), wanted)


class RoomMadeTest(base.TestCase):

    def test_equal_boot_after_each_event_is_refused_only_if_that_is_true(self):
        counts = collections.Counter()
        for seed in range(SEQUENCES):
            chance = random.Random(seed)  # noqa: S311
            with self.subTest(seed=seed):
                self._run_sequence(chance, counts)
        for what in ('repeated', 'after_refusal', *(
                event.__name__ for event in EVENTS)):
            self.assertGreater(counts[what], 50, counts)

    def _run_sequence(self, chance, counts):
        cloud = Cloud(chance)
        scheduler = Scheduler(cloud, self)
        guests = []

        def boot_some(probability):
            for flavor in FLAVORS:
                if chance.random() < probability:
                    guest = scheduler.boot(flavor)
                    guests.extend([guest] if guest else [])
        for event in chance.choices(EVENTS, _WEIGHTS, k=10):
            boot_some(.4)
            if not guests:
                continue
            for _moment in event(cloud, chance.choice(guests)):
                counts[event.__name__] += 1
                boot_some(.3)
            guests = [one for one in guests if one in cloud.rows]
            if chance.random() < .3:
                cloud.report()
        counts.update(scheduler.counts)

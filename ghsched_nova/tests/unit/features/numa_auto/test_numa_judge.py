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

"""The number of guest NUMA nodes against an exact judge, in random clouds.

The judge keeps accounts of its own in whole numbers and looks at every host
and set of nodes. The scheduler uses its filter, Nova's fit and the claim of
nova-compute. GHSCHED_AUTO_REQUESTS=N asks for N guests, from the seed
GHSCHED_AUTO_SEED on.
"""

import collections
import dataclasses
import itertools
import logging
import os
import random
import types
import uuid

import fixtures
from nova import exception
from nova import objects
from nova.virt import hardware

from ghsched_nova.features.numa_auto import numa_choice
from ghsched_nova.nova_seams import numa
from ghsched_nova.scheduler import filters
from ghsched_nova.tests.fixtures import states
from ghsched_nova.virt import instance_claims
from ghsched_placement.providers import names
from ghsched_placement.tests import base

REQUESTS = int(os.environ.get('GHSCHED_AUTO_REQUESTS', '400'))

SEED = int(os.environ.get('GHSCHED_AUTO_SEED', '27'))

#: Guests that are asked for in one cloud.
EACH = 40

IMAGE = objects.ImageMeta(properties=objects.ImageMetaProps())


@dataclasses.dataclass(frozen=True)
class Node:
    """A host NUMA node.

    :param small: MiB in small pages.
    :param huge: number of pages of 2 MiB.
    """

    shared: int
    dedicated: int
    small: int
    huge: int


@dataclasses.dataclass(frozen=True)
class Guest:
    """A request.

    :param shared: whether its first CPU is shared where others are dedicated.
    :param most: value of ghsched:numa_max.
    """

    vcpus: int
    memory: int
    policy: str
    huge: bool
    isolated: bool
    most: int

    def split(self, count):
        """Return shared and dedicated CPUs and MiB of each guest node.

        None if the number of nodes does not divide CPUs and memory.
        """
        if self.vcpus % count or self.memory % count:
            return None
        each, memory = self.vcpus // count, self.memory // count
        shared = [{'shared': each, 'mixed': int(number == 0)}.get(
            self.policy, 0) for number in range(count)]
        return [(some, each - some + (self.isolated and number == 0), memory)
                for number, some in enumerate(shared)]

    def make_flavor(self):
        extra_specs = {'ghsched:numa': 'auto', 'hw:cpu_policy': self.policy,
                       'ghsched:numa_max': str(self.most)}
        if self.policy == 'mixed':
            extra_specs['hw:cpu_dedicated_mask'] = '^0'
        if self.huge:
            extra_specs['hw:mem_page_size'] = '2048'
        if self.isolated:
            extra_specs['hw:emulator_threads_policy'] = 'isolate'
        return objects.Flavor(
            name=str(self), vcpus=self.vcpus, memory_mb=self.memory,
            root_gb=1, ephemeral_gb=0, swap=0, extra_specs=extra_specs)


def draw_hosts(chance):
    """Return the NUMA nodes of each host of a random cloud."""
    return [[Node(chance.choice((0, 2, 4, 8)), chance.choice((0, 2, 4, 8)),
                  chance.choice((512, 1024, 2048)),
                  chance.choice((0, 0, 256, 512)))
             for _node in range(chance.choice((1, 2, 2, 4)))]
            for _host in range(chance.randint(1, 5))]


def draw_guest(chance):
    policy = chance.choice(('shared', 'dedicated', 'mixed'))
    return Guest(
        chance.choice((1, 2, 2, 3, 4, 4, 6, 8, 8, 12)) + (policy == 'mixed'),
        chance.choice((64, 250, 512, 768, 1024, 1600, 2400)), policy,
        chance.random() < .2, policy == 'dedicated' and chance.random() < .2,
        chance.randint(1, 4))


class Account:
    """Resources that guests have of a host NUMA node, in whole numbers.

    :param tenths: vCPUs of ten shared CPUs.
    """

    def __init__(self, node, tenths):
        self._node, self._tenths = node, tenths
        self._shared = self._dedicated = self._small = self._huge = 0

    def holds(self, guest, part):
        """Whether a guest node fits, by Nova's manual."""
        node, (shared, dedicated, memory) = self._node, part
        if shared > node.shared or (
                10 * (self._shared + shared) > self._tenths * node.shared):
            return False
        if dedicated > node.dedicated - self._dedicated:
            return False
        if guest.huge:
            return memory % 2 == 0 and self._huge + memory // 2 <= node.huge
        # Nova lets guests with shared CPUs overcommit small pages.
        used = 0 if guest.policy == 'shared' else self._small
        return (used + memory <= node.small
                and self._small + 2 * self._huge + memory
                <= node.small + 2 * node.huge)

    def take(self, guest, part, sign=1):
        shared, dedicated, memory = part
        self._shared += sign * shared
        self._dedicated += sign * dedicated
        if guest.huge:
            self._huge += sign * memory // 2
        else:
            self._small += sign * memory


class Judge:
    """Accounts of all hosts."""

    def __init__(self, hosts, tenths):
        self._hosts = [[Account(node, tenths) for node in nodes]
                       for nodes in hosts]

    def find_fewest(self, guest):
        """Return the fewest nodes of one host that take a guest, 0 if none."""
        for count in range(1, min(guest.most, guest.vcpus) + 1):
            if any(self._fits(guest, order, count) for nodes in self._hosts
                   for order in itertools.permutations(nodes, count)):
                return count
        return 0

    @staticmethod
    def _fits(guest, order, count):
        parts = guest.split(count)
        return parts is not None and all(
            node.holds(guest, part)
            for node, part in zip(order, parts, strict=True))

    def take(self, host, nodes, guest):
        """Take a guest's resources; refuse nodes that lack them."""
        order = [self._hosts[host][node] for node in nodes]
        if not self._fits(guest, order, len(order)):
            raise AssertionError(f'{guest} does not fit on {nodes} of {host}')
        self._move(order, guest, 1)

    def give(self, host, nodes, guest):
        self._move([self._hosts[host][node] for node in nodes], guest, -1)

    @staticmethod
    def _move(order, guest, sign):
        for node, part in zip(order, guest.split(len(order)), strict=True):
            node.take(guest, part, sign)


def make_cell(number, node):
    """Return Nova's record of a host NUMA node without guests."""
    first = 100 * number
    dedicated = set(range(first, first + node.dedicated))
    shared = set(range(first + 50, first + 50 + node.shared))
    return objects.NUMACell(
        id=number, cpuset=shared, pcpuset=dedicated, cpu_usage=0,
        memory=node.small + 2 * node.huge, memory_usage=0, pinned_cpus=set(),
        siblings=[{cpu} for cpu in sorted(shared | dedicated)], socket=0,
        mempages=[objects.NUMAPagesTopology(
            size_kb=size, total=total, used=0, reserved=0)
            for size, total in ((4, node.small * 256), (2048, node.huge))],
        network_metadata=objects.NetworkMetadata(
            physnets={names.make_node_physnet(number)}, tunneled=False))


class Cloud:
    """Hosts with real records, and a scheduler that looks at all of them."""

    def __init__(self, chance, hosts, tenths):
        self._chance, self._ratio = chance, tenths / 10
        self._states = [states.host(
            [make_cell(number, node) for number, node in enumerate(nodes)],
            name=f'host_{place}', cpu_allocation_ratio=self._ratio,
            uuid=str(uuid.UUID(int=place)))
            for place, nodes in enumerate(hosts)]

    def schedule(self, guest):
        """Return the host and the claimed topology; None if refused."""
        flavor, spec = guest.make_flavor(), states.spec(0)
        spec.flavor, spec.image, spec.project_id = flavor, IMAGE, 'p'
        spec.instance_uuid = str(uuid.UUID(int=self._chance.getrandbits(128)))
        spec.scheduler_hints, spec.requested_resources = {}, []
        try:
            chosen = numa_choice.schedule_with_fitting_numa_count(
                None, spec, self._run)
        except exception.NoValidHost:
            return None
        place = next(place for place, state in enumerate(self._states)
                     if state.uuid == chosen.uuid)
        instance = types.SimpleNamespace(
            pci_requests=None, numa_topology=None, launched_at=None)
        with instance_claims.claiming_move(instance, flavor, IMAGE, False):
            claimed = hardware.numa_fit_instance_to_host(
                self._states[place].numa_topology, None, None,
                limits=chosen.limits['numa_topology'], pci_requests=[],
                pci_stats=None)
        self._count(place, claimed, False)
        return place, claimed

    def remove(self, place, claimed):
        self._count(place, claimed, True)

    def _count(self, place, claimed, free):
        state = self._states[place]
        state.numa_topology = hardware.numa_usage_from_instance_numa(
            state.numa_topology, claimed, free)

    def _run(self, spec, _has_other):
        return self._filter(self._states, spec)

    @staticmethod
    def _filter(hosts, spec):
        for host in hosts:
            host.limits = {}
            host.allocation_candidates = [{'allocations': {}, 'mappings': {}}]
        found = next(iter(filters.GhschedNUMATopologyFilter().filter_all(
            hosts, spec)), None)
        if found is None:
            raise exception.NoValidHost(reason='no room')
        return found


class JudgeTest(base.TestCase):

    def setUp(self):
        super().setUp()
        # Nova writes its records into hundreds of lines for each guest.
        logging.disable(logging.INFO)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.numa_auto.nova_seams.'
            'get_current_numa_count', lambda _context, _uuid: (0, False)))

    def test_requests_in_random_clouds_get_the_fewest_nodes_that_fit(self):
        self.check_requests(Cloud)

    def check_requests(self, make_cloud):
        """Check the answers to requests, and return the clouds."""
        counts = collections.Counter()
        clouds = [self._fill_and_empty(SEED + number, counts, make_cloud)
                  for number in range(-(-REQUESTS // EACH))]
        for count in range(3):          # All answers occur.
            self.assertGreater(counts[count], 1, counts)
        if REQUESTS > 400:
            print(f'{counts} guests by number of nodes')
        return clouds

    def _fill_and_empty(self, seed, counts, make_cloud):
        chance = random.Random(seed)  # noqa: S311
        hosts = draw_hosts(chance)
        tenths = chance.choice((10, 10, 15, 40))
        cloud, judge, guests = (make_cloud(chance, hosts, tenths),
                                Judge(hosts, tenths), [])
        for number in range(EACH):
            if guests and chance.random() < .45:
                place, claimed, guest = guests.pop(
                    chance.randrange(len(guests)))
                cloud.remove(place, claimed)
                judge.give(place, numa.list_host_nodes(claimed), guest)
            guest = draw_guest(chance)
            expected, placed = judge.find_fewest(guest), cloud.schedule(guest)
            self.assertEqual(expected, len(placed[1]) if placed else 0,
                             f'seed {seed}, request {number}: {guest}')
            counts[expected] += 1
            if placed:
                judge.take(placed[0], numa.list_host_nodes(placed[1]), guest)
                guests.append((*placed, guest))
        return cloud

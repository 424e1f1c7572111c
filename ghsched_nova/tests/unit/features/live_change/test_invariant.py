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

"""A host never enforces more than Placement has allocated.

Changes of a policy and moves inside a host run on a model of Nova, Placement
and a host, of which each read and write can be refused, can lose its answer,
can fail in a way that nobody foresaw, and can be the last of a killed process.
Another guest takes at once what is released. The model compares the host with
Placement before and after each step.
"""

import itertools

from testtools import content

from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.live_change import change
from ghsched_nova.features.live_change import messages
from ghsched_nova.features.live_change import node_move
from ghsched_placement.fit.cells import GuestCell
from ghsched_placement.fit.cells import HostCell
from ghsched_placement.flavor import policy as policies
from ghsched_placement.providers import names
from ghsched_placement.tests import base

ROOT = '3a0e6a0c-7e0a-4b0f-9e59-8d1c2a6a2f11'
NODES = (0, 1, 2)
KEYS = {node: (names.make_numa_provider_uuid(ROOT, node), names.MEM_BW_PCT)
        for node in NODES}
OLD = (30, 20)
#: Guarantees of the two guest NUMA nodes after a change: both lower, both
#: higher, one of each, one lower.
NEW = ((15, 5), (45, 40), (10, 50), (30, 10))
#: How a step ends, and whether it has been done then.
FAULTS = tuple(itertools.product(('refused', 'silent', 'unforeseen', 'killed'),
                                 (False, True)))


class Killed(BaseException):
    """The process is gone: nothing after this is done."""


class World:
    """Nova's record, Placement, and a host with a guest on two NUMA nodes.

    :ivar at: host NUMA node of each guest NUMA node by Nova's record.
    :ivar enforced: percent by host NUMA node that the host may enforce now.
    :ivar faults: how steps end, by number of the step; from 1.
    :ivar violations: states in which more is enforced than allocated, each
        with the number of the step.
    :ivar taken: percent of each host NUMA node that other guests have.
    """

    def __init__(self, running=True, greedy=False):
        self.running, self.greedy = running, greedy
        self.shares, self.at = OLD, (0, 1)
        self.enforced = dict(zip(self.at, OLD, strict=True)) if running else {}
        self.allocated = {0: 30, 1: 20, 2: 0}
        self.taken = {0: 50, 1: 50, 2: 0}
        self.lock, self.locks, self.expired = '', 0, False
        self.faults, self.count, self.dead = {}, 0, False
        self.violations = []

    # -- steps ----------------------------------------------------------------

    def check(self):
        """Note where more is enforced than allocated, or allocated than is
        there; the code under test would catch an error.
        """
        if (any(percent > self.allocated[node]
                for node, percent in self.enforced.items())
                or any(self.allocated[node] + self.taken[node] > 100
                       for node in NODES)):
            self.violations.append((self.count, self.enforced,
                                    self.allocated))

    def step(self, effect=lambda: None, asks_host=False):
        """Do one step, unless it is to fail.

        :param effect: function that does it, and returns the answer.
        """
        if self.dead:
            raise Killed
        self.count += 1
        fault, done = self.faults.get(self.count, ('', True))
        self.check()
        answer = effect() if done else None
        self.check()
        if fault == 'killed':
            self.dead = True
            raise Killed
        if fault == 'unforeseen':
            raise KeyError('x')
        # A host that refuses has done nothing, or has undone it.
        if fault == 'silent' and asks_host:
            raise errors.HostSilent('silent')
        if fault and not (asks_host and done):
            raise errors.Refused(f'{fault}')
        return answer

    # -- Nova's records -------------------------------------------------------

    @property
    def specs(self):
        return {f'ghsched:mem_bw_min.{cell}': str(share)
                for cell, share in enumerate(self.shares)}

    def read_guest(self):
        def read():
            if self.lock and not (self.expired or self.lock == self.mine):
                raise errors.RefusedByState('locked')
            return change.GuestRecord('u', 'web', 'a', ROOT, self.at,
                                      self.specs,
                                      self.running, abandoned=bool(
                                          self.lock and self.expired))
        return self.step(read)

    def read_guest_nodes(self):
        free = [frozenset({8 * node + cpu}) for node in NODES
                for cpu in range(4)]
        return node_move.GuestLocation(self.read_guest(), tuple(
            GuestCell(node, pins={cell: 8 * node + cell}, memory=512)
            for cell, node in enumerate(self.at)), {
                node: HostCell(frozenset().union(*cores), tuple(cores),
                               memory_free=4096)
                for node, cores in zip(NODES, (free[:4], free[4:8], free[8:]),
                                       strict=True)})

    mine = ''

    def lock_server(self):
        def lock():
            if self.lock and not self.expired:
                raise errors.Refused('another operation is in progress')
            self.locks += 1
            self.expired = False
            self.lock = self.mine = f'lock {self.locks}'
            return self.lock
        return self.step(lock)

    def check_lock(self):
        return self.step(lambda: None)

    def unlock_server(self):
        def unlock():
            if self.lock == self.mine:
                self.lock = ''
        try:
            self.step(unlock)
        except Exception as error:
            return f'still locked: {error!r}'
        return ''

    def save_extra_specs(self, extra_specs):
        def save():
            self.shares = tuple(
                node.minimum for node in policies.parse_policy(
                    extra_specs, 2).nodes)
            self.lock = ''
        before = self.shares, self.lock
        try:
            self.step(save)
        except Exception:
            # Nova's records are written back.
            self.shares, self.lock = before
            raise

    # -- Placement ------------------------------------------------------------

    def read_allocated_amounts(self):
        return self.step(lambda: {
            KEYS[node]: self.allocated[node] for node in self.providers})

    def write_amounts(self, amounts):
        def write():
            wanted = {node: amounts[key] for node, key in KEYS.items()
                      if key in amounts}
            for node, percent in wanted.items():
                if percent + self.taken[node] > 100:
                    raise errors.Refused(f'node {node} is full')
            self.allocated |= wanted
            if self.greedy:
                self.taken = {node: 100 - self.allocated[node]
                              for node in NODES}
            return True
        return self.step(write)

    def check_capacity(self, amounts):
        self.step()

    def check_policy_traits(self, compute_node_uuid, policy):
        self.step()

    # -- the host -------------------------------------------------------------

    def pack(self):
        return messages.pack_policy(policies.GuestPolicy(tuple(
            policies.NodePolicy(minimum=self.enforced[node])
            for node in self.at)), self.at) if self.running else None

    def check_policy(self, guest, policy):
        return self.step(lambda: {
            'policy': self.pack(), 'effective': [],
            'same': self.pack() == policy}, asks_host=True)

    def set_policy(self, guest, policy, call_id, lock_id):
        def enforce():
            assert lock_id == self.lock
            asked, host_nodes = messages.unpack_policy(policy)
            assert host_nodes == self.at
            self.enforced = {node: one.minimum for node, one in zip(
                host_nodes, asked.nodes, strict=True)}
        self.step(enforce, asks_host=True)

    def cancel_call(self, guest, call_id):
        return self.step(self.pack, asks_host=True)

    def check_move(self, guest, move):
        self.step(asks_host=True)

    def move_nodes(self, guest, packed, call_id, lock_id):
        def move():
            assert lock_id == self.lock
            after = tuple(one['after']['host_node'] for one in packed)
            old = self.enforced
            # Meanwhile it is on both.
            self.enforced = {node: max(
                old.get(node, 0), dict(zip(after, self.shares, strict=True))
                .get(node, 0)) for node in {*old, *after}}
            self.check()
            self.at = after
            self.enforced = dict(zip(after, self.shares, strict=True))
        self.step(move, asks_host=True)

    # -- what is run ----------------------------------------------------------

    def change(self, shares):
        self.mine, self.providers = '', self.at

        def make_client(guest):
            return self
        changer = change.PolicyChanger(self, make_client, self, 'min')
        return changer.change_policy({
            f'ghsched:mem_bw_min.{cell}': str(share)
            for cell, share in enumerate(shares)})

    def move(self, nodes):
        self.mine, self.providers = '', NODES

        def make_client(guest, nodes):
            return self
        mover = node_move.NodeMover(self, make_client, self, 'min')
        return mover.move_guest(dict(enumerate(nodes)))

    def restart(self):
        """A new process comes when the lock has expired."""
        self.dead, self.faults = False, {}
        self.expired = bool(self.lock)

    def agrees(self):
        held = dict(zip(self.at, self.shares, strict=True))
        return (not self.lock and self.enforced in (held, {}) and
                self.allocated == {node: held.get(node, 0) for node in NODES})


class InvariantTest(base.TestCase):

    def count_steps(self, make, act):
        world = make()
        act(world)
        self.assertTrue(world.agrees())
        return world.count

    def run_one(self, world, act):
        """Return the error with which an operation ends, and check that it
        is true.
        """
        try:
            act(world)
        except Killed:
            return Killed
        except errors.RollbackIncomplete as error:
            self.assertTrue(error.manual_steps)
            return errors.RollbackIncomplete
        except errors.Refused:
            return errors.Refused
        return None

    def check_faults(self, make, act, again, old):
        """Fail each step in each way, and each two of three steps in a row.

        :param again: operations of which one puts all in order.
        :param old: state that a refusal leaves.
        """
        steps = self.count_steps(make, act)
        places = [((first, fault),) for first in range(1, steps + 1)
                  for fault in FAULTS]
        places += [((first, one), (second, other))
                   for first in range(1, steps + 1)
                   for second in range(first + 1, first + 3)
                   for one in FAULTS if one[0] in ('silent', 'unforeseen')
                   for other in FAULTS if other[0] != 'unforeseen']
        for faults in places:
            self.addDetail('faults', content.text_content(f'{faults}'))
            world = make()
            world.faults = dict(faults)
            found = self.run_one(world, act)
            if found is None:
                self.assertTrue(world.agrees())
            elif found is errors.Refused:
                self.assertEqual(old, (world.shares, world.at))
                self.assertFalse(world.lock)
            self.check_converges(world, again)
            self.assertEqual([], world.violations)

    def check_converges(self, world, again):
        world.restart()
        for act in again:
            if self.run_one(world, act) is None:
                break
        self.assertTrue(world.agrees(), vars(world))

    def test_changes_enforce_at_most_what_is_allocated(self):
        for (running, greedy), shares in itertools.product(
                ((True, False), (True, True), (False, True)), NEW):
            def make(running=running, greedy=greedy):
                return World(running, greedy)

            self.check_faults(
                make, lambda world, shares=shares: world.change(shares),
                [lambda world, shares=shares: world.change(shares),
                 lambda world: world.change(OLD)], (OLD, (0, 1)))

    def test_moves_enforce_at_most_what_is_allocated(self):
        for greedy, nodes in itertools.product(
                (True, False), ((0, 2), (1, 2), (2, 1))):
            def make(greedy=greedy):
                return World(greedy=greedy)

            self.check_faults(
                make, lambda world, nodes=nodes: world.move(nodes),
                [lambda world, nodes=nodes: world.move(nodes),
                 lambda world: world.move(world.at)], (OLD, (0, 1)))

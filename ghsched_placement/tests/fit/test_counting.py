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

"""Counts and choices against judges that share nothing with them.

One judge is an exact solver (HiGHS), the other tries every sequence of guests
on small hosts. GHSCHED_SAMPLE=all compares 10,000 hosts with the solver.
"""

import dataclasses
import functools
import itertools
import random

import numpy as np
from scipy import optimize

from ghsched_placement.fit import counting
from ghsched_placement.fit import model
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

#: Hosts that are compared with the solver in the whole.
HOSTS = 10000

#: Resources of a node: CPUs, memory, percent of bandwidth and of bursts, ways,
#: real time, VFs, and two page sizes.
MOST = (64, 4096, 100, 40, 12, 900, 16, 2048, 2048)
NEEDS = ((1, 2, 4), (64, 256, 512), (0, 10, 15, 30), (0, 5), (0, 1, 3),
         (0, 100), (0, 0, 1, 2), (0,), (0,))
PAGES = (7, 8)

#: Position of the VFs, which nodes of a socket may have in common.
VFS = 6


def draw_units(chance, most):
    return model.Units(
        tuple(chance.choice((amount, amount, amount // 2))
              for amount in most),
        tuple(chance.choice((1, 1, 1, 2)) for _amount in most),
        tuple(chance.choice((1, 1, 1, 5)) for _amount in most))


def draw_node(chance, number, scale):
    most = tuple(amount // scale for amount in MOST)
    return model.Node(
        number, tuple(chance.choice((amount, chance.randint(0, amount)))
                      for amount in most),
        draw_units(chance, most), frozenset(
            trait for trait in 'ab' if chance.random() < .9))


def draw_node_need(chance):
    amounts = tuple(chance.choice(few) if chance.random() < .6 else 0
                    for few in NEEDS)
    pages = chance.choice(((), (), PAGES[:1], PAGES))
    return model.NodeNeed(
        amounts, (model.StockChoice(chance.choice((64, 256)), pages),)
        if pages else (),
        frozenset('a') if chance.random() < .1 else frozenset())


def draw(number, nodes=16, scale=1):
    """Return a host and a need; most of the hosts have equal guest nodes."""
    chance = random.Random(f'{nodes} {number}')  # noqa: S311
    kinds = [draw_node_need(chance)
             for _kind in range(chance.choice((1, 1, 2, 3)))]
    if len(kinds) > 1:
        kinds = [dataclasses.replace(kind, choices=tuple(
            one._replace(positions=one.positions[:1]) for one in kind.choices))
            for kind in kinds]
    # One in ten has up to as many nodes as the largest host.
    count = (chance.randint(1, 4) if chance.random() < .9
             else chance.randint(5, max(5, nodes)))
    need = model.Need(
        tuple(chance.choice(few) for few in ((0, 1, 8), (0, 0, 1))),
        tuple(chance.choice(kinds) for _node in range(count)))
    free = chance.choice((400, 120)), chance.choice((60, 12))
    host = model.Host(free, draw_units(chance, free), tuple(
        draw_node(chance, node, scale)
        for node in range(chance.randint(1, nodes))))
    return draw_sockets(chance, host, scale), need


def draw_sockets(chance, host, scale):
    """Return a host whose nodes may have the VFs of their socket in common.
    """
    if chance.random() < .5:
        return host
    size = chance.choice((2, 2, 3, 4))
    free = [chance.randint(0, 2 * MOST[VFS] // scale)
            for _socket in host.nodes]
    return dataclasses.replace(host, of_sockets=frozenset([VFS]), nodes=tuple(
        node if chance.random() < .1 else dataclasses.replace(
            node, socket=node.number // size, free=(
                *node.free[:VFS], free[node.number // size],
                *node.free[VFS + 1:]), units=dataclasses.replace(
                    node.units, most=(
                        *node.units.most[:VFS], model.UNCOUNTED,
                        *node.units.most[VFS + 1:])))
        for node in host.nodes))


def list_sockets(host):
    """Return the indexes of the nodes of each socket, and its free VFs."""
    sockets = {}
    for index, node in enumerate(host.nodes):
        if host.of_sockets and node.socket is not None:
            sockets.setdefault(node.socket, []).append(index)
    return [(members, host.nodes[members[0]].free[VFS])
            for members in sockets.values()]


def allows(units, amounts):
    for place, amount in enumerate(amounts):
        if amount and (amount > units.most[place]
                       or amount < units.least[place]
                       or amount % units.step[place]):
            return False
    return True


def get_pages(part):
    """Return the page sizes that a guest node may use; (None,) for any."""
    return part.choices[0].positions if part.choices else (None,)


def get_memory(part, is_used=True):
    return part.choices[0].amount if part.choices and is_used else 0


class Program:
    """Integer program: as many guests as possible.

    The variables are the number of guests, and for each kind, host node and
    page size the number of guest nodes.
    """

    def __init__(self, host, need):
        self.kinds = sorted(set(need.nodes), key=need.nodes.index)
        self.columns = [(node, kind, page) for node in range(len(host.nodes))
                        for kind, part in enumerate(self.kinds)
                        for page in get_pages(part)]
        self.rows, self.low, self.high = [], [], []
        for kind, part in enumerate(self.kinds):
            mine = [(1 + place, 1) for place, column
                    in enumerate(self.columns) if column[1] == kind]
            self.add_row([*mine, (0, -need.nodes.count(part))], 0, 0)
        for node, of in enumerate(host.nodes):
            self.add_node(node, of)
        for members, free in list_sockets(host):
            self.add_row([(1 + place, self.kinds[kind].amounts[VFS])
                          for place, (node, kind, _page)
                          in enumerate(self.columns) if node in members],
                         -np.inf, free)
        for free, amount in zip(host.free, need.amounts, strict=True):
            self.add_row([(0, amount)], -np.inf, free)
        self.upper = [200.0]
        for node, kind, _page in self.columns:
            of, part = host.nodes[node], self.kinds[kind]
            self.upper.append(200.0 * (part.traits <= of.traits
                                       and allows(of.units, part.amounts)))

    def add_row(self, coefficients, at_least, at_most):
        row = np.zeros(1 + len(self.columns))
        for place, value in coefficients:
            row[place] += value
        self.rows.append(row)
        self.low.append(at_least)
        self.high.append(at_most)

    def add_node(self, number, node):
        mine = [(1 + place, column) for place, column
                in enumerate(self.columns) if column[0] == number]
        self.add_row([*((place, 1) for place, _column in mine), (0, -1)],
                     -np.inf, 0)
        for resource, free in enumerate(node.free):
            self.add_row([(place, self.kinds[kind].amounts[resource]
                           + get_memory(self.kinds[kind], page == resource))
                          for place, (_node, kind, page) in mine],
                         -np.inf, free)

    def solve(self):
        found = optimize.milp(
            np.array([-1.0] + [0.0] * len(self.columns)),
            integrality=np.ones(1 + len(self.columns)),
            bounds=optimize.Bounds(0, self.upper),
            constraints=optimize.LinearConstraint(
                np.array(self.rows), self.low, self.high))
        return round(-found.fun)


def solve(host, need):
    """Return the largest number of guests, found by an integer program."""
    if not allows(host.units, need.amounts):
        return 0
    return Program(host, need).solve()


def take_of_sockets(host, left):
    """Take VFs of a node from the other nodes of its socket as well."""
    for members, free in list_sockets(host):
        numbers = [host.nodes[index].number for index in members]
        free -= sum(free - left[number][VFS] for number in numbers)
        for number in numbers:
            left[number][VFS] = free


def yield_guests(host, need):
    """Yield the host after each way to place one guest on it."""
    if any(amount > free for amount, free
           in zip(need.amounts, host.free, strict=True)):
        return
    if not allows(host.units, need.amounts):
        return
    for order in itertools.permutations(host.nodes, len(need.nodes)):
        if all(part.traits <= node.traits and allows(node.units, part.amounts)
               for node, part in zip(order, need.nodes, strict=True)):
            for pages in itertools.product(
                    *map(get_pages, need.nodes)):
                left = {node.number: list(node.free) for node in host.nodes}
                for node, part, page in zip(order, need.nodes, pages,
                                            strict=True):
                    for place, amount in enumerate(part.amounts):
                        left[node.number][place] -= amount
                    if page is not None:
                        left[node.number][page] -= get_memory(part)
                take_of_sockets(host, left)
                if min(map(min, left.values())) >= 0:
                    yield model.Host(
                        tuple(free - amount for free, amount in zip(
                            host.free, need.amounts, strict=True)),
                        host.units, tuple(dataclasses.replace(
                            node, free=tuple(left[node.number]))
                            for node in host.nodes), host.of_sockets)


def try_all(host, need, most):
    """Return the largest number of guests, at most some, of all sequences."""
    @functools.cache
    def count(state, left):
        return max((1 + count(after, left - 1)
                    for after in set(yield_guests(state, need))),
                   default=0) if left else 0
    return count(host, most)


def has_vfs_of_sockets(host, need, order):
    return all(
        sum(part.amounts[VFS] for node, part in zip(
            order, need.nodes, strict=True)
            if node in {host.nodes[index].number for index in members}) <= free
        for members, free in list_sockets(host))


def places_most_by(choose, host, need):
    """Return how many guests fit if each is placed as a function chooses."""
    guests = 0
    while (chosen := choose(host)) is not None and guests < 200:
        host = host.subtract_guest(need, chosen)
        if min((*host.free, *(min(node.free) for node in host.nodes))) < 0:
            raise AssertionError(f'{chosen} has too little')
        guests += 1
    return guests


class SolverTest(base.TestCase):

    def numbers(self, few):
        part = spaces.number()
        return (range(HOSTS) if part is None
                else range(part * few, (part + 1) * few))

    def test_counts_of_random_hosts_are_those_of_the_solver(self):
        for number in self.numbers(250):
            host, need = draw(number)
            found, expected = counting.count_guests(host, need, 200), solve(
                host, need)
            self.assertEqual((expected, True), (found.guests, found.is_exact),
                             number)
            self.assertEqual(
                expected > 0,
                counting.choose_host_nodes(host, need) is not None, number)

    def test_no_other_resource_than_the_used_up_ones_makes_room(self):
        """However much there is of all others."""
        for number in self.numbers(250):
            host, need = draw(number)
            need = model.Need(need.amounts, need.nodes[:1] * len(need.nodes))
            count = counting.count_guests(host, need, 200)
            if count.guests == 200:
                continue
            enough, pages = 10 ** 6, get_pages(need.nodes[0])
            kept = {*count.of_nodes, *(
                pages if count.of_nodes.intersection(pages) else ())}
            more = model.Host(
                tuple(free if place in count.of_host else enough
                      for place, free in enumerate(host.free)), host.units,
                tuple(dataclasses.replace(node, free=tuple(
                    free if place in kept else enough
                    for place, free in enumerate(node.free)))
                    for node in host.nodes), host.of_sockets)
            self.assertEqual(count.guests, counting.count_guests(
                more, need, 200).guests, number)

    def test_equal_guest_nodes_placed_one_by_one_reach_the_count(self):
        for number in self.numbers(250):
            host, need = draw(number)
            need = model.Need(need.amounts, need.nodes[:1] * len(need.nodes))
            self.assertEqual(
                counting.count_guests(host, need, 200).guests,
                places_most_by(lambda now, need=need:
                               counting.choose_host_nodes(now, need),
                               host, need), number)

    def test_any_choice_with_the_needed_nodes_reaches_the_count(self):
        """Also the worst choice, by the lowest number, if it has them."""
        for number in self.numbers(250):
            host, need = draw(number)
            need = model.Need(need.amounts, need.nodes[:1] * len(need.nodes))
            last_first = number % 2 == 0

            def choose(now, need=need, last_first=last_first):
                counts = {node.number: node.count_guest_nodes(need.nodes[0])
                          for node in now.nodes}
                needed = counting.find_needed_nodes(
                    counts, len(need.nodes), now.count_without_nodes(need),
                    now.list_socket_amounts(need.nodes[0]))
                open_to = sorted(
                    (node for node, count in counts.items() if count),
                    key=lambda node: (node not in needed,
                                      -node if last_first else node))
                orders = itertools.combinations(open_to, len(need.nodes))
                return next(filter(
                    functools.partial(has_vfs_of_sockets, now, need), orders
                ), None) if now.count_without_nodes(need) else None
            self.assertEqual(
                counting.count_guests(host, need, 200).guests,
                places_most_by(choose, host, need), number)


class SmallHostTest(base.TestCase):

    def test_no_sequence_of_guests_is_longer_than_the_count(self):
        compared = 0
        for number in range(600):
            host, need = draw(number, nodes=4, scale=8)
            found = counting.count_guests(host, need, 4)
            if found.guests < 4 and len(need.nodes) < 4:
                self.assertEqual(try_all(host, need, 4), found.guests, number)
                compared += 1
        self.assertGreater(compared, 300)

    def test_a_search_without_steps_left_says_so(self):
        node = model.Units((9, 9), (1, 1), (1, 1))
        host = model.Host((), model.Units((), (), ()), tuple(
            model.Node(number, (5, 5), node) for number in range(3)))
        need = model.Need((), (model.NodeNeed((2, 3)), model.NodeNeed((3, 2)),
                               model.NodeNeed((1, 0))))
        exact = counting.count_guests(host, need)
        found = counting.count_guests(host, need, steps=3)
        self.assertTrue(exact.is_exact)
        self.assertEqual(
            try_all(host, need, 9), exact.guests)
        self.assertLessEqual(found.guests, exact.guests)

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

"""All flavors on all hosts: numbers, what binds, and the steps it takes."""

import random

from ghsched_placement.features.flavor_check import flavor_check as flavors
from ghsched_placement.features.planner import flavor_counts
from ghsched_placement.fit import capacity
from ghsched_placement.fit import fitting
from ghsched_placement.fit import lack
from ghsched_placement.fit import model
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit.node_capacity import Pages
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds

#: Host NUMA nodes of a host.
NODES = 4

TRAITS = clouds.ALL_TRAITS | {names.OWNER_TRAIT}


def draw_host(chance, name):
    """Return a host of which some of each resource is in use."""
    def use(most):
        return chance.choice((0, chance.randint(0, most), most))
    host = clouds.host(
        *(clouds.node(number, used=use(100), name=name)
          for number in range(NODES)),
        clouds.pf('0000:01:00.0', 0, used=use(8), name=name),
        name=name, groups_used=use(31), traits=TRAITS, VCPU=256,
        MEMORY_MB=chance.choice((4096, 200000)), DISK_GB=500, PCPU=40)
    return capacity.set_node_capacity(host, [NodeCapacity(
        number, 16, use(64), 4.0, 10, use(10), 65536, 1024 * use(32), 1.0,
        (Pages(4, 8388608, 256 * 1024 * use(32)),
         Pages(2048, 16384, 512 * use(32)))) for number in range(NODES)])


def draw_flavor(chance):
    """Return what guests of a flavor need, by number of NUMA nodes."""
    count = chance.choice((1, 1, 2, 4))
    specs = chance.choice(({'hw:numa_nodes': str(count)},
                           {'ghsched:numa': 'auto'}))
    if chance.random() < .7:
        specs['ghsched:mem_bw_min'] = str(chance.choice((5, 20, 60)))
    if chance.random() < .3:
        specs['hw:cpu_policy'] = 'dedicated'
    if chance.random() < .3:
        specs['hw:mem_page_size'] = chance.choice(('large', '2048', 'small'))
    if chance.random() < .3 and 'ghsched:numa' not in specs:
        specs['ghsched:vfs'] = 'nic:1'
    return flavors.list_requirements(
        flavors.Size(4 * count, 2048 * count), specs, [],
        {'nic': clouds.VF}, 'min', True)


def count_flavor(groups, demands):
    return flavor_counts.add_up_verdicts('f', (
        (fitting.count_guests(group[0], demands), len(group))
        for group in groups))


class EqualHostsTest(base.TestCase):

    def test_steps_grow_with_distinct_states_only(self):
        """Fifty flavors on a thousand hosts, a hundred states."""
        chance = random.Random(45)  # noqa: S311
        seeds = [chance.random() for _state in range(100)]
        hosts = [draw_host(random.Random(seeds[number % 100]),  # noqa: S311
                           f'h{number}') for number in range(1000)]
        demands = [[one.demand for one in draw_flavor(chance)]
                   for _flavor in range(50)]
        steps = []
        find_limit = model.Units.find_limit
        self.patch(model.Units, 'find_limit', lambda *arguments: (
            steps.append(1), find_limit(*arguments))[1])
        groups = flavor_counts.group_equal_hosts(hosts)
        self.assertEqual(100, len(groups))
        counted = [count_flavor(groups, one) for one in demands]
        # The host as a whole and each node, for each number of guest nodes,
        # and once more where guests of a larger number are put beside.
        most = 2 * 100 * sum(map(len, demands)) * (1 + NODES)
        self.assertLess(len(steps), most)
        for found, one in zip(counted, demands, strict=True):
            each = [fitting.count_guests(host, one).guests for host in hosts]
            self.assertEqual((sum(each), sum(map(bool, each))),
                             (found.guests, found.hosts))

    def test_hosts_differ_by_their_free_amounts_and_traits(self):
        one, other, used, trait = (
            clouds.host(clouds.node(0, name=name, used=taken), name=name,
                        traits=traits)
            for name, taken, traits in (
                ('a', 0, TRAITS), ('b', 0, TRAITS), ('c', 1, TRAITS),
                ('d', 0, clouds.ALL_TRAITS)))
        self.assertEqual([[one, other], [used], [trait]],
                         flavor_counts.group_equal_hosts(
                             [one, other, used, trait]))


class MissingTest(base.TestCase):

    def test_missing_resources_are_those_of_the_reasons(self):
        chance, compared = random.Random(46), 0  # noqa: S311
        for number in range(400):
            host = draw_host(chance, 'a')
            demand = draw_flavor(chance)[0].demand
            verdict = fitting.check_host_capacity(host, demand)
            reasons = {one.resource for one in verdict.lacks}
            if verdict.guests or reasons == {lack.COMBINATION}:
                continue
            compared += 1
            self.assertEqual(reasons, verdict.missing, number)
        self.assertGreater(compared, 100)

    def test_one_guest_more_lacks_what_binds(self):
        host = clouds.host(
            clouds.node(0, used=30), clouds.node(1, used=90), groups=9,
            groups_used=5, traits=TRAITS, VCPU=99, MEMORY_MB=9999)
        for share, guests, binding in (
                ('20', 3, lack.BANDWIDTH), ('1', 4, lack.GROUPS)):
            found = count_flavor([[host, host]], [
                one.demand for one in flavors.list_requirements(
                    flavors.Size(1, 64), {
                        'hw:numa_nodes': '1', 'ghsched:mem_bw_min': share},
                    [], {}, 'min', True)])
            self.assertEqual((2 * guests, {binding: 2}, {}),
                             (found.guests, found.binding, found.lacking))

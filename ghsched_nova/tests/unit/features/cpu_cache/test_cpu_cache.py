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

"""Dedicated CPUs of few L3 caches, in Nova's own fit.

The judge asks Nova's fit about the CPUs of every set of caches, and shares no
code with the choice.
"""

import itertools
from pathlib import Path
import random
import types

import fixtures
from nova import objects
from nova.virt import hardware

from ghsched_nova.features.cpu_cache import cpu_cache
from ghsched_nova.nova_seams import numa
from ghsched_nova.scheduler import host_nodes
from ghsched_nova.tests.fixtures import states  # noqa: F401
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

#: Random hosts.
CASES = 5000


def make_cell(caches, threads=1, taken=(), physnets=None, number=0):
    """A NUMA cell with L3 caches of some cores, and CPUs that guests have."""
    sizes = list(itertools.accumulate(caches, initial=0))
    cores = sizes[-1]
    siblings = [{core + cores * thread for thread in range(threads)}
                for core in range(cores)]
    of_caches = [frozenset().union(*siblings[first:last])
                 for first, last in itertools.pairwise(sizes)]
    cpus = set().union(*siblings)
    return objects.NUMACell(
        id=number, cpuset=set(), pcpuset=cpus, memory=4096, cpu_usage=0,
        memory_usage=0, mempages=[], pinned_cpus=set(taken),
        siblings=siblings,
        network_metadata=objects.NetworkMetadata(physnets={
            names.make_cache_physnet(one) for one in of_caches}
            if physnets is None else physnets)), of_caches


def make_guest(vcpus, policy=None):
    return objects.InstanceNUMACell(
        id=0, cpuset=set(), pcpuset=set(range(vcpus)), memory=1024,
        pagesize=None, cpu_policy='dedicated', cpu_thread_policy=policy,
        cpu_pinning={})


def fit(cell, guest, wish, reserved=0):
    """The caches' CPUs that Nova's fit gives a guest; None if it refuses."""
    flavor = objects.Flavor(
        extra_specs={'ghsched:cpu_cache': wish} if wish else {})
    with numa.choosing_cpus(flavor):
        found = hardware.numa_fit_instance_to_host(
            objects.NUMATopology(cells=[cell]), topology(guest, reserved), {})
    return found and frozenset(found.cells[0].cpu_pinning.values())


def topology(guest, reserved):
    return objects.InstanceNUMATopology(
        cells=[guest],
        emulator_threads_policy='isolate' if reserved else None)


def count(caches, cpus):
    return sum(not cpus.isdisjoint(one) for one in caches)


class JudgedTest(base.TestCase):

    def setUp(self):
        super().setUp()
        numa.patch_numa_fit()
        self.nova = hardware.numa_fit_instance_to_host.__wrapped__

    def fewest(self, cell, caches, guest, reserved):
        """The least number of caches whose CPUs Nova's fit accepts."""
        for number in range(1, len(caches) + 1):
            for chosen in itertools.combinations(caches, number):
                cpus = frozenset().union(*chosen)
                part = cell.obj_clone()
                part.pcpuset = cell.pcpuset & cpus
                part.pinned_cpus = cell.pinned_cpus & cpus
                part.siblings = [core & cpus for core in cell.siblings]
                if self.nova(objects.NUMATopology(cells=[part]), topology(
                        guest.obj_clone(), reserved), {}):
                    return number
        return None

    def test_no_fewer_caches_would_do(self):
        for seed in spaces.choose(range(CASES)):
            with self.subTest(seed=seed):
                self.judge(random.Random(seed))  # noqa: S311

    def judge(self, draw):
        threads = draw.choice((1, 1, 2, 2, 4))
        sizes = [draw.randint(1, 4) for _one in range(draw.randint(2, 5))]
        empty, caches = make_cell(sizes, threads)
        cell, caches = make_cell(sizes, threads, draw.sample(
            sorted(empty.pcpuset), draw.randint(0, len(empty.pcpuset) - 1)))
        guest = make_guest(
            draw.randint(1, max(1, len(cell.free_pcpus))), draw.choice(
                (None, 'prefer', 'isolate', *(
                    ['require'] if threads > 1 else []))))
        reserved = draw.choice((0, 0, 1))
        least = self.fewest(cell, caches, guest, reserved)
        found = fit(cell, guest.obj_clone(), 'prefer', reserved)
        self.assertEqual(least is None, found is None)
        if found is not None:
            # Nova may leave a cache out that the CPU of QEMU is on.
            self.assertLessEqual(count(caches, found), least)
        promised = self.fewest(empty, caches, guest, reserved)
        found = fit(cell, guest.obj_clone(), 'require', reserved)
        if least is not None and least <= promised:
            self.assertLessEqual(count(caches, found), promised)
        else:
            self.assertIsNone(found)


#: Cases of the tests of kubelet's CPU manager (cpu_assignment_test.go and
#: policy_static_test.go of Kubernetes 1.36, prefer-align-cpus-by-uncorecache):
#: threads of a core, CPUs of each L3, how many of these are free, CPUs asked
#: for, and how many L3 it takes.
KUBELET = (
    (1, 4, (3, 4, 4, 4), 10, 3), (1, 4, (4, 4, 4, 4), 4, 1),
    (1, 4, (2, 4), 6, 2), (2, 8, (4, 8), 6, 1), (2, 8, (6, 8), 10, 2),
    (2, 16, (0, *[16] * 11), 16, 1), (2, 8, (4, *[8] * 15), 8, 1),
    (2, 8, (4, 0, *[8] * 14), 12, 2),
    (1, 4, (0, 4, 0, 0, 4, 0, 4, 4), 12, 3), (1, 8, (6, 0, 8, 8), 4, 1),
)


class ChoiceTest(base.TestCase):

    def setUp(self):
        super().setUp()
        numa.patch_numa_fit()

    def test_no_more_caches_than_kubelet_takes(self):
        for threads, size, free, needed, expected in KUBELET:
            sizes = [size // threads for _one in free]
            _empty, caches = make_cell(sizes, threads)
            taken = set()
            for cache, left in zip(caches, free, strict=True):
                # Whole cores, in the order of their numbers.
                cores = sum(sizes)
                taken |= {cpu for _core, cpu in sorted(
                    (cpu % cores, cpu) for cpu in cache)[:size - left]}
            cell, caches = make_cell(sizes, threads, taken)
            found = fit(cell, make_guest(needed), 'prefer')
            self.assertLessEqual(count(caches, found), expected,
                                 (size, free, needed))

    def test_empty_caches_are_kept_for_guests_that_need_all_of_one(self):
        cell, caches = make_cell([4, 4, 4], taken={0})
        self.assertEqual({1, 2, 3}, fit(cell, make_guest(3), 'prefer'))
        self.assertEqual(caches[1], fit(cell, make_guest(4), 'prefer'))

    def test_guest_without_the_key_is_fitted_as_nova_does(self):
        cell, _caches = make_cell([4, 4], taken={0, 1})
        for wish in (None, 'none'):
            self.assertEqual({2, 3, 4, 5}, fit(cell, make_guest(4), wish))

    def test_require_refuses_what_takes_more_caches_than_an_empty_node(self):
        cell, caches = make_cell([4, 4, 4], taken={0, 4, 8})
        self.assertIsNone(fit(cell, make_guest(4), 'require'))
        self.assertEqual(2, count(caches, fit(cell, make_guest(4), 'prefer')))
        # More than one L3 has: two of them hold it on an empty node.
        self.assertEqual(2, count(caches, fit(cell, make_guest(6),
                                              'require')))
        self.assertIsNone(fit(cell, make_guest(7), 'require'))

    def test_node_with_one_cache_is_fitted_as_before(self):
        cell, _caches = make_cell([8], taken={0}, physnets={'ghsched-numa0'})
        for wish in ('prefer', 'require'):
            self.assertEqual({1, 2, 3, 4}, fit(cell, make_guest(4), wish))

    def test_malformed_names_of_caches_are_none(self):
        cell, _caches = make_cell([4, 4], physnets={
            'ghsched-l3-', 'ghsched-l3-3to1', 'ghsched-l3-99999',
            'ghsched-l3-1to2-x', 'ghsched-l3--1'})
        self.assertEqual({0, 1, 2}, fit(cell, make_guest(3), 'require'))


class ShortageTest(base.TestCase):
    """Reasons of hosts without CPUs of few enough L3 caches."""

    def find(self, needed, *taken, caches=(4, 4), wish='require', reserved=0):
        cells = []
        for number, cpus in enumerate(taken):
            cell, _caches = make_cell(caches, taken=cpus, number=number)
            cell.socket = None
            cells.append(cell)
        return host_nodes.find_cache_shortage(
            types.SimpleNamespace(
                numa_topology=objects.NUMATopology(cells=cells),
                cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0),
            types.SimpleNamespace(
                flavor=objects.Flavor(
                    extra_specs={'ghsched:cpu_cache': wish}),
                numa_topology=topology(make_guest(needed), reserved)))

    def test_figures_are_those_of_the_best_node(self):
        found = self.find(4, {2, 3, 5, 6, 7}, {3, 6, 7})
        self.assertEqual((3, 4), (found.free, found.needed))
        self.assertEqual('no NUMA node has 4 dedicated CPUs of one L3 cache '
                         'free (ghsched:cpu_cache=require)', found.text)
        self.assertIn('the most free is 3', found.detail)
        self.assertIn('ghsched:cpu_cache=prefer', found.cure)

    def test_guest_that_needs_two_caches_on_an_empty_node(self):
        found = self.find(5, {2, 3}, caches=(4, 2, 2))
        self.assertEqual((4, 5), (found.free, found.needed))
        self.assertIn('of 2 L3 caches', found.text)

    def test_cpu_of_the_emulator_is_counted(self):
        self.assertIsNone(self.find(3, {0, 4}, reserved=0))
        self.assertEqual(4, self.find(3, {0, 4}, reserved=1).needed)

    def test_nothing_is_said_where_something_else_is_short(self):
        for needed, taken in ((4, [{2, 3, 5, 6, 7}]), (9, [set()]),
                              (4, [{4, 5, 6, 7}]), (4, [])):
            self.assertIsNone(self.find(needed, *taken), (needed, taken))
        self.assertIsNone(self.find(4, {3, 5, 6, 7}, wish='prefer'))
        # All CPUs share one L3.
        self.assertIsNone(self.find(4, {3, 5, 6}, caches=(8,)))


class NodesTest(base.TestCase):
    """Guests of several NUMA nodes."""

    def fit(self, order=None):
        numa.patch_numa_fit()
        cells = []
        for node, taken in enumerate(({0, 1}, {0}, {0, 1, 4})):
            cell, _caches = make_cell([4, 4], taken=taken, number=node)
            cells.append(cell)
        guests = [make_guest(4), make_guest(3)]
        guests[1].id = 1
        networks = {names.make_host_nodes_physnet(order)} if order else set()
        with numa.choosing_cpus(objects.Flavor(
                extra_specs={'ghsched:cpu_cache': 'require'})):
            found = hardware.numa_fit_instance_to_host(
                objects.NUMATopology(cells=cells),
                objects.InstanceNUMATopology(cells=guests), {},
                numa.make_limits(types.SimpleNamespace(
                    cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0),
                    networks, False))
        return found and [(cell.id, frozenset(cell.cpu_pinning.values()))
                          for cell in found.cells]

    def test_nodes_have_their_parts_where_no_order_is_chosen(self):
        self.assertEqual([(0, {4, 5, 6, 7}), (1, {1, 2, 3})], self.fit())

    def test_chosen_order_is_kept_or_the_guest_does_not_fit(self):
        self.assertEqual([(1, {4, 5, 6, 7}), (2, {5, 6, 7})],
                         self.fit((1, 2)))
        self.assertIsNone(self.fit((2, 1)))

    def test_unequal_nodes_on_shared_cpus_are_fitted_as_nova_does(self):
        """Nova takes the emptiest host nodes, which are the last of many."""
        numa.patch_numa_fit()
        cells = [objects.NUMACell(
            id=node, cpuset=set(range(8 * node, 8 * node + 8)), pcpuset=set(),
            memory=4096, cpu_usage=8 - node, memory_usage=512 * (8 - node),
            mempages=[], pinned_cpus=set(), siblings=[],
            network_metadata=objects.NetworkMetadata(physnets=set()))
            for node in range(8)]
        guest = objects.InstanceNUMATopology(cells=[
            objects.InstanceNUMACell(
                id=number, cpuset=set(range(8 * number, 9 * number + 1)),
                pcpuset=set(), memory=256, pagesize=None, cpu_policy=None,
                cpu_pinning={}) for number in range(3)])
        for wish in ('none', 'prefer', 'require'):
            flavor = objects.Flavor(extra_specs={'ghsched:cpu_cache': wish})
            with numa.choosing_cpus(flavor):
                found = hardware.numa_fit_instance_to_host(
                    objects.NUMATopology(cells=cells), guest.obj_clone(), {},
                    numa.make_limits(types.SimpleNamespace(
                        cpu_allocation_ratio=2.0, ram_allocation_ratio=1.0),
                        set(), False))
            self.assertEqual([7, 6, 5], found and [
                cell.id for cell in found.cells], wish)


class HostTest(base.TestCase):

    def describe(self, caches):
        """Capabilities of a host of one NUMA node, by the caches of CPUs."""
        root = Path(self.useFixture(fixtures.TempDir()).path)
        cpus = root / 'devices/system/cpu'
        for cpu, shared in caches.items():
            cache = cpus / f'cpu{cpu}/cache/index3'
            cache.mkdir(parents=True)
            (cache / 'shared_cpu_list').write_text(f'{shared}\n')
        node = root / 'devices/system/node/node0'
        node.mkdir(parents=True)
        (node / 'cpulist').write_text('0-3\n')
        return cpu_cache.CpuCaches(root).describe_host(HostDescription(
            nodes=(0,), control_groups=0,
            capabilities=frozenset({'MEM_BW_MAX'}))).capabilities

    def test_capability_needs_a_kernel_that_says_who_shares_an_l3(self):
        self.assertEqual({'MEM_BW_MAX', 'CPU_CACHE'},
                         self.describe({0: '0-1', 1: '0-1', 2: '2-3',
                                        3: '2-3'}))
        self.assertEqual({'MEM_BW_MAX'}, self.describe({0: '0-1'}))

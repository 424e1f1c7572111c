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

"""Nova's own fit judges whether a guest NUMA node has room on a host node.

Nova's account of a host is read from its objects, and each decision is
compared with that of ``nova.virt.hardware``.
"""

import types

from hypothesis import assume
from hypothesis import given
from hypothesis import strategies as st
from nova import exception
from nova import objects
from nova.virt import hardware

from ghsched_nova.nova_seams import compute
from ghsched_nova.nova_seams import shared
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.tests import base

shared.config()
objects.register_all()

SIZES = (4, 2048, 1048576)
KINDS = {'small': hardware.MEMPAGES_SMALL, 'large': hardware.MEMPAGES_LARGE,
         'any': hardware.MEMPAGES_ANY}
RATIOS = st.sampled_from([1.0, 1.5, 2.0, 16.0])


@st.composite
def host_cells(draw):
    """Draw a host NUMA node in use, huge pages and SMT included."""
    cpus = list(range(draw(st.integers(0, 12))))
    threads = draw(st.sampled_from([1, 2]))
    cores = [set(cpus[at:at + threads])
             for at in range(0, len(cpus), threads)]
    dedicated = {cpu for core in cores[:draw(st.integers(0, len(cores)))]
                 for cpu in core}
    pages = [objects.NUMAPagesTopology(
        size_kb=size, total=(total := draw(st.integers(
            0, 16 * 1048576 // size))), used=(used := draw(
                st.integers(0, total))),
        reserved=draw(st.integers(0, total - used)))
        for size in SIZES[:draw(st.integers(0, 3))]]
    memory = draw(st.integers(0, 65536))
    return objects.NUMACell(
        id=3, cpuset=set(cpus) - dedicated, pcpuset=dedicated, memory=memory,
        cpu_usage=draw(st.integers(0, 24)),
        memory_usage=draw(st.integers(0, memory)), socket=0,
        siblings=cores,
        pinned_cpus=set(draw(st.sets(st.sampled_from(sorted(dedicated)))
                             if dedicated else st.just(set()))),
        mempages=pages, network_metadata=objects.NetworkMetadata(
            physnets=set(), tunneled=False))


@st.composite
def guest_cells(draw):
    """Draw a guest NUMA node and the page size that its flavor asks for."""
    policy = draw(st.sampled_from([None, 'shared', 'dedicated', 'mixed']))
    shared = 0 if policy == 'dedicated' else draw(st.integers(1, 12))
    pinned = (draw(st.integers(1, 12)) if policy in ('dedicated', 'mixed')
              else 0)
    page = draw(st.sampled_from([None, *KINDS, *SIZES]))
    cell = objects.InstanceNUMACell(
        id=0, cpuset=set(range(shared)),
        pcpuset=set(range(shared, shared + pinned)),
        memory=draw(st.integers(1, 16) | st.integers(1, 64).map(
            lambda count: 1024 * count)),
        pagesize=KINDS.get(page, page), cpu_policy=policy,
        cpu_thread_policy=None)
    return cell, page


def node_rooms(cells, cpu_ratio, ram_ratio):
    """Return the rooms that nova-compute publishes for host cells."""
    node = types.SimpleNamespace(
        numa_topology=objects.NUMATopology(cells=cells)._to_json(),
        cpu_allocation_ratio=cpu_ratio, ram_allocation_ratio=ram_ratio)
    tracker = types.SimpleNamespace(compute_nodes={'host_a': node})
    return compute.list_node_capacities(types.SimpleNamespace(
        _compute=types.SimpleNamespace(rt=tracker)), 'host_a')


def need(cell):
    """Return what a guest cell takes, as the flavor says."""
    return GuestNode(len(cell.pcpuset), len(cell.cpuset), cell.memory)


class NovaFitTest(base.TestCase):

    @given(host_cells(), guest_cells(), RATIOS, RATIOS)
    def test_guest_node_fits_where_nova_takes_it(self, host, guest, cpus,
                                                 memory):
        cell, page = guest
        room, = node_rooms([host], cpus, memory)
        # Nova refuses every page size on a host that reports no pages.
        assume(room.pages or page is None)
        found = room.find_shortages(need(cell), page)
        limits = objects.NUMATopologyLimits(
            cpu_allocation_ratio=cpus, ram_allocation_ratio=memory)
        try:
            taken = hardware._numa_fit_instance_cell(host, cell, limits)
        except exception.MemoryPageSizeNotSupported:
            taken = None
        self.assertEqual(taken is not None, not found, (room, found))

    @given(host_cells(), guest_cells(), RATIOS, RATIOS)
    def test_room_left_is_that_of_nova_with_the_guest(self, host, guest,
                                                      cpus, memory):
        cell, page = guest
        room, = node_rooms([host], cpus, memory)
        # Nova cannot count guests of a host that reports no pages.
        if not room.pages or room.find_shortages(need(cell), page):
            return
        limits = objects.NUMATopologyLimits(
            cpu_allocation_ratio=cpus, ram_allocation_ratio=memory)
        taken = hardware._numa_fit_instance_cell(host, cell, limits)
        after = hardware.numa_usage_from_instance_numa(
            objects.NUMATopology(cells=[host]),
            objects.InstanceNUMATopology(cells=[taken]))
        expected, = node_rooms(after.cells, cpus, memory)
        self.assertEqual(expected, room.subtract_guest_node(need(cell), page))

    def test_host_that_has_not_reported_has_no_rooms(self):
        tracker = types.SimpleNamespace(compute_nodes={})
        self.assertEqual([],
                         compute.list_node_capacities(
                             types.SimpleNamespace(
                                 _compute=types.SimpleNamespace(rt=tracker)),
                             'host_a'))

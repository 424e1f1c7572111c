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


"""Nova's objects for the tests of the weigher."""

import fixtures
from nova import objects
from nova.pci import stats
from nova.scheduler import host_manager

objects.register_all()

RATIO = 1.0

#: Time of the tests of weighers, in seconds since the epoch.
NOW = 1_800_000_000.0


def stop_clock(test):
    """Stop the wall clock at :data:`NOW` until a test ends."""
    test.useFixture(fixtures.MonkeyPatch('time.time', lambda: NOW))


def cell(number, cpus=4, pinned=0, floating=0, shared=None, dedicated=None,
         memory_usage=None, pages=(), physnets=()):
    """A host cell whose CPUs are for guests of both kinds, as Nova's default.

    :param pinned: how many are taken by pinned guests.
    :param floating: vCPUs of guests that float on the cell.
    """
    each = set(range(number * cpus, (number + 1) * cpus))
    pcpus = each if dedicated is None else set(sorted(each)[:dedicated])
    return objects.NUMACell(
        id=number, cpuset=each if shared is None else set(
            sorted(each)[cpus - shared:]),
        pcpuset=pcpus, memory=1024, cpu_usage=floating,
        memory_usage=(256 * bool(pinned or floating) if memory_usage is None
                      else memory_usage),
        pinned_cpus=set(sorted(pcpus)[:pinned]),
        siblings=[{cpu} for cpu in each], socket=0, mempages=list(pages),
        network_metadata=objects.NetworkMetadata(
            physnets=set(physnets), tunneled=False))


def pool(node, count=4, address='0000:81:00.0', **tags):
    return {'vendor_id': '8086', 'product_id': '1515', 'numa_node': node,
            'dev_type': 'type-VF', 'address': address, 'count': count,
            **tags}


def host(cells=(), pools=(), name='host_a', **values):
    """A HostState as nova-scheduler has it."""
    state = host_manager.HostState(name, name, 'cell')
    if cells:
        state.numa_topology = objects.NUMATopology(cells=list(cells))
    state.pci_stats = stats.PciDeviceStats(state.numa_topology)
    state.pci_stats.pools = list(pools)
    known = {'vcpus_total': sum(len(one.cpuset) for one in cells),
             'vcpus_used': sum(one.cpu_usage + len(one.pinned_cpus)
                               for one in cells),
             'total_usable_ram_mb': 1024 * len(cells),
             'free_ram_mb': sum(one.avail_memory for one in cells),
             'cpu_allocation_ratio': RATIO, 'ram_allocation_ratio': RATIO}
    for key, value in {**known, **values}.items():
        setattr(state, key, value)
    return state


def spec(size=1, cpus=2, memory=256, pinned=True, vfs=0, page_size=None,
         thread_policy=None, **request):
    """A request of a guest; ``size`` 0 is one without a NUMA topology.

    :param cpus: of each guest node.
    """
    each = max(1, size)
    return objects.RequestSpec(
        flavor=objects.Flavor(name='m1', vcpus=cpus * each,
                              memory_mb=memory * each, root_gb=1,
                              ephemeral_gb=0, swap=0, extra_specs={}),
        numa_topology=_topology(size, cpus, memory, pinned, page_size,
                                thread_policy) if size else None,
        pci_requests=objects.InstancePCIRequests(requests=[
            objects.InstancePCIRequest(
                count=vfs, request_id='vf', alias_name='vf',
                spec=[{'vendor_id': '8086', 'product_id': '1515',
                       'dev_type': 'type-VF', 'resource_class': 'X'}],
                **request)] if vfs else []))


def _topology(size, cpus, memory, pinned, page_size, thread_policy):
    cells = []
    for number in range(size):
        each = set(range(number * cpus, (number + 1) * cpus))
        cells.append(objects.InstanceNUMACell(
            id=number, cpuset=set() if pinned else each,
            pcpuset=each if pinned else set(), memory=memory,
            pagesize=page_size, cpu_thread_policy=thread_policy,
            cpu_policy='dedicated' if pinned else None))
    return objects.InstanceNUMATopology(cells=cells)

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


"""Load and waiting time of the NUMA nodes of a host, as one record (pure).

The load of a resource is the fraction of a period in which it was busy; the
waiting time is the fraction in which someone waited for it. The load of a
resource that can be overcommitted may exceed 1. An unknown value is None,
never 0.

Nova stores the stats of a compute node as text of at most 64 KiB in all.
Therefore only the loads of host NUMA nodes are stored there. The load of a
guest is part of the diagnostics of this guest.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
from dataclasses import dataclass
from typing import Any
from typing import TypeVar

from ghsched_placement.base import wire

KEY = 'ghsched_load'
#: Version of the record's format. A new field does not change it, a new
#: meaning of a field does.
VERSION = 1

#: Fields of :class:`HostNodeLoad` that can make a host NUMA node a bottleneck.
RESOURCES = ('cpu_load', 'cpu_wait', 'memory_load', 'memory_wait',
             'io_load', 'io_wait')

#: Maximum length and number of names in a record, such as those of resources.
_LONGEST_NAME, _MOST_NAMES = 64, 64

_Node = TypeVar('_Node', 'HostNodeLoad', 'GuestNodeLoad')


@dataclass(frozen=True)
class HostNodeLoad:
    """Load of a host NUMA node in one period; a value is None if unknown.

    Loads and waits are fractions of the period, unless another unit is given.

    :param node: number of the node.
    :param cpus: number of online CPUs.
    :param vcpus: number of vCPUs of guests that are bound to the node.
    :param memory: memory in MiB.
    :param memory_free: unused memory in MiB.
    :param cpu_load: busy time of the CPUs.
    :param cpu_wait: time in which vCPUs of the node's guests were ready to run
        but waited for a CPU; mean over the vCPUs, weighted by the time that
        each wanted to run.
    :param bandwidth: used memory bandwidth in bytes per second.
    :param capacity: bytes per second that the memory can deliver.
    :param memory_load: used bandwidth divided by the capacity.
    :param memory_wait: time in which at least one thread of the node's guests
        waited for memory to be reclaimed, read back or swapped in (PSI).
    :param reclaim: pages per second that the kernel reclaimed.
    :param refaults: reclaimed pages per second that were read again.
    :param remote: fraction of the memory of guests on the node's CPUs that is
        on other nodes.
    :param io_load: busy time of the busiest block device of the node.
    :param io_wait: mean number of requests that waited for this device.
    :param bottlenecks: names of :data:`RESOURCES` for which the node is a
        bottleneck; None if this was not determined.
    """

    node: int
    cpus: int | None = None
    vcpus: int | None = None
    memory: int | None = None
    memory_free: int | None = None
    cpu_load: float | None = None
    cpu_wait: float | None = None
    bandwidth: float | None = None
    capacity: float | None = None
    memory_load: float | None = None
    memory_wait: float | None = None
    reclaim: float | None = None
    refaults: float | None = None
    remote: float | None = None
    io_load: float | None = None
    io_wait: float | None = None
    bottlenecks: tuple[str, ...] | None = None

    def get_loads_by_resource(self) -> dict[str, float]:
        """Return the node's known loads and waiting times, by resource.

        The resources are those in RESOURCES, such as CPUs and memory
        bandwidth.
        """
        found = {name: getattr(self, name) for name in RESOURCES}
        return {name: value for name, value in found.items()
                if value is not None}


@dataclass(frozen=True)
class GuestNodeLoad:
    """Load of a NUMA node of a running guest; a value is None if unknown.

    A guest without a NUMA topology counts as one node with the number 0.

    :param guest: UUID of the guest.
    :param node: number of the guest NUMA node.
    :param host_node: number of the host NUMA node on which it runs; None if
        the guest may run on several.
    :param vcpus: number of vCPUs.
    :param memory: memory in MiB.
    :param cpu_load: mean busy time of the vCPUs, as a fraction of the period.
    :param cpu_wait: like :attr:`HostNodeLoad.cpu_wait`, for the vCPUs of this
        node.
    :param bandwidth: used memory bandwidth in bytes per second.
    :param memory_wait: like :attr:`HostNodeLoad.memory_wait`, for the whole
        guest.
    :param remote: fraction of the guest node's memory that is on host nodes on
        which its vCPUs did not run.
    :param io_wait: fraction of the period in which at least one thread of the
        guest waited for I/O (PSI), for the whole guest.
    """

    guest: str
    node: int = 0
    host_node: int | None = None
    vcpus: int | None = None
    memory: int | None = None
    cpu_load: float | None = None
    cpu_wait: float | None = None
    bandwidth: float | None = None
    memory_wait: float | None = None
    remote: float | None = None
    io_wait: float | None = None


@dataclass(frozen=True)
class HostLoad:
    """Loads of the NUMA nodes of a host, as the host has measured them.

    :param time: seconds since 1970, of the host's clock.
    :param period: seconds over which it was measured.
    """

    time: float
    period: float
    nodes: tuple[HostNodeLoad, ...] = ()
    guests: tuple[GuestNodeLoad, ...] = ()

    def get_nodes_by_number(self) -> dict[int, HostNodeLoad]:
        """Return the load of each NUMA node of the host, by node number."""
        return {node.node: node for node in self.nodes}


def make_load_stats(load: HostLoad) -> dict[str, str]:
    """Return a host's load record as host stats of Nova, without its guests.

    The record has the load of the CPUs, memory and other resources of each
    NUMA node. nova-compute reports host stats to nova-scheduler.
    """
    return FORMAT.make_field(dataclasses.replace(load, guests=()))


def make_guest_load_diagnostics(load: HostLoad, guest: str) -> dict[str, str]:
    """Return a host's load record as a field of one guest's diagnostics.

    The record has the load of each NUMA node and of each guest. The loads of
    other guests are left out.

    :param guest: UUID of the guest.
    """
    return FORMAT.make_field(dataclasses.replace(load, guests=tuple(
        one for one in load.guests if one.guest == guest)))


def parse_load_stats(stats: Mapping[str, Any]) -> HostLoad | None:
    """Parse a host's load record from its stats or from a guest's diagnostics.

    Unknown fields and malformed nodes are ignored; a malformed value of a node
    counts as unknown.

    :returns: None if the record is missing or malformed.
    """
    return FORMAT.parse(stats)


def _make_fields(load: HostLoad) -> dict[str, Any]:
    return {'time': round(load.time, 1), 'period': round(load.period, 3),
            'nodes': [_pack_node(node) for node in load.nodes],
            'guests': [_pack_node(guest) for guest in load.guests]}


def _parse_load(found: Mapping[str, Any]) -> HostLoad:
    return HostLoad(wire.check_number(found['time'], wire.MAX_TIME),
                    wire.check_number(found['period'], wire.MAX_TIME),
                    _parse_nodes(HostNodeLoad, found.get('nodes')),
                    _parse_nodes(GuestNodeLoad, found.get('guests')))


#: Host's load record as JSON, without unknown values: the load of the CPUs,
#: memory and other resources of each NUMA node.
FORMAT = wire.Format(KEY, VERSION, _parse_load, _make_fields)


def _pack_node(node: HostNodeLoad | GuestNodeLoad) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value
            for name, value in dataclasses.asdict(node).items()
            if value is not None}


def _parse_nodes(kind: type[_Node], found: Any) -> tuple[_Node, ...]:
    made = [_parse_node(kind, one) for one in wire.check_list(found or ())
            if isinstance(one, Mapping)]
    return tuple(one for one in made if one is not None)


def _parse_node(kind: type[_Node], found: Mapping[str, Any]) -> _Node | None:
    """Parse the load of a NUMA node; a malformed value counts as unknown.

    :returns: None if the node or the guest is unknown.
    """
    values = {field.name: _check_node_value(field, found.get(field.name))
              for field in dataclasses.fields(kind)}
    if values['node'] is None or values.get('guest', '') is None:
        return None
    return kind(**values)


def _check_node_value(field: Any, value: Any) -> Any:
    """Return a valid value of a field of a node; None if it is malformed."""
    try:
        return (_CHECK_BY_NAME.get(field.name)
                or _CHECK_BY_TYPE[field.type])(value)
    except wire.MALFORMED:
        return None


def _check_count(value: Any) -> int:
    number = wire.check_number(value)
    if number != int(number):
        raise ValueError('not a whole number')
    return int(number)


def _check_load(value: Any) -> float:
    return float(wire.check_number(value, wire.MAX_LOAD))


def _check_names(value: Any) -> tuple[str, ...]:
    return tuple(wire.check_text(one, _LONGEST_NAME)
                 for one in wire.check_list(value, _MOST_NAMES)
                 if isinstance(one, str))


#: Check of a field by its type, unless there is one for its name.
_CHECK_BY_TYPE: Mapping[Any, Callable[[Any], Any]] = {
    int: _check_count, int | None: _check_count,
    str: lambda value: wire.check_text(value, _LONGEST_NAME),
    float | None: lambda value: float(wire.check_number(value)),
    tuple[str, ...] | None: _check_names}
_CHECK_BY_NAME: Mapping[str, Callable[[Any], Any]] = {
    'node': wire.check_node, 'host_node': wire.check_node,
    **dict.fromkeys((*RESOURCES, 'remote'), _check_load)}

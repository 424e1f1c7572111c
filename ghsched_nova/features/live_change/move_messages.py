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

"""Wire format of a guest's move between host NUMA nodes.

Plain lists, numbers and texts only, as
:mod:`ghsched_nova.features.live_change.messages`.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import reprlib
from typing import Any

from ghsched_nova.features.live_change import messages
from ghsched_placement.base import cpulist
from ghsched_placement.features.live_change.node_move import NodeMove
from ghsched_placement.fit.cells import GuestCell

#: Limit of host NUMA node numbers (MAX_NUMNODES of include/linux/numa.h is
#: 1024 at most).
MAX_NODES = 1024
#: Limit of the MiB of a guest NUMA node, and of the KiB of a page.
MAX_MEMORY = 2 ** 40

PackedMove = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class MoveRequest:
    """Request that a host move a guest between its NUMA nodes.

    :param move: NUMA nodes and CPUs of the guest before and after the move.
    :param shared_cpus: shared CPUs by host NUMA node.
    """

    move: NodeMove
    shared_cpus: Mapping[int, frozenset[int]]


def pack_move(request: MoveRequest) -> list[dict[str, Any]]:
    """Encode a guest's move between host NUMA nodes for an RPC call.

    :returns: one entry per guest NUMA node.
    """
    def cell(one: GuestCell) -> dict[str, Any]:
        return {
            'host_node': one.host_node, 'vcpus': sorted(one.vcpus),
            'pins': sorted([vcpu, cpu] for vcpu, cpu in one.pins.items()),
            'reserved': sorted(one.reserved), 'memory': one.memory,
            'page_size': one.page_size,
            'shared': sorted(request.shared_cpus.get(one.host_node, ()))}
    return [{'before': cell(old), 'after': cell(new)} for old, new in zip(
        request.move.before, request.move.after, strict=True)]


def unpack_move(packed: PackedMove) -> MoveRequest:
    """Decode a guest's move between host NUMA nodes from an RPC call.

    The CPU thread policy is not part of the message.

    :raises MessageError: if a value is missing or of another type.
    """
    try:
        before = tuple(_cell(one['before']) for one in packed)
        after = tuple(_cell(one['after']) for one in packed)
        shared = {side['host_node']: _cpus(side['shared'])
                  for one in packed for side in one.values()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise messages.MessageError(f'malformed move: {error!r}') from error
    return MoveRequest(NodeMove(before, after), shared)


def _cell(one: Mapping[str, Any]) -> GuestCell:
    size = one['page_size']
    return GuestCell(
        _require_number_in_range(one['host_node'], MAX_NODES),
        _cpus(one['vcpus']),
        {
            _require_number_in_range(
                vcpu, cpulist.MAX_CPUS
            ): _require_number_in_range(cpu, cpulist.MAX_CPUS)
            for vcpu, cpu in one['pins']
        },
        _cpus(one['reserved']),
        _require_number_in_range(one['memory'], MAX_MEMORY),
        None if size is None else _require_number_in_range(size, MAX_MEMORY),
    )


def _cpus(numbers: Iterable[object]) -> frozenset[int]:
    return frozenset(_require_number_in_range(number, cpulist.MAX_CPUS)
                     for number in numbers)


def _require_number_in_range(value: object, limit: int) -> int:
    """Return a value if it is an integer of at least 0 and below a limit.

    :raises TypeError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or (
            not 0 <= value < limit):
        raise TypeError(f'{reprlib.repr(value)} is not a number below {limit}')
    return value

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
"""Lines of the channel between a guest and its host (pure).

Each line is one JSON object in UTF-8, at most :data:`MAX_LINE` bytes with its
newline. The host sends the guest its policy, the limits that the kernel of the
host enforces, and the reason for the line. The guest requests this line again,
or reports its pressure. Unknown fields are ignored.

Guests are not trusted: a line that is too long or malformed is dropped and
counted.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
import json
import types
from typing import Any

from ghsched_nova.monitor import effective_limits
from ghsched_nova.monitor import view
from ghsched_placement.base import wire
from ghsched_placement.features.load import pressure
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor import vcpu_classes

#: Name of the port in the guest, below /dev/virtio-ports.
PORT = 'org.openstack.ghsched.0'
#: Maximum length of a line in bytes, with its newline.
MAX_LINE = 4096
#: Maximum length of a list of vCPUs that a guest writes.
MAX_LIST = 256
#: Maximum length of an explanation in a line.
_MAX_WHY = 300
#: Version of the lines, in their field ``ghsched``.
VERSION = 1
_MIB = 2 ** 20

#: Why the host writes a line. The guest was started; it was moved, between
#: hosts or between NUMA nodes; its policy or what is enforced of it was
#: changed; the host can no longer enforce it, and can again; the guest asked,
#: or the stream or nova-compute was started again; the host does not move
#: vCPUs between classes as the guest asked.
STARTED, MOVED, CHANGED = 'started', 'moved', 'changed'
UNPROTECTED, RESTORED, REPEATED = 'unprotected', 'restored', 'repeated'
REFUSED = 'refused'

_NOT_ENFORCED = ('the host cannot enforce the policy now; its operators see '
                 'the reason')


#: Limits on one NUMA node in percent and in MiB per second.
Limits = Mapping[str, int | float | None]


@dataclass(frozen=True)
class GuestState:
    """Policy of a guest and its limits, as the host sends them to the guest.

    :param policy: part of its policy that the guest can read.
    :param effective: limits that the kernel of the host enforces, by guest
        NUMA node; empty if unknown.
    :param host_nodes: host NUMA nodes of the guest; they are not sent.
    :param is_enforced: whether the host enforces the policy.
    :param effective_by_class: such limits by vCPU class; empty without
        classes.
    """

    policy: Mapping[str, Any]
    effective: tuple[Limits, ...] = ()
    host_nodes: tuple[int, ...] = ()
    is_enforced: bool = True
    effective_by_class: Mapping[str, tuple[Limits, ...]] = field(
        default_factory=dict)


@dataclass(frozen=True)
class PolicyRequest:
    """A guest's request to send its policy again."""


@dataclass(frozen=True)
class VcpuMoveRequest:
    """A guest's request to move vCPUs between its vCPU classes.

    :param vcpus: requested vCPUs by name of the class, as the guest wrote
        them.
    """

    vcpus: Mapping[str, str]


def make_guest_state(policy: GuestPolicy, host_nodes: Sequence[int],
                     is_enforced: bool, usage: view.GuestUsage | None,
                     capacity: Mapping[int, int],
                     facts: Mapping[str, Any] = types.MappingProxyType({}),
                     ) -> GuestState:
    """Return the policy and limits of a guest that are sent to the guest.

    :param host_nodes: host NUMA node of each guest NUMA node whose bandwidth
        the policy limits.
    :param usage: bandwidth of the guest; None if unknown.
    :param capacity: bytes per second by host NUMA node, where known.
    :param facts: result of ``domain_facts.describe_domain_for_guest``.
    """
    effective = (() if usage is None else
                 _list_node_limits(usage.nodes, host_nodes, capacity))
    by_class = {} if usage is None else {
        one.vcpu_class.name: _list_node_limits(one.nodes, host_nodes, capacity)
        for one in usage.classes}
    # A running domain keeps no more of its policy than this.
    return GuestState({**policy.describe_bandwidth_for_guest(), **facts},
                      effective,
                      tuple(host_nodes), is_enforced, by_class)


def _list_node_limits(rows: Iterable[view.GuestNodeBandwidth],
                      host_nodes: Sequence[int],
                      capacity: Mapping[int, int]) -> tuple[Limits, ...]:
    """Return the limits in force on each guest NUMA node.

    :returns: empty if the limits on one of the nodes are unknown.
    """
    held = {row.nodes[0]: row.effective for row in rows
            if len(row.nodes) == 1 and row.effective is not None}
    return tuple(_convert_limits(held[node], capacity.get(node))
                 for node in host_nodes) if set(host_nodes) <= set(
                     held) else ()


def _convert_limits(limits: effective_limits.EffectiveLimits,
                    capacity: int | None) -> Limits:
    """Convert the limits in force on a node to percent and MiB per second.

    :param capacity: bytes per second of the host NUMA node; None if unknown.
    """
    cap = limits.rate
    if cap is None and capacity and limits.maximum is not None:
        cap = int(capacity * limits.maximum / 100)
    return {
        'mem_bw_min': limits.minimum, 'mem_bw_max': limits.maximum,
        'min_mib': (None if limits.minimum is None or not capacity
                    else capacity * limits.minimum // 100 // _MIB),
        'max_mib': None if cap is None else cap // _MIB}


def choose_reason(last: GuestState, now: GuestState) -> str:
    """Return the reason to inform a guest again; empty if nothing is new.

    :param last: state of which the guest was informed before.
    :param now: present state of the guest.
    """
    if last == now:
        return ''
    if last.is_enforced != now.is_enforced:
        return RESTORED if now.is_enforced else UNPROTECTED
    if last.host_nodes != now.host_nodes:
        return MOVED
    # What is enforced is unknown for a moment after each change.
    return '' if last.policy == now.policy and not now.effective else CHANGED


def explain_change(last: GuestState, now: GuestState, reason: str) -> str:
    """Return an explanation of a guest's new state, as text for people.

    :param last: state of which the guest was informed before.
    :param reason: reason for informing the guest again.
    :returns: empty if the reason needs no explanation.
    """
    if reason == MOVED:
        return 'the server runs on other NUMA nodes of its host'
    if reason == RESTORED:
        return 'the host enforces the policy again'
    if reason != CHANGED:
        return ''
    before, after = (dict(_list_values(one.policy)) for one in (last, now))
    names = sorted({path[-1] for path in before.keys() | after.keys()
                    if before.get(path) != after.get(path)})
    return (f'changed in the policy: {", ".join(names)}' if names else
            'the host enforces other limits')


def _list_values(value: Any, path: tuple[str, ...] = ()
                 ) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each single value of a JSON document with its path."""
    for key, one in (value.items() if isinstance(value, Mapping)
                     else enumerate(value)):
        inner = *path, str(key)
        if isinstance(one, Mapping | list):
            yield from _list_values(one, inner)
        else:
            yield inner, one


def render_line(state: GuestState, reason: str, why: str = '') -> bytes:
    """Render the line that informs a guest of its state.

    If the line would be too long, the limits in force are left out, and then
    the policy itself.

    :param why: explanation of the reason, for people.
    """
    parts: dict[str, Any] = {'policy': state.policy,
                             'effective': state.effective}
    if state.effective_by_class:
        parts['effective_by_class'] = state.effective_by_class
    while True:
        line = json.dumps(
            {'ghsched': VERSION, 'reason': reason,
             'enforced': state.is_enforced,
             'why': why[:_MAX_WHY] or (
                 '' if state.is_enforced else _NOT_ENFORCED), **parts},
            separators=(',', ':')).encode() + b'\n'
        if len(line) <= MAX_LINE or not parts:
            return line
        parts.popitem()


class LineSplitter:
    """Splitter of received data into lines; buffers less than one line.

    :ivar dropped: number of lines that were too long.
    """

    def __init__(self) -> None:
        self._rest = b''
        self._is_too_long = False
        self.dropped = 0

    def split_lines(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that end in new data, without their newlines."""
        *ended, begun = data.split(b'\n')
        for piece in ended:
            line, self._rest = self._rest + piece, b''
            if self._is_too_long or len(line) >= MAX_LINE:
                self._is_too_long = False
                self.dropped += 1
            else:
                yield line
        self._rest += begun
        if len(self._rest) >= MAX_LINE:
            self._rest, self._is_too_long = b'', True


def parse_guest_line(line: bytes) -> (
        PolicyRequest | VcpuMoveRequest | pressure.Pressure | None):
    """Parse a line that a guest wrote.

    :returns: None for a line of a kind that this release does not know.
    :raises one of wire.MALFORMED: for a malformed line.
    """
    found = wire.check_object(json.loads(line), 16)
    if wire.check_integer(found['ghsched']) != VERSION:
        return None
    if 'pressure' in found:
        return pressure.parse_pressure(found['pressure'])
    if 'classes' in found:
        # libvirt's thread calls this: another one parses the lists.
        asked = wire.check_object(found['classes'], vcpu_classes.MAX_CLASSES)
        for name, vcpus in asked.items():
            if not (vcpu_classes.is_class_name(name) and len(vcpus) <= MAX_LIST
                    and vcpus.isascii()):
                raise ValueError('malformed class request')
        return VcpuMoveRequest(asked)
    return PolicyRequest() if found.get('ask') == 'policy' else None

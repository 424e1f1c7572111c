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

"""Wire format of a bandwidth policy between the caller and a host.

Plain lists, numbers and texts only, so that both sides can be of different
releases. An older side ignores keys that are added later to an answer, or to a
node of a policy. A new argument needs a new version.

Calls are ``check_policy``, ``policy_of``, ``set_policy``, ``check_move`` and
``move_nodes`` (see :mod:`ghsched_nova.features.live_change.move_messages`).
The answer to a call of another feature has ``report``.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from ghsched_placement.base import cpulist
from ghsched_placement.base import wire
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.flavor.vcpu_classes import VcpuClass

#: oslo.messaging namespace of ghsched's calls on the topic of nova-compute.
NAMESPACE = 'ghsched'
VERSION = '1.0'

#: Policy of one guest NUMA node, with the keys ``host_node``, ``min``,
#: ``max``, ``hardlimit`` and ``priority``, and with ``l3_ways`` and ``burst``
#: if they are set. With vCPU classes it has ``classes``: one entry per class
#: with ``name``, ``vcpus`` and, if the class has limits, the keys above.
Node = Mapping[str, Any]


class MessageError(ValueError):
    """A malformed RPC message. The text of the error has the reason."""


def pack_policy(policy: GuestPolicy,
                host_nodes: Sequence[int]) -> list[dict[str, Any]]:
    """Encode a bandwidth policy and its host NUMA nodes for an RPC call.

    :param host_nodes: host NUMA node of each guest NUMA node.
    """
    packed = [{'host_node': host_node, **node.to_mapping()}
              for node, host_node in zip(policy.nodes, host_nodes,
                                         strict=True)]
    if policy.classes:
        for number, node in enumerate(packed):
            node['classes'] = [
                {'name': one.name,
                 'vcpus': cpulist.render_cpu_list(one.vcpus or ()),
                 **(one.nodes[number].to_mapping() if one.nodes else {})}
                for one in policy.classes]
    return packed


def unpack_policy(packed: Sequence[Node]
                  ) -> tuple[GuestPolicy, tuple[int, ...]]:
    """Decode a bandwidth policy and its host NUMA nodes from an RPC call.

    :raises MessageError: if a value is missing or of another type.
    """
    try:
        return (GuestPolicy(nodes=tuple(map(NodePolicy.from_mapping, packed)),
                            classes=_unpack_classes(packed)),
                tuple(wire.check_node(one['host_node']) for one in packed))
    except wire.MALFORMED as error:
        raise MessageError(f'malformed bandwidth policy: {error!r}') from error


def _unpack_classes(packed: Sequence[Node]) -> tuple[VcpuClass, ...]:
    """Decode the vCPU classes of a guest.

    :raises ValueError: if the guest NUMA nodes have different classes.
    """
    by_node = [node.get('classes', ()) for node in packed]
    found = []
    for mine in zip(*by_node, strict=True):
        (name, vcpus), *others = {(one['name'], one['vcpus']) for one in mine}
        if others or not isinstance(name, str):
            raise ValueError(f'vCPU class {name!r:.40} differs between guest '
                             'NUMA nodes')
        has_limits = any('min' in one for one in mine)
        found.append(VcpuClass(
            name, cpulist.parse_cpu_list(vcpus),
            tuple(map(NodePolicy.from_mapping, mine)) if has_limits else ()))
    return tuple(found)

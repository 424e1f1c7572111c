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

from ghsched_placement.base import wire
from ghsched_placement.flavor.bandwidth import NodePolicy

#: oslo.messaging namespace of ghsched's calls on the topic of nova-compute.
NAMESPACE = 'ghsched'
VERSION = '1.0'

#: Policy of one guest NUMA node, with the keys ``host_node``, ``min``,
#: ``max``, ``hardlimit`` and ``priority``, and with ``l3_ways`` and ``burst``
#: if they are set.
Node = Mapping[str, Any]


class MessageError(ValueError):
    """A malformed RPC message. The text of the error has the reason."""


def pack_policy(nodes: Sequence[NodePolicy],
                host_nodes: Sequence[int]) -> list[dict[str, Any]]:
    """Encode a bandwidth policy and its host NUMA nodes for an RPC call.

    :param nodes: policy of each guest NUMA node.
    :param host_nodes: host NUMA node of each guest NUMA node.
    """
    return [{'host_node': host_node, **node.to_mapping()}
            for node, host_node in zip(nodes, host_nodes, strict=True)]


def unpack_policy(packed: Sequence[Node]
                  ) -> tuple[tuple[NodePolicy, ...], tuple[int, ...]]:
    """Decode a bandwidth policy and its host NUMA nodes from an RPC call.

    :raises MessageError: if a value is missing or of another type.
    """
    try:
        return (tuple(map(NodePolicy.from_mapping, packed)),
                tuple(wire.check_node(one['host_node']) for one in packed))
    except (KeyError, TypeError, ValueError) as error:
        raise MessageError(f'malformed bandwidth policy: {error!r}') from error

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

"""Headroom that a host reports to the index of nova-scheduler (pure).

The record is JSON text in the stats of a compute node: the version of this
format, the time of writing, the number of counted guests, the free control
groups, and the free percent and the capacity of memory bandwidth by host NUMA
node. Nova itself reports CPUs, memory and VFs. A digest of the compute node's
traits and resource classes in Placement, and the capacities, were added to
version 1; older readers ignore them, and records without them can be read.

The record is a hint. Only Placement decides what is free.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import hashlib
from typing import Any

from ghsched_placement.base import wire

KEY = 'ghsched_headroom'
VERSION = 1

#: Length of the digest that :func:`hash_provider` returns.
_SHAPE_LENGTH = 32


@dataclass(frozen=True)
class Headroom:
    """Free bandwidth and control groups that nova-compute reports for a host.

    :param time: time when these values were first computed, in seconds since
        1970 by the host's clock.
    :param guests: number of guests with a policy whose use was subtracted.
    :param groups: number of free resctrl control groups.
    :param bandwidth: free percent of bandwidth by host NUMA node.
    :param shape: digest of the traits and resource classes of the compute
        node, see :func:`hash_provider`; None if the host does not report it.
    :param capacity: percent of bandwidth that guests can reserve on an empty
        host, by host NUMA node; empty if the host does not report it.
    """

    time: float
    guests: int
    groups: int
    bandwidth: Mapping[int, int]
    shape: str | None = None
    capacity: Mapping[int, int] = field(default_factory=dict)


def hash_provider(traits: Iterable[str], classes: Iterable[str]) -> str:
    """Return a digest of a resource provider's traits and resource classes.

    Two providers with the same digest have the same traits, and inventory of
    the same resource classes.
    """
    text = '\n'.join([*sorted(set(traits)), '', *sorted(set(classes))])
    return hashlib.sha256(text.encode()).hexdigest()[:_SHAPE_LENGTH]


def make_headroom_stats(headroom: Headroom) -> dict[str, str]:
    """Return a host's free bandwidth and control groups as host stats of Nova.

    nova-compute reports host stats to nova-scheduler.
    """
    return FORMAT.make_field(headroom)


def _make_fields(headroom: Headroom) -> dict[str, Any]:
    return {'time': round(headroom.time, 1),
            'guests': headroom.guests, 'groups': headroom.groups,
            'bandwidth': _make_node_keys(headroom.bandwidth),
            **({'shape': headroom.shape} if headroom.shape else {}),
            **({'capacity': _make_node_keys(headroom.capacity)}
               if headroom.capacity else {})}


def _make_node_keys(shares: Mapping[int, int]) -> dict[str, int]:
    return {str(node): share for node, share in sorted(shares.items())}


def parse_headroom_stats(stats: Mapping[str, str | None]) -> Headroom | None:
    """Parse a host's free bandwidth and control groups from Nova's host stats.

    :returns: None if the host does not report them, or the record is
        malformed.
    """
    return FORMAT.parse(stats)


def choose_headroom_report(
        last: Headroom | None, counted: Headroom) -> Headroom:
    """Return the free bandwidth and control groups that a host reports.

    :param last: record that the host reported last.
    :param counted: newest record.
    :returns: ``last`` if only the time has changed.
    """
    if last is not None and replace(last, time=counted.time) == counted:
        return last
    return counted


def _parse_headroom(found: Mapping[str, Any]) -> Headroom:
    shape = found.get('shape')
    return Headroom(
        wire.check_number(found['time'], wire.MAX_TIME),
        wire.check_integer(found['guests']),
        wire.check_integer(found['groups']),
        _parse_node_keys(found['bandwidth']),
        wire.check_text(shape, _SHAPE_LENGTH) if shape else None,
        _parse_node_keys(found.get('capacity', {})))


def _parse_node_keys(found: Any) -> dict[int, int]:
    return {wire.check_node_key(node): wire.check_integer(share)
            for node, share in wire.check_object(found).items()}


FORMAT = wire.Format(KEY, VERSION, _parse_headroom, _make_fields)

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

"""Load columns of ``ghsched-top``; unknown values are shown as ``-``."""

from collections.abc import Iterable
from collections.abc import Sequence
import json
from typing import Any

from ghsched_nova.monitor import topology
from ghsched_placement.features.load import load

NODE_TITLES = ('NODE', 'CPU %', 'WAIT %', 'MEM %', 'STALL %', 'REMOTE %',
               'IO %', 'IO QUEUE', 'BOTTLENECK')
GUEST_TITLES = ('CPU %', 'WAIT %')


def make_load_document(measured: load.HostLoad | None) -> Any:
    """Return the measured load of a host as JSON data.

    nova-compute reports load in the same form.
    """
    return None if measured is None else json.loads(
        load.FORMAT.render(measured))


def format_node_load_rows(measured: load.HostLoad) -> list[list[str]]:
    """Return table rows with the load of each host NUMA node."""
    return [[str(node.node), *map(_percent, (
        node.cpu_load, node.cpu_wait, node.memory_load, node.memory_wait,
        node.remote, node.io_load)),
        '-' if node.io_wait is None else f'{node.io_wait:.1f}',
        ' '.join(node.bottlenecks or ()) or '-'] for node in measured.nodes]


def format_guest_load_cells(
    measured: load.HostLoad | None, uuid: str, nodes: topology.Nodes
) -> list[str]:
    """Return table cells with the load of a guest on host NUMA nodes.

    :param measured: load measurement of the host.
    :param uuid: UUID of the guest.
    :param nodes: the host NUMA nodes.
    """
    here = [one for one in (measured.guests if measured else ())
            if uuid and one.guest == uuid and one.host_node in nodes]
    return [
        _percent(_compute_weighted_mean(here, [one.cpu_load for one in here])),
        _percent(_compute_weighted_mean(here, [one.cpu_wait for one in here]))]


def _compute_weighted_mean(
    guest_nodes: Iterable[load.GuestNodeLoad], values: Sequence[float | None]
) -> float | None:
    """Return the mean of values of guest NUMA nodes, weighted by vCPUs.

    :param guest_nodes: the guest NUMA nodes.
    :param values: value of each node.
    :returns: None if a value is unknown.
    """
    found = [(one.vcpus or 0, value)
             for one, value in zip(guest_nodes, values, strict=True)
             if value is not None]
    vcpus = sum(count for count, _value in found)
    if not vcpus or len(found) < len(values):
        return None
    return sum(count * value for count, value in found) / vcpus


def _percent(value: float | None) -> str:
    return '-' if value is None else f'{100 * value:.1f}'

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

"""Request and report of a move to other NUMA nodes, as JSON and text (pure).

``openstack ghsched server move-node`` and nova-api use them.

The keys of the JSON are stable: none is renamed or removed.

server
    ``uuid``, ``name`` and ``host``.
changed
    Whether anything was moved, or released in Placement; with a dry run,
    whether anything would be.
dry_run
    Whether the move was only checked.
nodes
    For each guest NUMA node: ``guest_node``, ``before`` and ``after``, each
    with ``host_node`` and ``cpus``, the CPUs by vCPU.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from ghsched_placement.base import cpulist
from ghsched_placement.base import decimals
from ghsched_placement.base import wire
from ghsched_placement.flavor import policy as policies

#: Name of the action in nova-api.
KEY = 'move_nodes'

HEADER = ('Guest Node', 'Host Node', 'Host Node After', 'vCPU', 'CPUs',
          'CPUs After')


def parse_node_pairs(texts: Iterable[str]) -> dict[int, int]:
    """Parse pairs of a guest NUMA node and a host NUMA node, such as ``0=1``.

    :param texts: the pairs; ``0=1`` is guest node 0 on host node 1.
    :raises PolicyError: for any other text, and a guest node named twice.
    :returns: host NUMA node by guest NUMA node.
    """
    found: dict[int, int] = {}
    for text in texts:
        guest, _equals, host = text.partition('=')
        guest_node = _parse_node_number(guest, text)
        if guest_node in found:
            raise _make_policy_error(f'names guest node {guest_node} twice')
        found[guest_node] = _parse_node_number(host, text)
    return found


def parse_move_request(body: Mapping[str, Any]) -> dict[int, int]:
    """Parse the target NUMA nodes from an API request to move a server.

    The server moves to other NUMA nodes of its host while it runs.

    :param body: body of the API action.
    :returns: host NUMA node by guest NUMA node.
    :raises PolicyError: when the request is malformed.
    """
    nodes = body[KEY]
    if not isinstance(nodes, dict) or not nodes or not all(
            isinstance(host, int) and not isinstance(host, bool)
            for host in nodes.values()):
        raise _make_policy_error(
            'must map guest NUMA nodes to host NUMA nodes')
    return parse_node_pairs(f'{guest}={host}' for guest, host in nodes.items())


def _parse_node_number(text: str, whole: str) -> int:
    number = decimals.parse_decimal(text)
    if number is None or number > wire.MAX_NODE:
        raise _make_policy_error(f'{whole!r} is not of the form GUEST=HOST, '
                                 'for example 0=1')
    return number


def _make_policy_error(why: str) -> policies.PolicyError:
    return policies.PolicyError(KEY, why)


# -- what is shown ------------------------------------------------------------


def make_move_report(plan: Any, dry_run: bool) -> dict[str, Any]:
    """Return a report on a server's move to other NUMA nodes, as a dict.

    :param plan: the planned move, with the guest and its CPUs before and
        after.
    :param dry_run: whether the move was only checked, and not made.
    """
    guest, request = plan.guest, plan.request

    def side(cell: Any) -> dict[str, Any]:
        shared = sorted(request.shared_cpus.get(cell.host_node, ()))
        return {'host_node': cell.host_node, 'cpus': {
            str(vcpu): [cell.pins[vcpu]] if vcpu in cell.pins else shared
            for vcpu in sorted(cell.vcpus | cell.pins.keys())}}
    return {
        'server': {'uuid': guest.uuid, 'name': guest.name,
                   'host': guest.host},
        'changed': plan.is_needed, 'dry_run': dry_run,
        'nodes': [{'guest_node': number, 'before': side(old),
                   'after': side(new)} for number, (old, new) in enumerate(
                       zip(request.move.before, request.move.after,
                           strict=True))]}


def summarize_move(report: Mapping[str, Any]) -> str:
    """Return a sentence on how a server was moved to other NUMA nodes.

    :param report: report of the move.
    """
    if not report['changed']:
        return 'Nothing to move: the server is there already.'
    if not report['dry_run']:
        return 'Done: the server was moved.'
    return 'This could be done now. Nothing was changed.'


def list_vcpu_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each vCPU of a server moved to other NUMA nodes.

    :param report: report of the move.
    """
    for node in report['nodes']:
        before, after = node['before'], node['after']
        for vcpu, cpus in before['cpus'].items():
            yield (str(node['guest_node']), str(before['host_node']),
                   str(after['host_node']), vcpu,
                   cpulist.render_cpu_list(cpus),
                   cpulist.render_cpu_list(after['cpus'][vcpu]))

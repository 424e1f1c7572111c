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

"""Report of a change of a server's bandwidth policy, as JSON and text (pure).

The keys of the JSON are stable: none is renamed or removed.

server
    ``uuid``, ``name`` and ``host``.
changed
    Whether the policy was changed; with ``--dry-run``, whether it would be
    changed.
dry_run
    Whether the change was only checked.
running
    Whether the new policy is enforced already. The policy of a stopped guest
    is enforced when the guest starts.
nodes
    For each guest NUMA node: ``guest_node``, ``host_node``, ``before`` and
    ``after`` (``min``, ``max``, ``hardlimit`` and ``priority``, null for the
    host's default) and ``effective``, the values in the control group of the
    server for each resctrl ``domain`` of the host node, null for controls that
    the host does not support.
guests
    Number of servers that share this control group, including this one; more
    than 1 only with ``[ghsched]group_sharing``.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from ghsched_placement.features.live_change import change as changes

HEADER = ('Guest node', 'Host node', 'Key', 'Before', 'After',
          'Held by the host')

#: Short name of a key, as it stands in messages and in the JSON.
_SHORT = {key.name: key.name.removeprefix('mem_bw_')
          for key in changes.CHANGEABLE}


def make_change_report(plan: Any, dry_run: bool) -> dict[str, Any]:
    """Return a report on a change of a server's bandwidth policy, as a dict.

    :param plan: the planned change, with the guest and the limits that the
        host sets.
    :param dry_run: whether the change was only checked, and not made.
    """
    guest = plan.guest
    return {
        'server': {'uuid': guest.uuid, 'name': guest.name,
                   'host': guest.host},
        'changed': plan.needed, 'dry_run': dry_run, 'running': guest.running,
        'guests': plan.guests,
        'nodes': [{
            'guest_node': number, 'host_node': host_node,
            **({'vcpu_class': name} if name else {}),
            'before': before.as_dict(), 'after': after.as_dict(),
            'effective': [
                {'domain': one['domain'],
                 **{short: one[short] for short in _SHORT.values()}}
                for one in plan.effective if one['host_node'] == host_node
                and one.get('vcpu_class', '') == name],
        } for name, number, host_node, before, after
            in _yield_node_changes(plan)],
    }


def summarize_change(report: Mapping[str, Any]) -> str:
    """Return a sentence on how a server's bandwidth policy was changed.

    :param report: report of the change.
    """
    together = (f' The host holds these values for {report["guests"]} servers '
                'together, which share a control group.'
                if report['guests'] > 1 else '')
    if not report['changed']:
        return 'Nothing to change.' + together
    if report['dry_run']:
        return 'This could be done now. Nothing was changed.' + together
    return ('Done.' if report['running'] else
            'Done; it holds when the server starts.') + together


def list_change_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each guest NUMA node and each changed extra spec.

    :param report: report of the change.
    """
    for node in report['nodes']:
        suffix = f'.{node["vcpu_class"]}' if 'vcpu_class' in node else ''
        for name, short in _SHORT.items():
            yield (str(node['guest_node']), str(node['host_node']),
                   name + suffix,
                   _format_value(node['before'][short]),
                   _format_value(node['after'][short]),
                   _join_distinct(_format_value(one[short], absent='-')
                                  for one in node['effective']))


def _yield_node_changes(plan: Any
                        ) -> Iterator[tuple[str, int, int, Any, Any]]:
    """Yield vCPU class, guest and host node, and policy before and after."""
    for before, after in zip(plan.change.before.groups,
                             plan.change.after.groups, strict=True):
        for number, host_node in enumerate(plan.guest.host_nodes):
            yield (after.name, number, host_node, before.nodes[number],
                   after.nodes[number])


def _format_value(value: object, absent: str = 'default') -> str:
    if value is None:
        return absent
    return str(value).lower()


def _join_distinct(texts: Iterable[str]) -> str:
    return ', '.join(dict.fromkeys(texts))

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


"""Output formats of ``ghsched explain``.

The keys of the JSON are stable: none is renamed or removed, and what is not
known (because the guest was refused before) is null or empty.

host
    Name of the host.
refusal
    Why the host cannot take the guest; null when it can.
policy
    ``monitor``, ``device_numa``, and ``nodes`` with ``guest_node``, ``min``,
    ``max``, ``hardlimit`` and ``priority`` as asked for, ``vfs`` with
    ``guest_node``, ``alias`` and ``count``, and ``vfs_locality``. Null for a
    bad flavor.
guest
    ``nodes`` with ``guest_node``, ``vcpus``, ``memory_mb`` and ``host_node``;
    empty for a guest without NUMA topology.
placement_query
    ``query``, the query string; ``parameters``, the same as a list of name
    and value; ``not_shown``, extra specs whose part in it is left out;
    ``vfs_locality``, how near it asks for the VFs (null for a guest without).
    It is the first query of the scheduler's that finds the host, or the first
    one when none does.
providers
    ``name``, ``parent``, ``inventories`` and ``traits``, the root first; only
    what is ghsched's.
settings
    One per domain of the host: ``domain``, ``host_node``, ``guest_node``,
    ``asked`` and ``effective``, both with ``min``, ``max``, ``hardlimit`` and
    ``priority``; null where nothing was asked for, or where the host has no
    such knob.
xml
    The elements that nova-compute adds to the domain: the policy in its
    metadata, memorytune, scheduling of threads, what shows the host to the
    guest, and NUMA nodes of devices. Null for a flavor without keys.
schemata
    Lines of the guest's control group.
"""

from collections.abc import Callable
from collections.abc import Iterator
import json
import textwrap
from typing import Any
from urllib import parse

from lxml import etree

from ghsched_nova.features.explain.explanation import Explanation
from ghsched_nova.guest import memorytune
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resolve
from ghsched_placement.base import cpulist
from ghsched_placement.base.text_table import format_cell
from ghsched_placement.base.text_table import render_table
from ghsched_placement.features.flavor_check import query
from ghsched_placement.features.guest_topology import topology_part
from ghsched_placement.features.real_time.scheduling import ThreadPolicy
from ghsched_placement.features.rebalance.affinity_part import AffinityPart
from ghsched_placement.flavor.bandwidth import Bandwidth

#: Text about VFs that are not on the host node of their guest node, by
#: locality.
_FAR = {'socket': 'on the same socket', 'any': 'anywhere on the host'}

_KNOBS = tuple(Bandwidth().as_dict())


#: Text in place of the XML if the flavor has no extra specs of ghsched.
NO_XML = '<!-- nothing is added: the flavor has no key of ghsched -->'


def format_explanation_as_xml(explanation: Explanation) -> str:
    """Render the XML that ghsched would add to the domain of a guest.

    The text is empty if the guest is refused.
    """
    if explanation.refusal is not None:
        return ''
    return _join_domain_elements(explanation) or NO_XML


def _join_domain_elements(explanation: Explanation) -> str:
    """Return the XML elements that ghsched would add to a guest's domain.

    The text is empty if ghsched adds none.
    """
    return '\n'.join(
        filter(
            None,
            (
                explanation.metadata,
                _render_memorytune(explanation),
                *explanation.threads,
                *explanation.topology,
                *explanation.devices,
            ),
        )
    )


def _render_memorytune(explanation: Explanation) -> str:
    """Return the ``<memorytune>`` element with a guest's bandwidth limits.

    If libvirt on the host cannot create the guest's resctrl group, an XML
    comment takes the place of the element. The text is empty if the guest has
    no limits.

    :param explanation: explanation of a flavor on a host.
    """
    if not explanation.tunes:
        return ''
    host = explanation.question.host
    has_limits = any(tune.nodes for tune in explanation.tunes)
    if has_limits and host.attributes == 'none':
        return '\n'.join(
            _render_group_comment('control group '
                                  + naming.render_own_group_name(
                                      'UUID', one.name))
            for one, _limits in explanation.settings)
    if not has_limits and not host.libvirt_monitors:
        return _render_group_comment(
            'monitoring group\n     ' + naming.render_monitor_path('UUID')
        )
    return '\n'.join(render_memorytune(
        tune, host.has_all_memorytune_attributes)
        for tune in explanation.tunes)


def render_memorytune(tune: memorytune.MemoryTune,
                      has_extended_attributes: bool) -> str:
    """Return a ``<memorytune>`` element as indented text.

    :param has_extended_attributes: whether libvirt supports hardlimit,
        priority and min_bandwidth. If not, only the bandwidth is written.
    :raises MemoryTuneError: if libvirt would drop or refuse the element.
    """
    element = memorytune.make_element(tune, has_extended_attributes)
    etree.indent(element)
    return etree.tostring(element, encoding='unicode')


def _render_group_comment(group: str) -> str:
    """Return an XML comment that takes the place of ``<memorytune>``.

    The comment says that nova-compute creates the guest's resctrl group,
    because libvirt on the host cannot.

    :param group: name of the resctrl group.
    """
    return ('<!-- no memorytune: the libvirt of this host cannot use its '
            f'resctrl;\n     nova-compute makes the {group} itself -->')


# -- json ---------------------------------------------------------------------


def format_explanation_as_json(explanation: Explanation) -> str:
    """Render the explanation of a flavor on a host as JSON."""
    return json.dumps(_make_json_object(explanation), indent=2)


def _make_json_object(explanation: Explanation) -> dict[str, Any]:
    """Convert the explanation of a flavor to a dictionary for JSON."""
    specs = explanation.question.flavor_specs
    return {
        'host': explanation.question.host.name,
        'refusal': explanation.refusal,
        'policy': _policy_to_dict(explanation),
        'guest': {'nodes': _guest_nodes_to_dicts(explanation)},
        'placement_query': {
            'query': parse.urlencode(explanation.query),
            'parameters': [list(pair) for pair in explanation.query],
            'not_shown': list(query.list_ignored_extra_specs(specs)),
            'vfs_locality': explanation.locality},
        'providers': _providers_to_dicts(explanation),
        'settings': [
            {'domain': setting.domain, 'host_node': setting.host_node,
             'guest_node': setting.guest_node,
             **({'vcpu_class': one.name} if one.name else {}),
             'asked': setting.requested.as_dict(),
             'effective': _get_effective_values(
                 setting, explanation.question.host.resctrl.dialect)}
            for one, limits in explanation.settings for setting in limits],
        'xml': _join_domain_elements(explanation) or None,
        'schemata': list(explanation.lines),
    }


def _policy_to_dict(explanation: Explanation) -> dict[str, Any] | None:
    """Convert the bandwidth policy of a flavor to a dictionary for JSON.

    :param explanation: explanation of what a guest of the flavor gets on a
        host.
    :returns: None if the flavor has no bandwidth policy.
    """
    policy = explanation.policy
    if policy is None:
        return None
    threads = policy.get_part(ThreadPolicy)
    return {'monitor': policy.monitor, 'device_numa': policy.device_numa,
            'nodes': [{'guest_node': number, **node.as_dict()}
                      for number, node in enumerate(policy.nodes)],
            **({'classes': policy.describe_classes_for_guest(),
                'control_groups': len(policy.groups)}
               if policy.classes else {}),
            'vfs': [{'guest_node': vfs.guest_node, 'alias': vfs.alias,
                     'count': vfs.count} for vfs in policy.vfs],
            'vfs_locality': policy.vfs_locality,
            'threads': threads.describe_priorities(),
            'lock_memory': threads.lock_memory,
            'irq_bypass': threads.irq_bypass,
            'irq_affinity': threads.irq_affinity,
            'affinity_group': policy.get_part(AffinityPart).group,
            'guest_topology': policy.get_part(
                topology_part.TopologyPart).is_shown}


def _guest_nodes_to_dicts(explanation: Explanation) -> list[dict[str, Any]]:
    """Convert each NUMA node of a guest to a dictionary for JSON.

    A dictionary has the vCPUs, the memory and the host NUMA node.

    :param explanation: explanation of what the guest gets on a host.
    """
    if explanation.guest is None:
        return []
    host_nodes = dict(enumerate(explanation.host_nodes))
    return [{'guest_node': number,
             'vcpus': cpulist.render_cpu_list(cell.vcpus),
             'memory_mb': cell.memory_mb,
             'host_node': host_nodes.get(number)}
            for number, cell in enumerate(explanation.guest.cells)]


def _providers_to_dicts(explanation: Explanation) -> list[dict[str, Any]]:
    """Convert the resource providers of a host to dictionaries for JSON.

    :param explanation: explanation of what a guest gets on the host.
    """
    names = {provider.uuid: provider.name
             for provider in explanation.providers}
    return [{'name': provider.name,
             'parent': names.get(provider.parent_uuid or ''),
             'inventories': {name: dict(record) for name, record
                             in sorted(provider.inventories.items())},
             'traits': sorted(provider.traits)}
            for provider in explanation.providers]


def _get_effective_values(setting: resolve.DomainSetting,
                          dialect: dialects.Dialect) -> dict[str, Any]:
    """Return the bandwidth limits that a host would enforce for a guest node.

    Limits may differ from those of the flavor, because resctrl rounds them.

    :param setting: the setting of one resctrl domain.
    :param dialect: the host's variant of resctrl.
    """
    held = setting.effective_bandwidth.as_dict()
    if held['hardlimit'] is None:
        held['hardlimit'] = dialect.hardlimit_fixed
    return held


# -- table --------------------------------------------------------------------


def format_explanation_as_table(explanation: Explanation) -> str:
    """Render the explanation of a flavor on a host as text tables.

    If the guest is refused, the reason is at the top, and the providers are
    left out: ``--format json`` has them.
    """
    document = _make_json_object(explanation)
    parts = [
        ('Refused', document['refusal'] or ''),
        ('Policy', _format_policy(document['policy'])),
        ('Placement query', _format_query(document['placement_query'])),
        (f'Providers of {document["host"]}',
         _format_providers([] if document['refusal']
                           else document['providers'])),
        ('Guest NUMA nodes', _format_guest_nodes(document['guest']['nodes'])),
        ('Asked and effective', _format_settings(document['settings'])),
        ('Guest XML', document['xml'] or ''),
        ('Schemata of the control group', '\n'.join(document['schemata'])),
    ]
    return '\n\n'.join(f'{title}\n{text}' for title, text in parts if text)


def _format_policy(policy: dict[str, Any] | None) -> str:
    """Return lines of text that describe a bandwidth policy."""
    if policy is None:
        return ''
    text = (f'monitor: {format_cell(policy["monitor"])}\n'
            f'device_numa: {policy["device_numa"]}')
    for kind, value in policy['threads'].items():
        text += f'\nscheduling class of {kind}: {value}'
    for one in policy.get('classes', ()):
        text += f'\nvCPU class {one["name"]}: {one["vcpus"]}'
    if policy.get('classes'):
        text += (f'\ncontrol groups: {policy["control_groups"]}, shared with '
                 'no other guest, because a guest can move its vCPUs between '
                 'its classes')
    if policy['vfs']:
        text += f'\nvfs_locality: {policy["vfs_locality"]}\n' + render_table(
            ('guest node', 'alias', 'VFs'),
            (list(vfs.values()) for vfs in policy['vfs']))
    if not policy['nodes']:
        return f'{text}\nno limits, no control group'
    return text + '\n' + render_table(
        ('guest node', *_KNOBS),
        ([node['guest_node'], *(node[knob] for knob in _KNOBS)]
         for node in policy['nodes']))


def _format_query(document: dict[str, Any]) -> str:
    """Return lines of text that describe a Placement query."""
    if not document['parameters']:
        return ''
    lines = ['GET /allocation_candidates']
    lines += [f'  {name}={value}' for name, value in document['parameters']]
    if document['not_shown']:
        lines.append('  (the part of these is not shown: '
                     + ', '.join(document['not_shown']) + ')')
    far = _FAR.get(document['vfs_locality'])
    if far:
        lines.append(f'  (VFs {far}; nearer ones were asked for first and not '
                     'found)')
    return '\n'.join(lines)


def _format_providers(providers: list[dict[str, Any]]) -> str:
    """Render a tree of resource providers as indented lines."""
    lines = []
    depth: dict[str | None, int] = {None: -1}
    for provider in _yield_descendants(providers):
        depth[provider['name']] = depth[provider['parent']] + 1
        indent = '     ' * (depth[provider['name']] - 1)
        indent += ' +- ' if provider['parent'] else ''
        lines.append(f'{indent}{provider["name"]}')
        indent = ' ' * (len(indent) + 2)
        for name, record in provider['inventories'].items():
            lines.append(f'{indent}{name}: ' + ', '.join(
                f'{key} {value}' for key, value in record.items()
                if key in ('total', 'reserved', 'allocation_ratio')))
        lines += textwrap.wrap(
            ' '.join(['traits', *provider['traits']]), 79,
            initial_indent=indent, subsequent_indent=indent + '  ')
    return '\n'.join(lines)


def _yield_descendants(providers: list[dict[str, Any]],
                       parent: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield all descendants of a resource provider, parents first."""
    for provider in providers:
        if provider['parent'] == parent:
            yield provider
            yield from _yield_descendants(providers, provider['name'])


def _format_guest_nodes(nodes: list[dict[str, Any]]) -> str:
    """Render a table of guest NUMA nodes: vCPUs, memory and host node."""
    if not nodes:
        return ''
    return render_table(('guest node', 'vCPUs', 'RAM (MB)', 'host node'),
                        (list(node.values()) for node in nodes))


def _format_settings(settings: list[dict[str, Any]]) -> str:
    """Render a table of requested and effective bandwidth limits."""
    if not settings:
        return ''
    rows = ([setting['domain'], setting['host_node'], setting['guest_node'],
             '.'.join(filter(None, (knob, setting.get('vcpu_class')))),
             setting['asked'][knob], setting['effective'][knob]]
            for setting in settings for knob in _KNOBS)
    return render_table(('domain', 'host node', 'guest node', 'knob', 'asked',
                         'effective'), rows)


FORMATS: dict[str, Callable[[Explanation], str]] = {
    'json': format_explanation_as_json,
    'table': format_explanation_as_table,
    'xml': format_explanation_as_xml}

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


"""Explanation of a flavor on a described host, without any service.

It goes the way that a server goes in a cloud: flavor, policy, Placement query,
a host's provider tree, guest XML, schemata. Each step is done by the code that
does it in nova-scheduler and nova-compute. What Nova and Placement do is
repeated in :mod:`ghsched_placement.features.flavor_check.query`,
:mod:`ghsched_placement.flavor.topology`,
:mod:`ghsched_placement.features.packing.likely_nodes` and
:mod:`ghsched_placement.features.planner.offer`.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from lxml import etree

from ghsched_nova.features.explain import devices
from ghsched_nova.features.explain import placing
from ghsched_nova.features.guest_topology import host_topology
from ghsched_nova.features.planner import hostfile
from ghsched_nova.features.planner import planner_hosts
from ghsched_nova.features.pv_hints import hint_xml
from ghsched_nova.features.real_time import scheduling
from ghsched_nova.guest import document
from ghsched_nova.guest import memorytune
from ghsched_nova.guest import metadata
from ghsched_nova.guest.pci_topology import DeviceNumaError
from ghsched_nova.resctrl import resolve
from ghsched_placement.features.planner.flavors import Flavor
from ghsched_placement.features.planner.need import FlavorNeed
from ghsched_placement.features.planner.state import FilledHost
from ghsched_placement.features.real_time.scheduling import ThreadPolicy
from ghsched_placement.flavor import auto_nodes
from ghsched_placement.flavor import keys
from ghsched_placement.flavor import policy as policies
from ghsched_placement.flavor import topology
from ghsched_placement.flavor.topology import GuestShape
from ghsched_placement.flavor.vcpu_classes import VcpuClass
from ghsched_placement.providers import tree
from ghsched_placement.query import combinations
from ghsched_placement.query import request
from ghsched_placement.query.vfs import Sizes


#: Limits of a vCPU class, or of all vCPUs, by resctrl domain.
ClassSettings = tuple[VcpuClass, tuple[resolve.DomainSetting, ...]]


@dataclass(frozen=True)
class Question:
    """Question whether and how a guest of a flavor fits on a host.

    :param host: description of the host.
    :param flavor_specs: the flavor's extra specs.
    :param nodes: host NUMA node that the user has requested for each guest
        NUMA node; None for any.
    :param accounting: ``[ghsched]bandwidth_accounting``.
    """

    host: hostfile.HostFile
    vcpus: int
    memory_mb: int
    disk_gb: int = 0
    swap_mb: int = 0
    flavor_specs: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[int, ...] | None = None
    accounting: policies.Accounting = 'min'


@dataclass(frozen=True)
class Explanation:
    """Result of a question: why a host refuses a guest, or how it fits.

    The fields are filled in step by step. After a refusal the fields of the
    later steps are empty.

    :param providers: resource providers of the host in Placement.
    :param refusal: reason why the guest does not fit; None if it fits.
    :param need: resources that the guest needs.
    :param query: Placement query of nova-scheduler that finds the host; if
        none finds it, the first query.
    :param locality: how near this query requires the VFs to be.
    :param host_nodes: host NUMA node of each guest NUMA node.
    :param settings: bandwidth limits that the host would enforce, by resctrl
        domain.
    :param tune: bandwidth limits in libvirt's format; None if the guest has
        none.
    :param threads: XML elements of the domain that set the scheduling of the
        guest's threads, and hints about its vCPUs.
    :param topology: XML elements of the domain that show the host's topology
        to the guest.
    :param metadata: XML with the policy for the metadata of the domain; empty
        for a flavor without extra specs of ghsched.
    :param devices: XML elements of the domain that show the NUMA nodes of the
        devices to the guest.
    """

    question: Question
    providers: tuple[tree.WantedProvider, ...]
    refusal: str | None = None
    policy: policies.GuestPolicy | None = None
    guest: GuestShape | None = None
    need: FlavorNeed | None = None
    query: tuple[tuple[str, str], ...] = ()
    locality: str | None = None
    host_nodes: tuple[int, ...] = ()
    settings: tuple[ClassSettings, ...] = ()
    tunes: tuple[memorytune.MemoryTune, ...] = ()
    lines: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    topology: tuple[str, ...] = ()
    metadata: str = ''
    devices: tuple[str, ...] = ()


def explain_flavor(question: Question) -> Explanation:
    """Explain how a guest of a flavor fits on a host, or why it does not.

    The explanation ends at the first reason to refuse the guest. If the flavor
    leaves the number of guest NUMA nodes to the scheduler, each number is
    tried until one fits.

    :param question: the flavor and the host.
    """
    specs = question.flavor_specs
    if not auto_nodes.is_node_count_undecided(specs):
        return _explain_flavor_with_fixed_nodes(question)
    try:
        policies.check_flavor(specs, specs)
    except policies.PolicyError:
        return _explain_flavor_with_fixed_nodes(question)
    for count in auto_nodes.list_node_counts(specs, question.vcpus,
                                             question.memory_mb):
        found = _explain_flavor_with_fixed_nodes(dataclasses.replace(
            question, flavor_specs=auto_nodes.copy_with_node_count(
                specs, count)))
        if not found.refusal:
            break
    return found


def _explain_flavor_with_fixed_nodes(question: Question) -> Explanation:
    """Explain how a guest fits on a host, for a fixed number of nodes.

    The flavor has a fixed number of guest NUMA nodes.

    :param question: the flavor and the host.
    """
    known: dict[str, Any] = {
        'question': question,
        'providers': planner_hosts.make_providers(
            question.host, question.host.name)}
    try:
        for step in (_parse_topology_and_policy,
                     _make_needs_and_placement_query,
                     _choose_host_nodes_and_limits):
            known.update(step(Explanation(**known)))
    except (topology.TopologyError, policies.PolicyError, placing.DoesNotFit,
            resolve.PolicyRefused, DeviceNumaError) as error:
        known['refusal'] = str(error)
    return Explanation(**known)


def _parse_topology_and_policy(explanation: Explanation) -> dict[str, Any]:
    """Return the guest NUMA topology and the bandwidth policy of a flavor.

    :param explanation: explanation of what a guest of the flavor gets on a
        host; only the flavor and the host are known so far.
    :returns: values of the explanation's fields ``guest`` and ``policy``.
    """
    question = explanation.question
    policies.check_extra_spec_names(question.flavor_specs)
    policies.refuse_unfixed_node_count(question.flavor_specs)
    guest = topology.split_guest(question.vcpus, question.memory_mb,
                                 question.flavor_specs)
    policy = policies.parse_policy(question.flavor_specs, len(guest.cells),
                                   question.vcpus)
    policy = policy or policies.GuestPolicy()
    combinations.check_combination_count(policy, question.accounting)
    return {'guest': guest, 'policy': policy}


def _make_needs_and_placement_query(explanation: Explanation
                                    ) -> dict[str, Any]:
    """Return a guest's needs and nova-scheduler's Placement query.

    :param explanation: explanation of what a guest gets on a host, with the
        bandwidth policy of the guest.
    :returns: values of the explanation's fields ``need``, ``query`` and
        ``locality``.
    :raises PolicyError: if the host has no PF for a requested VF alias.
    """
    question, guest, policy = _get_question_topology_and_policy(explanation)
    flavor = Flavor(question.host.name, question.vcpus, question.memory_mb,
                    question.disk_gb, question.swap_mb,
                    question.flavor_specs)
    aliases = question.host.aliases
    for vfs in policy.vfs:
        if vfs.alias not in aliases:
            raise policies.PolicyError(
                keys.VFS.extra_spec,
                f'the host file has no PF of the alias {vfs.alias!r}')
    need = FlavorNeed(flavor, guest, policy, question.accounting, aliases)
    if not question.host.compute.dedicated:
        need = need.fallback or need
    return {'need': need,
            **_make_placement_query_fields(need, request.LOCALITIES[0], {})}


def _make_placement_query_fields(
        need: FlavorNeed, locality: str, sizes: Sizes) -> dict[str, Any]:
    """Return the explanation fields ``query`` and ``locality`` of a guest.

    :param need: resources that the guest needs.
    :param locality: how near the VFs must be to the guest's NUMA nodes.
    :param sizes: how the VFs are divided among PFs.
    :returns: Placement query and required nearness of the VFs, by field name.
    """
    return {'query': tuple(need.make_nova_query(locality, sizes)),
            'locality': locality if need.policy.vfs else None}


def _choose_host_nodes_and_limits(explanation: Explanation) -> dict[str, Any]:
    """Choose the host NUMA nodes of a guest, and compute its limits there.

    The limits are those of the guest's memory bandwidth. The XML elements that
    nova-compute would add to the domain are computed, too.

    :param explanation: explanation of what a guest gets on a host, with the
        needs of the guest.
    :returns: values of the explanation's fields, by name of the field.
    :raises DoesNotFit: if the guest does not fit on the host.
    """
    question, guest, policy = _get_question_topology_and_policy(explanation)
    assert explanation.need is not None  # noqa: S101
    resctrl = question.host.resctrl
    host = planner_hosts.make_planner_host(question.host, question.host.name)
    place = placing.choose_placement(placing.PlacementRequest(question.host,
                                                              FilledHost(host),
                                                              explanation.need,
                                                              question.nodes))
    settings = tuple(
        (one, resolve.resolve_settings(resctrl, held, place.nodes))
        for one, held in policy.split_by_class())
    lines = tuple(
        (f'{one.name}: ' if one.name else '') + f'{name}:'
        + ';'.join(f'{domain}={value}' for domain, value in values.items())
        for one, limits in settings
        for name, values in resolve.make_desired_lines(resctrl, limits).items()
    )
    return {'host_nodes': place.nodes, 'settings': settings, 'lines': lines,
            'tunes': tuple(_make_memorytunes(guest, policy, settings)),
            'metadata': _render_policy_metadata(question, policy, place.nodes),
            'devices': devices.render_device_numa_xml(
                question.host, policy, guest, place.nodes),
            'threads': (*filter(None, scheduling.render_thread_elements(
                policy.get_part(ThreadPolicy), guest.vcpus).split('\n')),
                *hint_xml.make_hint_elements(policy)),
            'topology': host_topology.render_host_topology_elements(
                policy, place.nodes, _make_host_topology(question.host)),
            **_make_placement_query_fields(
                explanation.need, place.locality, place.sizes)}


def _render_policy_metadata(question: Question, policy: policies.GuestPolicy,
                            host_nodes: Sequence[int]) -> str:
    """Return the libvirt metadata that nova-compute writes for a policy.

    The text is empty if the flavor has no ghsched extra specs.
    """
    if not policies.has_ghsched_keys(question.flavor_specs):
        return ''
    root = document.parse_element(metadata.write_policy(
        '<domain/>', metadata.DomainPolicy(
            policy, tuple(host_nodes[:len(policy.nodes)]))))
    for element in root:
        etree.indent(element)
    return '\n'.join(etree.tostring(element, encoding='unicode').strip()
                     for element in root)


def _make_host_topology(host: hostfile.HostFile) -> host_topology.HostTopology:
    """Return the distances, latency and bandwidth of a host's NUMA nodes."""
    return host_topology.HostTopology(
        distances=host.distances,
        latency={node.id: node.latency_ns for node in host.nodes},
        bandwidth={node.id: node.bandwidth_mb * 10 ** 6
                   for node in host.nodes})


def _make_memorytunes(
        guest: GuestShape, policy: policies.GuestPolicy,
        settings: Iterable[ClassSettings]) -> Iterator[memorytune.MemoryTune]:
    """Yield the bandwidth limits that libvirt would set for a guest.

    Nothing is yielded if the guest has no limits and is not measured.
    """
    for one, limits in settings:
        if limits or policy.monitor:
            yield memorytune.MemoryTune(
                vcpus=one.vcpus or frozenset(range(guest.vcpus)),
                nodes=memorytune.make_node_tunes(
                    setting.memorytune for setting in limits),
                monitor=policy.monitor)


def _get_question_topology_and_policy(
        explanation: Explanation
) -> tuple[Question, GuestShape, policies.GuestPolicy]:
    """Return the question, the guest NUMA topology and the bandwidth policy.

    All three are in the explanation and must be known already. The question is
    the flavor and the host.

    :param explanation: explanation of what a guest of a flavor gets on a host.
    """
    assert explanation.guest is not None  # noqa: S101
    assert explanation.policy is not None  # noqa: S101
    return explanation.question, explanation.guest, explanation.policy

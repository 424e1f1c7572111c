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

"""Desired control group of a running domain, derived from its XML."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass
import functools
from types import MappingProxyType

from lxml import etree

from ghsched_nova.guest import cells as guest_cells
from ghsched_nova.guest import document
from ghsched_nova.guest import metadata
from ghsched_nova.guest import pci_topology
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_placement.base import cpulist
from ghsched_placement.base import decimals
from ghsched_placement.flavor.vcpu_classes import VcpuClass
from ghsched_placement.providers import names


class DomainError(ValueError):
    """Malformed XML of a running domain, with the reason."""


#: Exceptions for a guest whose policy cannot be read or cannot be enforced.
POLICY_ERRORS = (metadata.MetadataError, resctrl_host.ResctrlUnavailable,
                 resolve.PolicyRefused, pci_topology.DeviceNumaError,
                 DomainError)


_NOBODY: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Sharing:
    """Shared control group of a domain.

    :param group: name of the control group.
    :param traits: pairs of host NUMA node and Placement trait. The trait shows
        nova-scheduler that further guests can share the group on this node.
    """

    group: str
    traits: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Running:
    """A running domain; its XML is parsed once, on first use.

    :param xml: live XML of the domain; empty if unknown.
    """

    domain: model.Domain
    xml: str = ''

    @functools.cached_property
    def root(self) -> etree._Element:
        """Root element ``<domain>`` of the running domain's XML.

        :raises MetadataError: if the XML cannot be read.
        """
        return document.parse_element(self.xml, metadata.MetadataError)

    @property
    def is_readable(self) -> bool:
        """Whether the XML of this domain is known and well-formed."""
        try:
            return self.root is not None
        except metadata.MetadataError:
            return False

    @functools.cached_property
    def policy(self) -> metadata.DomainPolicy | None:
        """Bandwidth policy in the metadata of this domain.

        The value is None if the domain has no policy.

        :raises MetadataError: if the policy cannot be read.
        """
        return (metadata.parse_policy(self.root) if may_have_policy(self.xml)
                else None)

    @functools.cached_property
    def cells(self) -> tuple[guest_cells.Cell, ...]:
        """NUMA nodes of this guest, in ascending order.

        :raises ValueError: if the XML, or a number or unit in it, is
            malformed.
        """
        return guest_cells.parse_cells(self.root)

    @property
    def needs_control_group(self) -> bool:
        """Whether a domain's policy requires a resctrl control group.

        :raises MetadataError: if the policy cannot be read.
        """
        return (self.policy is not None
                and self.policy.policy.needs_control_group)

    @property
    def reserves_l3_ways(self) -> bool:
        """Whether a domain's policy reserves L3 cache ways for the domain.

        The value is False if the policy cannot be read.
        """
        try:
            return (self.policy is not None
                    and self.policy.policy.has_l3_partition)
        except metadata.MetadataError:
            return False

    @property
    def wants_monitoring(self) -> bool:
        """Whether a domain's policy requests bandwidth measurement.

        :raises MetadataError: if the policy cannot be read.
        """
        return self.policy is not None and self.policy.policy.monitor

    @property
    def needs_monitoring_group(self) -> bool:
        """Whether nova-compute must create a monitoring group for this domain.

        It must if the policy requests that bandwidth is measured, but needs
        no control group. A domain with a control group is measured in that
        group. The value is also True for a domain whose monitoring group was
        created by libvirt, because libvirt does not restore a removed group.

        :raises MetadataError: if the policy cannot be read.
        """
        return self.wants_monitoring and not self.needs_control_group

    @property
    def sharing(self) -> Sharing | None:
        """Name and Placement traits of the control group that a domain shares.

        nova-compute reports the traits, so that nova-scheduler finds a host
        with a control group that further guests can share. The value is None
        if the domain shares no control group, or if its policy cannot be read.
        """
        try:
            found = self.policy
        except metadata.MetadataError:
            return None
        if (found is None or not found.shared
                or not found.policy.needs_control_group):
            return None
        return Sharing(
            naming.render_shared_name(found.policy.nodes, found.host_nodes),
            tuple((node,
                   names.make_share_trait(found.policy.fingerprint, guest))
                  for guest, node in enumerate(found.host_nodes)))

    @property
    def shared_group(self) -> str:
        """Name of the control group that a domain shares with other domains.

        The name is empty if the domain shares no control group.
        """
        return self.sharing.group if self.sharing else ''

    def list_passthrough_addresses(self) -> tuple[str, ...]:
        """Return the host PCI addresses of this domain's passthrough devices.
        """
        return tuple(pci_topology.map_passthrough_devices(self.root))


def parse_running_domain(xml: str, number: int = -1) -> Running:
    """Return the domain that a libvirt domain XML describes.

    The result has the domain's UUID, ID and name, and the XML.

    :param xml: XML of a running or stopped domain.
    :param number: libvirt's ID of the running domain; -1 if it does not run.
    :raises MetadataError: if the XML cannot be read.
    """
    root = document.parse_element(xml, metadata.MetadataError)
    found = Running(model.Domain(root.findtext('uuid') or '', number,
                                 root.findtext('name') or ''), xml)
    vars(found)['root'] = root
    return found


def may_have_policy(xml: str) -> bool:
    """Whether a domain XML may contain a bandwidth policy.

    This is a fast search in the text. A domain for which it is False has no
    policy.
    """
    return metadata.NAMESPACE in xml


def map_shared_groups(domains: Iterable[Running]) -> dict[str, Sharing]:
    """Return the shared control group of each domain, by domain UUID.

    Domains that share no control group are left out.
    """
    found = {domain.domain.uuid: domain.sharing for domain in domains}
    return {uuid: one for uuid, one in found.items() if one is not None}


def list_sharing_traits(
    domains: Iterable[Sharing],
) -> dict[int, frozenset[str]]:
    """Return the Placement traits that offer shared control groups.

    Such a trait shows nova-scheduler that this host has a control group that
    further guests with the same bandwidth policy can share.

    :param domains: shared control groups of the host's domains.
    :returns: traits by host NUMA node.
    """
    found: dict[int, set[str]] = {}
    for domain in domains:
        for node, trait in domain.traits:
            found.setdefault(node, set()).add(trait)
    return {node: frozenset(traits) for node, traits in found.items()}


def count_group_domains(domains: Iterable[Running]) -> Mapping[str, int]:
    """Return how many domains share each control group, by group name."""
    return Counter(one.group for one in map_shared_groups(domains).values())


def make_desired_groups(
        host: resctrl_host.ResctrlHost, running: Running,
        group_sizes: Mapping[str, int] = _NOBODY
) -> tuple[model.ResctrlGuest, ...]:
    """Return the resctrl groups that a domain's policy requires.

    These are one group, or one for each vCPU class with limits.

    :param host: bandwidth control capabilities of the host.
    :param group_sizes: number of running domains by shared control group.
    :raises POLICY_ERRORS: if the policy cannot be read or cannot be enforced.
    """
    policy = running.policy
    if policy is None:
        raise DomainError('the domain has no policy')
    classes = policy.policy.split_by_class()
    makers = _find_group_makers(running.root, [one for one, _held in classes])
    most, online = _count_vcpus(running.root)
    guests = []
    for (one, held), (maker, vcpus) in zip(classes, makers, strict=True):
        group = running.shared_group if maker == 'ghsched' else ''
        if group:
            held = resolve.multiply_policy_by_guests(
                host, held, group_sizes.get(group, 1))
        settings = resolve.resolve_settings(host, held, policy.host_nodes)
        named = frozenset(range(most)) if vcpus is None else vcpus
        if not named:
            raise DomainError('the domain has no vCPU to control')
        present = named if one.moved is None else one.moved
        guests.append(model.ResctrlGuest(
            running.domain, present,
            min(online, len(named)) if one.vcpus is None
            else sum(vcpu < online for vcpu in present),
            resolve.make_desired_lines(host, settings), maker, shared=group,
            monitor=policy.policy.monitor,
            ways=resolve.resolve_l3_ways(host, held, policy.host_nodes),
            vcpu_class=one.name, libvirt_vcpus=named,
        ))
    return tuple(guests)


def make_common_cap_group(host: resctrl_host.ResctrlHost, running: Running,
                          maximum: int) -> tuple[model.ResctrlGuest, ...]:
    """Return the control group that caps domains without a bandwidth policy.

    All such domains share this group.

    :param running: the domain without a bandwidth policy.
    :param maximum: cap in percent of bandwidth, for all such domains together.
    :returns: empty if the domain's XML asks for a control group of its own.
    :raises POLICY_ERRORS: if the domain cannot be capped.
    """
    root = running.root
    if (root.find('cputune/memorytune/node') is not None
            or root.find('cputune/cachetune/cache') is not None):
        return ()
    policy, nodes = resolve.make_common_cap_policy(host, maximum)
    settings = resolve.resolve_settings(host, policy, nodes)
    most, online = _count_vcpus(root)
    return (model.ResctrlGuest(
        running.domain, frozenset(range(most)), online,
        resolve.make_desired_lines(host, settings), 'ghsched',
        shared=naming.DEFAULT, monitor=running.wants_monitoring),)


def _find_group_makers(root: etree._Element, groups: Sequence[VcpuClass]
                       ) -> list[tuple[model.Maker, frozenset[int] | None]]:
    """Return which software creates each resctrl control group of a domain.

    libvirt creates a group if the domain XML has a <memorytune> with a <node>
    for its vCPUs, otherwise nova-compute creates it. Since 12.8 libvirt
    applies a <memorytune> without vcpus to the whole process
    (docs/formatdomain, "CPU Tuning").

    :param groups: vCPU classes with a control group, or all vCPUs.
    :returns: for each group, ``ghsched``, ``libvirt`` or ``libvirt-process``,
        and its vCPUs; None in place of the vCPUs means all vCPUs.
    :raises DomainError: for a <memorytune> whose vCPUs are no vCPU class, or a
        malformed list of vCPUs.
    """
    tunes = [tune for tune in root.findall('cputune/memorytune')
             if tune.find('node') is not None]
    try:
        tuned = [None if (text := tune.get('vcpus')) is None
                 else cpulist.parse_cpu_list(text) for tune in tunes]
    except cpulist.CpuListError as error:
        raise DomainError(f'memorytune: {error}') from error
    if len(groups) == 1 and groups[0].vcpus is None:
        if len(tuned) > 1:
            raise DomainError('the domain has more than one <memorytune>')
        return [('ghsched', None) if not tuned
                else ('libvirt-process', None) if tuned[0] is None
                else ('libvirt', tuned[0])]
    strange = set(tuned) - {one.vcpus for one in groups}
    if strange:
        raise DomainError('the domain has a <memorytune> for vCPUs that are '
                          'no vCPU class: ' + ', '.join(
                              'all' if vcpus is None else
                              cpulist.render_cpu_list(vcpus)
                              for vcpus in strange))
    return [('libvirt' if one.vcpus in tuned else 'ghsched', one.vcpus)
            for one in groups]


def _count_vcpus(root: etree._Element) -> tuple[int, int]:
    """Return the maximum and current number of vCPUs of a domain."""
    element = root.find('vcpu')
    text = (element.text or '') if element is not None else ''
    current = element.get('current', text) if element is not None else ''
    most, now = map(decimals.parse_decimal, (text, current))
    if most is None or now is None:
        raise DomainError('the domain has no number of vCPUs')
    return most, now

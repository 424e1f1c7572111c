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

"""A running domain's XML -> what its control group must hold."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections import Counter
from dataclasses import dataclass
from dataclasses import replace
import functools
import os
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lxml import etree

from ghsched_nova.guest import document
from ghsched_nova.guest import metadata
from ghsched_nova.guest import pci_topology
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resolve
from ghsched_placement import cpulist
from ghsched_placement import decimals
from ghsched_placement import names


class DomainError(ValueError):
    """The XML of a running domain makes no sense; says why."""


#: Why a guest can have no desired state.
NOT_DESIRED = (metadata.MetadataError, resctrl_host.ResctrlUnavailable,
               resolve.PolicyNotHeld, pci_topology.DeviceNumaError,
               DomainError)


_NOBODY: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Sharing:
    """The part that a domain has in a control group.

    :param traits: of each host NUMA node that it is on, for domains that are
        to come.
    """

    group: str
    traits: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Running:
    """A domain that runs; its XML is parsed once, when that is needed.

    :param xml: its live XML; empty when it is not known.
    """

    domain: model.Domain
    xml: str = ''

    @functools.cached_property
    def root(self) -> etree._Element:
        """The element <domain>."""
        return document.parse_element(self.xml)

    @functools.cached_property
    def policy(self) -> metadata.DomainPolicy | None:
        """What was promised to it; None without anything.

        :raises MetadataError: when that cannot be read.
        """
        return (metadata.parse_policy(self.root) if has_policy(self.xml)
                else None)

    @property
    def controlled(self) -> bool:
        """Whether it has a policy that needs a control group.

        :raises MetadataError: when its policy cannot be read.
        """
        return self.policy is not None and self.policy.policy.controlled

    @property
    def partitions(self) -> bool:
        """Whether it has ways of an L3 to itself, as far as can be read."""
        try:
            return self.policy is not None and self.policy.policy.partitions
        except metadata.MetadataError:
            return False

    @property
    def monitored(self) -> bool:
        """Whether its bandwidth is to be measured.

        :raises MetadataError: when its policy cannot be read.
        """
        return self.policy is not None and self.policy.policy.monitor

    @property
    def measured(self) -> bool:
        """Whether it is to be measured, and has no group for that.

        One that is to be held is measured in its control group. One with a
        monitor in its <memorytune> has a monitoring group of libvirt, which
        nobody but us makes again when it is gone.

        :raises MetadataError: when its policy cannot be read.
        """
        return self.monitored and not self.controlled

    @property
    def sharing(self) -> Sharing | None:
        """What it shares; None when it has a group of its own.

        A policy that cannot be read is that of a domain with its own.
        """
        try:
            found = self.policy
        except metadata.MetadataError:
            return None
        if found is None or not found.shared or not found.policy.controlled:
            return None
        return Sharing(
            naming.shared_name(found.policy.nodes, found.host_nodes),
            tuple((node, names.shares_trait(found.policy.fingerprint, guest))
                  for guest, node in enumerate(found.host_nodes)))

    @property
    def shared_group(self) -> str:
        """The control group that it shares; empty when it has its own."""
        return self.sharing.group if self.sharing else ''

    def passthrough(self) -> tuple[str, ...]:
        """PCI addresses of the host's devices that it has."""
        return tuple(pci_topology.passthrough_devices(self.root))


def of(xml: str, number: int = -1) -> Running:
    """The domain of an XML.

    :param number: libvirt's, of a domain that runs.
    """
    root = document.parse_element(xml)
    found = Running(model.Domain(root.findtext('uuid') or '', number,
                                 root.findtext('name') or ''), xml)
    vars(found)['root'] = root
    return found


def has_policy(xml: str) -> bool:
    """Whether the XML can have a policy; quick, and true in doubt."""
    return metadata.NAMESPACE in xml


def sharing(domains: Iterable[Running]) -> dict[str, Sharing]:
    """Those of some domains that share, by UUID."""
    found = {domain.domain.uuid: domain.sharing for domain in domains}
    return {uuid: one for uuid, one in found.items() if one is not None}


def shares(domains: Iterable[Sharing]) -> dict[int, frozenset[str]]:
    """Traits of host NUMA nodes, for those who could share, too."""
    found: dict[int, set[str]] = {}
    for domain in domains:
        for node, trait in domain.traits:
            found.setdefault(node, set()).add(trait)
    return {node: frozenset(traits) for node, traits in found.items()}


def sharers(domains: Iterable[Running]) -> Mapping[str, int]:
    """How many domains there are for each group that is shared."""
    return Counter(one.group for one in sharing(domains).values())


def read(host: resctrl_host.ResctrlHost, running: Running,
         together: Mapping[str, int] = _NOBODY) -> model.Guest:
    """The desired state of a domain that needs a group.

    That is one that is ``controlled`` or ``measured``.

    :param together: :func:`sharers` of all domains that run.
    :raises NOT_DESIRED: when its policy cannot be read, or not be held.
    """
    policy = running.policy
    if policy is None:
        raise DomainError('the domain has no policy')
    maker, vcpus = _maker(running.root)
    group = running.shared_group if maker == 'ghsched' else ''
    held = policy.policy
    if group:
        held = resolve.together(host, held, together.get(group, 1))
    settings = resolve.resolve(host, held, policy.host_nodes)
    most, online = _vcpus(running.root)
    vcpus = frozenset(range(most)) if vcpus is None else vcpus
    if not vcpus:
        raise DomainError('the domain has no vCPU to control')
    return model.Guest(running.domain, vcpus, min(online, len(vcpus)),
                       resolve.desired_lines(host, settings), maker,
                       shared=group, monitor=policy.policy.monitor,
                       ways=resolve.ways(host, held, policy.host_nodes))


def with_devices(guest: model.Guest, running: Running,
                 host: resctrl_host.ResctrlHost, section: Any) -> model.Guest:
    """The desired state of a domain, with its passthrough devices.

    :param section: the ``[ghsched]`` section of the configuration.
    :raises NOT_DESIRED: when one cannot be controlled.
    """
    if (not host.dialect.devices or not section.control_devices
            or guest.only_measured):
        return guest
    return replace(guest, devices=frozenset(
        iommu_group(Path(section.sysfs_path), address)
        for address in running.passthrough()))


def iommu_group(sysfs: Path, address: str) -> int:
    """The IOMMU group of a host's PCI device.

    :raises DomainError: when it is in none.
    """
    link = sysfs / 'bus' / 'pci' / 'devices' / address / 'iommu_group'
    try:
        return int(os.path.basename(os.readlink(link)))
    except (OSError, ValueError) as error:
        raise DomainError(
            f'the traffic of PCI device {address} cannot be controlled: '
            f'{link}: {error}') from error


def unclassed(host: resctrl_host.ResctrlHost, running: Running,
              maximum: int) -> model.Guest | None:
    """The desired state of a domain without a policy that is capped.

    :param maximum: percent, for all of them together.
    :returns: None for one that somebody has given a control group of its own.
    :raises NOT_DESIRED: when it cannot be capped.
    """
    root = running.root
    if (root.find('cputune/memorytune/node') is not None
            or root.find('cputune/cachetune/cache') is not None):
        return None
    policy, nodes = resolve.default_class(host, maximum)
    settings = resolve.resolve(host, policy, nodes)
    most, online = _vcpus(root)
    return model.Guest(
        running.domain, frozenset(range(most)), online,
        resolve.desired_lines(host, settings), 'ghsched',
        shared=naming.DEFAULT, monitor=running.monitored)


def _maker(root: etree._Element
           ) -> tuple[model.Maker, frozenset[int] | None]:
    """Who made the group, and for which vCPUs; None for all.

    From 12.8 on libvirt takes a <memorytune> without vcpus for the whole
    process (docs/formatdomain, "CPU Tuning").
    """
    tunes = [tune for tune in root.findall('cputune/memorytune')
             if tune.find('node') is not None]
    if not tunes:
        return 'ghsched', None
    if len(tunes) > 1:
        raise DomainError('the domain has more than one memorytune')
    text = tunes[0].get('vcpus')
    if text is None:
        return 'libvirt-process', None
    try:
        return 'libvirt', cpulist.parse(text)
    except cpulist.CpuListError as error:
        raise DomainError(f'memorytune: {error}') from error


def _vcpus(root: etree._Element) -> tuple[int, int]:
    """How many vCPUs the domain can have, and how many it has now."""
    element = root.find('vcpu')
    text = (element.text or '') if element is not None else ''
    current = element.get('current', text) if element is not None else ''
    most, now = map(decimals.decimal, (text, current))
    if most is None or now is None:
        raise DomainError('the domain has no number of vCPUs')
    return most, now

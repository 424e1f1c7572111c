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

"""Renders a guest's policy into the XML of its domain.

Applies :mod:`ghsched_nova.resctrl.resolve` and :mod:`ghsched_nova.guest` to
the host. Uses no Nova object.
"""

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

from ghsched_nova.guest import document
from ghsched_nova.guest import memorytune
from ghsched_nova.guest import metadata
from ghsched_nova.host.host_facts import HostFacts
from ghsched_nova.resctrl import resolve
from ghsched_placement.flavor.policy import GuestPolicy


@dataclass(frozen=True)
class LibvirtFeatures:
    """Features of the host's libvirt that upstream libvirt may lack.

    :param extended: whether libvirt supports min_bandwidth, hardlimit and
        priority in ``<memorytune>``.
    :param process_groups: whether libvirt can put all threads of a QEMU
        process in a control group, not only the vCPUs.
    :param numa_element: whether libvirt supports ``<numa node='N'/>`` in a
        passthrough device.
    :param initiators: whether libvirt and QEMU support ``<acpi nodeset='N'/>``
        in a passthrough device.
    """

    extended: bool = False
    process_groups: bool = False
    numa_element: bool = False
    initiators: bool = False

    @property
    def shows_device_cells(self) -> bool:
        """Whether guests see nodes without CPUs for their devices."""
        return self.initiators and not self.numa_element


class DomainXml:
    """Renderer of policies into the XML of domains.

    :ivar libvirt: features of libvirt; none until libvirt has been probed.
    """

    def __init__(self, facts: HostFacts) -> None:
        self._facts = facts
        self.libvirt = LibvirtFeatures()

    def render_policy(self, xml: str, policy: GuestPolicy,
                      host_nodes: Sequence[int]) -> str:
        """Write a guest's bandwidth policy and limits into a domain XML.

        The limits are written as ``<memorytune>``. The policy is written into
        the metadata.

        :param xml: domain XML as Nova made it.
        :param host_nodes: host NUMA node of each guest NUMA node.
        :raises ResctrlUnavailable: if the host has no bandwidth control.
        :raises PolicyRefused: if the host cannot enforce the policy.
        """
        if not policy.needs_control_group and not policy.monitor:
            return self.render_policy_without_limits(xml, policy, host_nodes)
        host = self._facts.read_resctrl_host()
        domain = self._make_policy(policy, host_nodes)
        xml = metadata.write_policy(xml, domain)
        nodes = [(one, _make_node_tunes(resolve.resolve_settings(
            host, held, host_nodes))) for one, held in policy.split_by_class()]
        has_limits = any(tunes for _one, tunes in nodes)
        if (domain.shared or policy.needs_control_group and not has_limits
                or not self._libvirt_uses_resctrl(
                host.can_libvirt_make_groups(self.libvirt.extended)
                if has_limits else host.dialect.libvirt_monitors)):
            return xml      # nova-compute makes the group, and measures in it
        whole = self.libvirt.process_groups and self._facts.all_threads
        return memorytune.replace_memorytunes(xml, [
            memorytune.MemoryTune(
                vcpus=one.vcpus or (None if whole else _list_vcpus(xml)),
                nodes=tunes, monitor=policy.monitor)
            for one, tunes in nodes
            if tunes or policy.monitor], self.libvirt.extended)

    def render_policy_without_limits(self, xml: str, policy: GuestPolicy,
                                     host_nodes: Sequence[int]) -> str:
        """Write a guest's bandwidth policy into a domain XML, without limits.

        This is used if the host cannot enforce the policy now. nova-compute
        creates the guest's control group as soon as the host can enforce the
        policy.

        :param xml: domain XML as Nova made it.
        :param host_nodes: host NUMA node of each guest NUMA node.
        :returns: the domain XML with the policy in its metadata.
        """
        return metadata.write_policy(xml, self._make_policy(policy,
                                                            host_nodes))

    def _make_policy(self, policy: GuestPolicy,
                     host_nodes: Sequence[int]) -> metadata.DomainPolicy:
        """Return the bandwidth policy to store in a guest's metadata.

        The metadata also name the guest's host NUMA nodes.

        :param host_nodes: host NUMA node of each guest NUMA node.
        """
        realtime = tuple(host_nodes[:len(policy.rt_permille)])
        if not policy.needs_control_group and not policy.monitor:
            return metadata.DomainPolicy(policy, (), realtime_nodes=realtime)
        shared = self._facts.can_share_groups and policy.can_share_group
        return metadata.DomainPolicy(
            policy, tuple(host_nodes[:len(policy.nodes)]), shared, realtime)

    def update_memorytune(self, xml: str,
                          destination: Sequence[int] | None = None) -> str:
        """Update the bandwidth limits in a domain XML to its current policy.

        The limits and the NUMA nodes to which they apply are in
        ``<memorytune>``, the policy is in the metadata.

        :param destination: for the XML that a live migration's source sends,
            host NUMA node at the destination of each guest NUMA node. The
            policy still has those of the source, which computes the limits.
            The resctrl domains of both hosts are numbered as their NUMA nodes.
        :returns: the unchanged text if ``<memorytune>`` is up to date, or if
            libvirt does not create the control group.
        :raises POLICY_ERRORS: if the policy cannot be read, or if this host
            cannot enforce the policy.
        """
        domain = metadata.read_policy(xml)
        if domain is None or not domain.policy.needs_control_group:
            return xml
        host = self._facts.read_resctrl_host()
        return memorytune.update_memorytune_nodes(xml, {
            one.vcpus: _make_node_tunes(
                setting if destination is None else
                replace(setting, domain=destination[setting.guest_node])
                for setting in resolve.resolve_settings(
                    host, held, domain.host_nodes))
            for one, held in domain.policy.split_by_class()},
            self.libvirt.extended)

    def _libvirt_uses_resctrl(self, detected: bool) -> bool:
        """Whether libvirt, not nova-compute, creates guests' control groups.

        The option ``[ghsched]memorytune_attributes`` decides.

        :param detected: whether libvirt can create control groups on this
            host; returned if the option is ``auto``.
        """
        choice = self._facts.section.memorytune_attributes
        return detected if choice == 'auto' else bool(choice != 'none')


def _make_node_tunes(settings: Iterable[resolve.DomainSetting]
                     ) -> tuple[memorytune.NodeTune, ...]:
    """Return the nodes of ``<memorytune>`` for a guest's bandwidth settings.

    A guest NUMA node without bandwidth limits gets no node, because the
    destination of a live migration may have no bandwidth control there, and
    its libvirt would refuse the domain.
    """
    return memorytune.make_node_tunes(
        setting.memorytune for setting in settings
        if setting.requested.requests_bandwidth)


def _list_vcpus(xml: str) -> frozenset[int]:
    text = document.parse_element(xml).findtext('vcpu')
    return frozenset(range(int(text or 0)))

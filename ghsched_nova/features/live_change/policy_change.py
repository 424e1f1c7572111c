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

"""Changes the bandwidth policy of a running guest on its host.

The policy in the domain's metadata is written first: the engine derives the
control group from it, now, with each report of resources and at each start
with the persistent definition (a soft reboot). If a later step fails,
metadata, definition and control group are restored, in that order.
"""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from oslo_log import log as logging

from ghsched_nova.features.live_change import messages
from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_nova.resctrl import resolve
from ghsched_placement.flavor.policy import GuestPolicy

LOG = logging.getLogger(__name__)

#: Arguments of virDomainSetMetadata and virDomainPinVcpuFlags
#: (libvirt-domain.h).
_ELEMENT = 2
LIVE = 1
_CONFIG = 2


class NotChanged(Exception):  # noqa: N818
    """Reason why a change of a guest's policy was refused or has failed.

    :param incomplete: whether the old state could not be restored completely.
        The reason then says what could not be restored.
    """

    def __init__(self, reason: str, incomplete: bool = False) -> None:
        super().__init__(reason)
        self.incomplete = incomplete


@dataclass(frozen=True)
class LiveDomain:
    """Running libvirt domain, with its live and its persistent XML.

    :param guest: Guest of nova.virt.libvirt.guest.
    :param define: function that changes a domain's persistent XML.
    """

    guest: Any
    define: Callable[[str], object]

    @property
    def live_xml(self) -> str:
        """Live XML of a running libvirt domain."""
        return str(self.guest.get_xml_desc())

    @property
    def persistent_xml(self) -> str:
        """Persistent XML of a libvirt domain, including its secrets.

        The persistent XML applies from the next start of the domain.
        """
        return str(self.guest.get_xml_desc(dump_inactive=True,
                                           dump_sensitive=True))

    def write_policy(self, policy: metadata.DomainPolicy) -> None:
        """Write a bandwidth policy to a domain's live and persistent metadata.

        Moves of vCPUs between classes are in the live metadata only: the next
        start restores the classes of the flavor.
        """
        texts = [metadata.render_policy(one)
                 for one in (policy, drop_moved_vcpus(policy))]
        for text, flags in zip(texts, (LIVE, _CONFIG), strict=True) if (
                texts[0] != texts[1]) else ((texts[0], LIVE | _CONFIG),):
            self.write_metadata(text, metadata.PREFIX, metadata.NAMESPACE,
                                flags)

    def write_metadata(self, text: str | None, prefix: str, namespace: str,
                       flags: int = LIVE | _CONFIG) -> None:
        """Write an element of a domain's live and persistent metadata.

        :param text: XML of the element; None removes the element.
        :param flags: flags of virDomainSetMetadata.
        """
        self.guest._domain.setMetadata(_ELEMENT, text, prefix, namespace,
                                       flags)


def drop_moved_vcpus(domain: metadata.DomainPolicy) -> metadata.DomainPolicy:
    """Return a domain's policy without its guest's vCPU moves between classes.

    Each vCPU is then in its class of the flavor.
    """
    return replace(domain, policy=replace(domain.policy, classes=tuple(
        replace(one, moved=None) for one in domain.policy.classes)))


def read_packed_policy(xml: str) -> list[dict[str, Any]] | None:
    """Return a domain's bandwidth policy in the wire format of RPC calls.

    :returns: None if the domain has no policy.
    """
    domain = metadata.read_policy(xml)
    if domain is None or not domain.policy.needs_control_group:
        return None
    return messages.pack_policy(domain.policy, domain.host_nodes)


def compute_enforced_limits(host: engine.HostEngine,
                            policy: Sequence[messages.Node],
                            guests: int = 1) -> list[dict[str, Any]]:
    """Return the bandwidth limits that this host would enforce for a policy.

    :param guests: number of guests that share the control group. The limits
        apply to the whole group.
    :returns: one entry per resctrl domain.
    :raises ResctrlUnavailable: if the host has no bandwidth control.
    :raises PolicyRefused: if the host cannot enforce the policy.
    :raises MessageError: if the policy is malformed.
    """
    asked, host_nodes = messages.unpack_policy(policy)
    found = host.read_resctrl_host()
    limits = []
    for one, held in asked.split_by_class():
        settings = resolve.resolve_settings(found, held, host_nodes)
        if guests > 1:
            settings = resolve.resolve_settings(
                found,
                resolve.multiply_policy_by_guests(found, held, guests),
                host_nodes,
            )
        limits += [_setting_to_dict(setting) | (
            {'vcpu_class': one.name} if one.name else {})
            for setting in settings]
    return limits


def count_group_guests(host: engine.HostEngine, uuid: str, live: str | None,
                       policy: Sequence[messages.Node]) -> int:
    """Count the guests that will share a control group after a policy change.

    The group is the one that a guest will be in with its new policy. A guest
    that runs in a group of its own stays in a group of its own.

    :param uuid: UUID of the guest, which is counted, too.
    :param live: live XML of the guest; None if it is stopped.
    :param policy: new bandwidth policy of the guest.
    :returns: 1 if the guest has a control group of its own.
    :raises MessageError: if the policy is malformed.
    """
    shares = (host.can_share_groups if live is None
              else desired.parse_running_domain(live).shared_group)
    if not shares:
        return 1
    asked, host_nodes = messages.unpack_policy(policy)
    return host.count_group_guests(uuid, asked, host_nodes)


def _setting_to_dict(setting: resolve.DomainSetting) -> dict[str, Any]:
    return {
        'guest_node': setting.guest_node, 'host_node': setting.host_node,
        'domain': setting.domain, **setting.effective_bandwidth.as_dict()}


def domain_has_policy(host: engine.HostEngine, domain: LiveDomain,
                      policy: Sequence[messages.Node]) -> bool:
    """Whether a domain already has a policy in its live and persistent XML."""
    xml = domain.persistent_xml
    return (list(policy) == read_packed_policy(domain.live_xml)
            == read_packed_policy(xml)
            and host.domain_xml.update_memorytune(xml) == xml)


def change_policy(host: engine.HostEngine, domain: LiveDomain,
                  policy: Sequence[messages.Node]) -> None:
    """Change the bandwidth policy of a running domain; undo after an error.

    Nothing is written if the domain already has the policy.

    :raises NotChanged: if the policy does not fit the guest, or if the host
        refuses it.
    """
    asked, host_nodes = messages.unpack_policy(policy)
    live, persistent = domain.live_xml, domain.persistent_xml
    before = metadata.read_policy(live)
    if before is None or not before.policy.needs_control_group:
        raise NotChanged('the guest has no policy to change')
    if before.host_nodes != host_nodes:
        raise NotChanged(
            f'the domain runs on the host NUMA nodes {before.host_nodes}, '
            f'not on {host_nodes}')
    if [str(one) for one in before.policy.groups] != [
            str(one) for one in asked.groups]:
        raise NotChanged(
            'the domain has control groups for the vCPUs '
            f'{" ".join(map(str, before.policy.groups))}, and cannot have '
            f'others while it runs: {" ".join(map(str, asked.groups))}')
    # Refuse a policy that the host cannot enforce before anything is written.
    compute_enforced_limits(host, policy)
    try:
        _apply_policy(host, domain, _replace_limits(before, asked))
    except Exception as error:
        left = _restore_policy(host, domain, before, persistent)
        LOG.warning('ghsched: cannot change the bandwidth policy of running '
                    'guest %(name)s; rolled back to the old policy: '
                    '%(error)s%(left)s',
                    {'name': domain.guest.name, 'error': error, 'left': left})
        raise NotChanged(f'{error}{left}', bool(left)) from error


def _replace_limits(before: metadata.DomainPolicy,
                    asked: GuestPolicy) -> metadata.DomainPolicy:
    moved = {one.name: one.moved for one in before.policy.classes}
    return replace(before, policy=replace(
        before.policy, nodes=asked.nodes, classes=tuple(
            replace(one, moved=moved.get(one.name))
            for one in asked.classes)))


def _apply_policy(host: engine.HostEngine, domain: LiveDomain,
                  wanted: metadata.DomainPolicy) -> None:
    """Write a bandwidth policy to a running domain's XML and enforce it."""
    if metadata.read_policy(domain.live_xml) != wanted or (
            metadata.read_policy(domain.persistent_xml)
            != drop_moved_vcpus(wanted)):
        domain.write_policy(wanted)
    xml = domain.persistent_xml
    updated = host.domain_xml.update_memorytune(xml)
    if updated != xml:
        domain.define(updated)
    host.reconcile_guest(
        desired.parse_running_domain(domain.live_xml, domain.guest.id))


def _restore_policy(host: engine.HostEngine, domain: LiveDomain,
                    before: metadata.DomainPolicy, persistent: str) -> str:
    """Restore a domain's bandwidth policy after a failed change.

    :param before: policy from before the change.
    :param persistent: persistent XML from before the change.
    :returns: text that says what could not be restored; empty if all was
        restored.
    """
    steps: Sequence[tuple[str, Callable[[], object]]] = (
        ('the metadata of the domain', lambda: domain.write_policy(before)),
        ('its persistent definition', lambda: domain.define(persistent)),
        ('its control group', lambda: host.reconcile_guest(
            desired.parse_running_domain(domain.live_xml, domain.guest.id))))
    texts = []
    for what, step in steps:
        try:
            step()
        except Exception as error:
            texts.append(f'; {what} could not be restored: {error}')
    return ''.join(texts)

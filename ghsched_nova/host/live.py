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

"""Another policy for a guest that runs.

The metadata of the domain is what all else is made from: the engine brings
resctrl to it, now and with each report of resources, and so does a start with
the persistent definition (a soft reboot). So it is written first. Whatever
fails then, metadata, definition and resctrl are put back, in that order.
"""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from oslo_log import log as logging

from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_nova.live import messages
from ghsched_nova.resctrl import resolve
from ghsched_placement.policy import GuestPolicy
from ghsched_placement.policy import NodePolicy

LOG = logging.getLogger(__name__)

#: Of virDomainSetMetadata (libvirt-domain.h).
_ELEMENT = 2
_LIVE = 1
_CONFIG = 2


class NotChanged(Exception):  # noqa: N818
    """A guest keeps its policy; says why, and what could not be put back.

    :param left: whether there is something that could not.
    """

    def __init__(self, reason: str, left: bool = False) -> None:
        super().__init__(reason)
        self.left = left


@dataclass(frozen=True)
class Domain:
    """A running domain, as far as it is needed here.

    :param guest: Nova's ``nova.virt.libvirt.guest.Guest``.
    :param define: takes the XML of a domain and defines it.
    """

    guest: Any
    define: Callable[[str], object]

    @property
    def live(self) -> str:
        return str(self.guest.get_xml_desc())

    @property
    def stored(self) -> str:
        """What a start would use, with its secrets."""
        return str(self.guest.get_xml_desc(dump_inactive=True,
                                           dump_sensitive=True))

    def write(self, policy: metadata.DomainPolicy) -> None:
        self.guest._domain.setMetadata(
            _ELEMENT, metadata.render_policy(policy), metadata.PREFIX,
            metadata.NAMESPACE, _LIVE | _CONFIG)


def policy_of(xml: str) -> list[dict[str, Any]] | None:
    """The bandwidth policy in a domain's metadata; None without one."""
    domain = metadata.read_policy(xml)
    if domain is None or not domain.policy.controlled:
        return None
    return messages.pack(domain.policy.nodes, domain.host_nodes)


def effective(host: engine.HostEngine, policy: Sequence[messages.Node],
              guests: int = 1) -> list[dict[str, Any]]:
    """What becomes of a policy on this host, one entry per resctrl domain.

    :param guests: how many of this policy have one control group together;
        the values are those of the group.
    :raises ResctrlUnavailable: when the host has no bandwidth control.
    :raises PolicyNotHeld: when it cannot hold the policy.
    :raises MessageError: when it is no policy.
    """
    nodes, host_nodes = messages.unpack(policy)
    asked, found = GuestPolicy(nodes=nodes), host.host()
    settings = resolve.resolve(found, asked, host_nodes)
    if guests > 1:
        settings = resolve.resolve(
            found, resolve.together(found, asked, guests), host_nodes)
    return [_entry(setting) for setting in settings]


def guests_together(host: engine.HostEngine, uuid: str, live: str | None,
                    policy: Sequence[messages.Node]) -> int:
    """How many guests have the control group of one with a policy.

    A guest that runs keeps the kind of group that it was started with.

    :param live: its XML; None when it does not run, so that the host decides
        about its group when it starts.
    :returns: 1 when it has its own.
    :raises MessageError: when it is no policy.
    """
    shares = host.shares if live is None else desired.of(live).shared_group
    if not shares:
        return 1
    nodes, host_nodes = messages.unpack(policy)
    return host.together(uuid, GuestPolicy(nodes=nodes), host_nodes)


def _entry(setting: resolve.DomainSetting) -> dict[str, Any]:
    return {
        'guest_node': setting.guest_node, 'host_node': setting.host_node,
        'domain': setting.domain, **setting.held.as_dict()}


def is_same(host: engine.HostEngine, domain: Domain,
            policy: Sequence[messages.Node]) -> bool:
    """Whether a domain has a policy already, now and after a restart."""
    stored = domain.stored
    return (policy_of(domain.live) == policy_of(stored) == list(policy)
            and host.domain_xml.retune(stored) == stored)


def change(host: engine.HostEngine, domain: Domain,
           policy: Sequence[messages.Node]) -> None:
    """Have a running domain hold another policy, or none of it.

    A domain that holds it already is not written to.

    :raises NotChanged: when it does not fit the guest, or the host refuses.
    """
    nodes, host_nodes = messages.unpack(policy)
    live, stored = domain.live, domain.stored
    before = metadata.read_policy(live)
    if before is None or not before.policy.controlled:
        raise NotChanged('the domain has no policy that could change')
    if before.host_nodes != host_nodes:
        raise NotChanged(
            f'the domain runs on the host NUMA nodes {before.host_nodes} and '
            f'not on {host_nodes}')
    # What the host cannot hold at all is refused before anything is done.
    effective(host, policy)
    try:
        _reconcile(host, domain, _with(before, nodes))
    except Exception as error:
        left = _put_back(host, domain, before, stored)
        LOG.warning('ghsched: %(name)s keeps its policy: %(error)s%(left)s',
                    {'name': domain.guest.name, 'error': error,
                     'left': left})
        raise NotChanged(f'{error}{left}', bool(left)) from error


def _with(before: metadata.DomainPolicy,
          nodes: tuple[NodePolicy, ...]) -> metadata.DomainPolicy:
    return replace(before, policy=replace(before.policy, nodes=nodes))


def _reconcile(host: engine.HostEngine, domain: Domain,
               wanted: metadata.DomainPolicy) -> None:
    if metadata.read_policy(domain.live) != wanted or (
            metadata.read_policy(domain.stored) != wanted):
        domain.write(wanted)
    stored = domain.stored
    retuned = host.domain_xml.retune(stored)
    if retuned != stored:
        domain.define(retuned)
    host.reconcile_guest(desired.of(domain.live, domain.guest.id))


def _put_back(host: engine.HostEngine, domain: Domain,
              before: metadata.DomainPolicy, stored: str) -> str:
    """What could not be, in words; empty when all was."""
    steps: Sequence[tuple[str, Callable[[], object]]] = (
        ('the metadata of the domain', lambda: domain.write(before)),
        ('its persistent definition', lambda: domain.define(stored)),
        ('its control group', lambda: host.reconcile_guest(
            desired.of(domain.live, domain.guest.id))))
    left = []
    for what, step in steps:
        try:
            step()
        except Exception as error:
            left.append(f'; {what} could not be put back: {error}')
    return ''.join(left)

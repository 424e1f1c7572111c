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

"""Servers, consumers and findings of an audit (pure data)."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field

from ghsched_placement.audit import diagnostics
from ghsched_placement.flavor.policy import GuestPolicy

#: Amount by resource class, by UUID of the provider, of one consumer.
Allocation = Mapping[str, Mapping[str, int]]

#: Allocation by UUID of the consumer.
AllocationsByConsumer = Mapping[str, Allocation]


@dataclass(frozen=True)
class Finding:
    """Disagreement between Placement, Nova and a host.

    :param kind: stable word for scripts.
    :param subject: name or UUID of the server, provider or consumer.
    :param text: description of the problem.
    :param remedy: advice for the admin.
    :param owner: UUID of the server whose resources the subject still holds.
    """

    host: str
    kind: str
    subject: str
    text: str
    remedy: str
    owner: str = ''


@dataclass(frozen=True)
class Server:
    """Server as Nova and the server's host report it, for an audit.

    :param host: name of the server's compute node.
    :param policy: bandwidth policy of the server's flavor; None if it has
        none.
    :param problem: reason why the flavor's policy is invalid; empty if it is
        valid.
    :param nodes: host NUMA node of each guest NUMA node; empty if unknown.
    :param moving: whether the server is being migrated or resized. Its
        allocation may then be that of the old or the new host or flavor.
    :param effective: limits that the host has set for the server, by host NUMA
        node; None if the host was not asked or did not report them.
    :param running: whether the server's power state in Nova is running.
    :param active: whether the server is ACTIVE in Nova and has no task state.
    :param locked: whether the server is locked in Nova (``server lock``).
    :param absent: whether the server is ACTIVE, but its host reported that it
        has no running libvirt domain.
    :param not_held: reason why the host could not enforce the policy, see
        :class:`diagnostics.GuestReport`.
    :param missing_devices: see :class:`diagnostics.GuestReport`.
    :param silent: reason why the host was asked but reported nothing about the
        server; empty otherwise.
    """

    uuid: str
    name: str
    host: str
    policy: GuestPolicy | None = None
    problem: str = ''
    nodes: tuple[int, ...] = ()
    moving: bool = False
    effective: Mapping[int, diagnostics.GuestNodeReport] | None = None
    running: bool = False
    active: bool = False
    locked: bool = False
    absent: bool = False
    not_held: str = ''
    missing_devices: tuple[str, ...] = ()
    silent: str = ''


@dataclass(frozen=True)
class OtherConsumers:
    """Consumers of a host's providers that are not servers of this host.

    :param known: UUIDs of consumers that an audit does not report, such as
        migrations in progress.
    :param servers: name of the compute node of each server that is not being
        migrated, by server UUID; empty if the server is on no host.
    :param owners: UUID of the server by UUID of an ended migration, if the
        migration still has the allocation and the server has none.
    """

    known: frozenset[str] = frozenset()
    servers: Mapping[str, str] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)

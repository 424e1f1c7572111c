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

"""What is compared of a host, and what is found (pure data)."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field

from ghsched_placement import diagnostics
from ghsched_placement.policy import GuestPolicy

#: Amount by resource class, by UUID of the provider, by UUID of the consumer.
Holdings = Mapping[str, Mapping[str, Mapping[str, int]]]


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be.

    :param kind: a word for scripts, which stays.
    :param subject: name or UUID of what it is about.
    :param text: what is wrong.
    :param remedy: what an admin can do about it.
    :param owner: UUID of the server that the subject holds something for.
    """

    host: str
    kind: str
    subject: str
    text: str
    remedy: str
    owner: str = ''


@dataclass(frozen=True)
class Server:
    """A server as Nova reports it.

    :param host: name of its compute node's provider.
    :param policy: of its flavor; None without one.
    :param problem: why the flavor has no policy that makes sense.
    :param nodes: host NUMA node of each guest NUMA node; empty where that is
        not known.
    :param moving: whether it is on its way to another host or flavor, so
        that what it holds may be of either.
    :param effective: what the host has set for it, by host NUMA node; None
        where the host was not asked or did not tell.
    :param running: whether Nova says that it runs.
    :param active: whether Nova says that it is ACTIVE and does nothing with
        it.
    :param absent: whether it is active, and its host, which was asked, runs
        no domain of it.
    :param not_held: why the host could not hold its policy, see
        :class:`diagnostics.Report`.
    :param missing_devices: see :class:`diagnostics.Report`.
    :param silent: why its host, which was asked, tells nothing of it.
    """

    uuid: str
    name: str
    host: str
    policy: GuestPolicy | None = None
    problem: str = ''
    nodes: tuple[int, ...] = ()
    moving: bool = False
    effective: Mapping[int, diagnostics.GuestNode] | None = None
    running: bool = False
    active: bool = False
    absent: bool = False
    not_held: str = ''
    missing_devices: tuple[str, ...] = ()
    silent: str = ''


@dataclass(frozen=True)
class Others:
    """Consumers of a host that are no servers there.

    :param known: UUIDs of those that are all right, such as migrations in
        progress.
    :param servers: where servers are that are not on their way, by UUID:
        name of the compute node; empty for one that is nowhere.
    :param owners: UUIDs of servers that hold nothing, by that of the
        migration that has ended and still holds it for them.
    """

    known: frozenset[str] = frozenset()
    servers: Mapping[str, str] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)

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

"""What a guest has of memory bandwidth, among its diagnostics.

Nova's API gives an admin what the driver says of a guest. It is asked for
when somebody looks, and must never fail because of us.
"""

from collections.abc import Iterator
from typing import Any

from oslo_log import log as logging

from ghsched_nova.guest import metadata
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view
from ghsched_nova.virt import bandwidth_use
from ghsched_placement import diagnostics

LOG = logging.getLogger(__name__)


class GuestDiagnostics:
    """Looks at the control groups of guests.

    :param use: not the one that reports to the scheduler, whose rates are
        those between its reports.
    """

    def __init__(self, use: bandwidth_use.BandwidthUse) -> None:
        self._use = use

    def added_to(self, found: dict[str, Any], guest: Any) -> dict[str, Any]:
        """What the driver says of a guest, with our part.

        :param guest: of nova.virt.libvirt.guest.
        """
        try:
            policy = metadata.read(guest.get_xml_desc())
            if policy is not None:
                found |= diagnostics.write(self._report(view.Guest(
                    guest.name, guest.uuid, guest.id, policy)))
        except topology.MonitorUnavailable as error:
            found |= diagnostics.write(diagnostics.Report(
                problem=str(error)))
        except Exception as error:
            LOG.warning('ghsched: what guest %(name)s has of memory '
                        'bandwidth can not be read: %(error)r',
                        {'name': guest.name, 'error': error})
        return found

    def _report(self, guest: view.Guest) -> diagnostics.Report:
        return report(self._use.snapshot((guest,)), guest.uuid)


_NOTHING = view.Effective(None, None, None, None, None)


def report(snapshot: view.Snapshot, uuid: str) -> diagnostics.Report:
    """What is told of one guest of a host (pure)."""
    return diagnostics.Report(
        tuple(node for usage in snapshot.guests if usage.guest.uuid == uuid
              for row in usage.nodes for node in _guest_nodes(row)),
        tuple(diagnostics.HostNode(
            row.nodes[0], _rate(row), row.capacity)
            for row in snapshot.nodes if len(row.nodes) == 1))


def _guest_nodes(row: view.GuestNode) -> Iterator[diagnostics.GuestNode]:
    """One for each host node; what several share is not told of any."""
    held = row.effective or _NOTHING
    for node in row.nodes:
        yield diagnostics.GuestNode(
            node, held.minimum, held.maximum, held.hardlimit, held.priority,
            _rate(row) if len(row.nodes) == 1 else None)


def _rate(row: view.GuestNode | view.NodeUsage) -> int | None:
    return None if row.used.rate is None else round(row.used.rate)

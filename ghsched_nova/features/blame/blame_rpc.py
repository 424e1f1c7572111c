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

"""RPC endpoint of nova-compute to find the guests that slow down a guest."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import contextlib
from pathlib import Path
from typing import Any

from oslo_log import log as logging
import oslo_messaging

from ghsched_nova.features.blame import blame_cap
from ghsched_nova.features.blame import blame_periods
from ghsched_nova.features.blame import blame_record
from ghsched_nova.features.blame import host_blame
from ghsched_nova.features.live_change import messages
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_nova.nova_seams import messaging
from ghsched_nova.nova_seams import shared
from ghsched_placement.features.load import pressure

LOG = logging.getLogger(__name__)


class BlameEndpoint:
    """RPC method that finds out which guests slow down a guest of this host.

    A refusal is returned as in
    :class:`ghsched_nova.features.live_change.rpc.PolicyEndpoint`.

    :param own_engine: engine that enforces policies on this host.
    :param changing: lock that is held while the policy of a guest changes.
    :param find: function that returns a running guest, given its UUID.
    :param list_running: function that lists all running guests.
    :param get_periods: function that returns the bandwidth and load in the
        last minutes.
    :param pressure_file: file with the pressure that guests report.
    """

    target = oslo_messaging.Target(namespace=messages.NAMESPACE,
                                   version=messages.VERSION)

    def __init__(
        self,
        own_engine: engine.HostEngine,
        changing: contextlib.AbstractContextManager[Any],
        find: Callable[[str], desired.Running | None],
        list_running: Callable[[], Iterable[desired.Running]],
        get_periods: Callable[[], Sequence[blame_periods.BlamePeriod]],
        pressure_file: Path,
    ) -> None:
        capper = blame_cap.Capper(own_engine, changing, find,
                                  _report_temporary_cap, blame_cap.Pauses())
        self._investigator = host_blame.Investigator(
            capper, shared.config().host, list_running, get_periods,
            pressure_file=pressure_file)

    def blame(self, context: Any, instance_uuid: str,
              prove: bool) -> dict[str, Any]:
        """Return a report of which guests slow down a guest of this host.

        Guests slow each other down by their use of memory bandwidth.

        :param prove: whether to test the result: the memory bandwidth of
            another guest is capped for a moment, to see whether the guest
            gets faster.
        :returns: the report, or the reason why there is none.
        """
        try:
            return {'report': self._investigator.investigate_server(
                instance_uuid, prove)}
        except host_blame.NotInvestigated as error:
            return {'refused': str(error)}


def make_compute_hooks(services: compute_hooks.ComputeServices
                       ) -> blame_record.BlameRecord:
    """Return nova-compute's record of guests, with the RPC endpoint of blame.
    """
    record = blame_record.BlameRecord(
        services.state_path / blame_periods.FORMAT.name)
    record.endpoint = BlameEndpoint(
        services.engine, services.changing, services.find_running,
        services.list_running, lambda: record.periods,
        services.state_path / pressure.FILE)
    return record


def _report_temporary_cap(event: str, uuid: str) -> None:
    """Log and notify that a guest's temporary bandwidth cap begins or ends.

    A guest is capped for a moment to find out whether it slows down another
    guest.

    :param event: ``start`` or ``end``.
    :param uuid: UUID of the capped guest.
    """
    LOG.info('ghsched: the temporary bandwidth cap of guest %(uuid)s '
             '%(state)s; the cap tests whether the guest slows down '
             'another one',
             {'uuid': uuid,
              'state': 'begins' if event == 'start' else 'has ended'})
    messaging.send_notification(host_blame.EVENT + event, {
        'host': shared.config().host, 'server': uuid,
        'percent': blame_cap.CAP_PERCENT,
        'seconds_max': blame_cap.CAP_LIMIT_S})

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

"""Rates of KVM's and the scheduler's counters of guests' vCPUs.

libvirt reports the counters, as far as host and hypervisor have them.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
import time

from ghsched_nova.monitor import view

#: Names of the counters, see guest_reader.sum_vcpu_counters().
_EXITS, _STEAL = 'exits', 'delay'
_HALT_POLLS = ('halt_poll_success_ns', 'halt_poll_fail_ns')

#: Titles of the columns of ghsched-top, by the fields of VcpuRates.
TITLES = {'exits_per_second': 'EXITS/s', 'halt_poll_percent': 'POLL %',
          'steal_percent': 'STEAL %'}

Counters = Mapping[str, int]


@dataclass(frozen=True)
class VcpuRates:
    """Rates of a guest's vCPUs; None if the host does not count them.

    :param exits_per_second: exits of all vCPUs to the hypervisor.
    :param halt_poll_percent: percent of the time of its vCPUs in which the
        host polled for an idle one.
    :param steal_percent: percent of the time of its vCPUs in which one waited
        for a CPU of the host.
    """

    exits_per_second: float | None = None
    halt_poll_percent: float | None = None
    steal_percent: float | None = None

    def format_cells(self, fields: Iterable[str]) -> list[str]:
        """Return the table cells of a guest's vCPU rates.

        :param fields: names of the rates.
        """
        return ['-' if (rate := getattr(self, name)) is None
                else f'{rate:.1f}' for name in fields]


def list_known_fields(rates: Collection[VcpuRates]) -> tuple[str, ...]:
    """Return the names of the rates that are known for at least one guest."""
    return tuple(name for name in TITLES if any(
        getattr(one, name) is not None for one in rates))


def compute_vcpu_rates(before: Counters, now: Counters, seconds: float,
                       vcpus: int) -> VcpuRates:
    """Return the rates between two readings of the counters of a guest.

    :param vcpus: number of vCPUs of the guest; 0 if unknown.
    """
    def grow(*names: str) -> int | None:
        grown = [now[name] - before[name] for name in names
                 if name in now and name in before]
        return (sum(grown) if len(grown) == len(names) and min(grown) >= 0
                and seconds > 0 else None)

    def percent(*names: str) -> float | None:
        grown = grow(*names)
        return (None if grown is None or not vcpus
                else grown / (seconds * vcpus * 10 ** 7))

    exits = grow(_EXITS)
    return VcpuRates(None if exits is None else exits / seconds,
                     percent(*_HALT_POLLS), percent(_STEAL))


class VcpuMeter:
    """Meter of guests' vCPU rates between two measurements.

    :param clock: function that returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at = 0.0
        self._counters: dict[tuple[str, int | None], Counters] = {}

    def measure_rates(self, guests: Iterable[view.MonitoredGuest],
                      counters: Mapping[str, Counters]
                      ) -> dict[str, VcpuRates]:
        """Return how fast counters of vCPUs have grown since the last call.

        A guest is left out of the first result after it has appeared.

        :param counters: counters by UUID of the guest.
        :returns: rates by UUID of the guest.
        """
        now, last, before = self._clock(), self._read_at, self._counters
        found = {guest.uuid: guest for guest in guests
                 if counters.get(guest.uuid)}
        self._read_at = now
        self._counters = {(uuid, guest.domain_id): counters[uuid]
                          for uuid, guest in found.items()}
        return {uuid: compute_vcpu_rates(
            before[uuid, guest.domain_id], counters[uuid], now - last,
            sum(len(cell.vcpus) for cell in guest.cells))
            for uuid, guest in found.items()
            if (uuid, guest.domain_id) in before}

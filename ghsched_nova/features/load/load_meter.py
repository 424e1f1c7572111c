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


"""Periodic measurement of the load of a host."""

from collections.abc import Callable
from collections.abc import Iterable
import time

from ghsched_nova.features.load import load_rates
from ghsched_nova.features.load import load_reader
from ghsched_placement.features.load import bottleneck
from ghsched_placement.features.load.load import HostLoad

Wall = Callable[[], float]


class LoadMeter:
    """Measures the load of a host and marks its bottlenecks.

    Not safe for use from several threads.

    :param period: minimum length of a measurement in seconds; a call before
        its end keeps the last measurement.
    :param smoothing: time constant in seconds, see
        :func:`load_rates.smooth_load`.
    :param wall: clock in seconds since 1970.
    """

    def __init__(self, reader: load_reader.LoadReader,
                 limits: bottleneck.LoadLimits, period: float = 0.0,
                 smoothing: float = 0.0, wall: Wall = time.time) -> None:
        self._reader = reader
        self._limits = limits
        self._period = period
        self._smoothing = smoothing
        self._wall = wall
        self._sample: load_rates.LoadSample | None = None
        #: Last measurement; None before the second sample.
        self.load: HostLoad | None = None

    def measure_host_load(
        self,
        guests: Iterable[load_reader.RunningGuest],
        bandwidth: load_rates.MeasuredBandwidth | None = None,
    ) -> tuple[bottleneck.BottleneckChange, ...]:
        """Measure the load of a host; return new and ended bottlenecks.

        A host NUMA node is a bottleneck while it is overloaded. The measured
        load is then in :attr:`load`.

        :param guests: running guests.
        :param bandwidth: memory bandwidth measured over about the same time.
        """
        if (self._sample is not None and self._reader.current_time
                - self._sample.when < self._period):
            return ()
        now = self._reader.read_load_sample(guests)
        if self._sample is None:
            self._sample = now
            return ()
        found = load_rates.compute_load(
            self._sample, now, self._wall(), bandwidth)
        if found is None:
            return ()
        before, self._sample = self.load, now
        self.load = bottleneck.mark_bottlenecks(load_rates.smooth_load(
            before, found, self._smoothing), before, self._limits)
        return bottleneck.find_bottleneck_changes(before, self.load)

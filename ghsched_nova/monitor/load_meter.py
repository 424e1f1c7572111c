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


"""Measures a host from time to time, and remembers what came of it."""

from collections.abc import Callable
from collections.abc import Iterable
import time

from ghsched_nova.monitor import load_rates
from ghsched_nova.monitor import load_reader
from ghsched_placement import bottleneck
from ghsched_placement.load import Load

Wall = Callable[[], float]


class LoadMeter:
    """Samples, smooths and judges; not safe for several threads.

    :param period: seconds that a measurement lasts at least; who asks before
        that gets the one before.
    :param smoothing: seconds, see :func:`load_rates.smooth`.
    :param wall: seconds since 1970.
    """

    def __init__(self, reader: load_reader.LoadReader,
                 limits: bottleneck.Limits, period: float = 0.0,
                 smoothing: float = 0.0, wall: Wall = time.time) -> None:
        self._reader = reader
        self._limits = limits
        self._period = period
        self._smoothing = smoothing
        self._wall = wall
        self._sample: load_rates.Sample | None = None
        #: The last measurement; None until there are two samples.
        self.load: Load | None = None

    def measure(self, guests: Iterable[load_reader.Known],
                bandwidth: load_rates.Bandwidth | None = None
                ) -> tuple[bottleneck.Change, ...]:
        """Bring :attr:`load` up to date.

        :param bandwidth: over the same time, about.
        :returns: nodes that have become bottlenecks, or are none any more.
        """
        if (self._sample is not None and self._reader.now
                - self._sample.when < self._period):
            return ()
        now = self._reader.sample(guests)
        if self._sample is None:
            self._sample = now
            return ()
        found = load_rates.load(self._sample, now, self._wall(), bandwidth)
        if found is None:
            return ()
        before, self._sample = self.load, now
        self.load = bottleneck.judge(load_rates.smooth(
            before, found, self._smoothing), before, self._limits)
        return bottleneck.changes(before, self.load)

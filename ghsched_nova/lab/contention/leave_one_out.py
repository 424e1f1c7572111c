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

"""Error of predicting a machine's memory latency from other machines (pure).

The prediction for a machine whose curve is not known is the median of the
other machines' latencies at the same utilisation, and its range reaches from
the lowest of these latencies to the highest.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
import statistics

from ghsched_placement.features.density.curve import LatencyCurve
from ghsched_placement.features.density.curve import WRITES

#: Utilisations of the memory at which machines are compared.
UTILISATIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

#: Number of other machines that a prediction needs.
_OTHERS = 2


@dataclass(frozen=True)
class LatencyPrediction:
    """Measured and predicted memory latency of a machine at one utilisation.

    All latencies are relative to the latency of the idle machine.

    :param utilisation: utilisation of the memory, 0 to 1.
    :param measured: measured latency of the machine.
    :param predicted: median of the measured latencies of the other machines.
    :param low: lowest latency of the other machines.
    :param high: highest latency of the other machines.
    """

    utilisation: float
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Error of the predicted latency, as a fraction of the measured."""
        return self.predicted / self.measured - 1

    @property
    def is_in_range_of_others(self) -> bool:
        """Whether the measured latency is in the range of the other machines.
        """
        return self.low <= self.measured <= self.high


def predict_latency_from_other_machines(
        curves: Mapping[str, LatencyCurve], writes: float = WRITES
) -> dict[str, tuple[LatencyPrediction, ...]]:
    """Predict each machine's memory latency from the other machines' curves.

    The results contain the error of each prediction. The errors show how far a
    prediction may be off for a machine that was not measured.

    :param curves: measured latency curve of each machine.
    :param writes: fraction of the accesses that are writes.
    """
    return {name: tuple(_compare_machine(name, curves, writes))
            for name in curves}


def _compare_machine(name: str, curves: Mapping[str, LatencyCurve],
                     writes: float) -> Iterator[LatencyPrediction]:
    own = curves[name]
    for utilisation in UTILISATIONS:
        others = [curve.get_latency(utilisation, writes)
                  for other, curve in curves.items()
                  if other != name
                  and utilisation <= curve.get_max_utilisation(writes)]
        if (utilisation > own.get_max_utilisation(writes)
                or len(others) < _OTHERS):
            return
        yield LatencyPrediction(utilisation,
                                own.get_latency(utilisation, writes),
                                statistics.median(others), min(others),
                                max(others))

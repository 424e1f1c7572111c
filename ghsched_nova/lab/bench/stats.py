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

"""Samples and their statistics.

Quantiles are those of Hyndman and Fan's type 7 (linear between the two
neighbours), which is what numpy, R and ``statistics`` (method "inclusive")
have by default. A percentile beyond the samples is not made up: the p-th
needs at least 100 / (100 - p) of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math
import statistics

#: Percentiles of a distribution beside its quartiles.
PERCENTILES = (90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True)
class Distribution:
    """Statistics of samples, in the samples' unit.

    :param deviation: standard deviation of the population that the samples
        are drawn from (n - 1), None for a single sample.
    :param percentiles: (percent, value), only those that n allows.
    """

    n: int
    minimum: float
    q1: float
    median: float
    q3: float
    maximum: float
    mean: float
    deviation: float | None
    percentiles: tuple[tuple[float, float], ...]


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the value below which a share (0..1) of the samples lies.

    :raises ValueError: without samples.
    """
    if not samples:
        raise ValueError('no samples')
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    if ordered[low] == ordered[high]:
        return ordered[low]
    part = place - low
    return ordered[low] * (1 - part) + ordered[high] * part


def distribution(samples: Sequence[float]) -> Distribution:
    """Describe samples.

    :raises ValueError: without samples.
    """
    quartiles = [quantile(samples, share / 4) for share in range(5)]
    return Distribution(
        n=len(samples), minimum=quartiles[0], q1=quartiles[1],
        median=quartiles[2], q3=quartiles[3], maximum=quartiles[4],
        mean=statistics.fmean(samples),
        deviation=statistics.stdev(samples) if len(samples) > 1 else None,
        percentiles=tuple(
            (percent, quantile(samples, percent / 100))
            for percent in PERCENTILES
            if len(samples) * (100 - percent) >= 100 - 1e-9))


def below(samples: Sequence[float], threshold: float) -> int:
    """Return the number of samples strictly below a threshold."""
    return sum(sample < threshold for sample in samples)


def overhead(reference: float, value: float) -> float:
    """Share of a figure's reference that is lost, for "more is better".

    0.1 is a loss of 10 %; negative where there is a gain.
    """
    return (reference - value) / reference


def balance(loads: Sequence[float]) -> float:
    """Return the balance of loads: mean load over greatest load, 0 to 1.

    The definition of load balance efficiency in the POP performance model
    (https://pop-coe.eu/node/69): 1 is perfect, 1 / n is all on one of n.
    Without any load the balance is perfect.
    """
    greatest = max(loads)
    return statistics.fmean(loads) / greatest if greatest else 1.0


def spread(loads: Sequence[float]) -> float:
    """Standard deviation of all there is (divided by n, not n - 1)."""
    return statistics.pstdev(loads)

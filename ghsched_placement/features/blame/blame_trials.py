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

"""Trials that cap a suspected guest for a short time, and their effect (pure).

Each trial compares the server's speed while the suspect is capped with its
speed just before and just after, so that slow changes of the server's own
demand cancel out. The trials of a suspect are repeated until the t interval of
their mean is conclusive; then the next suspect is tried.

The speed also varies without a cap, equally for all suspects. Each trial
measures this variation once more. The interval is computed from all trials of
the server, so that two trials of a suspect may suffice.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import math
import statistics

#: Smallest relative effect: a guest with a smaller one does not slow the
#: server down.
LEAST_EFFECT = 0.05
#: Minimum number of trials to prove that a guest slows a server down, minimum
#: number to prove that it does not, and maximum number with one guest.
PROVING_TRIALS = 2
CLEARING_TRIALS = 3
MOST_TRIALS = 20
#: Largest ratio of the server's speeds, or of the guest's bandwidths, before
#: and after a cap. At a larger ratio something else has changed meanwhile, and
#: the trial is no evidence.
CHANGED = 1.3
#: Smallest relative growth of a server's part of the L3 cache that counts.
CACHE_GROWTH = 0.1
#: Smallest standard deviation that is assumed for a trial.
LEAST_DEVIATION = 0.02
#: A guest whose score is at least this fraction of another suspect's score is
#: capped before the other suspect is capped again.
RIVAL = 0.25
#: Ratio of the variances of a trial and of the difference of its two figures
#: without a cap, if all three figures differ as much.
_TRIAL_VARIANCE = 0.75

#: Quantiles of Student's t distribution by degrees of freedom from 1 on, of
#: two-sided confidences of 99 % (that there is an effect) and 90 % (that it
#: is above or below the smallest one).
_T_PROVE = (63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250,
            3.169, 3.106, 3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878,
            2.861, 2.845)
_T_CLEAR = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833,
            1.812, 1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734,
            1.729, 1.725)


@dataclass(frozen=True)
class Trial:
    """Speeds of a server before, during and after a cap on a suspected guest.

    The speed is that of
    :meth:`ghsched_placement.features.blame.blame.BlameSample.compute_speed`.

    :param cached: relative growth of the server's part of the L3 cache while
        the guest was capped; None if unknown.
    """

    before: float
    during: float
    after: float
    cached: float | None = None

    @property
    def change(self) -> float:
        """Logarithm of a server's speed in a trial relative to its usual one.

        The speed while a suspected guest was capped is divided by the normal
        speed. Normal is the geometric mean of the speeds before and after the
        cap. The value is positive if the server was faster while the guest was
        capped.
        """
        return math.log(self.during) - (
            math.log(self.before) + math.log(self.after)) / 2

    @property
    def drift(self) -> float:
        """Logarithm of the server's speed after the trial relative to before.

        Nothing is capped before and after a trial.
        """
        return math.log(self.after) - math.log(self.before)


@dataclass(frozen=True)
class Effect:
    """Relative change of a server's speed when a suspected guest is capped.

    A value of 0.2 means that the server is 20 percent faster.

    :param mean: mean over the trials.
    :param low: lower end of the 99 percent confidence interval.
    :param high: upper end of the 99 percent confidence interval.
    :param trials: number of trials.
    :param by_cache: whether the server moved fewer bytes during the cap
        because more of its data was in the L3 cache. The other values are then
        the relative decrease of these bytes.
    :param likely_low: lower end of the 90 percent confidence interval.
    """

    mean: float
    low: float
    high: float
    trials: int
    by_cache: bool = False
    likely_low: float = 0.0

    @property
    def is_proven(self) -> bool:
        """Whether trials prove that the suspected guest slows the server down.

        Capping the guest must make the server faster with 99 percent
        confidence, and faster by at least 5 percent with 90 percent
        confidence. A mean of at least 5 percent does not suffice, because the
        mean of few trials can reach 5 percent by chance.
        """
        return (self.trials >= PROVING_TRIALS and self.low > 0
                and self.likely_low >= LEAST_EFFECT)


def is_speed_steady(before: float, after: float) -> bool:
    """Whether a server's speed is about the same before and after a trial.

    A trial caps the bandwidth of a suspected guest for a short time. It is no
    evidence if the speeds without the cap differ by more than a factor of 1.3.

    :param before: speed of the server before the cap.
    :param after: speed of the server after the cap.
    """
    return max(before, after) <= CHANGED * min(before, after)


def measure_effect(trials: Sequence[Trial],
                   drifts: Sequence[float] = ()) -> Effect | None:
    """Return how capping a suspected guest changes a server's speed.

    The effect is a relative change: 0.2 if the server is 20 percent faster
    while the guest is capped.

    :param trials: trials that capped this guest.
    :param drifts: drifts of all trials of the server, see :func:`list_drifts`.
        If empty, the drifts of this guest's trials are used.
    :returns: mean and confidence intervals over the trials; None if there are
        no trials. If the server moved fewer bytes because it had more of the
        L3 cache, the effect says how many fewer.
    """
    if not trials:
        return None
    mean, half = _compute_confidence_interval(trials, drifts, _T_PROVE)
    _mean, likely_half = _compute_confidence_interval(trials, drifts, _T_CLEAR)
    return Effect(math.expm1(mean), _to_relative_change(mean - half),
                  _to_relative_change(mean + half), len(trials),
                  _is_explained_by_cache(trials),
                  _to_relative_change(mean - likely_half))


def list_drifts(tried: Mapping[str, Iterable[Trial]]) -> tuple[float, ...]:
    """Return the drifts of all trials of a server.

    A drift is the logarithm of the server's speed after a trial relative to
    that before it. Drifts show how much the speed varies without a cap.

    :param tried: trials by UUID of the capped guest.
    """
    return tuple(trial.drift for trials in tried.values() for trial in trials)


def _is_explained_by_cache(trials: Sequence[Trial]) -> bool:
    """Whether a server moved fewer bytes because it had more of the L3 cache.

    This happens if capping a guest leaves more cache to the server: the server
    then reads less from memory, without being slower.

    :param trials: trials that capped the bandwidth of one guest.
    """
    grown = [trial.cached for trial in trials if trial.cached is not None]
    return bool(grown) and statistics.median(grown) >= CACHE_GROWTH and (
        statistics.fmean(trial.change for trial in trials) < 0)


def _compute_confidence_interval(trials: Sequence[Trial],
                                 drifts: Sequence[float],
                                 quantiles: Sequence[float]
                                 ) -> tuple[float, float]:
    """Return the mean effect of trials and half the width of its interval.

    The variance of a trial is pooled from the scatter of these trials and
    from the drifts, each of which estimates it with one degree of freedom.

    :param trials: trials that capped one guest.
    :param drifts: drifts of all trials of the server; may be empty.
    :param quantiles: quantiles of Student's t distribution, from 1 degree of
        freedom on.
    """
    sign = -1 if _is_explained_by_cache(trials) else 1
    changes = [sign * trial.change for trial in trials]
    mean = statistics.fmean(changes)
    if len(changes) < PROVING_TRIALS:
        return mean, math.inf
    drifts = drifts or [trial.drift for trial in trials]
    free = len(changes) - 1 + len(drifts)
    squares = sum((change - mean) ** 2 for change in changes) + (
        _TRIAL_VARIANCE * sum(drift ** 2 for drift in drifts))
    deviation = max(LEAST_DEVIATION, math.sqrt(squares / free))
    return mean, quantiles[min(free, len(quantiles)) - 1] * (
        deviation / math.sqrt(len(changes)))


def _to_relative_change(logarithm: float) -> float:
    """Convert the logarithm of a ratio to a relative change.

    A ratio of 1.2 is a relative change of 0.2. Results above 100 are reduced
    to 100.
    """
    return math.expm1(min(max(logarithm, -50.0), math.log(101)))


def is_suspect_cleared(trials: Sequence[Trial],
                       drifts: Sequence[float] = ()) -> bool:
    """Whether trials show that a suspected guest does not slow a server down.

    The guest is cleared if capping it makes the server less than 5 percent
    faster, with 90 percent confidence over at least 3 trials.

    :param trials: trials that capped this guest.
    :param drifts: drifts of all trials of the server, see :func:`list_drifts`.
    """
    if len(trials) < CLEARING_TRIALS:
        return False
    mean, half = _compute_confidence_interval(trials, drifts, _T_CLEAR)
    return mean + half < math.log1p(LEAST_EFFECT)


def choose_next_guest(candidates: Mapping[str, float],
                      done: Mapping[str, Sequence[Trial]],
                      resting: Collection[str] = ()) -> str | None:
    """Return the UUID of the suspected guest to cap in the next trial.

    The likely guests are capped once each. After that, the guest with the
    largest effect on the server is capped again until its effect is certain,
    and then those that were less likely.

    :param candidates: scores of suspected guests by UUID, the most suspicious
        first.
    :param done: trials so far, by guest UUID.
    :param resting: UUIDs of guests that use so little bandwidth at present
        that a cap would show nothing.
    :returns: None if no trial shows anything new at present.
    """
    drifts = list_drifts(done)
    effects = {uuid: effect for uuid in candidates
               if (effect := measure_effect(done.get(uuid, ()), drifts))}
    unclear = _list_uncleared_guests(effects, done, drifts)
    least = 0.0
    if unclear and effects[unclear[0]].is_proven:
        return None
    if unclear and effects[unclear[0]].mean >= LEAST_EFFECT:
        # The budget is spent on this one, unless another is as likely.
        del unclear[1:]
        least = RIVAL * candidates[unclear[0]]
    untried = [uuid for uuid, score in candidates.items()
               if uuid not in effects and score >= least]
    return next((uuid for uuid in [*untried, *unclear]
                 if uuid not in resting), None)


def _list_uncleared_guests(effects: Mapping[str, Effect],
                           done: Mapping[str, Sequence[Trial]],
                           drifts: Sequence[float]) -> list[str]:
    """Return the UUIDs of tried guests that are proven or not yet cleared.

    The guest with the largest effect comes first. Guests that have had the
    maximum number of trials without being proven are left out.

    :param effects: effect of capping each guest, by UUID.
    :param done: trials so far, by guest UUID.
    :param drifts: drifts of all trials of the server.
    """
    return [uuid for uuid in sorted(
        effects, key=lambda uuid: effects[uuid].mean, reverse=True)
        if effects[uuid].is_proven or (
            not is_suspect_cleared(done[uuid], drifts)
            and len(done[uuid]) < MOST_TRIALS)]

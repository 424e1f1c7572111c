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

"""Observation of a server, and trials with caps on suspects, on its host.

Uses no Nova object and no file; the host is a :class:`Probe`.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from dataclasses import dataclass
from dataclasses import field
from typing import Protocol

from ghsched_placement.features.blame import blame
from ghsched_placement.features.blame import blame_trials

#: Maximum duration of an investigation in seconds.
BUDGET_S = 56.0
#: Number of samples before any cap, and duration of each in seconds.
SAMPLES = 8
SAMPLE_S = 1.0
#: Seconds until a changed cap has an effect, and duration of the measurement
#: that follows.
SETTLE_S = 0.3
WINDOW_S = 1.2
#: Duration of measurements, in seconds, once a guest's load has changed during
#: a trial. Short trials fit into the load phases of such guests.
SHORT_WINDOW_S = 0.6
#: Maximum drop of other guests' bandwidth while a suspect is capped, as a
#: fraction of the bandwidth of all guests before the cap. After a larger drop,
#: the server may be faster because of these guests.
RESTED = 0.1
#: Number of prematurely removed caps after which a suspect is given up.
FAILURES = 3


class NotCapped(Exception):  # noqa: N818
    """Reason why a guest cannot be capped for a trial."""


class Probe(Protocol):
    """Measurements and caps that an investigation needs on the host.

    Implemented by :class:`blame_probe.HostProbe`, and by simulations in tests.
    """

    def get_time(self) -> float:
        """Return the time of a monotonic clock in seconds."""

    def wait(self, seconds: float) -> None:
        """Sleep for some seconds."""

    def measure(self) -> blame.BlameSample | None:
        """Measure bandwidth and load of the guests since the previous call.

        :returns: None if the investigated server's bandwidth is not known.
        """

    def get_limits(self, uuid: str) -> object:
        """Return the bandwidth limits of a guest in the last measurement."""

    def cap(self, uuid: str) -> None:
        """Limit a guest's bandwidth until :meth:`restore_limits` is called.

        :param uuid: UUID of the guest.
        :raises NotCapped: if the guest cannot be capped; nothing is changed.
        """

    def restore_limits(self) -> None:
        """Restore the bandwidth limits of the capped guest; never raises."""


@dataclass
class Session:
    """Investigation of which guests slow down one server.

    :param server: UUID of the server.
    :param record: samples of the last minutes, from before the investigation.
    :param probe: measurements and caps on the server's host.
    """

    server: str
    record: Sequence[blame.BlameSample]
    probe: Probe
    _tried: dict[str, list[blame_trials.Trial]] = field(default_factory=dict)
    _untried: dict[str, str] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)
    _usual: dict[str, float] = field(default_factory=dict)
    _window: float = WINDOW_S

    def collect_evidence(self, prove: bool) -> blame.BlameEvidence:
        """Return the evidence of which guests slow down the server.

        Guests slow down a server if they use memory bandwidth or L3 cache that
        the server needs.

        :param prove: whether to cap the bandwidth of other guests for a
            moment, to see whether the server gets faster.
        """
        deadline = self.probe.get_time() + BUDGET_S
        samples = self._measure_for_some_seconds()
        suspects = blame.rank_suspects(self.server, self.record, samples)
        self._usual = blame.find_usual_bandwidth(self.record, samples)
        verdict = blame.judge_by_measurements(self.server, suspects, samples)
        if prove and verdict.kind is not blame.VerdictKind.NOT_MEMORY:
            try:
                self._cap_suspects_in_turn(
                    blame.choose_guests_to_cap(suspects), deadline)
            finally:
                self.probe.restore_limits()
            verdict = blame.judge_by_trials(verdict, self._tried)
        return blame.BlameEvidence(
            verdict, tuple(self._add_cap_effects(suspects)),
            blame.compute_median_load(samples), self._tried, tuple(samples))

    def _measure_for_some_seconds(self) -> list[blame.BlameSample]:
        """Measure the server and the other guests for some seconds.

        :returns: one sample per measurement.
        """
        self.probe.measure()
        found = []
        for _number in range(SAMPLES):
            self.probe.wait(SAMPLE_S)
            sample = self.probe.measure()
            if sample is not None:
                found.append(sample)
        return found

    def _cap_suspects_in_turn(self, candidates: Mapping[str, float],
                              deadline: float) -> None:
        """Cap suspected guests one by one, to see who slows down the server.

        The effect of each cap on the server is recorded. The method returns as
        soon as one guest is proven to slow down the server.

        :param candidates: score of each suspected guest by UUID. The higher
            the score, the more likely the guest slows down the server.
        :param deadline: time of the monotonic clock at which to stop.
        """
        before = self._measure_after_settling()
        while self.probe.get_time() + 2 * (
                SETTLE_S + self._window) <= deadline:
            left = {uuid: score for uuid, score in candidates.items()
                    if uuid not in self._untried}
            if blame_trials.choose_next_guest(left, self._tried) is None:
                return
            # A cap shows nothing while one of both rests.
            resting = [uuid for uuid in left
                       if not (self._has_server_speed(before)
                               and self._uses_usual_bandwidth(uuid, before))]
            suspect = blame_trials.choose_next_guest(left, self._tried,
                                                     resting)
            if suspect is None:
                before = self._measure_after_settling()
                continue
            try:
                before = self._cap_suspect_once(suspect, before)
            except NotCapped as error:
                self._untried[suspect] = str(error)

    def _cap_suspect_once(self, suspect: str, before: blame.BlameSample | None
                          ) -> blame.BlameSample | None:
        """Cap a suspected guest once; record whether the server gets faster.

        :param suspect: UUID of the guest.
        :param before: measurement from just before the cap.
        :returns: measurement from just after the cap.
        :raises NotCapped: if the suspected guest cannot be capped.
        """
        free = self.probe.get_limits(suspect)
        self.probe.cap(suspect)
        try:
            self._settle()
            capped = self.probe.get_limits(suspect)
            self.probe.wait(self._window)
            during = self.probe.measure()
            # A report of nova-compute may have undone it meanwhile.
            held = free != capped == self.probe.get_limits(suspect)
        finally:
            self.probe.restore_limits()
        after = self._measure_after_settling()
        if not held:
            self._count_undone_cap(suspect)
        trial = self._compare_speed_around_cap(before, during, after)
        if trial is None or not self._has_steady_load(
                suspect, before, during, after):
            self._window = SHORT_WINDOW_S
        elif held:
            self._tried.setdefault(suspect, []).append(trial)
        return after

    def _has_steady_load(self, suspect: str,
                         *samples: blame.BlameSample | None) -> bool:
        """Whether the load of guests stayed the same around a cap.

        The capped guest must use about as much bandwidth after the cap as
        before it, and other guests must not have been idle during the cap. If
        the result is False, the trial with the cap proves nothing.

        :param suspect: UUID of the capped guest.
        :param samples: measurements before, during and after the cap.
        """
        before, during, after = samples
        if before is None or during is None or after is None:
            return False
        rested = sum(max(0.0, min(rate, after.rates.get(uuid, 0.0))
                         - during.rates.get(uuid, 0.0))
                     for uuid, rate in before.rates.items()
                     if uuid not in (suspect, self.server))
        return rested <= RESTED * sum(before.rates.values()) and (
            blame_trials.is_speed_steady(before.rates.get(suspect, 0.0),
                                         after.rates.get(suspect, 0.0)))

    def _has_server_speed(self, sample: blame.BlameSample | None) -> bool:
        """Whether a sample has a measurement of the server's speed.

        The server is the one whose slowdown is investigated.
        """
        return bool(sample and sample.compute_speed(self.server))

    def _uses_usual_bandwidth(self, suspect: str,
                              sample: blame.BlameSample | None) -> bool:
        """Whether a guest uses at least half of its usual bandwidth.

        A cap on an idle guest would prove nothing.
        """
        return sample is None or sample.rates.get(suspect, 0.0) >= (
            self._usual.get(suspect, 0.0) / 2)

    def _settle(self) -> None:
        self.probe.wait(SETTLE_S)
        self.probe.measure()

    def _measure_after_settling(self) -> blame.BlameSample | None:
        """Wait until a changed cap has an effect, then measure all guests.

        :returns: None if the investigated server's bandwidth is not known.
        """
        self._settle()
        self.probe.wait(self._window)
        return self.probe.measure()

    def _compare_speed_around_cap(self, *samples: blame.BlameSample | None
                                  ) -> blame_trials.Trial | None:
        """Compare the server's speed before, during and after a cap.

        The cap limited the bandwidth of another guest. Speeds are
        instructions, or else bytes of memory traffic, per second of CPU time.

        :param samples: the three measurements before, during and after the
            cap.
        :returns: None if the speed is unknown, if it differs before and after
            the cap, or if only some of the speeds are in instructions.
        """
        counted = {sample.work is not None for sample in samples if sample}
        if len(counted) > 1:
            return None
        figures = [sample.compute_speed(self.server) if sample else None
                   for sample in samples]
        before, during, after = figures
        if (before is None or during is None or after is None
                or min(before, during, after) <= 0
                or not blame_trials.is_speed_steady(before, after)):
            return None
        # A server with more cache moves fewer bytes, but executes more.
        return blame_trials.Trial(
            before, during, after,
            None if True in counted else _compute_cache_growth(*samples))

    def _count_undone_cap(self, suspect: str) -> None:
        """Count a cap that was removed before the measurement was complete.

        For example, a periodic task of nova-compute may restore the limits of
        the capped guest. After :data:`FAILURES` such caps the guest must not
        be capped again.

        :param suspect: UUID of the guest that was capped.
        :raises NotCapped: if the guest must not be capped again.
        """
        count = self._failures[suspect] = self._failures.get(suspect, 0) + 1
        if count >= FAILURES:
            raise NotCapped('other changes of its control group have undone '
                            'the cap')

    def _add_cap_effects(self, suspects: Iterable[blame.Suspect]
                         ) -> Iterable[blame.Suspect]:
        """Yield the suspected guests, each with the effect of its cap.

        The effect is how much faster the server was while the guest was
        capped. Guests that could not be capped get the reason.
        """
        drifts = blame_trials.list_drifts(self._tried)
        for one in suspects:
            yield dataclasses.replace(
                one, untried=self._untried.get(one.uuid, ''),
                effect=blame_trials.measure_effect(
                    self._tried.get(one.uuid, ()), drifts))


def _compute_cache_growth(before: blame.BlameSample | None,
                          during: blame.BlameSample | None,
                          after: blame.BlameSample | None) -> float | None:
    """Return how much more L3 cache a server had while a guest was capped.

    :returns: growth relative to the mean of before and after the cap; None if
        the cache occupancy is unknown.
    """
    cached = [one.cached if one else None for one in (before, during, after)]
    if not all(cached):
        return None
    first, middle, last = (one or 0.0 for one in cached)
    return 2 * middle / (first + last) - 1

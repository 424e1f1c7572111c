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

"""Evidence of which guest disturbs a server, and the verdict (pure).

Three kinds of evidence: the share of the bandwidth that a guest has of what
others use on the server's host NUMA nodes, beside its share of their cache
misses where the host counts them, the correlation of its bandwidth
with the server's own figure, and the effect of a cap on it, see
:mod:`ghsched_placement.blame_trials`. Only the last one proves anything.

The server's figure is the instructions that it executes in a second of CPU
time, where the host counts them, else the bytes that it moves in a second of
CPU time: what waits for memory stays on its CPU, and moves less.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import enum
import math
import statistics

from ghsched_placement import blame_trials as trials
from ghsched_placement import bottleneck
from ghsched_placement import service_level

#: Busy time of vCPUs below which a server needs nothing.
IDLE = 0.03
#: Waiting for CPUs, and for memory to be reclaimed, from which on that
#: explains a slow server.
CPU_WAIT = bottleneck.DEFAULTS['cpu_wait'] / 100
STALLED = bottleneck.DEFAULTS['memory_wait'] / 100
#: Share of the time in which some thread of a server waited for I/O.
IO_WAIT = 0.2
#: Share of the memory bandwidth of a host NUMA node below which a node is
#: quiet: nothing waits for memory there.
QUIET = 0.5
#: Share of what a host NUMA node delivers below which a guest alone disturbs
#: nobody.
SMALL = 0.1
#: Strength of a correlation from which on it counts by itself.
SURE = 0.5
#: Share of what others use below which a guest is not tried with a cap.
WORTH_A_TRIAL = 0.03
#: Guests that are tried with a cap, at most.
CANDIDATES = 4
#: Points from which on a correlation is computed.
POINTS = 6
#: Standard normal quantile of the one-sided confidence of a correlation.
_ONE_SIDED = 1.282

#: Key in place of a guest's UUID: all that no guest moves.
HOST = ''


class Kind(enum.StrEnum):
    """Kind of result of the search for guests that slow down a server."""

    #: A guest disturbs the server.
    GUEST = 'guest'
    #: Processes or devices of the host do.
    HOST = 'host'
    #: Memory does not slow the server down; the cause says what does.
    NOT_MEMORY = 'not memory'
    #: Nobody disturbs the server.
    NOBODY = 'nobody'
    #: The figures do not suffice.
    UNKNOWN = 'unknown'


class Cause(enum.StrEnum):
    """Cause other than another guest, the first that applies."""

    OWN_CAP = 'own cap'
    CPU_WAIT = 'CPUs'
    RECLAIM = 'memory reclaim'
    IO = 'I/O'
    IDLE = 'idle'


class NotCounted(enum.StrEnum):
    """Reason why no instructions and cache misses are among the evidence."""

    #: The CPUs of the host, or of the virtual machine that it is, have none.
    NO_COUNTERS = 'no counters'
    #: The kernel does not permit them.
    REFUSED = 'refused'
    #: They could not be read otherwise.
    FAILED = 'failed'


@dataclass(frozen=True)
class Sample:
    """Figures on a server's host NUMA nodes in one period; None if unknown.

    :param time: seconds since 1970 at its end.
    :param seconds: length.
    :param rates: bytes per second by guest UUID, and of HOST.
    :param load: bandwidth of the busiest of the nodes by its capacity.
    :param busy: busy time of the server's vCPUs, 0 to 1.
    :param cpu_wait: time in which they were ready and did not run.
    :param stalled: time in which the server waited for memory reclaim.
    :param io_wait: time in which the server waited for I/O.
    :param cap: bytes per second that the server's control group allows.
    :param cached: bytes of the server in the L3 caches.
    :param work: instructions in a second of CPU time.
    :param per_cycle: instructions in a cycle of the CPUs.
    :param misses: cache misses in 1000 instructions.
    :param stalled_cycles: share of the cycles in which CPUs waited for data.
    :param misses_by_guest: cache misses per second of other guests by UUID.
    """

    time: float
    seconds: float
    rates: Mapping[str, float]
    load: float | None = None
    busy: float | None = None
    cpu_wait: float | None = None
    stalled: float | None = None
    io_wait: float | None = None
    cap: float | None = None
    cached: float | None = None
    work: float | None = None
    per_cycle: float | None = None
    misses: float | None = None
    stalled_cycles: float | None = None
    misses_by_guest: Mapping[str, float] = field(default_factory=dict)

    def compute_speed(self, server: str) -> float | None:
        """Return the speed of a server in this sample; None if it is unknown.

        The speed is the server's instructions, or else its bytes of memory
        traffic, per second of CPU time.

        :param server: UUID of the server.
        """
        if self.work is not None:
            return self.work
        rate = self.rates.get(server)
        if rate is None or self.busy is None:
            return rate
        return rate / self.busy if self.busy >= IDLE else None


@dataclass(frozen=True)
class Suspect:
    """Evidence against one guest, or the host.

    :param share: share of what all but the server usually use on the nodes.
    :param node_share: share of what the nodes deliver at present; None if
        unknown.
    :param correlation: rank correlation of its bandwidth with the server's
        figure; None if there are too few points, or one of both is constant.
    :param points: points of the correlation.
    :param strength: strength of the correlation, 0 to 1: its distance below 0
        with a confidence of nine tenths.
    :param effect: effect of a cap on it; None without a trial.
    :param untried: reason why it was not capped; empty if it was, or if
        nobody asked for it.
    :param miss_share: share of the cache misses of all other guests that are
        counted; None if its own are not.
    """

    uuid: str
    share: float
    node_share: float | None = None
    correlation: float | None = None
    points: int = 0
    strength: float = 0.0
    effect: trials.Effect | None = None
    untried: str = ''
    miss_share: float | None = None

    @property
    def score(self) -> float:
        """Score by which suspected guests are sorted, the highest first.

        The score is this guest's share of the bandwidth of all guests, without
        the slowed-down server. It is up to 1.5 times that share if the server
        has been slow whenever this guest used much bandwidth.
        """
        return self.share * (1 + self.strength / 2)


@dataclass(frozen=True)
class Verdict:
    """Result of the search for the guest that slows down a server.

    :param suspect: UUID of the guest; empty for any kind but GUEST.
    :param cause: other cause; only of kind NOT_MEMORY.
    :param proven: whether a trial has shown it.
    :param value: figure of the cause, or load of the nodes; None if unknown.
    """

    kind: Kind
    suspect: str = ''
    cause: Cause | None = None
    proven: bool = False
    value: float | None = None


@dataclass(frozen=True)
class Evidence:
    """All evidence about one server.

    :param suspects: the worst first.
    :param load: load of the busiest of the nodes; None if unknown.
    :param tried: trials by guest.
    :param samples: samples of the last seconds before the trials.
    :param uncounted: reason why instructions and cache misses are missing.
    """

    verdict: Verdict
    suspects: tuple[Suspect, ...] = ()
    load: float | None = None
    tried: Mapping[str, Sequence[trials.Trial]] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    uncounted: NotCounted | None = None


# -- other causes -------------------------------------------------------------


def find_non_memory_cause(server: str, samples: Sequence[Sample]
                          ) -> tuple[Cause, float] | None:
    """Return a cause other than memory that may slow a server down.

    Such causes are the server's own bandwidth cap, waiting for CPUs, memory
    reclaim or I/O, and idle vCPUs. The first one that applies is returned.

    :param samples: samples with the waiting times of the server.
    :returns: the cause and the measured value that shows it; None if no such
        cause applies.
    """
    used = _median(sample.rates.get(server) for sample in samples)
    cap = _median(sample.cap for sample in samples)
    if used is not None and cap and used >= service_level.CAP_REACHED * cap:
        return Cause.OWN_CAP, used / cap
    found = (
        (Cause.CPU_WAIT, CPU_WAIT, [one.cpu_wait for one in samples]),
        (Cause.RECLAIM, STALLED, [one.stalled for one in samples]),
        (Cause.IO, IO_WAIT, [one.io_wait for one in samples]))
    for cause, limit, values in found:
        value = _median(values)
        if value is not None and value >= limit:
            return cause, value
    busy = _median(sample.busy for sample in samples)
    if busy is not None and busy < IDLE:
        return Cause.IDLE, busy
    return None


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None if no value is known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def compute_median_load(samples: Sequence[Sample]) -> float | None:
    """Return the median load of the busiest host NUMA node of a server.

    The load of a node is the fraction of its memory bandwidth that is in use.

    :param samples: samples of the last seconds.
    :returns: None if the load is unknown in all samples.
    """
    return _median(sample.load for sample in samples)


# -- suspects -----------------------------------------------------------------


def rank_suspects(server: str, record: Sequence[Sample],
                  samples: Sequence[Sample]) -> tuple[Suspect, ...]:
    """Return the guests that may slow a server down, the likeliest first.

    The evidence against each guest is its share of the bandwidth that all
    guests but the server use on the server's host NUMA nodes, and how well its
    bandwidth correlates with the server's slowdown. Guests that use no
    bandwidth are left out.

    :param server: UUID of the slow server.
    :param record: samples of the last minutes.
    :param samples: samples of the last seconds.
    """
    usual = find_usual_bandwidth(record, samples)
    usual.pop(server, None)
    now = _compute_mean_rates(samples)
    total, used = sum(usual.values()), sum(now.values())
    load = compute_median_load(samples)
    miss_shares = compute_miss_shares(samples)
    found = []
    for uuid, rate in usual.items():
        if not rate:
            continue
        value, points = _correlate_with_speed(
            server, uuid, [*record, *samples])
        found.append(Suspect(
            uuid, rate / total,
            None if load is None or not used else
            load * now.get(uuid, 0.0) / used,
            value, points, _compute_least_strength(value, points),
            miss_share=miss_shares.get(uuid)))
    return tuple(sorted(found, key=lambda one: one.score, reverse=True))


def find_usual_bandwidth(record: Sequence[Sample],
                         samples: Sequence[Sample]) -> dict[str, float]:
    """Return the bandwidth that each guest usually uses, in bytes per second.

    This is the mean of the last seconds, or the mean of the last minutes if
    that is higher, because a guest may be idle at the moment.

    :param record: samples of the last minutes.
    :param samples: samples of the last seconds.
    :returns: bandwidth by guest UUID.
    """
    now, before = _compute_mean_rates(samples), _compute_mean_rates(record)
    return {uuid: max(rate, before.get(uuid, 0.0))
            for uuid, rate in now.items()}


def compute_miss_shares(samples: Sequence[Sample]) -> dict[str, float]:
    """Return each guest's share of the cache misses of several guests.

    :param samples: samples of the last seconds, with the cache misses of all
        guests except the one that is investigated.
    :returns: share from 0 to 1 by guest UUID; empty if no misses were counted.
    """
    counts: dict[str, float] = {}
    for sample in samples:
        for uuid, rate in sample.misses_by_guest.items():
            counts[uuid] = counts.get(uuid, 0.0) + rate * sample.seconds
    total = sum(counts.values())
    return {uuid: one / total for uuid, one in counts.items()} if total else {}


def _compute_mean_rates(samples: Sequence[Sample]) -> dict[str, float]:
    """Return each guest's mean bandwidth over samples, in bytes per second.

    A guest that is missing from a sample counts as using no bandwidth in it.

    :returns: bandwidth by guest UUID.
    """
    seconds = sum(sample.seconds for sample in samples)
    found: dict[str, float] = {}
    for sample in samples:
        for uuid, rate in sample.rates.items():
            found[uuid] = found.get(uuid, 0.0) + rate * (
                sample.seconds / seconds)
    return found


def _correlate_with_speed(server: str, suspect: str, samples: Sequence[Sample]
                          ) -> tuple[float | None, int]:
    """Return how a suspect's bandwidth correlates with a server's speed.

    The result is a rank correlation from -1 to 1.

    The speed is the server's instructions, or else its bytes of memory
    traffic, per second of CPU time. A negative correlation means that the
    server is slower while the suspect uses more bandwidth.

    :param suspect: UUID of the guest that may slow the server down.
    :returns: the correlation, and the number of samples that it is based on.
        The correlation is None if there are too few samples or no variation.
    """
    samples = _choose_comparable_samples(samples)
    pairs = [(sample.rates.get(suspect, 0.0), figure) for sample in samples
             if (figure := sample.compute_speed(server)) is not None]
    if len(pairs) < POINTS:
        return None, len(pairs)
    try:
        return statistics.correlation(
            _compute_ranks([one for one, _figure in pairs]),
            _compute_ranks([two for _rate, two in pairs])), len(pairs)
    except statistics.StatisticsError:      # one of both is constant
        return None, len(pairs)


def _choose_comparable_samples(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples whose speeds can be compared with each other.

    A speed is measured in instructions or, as in the record of the last
    minutes, only in bytes. If enough samples have instructions, only these
    samples are returned. Otherwise, all samples are returned without their
    instructions, so that their speeds are in bytes.
    """
    counted = [sample for sample in samples if sample.work is not None]
    if len(counted) >= POINTS or len(counted) == len(samples):
        return counted
    return [replace(sample, work=None) for sample in samples]


def _compute_ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, for a rank correlation.

    Equal values all get the mean of their ranks.
    """
    ordered = sorted(values)
    first = {value: place for place, value
             in reversed(list(enumerate(ordered)))}
    count = Counter(ordered)
    return [first[value] + (count[value] - 1) / 2 for value in values]


def _compute_least_strength(correlation: float | None, points: int) -> float:
    """Return the least strength of a negative correlation, from 0 to 1.

    With 90 percent confidence, the true correlation is at least this far below
    0 (Fisher's transformation). The result is 0 if the true correlation may be
    positive, or is unknown.

    :param correlation: rank correlation; None if unknown.
    :param points: number of samples that the correlation is based on.
    """
    if correlation is None or correlation >= 0 or points <= 3:
        return 0.0
    sure = math.atanh(min(-correlation, 0.999)) - (
        _ONE_SIDED / math.sqrt(points - 3))
    return max(0.0, math.tanh(sure))


def choose_guests_to_cap(suspects: Sequence[Suspect]) -> dict[str, float]:
    """Return the scores of the guests that should be capped, by UUID.

    A trial caps the bandwidth of a suspected guest for a short time, to see
    whether the slow server gets faster.

    :param suspects: suspected guests, the most suspicious first.
    """
    worth = [one for one in suspects if one.uuid != HOST
             and one.share >= WORTH_A_TRIAL]
    return {one.uuid: one.score for one in worth[:CANDIDATES]}


# -- the verdict --------------------------------------------------------------


def judge_by_measurements(server: str, suspects: Sequence[Suspect],
                          samples: Sequence[Sample]) -> Verdict:
    """Return the verdict on who slows a server down, from measurements alone.

    No guest has been capped for a trial, so the verdict is not proven.

    :param suspects: suspected guests, the most suspicious first.
    :param samples: samples of the last seconds.
    """
    other = find_non_memory_cause(server, samples)
    if other is not None:
        return Verdict(Kind.NOT_MEMORY, cause=other[0], value=other[1])
    load = compute_median_load(samples)
    if not suspects:
        return Verdict(Kind.NOBODY if samples else Kind.UNKNOWN, value=load)
    first = suspects[0]
    # A correlated guest may just rest, and so leave the node quiet.
    likely = first.strength >= SURE and first.share >= SMALL
    if load is not None and load < QUIET and not likely:
        return Verdict(Kind.NOBODY, value=load)
    part = first.share if first.node_share is None else first.node_share
    if part < SMALL and not likely:
        return Verdict(Kind.NOBODY, value=load)
    return Verdict(Kind.HOST if first.uuid == HOST else Kind.GUEST,
                   first.uuid, value=load)


def judge_by_trials(before: Verdict,
                    tried: Mapping[str, Sequence[trials.Trial]]) -> Verdict:
    """Return the verdict on who slows a server down, after trials.

    In a trial, the bandwidth of a suspected guest is capped for a short time,
    to see whether the server gets faster.

    :param before: verdict from measurements alone.
    :param tried: trials by UUID of the capped guest.
    """
    if before.kind is Kind.NOT_MEMORY or not any(tried.values()):
        return before
    drifts = trials.list_drifts(tried)
    proven = {uuid: effect for uuid, done in tried.items()
              if (effect := trials.measure_effect(done, drifts)) is not None
              and effect.is_proven}
    if proven:
        worst = max(proven, key=lambda uuid: proven[uuid].mean)
        return Verdict(Kind.GUEST, worst, proven=True,
                       value=proven[worst].mean)
    if before.kind is Kind.HOST:
        return before
    return Verdict(Kind.NOBODY, proven=all(
        trials.is_suspect_cleared(done, drifts) for done in tried.values()),
        value=before.value)

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

"""Evidence on which guest slows a server down, and the verdict (pure).

There are three kinds of evidence: the guest's share of the bandwidth that
other guests use on the server's host NUMA nodes, with its share of their cache
misses if the host counts them; the correlation of its bandwidth with the
server's speed; and the effect of capping the guest, see
:mod:`ghsched_placement.features.blame.blame_trials`. Only the last one is a
proof.

The speed of the server is its number of instructions per second of CPU time,
if the host counts them, or else the bytes that it moves per second of CPU
time: a server that waits for memory stays on its CPUs, but moves fewer bytes.
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

from ghsched_placement.features.blame import blame_trials as trials
from ghsched_placement.features.load import bottleneck
from ghsched_placement.features.service_level import service_level

#: Busy fraction of its vCPUs below which a server counts as idle.
IDLE = 0.03
#: Fractions of the time: a server that waits at least this long for CPUs, or
#: for memory reclaim, is slow because of that.
CPU_WAIT = bottleneck.DEFAULTS['cpu_wait'] / 100
STALLED = bottleneck.DEFAULTS['memory_wait'] / 100
#: The same for a server of which at least one thread waits for I/O.
IO_WAIT = 0.2
#: The same for a server that reports that its tasks wait for its memory.
OWN_MEMORY = 0.2
#: Fraction of a host NUMA node's memory bandwidth. If less is in use, no
#: access waits for memory on the node.
QUIET = 0.5
#: Fraction of a host NUMA node's memory bandwidth. A guest that uses less
#: slows no other guest down.
SMALL = 0.1
#: Strength of a correlation that is sufficient evidence against a guest even
#: if its host NUMA node has little load.
SURE = 0.5
#: Fraction of the bandwidth of all guests but the slow server. A guest that
#: uses less is not capped for a trial.
WORTH_A_TRIAL = 0.03
#: Maximum number of guests that are capped for trials.
CANDIDATES = 4
#: Minimum number of samples to compute a correlation.
POINTS = 6
#: Standard normal quantile of the one-sided confidence of a correlation.
_ONE_SIDED = 1.282

#: Key in place of a guest's UUID, for memory traffic that belongs to no guest.
HOST = ''


class VerdictKind(enum.StrEnum):
    """Result of the search for guests that slow down a server."""

    #: A guest slows the server down.
    GUEST = 'guest'
    #: Processes or devices of the host slow the server down.
    HOST = 'host'
    #: Something else than memory slows the server down, see the cause.
    NOT_MEMORY = 'not memory'
    #: Neither a guest nor the host slows the server down.
    NOBODY = 'nobody'
    #: There are too few measurements to decide.
    UNKNOWN = 'unknown'


class NonMemoryCause(enum.StrEnum):
    """Cause, other than memory traffic of others, that slows a server down.

    If several causes apply, the first one in this order is reported.
    """

    #: The server has reached its own bandwidth cap.
    OWN_CAP = 'own cap'
    #: Its vCPUs wait for host CPUs.
    CPU_WAIT = 'CPUs'
    #: The server waits for memory reclaim.
    RECLAIM = 'memory reclaim'
    #: The server waits for I/O.
    IO = 'I/O'
    #: The server reports that it has too little memory.
    OWN_MEMORY = 'own memory'
    #: Its vCPUs are idle.
    IDLE = 'idle'


class UncountedReason(enum.StrEnum):
    """Reason why a host counts no instructions and no cache misses of guests.
    """

    #: The host, which may itself be a virtual machine, has no counters.
    NO_COUNTERS = 'no counters'
    #: The kernel does not permit nova-compute to use the counters.
    REFUSED = 'refused'
    #: The counters could not be read for another reason.
    FAILED = 'failed'


@dataclass(frozen=True)
class BlameSample:
    """Measurements on a server's host NUMA nodes in one period.

    A value is None if it is unknown.

    :param time: end of the period, in seconds since 1970.
    :param seconds: length of the period.
    :param rates: memory traffic in bytes per second, by guest UUID; the key
        HOST is for traffic that belongs to no guest.
    :param load: used fraction of the memory bandwidth of the busiest node.
    :param busy: busy fraction of the server's vCPUs, 0 to 1.
    :param cpu_wait: fraction of the time in which the vCPUs were ready to run
        but waited for a host CPU.
    :param stalled: fraction of the time in which the server waited for memory
        reclaim.
    :param io_wait: fraction of the time in which the server waited for I/O.
    :param cap: bytes per second that the server's control group allows.
    :param cached: bytes of the server's data in the L3 caches.
    :param work: instructions of the server per second of CPU time.
    :param per_cycle: instructions of the server per CPU cycle.
    :param misses: cache misses of the server per 1000 instructions.
    :param stalled_cycles: fraction of the server's CPU cycles spent waiting
        for data.
    :param misses_by_guest: cache misses per second of each other guest, by
        UUID.
    :param reported_cpu: fraction of the time in which tasks of the server wait
        for a vCPU, as the server reports it.
    :param reported_memory: fraction of the time in which they wait for memory
        of the server, as the server reports it.
    :param reported_steal: fraction of its CPU time that the host gave to
        others, as the server reports it.
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
    reported_cpu: float | None = None
    reported_memory: float | None = None
    reported_steal: float | None = None

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
    """Evidence against a guest, or the host, that may slow a server down.

    :param uuid: UUID of the guest; HOST for the host itself.
    :param share: usual bandwidth of the guest as a fraction of the bandwidth
        of all guests and the host, without the server.
    :param node_share: bandwidth that the guest uses now, as a fraction of what
        the server's host NUMA nodes can deliver; None if unknown.
    :param correlation: rank correlation of the guest's bandwidth with the
        server's speed; None if there are too few samples, or if one of the two
        did not vary.
    :param points: number of samples from which the correlation was computed.
    :param strength: strength of a negative correlation, 0 to 1. The true
        correlation is at least this far below 0, with 90 percent confidence.
    :param effect: effect of capping the guest; None if it was not capped.
    :param untried: reason why the guest was not capped; empty if it was
        capped, or if the user did not ask for trials.
    :param miss_share: cache misses of the guest as a fraction of those of all
        other guests whose misses are counted; None if its own are not counted.
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
class BlameVerdict:
    """Result of the search for the guest that slows down a server.

    :param suspect: UUID of the guest; empty unless the kind is GUEST.
    :param cause: other cause; None unless the kind is NOT_MEMORY.
    :param proven: whether trials have proven the result.
    :param value: measured value that shows the cause, or the effect of a
        proven guest, or else the load of the busiest host NUMA node; None if
        unknown.
    """

    kind: VerdictKind
    suspect: str = ''
    cause: NonMemoryCause | None = None
    proven: bool = False
    value: float | None = None


@dataclass(frozen=True)
class BlameEvidence:
    """Evidence on which guest slows a server down, with the verdict.

    :param suspects: suspected guests, the most suspicious first.
    :param load: used fraction of the memory bandwidth of the server's busiest
        host NUMA node; None if unknown.
    :param tried: trials by UUID of the capped guest.
    :param samples: measurements of the last seconds before the trials.
    :param uncounted: reason why instructions and cache misses are missing;
        None if they were counted.
    """

    verdict: BlameVerdict
    suspects: tuple[Suspect, ...] = ()
    load: float | None = None
    tried: Mapping[str, Sequence[trials.Trial]] = field(default_factory=dict)
    samples: tuple[BlameSample, ...] = ()
    uncounted: UncountedReason | None = None


# -- other causes -------------------------------------------------------------


def find_non_memory_cause(server: str, samples: Sequence[BlameSample]
                          ) -> tuple[NonMemoryCause, float] | None:
    """Return a cause other than memory that may slow a server down.

    Such causes are the server's own bandwidth cap, waiting for CPUs, memory
    reclaim or I/O, too little memory, and idle vCPUs. The first one that
    applies is returned. A server that reports false pressure can only clear
    other guests, and accuse none.

    :param samples: samples with the waiting times of the server.
    :returns: the cause and the measured value that shows it; None if no such
        cause applies.
    """
    used = _median(sample.rates.get(server) for sample in samples)
    cap = _median(sample.cap for sample in samples)
    if used is not None and cap and used >= service_level.CAP_REACHED * cap:
        return NonMemoryCause.OWN_CAP, used / cap
    found = (
        (NonMemoryCause.CPU_WAIT, CPU_WAIT, [
            one.reported_steal if one.cpu_wait is None else one.cpu_wait
            for one in samples]),
        (NonMemoryCause.RECLAIM, STALLED, [one.stalled for one in samples]),
        (NonMemoryCause.IO, IO_WAIT, [one.io_wait for one in samples]),
        (NonMemoryCause.OWN_MEMORY, OWN_MEMORY,
         [one.reported_memory for one in samples]))
    for cause, limit, values in found:
        value = _median(values)
        if value is not None and value >= limit:
            return cause, value
    busy = _median(sample.busy for sample in samples)
    if busy is not None and busy < IDLE:
        return NonMemoryCause.IDLE, busy
    return None


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None if no value is known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def compute_median_load(samples: Sequence[BlameSample]) -> float | None:
    """Return the median of the loads in samples of a server's host NUMA nodes.

    The load is the used fraction of a node's memory bandwidth. Each sample has
    the load of the busiest node.

    :param samples: samples of the last seconds.
    :returns: None if the load is unknown in all samples.
    """
    return _median(sample.load for sample in samples)


# -- suspects -----------------------------------------------------------------


def rank_suspects(server: str, record: Sequence[BlameSample],
                  samples: Sequence[BlameSample]) -> tuple[Suspect, ...]:
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


def find_usual_bandwidth(record: Sequence[BlameSample],
                         samples: Sequence[BlameSample]) -> dict[str, float]:
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


def compute_miss_shares(samples: Sequence[BlameSample]) -> dict[str, float]:
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


def _compute_mean_rates(samples: Sequence[BlameSample]) -> dict[str, float]:
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


def _correlate_with_speed(server: str, suspect: str,
                          samples: Sequence[BlameSample]
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


def _choose_comparable_samples(samples: Sequence[BlameSample]
                               ) -> Sequence[BlameSample]:
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
    """Choose which suspected guests to cap; return their scores by UUID.

    A trial caps the bandwidth of a suspected guest for a short time, to see
    whether the slow server gets faster. The score is that of
    :attr:`Suspect.score`. At most :data:`CANDIDATES` guests are chosen.

    :param suspects: suspected guests, the most suspicious first.
    """
    worth = [one for one in suspects if one.uuid != HOST
             and one.share >= WORTH_A_TRIAL]
    return {one.uuid: one.score for one in worth[:CANDIDATES]}


# -- the verdict --------------------------------------------------------------


def judge_by_measurements(server: str, suspects: Sequence[Suspect],
                          samples: Sequence[BlameSample]) -> BlameVerdict:
    """Return the verdict on what slows a server down, from measurements alone.

    No guest has been capped for a trial, so the verdict is not proven.

    :param suspects: suspected guests, the most suspicious first.
    :param samples: samples of the last seconds.
    """
    other = find_non_memory_cause(server, samples)
    if other is not None:
        return BlameVerdict(VerdictKind.NOT_MEMORY, cause=other[0],
                            value=other[1])
    load = compute_median_load(samples)
    if not suspects:
        return BlameVerdict(
            VerdictKind.NOBODY if samples else VerdictKind.UNKNOWN, value=load)
    first = suspects[0]
    # A correlated guest may just rest, and so leave the node quiet.
    likely = first.strength >= SURE and first.share >= SMALL
    if load is not None and load < QUIET and not likely:
        return BlameVerdict(VerdictKind.NOBODY, value=load)
    part = first.share if first.node_share is None else first.node_share
    if part < SMALL and not likely:
        return BlameVerdict(VerdictKind.NOBODY, value=load)
    return BlameVerdict(VerdictKind.HOST if first.uuid == HOST
                        else VerdictKind.GUEST,
                        first.uuid, value=load)


def judge_by_trials(before: BlameVerdict,
                    tried: Mapping[str, Sequence[trials.Trial]]
                    ) -> BlameVerdict:
    """Return the verdict on what slows a server down, after trials.

    In a trial, the bandwidth of a suspected guest is capped for a short time,
    to see whether the server gets faster.

    :param before: verdict from measurements alone.
    :param tried: trials by UUID of the capped guest.
    """
    if before.kind is VerdictKind.NOT_MEMORY or not any(tried.values()):
        return before
    drifts = trials.list_drifts(tried)
    proven = {uuid: effect for uuid, done in tried.items()
              if (effect := trials.measure_effect(done, drifts)) is not None
              and effect.is_proven}
    if proven:
        worst = max(proven, key=lambda uuid: proven[uuid].mean)
        return BlameVerdict(VerdictKind.GUEST, worst, proven=True,
                            value=proven[worst].mean)
    if before.kind is VerdictKind.HOST:
        return before
    return BlameVerdict(VerdictKind.NOBODY, proven=all(
        trials.is_suspect_cleared(done, drifts) for done in tried.values()),
        value=before.value)

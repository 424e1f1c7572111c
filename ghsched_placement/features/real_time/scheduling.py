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


"""Scheduling classes of a guest's threads, from extra specs (pure).

They are scheduling classes of the host's kernel (sched(7)) for the threads of
QEMU: vCPUs, the main thread (libvirt's emulator thread) and I/O threads.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
from dataclasses import dataclass

from ghsched_placement.base.errors import PolicyError
from ghsched_placement.features.real_time import thread_keys
from ghsched_placement.flavor.bandwidth import Accounting
from ghsched_placement.flavor import dedicated_cpus
from ghsched_placement.flavor.dedicated_cpus import CPU_POLICY
from ghsched_placement.flavor.dedicated_cpus import EMULATOR_POLICY
from ghsched_placement.flavor.key_values import parse_vcpu_mask
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.parts import Amounts
from ghsched_placement.flavor.parts import Feature
from ghsched_placement.flavor.parts import FlavorValues
from ghsched_placement.flavor.parts import PolicyPart
from ghsched_placement.flavor.parts import Resource
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import names

#: Classes that run before every thread of another class.
REALTIME = frozenset({'fifo', 'rr'})

#: Scheduling class that runs before the classes of :data:`REALTIME`; a thread
#: states in advance how much CPU time it needs.
DEADLINE = 'deadline'

#: Percent of its period that a thread may run at most: what the kernel
#: leaves to real-time threads by default (``sched_rt_runtime_us`` of
#: ``sched_rt_period_us``, sched(7)) without what it keeps of that for other
#: classes since 6.12: 50 ms of each second (sched_init_dl_servers of
#: kernel/sched/deadline.c).
DEADLINE_SHARE = 90

#: Thousandths of a shared CPU that the kernel keeps for threads of other
#: classes.
_KEPT_FOR_OTHERS = 50

#: Priority of a class of :data:`REALTIME` if the flavor sets none.
DEFAULT_PRIORITY = 1

_REALTIME = 'hw:cpu_realtime'


@dataclass(frozen=True)
class Scheduling:
    """Scheduling class and parameters of one kind of thread.

    :param scheduler: scheduling class, one of :data:`keys.SCHEDULERS`.
    :param priority: 1 to 99 for a class of :data:`REALTIME`; else None.
    :param runtime_us: CPU time in each period in microseconds, for
        ``deadline``; else None.
    :param deadline_us: deadline in microseconds, for ``deadline``; else None.
    :param period_us: period in microseconds, for ``deadline``; else None.
    """

    scheduler: str
    priority: int | None = None
    runtime_us: int | None = None
    deadline_us: int | None = None
    period_us: int | None = None

    @property
    def realtime(self) -> bool:
        return self.scheduler in REALTIME or self.scheduler == DEADLINE

    @property
    def cpu_permille(self) -> int:
        """CPU time that a real-time thread may use, in thousandths of a CPU.
        """
        if not self.runtime_us or not self.period_us:
            return 0
        return -(-1000 * self.runtime_us // self.period_us)

    def __str__(self) -> str:
        if self.runtime_us is not None:
            return (f'{self.scheduler} {self.runtime_us}/{self.deadline_us}/'
                    f'{self.period_us} us')
        return (self.scheduler if self.priority is None
                else f'{self.scheduler} {self.priority}')


@dataclass(frozen=True)
class ThreadPolicy(PolicyPart):
    """Scheduling of a guest's threads, and how the guest gets interrupts.

    The scheduling of a kind of thread is None if the flavor does not set it.

    :param vcpus: scheduling of vCPU threads.
    :param mask: vCPUs to which ``vcpus`` applies, as written in the flavor;
        empty for all.
    :param emulator: scheduling of emulator threads.
    :param iothreads: scheduling of I/O threads.
    :param lock_memory: whether all memory of QEMU is locked.
    :param irq_bypass: whether interrupts of the guest's devices must
        (``required``) or should (``preferred``) reach the guest without the
        hypervisor.
    :param permille: thousandths of a shared CPU that each real-time vCPU uses;
        0 for vCPUs with dedicated CPUs, which are counted as CPUs.
    :param irq_affinity: host CPUs that handle interrupts of the guest's
        devices.
    :param permille_by_node: sum of ``permille`` of the real-time vCPUs of each
        guest NUMA node; empty without guest nodes or if the vCPUs of the
        flavor are unknown.
    """

    vcpus: Scheduling | None = None
    mask: str = ''
    emulator: Scheduling | None = None
    iothreads: Scheduling | None = None
    lock_memory: bool = False
    irq_bypass: str = keys.NONE
    permille: int = 0
    irq_affinity: str = keys.NONE
    permille_by_node: tuple[int, ...] = ()

    @property
    def scheduler_classes(self) -> tuple[Scheduling, ...]:
        """Scheduling of the guest's vCPUs, emulator threads and I/O threads.

        Kinds of threads for which the flavor sets no scheduling are left out.
        """
        return tuple(kind for kind in (self.vcpus, self.emulator,
                                       self.iothreads) if kind is not None)

    def describe_priorities(self) -> dict[str, str]:
        """Return scheduling class and priority as text, by kind of thread.

        The kinds of threads are vCPUs, emulator threads and I/O threads.
        """
        return {kind: str(value) for kind, value in (
            ('vcpus', self.vcpus), ('emulator', self.emulator),
            ('iothreads', self.iothreads)) if value is not None}

    @property
    def realtime(self) -> bool:
        return any(kind.realtime for kind in self.scheduler_classes)

    def get_needed_capabilities(self) -> frozenset[str]:
        """Return the capabilities that a host needs to enforce this policy.

        Each capability has a trait in Placement.
        """
        needed = set()
        if any(kind.priority for kind in self.scheduler_classes):
            needed.add('VCPU_REALTIME')
        if any(kind.runtime_us for kind in self.scheduler_classes):
            needed.add('VCPU_DEADLINE_SHARED' if self.permille
                       else 'VCPU_DEADLINE')
        if self.irq_bypass == keys.REQUIRED:
            needed.add('IRQ_BYPASS')
        return frozenset(needed)

    def get_cpu_permille_by_node(self) -> tuple[int, ...]:
        return self.permille_by_node

    def describe_for_guest(self) -> dict[str, object]:
        """Return scheduling values that the guest can read, as JSON values.

        ``scheduler`` has the scheduling class and priority of the guest's
        threads.
        """
        return {'scheduler': self.describe_priorities(),
                'lock_memory': self.lock_memory}

    def find_flavor_warnings(self, extra_specs: Mapping[str, str]
                             ) -> Iterator[str]:
        """Yield a warning if only some hosts can run the guest's emulator."""
        text = get_shared_emulator_warning(self, extra_specs)
        if text:
            yield text

    @property
    def highest_priority(self) -> int:
        """Highest real-time priority of the guest's threads; 0 without any."""
        return max((kind.priority or 0 for kind in self.scheduler_classes),
                   default=0)


#: Keys of the three kinds of thread: class and priority.
_KINDS = ((keys.VCPU_SCHEDULER, thread_keys.VCPU_PRIORITY),
          (thread_keys.EMULATOR_SCHEDULER, thread_keys.EMULATOR_PRIORITY),
          (thread_keys.IOTHREAD_SCHEDULER, thread_keys.IOTHREAD_PRIORITY))

_TIMES = (thread_keys.VCPU_RUNTIME_US, thread_keys.VCPU_DEADLINE_US,
          thread_keys.VCPU_PERIOD_US)


def build_thread_policy(values: Mapping[str, object],
                        extra_specs: Mapping[str, str]) -> ThreadPolicy:
    """Build the scheduling policy of a guest's threads from extra specs.

    The policy has the kernel's scheduling class and priority of vCPUs,
    emulator threads and I/O threads.

    :param values: parsed values of ghsched's scheduling keys, by key name.
    :param extra_specs: all extra specs of the flavor, to check Nova's own
        keys.
    :raises PolicyError: for keys that contradict each other or Nova's.
    """
    vcpus, emulator, iothreads = (
        _make_scheduling(values, scheduler, priority)
        for scheduler, priority in _KINDS)
    permille = 0
    if vcpus is not None and vcpus.realtime and _uses_shared_cpus(extra_specs):
        times = _parse_realtime_times(values, vcpus.scheduler)
        permille = times.cpu_permille
        vcpus = times if vcpus.scheduler == DEADLINE else vcpus
    elif vcpus is not None and vcpus.scheduler == DEADLINE:
        vcpus = _parse_realtime_times(values, DEADLINE)
    else:
        _check_no_times(values)
    policy = ThreadPolicy(
        vcpus, str(values.get(thread_keys.VCPU_SCHEDULER_MASK.name, '')),
        emulator, iothreads, bool(values.get(keys.LOCK_MEMORY.name, False)),
        str(values.get(thread_keys.IRQ_BYPASS.name, keys.NONE)), permille,
        str(values.get(thread_keys.IRQ_AFFINITY.name, keys.NONE)))
    if policy.mask and vcpus is None:
        raise PolicyError(
            thread_keys.VCPU_SCHEDULER_MASK.extra_spec,
            f'needs {keys.VCPU_SCHEDULER.extra_spec}')
    _check_nova_extra_specs(policy, extra_specs)
    return policy


def parse_thread_policy(flavor: FlavorValues) -> ThreadPolicy:
    """Parse the scheduling policy of a guest's threads from a flavor.

    :raises PolicyError: for keys that contradict each other or Nova's.
    """
    policy = build_thread_policy(flavor.values, flavor.extra_specs)
    if not (policy.permille and flavor.guest_nodes and flavor.vcpus):
        return policy
    chosen = list_scheduled_vcpus(policy, flavor.vcpus)
    # Slow to import; few flavors need it.
    from ghsched_placement.flavor import topology

    try:
        by_node = topology.list_vcpus_by_node(
            flavor.guest_nodes, flavor.vcpus, flavor.extra_specs)
    except topology.TopologyError as error:
        raise PolicyError(keys.VCPU_SCHEDULER.extra_spec,
                          str(error)) from None
    return dataclasses.replace(policy, permille_by_node=tuple(
        policy.permille * len(chosen & node) for node in by_node))


def _get_demand(amounts: Amounts, _accounting: Accounting
                ) -> Mapping[int, int]:
    return dict(enumerate(amounts.rt_permille))


def _get_offer(host: HostDescription, node: int) -> tuple[int, int]:
    return host.rt_permille.get(node, 0), 1


#: CPU time that real-time vCPUs on shared CPUs use.
_RT_CPU = Resource(
    names.RT_CPU_PERMILLE, 'thousandths of a CPU in real time',
    'thousandths of a shared CPU for real-time vCPUs',
    'thousandths of a CPU in real time', thread_keys.VCPU_RUNTIME_US,
    'Real Time', ' (1/1000 CPU)', 'real_time_permille', _get_demand,
    _get_offer, cure='hosts give some with [ghsched]realtime_shared_percent')

#: Declaration of the feature.
FEATURE = Feature(
    'real_time', thread_keys.KEYS, ThreadPolicy, parse_thread_policy,
    are_keys_checked_together=True,
    capabilities={
        **dict.fromkeys(('VCPU_REALTIME', 'VCPU_DEADLINE',
                         'VCPU_DEADLINE_SHARED'), keys.VCPU_SCHEDULER),
        'IRQ_BYPASS': thread_keys.IRQ_BYPASS},
    resources=(_RT_CPU,))


def compute_rt_capacity(cpus: int, runtime_us: int, period_us: int,
                        percent: int) -> int:
    """Return how much CPU time real-time vCPUs may use on a host NUMA node.

    Only shared host CPUs count. The result is in thousandths of a CPU.

    :param cpus: number of shared host CPUs of the NUMA node.
    :param runtime_us: ``sched_rt_runtime_us`` of the host's kernel, -1 for no
        limit.
    :param period_us: ``sched_rt_period_us`` of the host's kernel.
    :param percent: percent of the kernel's real-time limit that vCPUs may use.
    """
    each = 1000 if runtime_us < 0 else max(
        0, 1000 * runtime_us // period_us - _KEPT_FOR_OTHERS)
    return cpus * each * percent // 100


def list_scheduled_vcpus(policy: ThreadPolicy, count: int) -> frozenset[int]:
    """Return the vCPUs of a guest that get the policy's scheduling class.

    :param policy: scheduling class, with an optional mask of vCPUs.
    :param count: number of vCPUs of the guest.
    :raises PolicyError: if the mask selects no vCPU, or one that the
        guest does not have.
    """
    every = frozenset(range(count))
    if policy.vcpus is None or not policy.mask:
        return every if policy.vcpus is not None else frozenset()
    key = thread_keys.VCPU_SCHEDULER_MASK.extra_spec
    chosen = parse_vcpu_mask(key, policy.mask, count)
    if not chosen:
        raise PolicyError(
            key, f'{policy.mask!r} selects none of {count} vCPUs')
    if not chosen <= every:
        raise PolicyError(
            key, f'{policy.mask!r} names vCPU {max(chosen - every)}, and the '
                 f'guest has {count} (counted from 0)')
    if policy.vcpus.realtime and chosen == every:
        raise PolicyError(key, f'{policy.mask!r} must leave out at least one '
                               'vCPU')
    return chosen


def _make_scheduling(values: Mapping[str, object], scheduler: keys.Key,
                     priority: keys.Key) -> Scheduling | None:
    name, number = values.get(scheduler.name), values.get(priority.name)
    if name in REALTIME:
        return Scheduling(str(name), DEFAULT_PRIORITY if number is None
                          else int(str(number)))
    if number is not None:
        raise PolicyError(priority.extra_spec,
                          f'needs {scheduler.extra_spec}=fifo or rr')
    return None if name is None else Scheduling(str(name))


def _uses_shared_cpus(extra_specs: Mapping[str, str]) -> bool:
    """Whether a flavor's real-time vCPUs always run on shared host CPUs.

    The result is False if the flavor sets no CPU policy, because the image
    could then set another one.
    """
    return extra_specs.get(CPU_POLICY) == 'shared'


def _parse_realtime_times(values: Mapping[str, object],
                          scheduler: str) -> Scheduling:
    """Parse and check runtime, deadline and period of real-time vCPUs.

    :param values: parsed values of ghsched's scheduling keys, by key name.
    :param scheduler: scheduling class of the vCPUs; only ``deadline`` may have
        a deadline.
    :raises PolicyError: when the kernel would not accept them.
    """
    if scheduler != DEADLINE:
        _check_no_times(values, thread_keys.VCPU_DEADLINE_US)
    for key in (thread_keys.VCPU_RUNTIME_US, thread_keys.VCPU_PERIOD_US):
        if key.name not in values:
            where = '' if scheduler == DEADLINE else ' on shared CPUs'
            raise PolicyError(
                keys.VCPU_SCHEDULER.extra_spec,
                f'{scheduler}{where} needs {key.extra_spec}')
    period = int(str(values[thread_keys.VCPU_PERIOD_US.name]))
    runtime = int(str(values[thread_keys.VCPU_RUNTIME_US.name]))
    deadline = int(str(values.get(thread_keys.VCPU_DEADLINE_US.name, period)))
    if not runtime <= deadline <= period:
        raise PolicyError(
            thread_keys.VCPU_RUNTIME_US.extra_spec,
            f'the runtime of {runtime} us must not be longer than the '
            f'deadline of {deadline} us, nor that longer than the period of '
            f'{period} us')
    if runtime * 100 > period * DEADLINE_SHARE:
        raise PolicyError(
            thread_keys.VCPU_RUNTIME_US.extra_spec,
            f'{runtime} us are more than {DEADLINE_SHARE} % of the period of '
            f'{period} us, which is all that the kernel leaves to real-time '
            'threads')
    return Scheduling(DEADLINE, None, runtime, deadline, period)


def _check_no_times(values: Mapping[str, object], *those: keys.Key) -> None:
    for key in those or _TIMES:
        if key.name in values:
            raise PolicyError(
                key.extra_spec,
                f'needs {keys.VCPU_SCHEDULER.extra_spec}={DEADLINE}' + (
                    '' if those else f', or {CPU_POLICY}=shared with fifo '
                                     'or rr'))


def _check_nova_extra_specs(policy: ThreadPolicy,
                            extra_specs: Mapping[str, str]) -> None:
    if policy.vcpus is not None and _is_true(extra_specs.get(_REALTIME)):
        raise PolicyError(
            keys.VCPU_SCHEDULER.extra_spec,
            f'cannot be combined with {_REALTIME}, which sets fifo with the '
            'priority of the host')
    apart = dedicated_cpus.is_emulator_apart(extra_specs)
    if policy.irq_bypass != keys.NONE:
        dedicated_cpus.check_dedicated_cpus(thread_keys.IRQ_BYPASS,
                                            extra_specs)
    if policy.vcpus is not None and policy.vcpus.realtime:
        _check_realtime_vcpus(policy, extra_specs, apart)
    if policy.emulator is not None and policy.emulator.realtime and not apart:
        raise PolicyError(
            thread_keys.EMULATOR_SCHEDULER.extra_spec,
            f'{policy.emulator.scheduler} needs CPUs that are not those of '
            f'the vCPUs; set {EMULATOR_POLICY}=share or isolate')


def _is_true(text: str | None) -> bool:
    if not text:
        return False
    # Slow to import; a command that only looks needs it seldom.
    from oslo_utils import strutils
    return bool(strutils.bool_from_string(text))


def _check_realtime_vcpus(policy: ThreadPolicy, extra_specs: Mapping[str, str],
                          apart: bool) -> None:
    assert policy.vcpus is not None  # noqa: S101
    name, key = policy.vcpus.scheduler, keys.VCPU_SCHEDULER.extra_spec
    if policy.permille:
        if (keys.NUMA_NODES not in extra_specs
                and keys.NUMA.extra_spec not in extra_specs):
            raise PolicyError(
                key, f'{name} on shared CPUs is counted on NUMA nodes; set '
                     f'{keys.NUMA_NODES}')
        return
    if extra_specs.get(CPU_POLICY) != 'dedicated':
        raise PolicyError(
            key, f'{name} needs CPUs of its own; set {CPU_POLICY}=dedicated, '
                 'or shared to have '
                 f'{thread_keys.VCPU_RUNTIME_US.extra_spec} of each '
                 f'{thread_keys.VCPU_PERIOD_US.extra_spec} counted')
    if not apart and not policy.mask:
        raise PolicyError(
            key, f'{name} on every vCPU leaves no CPU for QEMU itself; set '
                 f'{EMULATOR_POLICY}=share or isolate, or leave a vCPU out '
                 f'with {thread_keys.VCPU_SCHEDULER_MASK.extra_spec}')


def get_shared_emulator_warning(policy: ThreadPolicy,
                                extra_specs: Mapping[str, str]) -> str:
    """Return a warning if only some hosts can run the guest's emulator.

    :returns: empty if there is nothing to warn of.
    """
    if (policy.vcpus is None or not policy.vcpus.realtime or policy.permille
            or policy.mask):
        return ''
    return dedicated_cpus.warn_of_shared_emulator(
        keys.VCPU_SCHEDULER, policy.vcpus.scheduler, extra_specs)

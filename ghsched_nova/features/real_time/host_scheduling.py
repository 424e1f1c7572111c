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


"""Applies scheduling classes to the threads of guests on this host."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import logging
from pathlib import Path
import threading
from typing import Any

from ghsched_nova.features.real_time import engine
from ghsched_nova.features.real_time import irq_bypass
from ghsched_nova.features.real_time import model
from ghsched_nova.features.real_time import scheduling
from ghsched_nova.features.real_time import survey
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_placement.features.real_time import scheduling as classes
from ghsched_placement.features.real_time import thread_keys
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import PolicyError
from ghsched_placement.providers.host_description import HostDescription

LOG = logging.getLogger(__name__)

REALTIME = 'VCPU_REALTIME'
DEADLINE = 'VCPU_DEADLINE'
DEADLINE_SHARED = 'VCPU_DEADLINE_SHARED'
PREEMPT_RT = 'PREEMPT_RT'


_WHAT = {REALTIME: 'real-time classes', DEADLINE: 'scheduling by deadline',
         DEADLINE_SHARED: 'scheduling by deadline on shared CPUs'}

#: Sysctls that limit real-time threads, and their defaults in microseconds.
_LEFT = {'sched_rt_runtime_us': 950000, 'sched_rt_period_us': 1000000}


def _probe_realtime() -> str:
    # Imported on first use: oslo.privsep is slow to import.
    from ghsched_nova.features.real_time import privileged

    return privileged.probe_realtime_scheduling()


def _probe_deadline(places: Iterable[Iterable[int]]) -> str:
    from ghsched_nova.features.real_time import privileged

    return privileged.probe_deadline_scheduling(places)


class ThreadScheduler(compute_hooks.ComputeHooks):
    """Scheduler of guests' threads: capabilities, XML and enforcement.

    :param section: the ``[ghsched]`` section of the configuration.
    :param probe_realtime: function that returns why the kernel refuses
        real-time scheduling on this host; empty if the kernel allows it.
        It is called once.
    :param probe_deadline: function that returns why the kernel refuses
        deadline scheduling on sets of CPUs; empty if the kernel allows it.
    :param dedicated: CPUs of ``[compute]cpu_dedicated_set``.
    :param list_shared_cpus: function that returns the shared CPUs by host NUMA
        node.
    """

    def __init__(self, section: Any,
                 probe_realtime: Callable[[], str] | None = None,
                 probe_deadline:
                 Callable[[Iterable[Iterable[int]]], str] | None = None,
                 dedicated: Iterable[int] = (),
                 list_shared_cpus:
                 Callable[[], Mapping[int, frozenset[int]]] = dict) -> None:
        self._section = section
        self._dedicated = frozenset(dedicated)
        self._list_shared_cpus = list_shared_cpus
        try_deadline = probe_deadline or _probe_deadline
        self._tries: dict[str, Callable[[], str]] = {
            REALTIME: probe_realtime or _probe_realtime,
            DEADLINE: lambda: try_deadline(
                frozenset({cpu}) for cpu in self._dedicated),
            DEADLINE_SHARED: lambda: try_deadline(
                filter(None, self._list_shared_cpus().values()))}
        # A trial that runs beside another can be short of CPU time.
        self._trying = threading.Lock()
        self._refused: dict[str, str] = {}
        self._logged: dict[str, str] = {}

    def describe_host(self, found: HostDescription) -> HostDescription:
        """Return the description of the host with its real-time capacity."""
        return dataclasses.replace(
            found, rt_permille=self.compute_realtime_capacity(),
            capabilities=found.capabilities | self.capabilities())

    def capabilities(self) -> frozenset[str]:
        """Return the host's real-time and interrupt bypass capabilities.

        With interrupt bypass, interrupts reach guests without the hypervisor.
        The names are keys of :data:`names.CAPABILITY_TRAITS`.
        """
        found = {name for name in self._tries
                 if not self._explain_unsupported(name)}
        if _has_preempt_rt(Path(self._section.sysfs_path)):
            found.add(PREEMPT_RT)
        return self._irq_bypass | found

    def compute_realtime_capacity(self) -> dict[int, int]:
        """Return how much CPU time real-time vCPUs may use on shared CPUs.

        :returns: thousandths of one CPU, by host NUMA node.
        """
        percent = self._section.realtime_shared_percent
        if not percent or self._explain_unsupported(REALTIME):
            return {}
        runtime, period = (_read_sysctl(name, default)
                           for name, default in _LEFT.items())
        found = {node: classes.compute_rt_capacity(len(cpus), runtime, period,
                                                   percent)
                 for node, cpus in self._list_shared_cpus().items()}
        return {node: permille for node, permille in found.items()
                if permille}

    @functools.cached_property
    def _irq_bypass(self) -> frozenset[str]:
        """Interrupt bypass capabilities of this host, cached.

        With interrupt bypass, interrupts reach guests without the hypervisor.
        """
        return irq_bypass.read_interrupt_bypass(
            self._section.irq_bypass, Path(self._section.sysfs_path)
        )

    def render(self, xml: str, guest: compute_hooks.StartingGuest) -> str:
        """Return a domain XML with the thread scheduling classes of a policy.

        A scheduling class is one of the kernel, such as SCHED_FIFO.

        :raises PolicyError: if the real-time priority exceeds
            ``[ghsched]realtime_priority_max``.
        """
        policy = guest.policy
        priority = policy.get_part(classes.ThreadPolicy).highest_priority
        if priority > self._section.realtime_priority_max:
            raise PolicyError(
                _find_priority_key(policy, priority).extra_spec,
                f'{priority} is above what this host allows '
                '([ghsched]realtime_priority_max)')
        return scheduling.render_scheduling(
            xml, policy.get_part(classes.ThreadPolicy))

    def check_arrival(self, policy: GuestPolicy, emulator_policy: str | None,
                      has_shared_cpus: bool) -> None:
        """Refuse a live migration if QEMU would wait for real-time vCPUs.

        :param emulator_policy: the guest's ``hw:emulator_threads_policy``.
        :param has_shared_cpus: whether ``[compute]cpu_shared_set`` is set.
        :raises PolicyError: if all CPUs of QEMU would be those of real-time
            vCPUs on this host.
        """
        specs = {'hw:emulator_threads_policy': emulator_policy or ''}
        if not has_shared_cpus and classes.get_shared_emulator_warning(
                policy.get_part(classes.ThreadPolicy), specs):
            raise PolicyError(
                keys.VCPU_SCHEDULER.extra_spec,
                'the emulator threads of QEMU would have no CPUs other than '
                'those of real-time vCPUs: the destination has no [compute]'
                'cpu_shared_set for hw:emulator_threads_policy=share; set it')

    def reconcile_guest(self, running: desired.Running,
                        has_arrived: bool = False) -> None:
        """Correct the scheduling classes of a guest's threads.

        Some threads have another class than the guest's policy requires,
        because libvirt does not support SCHED_DEADLINE, and because new
        threads inherit the class of a real-time thread that created them.

        :param running: the guest; the classes are in its domain XML.
        :raises PolicyError: if the kernel refuses a class; the log has the
            reason.
        """
        guests = [*filter(None, [_parse_guest_thread_scheduling(running)])]
        is_ours = scheduling.NAMESPACE in running.xml
        if not is_ours and not any(one.realtime for guest in guests
                                   for one in guest.wanted.values()):
            return
        report = engine.reconcile_threads(guests,
                                          Path(self._section.libvirt_run_path))
        # The next report of the host logs the problems of other guests.
        for problem in report.problems if is_ours else ():
            LOG.error('ghsched: cannot set the scheduling class of a guest '
                      'thread; refusing the guest: %s',
                      problem)
            raise PolicyError(keys.VCPU_SCHEDULER.extra_spec,
                              'the kernel of the host refuses this class')

    def reconcile_guests(self, running: Sequence[desired.Running]
                         ) -> list[str]:
        """Correct the scheduling classes of guests' threads.

        A scheduling class is one of the kernel, such as SCHED_FIFO.

        :returns: kinds of the changes made.
        """
        report = engine.reconcile_threads(
            list_guest_thread_scheduling(running),
            Path(self._section.libvirt_run_path))
        for action in report.actions:
            LOG.warning('ghsched: guest %(uuid)s: restored the scheduling '
                        'class or CPU affinity of a thread (%(what)s) because '
                        '%(reason)s', {'uuid': action.uuid,
                                       'what': action.details,
                                       'reason': action.reason})
        for problem in report.problems:
            LOG.error('ghsched: cannot restore the scheduling class or CPU '
                      'affinity of a guest thread; retrying in the next '
                      'periodic task: %s',
                      problem)
        return [action.kind for action in report.actions]

    def _explain_unsupported(self, name: str) -> str:
        """Return why the host does not support a thread scheduling class.

        :param name: capability, a key of :data:`names.CAPABILITY_TRAITS`.
        :returns: an empty text if the host supports the class.
        """
        if not self._section.realtime_priority_max:
            return '[ghsched]realtime_priority_max is 0'
        if name != REALTIME and not self._section.deadline_guests:
            return '[ghsched]deadline_guests is off'
        if name == DEADLINE_SHARED and not self.compute_realtime_capacity():
            return '[ghsched]realtime_shared_percent is 0'
        if name == DEADLINE and not self._dedicated:
            return '[compute]cpu_dedicated_set is empty'
        with self._trying:
            return self._probe_class(name)

    def _probe_class(self, name: str) -> str:
        """Return why the kernel refuses a thread scheduling class.

        The text is empty if the kernel accepts the class. The kernel's answer
        is cached.

        :param name: capability that stands for the class, a key of
            :data:`names.CAPABILITY_TRAITS`.
        """
        if name in self._refused:
            return self._refused[name]
        try:
            why = self._refused[name] = self._tries[name]()
        except Exception as error:
            # Not cached: the next report tries again.
            why = f'it cannot be tried: {error}'
        if why and why != self._logged.get(name):
            self._logged[name] = why
            LOG.info('ghsched: not reporting support for %(what)s to '
                     'Placement: %(why)s',
                     {'what': _WHAT[name], 'why': why})
        return why


def make_compute_hooks(services: compute_hooks.ComputeServices
                       ) -> ThreadScheduler:
    """Return nova-compute's scheduler of guests' threads."""
    return ThreadScheduler(services.section,
                           dedicated=services.dedicated_cpus,
                           list_shared_cpus=services.list_shared_cpus)


def _read_sysctl(name: str, default: int) -> int:
    try:
        return int((Path('/proc/sys/kernel') / name).read_text())
    except (OSError, ValueError):
        return default


def _has_preempt_rt(sysfs: Path) -> bool:
    """Whether the host's kernel is built with PREEMPT_RT."""
    try:
        return (sysfs / 'kernel/realtime').read_text().strip() == '1'
    except OSError:
        return False


def list_guest_thread_scheduling(
        running: Iterable[desired.Running]) -> list[model.GuestScheduling]:
    """Return the required thread scheduling of guests that have any.

    The domain XML of a guest names the scheduling classes of its threads. A
    guest whose XML is malformed is left out, with a warning.
    """
    found = []
    for one in running:
        try:
            found.append(_parse_guest_thread_scheduling(one))
        except ValueError as error:
            LOG.warning('ghsched: guest %(uuid)s: cannot read the scheduling '
                        'classes of its threads in its domain XML, leaving '
                        'them as they are: %(error)s',
                        {'uuid': one.domain.uuid, 'error': error})
    return [*filter(None, found)]


def _parse_guest_thread_scheduling(running: desired.Running
                                   ) -> model.GuestScheduling | None:
    """Parse the required scheduling of a guest's threads from its XML.

    :returns: None if the domain XML requires no scheduling class.
    :raises ValueError: if a number or a list of CPUs is malformed.
    """
    # Few guests have a class; parsing the XML of all is slow.
    if ('sched ' not in running.xml
            and scheduling.NAMESPACE not in running.xml):
        return None
    if not running.is_readable:
        return None
    found = scheduling.read_domain_threads(running.root)
    roles = {model.Role('vcpu', number): one
             for number, one in found.vcpus.items()}
    roles |= {model.Role('iothread', number): one
              for number, one in found.iothreads.items()}
    if found.emulator is not None:
        roles[model.Role('emulator')] = found.emulator
    online = survey.read_online_cpus()
    pins = {model.Role(kind, number): cpus & online
            for kind in model.KINDS
            for (name, number), cpus in found.pins.items()
            if name == kind and cpus & online}
    return model.GuestScheduling(running.domain.uuid, running.domain.name,
                                 roles, pins)


def _find_priority_key(policy: GuestPolicy, priority: int) -> keys.Key:
    """Return the flavor extra spec that requests a real-time priority.

    An error message names it if the priority is too high.

    :param policy: policy of the flavor.
    :param priority: the requested priority.
    """
    threads = policy.get_part(classes.ThreadPolicy)
    for one, key in ((threads.vcpus, thread_keys.VCPU_PRIORITY),
                     (threads.emulator, thread_keys.EMULATOR_PRIORITY)):
        if one is not None and one.priority == priority:
            return key
    return thread_keys.IOTHREAD_PRIORITY

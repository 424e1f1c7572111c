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


"""Scheduling of a guest's threads in the domain XML (pure).

libvirt applies ``<vcpusched>``, ``<emulatorsched>`` and ``<iothreadsched>``
when it starts a guest and has no call to change them later (libvirt, "Domain
XML format", CPU tuning). Nova writes ``<vcpusched>`` only for
``hw:cpu_realtime``, which cannot be combined with ghsched's thread policy.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field

from lxml import etree

from ghsched_nova.guest import document
from ghsched_nova.guest import thread_pins
from ghsched_placement.base import cpulist
from ghsched_placement.base.errors import PolicyError
from ghsched_placement.features.real_time.scheduling import (
    list_scheduled_vcpus)
from ghsched_placement.features.real_time.scheduling import Scheduling
from ghsched_placement.features.real_time.scheduling import ThreadPolicy
from ghsched_placement.features.real_time import thread_keys
from ghsched_placement.flavor import keys

#: Scheduling class of threads without an element; libvirt has no name for
#: it.
_NO_ELEMENT = 'other'

#: libvirt does not support the deadline class either; ghsched sets it while
#: the guest runs, with the parameters in the metadata of the domain. libvirt
#: requires a namespace per metadata element.
NAMESPACE = 'https://opendev.org/x/ghsched/threads/1.0'
PREFIX = 'ghsched-threads'
_THREADS = f'{{{NAMESPACE}}}threads'
_TIMES = ('runtime_us', 'deadline_us', 'period_us')

#: Metadata element with the affinity of the interrupts of the devices.
IRQ_NAMESPACE = 'https://opendev.org/x/ghsched/interrupts/1.0'
IRQ_PREFIX = 'ghsched-interrupts'
_INTERRUPTS = f'{{{IRQ_NAMESPACE}}}interrupts'


@dataclass(frozen=True)
class DomainThreads:
    """Scheduling and pinning of a domain's threads, from its XML.

    :param vcpus: scheduling class by vCPU; vCPUs with the default class are
        left out.
    :param emulator: scheduling class of the emulator thread; None for the
        default class.
    :param iothreads: scheduling class by number of the I/O thread, from 1.
    :param pins: host CPUs by kind of the thread (``vcpu``, ``emulator`` or
        ``iothread``) and its number; the emulator has number 0.
    """

    vcpus: Mapping[int, Scheduling] = field(default_factory=dict)
    emulator: Scheduling | None = None
    iothreads: Mapping[int, Scheduling] = field(default_factory=dict)
    pins: Mapping[tuple[str, int], frozenset[int]] = field(
        default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.vcpus or self.emulator or self.iothreads)


def render_scheduling(xml: str, policy: ThreadPolicy) -> str:
    """Add the thread scheduling of a policy to a domain XML.

    The CPUs that handle device interrupts, and locked memory, are added, too.

    :returns: the new domain XML; the unchanged text if the policy requests
        none of these.
    :raises PolicyError: if the vCPU mask does not fit the domain, or if QEMU
        has no CPUs other than those of real-time vCPUs. With
        ``ghsched:irq_bypass=required`` also if it has none other than those
        of all vCPUs.
    :raises DocumentError: if the document is not a domain.
    """
    bypass = policy.irq_bypass != keys.NONE
    if not (policy.scheduler_classes or policy.lock_memory or bypass
            or _sets_irq_affinity(policy)):
        return xml
    root = document.parse_document(xml)
    # A vCPU that shares its CPU gets its interrupts late.
    if (bypass and not thread_pins.exclude_vcpu_cpus(root)
            and policy.irq_bypass == keys.REQUIRED):
        raise PolicyError(
            thread_keys.IRQ_BYPASS.extra_spec,
            'QEMU has no CPUs other than those of the vCPUs')
    _exclude_realtime_cpus(root, policy)
    vcpus = thread_pins.read_thread_count(root, 'vcpu', 1)
    elements = list(_make_elements(
        policy, vcpus, thread_pins.read_thread_count(root, 'iothreads', 0)))
    if policy.vcpus is not None and policy.vcpus.runtime_us:
        _set_metadata(root, _make_deadline_element(policy, vcpus))
    if _sets_irq_affinity(policy):
        _set_metadata(root, _render_irq_affinity(policy))
    if elements:
        cputune = document.find_or_insert_child(root, 'cputune', ('vcpu',))
        document.insert_children(cputune, elements, len(cputune))
    if policy.lock_memory:
        _lock_memory(root)
    return document.render_document(root)


def render_thread_elements(policy: ThreadPolicy, vcpus: int) -> str:
    """Return the XML elements that set a guest's thread scheduling.

    :param policy: scheduling classes and CPUs of the guest's threads.
    :param vcpus: number of vCPUs of the guest.
    :returns: one element per line.
    :raises PolicyError: if the vCPU mask does not fit the number of vCPUs.
    """
    found = list(_make_elements(policy, vcpus, 0))
    if policy.vcpus is not None and policy.vcpus.runtime_us:
        found.append(_make_deadline_element(policy, vcpus))
    if _sets_irq_affinity(policy):
        found.append(_render_irq_affinity(policy))
    if policy.lock_memory:
        backing = etree.Element('memoryBacking')
        found.append(backing)
        for tag in ('nosharepages', 'locked'):
            etree.SubElement(backing, tag)
    return '\n'.join(etree.tostring(one, encoding='unicode')
                     for one in found)


def read_domain_threads(root: etree._Element) -> DomainThreads:
    """Return scheduling class and host CPUs of each thread of a domain.

    :param root: root element of the domain XML.
    :raises ValueError: if a number or a list of CPUs is malformed.
    """
    vcpus = {number: Scheduling('deadline', None,
                                *(int(one.get(name, '')) for name in _TIMES))
             for one in root.findall(f'metadata/{_THREADS}')
             for number in cpulist.parse_cpu_list(one.get('vcpus', ''))}
    cputune = root.find('cputune')
    if cputune is None:
        return DomainThreads(vcpus)
    emulator = cputune.find('emulatorsched')
    return DomainThreads(
        _index_by_number(cputune, 'vcpusched', 'vcpus') | vcpus,
        None if emulator is None else _parse_scheduling(emulator),
        _index_by_number(cputune, 'iothreadsched', 'iothreads'),
        thread_pins.parse_pins(root))


def has_housekeeping_irqs(root: etree._Element) -> bool:
    """Whether a domain's device interrupts go to housekeeping CPUs.

    Housekeeping CPUs are CPUs that are not dedicated to guests.

    :param root: root element of the domain XML.
    """
    return any(one.get('affinity') == thread_keys.HOUSEKEEPING
               for one in root.findall(f'metadata/{_INTERRUPTS}'))


def _sets_irq_affinity(policy: ThreadPolicy) -> bool:
    return policy.irq_affinity != keys.NONE


def _make_elements(policy: ThreadPolicy, vcpus: int,
                   iothreads: int) -> Iterator[etree._Element]:
    chosen = list_scheduled_vcpus(policy, vcpus)
    if policy.vcpus is not None and policy.vcpus.scheduler not in (
            _NO_ELEMENT, 'deadline'):
        yield _make_element('vcpusched', policy.vcpus,
                            vcpus=cpulist.render_cpu_list(chosen))
    if policy.iothreads is not None and iothreads and (
            policy.iothreads.scheduler != _NO_ELEMENT):
        yield _make_element('iothreadsched', policy.iothreads,
                            iothreads=cpulist.render_cpu_list(
                                range(1, iothreads + 1)))
    if policy.emulator is not None and (
            policy.emulator.scheduler != _NO_ELEMENT):
        yield _make_element('emulatorsched', policy.emulator)


def _make_element(tag: str, scheduling: Scheduling,
                  **attributes: str) -> etree._Element:
    element = etree.Element(tag, attributes,
                            scheduler=scheduling.scheduler)
    if scheduling.priority is not None:
        element.set('priority', str(scheduling.priority))
    return element


def _make_deadline_element(policy: ThreadPolicy, vcpus: int) -> etree._Element:
    """Return the metadata element that puts vCPUs under SCHED_DEADLINE.

    libvirt has no element for this scheduling class.

    :param vcpus: number of vCPUs of the guest.
    """
    assert policy.vcpus is not None  # noqa: S101
    element = etree.Element(
        _THREADS,
        {'vcpus': cpulist.render_cpu_list(
            list_scheduled_vcpus(policy, vcpus))},
        nsmap={PREFIX: NAMESPACE})
    for name in _TIMES:
        element.set(name, str(getattr(policy.vcpus, name)))
    return element


def _render_irq_affinity(policy: ThreadPolicy) -> etree._Element:
    """Return the metadata element that says which CPUs handle interrupts.

    The element has the value of ``ghsched:irq_affinity``, for the interrupts
    of the guest's devices.
    """
    return etree.Element(_INTERRUPTS, {'affinity': policy.irq_affinity},
                         nsmap={IRQ_PREFIX: IRQ_NAMESPACE})


def _set_metadata(root: etree._Element, element: etree._Element) -> None:
    metadata = document.find_or_insert_child(root, 'metadata', ('uuid',))
    document.remove_element(metadata.find(element.tag))
    document.insert_children(metadata, [element], len(metadata))


def _lock_memory(root: etree._Element) -> None:
    backing = document.find_or_insert_child(root, 'memoryBacking',
                                            ('currentMemory',))
    for tag in ('nosharepages', 'locked'):
        document.find_or_insert_child(backing, tag)


def _exclude_realtime_cpus(root: etree._Element, policy: ThreadPolicy) -> None:
    """Remove the host CPUs of real-time vCPUs from those of other threads.

    A thread of QEMU that may run on such CPUs alone waits for vCPUs that
    never sleep, and the guest does not start.

    :raises PolicyError: if the emulator or an I/O thread has no other CPU.
    """
    cputune = root.find('cputune')
    # On shared CPUs the time of real-time vCPUs is counted instead.
    if (cputune is None or policy.permille or policy.vcpus is None
            or not policy.vcpus.realtime):
        return
    pins = thread_pins.parse_pins(root)
    cpus = frozenset[int]().union(*(
        pins.get(('vcpu', number), ()) for number in list_scheduled_vcpus(
            policy, thread_pins.read_thread_count(root, 'vcpu', 1))))
    others = {one: found - cpus for one, found in pins.items()
              if one[0] != 'vcpu'}
    lacking = sorted({kind for (kind, _number), found in others.items()
                      if not found and cpus})
    if lacking:
        raise PolicyError(
            keys.VCPU_SCHEDULER.extra_spec,
            f'the {" and ".join(lacking)} threads of QEMU would have no host '
            'CPUs other than those of real-time vCPUs, and the guest would '
            'stall: the host has no [compute]cpu_shared_set for '
            'hw:emulator_threads_policy=share; set it, or use isolate')
    thread_pins.narrow_pins(root, others)


def _index_by_number(cputune: etree._Element, tag: str,
                     attribute: str) -> dict[int, Scheduling]:
    return {number: _parse_scheduling(element)
            for element in cputune.findall(tag)
            for number in cpulist.parse_cpu_list(element.get(attribute, ''))}


def _parse_scheduling(element: etree._Element) -> Scheduling:
    priority = element.get('priority')
    return Scheduling(str(element.get('scheduler')),
                      None if priority is None else int(priority))

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


"""Scheduling of a guest's threads in the domain XML, in and out.

libvirt sets ``<vcpusched>``, ``<emulatorsched>`` and ``<iothreadsched>`` when
it starts a guest and has no call to change them later (libvirt, "Domain XML
format", CPU tuning). Nova writes ``<vcpusched>`` for ``hw:cpu_realtime``
alone, which a guest of ours cannot have.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field

from lxml import etree

from ghsched_nova.guest import document
from ghsched_placement import cpulist
from ghsched_placement.errors import PolicyError
from ghsched_placement import keys
from ghsched_placement.scheduling import Scheduling
from ghsched_placement.scheduling import ThreadPolicy
from ghsched_placement.scheduling import vcpus_of

#: libvirt has no word for it: it is the class of every thread that has no
#: element.
_NO_ELEMENT = 'other'

#: Neither has it deadline, which is set when the guest runs. What to set is
#: in the metadata of the domain; libvirt wants a namespace for each part.
NAMESPACE = 'https://opendev.org/x/ghsched/threads/1.0'
PREFIX = 'ghsched-threads'
_THREADS = f'{{{NAMESPACE}}}threads'
_TIMES = ('runtime_us', 'deadline_us', 'period_us')

#: Where interrupts of the domain's devices go, likewise.
IRQ_NAMESPACE = 'https://opendev.org/x/ghsched/interrupts/1.0'
IRQ_PREFIX = 'ghsched-interrupts'
_INTERRUPTS = f'{{{IRQ_NAMESPACE}}}interrupts'


@dataclass(frozen=True)
class DomainThreads:
    """How the threads of a domain are to be scheduled, as its XML says.

    :param vcpus: by vCPU; vCPUs without a class are left out.
    :param iothreads: by number of the I/O thread, counted from 1.
    :param pins: host CPUs by element and number; that of the emulator is 0.
    """

    vcpus: Mapping[int, Scheduling] = field(default_factory=dict)
    emulator: Scheduling | None = None
    iothreads: Mapping[int, Scheduling] = field(default_factory=dict)
    pins: Mapping[tuple[str, int], frozenset[int]] = field(
        default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.vcpus or self.emulator or self.iothreads)


def render(xml: str, policy: ThreadPolicy) -> str:
    """The domain with the policy's elements; the same text without any.

    :raises PolicyError: when the mask of the vCPUs does not fit the domain,
        or with ``ghsched:irq_bypass=required`` when QEMU has no CPUs beside
        those of the vCPUs.
    :raises NotThisDocument: when the document is no domain.
    """
    bypass = policy.irq_bypass != keys.NONE
    if not (policy.kinds or policy.lock_memory or bypass
            or _steers(policy)):
        return xml
    root = document.parse(xml)
    if bypass:
        _keep_apart(root, policy.irq_bypass == keys.REQUIRED)
    elements = list(_elements(policy, _count(root, 'vcpu', 1),
                              _count(root, 'iothreads', 0)))
    if policy.vcpus is not None and policy.vcpus.runtime_us:
        _set_metadata(root, _times(policy, _count(root, 'vcpu', 1)))
    if _steers(policy):
        _set_metadata(root, _affinity(policy))
    if elements:
        cputune = _child(root, 'cputune', 'vcpu')
        document.insert(cputune, elements, len(cputune))
    if policy.lock_memory:
        _lock(root)
    return document.text(root)


def fragment(policy: ThreadPolicy, vcpus: int) -> str:
    """What :func:`render` adds, one element a line; empty for nothing.

    :param vcpus: how many the guest has.
    :raises PolicyError: as :func:`render`.
    """
    found = list(_elements(policy, vcpus, 0))
    if policy.vcpus is not None and policy.vcpus.runtime_us:
        found.append(_times(policy, vcpus))
    if _steers(policy):
        found.append(_affinity(policy))
    if policy.lock_memory:
        backing = etree.Element('memoryBacking')
        found.append(backing)
        for tag in ('nosharepages', 'locked'):
            etree.SubElement(backing, tag)
    return '\n'.join(etree.tostring(one, encoding='unicode')
                     for one in found)


def read(root: etree._Element) -> DomainThreads:
    """What the elements of a domain say, and our metadata beside them."""
    vcpus = {number: Scheduling('deadline', None,
                                *(int(one.get(name, '')) for name in _TIMES))
             for one in root.findall(f'metadata/{_THREADS}')
             for number in cpulist.parse(one.get('vcpus', ''))}
    cputune = root.find('cputune')
    if cputune is None:
        return DomainThreads(vcpus)
    emulator = cputune.find('emulatorsched')
    return DomainThreads(
        _by_number(cputune, 'vcpusched', 'vcpus') | vcpus,
        None if emulator is None else _scheduling(emulator),
        _by_number(cputune, 'iothreadsched', 'iothreads'),
        dict(_pins(cputune)))


def steers(root: etree._Element) -> bool:
    """Whether interrupts of a domain's devices go to housekeeping CPUs."""
    return any(one.get('affinity') == keys.HOUSEKEEPING
               for one in root.findall(f'metadata/{_INTERRUPTS}'))


def _steers(policy: ThreadPolicy) -> bool:
    return policy.irq_affinity != keys.NONE


def _elements(policy: ThreadPolicy, vcpus: int,
              iothreads: int) -> Iterator[etree._Element]:
    chosen = vcpus_of(policy, vcpus)
    if policy.vcpus is not None and policy.vcpus.scheduler not in (
            _NO_ELEMENT, 'deadline'):
        yield _element('vcpusched', policy.vcpus, vcpus=cpulist.render(chosen))
    if policy.iothreads is not None and iothreads and (
            policy.iothreads.scheduler != _NO_ELEMENT):
        yield _element('iothreadsched', policy.iothreads,
                       iothreads=cpulist.render(range(1, iothreads + 1)))
    if policy.emulator is not None and (
            policy.emulator.scheduler != _NO_ELEMENT):
        yield _element('emulatorsched', policy.emulator)


def _element(tag: str, scheduling: Scheduling,
             **attributes: str) -> etree._Element:
    element = etree.Element(tag, attributes,
                            scheduler=scheduling.scheduler)
    if scheduling.priority is not None:
        element.set('priority', str(scheduling.priority))
    return element


def _times(policy: ThreadPolicy, vcpus: int) -> etree._Element:
    """The vCPUs under deadline, with their times."""
    assert policy.vcpus is not None  # noqa: S101
    element = etree.Element(
        _THREADS, {'vcpus': cpulist.render(vcpus_of(policy, vcpus))},
        nsmap={PREFIX: NAMESPACE})
    for name in _TIMES:
        element.set(name, str(getattr(policy.vcpus, name)))
    return element


def _affinity(policy: ThreadPolicy) -> etree._Element:
    return etree.Element(_INTERRUPTS, {'affinity': policy.irq_affinity},
                         nsmap={IRQ_PREFIX: IRQ_NAMESPACE})


def _set_metadata(root: etree._Element, element: etree._Element) -> None:
    metadata = _child(root, 'metadata', 'uuid')
    document.remove(metadata.find(element.tag))
    document.insert(metadata, [element], len(metadata))


def _lock(root: etree._Element) -> None:
    backing = _child(root, 'memoryBacking', 'currentMemory')
    for tag in ('nosharepages', 'locked'):
        if backing.find(tag) is None:
            document.insert(backing, [etree.Element(tag)], len(backing))


def _keep_apart(root: etree._Element, required: bool) -> None:
    """Keep QEMU's own threads off the CPUs of the vCPUs.

    A vCPU that they take the CPU from gets its interrupts late, and by the
    hypervisor.
    """
    pins: dict[tuple[str, int], frozenset[int]] = {}
    cputune = root.find('cputune')
    if cputune is not None:
        pins = dict(_pins(cputune))
    vcpus = frozenset().union(*(cpus for (kind, _number), cpus in pins.items()
                                if kind == 'vcpu'))
    others = {key: cpus - vcpus for key, cpus in pins.items()
              if key[0] != 'vcpu'}
    needed = {('emulator', 0)} | {
        ('iothread', number)
        for number in range(1, _count(root, 'iothreads', 0) + 1)}
    if required and not (vcpus and all(map(others.get, needed))):
        raise PolicyError(
            keys.IRQ_BYPASS.extra_spec,
            'QEMU has no CPUs beside those of the vCPUs')
    for (kind, number), cpus in others.items():
        if cpus and cpus != pins[kind, number]:
            assert cputune is not None  # noqa: S101
            _set_pin(cputune, kind, number, cpus)


def _set_pin(cputune: etree._Element, kind: str, number: int,
             cpus: frozenset[int]) -> None:
    for pin in cputune.findall(f'{kind}pin'):
        if int(pin.get(kind, '0')) == number:
            pin.set('cpuset', cpulist.render(cpus))


def _child(root: etree._Element, tag: str, behind: str) -> etree._Element:
    """A child of the domain, made behind another one if it is missing."""
    found = root.find(tag)
    if found is None:
        found = etree.Element(tag)
        neighbor = root.find(behind)
        document.insert(root, [found], 0 if neighbor is None
                        else root.index(neighbor) + 1)
    return found


def _count(root: etree._Element, tag: str, default: int) -> int:
    return int(root.findtext(tag) or default)


def _by_number(cputune: etree._Element, tag: str,
               attribute: str) -> dict[int, Scheduling]:
    return {number: _scheduling(element)
            for element in cputune.findall(tag)
            for number in cpulist.parse(element.get(attribute, ''))}


def _pins(cputune: etree._Element
          ) -> Iterator[tuple[tuple[str, int], frozenset[int]]]:
    """Where libvirt has pinned threads; ``^`` leaves a CPU out of a list."""
    for kind in ('vcpu', 'emulator', 'iothread'):
        for element in cputune.findall(f'{kind}pin'):
            number = int(element.get(kind, '0'))
            yield (kind, number), cpulist.parse(element.get('cpuset', ''))


def _scheduling(element: etree._Element) -> Scheduling:
    priority = element.get('priority')
    return Scheduling(str(element.get('scheduler')),
                      None if priority is None else int(priority))

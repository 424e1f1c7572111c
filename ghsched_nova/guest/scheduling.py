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
from ghsched_placement.scheduling import Scheduling
from ghsched_placement.scheduling import ThreadPolicy
from ghsched_placement.scheduling import vcpus_of

#: libvirt has no word for it: it is the class of every thread that has no
#: element.
_NO_ELEMENT = 'other'


@dataclass(frozen=True)
class DomainThreads:
    """How the threads of a domain are to be scheduled, as its XML says.

    :param vcpus: by vCPU; vCPUs without a class are left out.
    :param iothreads: by number of the I/O thread, counted from 1.
    """

    vcpus: Mapping[int, Scheduling] = field(default_factory=dict)
    emulator: Scheduling | None = None
    iothreads: Mapping[int, Scheduling] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.vcpus or self.emulator or self.iothreads)


def render(xml: str, policy: ThreadPolicy) -> str:
    """The domain with the policy's elements; the same text without any.

    :raises PolicyError: when the mask of the vCPUs does not fit the domain.
    :raises NotThisDocument: when the document is no domain.
    """
    if not policy.kinds and not policy.lock_memory:
        return xml
    root = document.parse(xml)
    elements = list(_elements(policy, _count(root, 'vcpu', 1),
                              _count(root, 'iothreads', 0)))
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
    if policy.lock_memory:
        backing = etree.Element('memoryBacking')
        found.append(backing)
        for tag in ('nosharepages', 'locked'):
            etree.SubElement(backing, tag)
    return '\n'.join(etree.tostring(one, encoding='unicode')
                     for one in found)


def read(root: etree._Element) -> DomainThreads:
    """What the elements of a domain say."""
    cputune = root.find('cputune')
    if cputune is None:
        return DomainThreads()
    emulator = cputune.find('emulatorsched')
    return DomainThreads(
        _by_number(cputune, 'vcpusched', 'vcpus'),
        None if emulator is None else _scheduling(emulator),
        _by_number(cputune, 'iothreadsched', 'iothreads'))


def _elements(policy: ThreadPolicy, vcpus: int,
              iothreads: int) -> Iterator[etree._Element]:
    chosen = vcpus_of(policy, vcpus)
    if policy.vcpus is not None and policy.vcpus.scheduler != _NO_ELEMENT:
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


def _lock(root: etree._Element) -> None:
    backing = _child(root, 'memoryBacking', 'currentMemory')
    for tag in ('nosharepages', 'locked'):
        if backing.find(tag) is None:
            document.insert(backing, [etree.Element(tag)], len(backing))


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


def _scheduling(element: etree._Element) -> Scheduling:
    priority = element.get('priority')
    return Scheduling(str(element.get('scheduler')),
                      None if priority is None else int(priority))

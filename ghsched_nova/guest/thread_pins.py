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

"""Host CPUs to which a domain pins its threads (pure)."""

from collections.abc import Iterator
from collections.abc import Mapping
from typing import TypeAlias

from lxml import etree

from ghsched_placement.base import cpulist

#: Host CPUs by kind of the thread (``vcpu``, ``emulator`` or ``iothread``) and
#: its number; the emulator has number 0.
Pins: TypeAlias = dict[tuple[str, int], frozenset[int]]

_KINDS = ('vcpu', 'emulator', 'iothread')


def parse_pins(root: etree._Element) -> Pins:
    """Return the host CPUs to which a domain pins each thread.

    :param root: root element of the domain XML.
    """
    return {place: cpulist.parse_cpu_list(element.get('cpuset', ''))
            for place, element in _iterate_pins(root)}


def exclude_vcpu_cpus(root: etree._Element) -> bool:
    """Remove the vCPUs' host CPUs from the CPU sets of other QEMU threads.

    A thread that would have no CPU left keeps its CPUs.

    :param root: root element of the domain XML.
    :returns: whether all vCPUs are pinned to CPUs that no other thread of QEMU
        may use.
    """
    pins = parse_pins(root)
    vcpus = frozenset[int]().union(*(cpus for (kind, _number), cpus
                                     in pins.items() if kind == 'vcpu'))
    others = {place: cpus - vcpus for place, cpus in pins.items()
              if place[0] != 'vcpu'}
    narrow_pins(root, others)
    needed = {('vcpu', number) for number in range(
        read_thread_count(root, 'vcpu', 1))}
    needed |= {('emulator', 0)} | {
        ('iothread', number)
        for number in range(1, read_thread_count(root, 'iothreads', 0) + 1)}
    return all(map({**pins, **others}.get, needed))


def narrow_pins(root: etree._Element,
                narrowed: Mapping[tuple[str, int], frozenset[int]]) -> None:
    """Write narrowed CPU sets of threads into a domain XML; skip empty ones.

    :param narrowed: host CPUs that the threads shall have.
    """
    for place, element in _iterate_pins(root):
        cpus = narrowed.get(place)
        if cpus and cpus != cpulist.parse_cpu_list(element.get('cpuset', '')):
            element.set('cpuset', cpulist.render_cpu_list(cpus))


def read_thread_count(root: etree._Element, tag: str, default: int) -> int:
    """Read the number of vCPUs or of I/O threads in a domain XML.

    :param tag: ``vcpu`` or ``iothreads``.
    :param default: number if the domain has no such element.
    """
    return int(root.findtext(tag) or default)


def _iterate_pins(root: etree._Element) -> Iterator[
        tuple[tuple[str, int], etree._Element]]:
    for kind in _KINDS:
        for element in root.findall(f'cputune/{kind}pin'):
            yield (kind, int(element.get(kind, '0'))), element

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

"""Shared vCPUs of guests that are bound to the CPUs of few L3 caches (pure).

The vCPUs are pinned while a guest runs, and its persistent XML keeps the CPUs
of the whole host NUMA node. The metadata of the domain have the value of
``ghsched:cpu_cache``, so that a guest which has arrived by live migration is
bound again.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from lxml import etree

from ghsched_nova.guest import cells as guest_cells
from ghsched_nova.guest import document
from ghsched_nova.guest import thread_pins
from ghsched_placement.base import cpulist
from ghsched_placement.features.cpu_cache import cache_part
from ghsched_placement.features.cpu_cache import shared_choice

NAMESPACE = 'https://opendev.org/x/ghsched/cache/1.0'
PREFIX = 'ghsched-cache'
_CACHE = f'{{{NAMESPACE}}}cache'


def render_wish(xml: str, wish: str) -> str:
    """Write the value of ``ghsched:cpu_cache`` into a domain's metadata."""
    root = document.parse_document(xml)
    metadata = document.find_or_insert_child(root, 'metadata', ('uuid',))
    document.remove_element(metadata.find(_CACHE))
    document.insert_children(
        metadata, [etree.Element(_CACHE, {'wish': wish},
                                 nsmap={PREFIX: NAMESPACE})], len(metadata))
    return document.render_document(root)


def read_wish(root: etree._Element) -> str:
    """Return the value of ``ghsched:cpu_cache`` from a domain's metadata.

    :param root: root element of the domain XML.
    :returns: empty if the domain has none.
    """
    element = root.find(f'metadata/{_CACHE}')
    return '' if element is None else str(element.get('wish', ''))


def count_vcpus_by_cpu(roots: Iterable[etree._Element],
                       shared_cpus: frozenset[int]) -> dict[int, float]:
    """Return the number of vCPUs of running guests on each host CPU.

    A vCPU that may run on several CPUs counts for an equal part on each.

    :param roots: root elements of the guests' live XML.
    :param shared_cpus: shared CPUs of the host, on which the vCPUs of a guest
        run whose XML names no CPUs.
    """
    load: dict[int, float] = {}
    for root in roots:
        pins = _parse_vcpu_pins(root)
        _add_vcpus(load, pins)
        vcpu = root.find('vcpu')
        floating = 0 if vcpu is None else int(vcpu.text or 0) - len(pins)
        cpus = shared_cpus if vcpu is None else cpulist.parse_cpu_list(
            vcpu.get('cpuset', '')) or shared_cpus
        for cpu in cpus:
            load[cpu] = load.get(cpu, 0) + max(0, floating) / len(cpus)
    return load


def has_same_pins(first: etree._Element, second: etree._Element) -> bool:
    """Whether the vCPUs of two domain XMLs are pinned to the same CPUs."""
    return _parse_vcpu_pins(first) == _parse_vcpu_pins(second)


def plan_pins(root: etree._Element, load: dict[int, float],
              caches_by_node: Mapping[int, Sequence[frozenset[int]]],
              ratio: float) -> dict[int, frozenset[int]]:
    """Return the vCPUs of a guest to pin to other CPUs, and these CPUs.

    A guest NUMA node is left out if its vCPUs are not bound to shared CPUs of
    one host NUMA node, or if the L3 caches of that node are unknown.

    :param root: root element of the guest's live XML.
    :param load: number of vCPUs of all guests, with this one, on each CPU;
        updated to the returned pins.
    :param caches_by_node: shared CPUs of host NUMA nodes by L3 cache.
    :param ratio: maximum number of vCPUs per shared CPU of the host.
    """
    limit = None if read_wish(root) == cache_part.REQUIRE else ratio
    # Not the nodes of <memnode>: there libvirt keeps those that a guest was
    # started on.
    bound = _parse_vcpu_pins(root)
    _add_vcpus(load, bound, -1)
    found: dict[int, frozenset[int]] = {}
    for cell in guest_cells.parse_cells(root):
        vcpus = {vcpu: bound[vcpu] for vcpu in cell.vcpus if vcpu in bound}
        cpus = frozenset[int]().union(*vcpus.values())
        caches = next((caches for caches in caches_by_node.values()
                       if cpus and cpus <= frozenset().union(*caches)), ())
        if caches:
            wanted = shared_choice.choose_shared_cpus(
                caches, load, len(vcpus), cpus, limit)
            found |= {vcpu: wanted for vcpu, held in vcpus.items()
                      if held != wanted}
    _add_vcpus(load, {**bound, **found})
    return found


def _parse_vcpu_pins(root: etree._Element) -> dict[int, frozenset[int]]:
    return {vcpu: cpus for (kind, vcpu), cpus
            in thread_pins.parse_pins(root).items() if kind == 'vcpu' and cpus}


def _add_vcpus(load: dict[int, float], pins: Mapping[int, frozenset[int]],
               sign: int = 1) -> None:
    """Add the vCPUs of a guest to the number of vCPUs on each CPU.

    :param sign: 1 to add the vCPUs, -1 to subtract them.
    """
    for cpus in pins.values():
        for cpu in cpus:
            load[cpu] = load.get(cpu, 0) + sign / len(cpus)

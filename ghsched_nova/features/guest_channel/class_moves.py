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

"""Moves of vCPUs between the classes of a guest, at its request (pure).

A guest moves its own vCPUs between its own control groups only, and only
where the flavor gives the class vCPUs of the same guest NUMA node: what
Placement has allocated on a host node stays what the host guarantees there.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
import re

from ghsched_placement.base import cpulist
from ghsched_placement.flavor import vcpu_classes
from ghsched_placement.flavor.vcpu_classes import VcpuClass


_RULE = re.compile('([0-9]{1,5})(?:-([0-9]{1,5}))?')


class NotMovedError(ValueError):
    """Reason why vCPUs cannot be moved between the classes of a guest."""


def parse_vcpu_request(asked: Mapping[str, str], vcpus: int
                       ) -> dict[str, frozenset[int]]:
    """Parse the vCPUs that a guest requests for each vCPU class.

    :param asked: list of vCPUs by name of the class, as the guest wrote it.
    :param vcpus: number of vCPUs of the guest.
    :raises NotMovedError: for a malformed list, or a vCPU that the guest does
        not have.
    """
    if not asked:
        raise NotMovedError('no class is named')
    return {name: _parse_list(text, vcpus) for name, text in asked.items()}


def _parse_list(text: str, vcpus: int) -> frozenset[int]:
    found = set[int]()
    for rule in filter(None, map(str.strip, text.split(','))):
        match = _RULE.fullmatch(rule)
        if match is None:
            raise NotMovedError(f'{rule:.20} is no vCPU, and no range of them')
        first, last = int(match[1]), int(match[2] or match[1])
        if last >= vcpus:
            raise NotMovedError(f'this server has no vCPU {last}')
        found.update(range(first, last + 1))
    return frozenset(found)


def move_vcpus(classes: Sequence[VcpuClass],
               wanted: Mapping[str, frozenset[int]],
               nodes: Iterable[frozenset[int]]) -> tuple[VcpuClass, ...]:
    """Return a guest's vCPU classes after a requested move of vCPUs.

    A vCPU that would be in no class joins the class ``default``.

    :param wanted: vCPUs by name of the class. A class that is not named keeps
        its vCPUs, except those requested for another class.
    :param nodes: vCPUs of each guest NUMA node.
    :raises NotMovedError: if the guest has no such class or vCPU, if a class
        would have no vCPU left, or if a class would get a vCPU on a guest NUMA
        node on which it has none in the flavor.
    """
    if not classes:
        raise NotMovedError('this server has no vCPU classes')
    nodes = tuple(nodes)
    every = frozenset[int]().union(*nodes)
    _check_wanted(classes, wanted, every)
    taken = frozenset[int]().union(*wanted.values())
    moved = {one.name: wanted.get(one.name, _get_current(one) - taken)
             for one in classes}
    rest = every.difference(*moved.values())
    if rest:
        if vcpu_classes.DEFAULT not in moved:
            raise NotMovedError(
                f'vCPU {cpulist.render_cpu_list(rest)} would be in no class')
        moved[vcpu_classes.DEFAULT] |= rest
    for one in classes:
        _check_nodes(one, moved[one.name], nodes)
    return tuple(replace(one, moved=None if moved[one.name] == one.vcpus
                         else moved[one.name]) for one in classes)


def _get_current(one: VcpuClass) -> frozenset[int]:
    return one.current or frozenset()


def _check_wanted(classes: Sequence[VcpuClass],
                  wanted: Mapping[str, frozenset[int]],
                  every: frozenset[int]) -> None:
    known = {one.name for one in classes} - {vcpu_classes.DEFAULT}
    seen: frozenset[int] = frozenset()
    for name, vcpus in wanted.items():
        if name == vcpu_classes.DEFAULT:
            raise NotMovedError(
                f'vCPUs of the class {name} cannot be listed; it has those '
                'that no other class has')
        if name not in known:
            raise NotMovedError(f'{name} is no class of this server')
        if not vcpus <= every:
            raise NotMovedError(
                f'this server has no vCPU {max(vcpus - every)}')
        if vcpus & seen:
            raise NotMovedError(
                f'vCPU {cpulist.render_cpu_list(vcpus & seen)} is in two '
                'classes')
        seen |= vcpus


def _check_nodes(one: VcpuClass, vcpus: frozenset[int],
                 nodes: Sequence[frozenset[int]]) -> None:
    if not vcpus and one.name != vcpu_classes.DEFAULT:
        raise NotMovedError(f'the class {one.name} would have no vCPU')
    for number, mine in enumerate(nodes):
        if vcpus & mine and not (one.vcpus or frozenset()) & mine:
            raise NotMovedError(
                f'the class {one.name} has no vCPU on NUMA node {number} in '
                'the flavor, so that none there can join it')

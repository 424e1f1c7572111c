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

"""Flavors of two guests, and the place of each container in them (pure).

As in the published test, a container has two CPUs of one guest NUMA node: one
for its server, one for the interrupts of its network device.
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import ipaddress
import re

from ghsched_nova.lab.bench import errors
from ghsched_placement.base import cpulist
from ghsched_placement.flavor import key_names

#: What protects the observed container, from nothing to its own vCPUs.
ARMS = ('none', 'bind', 'keys', 'classes')
#: Number of guests that containers are spread over.
GUESTS = 2
#: vCPU class of the observed container.
_CLASS = 'observed'
_VFS = re.compile(r'|[^:,\s]+:[1-9][0-9]{0,3}')


@dataclass(frozen=True)
class GuestSize:
    """Size of each guest.

    :param memory: MiB.
    :param nodes: NUMA nodes of a guest that is bound to host nodes.
    :param vfs: ALIAS:COUNT for all VFs of a guest; empty for none.
    :param page_size: ``hw:mem_page_size``; empty for Nova's default.
    :param cpu_policy: ``hw:cpu_policy`` of a bound guest.
    """

    vcpus: int
    memory: int
    nodes: int
    vfs: str = ''
    page_size: str = ''
    cpu_policy: str = 'dedicated'

    def __post_init__(self) -> None:
        if self.vcpus % self.nodes:
            raise errors.BenchError(
                f'{self.vcpus} vCPUs are no whole number for each of '
                f'{self.nodes} nodes')
        if not _VFS.fullmatch(self.vfs):
            raise errors.BenchError(
                f'vfs: {self.vfs!r} is not of the form ALIAS:COUNT')


@dataclass(frozen=True)
class ContainerPlace:
    """Place of a container.

    :param number: from 1 on; the first one is observed.
    :param guest: from 0 on.
    :param node: of the guest.
    :param server_cpu: vCPU of its redis-server.
    :param irq_cpu: vCPU of the interrupts of its network device.
    :param shared: whether another container has the same CPUs.
    """

    number: int
    guest: int
    node: int
    server_cpu: int
    irq_cpu: int
    shared: bool

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(sorted({self.server_cpu, self.irq_cpu}))


@dataclass(frozen=True)
class GuestNic:
    """Network device of a guest.

    :param node: of the guest; -1 when its kernel knows none.
    """

    name: str
    node: int


def _places(shape: GuestSize) -> list[tuple[int, int, int]]:
    """Return (node, CPU of a server, CPU of its interrupts), the nodes in
    turn.
    """
    width = shape.vcpus // shape.nodes
    starts = range(0, max(width - 1, 1), 2)
    return [(node, node * width + start,
             node * width + min(start + 1, width - 1))
            for start in starts for node in range(shape.nodes)]


def place_container(shape: GuestSize, number: int) -> ContainerPlace:
    """Return the place of a container: guests in turn, then nodes in turn.

    When all CPUs are taken, containers share them; those of the observed
    container last.
    """
    turn, guest = divmod(number - 1, GUESTS)
    places = _places(shape)
    shared = turn >= len(places)
    if shared:
        turn -= len(places)
        places = places[guest == 0 and len(places) > 1:]
    return ContainerPlace(number, guest, *places[turn % len(places)],
                          shared=shared)


def irq_cpus(shape: GuestSize) -> tuple[int, ...]:
    """Return the vCPUs for interrupts of a device that all containers use."""
    return tuple(dict.fromkeys(irq for _node, _cpu, irq in _places(shape)))


def choose_vf(found: Sequence[GuestNic], used: Collection[str], node: int
              ) -> GuestNic | None:
    """Return a free VF, of the node if possible; None if all are used."""
    free = [nic for nic in found if nic.name not in used]
    return min(free, default=None, key=lambda nic: (
        nic.node != node, len(nic.name), nic.name))


def container_address(first: str, number: int) -> str:
    """Return the address with prefix of a container's VF.

    :param first: address of the first container, e.g. 192.0.2.10/24.
    :raises BenchError: when it is none, or its network has no more.
    """
    try:
        start = ipaddress.ip_interface(first)
        found = start.ip + number - 1
    except ValueError as error:
        raise errors.BenchError(f'vf-address: {error}') from None
    if found not in start.network:
        raise errors.BenchError(
            f'vf-address: {first} leaves no address for container {number}')
    return f'{found}/{start.network.prefixlen}'


def parse_keys(name: str, text: str) -> dict[str, str]:
    """Return keys of bandwidth from a list like
    ``mem_bw_min=40,mem_bw_priority=7``.

    :param name: of the parameter, for the message.
    :raises BenchError: when it is no such list.
    """
    known = [key.name for key in key_names.KEYS if key.per_class]
    found = {}
    for entry in filter(None, text.split(',')):
        key, _equals, value = entry.partition('=')
        if key not in known or not value:
            raise errors.BenchError(f'{name}: {entry!r} is none of '
                                    + ', '.join(known) + ' with a value')
        found[key] = value
    return found


def extra_specs(shape: GuestSize, arm: str, keys: Mapping[str, str],
                other_keys: Mapping[str, str]
                ) -> tuple[dict[str, str], ...]:
    """Return the extra specs of the guest with the observed container, and
    those of the other guest.

    :param keys: of what is protected: the guest, or the vCPUs of the
        observed container.
    :param other_keys: of all else.
    """
    if arm == 'none':
        plain = ({'pci_passthrough:alias': shape.vfs} if shape.vfs else {})
        return plain, plain
    bound = {'hw:numa_nodes': str(shape.nodes),
             'hw:cpu_policy': shape.cpu_policy}
    if shape.page_size:
        bound['hw:mem_page_size'] = shape.page_size
    if shape.vfs:
        bound |= {'ghsched:vfs': shape.vfs, 'ghsched:device_numa': 'required'}
    if arm == 'bind':
        return bound, bound
    others = {**bound, **_ghsched(other_keys)}
    if arm == 'keys':
        return {**bound, **_ghsched(keys)}, others
    cpus = cpulist.render_cpu_list(place_container(shape, 1).cpus)
    return {**others, 'ghsched:vcpu_classes': f'{_CLASS}:{cpus}',
            **_ghsched(keys, f'.{_CLASS}')}, others


def _ghsched(keys: Mapping[str, str], suffix: str = '') -> dict[str, str]:
    return {f'ghsched:{key}{suffix}': value for key, value in keys.items()}

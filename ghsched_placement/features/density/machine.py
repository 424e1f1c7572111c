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

"""Machine for which the contention model predicts latency (pure).

A :class:`Machine` is made from the section ``contention`` of a host file.
Every parameter has its source, see :data:`BASES`.
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from ghsched_placement.features.density.curve import CurveError
from ghsched_placement.features.density.curve import LatencyCurve
from ghsched_placement.features.density.queueing import Enforcement
from ghsched_placement.features.density.queueing import SCOPES
from ghsched_placement.providers import names

#: Sources of the value of a parameter.
#:
#: measured   on the machine.
#: specified  by its maker, or in a publication.
#: fitted     so that the model predicts a published result.
#: predicted  from another parameter or another machine.
#: assumed    because no better source is known.
BASES = ('measured', 'specified', 'fitted', 'predicted', 'assumed')

#: Controls of a bandwidth policy that a machine may be able to enforce; keys
#: of :data:`names.CAPABILITY_TRAITS`.
CONTROLS = tuple(sorted(
    name for name in names.CAPABILITY_TRAITS if name.startswith('MEM_BW_')))

#: Required parameters of the model, with the lowest value of each.
_LOWEST = {
    'capacity_mb': 1.0, 'near_mb': 1.0, 'far_mb': 1.0,
    'near_latency': 1.0, 'far_latency': 1.0, 'demand_mb': 0.001,
    'dma_mb': 0.0,
}


class MachineError(ValueError):
    """Raised for a malformed machine description, with the key and the reason.
    """


@dataclass(frozen=True)
class Parameter:
    """Parameter of the contention model: name, value and source.

    :param basis: how the value was obtained, one of :data:`BASES`.
    :param source: description of the source for the user. For a fitted value
        it is the published result to which the value was fitted.
    """

    name: str
    value: float
    basis: str
    source: str


@dataclass(frozen=True)
class MachineNode:
    """CPUs and memory of one NUMA node of a machine.

    :param id: number of the node.
    :param threads: number of CPUs (hardware threads) that guests may use.
    :param memory_mb: memory in MiB that guests may use.
    :param socket: number of the node's socket.
    """

    id: int
    threads: int
    memory_mb: int
    socket: int = 0


@dataclass(frozen=True)
class PublishedDensity:
    """Published number of containers to which ``demand_mb`` is fitted.

    :param containers: the published number of containers.
    :param passes: whether the latency was acceptable with this number. If it
        was not, this was the smallest number with which it was not.
    """

    containers: int
    passes: bool


@dataclass(frozen=True)
class Machine:
    """Bandwidth, latency and NUMA nodes of a host, for the contention model.

    :param nodes: NUMA nodes in ascending order of their numbers.
    :param nics: NUMA node of each NIC.
    :param controls: controls of a bandwidth policy that the machine can
        enforce, of :data:`CONTROLS`.
    :param parameters: parameters of the model, from the machine's section of a
        host file.
    :param fit: published number of containers; None if none was published.
    :param curve: measured latency curve of the memory; None models the memory
        as a queue (M/M/1).
    :param enforcement: how its memory controllers apply bandwidth controls.
    """

    name: str
    nodes: tuple[MachineNode, ...]
    nics: tuple[int, ...]
    controls: frozenset[str]
    parameters: tuple[Parameter, ...]
    fit: PublishedDensity | None = None
    curve: LatencyCurve | None = None
    enforcement: Enforcement = Enforcement()

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> 'Machine':
        """Build a machine from a mapping, such as a section of a host file.

        The machine is the model of a host from which container densities are
        predicted. The example host file ``kunpeng920.yaml`` explains the keys.
        All bandwidths are in MB/s, and all latencies are relative to a local
        access.

        :raises MachineError: (a ValueError) if a key is missing, unknown or
            out of range.
        """
        left = dict(mapping)
        name = str(left.pop('name', 'host'))
        nodes = _parse_nodes(left.pop('nodes', None))
        nics = _parse_nics(left.pop('nics', ()), nodes)
        controls = _parse_controls(left.pop('controls', CONTROLS))
        fit = _parse_fit(left.pop('fit', None))
        curve = _parse_curve(left.pop('latency_curve', None))
        enforcement = _parse_enforcement(left.pop('enforcement', None))
        parameters = tuple(_parse_parameter(key, left.pop(key, None), lowest)
                           for key, lowest in _LOWEST.items())
        if left:
            raise MachineError(f'{min(map(str, left))}: unknown key')
        machine = cls(name, nodes, nics, controls, parameters, fit, curve,
                      enforcement)
        if machine['dma_mb'] > machine['demand_mb']:
            raise MachineError('dma_mb: is part of demand_mb and cannot be '
                               'more')
        return machine

    def __getitem__(self, name: str) -> float:
        """Return the value of the model parameter with a given name."""
        return self.get_parameter(name).value

    def get_parameter(self, name: str) -> Parameter:
        return next(one for one in self.parameters if one.name == name)

    def replace_parameter(self, name: str, value: float) -> 'Machine':
        """Return a copy of the machine with a model parameter changed."""
        return replace(self, parameters=tuple(
            replace(one, value=value) if one.name == name else one
            for one in self.parameters))

    def get_socket(self, node: int) -> int:
        return next(one.socket for one in self.nodes if one.id == node)

    def get_link(self, origin: int,
                 destination: int) -> tuple[str, int, int] | None:
        """Return the link that connects two NUMA nodes.

        All nodes of a socket share the socket's links to other sockets.

        :returns: None if both are the same node.
        """
        if origin == destination:
            return None
        ours, theirs = self.get_socket(origin), self.get_socket(destination)
        if ours == theirs:
            return 'near', origin, destination
        return 'far', ours, theirs


def _parse_nodes(given: Any) -> tuple[MachineNode, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise MachineError('nodes: must be a list that is not empty')
    nodes = []
    for place, entry in enumerate(given):
        where = f'nodes[{place}]'
        if not isinstance(entry, Mapping):
            raise MachineError(f'{where}: must be a mapping')
        left = dict(entry)
        nodes.append(
            MachineNode(id=_parse_whole_number(f'{where}.id',
                                               left.pop('id', None)),
                        threads=_parse_whole_number(f'{where}.threads',
                                                    left.pop('threads', None)),
                        memory_mb=_parse_whole_number(f'{where}.memory_mb',
                                                      left.pop('memory_mb',
                                                               None)),
                        socket=_parse_whole_number(f'{where}.socket',
                                                   left.pop('socket', 0))))
        if left:
            raise MachineError(f'{where}.{min(map(str, left))}: unknown key')
    if len({node.id for node in nodes}) < len(nodes):
        raise MachineError('nodes: a node is given twice')
    return tuple(sorted(nodes, key=lambda node: node.id))


def _parse_nics(given: Any, nodes: Sequence[MachineNode]) -> tuple[int, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise MachineError('nics: must be a list of NUMA nodes')
    known = [node.id for node in nodes]
    for nic in given:
        if nic not in known:
            raise MachineError(f'nics: the host has no NUMA node {nic!r}')
    return tuple(given)


def _parse_controls(given: Any) -> frozenset[str]:
    if not isinstance(given, Collection) or isinstance(given, str):
        raise MachineError('controls: must be a list')
    unknown = sorted(set(map(str, given)) - set(CONTROLS))
    if unknown:
        raise MachineError(f'controls: {unknown[0]!r} is not one of '
                           + ', '.join(CONTROLS))
    return frozenset(map(str, given))


def _parse_fit(given: Any) -> PublishedDensity | None:
    if given is None:
        return None
    if not isinstance(given, Mapping) or (
            set(given) != {'containers', 'passes'}):
        raise MachineError('fit: must be a mapping of containers and passes')
    containers = _parse_whole_number('fit.containers', given['containers'])
    if containers < 2 or not isinstance(given['passes'], bool):
        raise MachineError('fit: containers must be 2 or more, and passes '
                           'true or false')
    return PublishedDensity(containers, given['passes'])


def _parse_curve(given: Any) -> LatencyCurve | None:
    if given is None:
        return None
    try:
        return LatencyCurve.from_mapping(given)
    except CurveError as error:
        raise MachineError(f'latency_curve: {error}') from None


def _parse_enforcement(given: Any) -> Enforcement:
    if given is None:
        return Enforcement()
    if not isinstance(given, Mapping) or (
            set(given) != {'scope', 'cap_window_us', 'basis', 'source'}):
        raise MachineError('enforcement: must be a mapping of scope, '
                           'cap_window_us, basis and source')
    if given['scope'] not in SCOPES:
        raise MachineError(f'enforcement.scope: {given["scope"]!r} is not '
                           'one of ' + ', '.join(SCOPES))
    window = _parse_parameter('enforcement.cap_window_us', {
        'value': given['cap_window_us'], 'basis': given['basis'],
        'source': given['source']}, 0.0)
    return Enforcement(given['scope'], window.value)


def _parse_whole_number(where: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise MachineError(f'{where}: must be a whole number, is {value!r}')
    return value


def _parse_parameter(name: str, given: Any, lowest: float) -> Parameter:
    if given is None:
        raise MachineError(f'{name}: is missing')
    if not isinstance(given, Mapping) or (
            set(given) != {'value', 'basis', 'source'}):
        raise MachineError(f'{name}: must be a mapping of value, basis and '
                           'source')
    value, basis = given['value'], given['basis']
    if not isinstance(value, int | float) or isinstance(value, bool) or (
            not lowest <= value < 1e12):
        raise MachineError(f'{name}.value: must be a number from {lowest:g}, '
                           f'is {value!r}')
    if basis not in BASES:
        raise MachineError(f'{name}.basis: {basis!r} is not one of '
                           + ', '.join(BASES))
    if not isinstance(given['source'], str) or not given['source'].strip():
        raise MachineError(f'{name}.source: must say where the value comes '
                           'from')
    return Parameter(name, float(value), str(basis), given['source'].strip())

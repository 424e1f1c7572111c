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

"""Policy of a guest, parsed from the extra specs of its flavor.

Everything here is pure: the same extra specs give the same
:class:`GuestPolicy` in nova-scheduler, in nova-compute and in
``ghsched explain``.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
import hashlib
import itertools
import re
from typing import Any
from typing import cast
from typing import NamedTuple
from typing import TypeVar

from ghsched_placement.base import cpulist
from ghsched_placement.base.errors import PolicyError as PolicyError
from ghsched_placement.features import declared
from ghsched_placement.flavor import auto_nodes
from ghsched_placement.flavor.bandwidth import Accounting as Accounting
from ghsched_placement.flavor.bandwidth import NodePolicy as NodePolicy
from ghsched_placement.flavor import key_names
from ghsched_placement.flavor.key_names import BY_NAME
from ghsched_placement.flavor.key_names import split_extra_spec
from ghsched_placement.flavor.key_names import split_extra_spec_names
from ghsched_placement.flavor.key_values import Devices
from ghsched_placement.flavor.key_values import NEEDS_TOPOLOGY
from ghsched_placement.flavor.key_values import parse_extra_spec_value
from ghsched_placement.flavor.key_values import PREFIX as _PREFIX
from ghsched_placement.flavor.key_values import Value
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.parts import FlavorValues
from ghsched_placement.flavor.parts import PolicyPart
from ghsched_placement.flavor import resources
from ghsched_placement.flavor import vcpu_classes
from ghsched_placement.flavor.vcpu_classes import VcpuClass
from ghsched_placement.providers import names
from ghsched_placement.query.requested_classes import find_requested_classes

#: Guest NUMA nodes that QEMU knows (``MAX_NODES``).
_MAX_GUEST_NODES = 128

_NamedVcpus = vcpu_classes.NamedVcpus
_Part = TypeVar('_Part', bound=PolicyPart)

_DIGITS = re.compile('[0-9]+')
_SHORT_NUMBER = re.compile('0*([0-9]{1,3})')


@dataclass(frozen=True)
class Vfs:
    """SR-IOV VFs of a PCI alias that a flavor requests for a guest NUMA node.

    :param guest_node: number of the guest NUMA node, from 0.
    :param alias: name of the alias in Nova's ``[pci]alias``.
    :param count: number of VFs, at least 1.
    """

    guest_node: int
    alias: str
    count: int


@dataclass(frozen=True)
class GuestPolicy:
    """Everything that ghsched's extra specs request for a guest.

    :param nodes: memory bandwidth and L3 ways of each guest NUMA node; empty
        if the guest has no ``ghsched:mem_bw_*`` and no ``ghsched:l3_ways``
        extra spec, and therefore needs no control group. If the guest has
        vCPU classes, the bandwidth is that of all classes together.
    :param monitor: whether a resctrl monitoring group is requested.
    :param device_numa: whether the guest must (``required``) or should
        (``preferred``) see the NUMA node of its passthrough devices.
    :param vfs: requested VFs, by guest NUMA node and then in the order of the
        flavor.
    :param vfs_locality: largest allowed distance between a VF and its guest
        node: ``node``, ``socket`` or ``any``.
    :param rt_permille: thousandths of a shared CPU that the guest's real-time
        vCPUs use, by guest NUMA node; empty if they use none.
    :param auto_nodes: whether nova-scheduler chooses the number of guest NUMA
        nodes.
    :param parts: parts of the policy that features have parsed, without those
        of flavors that request nothing of a feature.
    :param classes: vCPU classes of the guest; empty if it has none.
    """

    nodes: tuple[NodePolicy, ...] = ()
    monitor: bool = False
    device_numa: str = 'none'
    vfs: tuple[Vfs, ...] = ()
    vfs_locality: str = 'any'
    rt_permille: tuple[int, ...] = ()
    auto_nodes: bool = False
    parts: tuple[PolicyPart, ...] = ()
    classes: tuple[VcpuClass, ...] = ()

    def get_part(self, kind: type[_Part]) -> _Part:
        """Return the part of the policy that a feature has parsed.

        :param kind: class of the part.
        """
        return next((part for part in self.parts
                     if isinstance(part, kind)), kind())

    @property
    def needs_control_group(self) -> bool:
        """Whether the guest needs a resctrl control group on its host.

        The kernel limits and guarantees memory bandwidth, and reserves L3
        cache ways, for control groups.
        """
        return bool(self.nodes)

    @property
    def groups(self) -> tuple[VcpuClass, ...]:
        """vCPU classes that need a control group each.

        A guest without classes has one control group for all its vCPUs.
        """
        if self.nodes and not self.classes:
            return (VcpuClass('', None, self.nodes),)
        return tuple(one for one in self.classes if one.nodes)

    def select_class(self, one: VcpuClass) -> 'GuestPolicy':
        """Return the bandwidth policy of one class of :attr:`groups`."""
        return replace(self, nodes=one.nodes, classes=())

    def split_by_class(self) -> tuple[tuple[VcpuClass, 'GuestPolicy'], ...]:
        """Return each vCPU class with limits, and its bandwidth policy.

        A guest without classes, or without limits, is one class of all its
        vCPUs.
        """
        if not self.classes or not self.nodes:
            return ((VcpuClass('', None, self.nodes), self),)
        return tuple((one, self.select_class(one)) for one in self.groups)

    @property
    def can_share_group(self) -> bool:
        """Whether the guest can share its control group with other guests.

        The other guests have the same bandwidth policy.
        """
        return bool(self.nodes and not self.classes
                    and not self.has_l3_partition)

    @property
    def fingerprint(self) -> str:
        """Digest that is equal for all guests with the same bandwidth policy.

        Guests with the same fingerprint can share a resctrl control group.
        """
        return compute_digest(map(str, (*self.nodes, *self.classes)))

    def get_bandwidth_by_node(self, accounting: Accounting = 'min') -> dict[
            int, int]:
        """Return the percent of bandwidth to allocate, by guest NUMA node.

        Guest nodes for which Placement counts no bandwidth are left out.

        :param accounting: bandwidth that Placement counts: the guarantee
            (``min``) or the cap (``max``).
        """
        shares = {
            number: node.minimum if accounting == 'min' else node.maximum
            for number, node in enumerate(self.nodes)}
        return {number: share for number, share in shares.items() if share}

    @property
    def has_l3_partition(self) -> bool:
        """Whether the guest has ways of an L3 cache reserved for itself."""
        return any(node.l3_ways for node in self.nodes)

    def get_resources_by_node(self, accounting: Accounting = 'min'
                              ) -> dict[int, dict[str, int]]:
        """Return the amounts that the guest allocates from host NUMA nodes.

        :param accounting: bandwidth that Placement counts: the guarantee
            (``min``) or the cap (``max``).
        :returns: amounts in Placement, by guest NUMA node and resource class.
        """
        found: dict[int, dict[str, int]] = {}
        for name, demand in (
                (names.MEM_BW_PCT, self.get_bandwidth_by_node(accounting)),
                *((resource.name, resource.demand(self, accounting))
                  for resource in resources.BESIDE_BANDWIDTH.values())):
            for number, amount in demand.items():
                if amount:
                    found.setdefault(number, {})[name] = amount
        return dict(sorted(found.items()))

    def get_needed_capabilities(self) -> frozenset[str]:
        """Return the capabilities that a host needs to enforce this policy.

        Each capability, such as MEM_BW_MAX, has a trait in Placement.
        """
        needed = {
            resource.capability
            for resource in resources.BESIDE_BANDWIDTH.values()
            if resource.capability and any(resource.demand(self, 'min'
                                                           ).values())}
        for node in itertools.chain(*(one.nodes for one in self.groups)):
            if node.minimum or node.burst:
                # Bursts of others must not take what is guaranteed.
                needed.add('MEM_BW_MIN')
            if node.is_capped:
                needed.add('MEM_BW_MAX')
                needed.add('MEM_BW_HARDLIMIT' if node.hardlimit
                           else 'MEM_BW_SOFTLIMIT')
            if node.priority is not None:
                needed.add('MEM_BW_PRIORITY')
        if self.monitor:
            needed.add('MEM_BW_MONITOR')
        if self.device_numa == 'required':
            needed.add('DEVICE_NUMA')
        if self.auto_nodes:
            needed.add('NUMA_AUTO')
        return frozenset(needed).union(
            *(part.get_needed_capabilities() for part in self.parts))

    def describe_bandwidth_for_guest(self) -> dict[str, object]:
        """Return the flavor's bandwidth and L3 values that the guest can read.

        ``nodes`` has those of each guest NUMA node by key, and ``classes``
        those of each vCPU class, if the guest has any.
        """
        found: dict[str, object] = {'nodes': _describe_nodes(self.nodes)}
        if self.classes:
            found['classes'] = self.describe_classes_for_guest()
        return found

    def describe_classes_for_guest(self) -> list[dict[str, object]]:
        """Return name, vCPUs and values by guest node of each vCPU class."""
        return [{'name': one.name,
                 'vcpus': cpulist.render_cpu_list(one.current or ()),
                 'nodes': _describe_nodes(one.nodes)}
                for one in self.classes]


def _describe_nodes(nodes: Iterable[NodePolicy]) -> list[dict[str, object]]:
    return [{f'mem_bw_{name}': value for name, value in node.as_dict().items()}
            for node in nodes]


def compute_digest(parts: Iterable[str]) -> str:
    """Return one SHA-256 digest for several texts, as 16 hexadecimal digits.
    """
    return hashlib.sha256(';'.join(parts).encode()).hexdigest()[:16]


def has_ghsched_keys(extra_specs: Mapping[str, str]) -> bool:
    """Whether a flavor has any extra spec of ghsched, valid or not."""
    return any(key.startswith(_PREFIX) for key in extra_specs)


def select_ghsched_keys(extra_specs: Mapping[str, str]) -> dict[str, str]:
    """Return the extra specs of ghsched in a flavor, sorted by name."""
    return {key: value for key, value in sorted(extra_specs.items())
            if key.startswith(_PREFIX)}


def check_extra_spec(extra_spec: str, text: object) -> None:
    """Refuse a ghsched extra spec with an unknown name or an invalid value.

    :param text: value of the extra spec.
    :raises PolicyError: when the name is unknown or the value is invalid.
    """
    key, _ = split_extra_spec(extra_spec)
    parse_extra_spec_value(extra_spec, key, str(text))


def refuse_unfixed_node_count(extra_specs: Mapping[str, str]) -> None:
    """Refuse a flavor that does not fix its number of guest NUMA nodes.

    Otherwise a tenant could set the number by the image property
    ``hw_numa_nodes``, and multiply what the flavor gives each node.

    :param extra_specs: extra specs of the flavor, without image properties.
    :raises PolicyError: when the number is not fixed or too large.
    """
    for extra_spec in sorted(extra_specs):
        namespace, _, rest = extra_spec.partition(':')
        key = BY_NAME.get(rest.partition('.')[0])
        if namespace == keys.NAMESPACE and key is not None and key.per_node:
            if keys.NUMA_NODES not in extra_specs and (
                    not auto_nodes.is_node_count_undecided(extra_specs)):
                raise PolicyError(extra_spec, NEEDS_TOPOLOGY)
            get_guest_node_count(extra_specs)


def get_guest_node_count(extra_specs: Mapping[str, str],
                         default: int = 0) -> int:
    """Return the number of guest NUMA nodes that a flavor requests.

    If the scheduler chooses the number, return the largest that it may choose.

    :param default: result for a flavor with no number or an invalid one.
    :raises PolicyError: if the number exceeds the limit of NUMA nodes of a
        guest.
    """
    if auto_nodes.is_node_count_undecided(extra_specs):
        for key in (keys.NUMA, keys.NUMA_MAX):
            if key.extra_spec in extra_specs:
                check_extra_spec(key.extra_spec, extra_specs[key.extra_spec])
        return auto_nodes.get_max_node_count(extra_specs)
    text = str(extra_specs.get(keys.NUMA_NODES, '')).strip()
    if not _DIGITS.fullmatch(text):
        return default
    short = _SHORT_NUMBER.fullmatch(text)
    if short is None or int(short[1]) > _MAX_GUEST_NODES:
        raise PolicyError(keys.NUMA_NODES, f'a guest has at most '
                                           f'{_MAX_GUEST_NODES} NUMA nodes')
    return int(short[1])


def check_extra_spec_names(extra_specs: Iterable[str]) -> None:
    """Refuse misspelled names of ghsched and its resource classes.

    They are misspelled, or request a resource class of ghsched by hand.

    :param extra_specs: names of the extra specs.
    :raises PolicyError: for the first of them; the error suggests the right
        name.
    """
    given = list(extra_specs)
    error = next(itertools.chain(key_names.find_misspelt_keys(given),
                                 find_requested_classes(given)), None)
    if error is not None:
        raise error


def check_flavor(extra_specs: Mapping[str, str],
                 changed_keys: Iterable[str],
                 vcpus: int = 0) -> GuestPolicy | None:
    """Validate the ghsched extra specs of a flavor; return its guest policy.

    The guest policy is all that ghsched gives guests of the flavor, such as
    memory bandwidth and VFs.

    :param changed_keys: names of the extra specs that are new or changed.
    :param vcpus: number of vCPUs; 0 if unknown.
    :returns: None if the flavor has no ghsched extra specs, or if neither one
        of them nor hw:numa_nodes is new or changed. Also None if the flavor's
        hw:numa_nodes is not a number.
    :raises PolicyError: for the first extra spec that is invalid.
    """
    check_extra_spec_names(changed_keys)
    if not any(extra_spec.startswith(_PREFIX)
               or extra_spec == keys.NUMA_NODES
               for extra_spec in changed_keys):
        return None
    if not any(extra_spec.startswith(_PREFIX) for extra_spec in extra_specs):
        return None
    refuse_unfixed_node_count(extra_specs)
    auto_nodes.refuse_auto_with_fixed_node_count(extra_specs)
    has_node_count = keys.NUMA_NODES in extra_specs
    nodes = get_guest_node_count(extra_specs, -1 if has_node_count else 1)
    return parse_policy(extra_specs, nodes, vcpus) if nodes >= 0 else None


def parse_policy(extra_specs: Mapping[str, str],
                 guest_nodes: int, vcpus: int = 0) -> GuestPolicy | None:
    """Parse the guest policy from the ghsched extra specs of a flavor.

    The guest policy is all that ghsched gives guests of the flavor, such as
    memory bandwidth and VFs.

    :param extra_specs: all extra specs of the flavor.
    :param guest_nodes: number of guest NUMA nodes; 0 without NUMA topology.
    :param vcpus: number of vCPUs; 0 if unknown. Needed only for vCPU classes
        and for the amounts in Placement.
    :returns: None if the flavor has no ghsched extra specs.
    :raises PolicyError: for an unknown key, an invalid value, a guest node
        that the flavor does not have, or keys that contradict each other.
    """
    ours = select_ghsched_keys(extra_specs)
    if not ours:
        return None
    values = _parse_extra_spec_values(ours, guest_nodes)
    general, special = values.general, values.special
    parts = tuple(_pop_parts(general, extra_specs, guest_nodes, vcpus))
    monitor = bool(general.pop(keys.MONITOR.name, False))
    device_numa = str(general.pop(keys.DEVICE_NUMA.name, 'none'))
    if device_numa == 'required' and not guest_nodes:
        raise PolicyError(keys.DEVICE_NUMA.extra_spec, NEEDS_TOPOLOGY)
    locality = _parse_locality(general, device_numa)
    vfs = _pop_vfs_by_guest_node(general, special, guest_nodes)
    resources.refuse_unread_keys(general.keys() | {
        name for name, _node in special})
    classes, nodes = _make_classes_and_nodes(
        values, extra_specs, guest_nodes, vcpus)
    if any(key.extra_spec in ours for key in auto_nodes.KEYS):
        auto_nodes.refuse_auto_conflicts(extra_specs)
    return GuestPolicy(
        nodes, monitor, device_numa, vfs, locality,
        rt_permille=next(filter(None, (part.get_cpu_permille_by_node()
                                       for part in parts)), ()),
        auto_nodes=keys.NUMA.extra_spec in ours, parts=parts, classes=classes)


def _make_classes_and_nodes(
        values: '_Values', extra_specs: Mapping[str, str], guest_nodes: int,
        vcpus: int
) -> tuple[tuple[VcpuClass, ...], tuple[NodePolicy, ...]]:
    """Return the vCPU classes of a guest and the policy of each guest node.

    :param values: values of the keys of guest NUMA nodes.
    """
    general, special, of_class, vcpus_by_class = values
    named = tuple(vcpus_by_class.items())
    if of_class:
        vcpu_classes.refuse_unknown_classes(
            ((f'{BY_NAME[key].extra_spec}.{name}', name)
             for name, those in of_class.items() for key in those), named)
    if not named:
        return (), tuple(
            _make_node_policy(general, special, node) for node in range(
                guest_nodes if general or special else 0))
    on_node = vcpu_classes.list_vcpus_by_node(guest_nodes, vcpus, extra_specs)
    classes = _make_classes(named, values, guest_nodes, on_node)
    return classes, vcpu_classes.add_up_classes(classes, on_node)


def _make_classes(named: vcpu_classes.NamedVcpus, values: '_Values',
                  guest_nodes: int, on_node: Sequence[frozenset[int]]
                  ) -> tuple[VcpuClass, ...]:
    """Return the vCPU classes of a guest.

    :param named: names and vCPUs of the classes in the flavor.
    :param values: values of the keys of guest NUMA nodes.
    :param on_node: vCPUs of each guest NUMA node; empty if unknown.
    :raises PolicyError: for a vCPU that the guest does not have, or keys that
        cannot be combined with classes.
    """
    general, special, of_class, _vcpus = values
    for key in (*general, *(key for key, _node in special)):
        if not BY_NAME[key].per_class:
            raise PolicyError(
                BY_NAME[key].extra_spec,
                f'cannot be combined with {keys.VCPU_CLASSES.extra_spec}')
    given = of_class.keys() | (
        {vcpu_classes.DEFAULT} if general or special else set())
    return vcpu_classes.make_classes(
        named, given, guest_nodes, on_node,
        lambda name, node: _make_node_policy(
            of_class[name], {}, node, f'.{name}') if name in of_class
        else _make_node_policy(general, special, node))


def _pop_parts(general: dict[str, Value], extra_specs: Mapping[str, str],
               guest_nodes: int, vcpus: int) -> Iterator[PolicyPart]:
    """Yield the parts of a policy that features parse from a flavor.

    The values of the features' keys are removed.

    :param general: parsed values by key, for all guest nodes.
    """
    for feature in declared.FEATURES:
        if feature.parse is None:
            continue
        values = {key.name: general.pop(key.name) for key in feature.keys
                  if key.name in general}
        part = feature.parse(FlavorValues(values, extra_specs, guest_nodes,
                                          vcpus))
        if part != feature.part():
            yield part


class _Values(NamedTuple):
    """Values of extra specs, by what they are for.

    :param general: values by key, for all guest NUMA nodes.
    :param special: values by key and guest NUMA node.
    :param of_class: values by vCPU class and key.
    :param vcpus_by_class: vCPUs by name of the class, in the flavor's order.
    """

    general: dict[str, Value]
    special: dict[tuple[str, int], Value]
    of_class: dict[str, dict[str, Value]]
    vcpus_by_class: dict[str, frozenset[int]]


def _parse_extra_spec_values(ours: Mapping[str, str], guest_nodes: int
                             ) -> _Values:
    """Parse the values of ghsched extra specs.

    An extra spec is for all guest NUMA nodes, for a single one, such as
    ``ghsched:mem_bw_min.1``, or for a vCPU class, such as
    ``ghsched:mem_bw_min.latency``.

    :param ours: text values of ghsched's extra specs, by name.
    :param guest_nodes: number of guest NUMA nodes.
    """
    found = _Values({}, {}, {}, {})
    for extra_spec, (key, node) in split_extra_spec_names(
            ours, guest_nodes).items():
        value = parse_extra_spec_value(extra_spec, key, ours[extra_spec])
        if key == keys.VCPU_CLASSES:
            found.vcpus_by_class.update(cast(_NamedVcpus, value))
        elif node is None and key not in auto_nodes.KEYS:
            found.general[key.name] = value
        elif isinstance(node, str):
            found.of_class.setdefault(node, {})[key.name] = value
        elif node is not None:
            found.special[key.name, node] = value
    return found


def _parse_locality(general: dict[str, Value], device_numa: str) -> str:
    required = device_numa == 'required'
    locality = str(general.pop(keys.VFS_LOCALITY.name,
                               'node' if required else 'any'))
    if required and locality != 'node':
        raise PolicyError(
            keys.VFS_LOCALITY.extra_spec,
            f'{locality} cannot be combined with '
            f'{keys.DEVICE_NUMA.extra_spec}='
            'required, which needs each VF on a host NUMA node of the guest')
    return locality


def _pop_vfs_by_guest_node(general: dict[str, Value],
                           special: dict[tuple[str, int], Value],
                           guest_nodes: int) -> tuple[Vfs, ...]:
    """Return the VFs that a flavor requests for each guest NUMA node.

    The values for VFs are removed from the arguments.

    :param general: parsed values by key, for all guest nodes.
    :param special: parsed values by key and guest node.
    """
    by_node: dict[int, Devices] = {}
    for name, node in list(special):
        if name == keys.VFS.name:
            by_node[node] = cast(Devices, special.pop((name, node)))
    others = [node for node in range(guest_nodes) if node not in by_node]
    for_all = cast(Devices, general.pop(keys.VFS.name, ()))
    if for_all and not others:
        raise PolicyError(keys.VFS.extra_spec, 'every guest NUMA node has its '
                                               'own value, so that this one '
                                               'has no effect')
    for position, node in enumerate(others):
        by_node[node] = tuple(
            (alias, _get_even_part(count, position, len(others)))
            for alias, count in for_all)
    return tuple(Vfs(node, alias, count)
                 for node, devices in sorted(by_node.items())
                 for alias, count in devices if count)


def _get_even_part(count: int, position: int, parts: int) -> int:
    """Return one of the parts into which a number is divided evenly.

    If the number is not a multiple of the parts, the first parts are larger by
    one.

    :param count: number to divide.
    :param position: index of the part.
    :param parts: number of parts.
    """
    whole, rest = divmod(count, parts)
    return whole + (1 if position < rest else 0)


def _make_node_policy(general: Mapping[str, Value],
                      special: Mapping[tuple[str, int], Value],
                      node: int, suffix: str = '') -> NodePolicy:
    """Return the bandwidth and L3 ways of a guest NUMA node.

    :param general: values by key such as ``mem_bw_min``, for all guest nodes.
    :param special: values by key and guest node.
    :param suffix: for the keys of a vCPU class, which is a set of vCPUs with
        limits of its own, ``.`` and the name of the class; for errors only.
    :raises PolicyError: if values contradict each other.
    """
    def get(key: keys.Key, default: Value | None) -> Any:
        return special.get((key.name, node), general.get(key.name, default))

    minimum, maximum = get(keys.MEM_BW_MIN, 0), get(keys.MEM_BW_MAX, 100)
    if minimum > maximum:
        key = (keys.MEM_BW_MIN.get_node_extra_spec(node)
               if (keys.MEM_BW_MIN.name, node) in special
               else keys.MEM_BW_MIN.extra_spec + suffix)
        raise PolicyError(
            key, f'{minimum} is more than {keys.MEM_BW_MAX.extra_spec}'
                 f'{suffix}, which is {maximum} for guest NUMA node {node}')
    burst = get(keys.MEM_BW_BURST, 0)
    if minimum + burst > maximum:
        raise PolicyError(
            keys.MEM_BW_BURST.extra_spec,
            f'{burst} is, with the {minimum} of {keys.MEM_BW_MIN.extra_spec}, '
            f'more than {keys.MEM_BW_MAX.extra_spec}, which is {maximum} for '
            f'guest NUMA node {node}')
    return NodePolicy(
        minimum=minimum, maximum=maximum, burst=burst,
        hardlimit=bool(get(keys.MEM_BW_HARDLIMIT, True)),
        priority=get(keys.MEM_BW_PRIORITY, None),
        l3_ways=get(keys.L3_WAYS, 0))

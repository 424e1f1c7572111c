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


"""The allocation candidates query that nova-scheduler sends (pure).

A copy of what nova.scheduler.utils.ResourceRequest does, for the
dry run that must work without Nova. It covers VCPU or PCPU, MEMORY_MB,
DISK_GB, the flavor's own ``resources*:`` and ``trait*:`` and everything of
ghsched; :func:`list_ignored_extra_specs` names what it leaves out. A test
compares it with what a real nova-scheduler sends.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import re

import os_resource_classes as orc
import os_traits

from ghsched_placement.query import request as requests

#: [scheduler]max_placement_results as Nova ships it.
LIMIT = 1000

_GRANULAR = re.compile(r'(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)')

#: Extra specs outside resources: and trait: that put something into the
#: query which is not told here.
_NOT_SHOWN = re.compile(
    r'hw:(mem_encryption.*|pmem|tpm_.*|maxphysaddr_.*|'
    r'ephemeral_encryption.*|virtio_packed_ring|sound_model|'
    r'pci_numa_affinity_policy)|os:secure_boot|accel:device_profile|'
    r'pci_passthrough:alias')


@dataclass(frozen=True)
class FlavorAmounts:
    """Amounts that a flavor requests from Placement.

    :param vcpus: number of vCPUs that share host CPUs.
    :param pcpus: number of dedicated host CPUs, including the one for isolated
        emulator threads.
    :param memory_mb: memory in MiB.
    :param disk_gb: root and ephemeral disks together in GiB; the root disk
        counts 0 for a server that boots from a volume.
    :param swap_mb: swap disk in MiB; Nova rounds it up to GiB.
    """

    vcpus: int
    pcpus: int
    memory_mb: int
    disk_gb: int = 0
    swap_mb: int = 0
    extra_specs: Mapping[str, str] = field(default_factory=dict)

    @property
    def total_disk_gb(self) -> int:
        return self.disk_gb - (-self.swap_mb // 1024)


@dataclass
class _Group:
    """Request group of an allocation candidates query that is being built.

    :ivar resources: amounts by resource class.
    :ivar required: traits that the provider must have.
    :ivar forbidden: traits that the provider must not have.
    :ivar naming: whether this is a group of ghsched that requests no resources
        and only selects a provider. Such a group has no ``resources``
        parameter, while Nova's own groups have an empty one.
    """

    resources: dict[str, int] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    forbidden: set[str] = field(default_factory=set)
    naming: bool = False

    def yield_parameters(self, suffix: str) -> Iterator[tuple[str, str]]:
        amounts = sorted(f'{name}:{amount}'
                         for name, amount in self.resources.items() if amount)
        traits = sorted(self.required) + _forbid_traits(self.forbidden)
        if amounts or (traits and not self.naming):
            yield f'resources{suffix}', ','.join(amounts)
        if traits:
            yield f'required{suffix}', ','.join(traits)


def make_candidates_query(flavor: FlavorAmounts, request: requests.Request,
                          require_owner: bool = True) -> list[tuple[str, str]]:
    """Return nova-scheduler's allocation candidates query for a flavor.

    This is the query of a cloud with Nova's default settings. It has no target
    host, availability zone, ports or image properties, which would add
    parameters.

    :param request: request groups and traits that ghsched adds.
    :param require_owner: whether nova-scheduler requires the trait OWNER_NOVA,
        as Nova 34 does if no compute service is older
        (``nova.scheduler.request_filter.owner_nova_filter``).
    """
    groups = _make_flavor_groups(flavor)
    group_policy = _choose_group_policy(flavor, groups, request)
    groups.setdefault('', _Group()).resources.update(request.resources)
    for group in request.groups:
        groups[group.suffix] = _Group(dict(group.resources),
                                      set(group.required),
                                      naming=not group.resources)
    root = sorted(request.root_required
                  | ({os_traits.OWNER_NOVA} if require_owner else set()))
    root += _forbid_traits({os_traits.COMPUTE_STATUS_DISABLED})
    found = [('limit', str(LIMIT)), ('root_required', ','.join(root))]
    if group_policy is not None:
        found.append(('group_policy', group_policy))
    found.extend(('same_subtree', ','.join(sorted(suffixes)))
                 for suffixes in request.same_subtree)
    for suffix, ready in groups.items():
        found.extend(ready.yield_parameters(suffix))
    return sorted(found)


def make_shared_cpu_flavor(flavor: FlavorAmounts) -> FlavorAmounts | None:
    """Return the flavor of Nova's second query, with VCPU in place of PCPU.

    nova-scheduler sends this query as well for a flavor with
    ``hw:cpu_policy=dedicated``, unless
    [workarounds]disable_fallback_pcpu_query is set, for hosts that report no
    PCPU: those without [compute]cpu_dedicated_set. It leaves out the host CPU
    of isolated emulator threads and the trait of ``hw:cpu_thread_policy``.

    :returns: None if Nova would not send it, or send the same query again.
    """
    if not flavor.pcpus or flavor.vcpus or any(
            match and match[3] == orc.PCPU for match in map(
                _GRANULAR.fullmatch, flavor.extra_specs)):
        return None
    specs = {key: value for key, value in flavor.extra_specs.items()
             if key != 'hw:cpu_thread_policy'}
    isolated = specs.get('hw:emulator_threads_policy') == 'isolate'
    return replace(flavor, vcpus=flavor.pcpus - isolated, pcpus=0,
                   extra_specs=specs)


def list_ignored_extra_specs(extra_specs: Mapping[str, str]
                             ) -> tuple[str, ...]:
    """Return the extra specs that :func:`make_candidates_query` ignores.

    nova-scheduler adds further parameters to its query for them.
    """
    return tuple(sorted(filter(_NOT_SHOWN.fullmatch, extra_specs)))


def _forbid_traits(traits: set[str]) -> list[str]:
    return [f'!{trait}' for trait in sorted(traits)]


def _choose_group_policy(flavor: FlavorAmounts, groups: Mapping[str, _Group],
                         request: requests.Request) -> str | None:
    """Return the value of the query's parameter ``group_policy``.

    The flavor's own value is used if it is valid. Otherwise the value is
    ``isolate`` if each request group of ghsched needs a host NUMA node of its
    own and the flavor has no numbered group. It is ``none`` if there are
    several groups, at most one of them from the flavor.

    :param groups: request groups of the flavor.
    :param request: request groups and traits that ghsched adds.
    :returns: None if the query needs no such parameter.
    """
    asked = flavor.extra_specs.get('group_policy')
    if asked in ('none', 'isolate'):
        return asked
    # Nova counts the flavor's groups before it drops those that are empty.
    named = {match[2] for match in map(_GRANULAR.fullmatch,
                                       flavor.extra_specs)
             if match and match[2]}
    kept = sum(1 for suffix in groups if suffix)
    if request.is_isolated and not named:
        return 'isolate'
    if len(named) <= 1 and kept + len(request.groups) > 1:
        return 'none'
    return None


def _make_flavor_groups(flavor: FlavorAmounts) -> dict[str, _Group]:
    groups = {'': _Group()}
    for key, value in flavor.extra_specs.items():
        match = _GRANULAR.fullmatch(key)
        if match is None:
            continue
        group = groups.setdefault(match[2] or '', _Group())
        if match[1] == 'trait':
            _add_trait(group, match[3], value)
        else:
            _add_resource(group, match[3], value)
    _add_flavor_resources(flavor, groups)
    return {suffix: group for suffix, group in groups.items()
            if any(group.yield_parameters(suffix))}


def _add_trait(group: _Group, name: str, value: str) -> None:
    if value == 'required':
        group.required.add(name)
    elif value == 'forbidden':
        group.forbidden.add(name)


def _add_resource(group: _Group, name: str, value: str) -> None:
    """Add an amount that an extra spec requests to a request group.

    A malformed amount is ignored.

    :param group: request group to change.
    :param name: resource class.
    :param value: amount, as text.
    """
    known = name.startswith(orc.CUSTOM_NAMESPACE) or name in orc.STANDARDS
    if known and re.fullmatch('[0-9]{1,18}', value.strip()):
        group.resources[name] = int(value)


def _add_flavor_resources(flavor: FlavorAmounts,
                          groups: Mapping[str, _Group]) -> None:
    """Add the flavor's CPUs, memory and disk to the unnumbered request group.

    An amount that a ``resources:`` extra spec has set is not changed.
    """
    base = groups[''].resources
    if flavor.pcpus and not any(group.resources.get(orc.PCPU)
                                for group in groups.values()):
        base[orc.PCPU] = flavor.pcpus
        base[orc.VCPU] = flavor.vcpus
    given = {name for group in groups.values() for name in group.resources}
    if given.isdisjoint((orc.VCPU, orc.PCPU)):
        base[orc.VCPU] = flavor.vcpus
    if orc.MEMORY_MB not in given:
        base[orc.MEMORY_MB] = flavor.memory_mb
    if orc.DISK_GB not in given:
        base[orc.DISK_GB] = flavor.total_disk_gb
    threads = flavor.extra_specs.get('hw:cpu_thread_policy')
    if threads == 'require':
        groups[''].required.add(os_traits.HW_CPU_HYPERTHREADING)
    elif threads == 'isolate':
        groups[''].forbidden.add(os_traits.HW_CPU_HYPERTHREADING)

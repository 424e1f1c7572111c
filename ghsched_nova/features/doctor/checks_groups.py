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

"""Checks whether a compute host has free ids for groups of guests (pure)."""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
import re

from ghsched_nova.features.doctor.check import Check
from ghsched_nova.resctrl import group_ids
from ghsched_nova.resctrl import kernel_mode
from ghsched_nova.resctrl import naming

#: NVIDIA's JEP 106 code and its number of the processor.
_GRACE = 'jep106:036b:0241'


@dataclass(frozen=True)
class GroupFacts:
    """Ids and groups in the resctrl of a compute host.

    :param ids: ids that the kernel has.
    :param existing: groups that exist.
    :param reserved: ``[ghsched]reserved_control_groups``.
    :param has_default_cap: whether guests without a policy have a common
        control group.
    :param counters: number of free bandwidth counters by resctrl domain; empty
        if counters need not be assigned to groups.
    :param kernel: group to which the kernel's own work is bound; None if it is
        done in the group of each thread.
    :param wrong_unit: reason to doubt the unit of measured bandwidth; empty
        for none.
    """

    ids: group_ids.GroupIds
    existing: group_ids.ExistingGroups
    reserved: int = 0
    has_default_cap: bool = False
    counters: Mapping[int, int] = field(default_factory=dict)
    kernel: kernel_mode.KernelBinding | None = None
    wrong_unit: str = ''

    @property
    def free_control_groups(self) -> int:
        """Number of further guests that can get a control group."""
        return count_groups_left(
            self.ids, self.existing, self.reserved, self.has_default_cap)


def check_group_ids(facts: GroupFacts) -> Iterator[Check]:
    """Check that control groups, monitoring ids and counters are left."""
    others = len(facts.existing.foreign)
    text = (f'{facts.ids.closids - 1} groups beside that of the kernel; '
            f'others use {others}, guests '
            f'{len(facts.existing.control) - others}; left for guests: '
            f'{facts.free_control_groups}')
    if facts.free_control_groups:
        yield Check('control groups', 'ok', text)
    else:
        yield Check('control groups', 'warning', text,
                    'end what makes groups there (pqos, collectd, another '
                    'agent) and remove its groups, or remove guests')
    yield from _check_monitoring_ids(facts)
    if facts.kernel is not None:
        yield _make_kernel_warning(facts.kernel)
    if facts.wrong_unit:
        yield Check('measured bandwidth', 'warning', facts.wrong_unit,
                    'compare ghsched-top with a load that is known; the '
                    'kernel needs "arm_mpam: Apply T241-MPAM-6 to 63-bit '
                    'counters"')
    lacking = sorted(domain for domain, free in facts.counters.items()
                     if not free)
    if lacking:
        yield Check('bandwidth counters', 'warning',
                    'no counter is free in domains '
                    + ', '.join(map(str, lacking))
                    + ': further guests may not be measured there',
                    'remove groups of others, or their counters '
                    '(mbm_L3_assignments)')
    elif facts.counters:
        yield Check('bandwidth counters', 'ok',
                    f'free in each domain: {min(facts.counters.values())} or '
                    'more')


def _make_kernel_warning(bound: kernel_mode.KernelBinding) -> Check:
    """Return a warning that the kernel's work for guests is not limited.

    The guests' bandwidth caps and guarantees do not apply to this work.
    """
    group = (f'control group {bound.group.control}' if bound.group.control
             else 'default control group')
    return Check(
        'kernel work', 'warning',
        f'info/kernel_mode is {bound.mode}: what the kernel does for guests '
        f'(vhost, exits to KVM) is limited in the {group}, so caps and '
        'guarantees of guests do not hold it'
        + (', and their measured bandwidth lacks it'
           if bound.is_measured_apart else ''),
        'if this is not wanted: echo inherit_ctrl_and_mon > info/kernel_mode')


def _check_monitoring_ids(facts: GroupFacts) -> Iterator[Check]:
    """Check that a monitoring group can be created in the default group."""
    if not facts.ids.rmids:
        return
    if facts.ids.per_group:
        text = (f'each control group has {facts.ids.monitors_per_group} '
                'beside its own; of those of the default group, '
                f'{facts.existing.default_monitors} are in use')
    else:
        used = len(facts.existing.control) + facts.existing.monitors
        text = (f'{facts.ids.rmids - 1} beside that of the kernel, of which '
                f'{used} are in use')
    if facts.ids.is_monitor_free(facts.existing):
        yield Check('monitoring ids', 'ok', text)
    else:
        yield Check('monitoring ids', 'warning', text,
                    'end what measures each CPU or process there, and remove '
                    'its monitoring groups')


def explain_wrong_unit(soc_id: str, release: str) -> str:
    """Return the reason why measured bandwidth may be in a wrong unit.

    Counters of NVIDIA's Grace (T241) count requests of 64 bytes (erratum
    T241-MPAM-6). Linux 7.3 is the first that multiplies all of them
    ("arm_mpam: Apply T241-MPAM-6 to 63-bit counters").

    :param soc_id: text of sysfs on the processor.
    :param release: release of the running kernel.
    :returns: empty if the unit is not known to be wrong.
    """
    found = re.match(r'([0-9]{1,3})\.([0-9]{1,3})', release)
    if soc_id.strip() != _GRACE or not found or (
            int(found[1]), int(found[2])) >= (7, 3):
        return ''
    return (f'on Grace, kernel {release} may show a 64th of the measured '
            'bandwidth (erratum T241-MPAM-6)')


def count_groups_left(ids: group_ids.GroupIds,
                      existing: group_ids.ExistingGroups, reserved: int,
                      has_default_cap: bool) -> int:
    """Return how many further guests can get a control group on a host.

    :param ids: ids that the host's kernel has.
    :param existing: groups that exist now.
    :param reserved: number of control groups reserved for other software; its
        existing groups count toward them.
    :param has_default_cap: whether guests without a policy have a common
        control group.
    """
    missing = max(0, reserved - len(existing.foreign)) + (
        has_default_cap and naming.DEFAULT not in existing.control)
    return ids.count_free_control_groups(
        len(existing.control) + missing, existing.monitors)

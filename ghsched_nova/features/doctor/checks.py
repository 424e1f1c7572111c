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

"""Checks whether a node is set up for ghsched (pure).

``ghsched-status doctor`` and ``ghsched-status upgrade check`` read a node
(:mod:`ghsched_nova.features.doctor.doctor`) and judge it here.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field

from ghsched_nova.cmd.service_program import COMPUTE
from ghsched_nova.cmd.service_program import DRIVER
from ghsched_nova.cmd.service_program import NOVA_COMPUTE
from ghsched_nova.cmd.service_program import NOVA_SCHEDULER
from ghsched_nova.cmd.service_program import SCHEDULER
from ghsched_nova.features.doctor import check
from ghsched_nova.features.doctor import checks_groups
from ghsched_nova.features.doctor import preconditions
from ghsched_nova.resctrl import detection
from ghsched_placement.base import decimals

FILTER = 'GhschedNUMATopologyFilter'
FILTERS = 'ghsched_nova.scheduler.filters.' + FILTER
#: Programs of ghsched, and the programs of Nova that they replace.
PROGRAMS = (SCHEDULER, COMPUTE, NOVA_SCHEDULER, NOVA_COMPUTE)

#: Oldest and newest major release of Nova that this release supports.
NOVA = (31, 34)
#: Oldest supported major release of Placement, released together with the
#: oldest supported Nova.
PLACEMENT = 13

Check = check.Check
Status = check.Status


@dataclass(frozen=True)
class MachineFacts:
    """Configuration, programs and resctrl features of a node.

    :param nova: release of Nova, empty without one.
    :param placement: release of Placement, likewise.
    :param files: configuration files that were read.
    :param driver: ``[DEFAULT]compute_driver``.
    :param available: ``[filter_scheduler]available_filters``.
    :param enabled: ``[filter_scheduler]enabled_filters``.
    :param programs: names of :data:`PROGRAMS` that run.
    :param resctrl: directory on which resctrl should be mounted.
    :param mounted: whether resctrl is mounted there.
    :param mode: mode of the directory; None if it cannot be read.
    :param dialect: dialect of the kernel's resctrl; empty if unknown.
    :param unavailable: reason why bandwidth cannot be controlled.
    :param missing: preconditions of resctrl that the host does not meet.
    :param notes: sentences on controls of the kernel that ghsched does not
        manage.
    :param overlaps: sentences, one for each control group of other software
        that uses L3 cache ways reserved for a guest.
    :param groups: control groups and ids; None if resctrl is unavailable.
    :param slows_siblings: whether a cap also slows the other threads of a
        core.
    :param bandwidth: ``[ghsched]node_bandwidth``.
    :param invalid: error in ``[ghsched]``; empty if there is none.
    :param doubtful: sentences on options of ``[ghsched]`` that are unknown, or
        that the host cannot follow.
    :param helper: whether privsep-helper is found.
    :param own_file: the placement.conf of this node, empty without one.
    :param attempts: its ``[placement]allocation_conflict_retry_count``; None
        where it cannot be read.
    """

    nova: str = ''
    placement: str = ''
    files: tuple[str, ...] = ()
    driver: str = ''
    available: tuple[str, ...] = ()
    enabled: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    resctrl: str = '/sys/fs/resctrl'
    mounted: bool = False
    mode: int | None = None
    dialect: str = ''
    unavailable: str = ''
    missing: tuple[preconditions.UnmetPrecondition, ...] = ()
    notes: tuple[str, ...] = ()
    overlaps: tuple[str, ...] = ()
    groups: checks_groups.GroupFacts | None = None
    slows_siblings: bool = False
    bandwidth: Mapping[int, int] = field(default_factory=dict)
    invalid: str = ''
    doubtful: tuple[str, ...] = ()
    helper: bool = False
    own_file: str = ''
    attempts: int | None = None

    @property
    def is_compute_host(self) -> bool:
        """Whether nova-compute is configured or running on this node."""
        return bool(self.driver or (self.files and COMPUTE in self.programs))

    @property
    def is_scheduler_node(self) -> bool:
        """Whether nova-scheduler is configured or running on this node."""
        return bool(self.enabled or self.available
                    or self.running_scheduler_programs)

    @property
    def running_scheduler_programs(self) -> set[str]:
        """Names of the nova-scheduler programs that run on this node.

        These are Nova's program, ghsched's program, or both.
        """
        return {NOVA_SCHEDULER, SCHEDULER} & set(self.programs)

    @property
    def running_compute_programs(self) -> set[str]:
        """Names of the nova-compute programs that run on this node.

        These are Nova's program, ghsched's program, or both.
        """
        return {NOVA_COMPUTE, COMPUTE} & set(self.programs)


def run_node_checks(facts: MachineFacts) -> tuple[Check, ...]:
    """Run all checks of ``ghsched-status doctor``; return their results.

    The results are in the order in which problems should be fixed.

    :param facts: configuration, programs and resctrl features of the node.
    """
    return (
        *check_releases_and_options(facts),
        *check_placement_retries(facts),
        *check_compute_host(facts),
        *check_scheduler_node(facts),
    )


def has_failed_check(checks: Iterable[Check]) -> bool:
    """Whether any check of a node has the status ``error``."""
    return any(check.status == 'error' for check in checks)


def check_releases_and_options(facts: MachineFacts) -> Iterator[Check]:
    """Check that ghsched supports this node's Nova and Placement releases.

    Also check that nova.conf was found and that its ``[ghsched]`` options are
    valid.
    """
    yield _check_package_release('nova', facts.nova, *NOVA)
    yield _check_package_release('placement', facts.placement, PLACEMENT, None)
    if facts.files:
        yield Check('configuration', 'ok', 'read ' + ', '.join(facts.files))
    else:
        yield Check('configuration', 'warning', 'no nova.conf was found',
                    'name it with --config-file')
    if facts.invalid:
        yield Check('options', 'error', facts.invalid,
                    'correct the section [ghsched] of nova.conf')
    if facts.doubtful:
        yield Check('option values', 'warning', '; '.join(facts.doubtful),
                    'correct the section [ghsched] of nova.conf')


def _check_package_release(
    name: str, release: str, first: int, last: int | None
) -> Check:
    """Check that ghsched supports the installed release of a package.

    Warn if the major release is newer than the last tested one.

    :param first: oldest supported major release.
    :param last: newest tested major release; None for any.
    """
    title = f'{name} release'
    if not release:
        return Check(title, 'skipped', f'{name} is not installed here')
    major = decimals.parse_decimal(release.partition('.')[0])
    if major is None:
        return Check(title, 'warning', f'{release} is not a release number')
    if major < first:
        return Check(title, 'error', f'{release} is too old',
                     f'ghsched needs {first} or later')
    if last is not None and major > last:
        return Check(title, 'warning', f'{release} is later than {last}, '
                     'the last tested release',
                     'check for a later release of ghsched')
    return Check(title, 'ok', release)


def check_placement_retries(facts: MachineFacts) -> Iterator[Check]:
    """Warn if Placement itself retries allocation writes after a conflict.

    Such a retry can allocate more than the capacity of an inventory.
    """
    title = 'placement retries'
    if not facts.own_file:
        yield Check(title, 'skipped', 'no placement.conf was found or named')
    elif facts.attempts is None:
        yield Check(title, 'warning', f'{facts.own_file} cannot be read',
                    'run this as a user who may read it')
    elif facts.attempts > 1:
        yield Check(title, 'warning', 'allocation_conflict_retry_count is '
                    f'{facts.attempts}: allocations written at the same time '
                    'may exceed the capacity', 'set [placement]'
                    f'allocation_conflict_retry_count = 1 in {facts.own_file}')
    else:
        yield Check(title, 'ok', 'Placement makes one attempt')


def check_compute_host(facts: MachineFacts) -> Iterator[Check]:
    """Check the configuration of a node that runs nova-compute.

    The driver, the running program, resctrl, the bandwidth of NUMA nodes and
    the installation of privsep-helper are checked.
    """
    if not facts.is_compute_host:
        yield Check('compute', 'skipped', 'no [DEFAULT]compute_driver is set, '
                    'so this is no compute host')
        return
    yield _check_compute_driver(facts)
    yield _check_compute_program(facts)
    yield from _check_resctrl_mount(facts)
    if facts.bandwidth:
        yield Check('node_bandwidth', 'ok', ', '.join(
            f'{node}: {speed} MB/s' for node, speed
            in sorted(facts.bandwidth.items())))
    else:
        yield Check('node_bandwidth', 'warning', 'the bandwidth of the NUMA '
                    'nodes is unknown, so usage is not shown in percent',
                    'set [ghsched]node_bandwidth')
    if facts.helper:
        yield Check('privsep', 'ok', 'privsep-helper is installed')
    else:
        yield Check('privsep', 'error', 'privsep-helper is not found',
                    'install oslo.privsep where nova-compute finds it')


def _check_compute_driver(facts: MachineFacts) -> Check:
    """Check that ``[DEFAULT]compute_driver`` is ghsched's driver."""
    if facts.driver != DRIVER:
        return Check('driver', 'error',
                     f'compute_driver is {facts.driver or "not set"}',
                     f'set [DEFAULT]compute_driver = {DRIVER}')
    return Check('driver', 'ok', facts.driver)


def _check_compute_program(facts: MachineFacts) -> Check:
    """Check that the running nova-compute program suits the configured driver.

    ghsched's driver works only in ghsched's own nova-compute program.
    """
    title = 'compute program'
    if not facts.running_compute_programs:
        return Check(title, 'warning', 'no nova-compute runs here, but '
                     f'compute_driver is set in {", ".join(facts.files)}',
                     f'start {COMPUTE}, and see its log')
    if (facts.driver == DRIVER
            and NOVA_COMPUTE in facts.running_compute_programs):
        return Check(title, 'error', f'{NOVA_COMPUTE} runs, which cannot load '
                     + DRIVER, f'start {COMPUTE}')
    if facts.driver != DRIVER and COMPUTE in facts.running_compute_programs:
        return Check(title, 'error', f'{COMPUTE} runs, which starts with no '
                     f'other driver than {DRIVER}',
                     f'set compute_driver = {DRIVER}, or start '
                     + NOVA_COMPUTE)
    return Check(title, 'ok', ', '.join(facts.running_compute_programs))


def _check_resctrl_mount(facts: MachineFacts) -> Iterator[Check]:
    """Check that resctrl is mounted, supported and not world-accessible."""
    # A host without control of bandwidth may have other controls.
    known = {'mount', 'control'} if facts.dialect else {'mount'}
    yield from (Check(f'resctrl: {one.name}', 'error', one.text, one.remedy)
                for one in facts.missing if one.name not in known)
    if not facts.mounted:
        yield Check('resctrl', 'error',
                    f'it is not mounted at {facts.resctrl}',
                    f'mount -t resctrl resctrl {facts.resctrl}, if the '
                    'kernel has it')
        return
    yield Check('resctrl', 'ok', f'mounted at {facts.resctrl}')
    if facts.mode is not None and facts.mode & 0o007:
        yield Check('resctrl mode', 'warning', f'{facts.mode:04o}: any local '
                    'user can hold its lock, and so keep guests from '
                    'starting', f'chmod 0750 {facts.resctrl}')
    elif facts.mode is not None:
        yield Check('resctrl mode', 'ok', f'{facts.mode:04o}')
    if facts.dialect:
        yield Check('dialect', 'ok', facts.dialect)
    else:
        yield Check('dialect', 'error', facts.unavailable,
                    'see the page on control groups in the manual')
    if facts.groups:
        yield from checks_groups.check_group_ids(facts.groups)
    if facts.slows_siblings:
        yield Check('thread throttling', 'ok', detection.THREAD_NOTE,
                    'give guests with ghsched:mem_bw_max whole cores '
                    '(hw:cpu_thread_policy=isolate)')
    if facts.notes:
        yield Check('controls', 'warning', '; '.join(facts.notes),
                    'check for a later release of ghsched; reset those '
                    'that limit guests')
    if facts.overlaps:
        yield Check('L3 ways', 'warning', '; '.join(facts.overlaps),
                    'give these groups other ways (their line L3), or remove '
                    'them')


def check_scheduler_node(facts: MachineFacts) -> Iterator[Check]:
    """Check the filters and the running program of a nova-scheduler node."""
    if not facts.is_scheduler_node:
        yield Check('scheduler', 'skipped', 'no filters are set and no '
                    'nova-scheduler runs here')
        return
    yield _check_scheduler_filters(facts)
    if not facts.running_scheduler_programs:
        yield Check('scheduler program', 'skipped',
                    'no nova-scheduler runs here')
    elif facts.running_scheduler_programs != {SCHEDULER}:
        yield Check('scheduler program', 'warning', "Nova's own "
                    'nova-scheduler runs, so refusals have no reasons, and '
                    'guests cannot share control groups',
                    f'start {SCHEDULER}')
    else:
        yield Check('scheduler program', 'ok', SCHEDULER)


def _check_scheduler_filters(facts: MachineFacts) -> Check:
    """Check that nova-scheduler is configured with ghsched's filters."""
    if not facts.available and not facts.enabled:
        # Such as nova-cpu.conf of devstack, beside nova.conf of the scheduler.
        return Check('filter', 'warning', 'nova-scheduler runs here, and no '
                     'file that was read sets filters', 'name the files of '
                     'nova-scheduler with --config-file')
    if FILTERS not in facts.available:
        return Check('filter', 'error', f'{FILTER} is not an available '
                     'filter', 'add [filter_scheduler]available_filters = '
                     + FILTERS)
    if FILTER not in facts.enabled:
        return Check('filter', 'error', f'{FILTER} is not enabled',
                     f'end [filter_scheduler]enabled_filters with {FILTER}')
    if facts.enabled[-1] != FILTER:
        return Check('filter', 'error',
                     f'{facts.enabled[-1]} comes after {FILTER}',
                     f'end [filter_scheduler]enabled_filters with {FILTER}')
    if 'NUMATopologyFilter' in facts.enabled:
        return Check('filter', 'error', 'NUMATopologyFilter is enabled '
                     f'in addition to {FILTER}', 'remove NUMATopologyFilter, '
                     f'which {FILTER} replaces')
    return Check('filter', 'ok', 'enabled, and the last one')

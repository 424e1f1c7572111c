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

"""Enforces the policies of a host's running guests in resctrl.

Applies :mod:`ghsched_nova.resctrl.resolve` and
:mod:`ghsched_nova.resctrl.reconcile` to the host. Uses no Nova object.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import replace
import logging
import os
from pathlib import Path
import threading
from typing import Any

from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.host import domain_xml
from ghsched_nova.host import host_facts
from ghsched_nova.host import passthrough
from ghsched_nova.host import readings
from ghsched_nova.host import report_log
from ghsched_nova.host import root_calls
from ghsched_nova.resctrl.cache_facts import CacheWays
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import group_ids
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import reconcile as reconciling
from ghsched_nova.resctrl import resctrl_host
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.providers.host_description import HostDescription

LOG = logging.getLogger(__name__)


def _list_foreign_groups(root: Path, names: frozenset[str],
                         unowned: frozenset[str]) -> frozenset[str]:
    """Return the resctrl control groups that other software has created.

    :param names: names of the host's resctrl groups.
    :param unowned: names of further groups that must count as those of other
        software: libvirt's groups of running domains without a policy, as the
        last reconciliation found them.
    """
    return frozenset(
        name for name in naming.list_foreign_groups(names) | (unowned & names)
        if os.path.exists(root / name / 'tasks'))


#: Reasons why policies are not enforced, and the actions taken.
_Done = tuple[tuple[model.PolicyProblem, ...], Sequence[model.Action]]


class HostEngine(host_facts.HostFacts):
    """Enforcement of guests' policies in the resctrl of one compute host.

    :param section: the ``[ghsched]`` section of the configuration.
    :param rounding: see :class:`host_facts.HostFacts`.
    """

    def __init__(self, section: Any,
                 rounding: readings.RoundingCache | None = None) -> None:
        super().__init__(section, rounding)
        self._logged: str | None = None
        # Groups of domains without a policy, as the last report found them.
        self._foreign: frozenset[str] = frozenset()
        self._problem_log = report_log.ProblemLog()
        # Guests in shared groups by UUID: now, and as the host was described.
        self._sharing: dict[str, desired.Sharing] = {}
        self._described: dict[str, desired.Sharing] = {}
        # Whether guests reserved L3 ways at the last reconciliation.
        self._partitioned = False
        # Held from listing the running guests until resctrl is written.
        self._reconciling = threading.RLock()
        #: Reason why a guest's policy is not enforced, by UUID of the guest.
        self.not_held: dict[str, str] = {}
        #: Guarantee that Placement has not allocated, by UUID of the guest.
        self.uncounted: dict[str, str] = {}
        #: Function that lists all running domains.
        self.running: Callable[[], Iterable[desired.Running]] = tuple
        #: Function that brings resctrl into the desired state.
        self.run_reconcile: Callable[
            [Path, Path, model.Wanted],
            reconciling.ReconcileReport] = root_calls.reconcile_groups
        #: Renderer of policies into the XML of domains.
        self.domain_xml = domain_xml.DomainXml(self)

    def describe_bandwidth_control(
            self, stopped: Sequence[desired.Running] = ()) -> HostDescription:
        """Return the host's bandwidth control as reported to Placement.

        The result is empty if resctrl is not available. Changes are logged.

        :param stopped: stopped domains; their shared groups are reported, too.
        """
        running = self._described = self._sharing
        try:
            host = self.read_resctrl_host()
        except resctrl_host.ResctrlUnavailable as error:
            self._log_once(
                f'no memory bandwidth control on this host: {error}')
            return HostDescription()
        groups = self.list_resctrl_groups()
        foreign = _list_foreign_groups(self.root, groups, self._foreign)
        monitors = group_ids.read_existing_groups(self.root).monitors
        found = (f'memory bandwidth control: {host.dialect.title}, '
                 f'{host.num_closids} control groups, of which others use '
                 f'{len(foreign)}, NUMA nodes {sorted(host.domains_by_node)}')
        self._log_once('; '.join((found, *host.notes)))
        # A default cap takes one group for all guests without a policy.
        sharing = desired.map_shared_groups(stopped) | running
        return replace(
            host.make_description(
                max(self.section.reserved_control_groups, len(foreign))
                + self.has_default_cap, monitors),
            sharing={uuid: one.group for uuid, one in sharing.items()},
            shares=desired.list_sharing_traits(
                one for one in running.values() if one.group in groups)
            if self.can_share_groups else {})

    @property
    def has_sharing_changed(self) -> bool:
        """Whether shared control groups changed since the last report."""
        return self._sharing != self._described

    def _log_once(self, message: str) -> None:
        if message != self._logged:
            self._logged = message
            LOG.info('ghsched: detected resctrl on this host: %s', message)

    def reconcile_guest(self, running: desired.Running) -> bool:
        """Enforce one running domain's bandwidth policy in resctrl.

        :param running: the domain; its XML has the policy in the metadata.
        :returns: whether resctrl was changed.
        :raises ResctrlUnavailable: if resctrl is not available any more.
        :raises PolicyRefused: if the host cannot enforce the policy.
        :raises GroupError: if the kernel refused, with its reason.
        """
        if not self.needs_group(running) and not self.has_default_cap:
            return False
        if running.domain.id < 0:
            raise fs.GroupError('the domain is no longer running')
        if (running.shared_group or self._partitioned
                or running.reserves_l3_ways
                or self.has_default_cap and not running.needs_control_group):
            return self._reconcile_after_start(running)
        # Waits for a reconciliation of all guests, whose list may be older.
        with self._reconciling:
            run_path, all_threads, host = (
                self.run_path, self.all_threads, self.read_resctrl_host())
            guests = tuple(passthrough.add_iommu_groups(
                guest, running, host, self.section)
                for guest in desired.make_desired_groups(host, running))
            report = self.run_reconcile(self.root, run_path, model.Wanted(
                guests, (running.domain,), all_threads=all_threads,
                **host.plan_facts))
        report_log.log_actions(report)
        for problem in report.problems:
            raise fs.GroupError(problem.reason, str(self.root / problem.group))
        return bool(report.actions)

    def _reconcile_after_start(self, running: desired.Running) -> bool:
        """Enforce the policies of all guests after one guest has started.

        :returns: whether resctrl was changed.
        :raises GroupError: if the policy of this guest cannot be enforced.
        """
        problems, actions = self._enforce_all_policies(running)
        for problem in problems:
            if problem.guest == running.domain.uuid:
                raise fs.GroupError(problem.reason,
                                    str(self.root / problem.group))
        return bool(actions)

    def check_resctrl_access(self) -> None:
        """Raise GroupError if resctrl is not mounted or cannot be locked."""
        self.run_reconcile(self.root, self.run_path, model.Wanted())

    def make_wanted_state(self, running: Iterable[desired.Running],
                          old_groups: Iterable[str]
                          ) -> tuple[model.Wanted, list[model.PolicyProblem]]:
        """Return the resctrl groups that the host should have.

        :param old_groups: names of the groups that existed before the running
            domains were listed. Newer groups must not be removed.
        :returns: the desired groups, and a problem per unenforceable policy.
        """
        # A domain that ended since it was listed has no ID any more.
        running = [domain for domain in running if domain.domain.id >= 0]
        host, guests, problems = self._make_desired_groups(running)
        return model.Wanted(
            tuple(guests), tuple(domain.domain for domain in running),
            frozenset(name for name in old_groups
                      if naming.parse_group_name(name).is_managed),
            all_threads=self.all_threads,
            devices=bool(self.section.control_devices),
            cache=self._get_cache(host, guests),
            **host.plan_facts if host else {}), list(dict.fromkeys(problems))

    def _get_cache(self, host: resctrl_host.ResctrlHost | None,
                   guests: Iterable[model.ResctrlGuest]) -> CacheWays | None:
        """Return the host's L3 caches; None if no guest reserves L3 ways."""
        if not self._partitioned and not any(guest.ways for guest in guests):
            return None
        try:
            return (host or self.read_resctrl_host()).cache
        except resctrl_host.ResctrlUnavailable:
            return None

    def _make_desired_groups(self, running: Sequence[desired.Running]
                             ) -> tuple[resctrl_host.ResctrlHost | None,
                                        list[model.ResctrlGuest],
                                        list[model.PolicyProblem]]:
        """Return the resctrl groups that the policies of domains require.

        :returns: the host or None, the groups, and unenforceable policies.
        """
        group_sizes = desired.count_group_domains(running)
        guests: list[model.ResctrlGuest] = []
        problems: list[model.PolicyProblem] = []
        host: resctrl_host.ResctrlHost | None = None
        for domain in running:
            promised = self.needs_group(domain)
            if not promised and not (self.has_default_cap and domain.xml):
                continue
            try:
                host = host or self.read_resctrl_host()
                found = (
                    desired.make_desired_groups(host, domain, group_sizes)
                    if promised else desired.make_common_cap_group(
                        host, domain, self.section.default_bandwidth_max))
                guests += [passthrough.add_iommu_groups(
                    guest, domain, host, self.section) for guest in found]
            except desired.POLICY_ERRORS as error:
                owner = ((domain.domain.uuid, '') if promised
                         else ('', naming.DEFAULT))
                problems.append(model.PolicyProblem(*owner, str(error)))
        return host, guests, problems

    def reconcile_groups(self, count_repairs: Callable[[Iterable[str]], object]
                         = tuple) -> tuple[model.PolicyProblem, ...]:
        """Enforce all guests' bandwidth policies; remove unused groups.

        :param count_repairs: called with the kind of each change made.
        :returns: policies that are not enforced, with the reasons.
        """
        with self._reconciling:     # an older call must not replace not_held
            problems, actions = self._enforce_all_policies()
            self.not_held = {problem.guest: problem.reason
                             for problem in problems if problem.guest}
        count_repairs(action.kind for action in actions)
        return problems

    def _enforce_all_policies(self, started: desired.Running | None = None
                              ) -> _Done:
        """Enforce all running guests' bandwidth policies.

        :param started: guest that has just been started. This record is used
            instead of the one that libvirt returns for the guest.
        :returns: policies that are not enforced, and the changes made.
        """
        with self._reconciling:
            # Groups first: a group is made after its guest was started.
            before = self.list_resctrl_groups()
            running = list(self.running())
            if started is not None:
                running = [one for one in running if one.domain.uuid
                           != started.domain.uuid] + [started]
            wanted, problems = self.make_wanted_state(running, before)
            self._sharing = desired.map_shared_groups(running)
            self._partitioned = any(guest.ways for guest in wanted.guests)
            if not (wanted.guests or wanted.removable or wanted.cache):
                return tuple(problems), ()
            try:
                report = self.run_reconcile(self.root, self.run_path, wanted)
            except fs.GroupError as error:
                return (*problems, *(
                    model.PolicyProblem(guest.domain.uuid, '', str(error))
                    for guest in wanted.guests)), ()
            report_log.log_actions(report)
            self._foreign = frozenset(report.foreign)
            self._problem_log.log_new_problems(report)
            return (*problems, *report.problems), report.actions

    def release_group(self, uuid: str) -> None:
        """Remove or update a stopped guest's control group; never raises."""
        groups = self.list_resctrl_groups()
        own = [name for name in groups
               if naming.parse_group_name(name).uuid == uuid]
        monitor = naming.render_monitor_path(uuid)
        if (self._partitioned or monitor in own
                or any(naming.parse_group_name(name).is_shared
                       for name in groups)):
            try:
                self.reconcile_groups()
            except Exception as error:
                LOG.warning('ghsched: cannot update shared resctrl groups '
                            'after a guest stopped; retrying in the next '
                            'periodic task: %s', error)
        if not set(own) - {monitor}:
            return
        try:
            if root_calls.remove_own_group(self.root, uuid):
                LOG.info('ghsched: removed the resctrl control group of '
                         'stopped guest %s', uuid)
        except Exception as error:
            # Whatever privsep raises must not stop a power-off or cleanup.
            LOG.warning('ghsched: cannot remove the resctrl control group of '
                        'stopped guest %(uuid)s; retrying in the next '
                        'periodic task: %(error)s',
                        {'uuid': uuid, 'error': error})

    def can_join_shared_group(self, policy: GuestPolicy,
                              host_nodes: Sequence[int]) -> bool:
        """Whether a guest can share an existing control group of this host."""
        nodes = host_nodes[:len(policy.nodes)]
        if (not self.can_share_groups or not policy.can_share_group
                or len(nodes) != len(policy.nodes)):
            return False
        name = naming.render_shared_name(policy.nodes, nodes)
        return name in self.list_resctrl_groups()

    def count_group_guests(self, uuid: str, policy: GuestPolicy,
                           host_nodes: Sequence[int]) -> int:
        """Count the guests of a shared control group, including this guest.

        :param uuid: UUID of this guest.
        """
        group = naming.render_shared_name(policy.nodes, host_nodes)
        others = desired.map_shared_groups(
            domain for domain in self.running() if domain.domain.id >= 0
            and domain.domain.uuid != uuid)
        return 1 + sum(one.group == group for one in others.values())

    def needs_group(self, running: desired.Running) -> bool:
        """Whether a domain's bandwidth policy requires a resctrl group.

        Returns True if the policy is unreadable. A guest that is only measured
        needs no group if ``[ghsched]default_bandwidth_max`` is set, because
        its threads are then in the common control group.
        """
        try:
            return running.needs_control_group or (
                not self.has_default_cap and running.needs_monitoring_group)
        except metadata.MetadataError:
            return True

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

"""Makes resctrl hold the policies of the guests that run on a host.

Joins the pure parts (:mod:`ghsched_nova.resctrl.resolve`,
:mod:`ghsched_nova.resctrl.reconcile`) with the host. Knows no Nova object.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
import logging
import os
from pathlib import Path
import threading
from types import ModuleType
from typing import Any

from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.host import domain_xml
from ghsched_nova.host import host_facts
from ghsched_nova.host import readings
from ghsched_nova.resctrl.cache import Cache
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import reconcile as reconciling
from ghsched_nova.resctrl import resolve
from ghsched_nova.resctrl import rounding
from ghsched_placement.host import HostDescription
from ghsched_placement.policy import GuestPolicy

LOG = logging.getLogger(__name__)


def _privileged() -> ModuleType:
    # Only what changes something needs oslo.privsep, slow to import.
    from ghsched_nova.resctrl import privileged

    return privileged


def measure(root: Path, lines: Sequence[str],
            domain: int) -> Mapping[str, rounding.Readings]:
    """Ask the kernel through privsep what lines show."""
    found: Mapping[str, rounding.Readings] = _privileged().measure(
        root, lines, domain)
    return found


def _foreign_groups(root: Path, names: frozenset[str],
                    known: frozenset[str]) -> frozenset[str]:
    """Control groups that guests cannot have, because others have them.

    :param known: groups of domains without a policy.
    """
    return frozenset(
        name for name in naming.foreign(names) | (known & names)
        if os.path.exists(root / name / 'tasks'))


def _not_counted(_kinds: Iterable[str]) -> None:
    """For a caller that does not count what had to be done."""


#: Why policies do not hold, and what was done.
_Done = tuple[tuple[model.Problem, ...], Sequence[model.Action]]


class HostEngine(host_facts.HostFacts):
    """The resctrl side of one compute host.

    :param section: the ``[ghsched]`` section of the configuration.
    :param shown: see :class:`host_facts.HostFacts`.
    """

    def __init__(self, section: Any,
                 shown: readings.Readings | None = None) -> None:
        super().__init__(section, shown)
        self._told: str | None = None
        # Groups of domains without a policy, as the last report found them.
        self._foreign: frozenset[str] = frozenset()
        self._unmeasured = self._overlaps = frozenset[model.Problem]()
        # The guests that run in a shared group, by UUID.
        self._sharing: dict[str, desired.Sharing] = {}
        # Those that the last description of the host was made of.
        self._described: dict[str, desired.Sharing] = {}
        # Whether guests had ways of the L3 to themselves a moment ago.
        self._partitioned = False
        # Between a look at the guests that run and what follows from it.
        self._reconciling = threading.RLock()
        #: Why the policy of a guest did not hold at the last look, by UUID.
        self.not_held: dict[str, str] = {}
        #: Why Placement does not count what a guest is promised, likewise.
        self.uncounted: dict[str, str] = {}
        #: Lists all domains that run, for a group that guests share.
        self.running: Callable[[], Iterable[desired.Running]] = tuple
        #: Writes policies into the XML of domains.
        self.domain_xml = domain_xml.DomainXml(self)

    # -- the host -------------------------------------------------------------

    def describe(
            self, stopped: Sequence[desired.Running] = ()) -> HostDescription:
        """What Placement should know; nothing when there is no resctrl.

        A host without resctrl is logged once, and again when that changes.

        :param stopped: the domains that do not run, and may share groups
            when they do.
        """
        running = self._described = self._sharing
        try:
            host = self.host()
        except resctrl_host.ResctrlUnavailable as error:
            self._tell(f'no memory bandwidth control on this host: {error}')
            return HostDescription()
        groups = self.groups()
        foreign = _foreign_groups(self.root, groups, self._foreign)
        told = (f'memory bandwidth control: {host.dialect.title}, '
                f'{host.num_closids} control groups, of which others use '
                f'{len(foreign)}, NUMA nodes {sorted(host.domains_by_node)}')
        self._tell('; '.join((told, *host.notes)))
        # Others use what is kept for them; who asks for nothing has a group.
        sharing = desired.sharing(stopped) | running
        return replace(
            host.description(
                max(self.section.reserved_control_groups, len(foreign))
                + self.caps_all + host.control_groups_lost(
                    sum(name.startswith(naming.MONITORS) for name in groups))),
            sharing={uuid: one.group for uuid, one in sharing.items()},
            shares=desired.shares(
                one for one in running.values() if one.group in groups)
            if self.shares else {})

    @property
    def has_news(self) -> bool:
        """Whether guests share groups otherwise than was described."""
        return self._sharing != self._described

    def _tell(self, message: str) -> None:
        if message != self._told:
            self._told = message
            LOG.info('ghsched: %s', message)

    # -- a running guest ------------------------------------------------------

    def reconcile_guest(self, running: desired.Running) -> bool:
        """Make the control group of a running domain as its policy says.

        As :meth:`reconcile`, of one guest; no group is removed.

        :param running: the domain; its XML has the policy in the metadata.
        :returns: whether anything had to be done.
        :raises ResctrlUnavailable: when the host lost its resctrl.
        :raises PolicyNotHeld: when it cannot hold the policy.
        :raises GroupError: when the kernel refused, with its reason.
        """
        if not self.promises(running) and not self.caps_all:
            return False
        if running.domain.id < 0:
            raise fs.GroupError('the domain does not run any more')
        if (running.shared_group or self._partitioned or running.partitions
                or self.caps_all and not running.controlled):
            return self._reconcile_with_all(running)
        # Not while all guests are looked after, as they were a moment ago.
        with self._reconciling:
            return self._reconcile_own(running)

    def _reconcile_own(self, running: desired.Running) -> bool:
        """One guest with a group, or a monitoring group, of its own."""
        host = self.host()
        report = _privileged().reconcile(
            self.root, self.run_path, model.Wanted(
                (desired.with_devices(desired.read(host, running), running,
                                      host, self.section),),
                (running.domain,), others=resolve.other_domains(host),
                all_threads=self.all_threads,
                tolerance=host.tolerance, writes=host.writes,
                staged=host.dialect.staged))
        _tell_actions(report)
        for problem in report.problems:
            raise fs.GroupError(
                problem.reason, str(self.root / problem.group))
        return bool(report.actions)

    def _reconcile_with_all(self, running: desired.Running) -> bool:
        """All guests, for the sake of one that shares its group."""
        problems, actions = self._reconcile_running(running)
        for problem in problems:
            if problem.guest == running.domain.uuid:
                raise fs.GroupError(problem.reason,
                                    str(self.root / problem.group))
        return bool(actions)

    # -- all guests -----------------------------------------------------------

    def check_access(self) -> None:
        """Whether control groups could be changed now; changes none.

        :raises GroupError: when there is no resctrl, or no lock.
        """
        _privileged().reconcile(self.root, self.run_path, model.Wanted())

    def wanted(self, running: Iterable[desired.Running],
               before: Iterable[str]
               ) -> tuple[model.Wanted, list[model.Problem]]:
        """The desired state, and the guests that can have none.

        :param running: all domains that run.
        :param before: :meth:`groups` from before these were listed.
        """
        # One that has ended since it was listed has no number any more.
        running = [domain for domain in running if domain.domain.id >= 0]
        host, guests, problems = self._desired(running)
        return model.Wanted(
            tuple(guests), tuple(domain.domain for domain in running),
            frozenset(filter(naming.is_guests, before)),
            resolve.other_domains(host) if host else {},
            self.all_threads, bool(self.section.control_devices),
            host.spare_monitors if host else 0,
            host.monitors_per_group if host else 0,
            host.tolerance if host else {},
            host.writes if host else {},
            bool(host and host.dialect.staged),
            cache=self._cache(host, guests)), list(dict.fromkeys(problems))

    def _cache(self, host: resctrl_host.ResctrlHost | None,
               guests: Iterable[model.Guest]) -> Cache | None:
        """The L3 caches, while guests have ways of them, and once more."""
        if not self._partitioned and not any(guest.ways for guest in guests):
            return None
        try:
            return (host or self.host()).cache
        except resctrl_host.ResctrlUnavailable:
            return None

    def _desired(self, running: Sequence[desired.Running]
                 ) -> tuple[resctrl_host.ResctrlHost | None,
                            list[model.Guest], list[model.Problem]]:
        """The host, where a guest needs it, and what guests are to have."""
        together = desired.sharers(running)
        guests: list[model.Guest] = []
        problems: list[model.Problem] = []
        host: resctrl_host.ResctrlHost | None = None
        for domain in running:
            promised = self.promises(domain)
            if not promised and not (self.caps_all and domain.xml):
                continue
            try:
                host = host or self.host()
                guest = (desired.read(host, domain, together) if promised
                         else desired.unclassed(
                             host, domain,
                             self.section.default_bandwidth_max))
                if guest is not None:
                    guests.append(desired.with_devices(
                        guest, domain, host, self.section))
            except desired.NOT_DESIRED as error:
                problems.append(
                    model.Problem(domain.domain.uuid, '', str(error))
                    if promised else
                    model.Problem('', naming.DEFAULT, str(error)))
        return host, guests, problems

    def reconcile(self, repaired: Callable[[Iterable[str]], None]
                  = _not_counted) -> tuple[model.Problem, ...]:
        """Make resctrl hold the policy of every guest, in one call as root.

        Also removes the groups of guests that are gone.

        :param repaired: is given the kinds of what had to be done.
        :returns: why the policy of a guest does not hold.
        """
        with self._reconciling:     # the reasons of a later call stay
            problems, actions = self._reconcile_running()
            self.not_held = {problem.guest: problem.reason
                             for problem in problems if problem.guest}
        repaired(action.kind for action in actions)
        return problems

    def _reconcile_running(self, known: desired.Running | None = None
                           ) -> _Done:
        """Why policies do not hold, and what was done.

        :param known: one that runs, whether libvirt lists and describes it at
            this moment or not.
        """
        with self._reconciling:
            # In this order: a group is made after its guest was started.
            before = self.groups()
            running = list(self.running())
            if known is not None:
                running = [one for one in running if one.domain.uuid
                           != known.domain.uuid] + [known]
            wanted, problems = self.wanted(running, before)
            self._sharing = desired.sharing(running)
            self._partitioned = any(guest.ways for guest in wanted.guests)
            if not (wanted.guests or wanted.removable or wanted.cache):
                return tuple(problems), ()
            try:
                report = _privileged().reconcile(
                    self.root, self.run_path, wanted)
            except fs.GroupError as error:
                return (*problems, *(
                    model.Problem(guest.domain.uuid, '', str(error))
                    for guest in wanted.guests)), ()
            _tell_actions(report)
            self._foreign = frozenset(report.foreign)
            self._unmeasured = _tell_unmeasured(report, self._unmeasured)
            self._overlaps = _log_overlaps(report, self._overlaps)
            return (*problems, *report.problems), report.actions

    def forget(self, uuid: str) -> None:
        """Give up what was made here for a guest that runs no more.

        Its group is removed, and one that it shared is made smaller. What
        cannot be done now is tried again with each report of resources.
        """
        groups = self.groups()
        if (self._partitioned or naming.monitor_name(uuid) in groups
                or any(map(naming.is_shared, groups))):
            try:
                self.reconcile()
            except Exception as error:
                LOG.warning('ghsched: groups that guests share, or are '
                            'measured in, stay as they are for now: %s', error)
        # Not Path.is_dir(): it raises when the file system does not answer.
        if not os.path.isdir(self.root / naming.group_name(uuid)):
            return
        try:
            if _privileged().remove_own(self.root, uuid):
                LOG.info('ghsched: removed the control group of %s', uuid)
        except Exception as error:
            # Whatever privsep raises: the guest is to stop, or to go.
            LOG.warning('ghsched: the control group of %(uuid)s stays: '
                        '%(error)s', {'uuid': uuid, 'error': error})

    def can_join(self, policy: GuestPolicy,
                 host_nodes: Sequence[int]) -> bool:
        """Whether a guest can share a group that is there."""
        nodes = host_nodes[:len(policy.nodes)]
        return (self.shares and not policy.partitions
                and len(nodes) == len(policy.nodes)
                and naming.shared_name(policy.nodes, nodes) in self.groups())

    def together(self, uuid: str, policy: GuestPolicy,
                 host_nodes: Sequence[int]) -> int:
        """How many guests the shared group of a policy has, with one of them.

        :param uuid: of that guest, whether it is in the group yet or not.
        """
        group = naming.shared_name(policy.nodes, host_nodes)
        others = desired.sharing(domain for domain in self.running()
                                 if domain.domain.id >= 0
                                 and domain.domain.uuid != uuid)
        return 1 + sum(one.group == group for one in others.values())

    def promises(self, running: desired.Running) -> bool:
        """Whether a domain needs a group for what it has been promised.

        True, too, when its policy cannot be read. Where all guests are
        capped, one without bandwidth is measured as far as that can be.
        """
        try:
            return running.controlled or (
                not self.caps_all and running.measured)
        except metadata.MetadataError:
            return True


def _tell_unmeasured(report: reconciling.Report,
                     known: frozenset[model.Problem]
                     ) -> frozenset[model.Problem]:
    """Once for as long as it lasts."""
    found = frozenset(report.unmeasured)
    for problem in sorted(found - known, key=str):
        LOG.warning('ghsched: guest %(uuid)s is not measured: %(reason)s',
                    {'uuid': problem.guest, 'reason': problem.reason})
    return found


def _log_overlaps(report: reconciling.Report,
                  known: frozenset[model.Problem]
                  ) -> frozenset[model.Problem]:
    """Log each guest whose own ways of the L3 others have, once."""
    found = frozenset(report.overlaps)
    for problem in sorted(found - known, key=str):
        LOG.warning('ghsched: guest %(uuid)s does not have its ways of the L3 '
                    'to itself: %(reason)s. Give that group other ways, or '
                    'remove it', {'uuid': problem.guest,
                                  'reason': problem.reason})
    return found


def _tell_actions(report: reconciling.Report) -> None:
    for action in report.actions:
        LOG.info('ghsched: %(action)s, because %(reason)s',
                 {'action': action, 'reason': action.reason})

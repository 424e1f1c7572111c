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

"""From a guest's policy to its XML, and to resctrl once it runs.

Joins the pure parts (:mod:`ghsched_nova.resctrl.resolve`,
:mod:`ghsched_nova.guest`) with the host. Knows no Nova object.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import replace
import os
from pathlib import Path
import threading
from typing import Any

from lxml import etree
from oslo_log import log as logging

from ghsched_nova import conf
from ghsched_nova.guest import device_numa
from ghsched_nova.guest import memorytune
from ghsched_nova.guest import metadata
from ghsched_nova.guest import pci_topology
from ghsched_nova.resctrl import apply
from ghsched_nova.resctrl.cache import Cache
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import own
from ghsched_nova.resctrl import privileged
from ghsched_nova.resctrl import reconcile as reconciling
from ghsched_nova.resctrl import resolve
from ghsched_nova.resctrl import sysfs as sysfs_files
from ghsched_nova.virt import desired
from ghsched_placement.host import HostDescription
from ghsched_placement.policy import GuestPolicy

LOG = logging.getLogger(__name__)


class HostEngine:
    """The resctrl side of one compute host.

    :param section: the ``[ghsched]`` section of the configuration.
    """

    def __init__(self, section: Any) -> None:
        self._section = section
        self._told: str | None = None
        # Groups of domains without a policy, as the last report found them.
        self._foreign: frozenset[str] = frozenset()
        # The guests that run in a shared group, by UUID.
        self._sharing: dict[str, desired.Sharing] = {}
        # Those that the last description of the host was made of.
        self._described: dict[str, desired.Sharing] = {}
        # Whether guests had ways of the L3 to themselves a moment ago.
        self._partitioned = False
        # Between a look at the guests that run and what follows from it.
        self._settling = threading.RLock()
        #: Why the policy of a guest did not hold when it was last looked
        #: after, by UUID.
        self.not_held: dict[str, str] = {}
        #: Why Placement does not count what a guest is promised, likewise.
        self.uncounted: dict[str, str] = {}
        #: Lists all domains that run, for a group that guests share.
        self.running: Callable[[], Iterable[desired.Running]] = tuple
        #: Whether libvirt keeps the extended attributes of memorytune.
        self.extended = False
        #: Whether it can make a group for the whole process of a guest.
        self.process_groups = False
        #: Whether it keeps <numa node='N'/> in a passthrough device.
        self.numa_element = False

    # -- the host -------------------------------------------------------------

    def host(self) -> resctrl_host.ResctrlHost:
        """What the kernel offers now.

        :raises ResctrlUnavailable: when it offers no bandwidth control.
        """
        told = resctrl_host.Told(
            node_bandwidth=conf.by_node(self._section, 'node_bandwidth'),
            cap=self._section.bandwidth_cap,
            l3_ways_shared=self._section.l3_ways_shared)
        return resctrl_host.read_host(
            self._root, Path(self._section.sysfs_path), told)

    def describe(self, stopped: Iterable[desired.Running] = ()
                 ) -> HostDescription:
        """What Placement should know; nothing when there is no resctrl.

        A host without resctrl is an ordinary thing, so it is told once, and
        again when that changes.

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
        foreign = self._foreign_groups(groups)
        self._tell(f'memory bandwidth control: {host.dialect.title}, '
                   f'{host.num_closids} control groups, of which others use '
                   f'{len(foreign)}, NUMA nodes '
                   f'{sorted(host.domains_by_node)}')
        # What is kept for others is there for them to use, and guests that
        # ask for nothing have one group.
        sharing = desired.sharing(stopped) | running
        return replace(
            host.description(
                max(self._section.reserved_control_groups, len(foreign))
                + self.caps_all + host.control_groups_lost(
                    sum(name.startswith(own.MONITORS) for name in groups))),
            sharing={uuid: one.group for uuid, one in sharing.items()},
            shares=desired.shares(
                one for one in running.values() if one.group in groups)
            if self.shares else {})

    @property
    def has_news(self) -> bool:
        """Whether guests share groups otherwise than was described."""
        return self._sharing != self._described

    def _foreign_groups(self, names: frozenset[str]) -> frozenset[str]:
        """Control groups that guests cannot have, because others have them.
        """
        return frozenset(
            name for name in naming.foreign(names) | (self._foreign & names)
            if os.path.exists(self._root / name / 'tasks'))

    def _tell(self, message: str) -> None:
        if message != self._told:
            self._told = message
            LOG.info('ghsched: %s', message)

    def warn_of_open_directory(self) -> None:
        """For a host whose resctrl was mounted without further ado."""
        if apply.anybody_can_lock(self._root):
            LOG.warning('ghsched: any user of this host can lock %(root)s and '
                        'so keep guests from starting; give it to the group '
                        'of nova-compute: chgrp nova %(root)s && chmod 0750 '
                        '%(root)s', {'root': self._root})

    # -- guest XML ------------------------------------------------------------

    def render(self, xml: str, policy: GuestPolicy,
               host_nodes: Sequence[int]) -> str:
        """The domain XML with memorytune and the policy in its metadata.

        :param host_nodes: host NUMA node of each guest NUMA node.
        :raises ResctrlUnavailable: when the host has no bandwidth control.
        :raises PolicyNotHeld: when it cannot hold the policy.
        """
        if not policy.controlled and not policy.monitor:
            return metadata.write(xml, metadata.DomainPolicy(policy, ()))
        host = self.host()
        settings = resolve.resolve(host, policy, host_nodes)
        shared = (self.shares and policy.controlled
                  and not policy.partitions)
        domain = metadata.DomainPolicy(
            policy, tuple(host_nodes[:len(policy.nodes)]), shared)
        xml = metadata.write(xml, domain)
        nodes = _tunes(settings)
        if shared or not self._libvirt_can(
                host.libvirt_makes_groups(self.extended) if nodes
                else host.dialect.libvirt_monitors):
            return xml      # a group of ours measures as well
        whole = self.process_groups and self._all_threads
        tune = memorytune.MemoryTune(vcpus=None if whole else _vcpus(xml),
                                     nodes=nodes, monitor=policy.monitor)
        return memorytune.render(xml, tune, self.extended)

    def retune(self, xml: str) -> str:
        """The domain XML with the values of the policy in its metadata.

        :returns: the same text when its memorytune has them already, or when
            it has none because libvirt does not make the control group.
        :raises NOT_DESIRED: when the policy cannot be read, or not be held.
        """
        domain = metadata.read(xml)
        if domain is None or not domain.policy.controlled:
            return xml
        return memorytune.retune(
            xml, _tunes(resolve.resolve(self.host(), domain.policy,
                                        domain.host_nodes)), self.extended)

    def place_devices(self, xml: str, policy: GuestPolicy,
                      devices: Sequence[device_numa.Device],
                      host_nodes: Sequence[int]) -> str:
        """The domain XML in which the guest sees the NUMA node of devices.

        All of it or nothing: under ``preferred`` a guest whose devices cannot
        be placed gets the XML as Nova made it.

        :raises DeviceNumaError: under ``required``, with each device and why.
        """
        if policy.device_numa == device_numa.NONE:
            return xml
        try:
            there = set(device_numa.passthrough(xml))
            distances = self.distances()
            decision = device_numa.decide(
                [device for device in devices if device.address in there],
                host_nodes, policy.device_numa, distances, bool(distances))
            for problem in decision.problems:
                LOG.warning('ghsched: a device without a NUMA node of its '
                            'own: %s', problem)
            if self.numa_element:
                return device_numa.render_numa_element(
                    xml, decision.guest_node_of)
            return device_numa.render_expander(
                xml, decision.guest_node_of,
                self._section.device_numa_spare_ports)
        except pci_topology.DeviceNumaError as error:
            if policy.device_numa == device_numa.REQUIRED:
                raise
            LOG.warning('ghsched: the guest does not see the NUMA nodes of '
                        'its devices: %s', error)
            return xml

    def distances(self) -> dict[int, dict[int, int]]:
        """ACPI SLIT of the host, by node and node; empty without one.

        Empty, too, where no device is shown on the nearest node.
        """
        if not self._section.device_numa_nearest:
            return {}
        found = sysfs_files.distances(Path(self._section.sysfs_path))
        if not found:
            LOG.warning('ghsched: the distances of the NUMA nodes cannot be '
                        'read')
        return found

    def _libvirt_can(self, detected: bool) -> bool:
        """Whether libvirt can use resctrl, as the admin says or else so."""
        choice = self._section.memorytune_attributes
        return detected if choice == 'auto' else bool(choice != 'none')

    # -- a running guest ------------------------------------------------------

    def enforce(self, domain_id: int, xml: str) -> bool:
        """Make the control group of a running domain as its policy says.

        As :meth:`reconcile`, of one guest; no group is removed.

        :param domain_id: libvirt's number of the running domain.
        :param xml: its domain XML, with the policy in the metadata.
        :returns: whether anything had to be done.
        :raises ResctrlUnavailable: when the host lost its resctrl.
        :raises PolicyNotHeld: when it cannot hold the policy.
        :raises EnforcementError: when the kernel refused, with its reason.
        """
        running = desired.of(xml, domain_id)
        if not self.promises(running) and not self.caps_all:
            return False
        if domain_id < 0:
            raise apply.EnforcementError('the domain does not run any more')
        if (running.shared_group or self._partitioned or running.partitions
                or self.caps_all and not running.controlled):
            return self._settle_all(running)
        # Not while all guests are looked after, as they were a moment ago.
        with self._settling:
            return self._settle(running)

    def _settle(self, running: desired.Running) -> bool:
        """One guest with a group, or a monitoring group, of its own."""
        host = self.host()
        report = privileged.reconcile(
            self._root, self._run_path, model.Wanted(
                (self._with_devices(host, running,
                                    desired.read(host, running)),),
                (running.domain,), others=resolve.other_domains(host),
                all_threads=self._all_threads,
                lossy=host.dialect.lossy, writes=host.writes))
        _tell_actions(report)
        for problem in report.problems:
            raise apply.EnforcementError(
                problem.reason, str(self._root / problem.group))
        return bool(report.actions)

    def _with_devices(self, host: resctrl_host.ResctrlHost,
                      running: desired.Running,
                      guest: model.Guest) -> model.Guest:
        """The desired state of a domain, with its passthrough devices.

        :raises NOT_DESIRED: when one cannot be controlled.
        """
        if (not host.dialect.devices or not self._section.control_devices
                or guest.only_measured):
            return guest
        return replace(guest, devices=frozenset(
            desired.iommu_group(Path(self._section.sysfs_path), address)
            for address in running.passthrough()))

    def _settle_all(self, running: desired.Running) -> bool:
        """All guests, for the sake of one that shares its group."""
        problems, changed = self._reconcile_running(running)
        for problem in problems:
            if problem.guest == running.domain.uuid:
                raise apply.EnforcementError(
                    problem.reason, str(self._root / problem.group))
        return changed

    # -- all guests -----------------------------------------------------------

    def check_access(self) -> None:
        """Whether control groups could be changed now; changes none.

        :raises EnforcementError: when there is no resctrl, or no lock.
        """
        privileged.reconcile(self._root, self._run_path, model.Wanted())

    def groups(self) -> frozenset[str]:
        """Names of the control groups that there are; none without resctrl.

        With those of the monitoring groups that were made here in the
        kernel's default group.

        Ask before libvirt is asked for its domains: a group is made after
        its domain was started, so one whose domain is not listed afterwards
        has none.
        """
        names = {name for name in self._entries('')
                 if name not in naming.NOT_GROUPS}
        names |= {own.MONITORS + name for name in self._entries(own.MONITORS)
                  if naming.own_uuid(name)}
        return frozenset(
            name for name in names if os.path.isdir(self._root / name))

    def _entries(self, directory: str) -> list[str]:
        try:
            return os.listdir(self._root / directory)
        except OSError:
            return []

    def wanted(self, running: Iterable[desired.Running],
               before: Iterable[str]
               ) -> tuple[model.Wanted, list[model.Problem]]:
        """The desired state, and the guests that can have none.

        :param running: all domains that run.
        :param before: :meth:`groups` from before these were listed.
        """
        # One that has ended since it was listed has no number any more.
        running = [domain for domain in running if domain.domain.id >= 0]
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
                             self._section.default_bandwidth_max))
                if guest is not None:
                    guests.append(self._with_devices(host, domain, guest))
            except desired.NOT_DESIRED as error:
                problems.append(
                    model.Problem(domain.domain.uuid, '', str(error))
                    if promised else
                    model.Problem('', own.DEFAULT, str(error)))
        return model.Wanted(
            tuple(guests), tuple(domain.domain for domain in running),
            frozenset(filter(naming.is_guests, before)),
            resolve.other_domains(host) if host else {},
            self._all_threads, bool(self._section.control_devices),
            host.spare_monitors if host else 0,
            host.monitors_per_group if host else 0,
            host.dialect.lossy if host else frozenset(),
            host.writes if host else {},
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

    def reconcile(self) -> tuple[model.Problem, ...]:
        """Make resctrl hold the policy of every guest, in one call as root.

        Also removes the groups of guests that are gone.

        :returns: why the policy of a guest does not hold.
        """
        problems, _changed = self._reconcile_running()
        self.not_held = {problem.guest: problem.reason
                         for problem in problems if problem.guest}
        return problems

    def _reconcile_running(self, known: desired.Running | None = None
                           ) -> tuple[tuple[model.Problem, ...], bool]:
        """Why policies do not hold, and whether anything was done.

        :param known: one that runs, whether libvirt lists and describes it at
            this moment or not.
        """
        with self._settling:
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
                return tuple(problems), False
            try:
                report = privileged.reconcile(self._root, self._run_path,
                                              wanted)
            except apply.EnforcementError as error:
                return (*problems, *(
                    model.Problem(guest.domain.uuid, '', str(error))
                    for guest in wanted.guests)), False
            _tell_actions(report)
            self._foreign = frozenset(report.foreign)
            return (*problems, *report.problems), bool(report.actions)

    def forget(self, uuid: str) -> None:
        """Give up what was made here for a guest that runs no more.

        Its group is removed, and one that it shared is made smaller. What
        cannot be done now is tried again with each report of resources.
        """
        groups = self.groups()
        if (self._partitioned or own.monitor_name(uuid) in groups
                or any(map(own.is_shared, groups))):
            try:
                self.reconcile()
            except Exception as error:
                LOG.warning('ghsched: groups that guests share, or are '
                            'measured in, stay as they are for now: %s', error)
        # Not Path.is_dir(): it raises when the file system does not answer.
        if not os.path.isdir(self._root / own.group_name(uuid)):
            return
        try:
            if privileged.remove_own(self._root, uuid):
                LOG.info('ghsched: removed the control group of %s', uuid)
        except Exception as error:
            # Whatever privsep raises: the guest is to stop, or to go.
            LOG.warning('ghsched: the control group of %(uuid)s stays: '
                        '%(error)s', {'uuid': uuid, 'error': error})

    @property
    def shares(self) -> bool:
        """Whether guests that start share groups."""
        return bool(self._section.group_sharing)

    def can_join(self, policy: GuestPolicy,
                 host_nodes: Sequence[int]) -> bool:
        """Whether a guest can share a group that is there."""
        nodes = host_nodes[:len(policy.nodes)]
        return (self.shares and not policy.partitions
                and len(nodes) == len(policy.nodes)
                and own.shared_name(policy.nodes, nodes) in self.groups())

    def together(self, uuid: str, policy: GuestPolicy,
                 host_nodes: Sequence[int]) -> int:
        """How many guests the shared group of a policy has, with one of them.

        :param uuid: of that guest, whether it is in the group yet or not.
        """
        group = own.shared_name(policy.nodes, host_nodes)
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

    @property
    def caps_all(self) -> bool:
        """Whether guests that ask for nothing are held to something."""
        return bool(self._section.default_bandwidth_max < 100)

    @property
    def _root(self) -> Path:
        return Path(self._section.resctrl_path)

    @property
    def _run_path(self) -> Path:
        return Path(self._section.libvirt_run_path)

    @property
    def _all_threads(self) -> bool:
        return bool(self._section.control_threads == 'all')


def _tell_actions(report: reconciling.Report) -> None:
    for action in report.actions:
        LOG.info('ghsched: %(action)s, because %(reason)s',
                 {'action': action, 'reason': action.reason})


def _tunes(settings: Iterable[resolve.DomainSetting]
           ) -> tuple[memorytune.NodeTune, ...]:
    return tuple(
        memorytune.NodeTune(
            id=setting.domain, bandwidth=setting.maximum,
            hardlimit=setting.hardlimit, priority=setting.priority,
            min_bandwidth=setting.minimum)
        for setting in settings)


def _vcpus(xml: str) -> frozenset[int]:
    text = etree.fromstring(xml).findtext('vcpu')
    return frozenset(range(int(text or 0)))

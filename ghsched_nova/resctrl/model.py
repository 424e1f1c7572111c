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


"""Desired and actual state of a host's resctrl, and plans to change it (pure).

The desired state is derived from libvirt's running domains and the policies
in their metadata (:class:`Wanted`). The actual state is read from
directories, ``schemata`` and ``tasks`` by :mod:`ghsched_nova.resctrl.survey`
(:class:`Actual`). :mod:`ghsched_nova.resctrl.plan` compares the two states,
and :mod:`ghsched_nova.resctrl.reconcile` applies the planned changes.

The name of a group says which software created it, see
:mod:`ghsched_nova.resctrl.naming`. Groups of other software are not changed.

Several guests can share a control group of nova-compute. Each of these guests
then has the schemata values of the group for all of them. While the host has
monitoring groups left, each guest is measured in one of its own within the
control group.

A guest without limits that is only measured has a monitoring group in the
kernel's default group. It is treated like a control group without values.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Annotated
from typing import Literal

from ghsched_nova.base import bounds
from ghsched_nova.base import qemu
from ghsched_nova.resctrl.cache_facts import CacheWays
from ghsched_nova.resctrl import differences
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl.schemata import Number
from ghsched_nova.resctrl.schemata import Schemata
from ghsched_placement.base import cpulist
from ghsched_placement.flavor import vcpu_classes

Kind = Literal['make group', 'write line', 'move threads', 'remove group',
               'move devices', 'release devices',
               'assign counters', 'release counters']

#: Kinds of changes that no limit depends on. They only concern measurements.
COUNTING: tuple[Kind, ...] = ('assign counters', 'release counters')

#: Path of a group, and name of an event that is counted in it.
Counted = tuple[str, str]

#: Creator of a guest's group: nova-compute, libvirt for the vCPUs, or libvirt
#: for the whole QEMU process.
Maker = Literal['ghsched', 'libvirt', 'libvirt-process']

_ClassName = Annotated[str, bounds.Text('[a-z0-9_]*', 16), bounds.Is(
    lambda name: not name or vcpu_classes.is_class_name(name),
    'the name of a class')]


@dataclass(frozen=True)
class Domain:
    """Running libvirt domain, with or without a bandwidth policy.

    :param id: libvirt's id of the running domain, which changes with each
        start.
    """

    uuid: naming.Uuid
    id: Number
    name: qemu.DomainName


@dataclass(frozen=True)
class ResctrlGuest:
    """Running domain with a policy that needs a resctrl group.

    A domain with vCPU classes is one such guest for each class with a group.

    :param vcpus: numbers of the vCPUs whose threads belong in the group.
    :param online: minimum number of these vCPUs that have a thread; others
        may be hot-plugged later.
    :param desired: schemata values by line and resctrl domain, in the order in
        which they are written; empty for a guest that is only measured.
    :param maker: component that creates the group.
    :param devices: IOMMU groups of the guest's passthrough devices that belong
        in the group.
    :param shared: name of the control group that the guest shares with other
        guests, which have the same ``desired``; empty if it shares none.
    :param monitor: whether the policy requests bandwidth measurement.
    :param ways: number of reserved L3 ways by id of the cache.
    :param vcpu_class: name of the class of the vCPUs; empty if the domain has
        no classes.
    :param libvirt_vcpus: vCPUs in the name of libvirt's group, which stay as
        in the flavor if the guest moves vCPUs between its classes; empty if
        they are ``vcpus``.
    """

    domain: Domain
    vcpus: frozenset[Number]
    online: Number
    desired: differences.Desired
    maker: Maker
    devices: frozenset[Number] = frozenset()
    shared: naming.SharedGroup = ''
    monitor: bool = False
    ways: Mapping[Number, Number] = field(default_factory=dict)
    vcpu_class: _ClassName = ''
    libvirt_vcpus: frozenset[Number] = frozenset()

    @property
    def named_vcpus(self) -> frozenset[int]:
        """vCPUs in the name that libvirt gives to the group."""
        return self.libvirt_vcpus or self.vcpus

    @property
    def has_other_threads(self) -> bool:
        """Whether threads that are no vCPUs belong in this group."""
        return vcpu_classes.has_other_threads(self.vcpu_class)

    @property
    def is_only_measured(self) -> bool:
        """Whether the guest has no bandwidth policy and is only measured."""
        return (self.maker == 'ghsched' and self.monitor
                and not self.shared and not self.desired and not self.ways)

    @property
    def group(self) -> str:
        """Name of the resctrl group that the guest needs.

        The group is a control group, or a monitoring group if the guest is
        only to be measured.
        """
        if self.is_only_measured:
            return naming.render_monitor_path(self.domain.uuid)
        if self.maker == 'ghsched':
            return self.shared or naming.render_own_group_name(
                self.domain.uuid, self.vcpu_class)
        machine = naming.render_machine_name(self.domain.id, self.domain.name)
        if self.maker == 'libvirt-process':
            return machine
        return f'{machine}-vcpus_{cpulist.render_cpu_list(self.named_vcpus)}'


#: vCPU number by thread id, None for threads that are no vCPU.
Threads = Mapping[int, int | None]

#: Guests by name of their resctrl group.
Members = Mapping[str, Sequence[ResctrlGuest]]


@dataclass(frozen=True)
class Wanted:
    """Resctrl groups that a host should have, and its running domains.

    :param guests: guests that need a resctrl group.
    :param domains: all running domains, including those of ``guests``.
    :param removable: names of the groups that existed *before* libvirt's
        domains were listed. A domain is listed before its group is created,
        so a group of this set belongs to a stopped guest if its domain is not
        in ``domains``. Newer groups may belong to guests that start now.
    :param others: schemata value, by line, in resctrl domains that a guest
        does not use.
    :param all_threads: whether the emulator, I/O and vhost threads of a guest
        also belong in its group.
    :param devices: whether devices that no guest uses are moved out of the
        groups of guests, see :mod:`ghsched_nova.resctrl.devices`.
    :param monitors: maximum number of monitoring groups in all shared groups.
    :param monitors_per_group: maximum number of monitoring groups in one
        shared group.
    :param tolerance: accepted difference between shown and desired value, by
        line, see :attr:`host.ResctrlHost.tolerance`.
    :param writes: value to write, by line and value that the kernel then
        shows, see :attr:`host.ResctrlHost.values_to_write`.
    :param staged: see :attr:`dialects.Dialect.staged`.
    :param bounded: guarantee of a new group, by line on which the sum of all
        groups' guarantees is limited, see
        :mod:`ghsched_nova.resctrl.bounded`.
    :param cache: the L3 caches; None if no guest reserves or has just
        reserved L3 ways. If set, ``guests`` has all guests with a group.
    """

    guests: Sequence[Annotated[ResctrlGuest, bounds.Is(
        lambda guest: bool(guest.libvirt_vcpus or guest.vcpus),
        'a guest with vCPUs')]] = ()
    domains: Sequence[Domain] = ()
    removable: frozenset[naming.GuestGroup] = frozenset()
    others: differences.Others = field(default_factory=dict)
    all_threads: bool = False
    devices: bool = False
    monitors: Number = 0
    monitors_per_group: Number = 0
    tolerance: differences.Tolerance = field(default_factory=dict)
    writes: differences.Writes = field(default_factory=dict)
    staged: bool = False
    bounded: differences.Others = field(default_factory=dict)
    cache: Annotated[CacheWays, bounds.Is(
        lambda found: found.is_consistent, 'a cache')] | None = None

    @property
    def has_single_rmid_pool(self) -> bool:
        """Whether shared control groups take monitoring ids from one pool.

        Otherwise each control group has its own ids (RMIDs). The value is
        always False if no guest shares a control group.
        """
        return (0 < self.monitors <= self.monitors_per_group
                and any(guest.shared for guest in self.guests))


@dataclass(frozen=True)
class Group:
    """Actual state of a resctrl group.

    :param tasks: ids of the threads in the group.
    :param schemata: schemata of a control group; None if they were not read or
        cannot be read.
    :param error: reason why the group cannot be read; empty if it can.
    :param vcpu_threads: ids of threads in the group that are vCPUs of guests
        to which the group does not belong.
    :param devices: IOMMU groups in the group.
    :param monitors: ids of the threads in each guest's monitoring group
        within a shared control group, by UUID of the guest.
    """

    tasks: frozenset[int] = frozenset()
    schemata: Schemata | None = None
    error: str = ''
    vcpu_threads: frozenset[int] = frozenset()
    devices: frozenset[int] = frozenset()
    monitors: Mapping[str, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Counters:
    """Actual assignment of a host's bandwidth counters to resctrl groups.

    :param file: name of the file in a group that lists its counters.
    :param free: number of unassigned counters by resctrl domain.
    :param assigned: resctrl domains in which a group has a counter, by group
        and event. Each group that was read has an entry for
        ``counters.EVENT``.
    """

    file: str
    free: Mapping[int, int]
    assigned: Mapping[Counted, frozenset[int]]


@dataclass(frozen=True)
class Actual:
    """Actual resctrl groups and guests' threads of a host.

    :param groups: all control groups by name, and the monitoring groups of
        guests without a control group.
    :param members: guests by resctrl group; a group that is not in ``groups``
        does not exist yet.
    :param threads: threads of each guest by UUID; empty for a guest whose QEMU
        process is unknown or has ended.
    :param processes: names of the domains whose QEMU process runs, even if
        libvirt does not list the domain.
    :param monitors_of_others: number of monitoring groups that do not measure
        guests of shared groups, by control group; empty unless
        :attr:`Wanted.has_single_rmid_pool`.
    :param root: schemata of the kernel's default group; None unless
        :attr:`Wanted.cache` or :attr:`Wanted.bounded` is set.
    :param others: schemata, by name, of control groups that no guest uses;
        empty if no guest reserves L3 ways.
    :param counters: assignment of bandwidth counters; None if no guest must be
        measured, or if the kernel counts the bandwidth of every group.
    :param scarce: whether a group could not be created because the host has
        no free one.
    """

    groups: Mapping[str, Group]
    members: Members = field(default_factory=dict)
    threads: Mapping[str, Threads] = field(default_factory=dict)
    processes: frozenset[str] = frozenset()
    monitors_of_others: Mapping[str, int] = field(default_factory=dict)
    root: Schemata | None = None
    others: Mapping[str, Schemata] = field(default_factory=dict)
    counters: Counters | None = None
    scarce: bool = False


@dataclass(frozen=True)
class Action:
    """Change of a host's resctrl, and the reason for it.

    :param group: path of the resctrl group below the mount point; empty for
        the kernel's default group.
    :param reason: present state that makes the change necessary.
    :param guest: UUID of the guest whose policy requires the change; empty
        for a removal, and for a change for all guests of a shared group.
    :param line: line to write, with its newline; empty unless the kind is
        ``write line`` or one of counters.
    :param threads: ids of the threads that ``move threads`` moves.
    :param devices: IOMMU groups that ``move devices`` moves into the group, or
        that ``release devices`` moves from the group to the default group.
    :param file: name of the file in the group to which the line is written.
    :param part: schemata line and resctrl domain that the change sets. If the
        change fails, further changes of this part are skipped. If the text is
        empty, all further changes of the group are skipped.
    """

    kind: Kind
    group: str
    reason: str
    guest: str = ''
    line: str = ''
    threads: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    file: str = 'schemata'
    part: str = ''

    @property
    def details(self) -> str:
        """Line to write, or ids of the threads or IOMMU groups to move."""
        return (self.line.strip()
                or ', '.join(map(str, self.threads or self.devices)))

    @property
    def is_for_monitoring(self) -> bool:
        """Whether this change of resctrl serves only to measure bandwidth."""
        name = naming.parse_group_name(self.group)
        return self.kind in COUNTING or bool(name.control and name.monitor)

    def __str__(self) -> str:
        group = self.group or 'default group'
        return f'{group}: {self.kind} {self.details}'.rstrip()


@dataclass(frozen=True)
class PolicyProblem:
    """Reason why a guest's policy is not enforced.

    :param guest: UUID of the guest; empty if the problem concerns no guest or
        all guests of the group.
    :param group: path of the resctrl group; empty for none.
    :param reason: text for users.
    """

    guest: str
    group: str
    reason: str

    def __str__(self) -> str:
        return f'{self.group}: {self.reason}' if self.group else self.reason


@dataclass(frozen=True)
class Plan:
    """Changes of a host's resctrl, in the order in which they are made.

    Removals come first, to free groups for guests that need one.

    :param problems: reasons why guests' policies cannot be enforced.
    :param foreign: names of the control groups of other software.
    :param unmeasured: reasons why guests cannot be measured, although their
        policies request it.
    :param internal_overlaps: guests whose reserved L3 ways are now also used
        by the group of another guest or by the default group.
    :param overlaps: guests whose reserved L3 ways are also used by a control
        group of other software.
    """

    actions: tuple[Action, ...] = ()
    problems: tuple[PolicyProblem, ...] = ()
    foreign: tuple[str, ...] = ()
    unmeasured: tuple[PolicyProblem, ...] = ()
    internal_overlaps: tuple[PolicyProblem, ...] = ()
    overlaps: tuple[PolicyProblem, ...] = ()


# -- names --------------------------------------------------------------------


def find_guest_group(guest: ResctrlGuest, names: Iterable[str]) -> str | None:
    """Return the name of a guest's existing resctrl group.

    :param names: names of the existing groups.
    :returns: None if the group does not exist.
    """
    if guest.group in names:
        return guest.group
    if guest.is_only_measured:
        return next((name for name in names
                     if is_libvirt_monitor(name, guest.domain)), None)
    if guest.maker != 'libvirt':
        return None
    # A libvirt that spells the name in another way.
    alike = [path for path in names
             if (name := naming.parse_group_name(path)).is_of_domain(
                 guest.domain.id, guest.domain.name)
             and name.is_of_vcpus(guest.named_vcpus)]
    return alike[0] if len(alike) == 1 else None


def is_libvirt_monitor(path: str, domain: Domain) -> bool:
    """Whether libvirt created a monitoring group of this path for a domain.

    libvirt creates one at the start of a guest with ``<monitor>`` in its
    ``<memorytune>``.
    """
    name = naming.parse_group_name(path)
    return name.is_default_monitor and name.is_of_domain(domain.id,
                                                         domain.name)


def map_guests_by_group(
    guests: Iterable[ResctrlGuest], names: Collection[str]
) -> dict[str, list[ResctrlGuest]]:
    """Return the guests of each resctrl group, by name of the group.

    A group may exist already, or may have to be created.

    :param names: names of the existing groups.
    """
    found: dict[str, list[ResctrlGuest]] = {}
    for guest in guests:
        found.setdefault(find_guest_group(guest, names) or guest.group,
                         []).append(guest)
    return found


def make_problems(action: Action, members: Members,
                  reason: str) -> list[PolicyProblem]:
    """Return a problem for each guest that a change of resctrl concerns.

    A change for no certain guest concerns all guests of its group. The list is
    empty if the change only serves to measure bandwidth.

    :param action: the change, which failed or had no effect.
    :param members: guests by group.
    :param reason: text for users.
    """
    if action.is_for_monitoring:
        return []
    uuids = [action.guest] if action.guest else [
        guest.domain.uuid for guest in members.get(action.group, ())]
    return [PolicyProblem(uuid, action.group,
                          reason) for uuid in uuids or ['']]

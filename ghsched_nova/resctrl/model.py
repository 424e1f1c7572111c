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


"""The guests that run, and what resctrl holds (pure).

The desired state is made of libvirt's running domains and the policies in
their metadata (:class:`Wanted`), the actual one of directories, ``schemata``
and ``tasks`` (:class:`Actual`, read by :mod:`ghsched_nova.resctrl.survey`).
:mod:`ghsched_nova.resctrl.plan` compares them, and
:mod:`ghsched_nova.resctrl.reconcile` carries out what is to be done.

Groups are told apart by their names (:mod:`ghsched_nova.resctrl.naming`).
Those of another program are not read, not written and not removed.

Several guests can share a group that nova-compute makes. Each of them then
brings the values that the group is to hold for all of them. Inside, each has
a monitoring group as far as the host has some, which nothing depends on.

A guest that is to be measured and not to be held has a monitoring group in
the kernel's default group, which is treated like a control group without
values.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import re
from typing import Literal

from ghsched_nova.resctrl.cache import Cache
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resolve
from ghsched_nova.resctrl.schemata import Schemata
from ghsched_placement import cpulist

Kind = Literal['make group', 'write line', 'move threads', 'remove group',
               'move devices', 'release devices',
               'assign counters', 'release counters']

#: Steps that no policy needs: a guest runs on as it is without them.
COUNTING: tuple[Kind, ...] = ('assign counters', 'release counters')

#: A group, an event.
Counted = tuple[str, str]

#: Who made a guest's group: nova-compute, libvirt for the vCPUs, or libvirt
#: for the whole process.
Maker = Literal['ghsched', 'libvirt', 'libvirt-process']

_LINE = re.compile(r'[A-Z][A-Z0-9_]{0,31}')


@dataclass(frozen=True)
class Domain:
    """Running libvirt domain, with or without a bandwidth policy.

    :param id: libvirt's number; a new one with each start.
    """

    uuid: str
    id: int
    name: str


@dataclass(frozen=True)
class Guest:
    """Running domain with a policy that needs a resctrl group.

    :param vcpus: the vCPUs that belong into the group.
    :param online: how many of them have a thread at least; the others may be
        plugged in later.
    :param desired: values by line and domain, in the order of writing; empty
        for a guest that is only measured.
    :param maker: component that makes its group.
    :param devices: IOMMU groups of its passthrough devices, where they belong
        into the group.
    :param shared: name of the group that it has together with others; all of
        them have the same ``desired``.
    :param monitor: whether somebody asked for it to be measured.
    :param ways: how many ways of the L3 it has to itself, by domain.
    """

    domain: Domain
    vcpus: frozenset[int]
    online: int
    desired: resolve.Desired
    maker: Maker
    devices: frozenset[int] = frozenset()
    shared: str = ''
    monitor: bool = False
    ways: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_only_measured(self) -> bool:
        """Whether the guest has no bandwidth policy and is only measured."""
        return (self.maker == 'ghsched' and self.monitor
                and not self.shared and not self.desired)

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
                self.domain.uuid
            )
        machine = naming.render_machine_name(self.domain.id, self.domain.name)
        if self.maker == 'libvirt-process':
            return machine
        return f'{machine}-vcpus_{cpulist.render_cpu_list(self.vcpus)}'


@dataclass(frozen=True)
class Wanted:
    """Resctrl groups that a host should have, and its running domains.

    :param guests: guests with a policy.
    :param domains: all running domains, those of ``guests`` among them.
    :param removable: names of groups that were there *before* libvirt was
        asked for its domains. A domain gets its number before its group, so
        one of these whose domain is not in ``domains`` has lost it, and is
        not that of a guest which starts at this moment.
    :param others: value of the domains that a guest does not use, by line.
    :param all_threads: whether the emulator, I/O and vhost threads of a guest
        belong into its group, too.
    :param devices: whether devices of no guest leave the groups of guests,
        see :mod:`ghsched_nova.resctrl.devices`.
    :param monitors: how many monitoring groups there may be in shared groups.
    :param monitors_per_group: how many in one of them.
    :param tolerance: percent by which a line may differ from what it should
        show, by line, see :attr:`host.ResctrlHost.tolerance`.
    :param writes: values to write for values that the kernel shows otherwise,
        see :attr:`host.ResctrlHost.values_to_write`.
    :param staged: see :attr:`dialects.Dialect.staged`.
    :param bounded: value of a new group by line, where the values of all
        groups may add up to no more than there is, see
        :mod:`ghsched_nova.resctrl.bounded`.
    :param scarce: whether a group could not be made because there are no
        more.
    :param cache: the L3 caches, where guests have ways of them to themselves
        or had until now; ``guests`` are then all that have a group.
    """

    guests: tuple[Guest, ...] = ()
    domains: tuple[Domain, ...] = ()
    removable: frozenset[str] = frozenset()
    others: resolve.Others = field(default_factory=dict)
    all_threads: bool = False
    devices: bool = False
    monitors: int = 0
    monitors_per_group: int = 0
    tolerance: resolve.Tolerance = field(default_factory=dict)
    writes: resolve.Writes = field(default_factory=dict)
    staged: bool = False
    bounded: resolve.Others = field(default_factory=dict)
    scarce: bool = False
    cache: Cache | None = None

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
    """Resctrl control group as it was found.

    :param tasks: ids of the threads in it.
    :param schemata: None when it was not read, could not be, or when it is a
        monitoring group.
    :param error: reason why it could not be read.
    :param vcpu_threads: threads in it that are vCPUs, but not of a guest
        whose group it is; of any guest when it is nobody's.
    :param devices: IOMMU groups in it.
    :param monitors: threads in the monitoring group of each guest, by UUID;
        only of a shared group.
    """

    tasks: frozenset[int] = frozenset()
    schemata: Schemata | None = None
    error: str = ''
    vcpu_threads: frozenset[int] = frozenset()
    devices: frozenset[int] = frozenset()
    monitors: Mapping[str, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Counters:
    """Assignable bandwidth counters of a host as they were found.

    :param file: file of a group that has its counters.
    :param free: number of counters that no group has, by domain.
    :param assigned: domains in which there is one, by group and event; with
        ``counters.EVENT`` for each group that was looked at.
    """

    file: str
    free: Mapping[int, int]
    assigned: Mapping[Counted, frozenset[int]]


@dataclass(frozen=True)
class Actual:
    """Resctrl groups and guests' threads as they were found on a host.

    :param groups: all control groups by name, and the monitoring groups that
        guests without a control group have or are to lose.
    :param threads: threads of the guests' processes: names by thread id, by
        UUID. Empty for a guest whose process is not known or has ended.
    :param processes: names of the domains whose process lives, whatever
        libvirt says of them.
    :param monitors_of_others: monitoring groups that are not made here for
        guests that share, where :attr:`Wanted.has_single_rmid_pool` asks for
        them.
    :param root: schemata of the kernel's default group; read only where
        :attr:`Wanted.cache` needs it.
    :param others: schemata of control groups that belong to no guest, read
        only where a guest has ways of the L3.
    :param counters: counters of bandwidth, if a guest asks to be measured and
        counters must be assigned.
    """

    groups: Mapping[str, Group]
    threads: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    processes: frozenset[str] = frozenset()
    monitors_of_others: int = 0
    root: Schemata | None = None
    others: Mapping[str, Schemata] = field(default_factory=dict)
    counters: Counters | None = None


@dataclass(frozen=True)
class Action:
    """Change of a host's resctrl, and the reason for it.

    :param group: its directory below the root.
    :param guest: UUID of the guest it is for; empty for a removal, and for
        what is done for all guests of a shared group.
    :param line: line to write, with its line feed; for ``write line`` and
        counters.
    :param threads: thread IDs to move; for ``move threads``.
    :param devices: IOMMU groups of ``move devices``, and of ``release
        devices``, which go from the group to the default group.
    :param file: file of the group to which the line is written.
    :param part: line and domain that the step sets. When the step fails,
        further steps of this part are skipped; without a part, all further
        steps of the group are.
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
    def what(self) -> str:
        """Schemata line, thread ids or IOMMU groups to write, as text."""
        return (self.line.strip()
                or ', '.join(map(str, self.threads or self.devices)))

    @property
    def is_for_monitoring(self) -> bool:
        """Whether this change of resctrl serves only to measure bandwidth."""
        return self.kind in COUNTING or f'/{naming.MONITORS}' in self.group

    def __str__(self) -> str:
        group = self.group or 'default group'
        return f'{group}: {self.kind}{" " * bool(self.what)}{self.what}'


@dataclass(frozen=True)
class Problem:
    """Reason why a guest's policy is not enforced, as text for people.

    :param guest: UUID of the guest; empty when it is nobody's.
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

    :param foreign: control groups that belong to nobody here.
    :param unmeasured: guests that asked to be measured, and why they are not.
    :param intruded: guests whose own ways of the L3 another guest's group or
        the default group has, too, as the groups are now.
    :param overlaps: guests whose own ways of the L3 a control group of other
        software has, too.
    """

    actions: tuple[Action, ...] = ()
    problems: tuple[Problem, ...] = ()
    foreign: tuple[str, ...] = ()
    unmeasured: tuple[Problem, ...] = ()
    intruded: tuple[Problem, ...] = ()
    overlaps: tuple[Problem, ...] = ()


def check_desired_state(wanted: Wanted) -> None:
    """Refuse a malformed desired state of resctrl.

    The privileged helper checks the state before it makes changes as root.

    :raises ValueError: with the reason.
    """
    for guest in wanted.guests:
        _check_guest(guest)
    _check_cache(wanted.cache)
    for values in (wanted.others, wanted.bounded):
        _check_values({line: {0: value} for line, value in values.items()})
    _check_values({line: dict(enumerate(written.values()))
                   for line, written in wanted.writes.items()})
    for domain in (*wanted.domains, *(guest.domain
                                      for guest in wanted.guests)):
        if not naming.is_uuid(domain.uuid):
            raise ValueError(f'{domain.uuid!r} is not a UUID')
        if '/' in domain.name or '\0' in domain.name:
            raise ValueError(f'{domain.name!r} is not the name of a domain')
        if domain.id < 0:
            raise ValueError(f'{domain.id} is not a number of a domain')
    for name in wanted.removable:
        if not naming.is_guest_group(name):
            raise ValueError(f'{name!r} is not the name of a group of '
                             'guests')


def _check_guest(guest: Guest) -> None:
    if guest.maker not in ('ghsched', 'libvirt', 'libvirt-process'):
        raise ValueError(f'{guest.maker!r} is not a maker of control groups')
    if not guest.vcpus or min(guest.vcpus) < 0:
        raise ValueError(f'guest {guest.domain.uuid} has no vCPU')
    if guest.devices and min(guest.devices) < 0:
        raise ValueError(f'{min(guest.devices)} is not an IOMMU group')
    if guest.shared and not naming.is_shared_group(guest.shared):
        raise ValueError(f'{guest.shared!r} is not the name of a shared group')
    _check_values(guest.desired)
    _check_values({'L3': dict(guest.ways)})


def _check_cache(cache: Cache | None) -> None:
    if cache is None:
        return
    _check_values({line: {} for line in cache.lines})
    if (min(cache.mask, cache.region, cache.least) < 1
            or cache.region & ~cache.mask or min(cache.domains) < 0
            or any(taken & ~cache.mask
                   for taken in cache.exclusive.values())):
        raise ValueError(f'{cache} is not a cache')


def _check_values(desired: resolve.Desired) -> None:
    for line, values in desired.items():
        if not _LINE.fullmatch(line):
            raise ValueError(f'{line!r} is not a line of a schemata')
        for domain, value in values.items():
            if domain < 0 or not 0 <= value < 2 ** 32:
                raise ValueError(f'{line}:{domain}={value} is not a value of '
                                 'a schemata')


# -- names --------------------------------------------------------------------


def find_guest_group(guest: Guest, names: Iterable[str]) -> str | None:
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
    found = naming.find_libvirt_groups(names, guest.domain.id, guest.vcpus)
    alike = [
        name
        for name in found
        if is_libvirt_group(naming.parse_machine_name(name), guest.domain)
    ]
    return alike[0] if len(alike) == 1 else None


def is_libvirt_monitor(name: str, domain: Domain) -> bool:
    """Whether libvirt created a monitoring group of this name for a domain.

    libvirt creates one at the start of a guest with ``<monitor>`` in its
    ``<memorytune>``.
    """
    top, _slash, rest = name.rpartition('/')
    return f'{top}/' == naming.MONITORS and is_libvirt_group(
        naming.parse_machine_name(rest), domain
    )


def is_libvirt_group(parsed_name: tuple[int, str] | None,
                     domain: Domain) -> bool:
    """Whether a group has a name that libvirt gives to groups of a domain.

    :param parsed_name: domain id and domain name in the name of the group, see
        :func:`naming.parse_machine_name`; None if it is no name of libvirt.
    :param domain: the domain.
    """
    return (parsed_name is not None and parsed_name[0] == domain.id
            and naming.is_derived_from_domain_name(parsed_name[1],
                                                   domain.name))


def map_guests_by_group(
    guests: Iterable[Guest], names: Collection[str]
) -> dict[str, list[Guest]]:
    """Return the guests of each resctrl group, by name of the group.

    A group may exist already, or may have to be created.

    :param names: names of the existing groups.
    """
    found: dict[str, list[Guest]] = {}
    for guest in guests:
        found.setdefault(find_guest_group(guest, names) or guest.group,
                         []).append(guest)
    return found


def get_monitoring_group_path(group: str, uuid: str) -> str:
    """Return the path of a guest's monitoring group in a shared control group.

    :param group: name of the control group.
    :param uuid: UUID of the guest.
    """
    return f'{group}/{naming.render_monitor_path(uuid)}'


def expand_shared_problems(
    guests: Iterable[Guest], problems: Iterable[Problem]
) -> Iterator[Problem]:
    """Repeat each problem of a shared control group for each of its guests.

    All other problems are yielded unchanged.
    """
    by_group = map_guests_by_group(guests, ())
    for problem in problems:
        concerned = [] if problem.guest else by_group.get(problem.group, [])
        if concerned:
            for guest in concerned:
                yield replace(problem, guest=guest.domain.uuid)
        else:
            yield problem

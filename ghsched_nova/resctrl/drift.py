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


"""What differs between the guests that run and what resctrl holds (pure).

The desired state is made of libvirt's running domains and the policies in
their metadata (:class:`Wanted`), the actual one of directories, ``schemata``
and ``tasks`` (:class:`Actual`, read by :mod:`ghsched_nova.resctrl.survey`).
:func:`make_plan` compares them; :mod:`ghsched_nova.resctrl.reconcile` carries
the plan out. A state that is right gives a plan without an action.

Three kinds of groups are told apart by their names. ``ghsched-<UUID>`` was
made by nova-compute, ``qemu-<id>-<name>`` by libvirt, with
``-vcpus_<list>`` behind it unless the group is for the whole process (libvirt
12.8 and later, for a ``<memorytune>`` without ``vcpus``). All others belong to
somebody else: they are not read, not written and not removed.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Set
from dataclasses import dataclass
from dataclasses import field
import functools
import re
from types import MappingProxyType
from typing import Literal

from ghsched_nova.resctrl import groups
from ghsched_nova.resctrl import own
from ghsched_nova.resctrl import plan
from ghsched_nova.resctrl.schemata import Schemata

Kind = Literal['make group', 'write line', 'move threads', 'remove group',
               'move devices', 'release devices']

#: Who made a guest's group: nova-compute, libvirt for the vCPUs, or libvirt
#: for the whole process.
Maker = Literal['ghsched', 'libvirt', 'libvirt-process']

#: Directories of the root group that are no control groups.
NOT_GROUPS = frozenset({'info', 'mon_groups', 'mon_data'})

_UUID = re.compile(r'[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}')
_LIBVIRT = re.compile(r'qemu-([0-9]{1,9})-([A-Za-z0-9.-]*?)'
                      r'(?:-vcpus_[0-9,-]+)?')
_LINE = re.compile(r'[A-Z][A-Z0-9_]{0,31}')
_LETTERS = re.compile(r'[^A-Za-z0-9]')
_NONE: plan.Others = MappingProxyType({})
#: libvirt adds to the name of a machine as long as it is shorter.
_MACHINE_LENGTH = 64


@dataclass(frozen=True)
class Domain:
    """A domain of libvirt that runs, whether it has a policy or not.

    :param id: libvirt's number; a new one with each start.
    """

    uuid: str
    id: int
    name: str


@dataclass(frozen=True)
class Guest:
    """A running domain with a policy that needs a control group.

    :param vcpus: the vCPUs that belong into the group.
    :param online: how many of them have a thread at least; the others may be
        plugged in later.
    :param desired: values by line and domain, in the order of writing.
    :param maker: who makes its group.
    :param devices: IOMMU groups of its passthrough devices, where they belong
        into the group.
    """

    domain: Domain
    vcpus: frozenset[int]
    online: int
    desired: plan.Desired
    maker: Maker
    devices: frozenset[int] = frozenset()

    @property
    def group(self) -> str:
        """The name that its group has, or gets when it must be made."""
        if self.maker == 'ghsched':
            return own.group_name(self.domain.uuid)
        machine = machine_name(self.domain)
        if self.maker == 'libvirt-process':
            return machine
        return f'{machine}-vcpus_{groups.canonical_list(self.vcpus)}'


@dataclass(frozen=True)
class Wanted:
    """The desired state.

    :param guests: those with a policy.
    :param domains: all that run, those of ``guests`` among them.
    :param removable: names of groups that were there *before* libvirt was
        asked for its domains. A domain gets its number before its group, so
        one of these whose domain is not in ``domains`` has lost it, and is
        not that of a guest which starts at this moment.
    :param others: value of the domains that a guest does not use, by line.
    :param all_threads: whether the emulator, I/O and vhost threads of a guest
        belong into its group, too.
    :param devices: whether devices of no guest leave the groups of guests,
        see :mod:`ghsched_nova.resctrl.devices`.
    """

    guests: tuple[Guest, ...] = ()
    domains: tuple[Domain, ...] = ()
    removable: frozenset[str] = frozenset()
    others: plan.Others = field(default_factory=dict)
    all_threads: bool = False
    devices: bool = False


@dataclass(frozen=True)
class Group:
    """A control group as it was found.

    :param tasks: ids of the threads in it.
    :param schemata: None when it was not read, or could not be.
    :param error: why it could not be read.
    :param vcpu_threads: threads in it that are vCPUs, but not of the guest
        whose group it is; of any guest when it is nobody's.
    :param devices: IOMMU groups in it.
    """

    tasks: frozenset[int] = frozenset()
    schemata: Schemata | None = None
    error: str = ''
    vcpu_threads: frozenset[int] = frozenset()
    devices: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Actual:
    """The actual state.

    :param groups: all control groups by name.
    :param threads: threads of the guests' processes: names by thread id, by
        UUID. Empty for a guest whose process is not known or has ended.
    :param processes: names of the domains whose process lives, whatever
        libvirt says of them.
    """

    groups: Mapping[str, Group]
    threads: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    processes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Action:
    """One step, and why it is needed.

    :param guest: UUID of the guest it is for; empty for a removal.
    :param line: of ``write line``, with its line feed.
    :param threads: of ``move threads``.
    :param devices: IOMMU groups of ``move devices``, and of ``release
        devices``, which go from the group to the default group.
    """

    kind: Kind
    group: str
    reason: str
    guest: str = ''
    line: str = ''
    threads: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()

    @property
    def what(self) -> str:
        """The line, the threads or the IOMMU groups, for people."""
        return (self.line.strip()
                or ', '.join(map(str, self.threads or self.devices)))

    def __str__(self) -> str:
        return f'{self.group}: {self.kind}{" " * bool(self.what)}{self.what}'


@dataclass(frozen=True)
class Problem:
    """What keeps a guest's policy from being held, for people.

    :param guest: UUID of the guest; empty when it is nobody's.
    """

    guest: str
    group: str
    reason: str

    def __str__(self) -> str:
        return f'{self.group}: {self.reason}' if self.group else self.reason


@dataclass(frozen=True)
class Plan:
    """What is to be done, in this order: removals make room.

    :param foreign: control groups that belong to nobody here.
    """

    actions: tuple[Action, ...] = ()
    problems: tuple[Problem, ...] = ()
    foreign: tuple[str, ...] = ()


def make_plan(actual: Actual, wanted: Wanted) -> Plan:
    """The steps from the actual state to the desired one."""
    actions = [Action('remove group', name, reason)
               for name, reason in sorted(_leaked(actual, wanted).items())]
    problems: list[Problem] = []
    taken = {action.group for action in actions}
    at_home = frozenset(tid for threads in actual.threads.values()
                        for tid in threads)
    for guest in wanted.guests:
        name = group_of(guest, actual.groups)
        taken.add(name or guest.group)
        try:
            actions += _for_guest(guest, name, actual, wanted.all_threads,
                                  wanted.others)
        except _CanNot as error:
            problems.append(Problem(guest.domain.uuid, name or guest.group,
                                    str(error)))
        problems += _strangers(guest, name, actual, at_home)
    running = _by_id(wanted.domains)
    return Plan(tuple(actions), tuple(problems), tuple(sorted(
        name for name in actual.groups if name not in taken
        and _is_foreign(name, running))))


def check(wanted: Wanted) -> None:
    """Refuse what can not be a desired state, before root works with it.

    :raises ValueError: names what is wrong.
    """
    domains = [*wanted.domains, *(guest.domain for guest in wanted.guests)]
    for domain in domains:
        if not _UUID.fullmatch(domain.uuid):
            raise ValueError(f'{domain.uuid!r} is no UUID')
        if '/' in domain.name or '\0' in domain.name:
            raise ValueError(f'{domain.name!r} is no name of a domain')
        if domain.id < 0:
            raise ValueError(f'{domain.id} is no number of a domain')
    for guest in wanted.guests:
        if guest.maker not in ('ghsched', 'libvirt', 'libvirt-process'):
            raise ValueError(f'{guest.maker!r} makes no groups')
        if not guest.vcpus or min(guest.vcpus) < 0:
            raise ValueError(f'guest {guest.domain.uuid} has no vCPU')
        if guest.devices and min(guest.devices) < 0:
            raise ValueError(f'{min(guest.devices)} is no IOMMU group')
        _check_values(guest.desired)
    _check_values({line: {0: value}
                   for line, value in wanted.others.items()})


def _check_values(desired: plan.Desired) -> None:
    for line, values in desired.items():
        if not _LINE.fullmatch(line):
            raise ValueError(f'{line!r} is no line of a schemata')
        for domain, value in values.items():
            if domain < 0 or not 0 <= value < 2 ** 32:
                raise ValueError(f'{line}:{domain}={value} is no value of a '
                                 'schemata')


# -- names --------------------------------------------------------------------


def machine_name(domain: Domain) -> str:
    """The beginning of the group's name, as libvirt makes it.

    Characters that a host name can not have are left out, dots and dashes
    stand for themselves only after something else, and nothing is added from
    64 characters on (virDomainGenerateMachineName() of
    src/conf/domain_conf.c).
    """
    text, after_mark = f'qemu-{domain.id}-', True
    for letter in domain.name:
        if len(text) >= _MACHINE_LENGTH:
            break
        if letter in '.-':
            text += '' if after_mark else letter
            after_mark = True
            continue
        after_mark = False
        if letter.isascii() and letter.isalnum():
            text += letter
    return text


def group_of(guest: Guest, names: Iterable[str]) -> str | None:
    """The group of a guest among those that are there; None without one."""
    if guest.group in names:
        return guest.group
    if guest.maker != 'libvirt':
        return None
    # A libvirt that spells the name in another way.
    found = groups.find_groups(names, guest.domain.id, guest.vcpus)
    alike = [name for name in found if _is_of(_machine(name), guest.domain)]
    return alike[0] if len(alike) == 1 else None


def is_guests(name: str) -> bool:
    """Whether a group is, or was, that of a guest."""
    return _own_uuid(name) is not None or _machine(name) is not None


def foreign(names: Iterable[str]) -> frozenset[str]:
    """The groups that no guest has or had."""
    return frozenset(name for name in names
                     if name not in NOT_GROUPS and not is_guests(name))


def _own_uuid(name: str) -> str | None:
    uuid = own.guest_of(name)
    return uuid if uuid and _UUID.fullmatch(uuid) else None


@functools.lru_cache(maxsize=4096)
def _machine(name: str) -> tuple[int, str] | None:
    """libvirt's number of the domain and what the name has of its name."""
    match = _LIBVIRT.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def _is_of(machine: tuple[int, str] | None, domain: Domain) -> bool:
    return (machine is not None and machine[0] == domain.id
            and _alike(machine[1], domain.name))


def _alike(part: str, name: str) -> bool:
    """Whether what a group has of a name can be of this one.

    Marks do not count and the end may be missing, so that a group is rather
    left than taken from a guest.
    """
    return _LETTERS.sub('', name).startswith(_LETTERS.sub('', part))


def _by_id(domains: Iterable[Domain]) -> dict[int, Domain]:
    return {domain.id: domain for domain in domains}


def _is_foreign(name: str, running: Mapping[int, Domain]) -> bool:
    """Also one that libvirt made for a running domain without a policy."""
    if _own_uuid(name):
        return False
    machine = _machine(name)
    if machine is None:
        return True
    return machine[0] in running and _is_of(machine, running[machine[0]])


# -- groups that nobody needs -------------------------------------------------


def _leaked(actual: Actual, wanted: Wanted) -> dict[str, str]:
    """Groups to remove, and why."""
    uuids = {domain.uuid for domain in wanted.domains}
    running = _by_id(wanted.domains)
    # A process whose domain is not known is that of a guest that starts.
    unknown = actual.processes - {domain.name for domain in wanted.domains}
    found = {}
    for name in wanted.removable & actual.groups.keys():
        reason = (_left_by_us(name, actual.groups[name], uuids)
                  or _left_by_libvirt(name, actual.groups[name], running,
                                      unknown))
        if reason:
            found[name] = reason
    return found


def _left_by_us(name: str, group: Group, uuids: Set[str]) -> str:
    uuid = _own_uuid(name)
    if uuid is None or uuid in uuids or group.vcpu_threads or group.error:
        return ''
    return f'no guest {uuid} runs'


def _left_by_libvirt(name: str, group: Group, running: Mapping[int, Domain],
                     unknown: Set[str]) -> str:
    machine = _machine(name)
    if machine is None or group.tasks or group.error:
        return ''
    number, part = machine
    if number in running and _is_of(machine, running[number]):
        return ''
    if any(_alike(part, name) for name in unknown):
        return ''
    return f'libvirt left it: no domain {number} of this name runs'


# -- one guest ----------------------------------------------------------------


class _CanNot(Exception):  # noqa: N818
    """Nothing can be done for a guest; says why."""


def _for_guest(guest: Guest, name: str | None, actual: Actual,
               all_threads: bool, others: plan.Others = _NONE
               ) -> Iterator[Action]:
    threads = actual.threads.get(guest.domain.uuid, {})
    vcpus = _vcpus(guest, threads)
    if name is None:
        if len(vcpus) < guest.online:
            raise _CanNot('the control group is not there, and '
                          + _missing(guest, vcpus))
        group = Group()
        yield Action('make group', guest.group,
                     'the guest has no control group', guest.domain.uuid)
        yield from _fill(guest)
    else:
        group = actual.groups[name]
        yield from _mend(guest, name, group, others)
    yield from _move(guest, name or guest.group, group, threads, vcpus,
                     all_threads)
    if len(vcpus) < guest.online:
        raise _CanNot(_missing(guest, vcpus))


def _vcpus(guest: Guest, threads: Mapping[int, str]) -> dict[int, int]:
    """Thread ids by vCPU, of those that belong into the group."""
    found = {}
    for tid, name in threads.items():
        vcpu = groups.vcpu_of(name)
        if vcpu is not None and vcpu in guest.vcpus:
            found[vcpu] = tid
    return found


def _missing(guest: Guest, vcpus: Mapping[int, int]) -> str:
    if not vcpus:
        return 'no thread of a vCPU of the guest can be found'
    return (f'the guest has threads of {len(vcpus)} vCPUs, '
            f'{guest.online} are expected')


def _fill(guest: Guest) -> Iterator[Action]:
    for line, values in guest.desired.items():
        text = ';'.join(f'{domain}={value}'
                        for domain, value in sorted(values.items()))
        yield Action('write line', guest.group, 'the group is new',
                     guest.domain.uuid, line=f'{line}:{text}\n')


def _mend(guest: Guest, name: str, group: Group,
          others: plan.Others) -> Iterator[Action]:
    if group.schemata is None:
        raise _CanNot(group.error or 'its schemata was not read')
    wrong = plan.differences(group.schemata, guest.desired, others)
    if not wrong:
        return
    try:
        lines = plan.plan_writes(group.schemata, guest.desired, others)
    except plan.PolicyNotHeld as error:
        raise _CanNot(error.reason) from error
    for line in lines:
        reason = '; '.join(str(difference) for difference in wrong
                           if difference.line == line.partition(':')[0])
        yield Action('write line', name, reason, guest.domain.uuid, line=line)


def _move(guest: Guest, name: str, group: Group,
          threads: Mapping[int, str], vcpus: Mapping[int, int],
          all_threads: bool) -> Iterator[Action]:
    if all_threads or guest.maker == 'libvirt-process':
        belong = {**vcpus, **{-tid: tid for tid in threads}}
    else:
        belong = dict(vcpus)
    outside = {vcpu: tid for vcpu, tid in vcpus.items()
               if tid not in group.tasks}
    moved = sorted({tid for tid in belong.values()
                    if tid not in group.tasks})
    if not moved:
        return
    reasons = []
    if outside:
        reasons.append(f'vCPUs {groups.canonical_list(outside)}')
    if len(moved) > len(outside):
        reasons.append(f'{len(moved) - len(outside)} other threads')
    yield Action('move threads', name,
                 ' and '.join(reasons) + ' of the guest are not in it',
                 guest.domain.uuid, threads=tuple(moved))


def _strangers(guest: Guest, name: str | None, actual: Actual,
               at_home: Set[int]) -> Iterator[Problem]:
    """vCPUs of a guest that has no group of its own to go back to."""
    if name is None:
        return
    strange = actual.groups[name].vcpu_threads - at_home
    if strange:
        yield Problem(guest.domain.uuid, name,
                      'threads of vCPUs of another guest are in it: '
                      + ', '.join(map(str, sorted(strange))))

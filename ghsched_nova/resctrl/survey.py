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


"""The actual state: control groups and the threads of guests, read only.

Only what is needed is read: of a control group of other software its schemata,
and only where guests have ways of the L3; of a group that may be removed the
list of its threads.
"""

from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Set
import contextlib
from dataclasses import replace
from pathlib import Path

from ghsched_nova.resctrl import counters
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import guest_processes
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import schemata
from ghsched_nova.resctrl import tasks


_NOTHING = model.Actual({})


def read_actual_state(files: fs.Files, root: Path, wanted: model.Wanted,
                      run_path: Path, proc: Path,
                      known: model.Actual = _NOTHING) -> model.Actual:
    """Read the resctrl groups of a host and the threads of its guests.

    :param root: mount point of resctrl; its lock must be held.
    :param run_path: directory with libvirt's ``<domain name>.pid`` files.
    :param proc: mount point of procfs.
    :param known: state of groups and threads that is not read again.
    :raises GroupError: if the groups cannot be listed.
    """
    names = _list_group_names(files, root, wanted)
    other_monitors = (_count_other_monitors(
        files, root, names, known.monitors_of_others)
        if wanted.has_single_rmid_pool else {})
    members = model.map_guests_by_group(wanted.guests, names)
    counted = (counters.read_counter_assignments(
        files, root, counters.map_guests_by_measured_group(members),
        known.counters)
        if any(guest.monitor for guest in wanted.guests) else None)
    others = (_read_schemata(files, root, names.keys() - members.keys(),
                             known.others)
              if any(guest.ways for guest in wanted.guests) else {})
    # A group with other members than before is read again.
    groups = {name: group for name, group in known.groups.items()
              if name in names
              and known.members.get(name) == members.get(name)}
    unread = (wanted.removable & names.keys()) - members.keys() - groups.keys()
    threads = _read_guest_groups(
        files, root, members, names, groups, known.threads,
        _make_guest_processes(wanted, run_path, proc))
    for name in unread:
        groups[name] = _read_unused_group(files, root / name, proc)
    running = (guest_processes.list_running_domains(run_path, proc)
               if unread else known.processes)
    return model.Actual(
        {name: groups.get(name, model.Group()) for name in names},
        members, threads, running, other_monitors,
        _read_group(files, root).schemata if wanted.cache or wanted.bounded
        else None, others, counted)


def _make_guest_processes(wanted: model.Wanted, run_path: Path, proc: Path
                          ) -> guest_processes.GuestProcesses:
    domains = *wanted.domains, *(guest.domain for guest in wanted.guests)
    return guest_processes.GuestProcesses(
        proc, run_path, frozenset(domain.name for domain in domains),
        wanted.all_threads)


def _list_group_names(files: fs.Files, root: Path,
                      wanted: model.Wanted) -> dict[str, None]:
    """Return the names of the control groups and of guests' monitoring groups.

    Guests without a control group are measured in monitoring groups of the
    default control group. Other monitoring groups there are left out.
    """
    try:
        names = [name for name in files.directories(root)
                 if name not in naming.NOT_GROUPS]
    except OSError as exc:
        raise fs.make_group_error('cannot be listed', root, exc) from exc
    measured = [guest for guest in wanted.guests if guest.is_only_measured]
    known = {name for name in (*wanted.removable,
                               *(guest.group for guest in measured))
             if (parsed := naming.parse_group_name(name)).is_default_monitor
             and parsed.uuid}
    with contextlib.suppress(OSError):      # a host without monitors
        there = files.directories(
            root / naming.MONITORS) if known or measured else []
        names += [name for name in map(naming.MONITORS.__add__, there)
                  if name in known
                  or any(model.is_libvirt_monitor(name, guest.domain)
                         for guest in measured)]
    return dict.fromkeys(names)


def _read_schemata(files: fs.Files, root: Path, names: Set[str],
                   known: Mapping[str, schemata.Schemata]
                   ) -> dict[str, schemata.Schemata]:
    """Return the schemata of control groups that no guest uses, by name.

    :param names: names of groups that no guest uses.
    :param known: schemata that are not read again, by name.
    """
    found = {name: known[name] for name in names & known.keys()}
    for name in names - known.keys():
        if naming.parse_group_name(name).is_default_monitor:
            continue
        # A group that has just been removed overlaps nothing.
        with contextlib.suppress(OSError, schemata.SchemataError):
            found[name] = schemata.parse_kernel_schemata(
                files.read(root / name / 'schemata')
            )
    return found


def _read_guest_groups(
    files: fs.Files, root: Path, members: model.Members,
    names: Container[str], groups: dict[str, model.Group],
    known: Mapping[str, model.Threads],
    processes: guest_processes.GuestProcesses
) -> dict[str, model.Threads]:
    """Add the groups of guests to those that are known; read the threads.

    :param members: guests by group.
    :param names: names of the groups that exist.
    :param groups: known groups by name, to which the other groups are added.
    :param known: threads that are not read again, by guest UUID.
    :returns: threads by guest UUID.
    """
    threads: dict[str, model.Threads] = {}
    for name, guests in members.items():
        is_known = name in groups
        group = groups[name] if is_known else _read_group(
            files, root / name, bool(guests[0].shared)
        ) if name in names else model.Group()
        mine = {
            uuid: known[uuid] if uuid in known
            else threads.get(uuid)
            or processes.read_threads(guest, group.tasks)
            for guest in guests for uuid in (guest.domain.uuid,)}
        threads |= mine
        own = frozenset[int]().union(*mine.values())
        if own and group.tasks - own and not is_known:
            group = replace(group, vcpu_threads=tasks.select_vcpu_threads(
                group.tasks - own, processes.proc))
        groups[name] = group
    return threads


def _read_group(files: fs.Files, path: Path, shared: bool = False,
                has_values: bool = True) -> model.Group:
    try:
        listed = files.read(path / 'tasks')
        inside = tasks.parse_thread_ids(listed)
        devices = tasks.parse_iommu_groups(listed)
        if not has_values or f'{path.parent.name}/' == naming.MONITORS:
            return model.Group(inside, devices=devices)
        text = files.read(path / 'schemata')
        return model.Group(
            inside,
            schemata.parse_kernel_schemata(text),
            devices=devices,
            monitors=_read_monitoring_groups(files, path) if shared else {},
        )
    except schemata.SchemataError as exc:
        return model.Group(inside, error=f'schemata: {exc}', devices=devices)
    except OSError as exc:
        return model.Group(error=f'cannot be read: {exc.strerror or exc}')


def _read_monitoring_groups(
    files: fs.Files, path: Path
) -> dict[str, frozenset[int]]:
    """Return the threads in the monitoring groups of a shared control group.

    :param path: directory of the control group.
    :returns: thread ids by guest UUID.
    """
    top, found = path / naming.MONITORS, {}
    with contextlib.suppress(OSError):      # a host without monitors
        for name in files.directories(top):
            uuid = naming.parse_group_name(name).uuid
            if uuid is not None:
                found[uuid] = tasks.parse_thread_ids(
                    files.read(top / name / 'tasks'))
    return found


def _count_other_monitors(files: fs.Files, root: Path,
                          names: Iterable[str], known: Mapping[str, int]
                          ) -> dict[str, int]:
    """Count monitoring groups that do not measure guests in shared groups.

    They belong, for example, to other software. They use monitoring ids
    (RMIDs), which guests in shared control groups then cannot use.

    :param names: names of the control groups.
    :param known: numbers that are not counted again, by control group.
    :returns: number by control group.
    """
    counts = {}
    for name in ('', *names):
        if name in known:
            counts[name] = known[name]
            continue
        with contextlib.suppress(OSError):      # one that has just gone
            inside = files.directories(root / name / naming.MONITORS)
            shared = naming.parse_group_name(name).is_shared
            counts[name] = sum(
                not (shared and naming.parse_group_name(one).uuid)
                for one in inside)
    return counts


def _read_unused_group(files: fs.Files, path: Path, proc: Path) -> model.Group:
    group = _read_group(files, path, has_values=False)
    return replace(group, vcpu_threads=tasks.select_vcpu_threads(
        group.tasks, proc))

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

from collections.abc import Iterable
from collections.abc import Mapping
from collections import ChainMap
import contextlib
from dataclasses import replace
import os
from pathlib import Path

from ghsched_nova import qemu
from ghsched_nova.resctrl import counters
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import schemata
from ghsched_nova.resctrl import tasks
from ghsched_placement import decimals

#: Flag of a thread that has no user process (PF_KTHREAD in
#: include/linux/sched.h).
KERNEL_THREAD = 0x00200000


def read_actual_state(files: fs.Files, root: Path, wanted: model.Wanted,
                      run_path: Path, proc: Path) -> model.Actual:
    """Read the resctrl groups of a host and the threads of its guests.

    :param root: mount point of resctrl; its lock must be held.
    :param run_path: directory with libvirt's ``<domain name>.pid`` files.
    :param proc: mount point of procfs.
    :raises GroupError: if the groups cannot be listed.
    """
    names = _list_group_names(files, root, wanted)
    found = dict.fromkeys(names, model.Group())
    threads: dict[str, Mapping[int, str]] = {}
    others = _read_vhost_threads(proc) if wanted.all_threads else {}
    members = model.map_guests_by_group(wanted.guests, names)
    single_pool = wanted.has_single_rmid_pool
    claimed = {qemu.find_qemu_process(run_path, domain.name) or 0 for domain in
               (*wanted.domains, *(guest.domain for guest in wanted.guests))}
    for name, guests in members.items():
        there = name in names
        group = _read_group(files, root / name, bool(
            guests[0].shared)) if there else model.Group()
        of_guests = {guest.domain.uuid: _read_qemu_threads(
            _find_guest_process(guest, group, claimed, run_path, proc),
            proc, others) for guest in guests}
        threads |= of_guests
        if there:
            found[name] = _add_foreign_vcpus(
                group, dict(ChainMap(*of_guests.values())), proc)
    others_read = _read_groups_without_guest(
        files, root, wanted, names.keys() - members.keys())
    loose = (wanted.removable & names.keys()) - members.keys()
    for name in loose:
        found[name] = _read_unused_group(files, root / name, proc)
    counted = _read_counters(files, root, wanted, found)
    return model.Actual(
        found, threads,
        _list_running_domains(run_path, proc) if loose else frozenset(),
        _count_other_monitors(files, root, names) if single_pool else 0,
        (_read_group(files, root).schemata if wanted.cache or wanted.bounded
         else None), others_read, counted)


def _list_group_names(files: fs.Files, root: Path,
                      wanted: model.Wanted) -> dict[str, None]:
    measuring = _list_measuring_groups(files, root, wanted)
    try:
        names = [name for name in files.directories(root)
                 if name not in naming.NOT_GROUPS]
    except OSError as exc:
        raise fs.make_group_error('cannot be listed', root, exc) from exc
    return dict.fromkeys([*names, *measuring])


def _read_groups_without_guest(files: fs.Files, root: Path,
                               wanted: model.Wanted, names: Iterable[str]
                               ) -> dict[str, schemata.Schemata]:
    """Return the schemata of control groups that no guest uses, by name.

    The result is empty if no guest reserves L3 cache ways.

    :param names: names of groups that no guest uses.
    """
    found = {}
    for name in names if any(guest.ways for guest in wanted.guests) else ():
        if name.startswith(naming.MONITORS):
            continue
        # A group that has just been removed overlaps nothing.
        with contextlib.suppress(OSError, schemata.SchemataError):
            found[name] = schemata.parse_kernel_schemata(
                files.read(root / name / 'schemata')
            )
    return found


def _read_counters(files: fs.Files, root: Path, wanted: model.Wanted,
                   groups: Mapping[str, model.Group]) -> model.Counters | None:
    """Return which resctrl groups have the host's bandwidth counters.

    Returns None if no guest is to be measured, or if the kernel counts the
    bandwidth of every group anyway.
    """
    if not any(guest.monitor for guest in wanted.guests):
        return None
    return counters.read_counter_assignments(
        files, root, counters.map_measuring_groups(wanted.guests, groups)
    )


def _find_guest_process(guest: model.Guest, group: model.Group,
                        claimed: set[int], run_path: Path, proc: Path) -> int:
    """Return the process id of a guest's QEMU.

    :param group: resctrl group of the guest; its threads are used if libvirt
        has no pid file.
    :param claimed: process ids of other guests. The result is added to them.
    :returns: 0 if the process is unknown.
    """
    process = qemu.find_qemu_process(run_path, guest.domain.name) or 0
    if not process and not guest.shared:
        process = _find_qemu_process(proc, group.tasks, guest.domain.uuid)
        if process in claimed:
            process = 0
        claimed.add(process)
    return process


def _list_measuring_groups(files: fs.Files, root: Path,
                           wanted: model.Wanted) -> list[str]:
    """Return the guests' monitoring groups in the default control group.

    Guests without a control group are measured in such a group.
    """
    known = wanted.removable | {guest.group for guest in wanted.guests}
    known = frozenset(name for name in known
                      if name.startswith(naming.MONITORS)
                      and naming.parse_own_group_uuid(name))
    domains = [
        guest.domain for guest in wanted.guests if guest.is_only_measured
    ]
    if not known and not domains:
        return []
    try:
        there = files.directories(root / naming.MONITORS)
    except OSError:     # a host without monitors
        return []
    return [name for name in map(naming.MONITORS.__add__, there)
            if name in known or any(model.is_libvirt_monitor(name, domain)
                                    for domain in domains)]


def _read_qemu_threads(process: int, proc: Path,
                       others: Mapping[int, Mapping[int, str]]) -> dict[int,
                                                                        str]:
    """Return the names of all threads that serve a guest's QEMU process.

    These are the threads of the process, and kernel threads that work for it.

    :param process: process id of QEMU.
    :param others: kernel threads by process id.
    :returns: thread names by thread id.
    """
    mine = _read_threads(proc, process) if process else {}
    if mine:
        mine.update(others.get(process, {}))
    return mine


def _read_group(files: fs.Files, path: Path,
                shared: bool = False) -> model.Group:
    try:
        is_measuring = f'{path.parent.name}/' == naming.MONITORS
        listed = files.read(path / 'tasks')
        inside = tasks.parse_thread_ids(listed)
        devices = tasks.parse_iommu_groups(listed)
        if is_measuring:
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
            uuid = naming.parse_own_group_uuid(name)
            if uuid is not None:
                found[uuid] = tasks.parse_thread_ids(
                    files.read(top / name / 'tasks'))
    return found


def _count_other_monitors(files: fs.Files, root: Path,
                          names: Iterable[str]) -> int:
    """Count monitoring groups that do not measure guests in shared groups.

    They belong, for example, to other software. They use monitoring ids
    (RMIDs), which guests in shared control groups then cannot use.

    :param names: names of the control groups.
    """
    count = 0
    for name in ('', *names):
        with contextlib.suppress(OSError):      # one that has just gone
            inside = files.directories(root / name / naming.MONITORS)
            count += sum(
                not (
                    naming.is_shared_group(
                        name) and naming.parse_own_group_uuid(one)
                )
                for one in inside
            )
    return count


def _read_unused_group(files: fs.Files, path: Path, proc: Path) -> model.Group:
    try:
        listed = files.read(path / 'tasks')
    except OSError as exc:
        return model.Group(error=f'cannot be read: {exc.strerror or exc}')
    inside = tasks.parse_thread_ids(listed)
    return model.Group(inside,
                       vcpu_threads=tasks.select_vcpu_threads(inside, proc),
                       devices=tasks.parse_iommu_groups(listed))


def _add_foreign_vcpus(group: model.Group, mine: Mapping[int, str],
                       proc: Path) -> model.Group:
    strange = group.tasks - mine.keys()
    if not strange or not mine:
        return group
    return replace(
        group, vcpu_threads=tasks.select_vcpu_threads(strange, proc)
    )


# -- processes ----------------------------------------------------------------


def _find_qemu_process(proc: Path, tids: Iterable[int], uuid: str) -> int:
    """Find the QEMU process of a guest by the threads in its resctrl group.

    :param tids: thread ids in the guest's resctrl group.
    :param uuid: guest UUID, which the command line of QEMU must contain.
    :returns: process id; 0 unless exactly one process matches.
    """
    found = {process for tid in tasks.select_vcpu_threads(tids, proc)
             for process in tasks.read_process_id(proc, tid)}
    number = decimals.parse_decimal(found.pop() if len(found) == 1 else '')
    return number if number and _is_qemu_of_guest(proc, number, uuid) else 0


def _is_qemu_of_guest(proc: Path, process: int, uuid: str) -> bool:
    """Whether a process is a guest's QEMU, by the UUID in its command line."""
    try:
        words = _read_file(f'{proc}/{process}/cmdline', 2 ** 20).split('\0')
        return words[words.index('-uuid') + 1] == uuid
    except (OSError, ValueError, IndexError):
        return False


def _read_threads(proc: Path, process: int) -> dict[int, str]:
    """Return the thread names of a process, by thread id.

    The result is empty if the process has ended.
    """
    found = {}
    top = f'{proc}/{process}/task'
    try:
        names = os.listdir(top)
    except OSError:
        return {}
    for tid in names:
        try:
            # Beside the process, not below it: /proc/<tid> is there as well.
            found[int(tid)] = _read_file(f'{proc}/{tid}/comm').rstrip('\n')
        except (OSError, ValueError):
            continue
    return found


def _read_vhost_threads(proc: Path) -> dict[int, dict[int, str]]:
    """Return the vhost kernel threads that serve each QEMU process.

    Up to Linux 6.3 vhost has a kernel thread ``vhost-<process>`` per queue;
    later it runs in a thread of the process.

    :returns: thread names by thread id, by process id.
    """
    found: dict[int, dict[int, str]] = {}
    for tid in _list_process_ids(proc):
        name = tasks.read_thread_name(proc, tid)
        process = (decimals.parse_decimal(name.removeprefix('vhost-'))
                   if name.startswith('vhost-') else None)
        if process is not None and _is_kernel_thread(proc, tid):
            found.setdefault(process, {})[tid] = name
    return found


def _is_kernel_thread(proc: Path, tid: int) -> bool:
    """Whether a thread is a kernel thread, by the flags in its stat file."""
    try:
        fields = _read_file(f'{proc}/{tid}/stat').rpartition(')')[2].split()
        return bool(int(fields[6]) & KERNEL_THREAD)
    except (OSError, ValueError, IndexError):
        return False


def _list_running_domains(run_path: Path, proc: Path) -> frozenset[str]:
    """Return the names of libvirt domains whose QEMU process is running.

    :param run_path: directory with libvirt's ``<domain name>.pid`` files.
    """
    try:
        names = [name.removesuffix('.pid') for name in os.listdir(run_path)
                 if name.endswith('.pid')]
    except OSError:
        return frozenset()
    return frozenset(
        name for name in names
        if os.path.isdir(proc
                         / str(qemu.find_qemu_process(run_path, name) or '-')))


def _list_process_ids(proc: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(proc) if name.isdecimal()]
    except OSError:
        return []


def _read_file(path: str, max_bytes: int = 4096) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, max_bytes).decode(errors='replace')
    finally:
        os.close(descriptor)

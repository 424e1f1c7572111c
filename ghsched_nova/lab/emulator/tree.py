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

"""The directories and files of groups."""

from collections.abc import Callable

from ghsched_nova.lab.emulator import control_files
from ghsched_nova.lab.emulator import counters as counterlib
from ghsched_nova.lab.emulator import entries
from ghsched_nova.lab.emulator import faults as faultlib
from ghsched_nova.lab.emulator import group_cpus
from ghsched_nova.lab.emulator import groups as grouplib
from ghsched_nova.lab.emulator import info as infolib
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import tasks as tasklib
from ghsched_nova.lab.emulator import traffic as trafficlib

Entry = entries.Entry
Group = grouplib.Group
Store = Callable[[Group, str, int], None]


class Tree:
    """Directories and files below the mount."""

    def __init__(
        self,
        machine: machines.Machine,
        groups: grouplib.Groups,
        tasks: tasklib.Tasks,
        cpus: group_cpus.GroupCpus,
        traffic: trafficlib.Traffic,
        info: infolib.Info,
        injector: faultlib.Injector,
    ):
        self._machine = machine
        self._groups = groups
        self._tasks = tasks
        self._cpus = cpus
        self._traffic = traffic
        self._info = info
        self._injector = injector
        self._control = control_files.ControlFiles(
            machine, groups, traffic, injector)

    def root(self) -> Entry:
        """Return the directory that is mounted."""
        return self._group_dir(self._groups.root)

    def _group_dir(self, group: Group) -> Entry:
        return Entry(
            _mode(self._groups.root, group),
            children=lambda: self._group_entries(group), group=group,
            role='group',
        )

    def _group_entries(self, group: Group) -> dict[str, Entry]:
        found = {
            'cpus': self._cpu_file(
                group, self._cpus.show_mask, self._cpus.write_mask),
            'cpus_list': self._cpu_file(
                group, self._cpus.show_list, self._cpus.write_list),
            'tasks': self._file(
                group, self._tasks.show, self._struck(
                    'tasks', self._tasks.write)),
        }
        if group.parent is None:
            found |= self._control_entries(group)
        if self._machine.monitors:
            found['mon_data'] = entries.directory(
                lambda: self._mon_data(group))
        if self._machine.old_layout:
            found['rmid'] = Entry(0o644, read=lambda: f'{group.rmid}\n')
        for name, counters in self._traffic.counters.items():
            if counters.monitor.counters:
                found[f'mbm_{name}_assignments'] = self._assignments(
                    group, counters)
        if group is self._groups.root:
            found['info'] = entries.directory(self._info.children)
            found |= {name: self._group_dir(one)
                      for name, one in self._groups.named.items()}
        return found

    def _control_entries(self, group: Group) -> dict[str, Entry]:
        files = self._control
        found = {
            'schemata': self._file(
                group, files.show_schemata, files.write_schemata),
        }
        if not self._machine.old_layout:
            found['mode'] = self._file(
                group, files.show_mode, files.write_mode)
            found['size'] = Entry(
                0o444, read=lambda: files.show_size(group))
        if 'mba_MBps' in self._machine.mount_options:
            found['mba_MBps_event'] = self._file(
                group, files.show_event, files.write_event)
        if self._machine.monitors:
            found['mon_groups'] = Entry(
                _mode(self._groups.root, group), group=group,
                role='mon_groups',
                children=lambda: {
                    name: self._group_dir(child)
                    for name, child in group.children.items()
                },
            )
        return found

    @staticmethod
    def _file(
        group: Group, show: Callable[[Group], str], store: Store
    ) -> Entry:
        return Entry(
            0o644, group=group, read=lambda: show(group),
            write=lambda text, caller: store(group, text, caller),
        )

    def _struck(self, operation: str, store: Store) -> Store:
        def struck(group: Group, text: str, caller: int) -> None:
            self._injector.strike(operation, group.name)
            store(group, text, caller)

        return struck

    def _cpu_file(
        self, group: Group, show: Callable[[Group], str], store: Store
    ) -> Entry:
        def accounted(group: Group, text: str, caller: int) -> None:
            # What threads did so far counts for the group of then.
            self._traffic.account(self._groups.root, force=True)
            store(group, text, caller)

        return self._file(group, show, self._struck('cpus', accounted))

    def _assignments(
        self, group: Group, counters: counterlib.Counters
    ) -> Entry:
        def write(text: str, _caller: int) -> None:
            self._traffic.account(group, force=True)
            counters.write(group.number, text)

        return Entry(
            0o644, write=write, clears_status=True,
            read=lambda: counters.show(group.number),
        )

    def _mon_data(self, group: Group) -> dict[str, Entry]:
        found = {
            f'mon_{monitor.resource}_{domain:02d}': self._mon_domain(
                group, monitor, domain
            )
            for monitor in self._machine.monitors
            for domain in self._machine.domains(monitor.scope)
        }
        for name, scope in self._machine.empty_monitors:
            found |= {
                f'mon_{name}_{domain:02d}': entries.directory(dict)
                for domain in self._machine.domains(scope)
            }
        return found

    def _mon_domain(
        self, group: Group, monitor: machines.Monitor, domain: int
    ) -> Entry:
        if self._machine.old_layout:
            return self._mon_file(
                group, monitor, monitor.features[0], domain)

        def children() -> dict[str, Entry]:
            found = {
                feature: self._mon_file(group, monitor, feature, domain)
                for feature in monitor.features
            }
            return found | self._mon_nodes(group, monitor, domain)

        return entries.directory(children)

    def _mon_nodes(
        self, group: Group, monitor: machines.Monitor, domain: int
    ) -> dict[str, Entry]:
        """Return the files of each NUMA node below an L3 cache."""
        return {
            f'mon_sub_L3_{node.id:02d}': entries.directory(
                lambda node=node: {  # type: ignore[misc]
                    feature: self._mon_file(
                        group, monitor, feature, domain, node.id)
                    for feature in monitor.features
                }
            )
            for node in self._machine.nodes
            if monitor.nodes and node.l3 == domain
        }

    def _mon_file(
        self, group: Group, monitor: machines.Monitor, feature: str,
        domain: int, node: int | None = None,
    ) -> Entry:
        return Entry(0o444, operation='mon', read=lambda: self._traffic.show(
            group, monitor, feature, domain, node
        ))


def _mode(root: Group, group: Group) -> int:
    """Return the permissions of a group's directory and of its mon_groups.

    That of the root is kernfs' own; others have that of their mkdir().
    """
    return 0o555 if group is root else 0o755

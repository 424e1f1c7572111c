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

"""The directory ``info/`` of the emulated kernel."""

from collections.abc import Callable
from collections.abc import Mapping
import errno
import functools

from ghsched_nova.lab.emulator import counters as counterlib
from ghsched_nova.lab.emulator import entries
from ghsched_nova.lab.emulator import groups as grouplib
from ghsched_nova.lab.emulator import io_alloc
from ghsched_nova.lab.emulator import kernel_mode
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import staging

Entry = entries.Entry

#: resctrl_rmid_realloc_limit: the size of the cache (bytes, made up).
_THRESHOLD_LIMIT = 1 << 24


class Info:
    """The directory ``info/``, which describes the machine and has settings.

    :param counters: by monitor resource.
    :param status: what last_cmd_status says.
    """

    def __init__(
        self,
        machine: machines.Machine,
        groups: grouplib.Groups,
        counters: Mapping[str, counterlib.Counters],
        status: Callable[[], str],
    ):
        self._machine = machine
        self._groups = groups
        self._counters = counters
        self._status = status
        self._threshold = 65536
        self._kernel_mode = kernel_mode.KernelMode(groups)
        self._io_alloc = {
            line.info: io_alloc.IoAlloc(machine, groups, line).files()
            for line in machine.lines
            if machine.io_alloc and line.base == 16 and line.info
        }

    def children(self) -> dict[str, Entry]:
        """Return the entries of ``info/``."""
        files: dict[str, dict[str, str]] = {}
        for line in self._machine.lines:
            if line.info is not None:
                files[line.info] = self._line_info(line)
        for monitor in self._machine.monitors:
            files[f'{monitor.resource}_MON'] = self._monitor_info(monitor)
        for path, text in self._machine.info_files:
            above, _, name = path.rpartition('/')
            files.setdefault(above, {})[name] = text
        for line in self._machine.lines:
            if line.description:
                files.setdefault(line.description.resource, {
                    'num_closids': f'{self._machine.num_closids}\n'})
        found = {name: self._info_dir(name, x) for name, x in files.items()}
        found['last_cmd_status'] = Entry(0o444, read=self._status)
        if self._machine.kernel_mode:
            found['kernel_mode'] = Entry(
                0o644, read=self._kernel_mode.show,
                write=self._kernel_mode.write)
        return found

    def _monitor_info(self, monitor: machines.Monitor) -> dict[str, str]:
        rmids = monitor.rmids or self._machine.num_rmids
        files = {'num_rmids': f'{rmids}\n'}
        if self._machine.old_layout:
            return files | {'num_monitors': '8\n'}
        counters = self._counters.get(monitor.resource)
        chosen = (monitor.bandwidth if counters and counters.configurable
                  else ())
        return files | {'mon_features': ''.join(
            f'{x}\n{x}_config\n' if x in chosen else f'{x}\n'
            for x in monitor.features)}

    def _counter_info(
        self, counters: counterlib.Counters
    ) -> dict[str, Entry]:
        found = {
            'mbm_assign_mode': Entry(
                0o644, read=counters.show_mode,
                write=lambda text, _caller: counters.write_mode(text)),
        }
        if counters.configurable:
            found |= {f'{event}_config': _config(counters, event)
                      for event in counters.monitor.bandwidth}
        if not counters.monitor.counters:
            return found
        filters = {event: entries.directory(
            lambda event=event: {  # type: ignore[misc]
                'event_filter': _filter(counters, event)})
            for event in counters.monitor.bandwidth}
        return found | {
            'event_configs': entries.directory(lambda: filters),
            'num_mbm_cntrs': Entry(0o444, read=counters.show_all),
            'available_mbm_cntrs': Entry(
                0o444, read=counters.show_free, clears_status=True),
            counterlib.ON_MKDIR: Entry(
                0o644, read=counters.show_on_mkdir, clears_status=True,
                write=lambda text, _caller: counters.write_on_mkdir(text)),
        }

    def _info_dir(self, name: str, files: dict[str, str]) -> Entry:
        found = {
            file: entries.constant(text) for file, text in files.items()
        }
        if name == 'L3_MON' and not self._machine.old_layout:
            found['max_threshold_occupancy'] = Entry(
                0o644, read=lambda: f'{self._threshold}\n',
                write=self._write_threshold, keeps_status=True,
            )
        for line in self._machine.lines:
            if (line.info == name and line.base == 16
                    and not self._machine.old_layout):
                found['bit_usage'] = Entry(0o444, read=functools.partial(
                    self._bit_usage, line))
        counters = self._counters.get(name.removesuffix('_MON'))
        if counters and name.endswith('_MON'):
            found |= self._counter_info(counters)
        found |= self._io_alloc.get(name, {})
        for directory in {line.description.directory
                          for line in self._machine.lines
                          if line.description
                          and line.description.resource == name}:
            found[directory] = entries.directory(
                lambda: self._described(name, ''))
        return entries.directory(lambda: found)

    def _described(self, resource: str, parent: str) -> dict[str, Entry]:
        """Return the directories of controls that are in another's."""
        found = {}
        for line in self._machine.lines:
            one = line.description
            if one and (one.resource, one.parent) == (resource, parent):
                inside = {file: entries.constant(text) for file, text
                          in one.files(line).items()}
                inside |= self._described(resource, line.name)
                found[line.name] = entries.directory(
                    lambda inside=inside: inside)   # type: ignore[misc]
        return found

    def _line_info(self, line: machines.Line) -> dict[str, str]:
        closids = line.closids or self._machine.num_closids
        files = {'num_closids': f'{closids}\n'}
        old = self._machine.old_layout
        if line.base == 10:
            lowest, step = line.info_minimum, line.info_granularity
            files |= {
                'bandwidth_gran': f'{step or line.granularity}\n',
                'min_bandwidth':
                    f'{line.minimum if lowest is None else lowest}\n',
            }
            return files if old else files | {
                'delay_linear': f'{line.linear}\n'}
        files |= {
            'cbm_mask': f'{line.maximum:x}\n',
            'min_cbm_bits': f'{line.minimum}\n',
            'shareable_bits': f'{line.maximum * line.shareable:x}\n',
        }
        return files if old else files | {
            'sparse_masks': f'{int(line.sparse_masks)}\n',
        }

    def _bit_usage(self, line: machines.Line) -> str:
        def letter(domain: int, bit: int) -> str:
            users = {
                group.mode for group in self._groups.holders()
                if group.values[line.name][domain] >> bit & 1
            }
            if '' in users or line.shareable:    # devices
                return 'X' if 'shareable' in users else 'H'
            return 'S' if 'shareable' in users else 'E' if users else '0'

        return ';'.join(
            f'{domain}=' + ''.join(
                letter(domain, bit)
                for bit in reversed(range(line.maximum.bit_length()))
            )
            for domain in self._machine.domains(line.scope)
        ) + '\n'

    def _write_threshold(self, text: str, _caller: int) -> None:
        # max_threshold_occ_write() leaves the last status as it is.
        value = staging.read_integer(text.removeprefix('+'))
        if value is None:
            raise staging.ResctrlError(errno.EINVAL, None)
        if value > machines.U32_MAX:
            raise staging.ResctrlError(errno.ERANGE, None)
        if value > _THRESHOLD_LIMIT:
            raise staging.ResctrlError(errno.EINVAL, None)
        self._threshold = value


def _filter(counters: counterlib.Counters, event: str) -> Entry:
    return Entry(
        0o644 if counters.monitor.transactions else 0o444,
        read=lambda: counters.show_filter(event), clears_status=True,
        write=lambda text, _caller: counters.write_filter(event, text))


def _config(counters: counterlib.Counters, event: str) -> Entry:
    return Entry(
        0o644, read=lambda: counters.events.show_config(event),
        write=lambda text, _caller: counters.write_config(event, text))

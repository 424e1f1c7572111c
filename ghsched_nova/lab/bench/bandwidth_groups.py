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

"""Bandwidth keys as settings of two resctrl groups, and the groups."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from dataclasses import dataclass
from pathlib import Path

from ghsched_nova.lab.bench import errors
from ghsched_nova.resctrl import differences
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_nova.resctrl import schemata
from ghsched_placement.flavor.bandwidth import NodePolicy
from ghsched_placement.flavor.policy import GuestPolicy

ALONE, NO_KEY = 'alone', 'none'

#: Groups of the observed server and of the streams.
SERVER, STREAMS = 'ghsched-bench-server', 'ghsched-bench-streams'

_LOCK_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Setting:
    """Bandwidth keys of the observed server and of the streams beside it.

    :param key: key whose effect is measured; :data:`ALONE` without streams,
        :data:`NO_KEY` with streams and without a key.
    :param value: value of the key.
    """

    key: str
    value: int = 0
    server: NodePolicy | None = None
    streams: NodePolicy | None = None

    @property
    def title(self) -> str:
        """Key and value, as in a flavor."""
        return f'{self.key}={self.value}' if self.policies else self.key

    @property
    def policies(self) -> Mapping[str, NodePolicy]:
        """Policy of each control group that the setting needs, by name."""
        return {name: policy for name, policy in (
            (SERVER, self.server), (STREAMS, self.streams)) if policy}


def list_settings(caps: Iterable[int], guarantee: int) -> tuple[Setting, ...]:
    """Return the settings to measure, without keys first.

    :param caps: caps of the streams, in percent of a NUMA node's bandwidth.
    :param guarantee: guarantee of the server, in the same percent.
    """
    return (
        Setting(ALONE), Setting(NO_KEY),
        *(Setting('mem_bw_max', cap, streams=NodePolicy(maximum=cap))
          for cap in caps),
        Setting('mem_bw_min', guarantee, NodePolicy(minimum=guarantee)),
        Setting('mem_bw_priority', 7, NodePolicy(priority=7),
                NodePolicy(priority=0)))


def resolve_lines(host: resctrl_host.ResctrlHost, policy: NodePolicy,
                  host_node: int) -> differences.Desired:
    """Return the schemata values of a control group with this policy.

    :raises PolicyRefused: if the host cannot enforce the policy.
    """
    return resolve.make_desired_lines(host, resolve.resolve_settings(
        host, GuestPolicy(nodes=(policy,)), (host_node,)))


def find_reason_against(host: resctrl_host.ResctrlHost, setting: Setting,
                        host_node: int) -> str:
    """Return the reason why a host cannot hold a setting; empty if it can."""
    try:
        for policy in setting.policies.values():
            resolve_lines(host, policy, host_node)
    except resolve.PolicyRefused as error:
        return str(error)
    return ''


class ControlGroups:
    """Control groups of the benchmark, which are gone after it.

    :param root: mount point of resctrl.
    :param host_node: NUMA node whose bandwidth is measured.
    """

    def __init__(self, root: Path, host: resctrl_host.ResctrlHost,
                 host_node: int) -> None:
        self._root = root
        self._host = host
        self._node = host_node
        self._files = fs.Files()

    @contextlib.contextmanager
    def hold(self, setting: Setting, threads: Mapping[str, Sequence[int]]
             ) -> Iterator[None]:
        """Within this context, threads are in groups with a setting's keys.

        :param threads: thread IDs by name of the group.
        :raises BenchError: if the kernel refuses a group, value or thread.
        """
        try:
            for name, policy in setting.policies.items():
                self._make(self._root / name, policy, threads[name])
            yield
        except (OSError, fs.GroupError) as error:
            raise errors.BenchError(
                f'{setting.title} cannot be set: {error}') from None
        finally:
            for name in setting.policies:
                self._remove(self._root / name)

    def _make(self, path: Path, policy: NodePolicy, threads: Sequence[int]
              ) -> None:
        with self._files.directory_lock(self._root, _LOCK_TIMEOUT_S):
            self._files.make_directory(path)
            for line in self._plan_writes(path, policy):
                fs.write_line(self._files, self._root, path / 'schemata',
                              line)
            if lines := self._plan_writes(path, policy):
                raise errors.BenchError(
                    f'{path.name}: the kernel did not keep '
                    + ' '.join(line.strip() for line in lines))
            for thread in threads:
                fs.write_line(self._files, self._root, path / 'tasks',
                              f'{thread}\n')

    def _plan_writes(self, path: Path, policy: NodePolicy
                     ) -> tuple[str, ...]:
        """Return the schemata lines that a group lacks of its policy."""
        return differences.plan_schemata_writes(
            schemata.parse_kernel_schemata(
                self._files.read(path / 'schemata')),
            resolve_lines(self._host, policy, self._node),
            tolerance=self._host.tolerance, writes=self._host.values_to_write)

    def _remove(self, path: Path) -> None:
        # The kernel moves the threads of a removed group to the root group.
        with contextlib.suppress(FileNotFoundError):
            self._files.remove_directory(path)

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

"""A look at the compute host from outside Nova."""

from collections.abc import Iterable
from dataclasses import dataclass
import json
import shlex
import subprocess
from xml.etree import ElementTree


class HostCommandFailed(Exception):
    """A command on the compute host has failed, with the reason."""


@dataclass(frozen=True)
class HostDevice:
    """PCI device of the compute host, as described by sysfs.

    :param ids: vendor and device, ``8086:10ca``.
    :param node: NUMA node of the device, or -1.
    :param physfn: PCI address of a VF's physical function.
    """

    ids: str
    node: int
    physfn: str | None
    driver: str | None


class HostClient:
    """Runs commands on the compute host and reads what they print.

    :param command: the prefix that leads to the host, as one string.
    :param libvirt_uri: the connection that virsh uses there.
    :param resctrl_path: where resctrl is mounted there.
    :param timeout: seconds that one command may take.
    """

    def __init__(self, command: str, libvirt_uri: str = 'qemu:///system',
                 resctrl_path: str = '/sys/fs/resctrl',
                 timeout: float = 60) -> None:
        self._prefix = shlex.split(command)
        self._uri = libvirt_uri
        self._resctrl = resctrl_path.rstrip('/')
        self._timeout = timeout

    def run_command(self, *command: str) -> str:
        """Run a command on the compute host; return its standard output.

        :raises HostCommandFailed: if the command fails or takes too long.
        """
        try:
            done = subprocess.run(
                [*self._prefix, *command], stdin=subprocess.DEVNULL,
                capture_output=True, text=True, check=False,
                timeout=self._timeout)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HostCommandFailed(f'{shlex.join(command)}: {error}'
                                    ) from error
        if done.returncode:
            raise HostCommandFailed(
                f'{shlex.join(command)}: exit status {done.returncode}: '
                f'{done.stderr.strip()}')
        return done.stdout

    def read_domain_xml(self, domain: str) -> ElementTree.Element:
        """Read the live XML of a libvirt domain on the compute host."""
        # The host is the one under test, and it is ours.
        return ElementTree.fromstring(  # noqa: S314
            self.run_command('virsh', '-c', self._uri, 'dumpxml', domain))

    def read_vcpu_threads(self, domain: str) -> frozenset[int]:
        """Return the thread IDs of a domain's vCPUs, as QEMU reports them."""
        answer = json.loads(self.run_command(
            'virsh', '-c', self._uri, 'qemu-monitor-command', domain,
            '{"execute": "query-cpus-fast"}'))
        return frozenset(cpu['thread-id'] for cpu in answer['return'])

    def read_control_groups(self) -> dict[str, frozenset[int]]:
        """Read the thread IDs of each resctrl control group, by directory.

        The default group of the kernel is left out.
        """
        return self._read_groups('-mindepth', '2', '-maxdepth', '2')

    def read_monitoring_groups(self) -> dict[str, frozenset[int]]:
        """Read the thread IDs of each resctrl monitoring group, by directory.
        """
        return self._read_groups('-path', '*/mon_groups/*')

    def _read_groups(self, *where: str) -> dict[str, frozenset[int]]:
        find = shlex.join((
            'find', self._resctrl, *where, '-name', 'tasks', '-exec',
            'awk', '{ print FILENAME ":" $1 }', '{}', '+'))
        # The group of another guest may go meanwhile, and find reports it.
        lines = self.run_command('sh', '-c', f'{find} || :')
        return parse_group_tasks(lines.splitlines())

    def find_group_of_threads(self, threads: frozenset[int]) -> str:
        """Find the directory of the control group that has these threads.

        :raises LookupError: when no control group has all of them.
        """
        groups = self.read_control_groups()
        for group, members in groups.items():
            if threads <= members:
                return group
        raise LookupError(f'no control group holds the threads '
                          f'{sorted(threads)}; there are {groups}')

    def read_schemata(self, group: str) -> dict[str, dict[int, str]]:
        """Read a control group's schemata: values by resource and domain ID.
        """
        return parse_schemata(self.run_command('cat', f'{group}/schemata'))

    def read_pci_device(self, address: str) -> 'HostDevice':
        """Read a PCI device of the compute host from sysfs.

        :raises HostCommandFailed: when the host has no such device.
        """
        device = f'/sys/bus/pci/devices/{address}'
        answer = self.run_command(
            'sh', '-c', f'cd {shlex.quote(device)} && '
            'cat vendor device numa_node && '
            'for link in physfn driver; do '
            'basename "$(readlink "$link" || echo -)"; done')
        vendor, device_id, node, physfn, driver = answer.split()
        return HostDevice(
            ids=f'{vendor}:{device_id}'.replace('0x', ''), node=int(node),
            physfn=None if physfn == '-' else physfn,
            driver=None if driver == '-' else driver)

    def read_bandwidth_step(self) -> int:
        """Read the step of the memory bandwidth cap in percent."""
        return int(self.run_command(
            'cat', f'{self._resctrl}/info/MB/bandwidth_gran'))


def parse_group_tasks(lines: Iterable[str]) -> dict[str, frozenset[int]]:
    """Parse lines ``DIRECTORY/tasks:THREAD``: thread IDs by directory."""
    groups: dict[str, set[int]] = {}
    for line in lines:
        path, _, thread = line.rpartition(':')
        groups.setdefault(path.removesuffix('/tasks'), set()).add(int(thread))
    return {group: frozenset(threads) for group, threads in groups.items()}


def parse_schemata(text: str) -> dict[str, dict[int, str]]:
    """Parse schemata lines ``RESOURCE:ID=VALUE;ID=VALUE`` by resource."""
    result = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        resource, _, values = line.partition(':')
        pairs = (pair.split('=') for pair in values.split(';'))
        result[resource] = {int(number): value.strip()
                            for number, value in pairs}
    return result

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


"""Base of the checks on one host."""

from collections.abc import Iterator
import contextlib
import subprocess
from typing import Any

from aio import database
from aio import host
from aio.lab import REPORT
from aio.services import COMPUTE
from e2e_room import Room


BANDWIDTH = 'CUSTOM_MEM_BW_PCT'
CONTROL_GROUP = 'CUSTOM_RESCTRL_GROUP'

#: Traits of a host that Nova gives nothing to, and of one that can hold
#: ghsched:mem_bw_min.
_DISABLED = 'COMPUTE_STATUS_DISABLED'
GUARANTEE = 'CUSTOM_GHSCHED_MEM_BW_MIN'


class GuestRoom(Room):
    """Flavors, and what is known of a guest from every side."""

    def prepare(self) -> None:
        self.lab.flavor('bw60', hw__numa_nodes=1, ghsched__mem_bw_min=60)
        self.lab.flavor('bw10', hw__numa_nodes=1, ghsched__mem_bw_min=10)
        self.lab.flavor('numa1', hw__numa_nodes=1)
        self.lab.flavor('cap45', hw__numa_nodes=1, ghsched__mem_bw_max=45)
        self.lab.flavor('bw-all', hw__numa_nodes=1, ghsched__mem_bw_min=30,
                        ghsched__mem_bw_max=50,
                        ghsched__mem_bw_hardlimit='true',
                        ghsched__mem_bw_priority=5)
        self.lab.flavor('two-nodes', vcpus=2, ram=256, hw__numa_nodes=2,
                        ghsched__mem_bw_min__at__0=20,
                        ghsched__mem_bw_min__at__1=30)

    def _agrees(self, server: Any, share: int) -> None:
        """Placement, Nova, libvirt and resctrl name the same node."""
        node, = self.lab.allocated_nodes(server)
        name = server.name
        self.checks.equal(
            f'{name}: share allocated',
            self.lab.allocations(server)[
                self.lab.node_provider(node).name].get(BANDWIDTH), share)
        self.checks.equal(f'{name}: node in instance.numa_topology',
                          self._topology_nodes(server), [node])
        xml = self.lab.domain_xml(server)
        self.checks.equal(
            f'{name}: node in <numatune>',
            [one.get('nodeset') for one in xml.iter('memnode')],
            [str(node)])
        self.checks.equal(f'{name}: node in the policy of its XML',
                          self.lab.policy_nodes(xml), [node])
        self.checks.equal(f'{name}: MBMIN of its group',
                          self._values(server, 'MBMIN'),
                          {node: share, 1 - node: 0})

    def _used(self, node: int) -> int | None:
        return self.lab.usage(self.lab.node_provider(node)).get(BANDWIDTH)

    def _values(self, server: Any, line: str) -> dict[int, int]:
        return {domain: int(value) for domain, value in
                self.lab.group(server).schemata.get(line, {}).items()}

    def _topology_nodes(self, server: Any) -> list[int]:
        return [cell['host_node'] for cell in self.lab.topology(server)]

    def _refused(self, flavor: str, reason: str) -> None:
        """A server of a flavor finds no host, and the log says why."""
        with self.lab.log_of('nova-scheduler') as log:
            server = self.lab.boot('refused', flavor)
            fault = self.lab.fault(server)
            self.checks.equal('status', server.status, 'ERROR')
            self._contains('fault', fault, 'No valid host')
            self.checks.holds('scheduler\'s log', [
                line.partition('ghsched: ')[2] for line in log.lines(reason)],
                reason)
        self.checks.equal('allocations', self.lab.allocations(server), {})
        self.lab.delete(server)

    def nothing_left(self, but: tuple[str, ...] = ()) -> None:
        """No group, no domain and nothing allocated is left."""
        self.checks.equal('left on the host and in Placement', {
            'control groups': [one.name for one in self.lab.groups()
                               if one.name not in but],
            'domains': self.lab.domains(),
            BANDWIDTH: [self._used(node) for node in (0, 1)],
            CONTROL_GROUP: self.lab.usage(
                self.lab.providers()[0]).get(CONTROL_GROUP, 0),
        }, {'control groups': [], 'domains': [], BANDWIDTH: [0, 0],
            CONTROL_GROUP: 0})

    def _set(self, server: Any, status: int, words: str,
             *arguments: str) -> None:
        """Run "ghsched server set", and look at how it ends."""
        files = [] if '--config-file' in arguments else self._nova_files()
        done = subprocess.run(
            [f'{self.settings.venv}/bin/ghsched', 'server', 'set',
             server.id, *arguments, *files], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=150)
        text = (done.stderr + done.stdout).strip()
        self.checks.equal(f'status of {" ".join(arguments)}',
                          done.returncode, status)
        self._contains('its last line', text.splitlines()[-1], words)

    def _nova_files(self) -> list[str]:
        """Options that name the configuration of nova-manage."""
        return database.nova_manage(self.settings)[1:]

    @contextlib.contextmanager
    def _dialect(self, dialect: str) -> Iterator[None]:
        """A host with another kernel, for a while."""
        self._boot_host(dialect)
        try:
            yield
        finally:
            self.lab.clean()
            self._boot_host(host.DIALECT)

    def _boot_host(self, dialect: str) -> None:
        host.down(self.settings)
        host.up(self.settings, dialect)
        self._restart_compute(
            *([GUARANTEE] if dialect == host.DIALECT else []))

    def _restart_compute(self, *traits: str) -> None:
        """Restart nova-compute.

        It reports to Nova just before it updates Placement. Where something
        changed meanwhile, the update is waited for: when libvirt was away,
        Placement has the host as disabled until then.

        :param traits: of the host, once it is updated.
        """
        self._restart(COMPUTE)
        self._wait_for_host(*traits)

    def _wait_for_host(self, *traits: str) -> None:
        self.lab.until(lambda: self._host_has(traits), REPORT,
                       'Placement does not have the host as it is now')

    def _host_has(self, traits: tuple[str, ...]) -> bool:
        seen = set(self.lab.traits(self.lab.providers()[0]))
        return _DISABLED not in seen and seen.issuperset(traits)

    @contextlib.contextmanager
    def _options(self, *options: tuple[str, str, str]) -> Iterator[None]:
        """nova-compute with other options, for a while."""
        try:
            with self._with((COMPUTE,), *options):
                self._wait_for_host()
                yield
        finally:
            self._wait_for_host()


def words(lines: list[str], first: str) -> list[str]:
    """The other words of the first line that begins with a word."""
    for line in lines:
        head, *rest = line.split()
        if head == first:
            return rest
    return []

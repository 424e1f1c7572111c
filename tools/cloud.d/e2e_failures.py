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


"""Checks of what happens when something fails."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from pathlib import Path
import subprocess
from typing import Any

from aio import host
from aio import process
from aio.services import COMPUTE
from e2e_guest_room import GUARANTEE
from e2e_guest_room import GuestRoom

#: What a tenant is told; the log of nova-compute has the kernel's words.
REFUSED = 'cannot hold the memory bandwidth of the flavor'


class Failures(GuestRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def test_kill_late(self) -> None:
        """nova-compute is killed while it writes the policy of a guest."""
        with self._faults({'schemata:MBPRI': {
                'delay': 3, 'match': '?*', 'times': 1}}):
            self._kill_compute(self._is_being_written)

    def test_libvirtd_restart(self) -> None:
        """Guests and their groups outlive libvirtd; then all goes on."""
        server = self._active(self.lab.boot('lasting', 'bw-all'))
        before = self.lab.group(server)
        host.control(self.settings, 'restart-libvirtd')
        self.checks.equal('group', self.lab.group(server), before)
        self._compute_reports()
        other = self._active(self.lab.boot('after', 'bw60'))
        self._agrees(other, 60)
        self.lab.delete(other)
        self.checks.equal('group', self.lab.group(server), before)
        self.lab.delete(server)
        self.nothing_left()

    def test_group_snatched(self) -> None:
        """Somebody took the last group just now: ERROR, no leak."""
        with self._faults({'mkdir': {
                'error': 'ENOSPC', 'status': 'Out of CLOSIDs'}}):
            self._fails('bw60', 'No space left on device')
        self._active(self.lab.boot('then', 'bw60'))

    def test_write_refused(self) -> None:
        """The kernel refuses a value: ERROR with its words, no leak."""
        with self._faults({'schemata:MBPRI': {
                'error': 'EINVAL', 'match': '?*',
                'status': 'priority not today'}}):
            self._fails('bw-all', 'priority not today')
        self._active(self.lab.boot('then', 'bw-all'))

    def test_write_ignored(self) -> None:
        """A value that does not read back as written is an error, too."""
        with self._faults({'schemata:MBMIN': {
                'ignore': True, 'match': '?*'}}):
            # The domain is that of the node, which goes by load, too.
            self._fails('bw-all', 'MBMIN of domain ',
                        '0, wanted is 30')
        self._active(self.lab.boot('then', 'bw-all'))

    def test_resctrl_vanishes(self) -> None:
        """No guest starts unprotected while resctrl is gone; it comes back."""
        old = self._active(self.lab.boot('before', 'bw10'))
        with self._without_resctrl():
            server = self.lab.boot('without', 'bw10')
            self.checks.equal('status', server.status, 'ERROR')
            self._names_resctrl(server)
            self.checks.equal('domains', self.lab.domains(),
                              [self.lab.domain_name(old)])
            self.checks.equal('allocations', self.lab.allocations(server),
                              {})
            self.lab.delete(server, old)
            self.checks.equal('domains', self.lab.domains(), [])
        new = self._active(self.lab.boot('back', 'bw10'))
        self._agrees(new, 10)

    def test_resctrl_vanishes_midway(self) -> None:
        """resctrl vanishes while the policy of a guest is written."""
        with self._faults({'schemata:MBPRI': {
                'delay': 6, 'match': '?*'}}):
            server = self.lab.create('midway', 'bw-all')
            self.lab.until(lambda: self._is_being_written(server), 60,
                           'the policy is never written')
            with self._without_resctrl():
                server = self.lab.wait(server)
                self.checks.equal('status', server.status, 'ERROR')
                self._names_resctrl(server)
                self.checks.equal('domains', self.lab.domains(), [])
                self.lab.delete(server)
        self.nothing_left()
        self._active(self.lab.boot('back', 'bw-all'))

    # -- parts of tests -------------------------------------------------------

    def _fails(self, flavor: str, *reason: str) -> None:
        """A server ends in ERROR for a reason and leaves nothing behind.

        :param reason: what one line of the log says, in parts.
        """
        with self.lab.log_of('nova-compute') as log:
            server = self.lab.boot('failing', flavor)
            self.checks.equal('status', server.status, 'ERROR')
            self._contains('fault', self.lab.fault(server), REFUSED)
            self.checks.holds('log of nova-compute',
                              bool(log.lines(*reason)), ' '.join(reason))
        self.checks.equal('allocations', self.lab.allocations(server), {})
        self.nothing_left()
        self.lab.delete(server)

    def _names_resctrl(self, server: Any) -> None:
        """The fault says which keys cannot be held.

        Either the host says it, or it was reported to Placement in time and
        the scheduler does.
        """
        self._contains('fault', self.lab.fault(server), REFUSED,
                       'no host can hold ghsched:mem_bw_min')

    @contextlib.contextmanager
    def _without_resctrl(self) -> Iterator[None]:
        """A host without resctrl, until an admin has mounted it again."""
        host.control(self.settings, 'umount-resctrl')
        try:
            yield
        finally:
            host.control(self.settings, 'mount-resctrl')
            self._restart_compute(GUARANTEE)

    def _compute_reports(self) -> None:
        """Wait until nova-compute has libvirt again.

        Nova connects again when a periodic task next asks libvirt something,
        which may be half a minute later.
        """
        self.lab.until(
            lambda: all(one.state == 'up' and one.status == 'enabled'
                        for one in self.lab.cloud.compute.services(
                            binary=COMPUTE)) and self._host_has(()), 180,
            'nova-compute does not come back')

    def _kill_compute(self, moment: Callable[[Any], object]) -> None:
        server = self.lab.create('killed', 'bw-all')
        self.lab.until(lambda: moment(server), 60,
                       'the moment to kill nova-compute never came')
        process.kill(self.services[COMPUTE])
        print(f'        killed; the server is {self.lab.server(server).status}'
              f' ({self.lab.server(server).task_state}), '
              f'groups {[one.name for one in self.lab.groups()]}')
        self._restart_compute()
        server = self.lab.wait(server)
        self.checks.holds('status after the restart', server.status,
                          'ERROR or ACTIVE')
        if server.status == 'ACTIVE':
            self.checks.equal('groups', len(self.lab.groups()), 1)
        self.lab.delete(server)
        self.nothing_left()
        self._active(self.lab.boot('next', 'bw-all'))

    def _is_being_written(self, server: Any) -> bool:
        """Whether a write for a guest is delayed just now.

        The emulator answers nobody while it delays one.
        """
        root = Path(f'/proc/{self.services[COMPUTE].pid}/root')
        name = self.lab.domain_name(server)
        if not (root / f'run/libvirt/qemu/{name}.pid').exists():
            return False
        read = subprocess.run(
            ['timeout', '0.5', 'cat', str(root / 'sys/fs/resctrl/schemata')],
            stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return read.returncode == 124  # timeout's own, see timeout(1)

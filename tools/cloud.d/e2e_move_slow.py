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


"""Checks of live migrations that take their time, and of changes between."""

from typing import Any

from aio.settings import CloudError
from e2e_move_room import MoveRoom

#: A guest's memory takes a while at so many MiB/s.
_SLOW = ('libvirt', 'live_migration_bandwidth', '1')


class SlowMigration(MoveRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def test_live_cancelled(self) -> None:
        """An admin cancels it: the guest stays, and can go another time."""
        with self._with(self._computes, _SLOW):
            server = self._on('cancelled', 'bw30', 1)
            self.lab.cloud.compute.abort_server_migration(
                self._begun(server), server)
            self._rolled_back(server)
            self._is_on(server, 1)
            self.lab.tell(server, 'idle')
            self.checks.equal('times that it has booted', self.lab.console(
                server).count('GUEST-READY'), 1)
        server = self._on('again', 'bw30', 1)
        self._is_on(self._live(server), 2)

    def test_live_post_copy(self) -> None:
        """The guest runs on the new host before all its memory is there."""
        with self._with(self._computes, _SLOW, (
                'libvirt', 'live_migration_permit_post_copy', 'true')):
            server = self._on('post-copy', 'bw30', 1)
            with self.lab.log_of(self._computes[0]) as log:
                self.lab.cloud.compute.force_complete_server_migration(
                    self._begun(server), server)
                self._settled(server, 'ACTIVE')
            self.checks.equal('events of libvirt', len(log.lines(
                server.id, 'Postcopy started (Lifecycle Event)')), 1)
            self._is_on(server, 2)
            self._goes_on(server)

    def test_live_change_between(self) -> None:
        """A share is changed between two moves, and not within one."""
        server = self._on('changed', 'bw30', 1)
        self.lab.cloud.compute.migrate_server(server)
        self._settled(server, 'VERIFY_RESIZE')
        try:
            self._change(server, 45)
        except CloudError as error:
            self._contains('why not', str(error), 'the server is resized')
        else:
            self.checks.error('a share was changed before the confirmation')
        self._is_on(server, 2, 'VERIFY_RESIZE')
        self.lab.cloud.compute.confirm_server_resize(server)
        self._settled(server, 'ACTIVE')
        self._change(server, 45)
        self._is_on(server, 2)
        self._is_on(self._live(server), 1)
        self._change(server, 15)
        self._is_on(server, 1)

    def _begun(self, server: Any) -> Any:
        """A live migration that has begun to copy memory."""
        self.lab.cloud.compute.live_migrate_server(
            server, host=None, block_migration='auto')
        return self.lab.until(lambda: self._running(server), 120,
                              'the live migration does not begin')

    def _running(self, server: Any) -> Any:
        """Return the migration once memory has been copied; None before."""
        for one in self.lab.cloud.compute.server_migrations(server):
            if one.status == 'running' and one.memory_processed_bytes:
                return one
        return None

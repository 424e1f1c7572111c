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


"""Checks of cold migration, resize and soft deletion."""

from typing import Any

from e2e_move_room import MoveRoom


class ColdMoves(MoveRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def test_cold_migration(self) -> None:
        """Confirmed: it stays there. Reverted: it is back."""
        server = self._on('cold', 'bw30', 1)
        self._migrated(server, 2)
        self.lab.cloud.compute.revert_server_resize(server)
        self._settled(server, 'ACTIVE')
        self._is_on(server, 1)
        self._migrated(server, 2)
        self._confirm(server, 2)

    def test_resize(self) -> None:
        """A resize to more on the other host, reverted and confirmed."""
        server = self._on('growing', 'bw30', 1)
        self._resized(server, 'bw60', 2)
        self.lab.cloud.compute.revert_server_resize(server)
        self._settled(server, 'ACTIVE')
        self._is_on(server, 1)
        self._resized(server, 'bw60', 2)
        self._confirm(server, 2)
        self._resized(server, 'bw30', 1)
        self._confirm(server, 1)

    def test_resize_here(self) -> None:
        """The same on the same host, which is the only one that is left."""
        with self._with((*self._computes, 'nova-api'),
                        ('DEFAULT', 'allow_resize_to_same_host', 'true')), \
                self._disabled(2):
            server = self._on('growing', 'bw30', 1)
            self._resized(server, 'bw60', 1)
            self.lab.cloud.compute.revert_server_resize(server)
            self._settled(server, 'ACTIVE')
            self._is_on(server, 1)
            self._resized(server, 'bw60', 1)
            self._confirm(server, 1)
            self.lab.delete(server)

    def test_restart_unconfirmed(self) -> None:
        """Both nova-compute start again before the move is confirmed."""
        server = self._on('restarted', 'bw30', 1)
        self._migrated(server, 2)
        self._restart(*self._computes)
        self._is_on(server, 2, 'VERIFY_RESIZE')
        self._confirm(server, 2)

    def test_soft_delete(self) -> None:
        """A guest that is restored has its share again."""
        with self._with((*self._computes, 'nova-api'),
                        ('DEFAULT', 'reclaim_instance_interval', '3600')):
            server = self._on('restored', 'bw30', 1)
            self.lab.cloud.compute.delete_server(server)
            self._settled(server, 'SOFT_DELETED')
            self._agrees('deleted')
            self.lab.cloud.compute.restore_server(server)
            self._settled(server, 'ACTIVE')
            self._is_on(server, 1)
            self.lab.cloud.compute.delete_server(server, force=True)
            self.lab.until(lambda: not self.lab.servers(), 60,
                           'the server is not deleted')

    # -- parts of tests -------------------------------------------------------

    def _resized(self, server: Any, flavor: str, number: int) -> None:
        self.lab.cloud.compute.resize_server(
            server, self.lab.cloud.compute.find_flavor(flavor))
        self._settled(server, 'VERIFY_RESIZE')
        self._is_on(server, number, 'VERIFY_RESIZE')

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


"""Base of the checks of moves."""

from collections.abc import Iterator
import contextlib
import time
from typing import Any

from aio import database
from aio import host
from aio import records
from aio.settings import Settings
from e2e_room import Room

#: Seconds for a move; a busy machine without hardware virtualisation needs
#: some.
MOVE = 240


class MoveRoom(Room):
    """Tests of two hosts."""

    def prepare(self) -> None:
        self.lab.flavor('bw60', hw__numa_nodes=1, ghsched__mem_bw_min=60)
        self.lab.flavor('bw30', hw__numa_nodes=1, ghsched__mem_bw_min=30)
        self.lab.flavor('bw75', hw__numa_nodes=1, ghsched__mem_bw_min=75)
        self.lab.flavor('two-nodes', vcpus=2, ram=256, hw__numa_nodes=2,
                        ghsched__mem_bw_min__at__0=20,
                        ghsched__mem_bw_min__at__1=30)

    def nothing_left(self) -> None:
        self._agrees('without guests')

    def _on(self, name: str, flavor: str, number: int) -> Any:
        """An active server on a host, with whose records all is well."""
        server = self._active(self.lab.wait(self.lab.create(
            name, flavor, host=self._host(number).host.name)))
        self.lab.console(server)
        self._agrees(f'{name} booted')
        return server

    def _host(self, number: int) -> Settings:
        """The cloud, seen from one of its hosts."""
        return self.settings.each_host[number - 1]

    @property
    def _computes(self) -> tuple[str, ...]:
        return tuple(self.services.compute(one).name
                     for one in self.settings.each_host)

    @contextlib.contextmanager
    def _disabled(self, number: int) -> Iterator[None]:
        """A host that gets no guests, for a while."""
        service, = self.lab.cloud.compute.services(
            binary='nova-compute', host=self._host(number).host.name)
        self.lab.cloud.compute.disable_service(service)
        try:
            yield
        finally:
            self.lab.cloud.compute.enable_service(service)

    def _live(self, server: Any) -> Any:
        state = self.lab.server(server).status
        self.lab.cloud.compute.live_migrate_server(
            server, host=None, block_migration='auto')
        return self._settled(server, state)

    def _settled(self, server: Any, *states: str) -> Any:
        return self.lab.wait(server, *states, 'ERROR', seconds=MOVE)

    def _rolled_back(self, server: Any) -> None:
        """Wait until a server is itself again whose live migration failed.

        Nova alone has rolled all back by then, and puts the server into ERROR
        a moment later.
        """
        self._settled(server, 'ACTIVE')
        time.sleep(5)

    def _is_on(self, server: Any, number: int, state: str = 'ACTIVE'
               ) -> None:
        """A server is in a state on a host, and the records agree."""
        now = self.lab.server(server)
        self.checks.equal('host and state', (now.compute_host, now.status),
                          (self._host(number).host.name, state))
        self._agrees(f'{state} on host {number}')

    def _migrated(self, server: Any, number: int) -> None:
        self.lab.cloud.compute.migrate_server(server)
        self._settled(server, 'VERIFY_RESIZE')
        self._is_on(server, number, 'VERIFY_RESIZE')

    def _confirm(self, server: Any, number: int) -> None:
        self.lab.cloud.compute.confirm_server_resize(server)
        self._settled(server, 'ACTIVE')
        self._is_on(server, number)

    def _change(self, server: Any, share: int) -> None:
        """Give a running guest another guarantee."""
        database.run([
            f'{self.settings.venv}/bin/ghsched', 'server', 'set', server.id,
            '--mem-bw-min', str(share),
            *database.nova_manage(self.settings)[1:]])

    def _goes_on(self, server: Any) -> None:
        """A guest that has moved answers, and has not booted again."""
        lab = self.lab.at(server)
        lab.type(server, 'idle')
        lab.until(lambda: 'GUEST-LOAD idle' in lab.printed(server), 60,
                  f'{server.name} does not answer')
        self.checks.equal('printed on the new host',
                          set(lab.printed(server)), {'GUEST-LOAD idle'})

    def _agrees(self, text: str) -> None:
        """The records agree, at once or after the hosts' next reports."""
        seen = records.disagreements(self.lab)
        end = time.monotonic() + 60
        while seen and time.monotonic() < end:
            time.sleep(3)
            seen = records.disagreements(self.lab)
        self.checks.equal(f'disagreements of the records, {text}', seen, [])

    def _kill_qemu(self, server: Any, number: int) -> None:
        """Kill the guest's QEMU on a host, as soon as there is one."""
        name = self.lab.domain_name(server)
        host.run(self._host(number), (
            'sh', '-c', f'until kill -9 "$(cat /run/libvirt/qemu/{name}.pid)"'
                        ' 2>&-; do sleep 0.05; done'))

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


"""Check that a guest's traffic goes on while its VF is taken and given back.

The guest has a bond of a virtio card and of a port with a VF, as guests have
that are to be migrated with such a port: Nova detaches the VF before the copy
and attaches one afterwards. A peer in the virtual node, on the other card,
returns each of ten packets a second.
"""

from collections.abc import Iterator
import contextlib
from dataclasses import dataclass
import time
from typing import Any

from aio import database
from aio import network
from aio.settings import CloudError
from e2e_vfs_room import VfsRoom
from vnode import cli
from vnode.lab import SLOW
from vnode import machine
from vnode import ports

#: Vendors of the two cards, as the guest sees them.
_VIRTIO, _VF = '0x1af4', f'0x{machine.VF_ID[0]}'
#: The peer's address in the network of :mod:`vnode.ports`, as in guest_init.c.
_PEER = '192.0.2.1'
_RETURN = f"""\
import socket
peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
peer.bind(('{_PEER}', 7))
while True:
    peer.sendto(*peer.recvfrom(64))
"""
#: The node's /dev is covered (namespace.mount_kvm) and gets no device of a
#: macvtap; there they come, N is the number of the network interface.
_SHOW_TAPS = """\
set -e
mkdir -p /run/devices
mountpoint -q /run/devices || mount -t devtmpfs devtmpfs /run/devices
for number in $(seq 100); do
    ln -sf /run/devices/tap$number /dev/tap$number
done
"""
#: Seconds of each measurement without a change.
_CALM = 20
#: Seconds between two looks at a console, which keep an emulated node busy.
_PAUSE = 2
#: Seconds within which a guest that is emulated twice notices a change.
_PATIENCE = 300
#: Packets on their way while the guest counts.
_ON_THE_WAY = 2


@dataclass(frozen=True)
class _Count:
    """Packets since the start of a guest.

    :param time: seconds of the guest's clock.
    """

    time: float
    sent: int
    received: int


class VfsBond(VfsRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def prepare(self) -> None:
        self._flavor('vfs-bond', vcpus=1, hw__numa_nodes=1,
                     ghsched__device_numa='required',
                     ghsched__mem_bw_min=20)
        cli.upload_image(self.settings, self.lab.cloud, cli.BOND_IMAGE)

    def test_bond(self) -> None:
        """A guest's traffic goes on while its VF is taken and given back."""
        with self._ports() as (virtio, vf), self._peer():
            server = self._boot(virtio, vf)
            self._await_card(server, _VF)
            self._measure(server, 'by the VF', _CALM)
            self._check_device(server)

            before = self._count(server)
            self.lab.cloud.compute.delete_server_interface(vf, server)
            self._await_card(server, _VIRTIO)
            self.lab.until(lambda: not self.lab.passed(server), _PATIENCE,
                           'the VF is not detached')
            self._show_loss(server, 'while the VF is detached', before)
            self.checks.equal('VFs claimed', self._claimed(server), [])
            self._measure(server, 'by virtio', _CALM)

            before = self._count(server)
            self.lab.cloud.compute.create_server_interface(
                server, port_id=vf.id)
            self._await_card(server, _VF)
            self._show_loss(server, 'while the VF is attached', before)
            self._measure(server, 'by the VF again', _CALM)
            self._check_device(server)
            self._audit()
            self.lab.delete(server)
        self.nothing_left()

    # -- parts of the test ----------------------------------------------------

    @contextlib.contextmanager
    def _ports(self) -> Iterator[tuple[Any, Any]]:
        """Make a port for virtio, by macvtap, and one for a VF."""
        self.lab.on_host('sh', '-c', _SHOW_TAPS)
        network.register_agent(self.settings, network.MACVTAP, machine.NAME,
                               {machine.NETWORK: self._card(0)})
        neutron = self.lab.cloud.network
        wire = neutron.find_network(ports.NETWORK)
        made = []
        try:
            for kind in ('normal', 'direct'):
                made.append(neutron.create_port(
                    network_id=wire.id, binding_vnic_type=kind,
                    name=f'{self.lab.prefix}-{kind}'))
            yield made[0], made[1]
        finally:
            self.lab.clean()
            for port in made:
                neutron.delete_port(port, ignore_missing=True)

    def _card(self, node: int) -> str:
        """Return the name of the network card (PF) of a host node."""
        pf, = (address for address, name, on in self.lab.host_devices()
               if name == machine.pci_name(machine.PF_ID) and on == node)
        return self.lab.on_host('ls', f'/sys/bus/pci/devices/{pf}/net').strip()

    @contextlib.contextmanager
    def _peer(self) -> Iterator[None]:
        """Return packets from the card of node 1, within this context."""
        card = self._card(1)
        self.lab.on_host('ip', 'address', 'replace', f'{_PEER}/24', 'dev',
                         card)
        self.lab.on_host('sh', '-c', 'setsid python3 -c "$0" > /dev/null 2>&1 '
                         '< /dev/null & echo $! > /run/peer.pid', _RETURN)
        try:
            yield
        finally:
            self.lab.on_host('sh', '-c', 'kill $(cat /run/peer.pid)')
            self.lab.on_host('ip', 'address', 'flush', 'dev', card)

    def _boot(self, *given: Any) -> Any:
        image = self.lab.cloud.image.find_image(cli.BOND_IMAGE)
        server = self._active(self.lab.wait(self.lab.create(
            'bond', 'vfs-bond', image_id=image.id, host=machine.NAME,
            networks=[{'port': port.id} for port in given])))
        self.lab.until(lambda: self._lines(server, 'GUEST-READY'), SLOW,
                       f'{server.name} does not print GUEST-READY')
        return server

    def _await_card(self, server: Any, vendor: str) -> None:
        """Wait until the bond sends and receives by a card."""
        def active() -> bool:
            lines = self._lines(server, 'GUEST-BOND')
            return bool(lines) and lines[-1][2] == vendor
        self.lab.until(active, _PATIENCE,
                       lambda: f'the bond does not use {vendor}: '
                               f'{self.lab.printed(server)[-5:]}')

    def _lines(self, server: Any, word: str) -> list[list[str]]:
        """Return the words of the guest's lines that begin with a word."""
        time.sleep(_PAUSE)
        return [line.split() for line in self.lab.printed(server)
                if line.split()[0] == word]

    def _count(self, server: Any) -> _Count:
        """Return what the guest prints next."""
        def lines() -> list[list[str]]:
            # The last one may be half a line.
            return self._lines(server, 'GUEST-ECHO')[:-1]
        known = len(lines())
        line = self.lab.until(lambda: lines()[known:], _PATIENCE,
                              'the guest counts nothing')[-1]
        return _Count(int(line[1]) / 100, int(line[2]), int(line[3]))

    def _measure(self, server: Any, text: str, seconds: float) -> None:
        """Check that all packets come back for some seconds."""
        before = self._count(server)
        time.sleep(seconds)
        lost = self._show_loss(server, text, before)
        self.checks.note(abs(lost) <= _ON_THE_WAY,
                         f'{text}, lost: {lost}, expected 0')

    def _show_loss(self, server: Any, text: str, before: _Count) -> int:
        """Print and return the number of packets lost since a count.

        Most of those of that time must have come back.
        """
        now = self._count(server)
        sent, received = now.sent - before.sent, now.received - before.received
        self.checks.note(
            2 * received > sent > 0,
            f'{text}: {received} of {sent} packets came back in '
            f'{now.time - before.time:.1f} s, expected most of them')
        return sent - received

    def _check_device(self, server: Any) -> None:
        """Check node and claim of the VF, on the host and in the guest."""
        cell, = self.lab.topology(server)
        passed = self.lab.passed(server)
        self.checks.equal(
            'guest node and host node of the VF',
            [(one.guest_node, one.host_node) for one in passed],
            [(0, cell['host_node'])])
        self.checks.equal('VFs claimed', self._claimed(server),
                          [one.host for one in passed])
        seen = [line.split()[-1] for line in self.lab.printed(server)
                if line.startswith(('GUEST-PCI ', 'GUEST-PCI-ADDED '))
                and ':'.join(f'0x{one}' for one in machine.VF_ID) in line]
        self.checks.equal('node of the VF in the guest', seen[-1],
                          'numa_node=0')

    def _audit(self) -> None:
        """Check that the audit finds nothing, once nova-compute answers it."""
        def answered() -> list[Any] | None:
            try:
                return [self.lab.openstack('audit')]
            except CloudError as error:
                print(f'        {error}')
                return None
        found, = self.lab.until(answered, _PATIENCE, 'the audit fails')
        self.checks.equal('audit', found, [])

    def _claimed(self, server: Any) -> list[str]:
        """Return the PCI addresses that Nova has recorded for a server."""
        return database.query(
            self.settings,
            'select address from nova_cell1.pci_devices '  # noqa: S608
            f"where instance_uuid = '{server.id}' and deleted = 0").split()

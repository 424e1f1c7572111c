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

"""A guest with systemd and ghsched-guest on two hosts of one NUMA node.

"tools/e2e.sh --systemd". What came of the policy is read from the files of
both kernels: control groups, affinities and interrupts in the guest, schemata
and tasks on the host.
"""

from collections.abc import Iterator
import contextlib
import json
import socket
import sys
import time
from typing import Any

from aio import catalog
from aio.lab import Group
from aio.lab import Lab
from aio import network
from aio import process
from aio.settings import CloudError
from aio.settings import read
from e2e_room import main
from e2e_room import Room

IMAGE = 'ghsched-systemd'
_COMMAND_LINE = ('console=ttyS0 quiet nokaslr mitigations=off tsc=unstable '
                 'clocksource=acpi_pm no_timer_check net.ifnames=0')
_FLAVOR = 'systemd'
#: Seconds on a busy machine, where an emulated CPU gets a tenth of a real one.
_BOOT, _COMMAND, _MOVE = 1800, 300, 600
#: Seconds in which the host has to follow a guest that moves its vCPUs.
_FOLLOWS = 2.0
#: Minutes of a flood before nova-compute is measured, and after; and what it
#: may use of one CPU and grow in these.
_WARM_UP, _FLOOD, _FLOOD_CPU, _FLOOD_GROWTH_KB = 5, 10, 0.01, 1024

#: Port on which a guest takes commands.
_SHELL = 2300
#: Port of the redis of each class, and its network device.
_PORTS = {'latency': 6379, 'default': 6380}
_DEVICES = {'latency': 'eth0', 'default': 'eth1'}
#: Interrupts of such a device: of its configuration, and of two queues.
_INTERRUPTS = 3
#: Guarantee and cap of each class.
_LIMITS = {'latency': (30, 100), 'default': (0, 50)}


class Systemd(Room):
    """The tests; a method's name without ``test_`` is the test's name."""

    def prepare(self) -> None:
        files = self.settings.cache / 'systemd-guest'
        catalog.upload_guest(
            self.lab.cloud, IMAGE, catalog.GuestFiles(
                files / 'vmlinux', files / 'initrd.img', files / 'root.img'),
            _COMMAND_LINE, (files / 'revision').read_text().strip())
        self.lab.image_name = IMAGE
        self.lab.flavor(_FLAVOR, 2, 640, hw__numa_nodes=1,
                        ghsched__guest_channel='write',
                        ghsched__vcpu_classes='latency:0',
                        ghsched__mem_bw_min__at__latency=30,
                        ghsched__mem_bw_max=50)

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        network.connect_guests(self.settings, self.lab.cloud)
        try:
            yield
        finally:
            self.lab.clean()
            network.disconnect_guests(self.settings)

    def nothing_left(self) -> None:
        self.checks.equal('control groups left', [
            group.name for host in self.settings.hosts
            for group in self.lab.on(host).groups()], [])

    def test_policy_reaches_containers(self) -> None:
        """Two redis in two classes, which the guest moves; live migration."""
        server, = self._boot('dense')
        status = json.loads(self._run(server, 'ghsched-guest status --json'))
        self.checks.equal('where the guest has its policy from',
                          status['source'], 'channel')
        self.checks.equal(
            'limits in force, as the guest reads them by class',
            {name: [(row['mem_bw_min'], row['mem_bw_max']) for row in rows]
             for name, rows in status['classes'].items()},
            {name: [limits] for name, limits in _LIMITS.items()})
        for name, port in _PORTS.items():
            self._run(server, f'systemd-run --unit redis-{name} --slice '
                      f'ghsched-{name}.slice redis-server --port {port} '
                      '--protected-mode no --save ""')
        vcpus = {'latency': 0, 'default': 1}
        self._pin_interrupts(server, vcpus)
        self._all_agree('as booted', server, vcpus)
        for text in ('moved from inside', 'moved back after a migration'):
            vcpus = {name: 1 - vcpu for name, vcpu in vcpus.items()}
            self._move_class(server, vcpus['latency'])
            self._pin_interrupts(server, vcpus)
            self._all_agree(text, server, vcpus)
            if text == 'moved from inside':
                server = self._migrate(server)
                self._all_agree('after a live migration', server, vcpus)
        self._reboot(server)
        self._slices_agree('after a reboot in the guest', server, vcpus)

    def test_flood(self) -> None:
        """A guest writes all it can; nova-compute does next to nothing."""
        flooding, other = self._boot('flooding', 'other')
        self._run(flooding, 'systemctl stop ghsched-guest')
        time.sleep(30)    # its channel is open, and nova-compute idle
        before = self.lab.at(other).groups()
        idle = self._measure_compute(flooding)
        self._run(flooding, "systemd-run sh -c 'yes "
                  + json.dumps(json.dumps({'ghsched': 1, 'ask': 'policy'}))
                  + " > /dev/virtio-ports/org.openstack.ghsched.0'")
        # Until libvirt has received its largest packets: the C library seems
        # to keep their memory for each thread that received one. 1.1 MiB are
        # 0.3 MiB where MALLOC_MMAP_THRESHOLD_ is set.
        first = [self._measure_compute(flooding) for _ in range(_WARM_UP)]
        seen = [self._measure_compute(flooding) for _ in range(_FLOOD)]
        used = sum(cpu for cpu, _grown in seen) / _FLOOD
        grown = [grown for _cpu, grown in seen]
        self.checks.note(
            used - idle[0] < _FLOOD_CPU, 'CPU of nova-compute: '
            f'{used:.4f} in the flood, {idle[0]:.4f} before, expected less '
            f'than {_FLOOD_CPU} more')
        self.checks.note(
            sum(grown) < _FLOOD_GROWTH_KB, 'growth of nova-compute by minute: '
            f'{grown} KiB, {idle[1]} in the minute before the flood, '
            f'{[one[1] for one in first]} in its first minutes, expected less '
            f'than {_FLOOD_GROWTH_KB} in total')
        self.checks.equal('groups of both guests',
                          self.lab.at(other).groups(), before)

    # -- parts of tests -------------------------------------------------------

    def _boot(self, *names: str) -> list[Any]:
        net = self.lab.cloud.network.find_network(network.GUESTS).id
        asked = [self.lab.create(
            name, _FLAVOR, host=self.settings.host.name,
            networks=[{'uuid': net}] * len(_PORTS)) for name in names]
        servers = [self._active(self.lab.wait(one)) for one in asked]
        for one in servers:
            self._give_addresses(one)
        return servers

    def _give_addresses(self, server: Any) -> None:
        """Type the addresses of a guest until it answers.

        The line that it prints then was missing on the console of a guest
        that had its addresses.
        """
        self.lab.until(
            lambda: 'GUEST-ASKS' in self.lab.printed(server), _BOOT,
            f'{server.name} does not ask for its addresses')
        addresses = ' '.join(self._address(server, number)
                             for number in range(len(_PORTS)))
        for _ in range(_BOOT // 20):
            self.lab.at(server).type(server, addresses)
            with contextlib.suppress(CloudError):
                self._wait_booted(server, '', 20)
                return
        raise CloudError(f'{server.name} does not read its addresses')

    def _wait_booted(self, server: Any, before: str, seconds: float) -> None:
        """Wait until a guest answers after another boot than before."""
        self.lab.until(lambda: self._read_boot(server) not in ('', before),
                       seconds, f'{server.name} does not answer')

    def _read_boot(self, server: Any) -> str:
        """Return the ID of a guest's boot; empty if it does not answer."""
        with contextlib.suppress(OSError, CloudError):
            return self._run(server, 'cat /proc/sys/kernel/random/boot_id')
        return ''

    def _address(self, server: Any, number: int) -> str:
        """Address that Neutron gave to a network device of a guest."""
        port = sorted(self.lab.cloud.network.ports(device_id=server.id),
                      key=lambda one: self._macs(server).index(
                          one.mac_address))[number]
        return str(port.fixed_ips[0]['ip_address'])

    def _macs(self, server: Any) -> list[str | None]:
        """MAC addresses in the order of the network devices of a guest."""
        return [one.get('address') for one in self.lab.at(server).domain_xml(
            server).iterfind('devices/interface/mac')]

    def _run(self, server: Any, command: str) -> str:
        """Run a command in a guest, and return what it prints.

        :raises CloudError: if it fails.
        """
        with socket.create_connection(
                (self._address(server, 0), _SHELL), _COMMAND) as link:
            # A file may end without a newline.
            link.sendall(f'( {command} ) 2>&1\nprintf "\\n%d" $?\n'.encode())
            link.shutdown(socket.SHUT_WR)
            text, _newline, status = b''.join(
                iter(lambda: link.recv(4096), b'')).decode().rpartition('\n')
        if status != '0':
            raise CloudError(f'in {server.name}, {command}: {text}')
        return text.strip()

    def _pin_interrupts(self, server: Any, vcpus: dict[str, int]) -> None:
        """Pin the interrupts of each service to the vCPU of its class."""
        self._run(server, 'ghsched-guest network apply --share ' + ' '.join(
            f'redis-{name}.service={_DEVICES[name]}:{vcpu}:{vcpu}'
            for name, vcpu in vcpus.items()))

    def _move_class(self, server: Any, vcpu: int) -> None:
        """Move a vCPU into the class "latency", from inside the guest."""
        said = self._run(server, f'ghsched-guest classes set latency {vcpu}')
        first = said.splitlines()[0]
        seconds = float(first.rpartition(' after ')[2].partition(' ')[0])
        # Read at once: the host has answered.
        self._host_agrees('the host when it has answered', server,
                          {'latency': vcpu, 'default': 1 - vcpu})
        self.checks.note(
            seconds <= _FOLLOWS, f'counted in the guest: {first!r}, expected '
            f'at most {_FOLLOWS} s')

    def _all_agree(self, text: str, server: Any, vcpus: dict[str, int]
                   ) -> None:
        """Host, slices, processes and interrupts have the same classes."""
        self._host_agrees(text, server, vcpus)
        self._slices_agree(text, server, vcpus)
        self.checks.equal(
            f'{text}: slice and CPUs of the threads of each redis', {
                name: set(self._run(
                    server, 'for t in /proc/$(systemctl show -P MainPID '
                    f'redis-{name})/task/*; do echo $(cut -d / -f 3 $t/cgroup)'
                    ' $(grep Cpus_allowed_list $t/status); done').splitlines())
                for name in vcpus},
            {name: {f'ghsched-{name}.slice Cpus_allowed_list: {vcpu}'}
             for name, vcpu in vcpus.items()})
        before = self._count_interrupts(server)
        for number, port in enumerate(_PORTS.values()):
            self.checks.equal(f'{text}: redis answers on port {port}',
                              self._ping(server, number, port, 50), 50)
        after = self._count_interrupts(server)
        for name, vcpu in vcpus.items():
            grown = [now - then for now, then in zip(
                after[name], before[name], strict=True)]
            # The kernel moves each to its CPU after the next one has come.
            self.checks.note(
                grown[vcpu] > 10 and grown[1 - vcpu] <= _INTERRUPTS,
                f'{text}: interrupts of {_DEVICES[name]} by vCPU: {grown}, '
                f'expected all on {vcpu} but the first of each')

    def _host_agrees(self, text: str, server: Any, vcpus: dict[str, int]
                     ) -> None:
        lab = self.lab.at(server)
        self.checks.equal(
            f'{text}: vCPUs, guarantee and cap by class on the host',
            {group.name.partition('.')[2]: _describe(group)
             for group in lab.groups() if server.id in group.name},
            {name: ([vcpu], *_LIMITS[name]) for name, vcpu in vcpus.items()})

    def _slices_agree(self, text: str, server: Any, vcpus: dict[str, int]
                      ) -> None:
        self.checks.equal(
            f'{text}: CPUs of the slices in the guest', {
                name: self._run(server, 'cat /sys/fs/cgroup/ghsched.slice/'
                                f'ghsched-{name}.slice/cpuset.cpus')
                for name in vcpus},
            {name: str(vcpu) for name, vcpu in vcpus.items()})

    def _count_interrupts(self, server: Any) -> dict[str, list[int]]:
        """Interrupts by class of the network device and vCPU."""
        found = {}
        for name, device in _DEVICES.items():
            rows = self._run(
                server, f'for i in $(ls /sys/class/net/{device}/device/../'
                'msi_irqs); do grep -w " $i:" /proc/interrupts; done')
            found[name] = [sum(counts) for counts in zip(*(
                map(int, row.split()[1:3]) for row in rows.splitlines()),
                strict=True)]
        return found

    def _ping(self, server: Any, number: int, port: int, count: int) -> int:
        """Return how many of some requests a redis answers."""
        answers = 0
        with socket.create_connection(
                (self._address(server, number), port), 60) as link:
            for _ in range(count):
                link.sendall(b'PING\r\n')
                answers += link.recv(64) == b'+PONG\r\n'
        return answers

    def _migrate(self, server: Any) -> Any:
        self.lab.cloud.compute.live_migrate_server(
            server, host=None, block_migration='auto')
        server = self.lab.wait(server, 'ACTIVE', 'ERROR', seconds=_MOVE)
        self.checks.equal('host and state after a live migration',
                          (server.compute_host, server.status),
                          (self.settings.hosts[1].name, 'ACTIVE'))
        self.checks.equal('groups on the host that it has left',
                          [one.name for one in self.lab.groups()], [])
        # News may follow it at once, so the last one is not enough.
        self.lab.until(
            lambda: '"reason": "moved"' in self._read_messages(server), 60,
            lambda: 'the guest does not hear that it was moved, but: '
            + self._read_messages(server)[-2000:])
        return server

    def _read_messages(self, server: Any) -> str:
        """Return what the host has written on the channel since the boot."""
        return self._run(server, 'journalctl -b -o cat -u ghsched-guest')

    def _reboot(self, server: Any) -> None:
        """Reboot in the guest; its domain goes on."""
        before = self._read_boot(server)
        self._run(server, 'systemd-run --on-active=2 systemctl reboot')
        self._wait_booted(server, before, _BOOT)

    def _measure_compute(self, server: Any) -> tuple[float, int]:
        """Part of a CPU that nova-compute uses in a minute, and KiB that it
        grows.
        """
        compute = self.services.compute(self.lab.at(server).settings)
        first = _read_usage(compute)
        time.sleep(60)
        last = _read_usage(compute)
        return (last[0] - first[0]) / 60, last[1] - first[1]


def _describe(group: Group) -> tuple[list[int], int, int]:
    """Numbers of the vCPUs in a group, its guarantee and its cap."""
    vcpus = sorted(int(name.split()[1].partition('/')[0])
                   for name in group.threads.values()
                   if name.startswith('CPU '))
    minimum, maximum = (int(group.schemata[line][0])
                        for line in ('MBMIN', 'MB'))
    return vcpus, minimum, maximum


def _read_usage(one: process.Process) -> tuple[float, int]:
    """Seconds of CPU time of a process, and its resident memory in KiB."""
    with open(f'/proc/{one.pid}/stat') as stat:
        fields = stat.read().rpartition(')')[2].split()
    with open(f'/proc/{one.pid}/status') as status:
        memory = next(line for line in status if line.startswith('VmRSS'))
    return (int(fields[11]) + int(fields[12])) / 100, int(memory.split()[1])


if __name__ == '__main__':
    sys.exit(main((Systemd,), Lab(read(), 'e2e-systemd'), sys.argv[1:]))

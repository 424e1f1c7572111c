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


"""Check the interrupts of a real VF; runs in the virtual node.

With the same VF: its driver has it, as in a server that it was given to, and
ghsched-guest pins its interrupts; a container of ghsched-bench has it; VFIO
has it, as on a host whose server uses it, and they are steered as nova-compute
does it with each report.
"""

from collections.abc import Iterator
import contextlib
import ctypes
import fcntl
import logging
import os
from pathlib import Path
import signal
import socket
import struct
import subprocess
import sys
import time
import types

from lxml import etree

from ghsched_nova.features.interrupts import interrupts
from ghsched_nova.features.interrupts import privileged
from ghsched_nova.features.real_time import scheduling
from ghsched_nova.host import desired
from ghsched_nova.lab.bench import container_plan
from ghsched_nova.lab.bench import guest_containers
from ghsched_nova.lab.bench import standin
from ghsched_nova.resctrl import model
from ghsched_placement.features.real_time.scheduling import ThreadPolicy

_DEVICES = Path('/sys/bus/pci/devices')
_IRQ = Path('/proc/irq')
_UUID = 'c5a49498-ffaf-47ae-9208-77ea133d3fcf'

#: Of linux/vfio.h: each request has the type ';', and counts from 100.
_SET_IOMMU, _GET_DEVICE, _SET_CONTAINER, _SET_IRQS = (
    (ord(';') << 8) + 100 + number for number in (2, 6, 4, 10))
_TYPE1V2 = 3
_EVENTFD, _TRIGGER, _MSIX = 1 << 2, 1 << 5, 2
_VECTORS = 3


def say(*words: object) -> None:
    print('VNODE', *words, flush=True)


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise SystemExit(f'VNODE {what}: {found}, expected {wanted}')
    say(f'{what}: {found}')


def cpus_of(node: int) -> list[int]:
    path = Path(f'/sys/devices/system/node/node{node}')
    return sorted(int(one.name[3:]) for one in path.glob('cpu[0-9]*'))


def routes(numbers: list[int]) -> list[str]:
    return [(_IRQ / str(number) / 'smp_affinity_list').read_text().strip()
            for number in numbers]


def bind(address: str, driver: str) -> None:
    """Give a device to a driver, and to no other one."""
    device = _DEVICES / address
    if (device / 'driver').exists():
        (device / 'driver' / 'unbind').write_text(address)
    subprocess.run(['modprobe', driver], check=True)
    (device / 'driver_override').write_text(driver)
    Path('/sys/bus/pci/drivers_probe').write_text(address)


def make_vf(node: int) -> str:
    """A VF of the card of a node, without a driver; its address."""
    for pf in Path('/sys/bus/pci/drivers/igb').glob('0000:*'):
        if int((pf / 'numa_node').read_text()) == node:
            nic, = (pf / 'net').iterdir()
            subprocess.run(['ip', 'link', 'set', nic.name, 'up'], check=True)
            (pf / 'sriov_drivers_autoprobe').write_text('0')
            (pf / 'sriov_numvfs').write_text('1')
            return (pf / 'virtfn0').resolve().name
    raise SystemExit(f'VNODE no card is on node {node}')


# -- in a server --------------------------------------------------------------

def tune(address: str, cpus: list[int]) -> None:
    """The script for tenants pins, says so, and restores."""
    bind(address, 'igbvf')
    nic, = (one.name for one in (_DEVICES / address / 'net').iterdir())
    subprocess.run(['ip', 'link', 'set', nic, 'up'], check=True)
    irqs = _DEVICES / address / 'msi_irqs'
    until = time.monotonic() + 60
    while not (numbers := sorted(
            int(one.name) for one in irqs.iterdir()
            if any((_IRQ / one.name).glob(f'{nic}*')))):
        if time.monotonic() > until:
            raise SystemExit(f'VNODE {nic} has no interrupts')
        time.sleep(1)
    before = routes(numbers)
    with subprocess.Popen(['sleep', '600']) as service:
        everywhere = os.sched_getaffinity(service.pid)
        _script('network', 'apply', '--nic', nic, '--pid',
                str(service.pid))
        expect('CPUs of its interrupts', routes(numbers),
               [str(cpus[0])] * len(numbers))
        expect('CPUs of the service', os.sched_getaffinity(service.pid),
               set(cpus[1:]))
        _script('network', 'undo')
        expect('CPUs of its interrupts', routes(numbers), before)
        expect('CPUs of the service', os.sched_getaffinity(service.pid),
               everywhere)
        service.kill()
    subprocess.run(['ip', 'link', 'set', nic, 'down'], check=True)


def serve(address: str, node: int, cpus: list[int]) -> None:
    """A container of ghsched-bench has the VF, and answers its card's PF."""
    nic, = (one.name for one in (_DEVICES / address / 'net').iterdir())
    facts = guest_containers.parse_facts(_shell(guest_containers.SURVEY))
    vf = next(one for one in facts.nics if one.name == nic)
    expect('the node of the VF', vf.node, node)
    engine = guest_containers.choose_engine('auto', facts)
    say(f'containers by {engine}, the server is {facts.server}')
    order = guest_containers.ContainerOrder(
        container_plan.ContainerPlace(1, 0, node, cpus[0], cpus[1],
                                      shared=False),
        engine, '', '64m', (cpus[1],), nic, nic, '192.0.2.10/24',
        guest_containers.server_command(engine, facts, 6379, ()))
    said = _shell(guest_containers.start_script(
        order, Path(standin.__file__).read_text()))
    say(said.strip())
    started = guest_containers.parse_started(said)
    expect('deviations', list(guest_containers.find_deviations(
        order, started)), [])
    expect('vectors on the CPU for interrupts', len(started.irqs), _VECTORS)
    pf, = (_DEVICES / address / 'physfn' / 'net').iterdir()
    subprocess.run(['ip', 'address', 'add', '192.0.2.1/24', 'dev', pf.name],
                   check=True)
    expect('answer through the VF', _ping('192.0.2.10'), b'+PONG')
    for path in Path('/proc').glob('[0-9]*/cmdline'):
        if b'ghsched-bench-standin' in path.read_bytes():
            os.kill(int(path.parent.name), signal.SIGKILL)


def _shell(script: str) -> str:
    done = subprocess.run(['sh', '-c', script], capture_output=True,
                          text=True, check=False)
    if done.returncode:
        raise SystemExit(f'VNODE {done.stdout}{done.stderr}')
    return done.stdout


def _ping(address: str) -> bytes:
    """Return the answer of a redis server, which may need a while."""
    until = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection((address, 6379), 5) as server:
                server.sendall(b'*1\r\n$4\r\nPING\r\n')
                return server.recv(100).strip()
        except OSError as error:
            if time.monotonic() > until:
                raise SystemExit(f'VNODE {address}: {error}') from None
            time.sleep(1)


def _script(*arguments: str) -> None:
    say('#', 'ghsched-guest', *arguments)
    subprocess.run([sys.executable, '/usr/local/bin/ghsched-guest',
                    *arguments], check=True)


# -- on a host ----------------------------------------------------------------

@contextlib.contextmanager
def open_vf(address: str) -> Iterator[None]:
    """Make the interrupts of a VF through VFIO, as QEMU does for a server."""
    bind(address, 'vfio-pci')
    group = os.readlink(_DEVICES / address / 'iommu_group').split('/')[-1]
    with contextlib.ExitStack() as stack:
        container, member = (
            stack.enter_context(open(f'/dev/vfio/{name}', 'r+b', buffering=0))
            for name in ('vfio', group))
        fcntl.ioctl(member, _SET_CONTAINER,
                    struct.pack('i', container.fileno()))
        fcntl.ioctl(container, _SET_IOMMU, _TYPE1V2)
        # Its answer is a file descriptor; fcntl gives back a buffer instead.
        device = ctypes.CDLL(None, use_errno=True).ioctl(
            member.fileno(), ctypes.c_ulong(_GET_DEVICE),
            ctypes.c_char_p(address.encode()))
        stack.callback(os.close, device)
        events = [os.eventfd(0) for _number in range(_VECTORS)]
        fcntl.ioctl(device, _SET_IRQS, struct.pack(
            f'=5I{_VECTORS}i', 20 + 4 * _VECTORS, _EVENTFD | _TRIGGER, _MSIX,
            0, _VECTORS, *events))
        yield


def domain(address: str) -> desired.Running:
    """A server with the VF, whose flavor has the interrupts steered."""
    bus, slot, function = address[5:7], address[8:10], address[11]
    xml = etree.tostring(etree.fromstring(
        f'<domain><name>web</name><uuid>{_UUID}</uuid><vcpu>2</vcpu>'
        '<devices><hostdev mode="subsystem" type="pci" managed="yes"><source>'
        f'<address domain="0x0000" bus="0x{bus}" slot="0x{slot}" '
        f'function="0x{function}"/></source></hostdev></devices></domain>'),
        encoding='unicode')
    return desired.Running(
        model.Domain(_UUID, 1, 'web'),
        scheduling.render_scheduling(
            xml, ThreadPolicy(irq_affinity='housekeeping')
        ),
    )


def keeper(dedicated: set[int]) -> interrupts.InterruptMover:
    """Return an interrupt keeper like nova-compute's, without privsep."""
    return interrupts.InterruptMover(
        types.SimpleNamespace(irq_bypass=['none'], sysfs_path='/sys'),
        dedicated, set_cpus=privileged.set_interrupt_cpus_as_root)


def steer(address: str, cpus: list[int]) -> None:
    """Each report brings the interrupts to the CPU that no server has."""
    running = [domain(address)]
    own = keeper(set(cpus[1:]))
    with open_vf(address):
        found = own.report_misplaced(running)
        for action in found.actions:
            say('plan:', action.kind, '|', action.details, '|', action.reason)
        numbers = [one.interrupt.number for one in found.actions]
        expect('interrupts to steer', len(numbers), _VECTORS)
        own.reconcile_guests(running)
        expect('CPUs of its interrupts', routes(numbers),
               [str(cpus[0])] * _VECTORS)
        expect('actions of a second report',
               own.report_misplaced(running).actions, ())
        (_IRQ / str(numbers[0]) / 'smp_affinity_list').write_text('0')
        expect('CPU by hand', routes(numbers[:1]), ['0'])
        own.reconcile_guests(running)
        expect('CPUs after the next report', routes(numbers),
               [str(cpus[0])] * _VECTORS)
        problems = keeper(set(cpus)).report_misplaced(running).problems
        for problem in problems:
            say(problem)
        expect('problems without a CPU left', len(problems), 1)
    expect('actions when VFIO has given them back',
           own.report_misplaced(running).actions, ())


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout,
                        format='VNODE log: %(message)s')
    node = 1
    cpus = cpus_of(node)
    address = make_vf(node)
    say(f'{address} is on node {node} with CPUs {cpus}')
    tune(address, cpus)
    serve(address, node, cpus)
    steer(address, cpus)
    say('interrupts are as they should be')


if __name__ == '__main__':
    main()

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


"""The virtual compute node's hardware, as a QEMU command line."""

from dataclasses import dataclass
import os
from pathlib import Path

from aio.process import Process
from aio.settings import Settings

NAME = 'virtual-1'
NODES = 2
CPUS_PER_NODE = 2
MEMORY_PER_NODE = 2048  # MiB

#: The 82576 and its virtual function.
PF_ID = ('8086', '10c9')
VF_ID = ('8086', '10ca')


def pci_name(ids: tuple[str, str]) -> str:
    """Vendor and device, as ``lspci -n`` writes them."""
    return ':'.join(ids)


#: Where the machine of QEMU's user network sees this one's loopback.
HOST_ADDRESS = '10.0.2.2'
NODE_ADDRESS = '10.0.2.15'

_SSH_PORT_OFFSET = 20


#: The physical network that both cards are plugged into, as Neutron calls it.
NETWORK = 'physnet0'

#: VFs of each PF that are for Neutron's ports. Nova keeps them out of
#: Placement.
PORT_VFS = 1


def _vfs_per_pf() -> int:
    """The 82576 has 8 queue pairs, so 7 VFs at most.

    With two, a guest of two VFs could have both of one node.
    """
    text = os.environ.get('GHSCHED_VFS', '2')
    if text not in tuple('123456'):
        raise SystemExit(f'GHSCHED_VFS must be a number from 1 to 6, not '
                         f'{text!r}')
    return int(text)


#: VFs of each PF that flavors can ask for.
VFS_PER_PF = _vfs_per_pf()


def port_vfs() -> list[str]:
    """PCI addresses in the node of the VFs for ports: the last ones."""
    return [_vf_address(node, VFS_PER_PF + number)
            for node in range(NODES) for number in range(PORT_VFS)]


def _vf_address(node: int, number: int) -> str:
    """The 82576's VFs have every second function from device 16 on."""
    device, function = divmod(2 * number, 8)
    return f'0000:{_bus(node) + 1:02x}:{0x10 + device:02x}.{function}'


#: The CPU of what is not a guest: one of node 0 for dedicated guests, which
#: no test has.
HOUSEKEEPING = 1


def shared_cpu(node: int) -> int:
    """The CPU of a node that is for shared guests: its first one.

    The other ones are for dedicated guests.
    """
    return node * CPUS_PER_NODE


def _bus(node: int) -> int:
    """The bus number of a node's expander bus; the PF is on the next one.
    """
    return 64 * (node + 1)


@dataclass(frozen=True)
class Files:
    """Files of the machine; see tools/vnode.

    :param emulator: QEMU with the device model ``igb``, unpacked.
    :param root: the directory of the kernel, initrd and root file system.
    :param environment: a file system image of the Python environment.
    :param parcel: the tar archive of node-init.
    """

    emulator: Path
    root: Path
    environment: Path
    parcel: Path


def ssh_port(settings: Settings) -> int:
    return settings.port_base + _SSH_PORT_OFFSET


def state(settings: Settings) -> Path:
    return settings.state / 'vnode'


def console(settings: Settings) -> Path:
    return settings.log / 'vnode.log'


def process(settings: Settings, files: Files, revision: str) -> Process:
    """The machine; nothing is started.

    :param revision: what else it depends on, as of Process.
    """
    return Process(
        name='vnode', argv=command(settings, files),
        log=settings.log / 'vnode-qemu.log',
        pidfile=settings.run / 'vnode.pid', grace=5,
        revision=revision)


def command(settings: Settings, files: Files) -> tuple[str, ...]:
    share = files.emulator / 'usr' / 'share'
    return (
        str(files.emulator / 'usr' / 'bin' / 'qemu-system-x86_64'),
        '-L', str(share / 'qemu'), '-L', str(share / 'seabios'),
        '-nodefaults', '-no-user-config', '-no-reboot',
        '-name', 'ghsched-virtual-node,debug-threads=on', '-display', 'none',
        '-accel', 'tcg,thread=multi,tb-size=512',
        '-machine', 'q35,smm=off,vmport=off', '-cpu', 'max',
        *_processors(), *_kernel(files),
        # Interrupt remapping is what vfio asks of a safe host. With "eim" the
        # kernel can use its APICs as x2APICs: of the memory-mapped kind QEMU
        # 10.0 at times loses the end of a timer's interrupt, and the CPU then
        # sleeps for ever (1 of 40 boots, and none of 80 with "eim").
        '-device', 'intel-iommu,intremap=on,eim=on,device-iotlb=on,'
                   'aw-bits=48',
        *_disks(files), *_network(settings), *_nics(),
        '-serial', f'file:{console(settings)}',
        '-device', 'virtio-rng-pci,bus=pcie.0,addr=0x6',
    )


def _processors() -> list[str]:
    words = [
        '-m', str(NODES * MEMORY_PER_NODE),
        '-smp', f'{NODES * CPUS_PER_NODE},sockets={NODES},'
                f'cores={CPUS_PER_NODE},threads=1',
    ]
    for node in range(NODES):
        first = node * CPUS_PER_NODE
        words += [
            '-object', f'memory-backend-ram,id=ram{node},'
                       f'size={MEMORY_PER_NODE}M',
            '-numa', f'node,nodeid={node},memdev=ram{node},'
                     f'cpus={first}-{first + CPUS_PER_NODE - 1}']
    return [*words, '-numa', 'dist,src=0,dst=1,val=20']


def _kernel(files: Files) -> tuple[str, ...]:
    options = (
        'console=ttyS0', 'intel_iommu=on', 'iommu=pt',
        # There is nobody to protect from, and each check is emulated.
        'mitigations=off', 'nokaslr', 'audit=0',
        # Emulated CPUs are late at times; no watchdog must bark.
        # Where its timer is, too, the kernel does not boot at all ("timer
        # doesn't work through Interrupt-remapped IO-APIC").
        'tsc=reliable', 'nowatchdog', 'no_timer_check', 'net.ifnames=0')
    return ('-kernel', str(files.root / 'vmlinuz'),
            '-initrd', str(files.root / 'initrd.img'),
            '-append', ' '.join(options))


def _disks(files: Files) -> list[str]:
    """vda, vdb, vdc of node-init; what is written to vda is forgotten."""
    words = []
    for number, (path, form) in enumerate((
            (files.root / 'root.img', 'snapshot=on,cache=unsafe'),
            (files.environment, 'readonly=on'),
            (files.parcel, 'readonly=on'))):
        words += [
            '-drive', f'file={path},if=none,id=disk{number},format=raw,'
                      f'{form}',
            '-device', f'virtio-blk-pci,drive=disk{number},bus=pcie.0,'
                       f'addr={0x10 + number:#x}']
    return words


def _network(settings: Settings) -> tuple[str, ...]:
    return (
        '-netdev', 'user,id=lan,hostfwd=tcp:127.0.0.1:'
                   f'{ssh_port(settings)}-:22',
        '-device', 'virtio-net-pci,netdev=lan,bus=pcie.0,addr=0x5,romfile=')


def _nics() -> list[str]:
    """Return the options for one PF on each node, behind an expander bus."""
    words = []
    for node in range(NODES):
        words += [
            '-device', f'pxb-pcie,id=bus{node},bus_nr={_bus(node)},'
                       f'numa_node={node},bus=pcie.0,addr={0x8 + node:#x}',
            '-device', f'pcie-root-port,id=port{node},bus=bus{node},'
                       f'chassis={node + 1},slot={node + 1}',
            '-netdev', f'hubport,hubid=1,id=wire{node}',
            '-device', f'igb,bus=port{node},netdev=wire{node},'
                       f'mac=52:54:00:00:01:{node + 1:02x},romfile=']
    return words

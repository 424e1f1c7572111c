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


"""A guest with VFs, made of Nova's own configuration objects.

The devices and their order are those of ``LibvirtDriver._get_guest_config``
for a guest of a volume, a virtio port, SR-IOV ports and flavor VFs. The
functional tests give it to libvirt, and tools/bench times how Nova and we
turn it into XML.
"""

from dataclasses import dataclass
import uuid

from nova.virt.libvirt import config as vconfig


@dataclass(frozen=True)
class Shape:
    """Size and kind of a guest.

    :param vfs: devices of the flavor, on slots of the PF 0000:81.
    :param sriov_ports: Neutron ports, on slots of the PF 0000:82.
    :param ports: Nova's num_pcie_ports.
    """

    cells: int = 2
    vcpus: int = 4
    memory_mib: int = 512
    vfs: int = 0
    sriov_ports: int = 0
    ports: int = 0
    arch: str = 'x86_64'
    machine: str = 'q35'
    virt_type: str = 'qemu'

    def vf_addresses(self) -> list[str]:
        """Host PCI addresses of the flavor's VFs."""
        return [f'0000:81:{one // 8:02x}.{one % 8}'
                for one in range(self.vfs)]

    def port_addresses(self) -> list[str]:
        """Host PCI addresses of the Neutron ports."""
        return [f'0000:82:{one // 8:02x}.{one % 8}'
                for one in range(self.sriov_ports)]


def config(shape: Shape, name: str = 'instance-0000002a'):
    """The guest as Nova's LibvirtConfigGuest; the caller may change it."""
    guest = vconfig.LibvirtConfigGuest()
    guest.virt_type = shape.virt_type
    guest.name = name
    guest.uuid = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    guest.memory = shape.memory_mib * 1024
    guest.vcpus = shape.vcpus
    guest.os_type = 'hvm'
    guest.os_arch = shape.arch
    guest.os_mach_type = shape.machine
    guest.features.append(vconfig.LibvirtConfigGuestFeatureACPI())
    guest.cpu = _cpu(shape)
    if shape.virt_type == 'kvm':
        guest.cputune = _pins(shape)
    for device in _devices(shape):
        guest.add_device(device)
    return guest


def _made(kind, **values):
    made = kind()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def _cpu(shape):
    cpu = _made(vconfig.LibvirtConfigGuestCPU, mode='custom',
                model='cortex-a57' if shape.arch == 'aarch64' else 'qemu64')
    cpu.numa = vconfig.LibvirtConfigGuestCPUNUMA()
    each = shape.vcpus // shape.cells
    for cell in range(shape.cells):
        cpu.numa.cells.append(_made(
            vconfig.LibvirtConfigGuestCPUNUMACell, id=cell,
            cpus=set(range(cell * each, (cell + 1) * each)),
            memory=shape.memory_mib * 1024 // shape.cells))
    return cpu


def _pins(shape):
    tune = vconfig.LibvirtConfigGuestCPUTune()
    tune.vcpupin = [
        _made(vconfig.LibvirtConfigGuestCPUTuneVCPUPin, id=cpu, cpuset={cpu})
        for cpu in range(shape.vcpus)]
    return tune


def _devices(shape):
    yield _made(vconfig.LibvirtConfigGuestDisk, source_type='network',
                source_device='disk', driver_name='qemu',
                driver_format='raw', source_protocol='rbd',
                source_name='vms/x', source_hosts=['192.0.2.1'],
                source_ports=['6789'], target_dev='vda', target_bus='virtio')
    yield _made(vconfig.LibvirtConfigGuestInterface, net_type='ethernet',
                target_dev='tap0', mac_addr='52:54:00:00:00:01',
                model='virtio')
    for number, address in enumerate(shape.port_addresses()):
        yield _made(vconfig.LibvirtConfigGuestInterface, net_type='hostdev',
                    source_dev=address,
                    mac_addr=f'52:54:00:00:01:{number:02x}')
    yield _made(vconfig.LibvirtConfigGuestSerial, type='pty')
    yield _made(vconfig.LibvirtConfigGuestRng, backend='/dev/urandom')
    if shape.ports:
        yield vconfig.LibvirtConfigGuestPCIeRootController()
        for _ in range(shape.ports):
            yield vconfig.LibvirtConfigGuestPCIeRootPortController()
    yield _made(vconfig.LibvirtConfigGuestUSBHostController, index=0,
                model='none')
    for address in shape.vf_addresses():
        domain, bus, slot, function = address.replace('.', ':').split(':')
        yield _made(vconfig.LibvirtConfigGuestHostdevPCI, domain=domain,
                    bus=bus, slot=slot, function=function)
    yield _made(vconfig.LibvirtConfigMemoryBalloon, model='virtio', period=10)

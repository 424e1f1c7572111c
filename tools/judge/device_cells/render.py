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

"""Print the XML of a guest with a device on a host node without CPUs.

usage: render.py ARCHITECTURE with|without|large

``without`` is the XML for a libvirt that has no ``<acpi nodeset>``. The host
has nodes 0 and 1 with CPUs and node 2 without; the guest is on the first two
and has a device of node 0 and one of node 2. With ``large`` the devices are of
nodes 0 and 1 and have a memory window of 128 GiB each.
"""

from pathlib import Path
import sys
import tempfile
import types

from ghsched_nova.guest import device_numa
from ghsched_nova.host import device_xml
from ghsched_nova.host import domain_xml
from ghsched_nova.host import host_facts
from ghsched_placement.flavor.policy import GuestPolicy

NODES = (('0-3', '10 20 40'), ('4-7', '20 10 30'), ('', '40 30 10'))
#: Machine, firmware, feature and CPU of a guest.
MACHINES = {
    'x86_64': ("arch='x86_64' machine='q35'", '', '', 'qemu64'),
    'aarch64': ("arch='aarch64' machine='virt'",
                "<loader readonly='yes' type='pflash' format='raw'>"
                '/usr/share/AAVMF/AAVMF_CODE.no-secboot.fd</loader>'
                "<nvram format='raw'>/judge/vars.fd</nvram>",
                "<gic version='3'/>", 'cortex-a57')}
#: Host nodes of the two devices.
DEVICES = {'with': (0, 2), 'without': (0, 2), 'large': (0, 1)}
ADDRESSES = ('0000:81:00.0', '0000:82:00.0')
#: First and last byte and flags (64 bits, prefetchable) of a window in sysfs.
WINDOW = f'{1 << 40:#018x} {(1 << 40) + (1 << 37) - 1:#018x} {0x14220c:#018x}'
HOSTDEV = """<hostdev mode='subsystem' type='pci' managed='yes'>
<driver name='vfio'/><source><address domain='0x0000' bus='0x{}' slot='0x00'
function='0x0'/></source></hostdev>"""
DOMAIN = """<domain type='qemu'><name>guest</name>
<uuid>5a1f5a1e-37a5-5b0c-93f4-0a4e0a1d9a55</uuid>
<memory unit='MiB'>768</memory><vcpu>2</vcpu>
<os><type {machine}>hvm</type>{firmware}</os>
<features><acpi/>{feature}</features>
<cpu mode='custom'><model>{cpu}</model><numa>
<cell id='0' cpus='0' memory='393216' unit='KiB'/>
<cell id='1' cpus='1' memory='393216' unit='KiB'/></numa></cpu>
<devices><emulator>/usr/bin/qemu-system-{architecture}</emulator>
{devices}<memballoon model='none'/></devices></domain>"""


def write_sysfs(root: str, is_large: bool) -> None:
    for number, (cpus, distances) in enumerate(NODES):
        node = Path(root, f'devices/system/node/node{number}')
        node.mkdir(parents=True)
        (node / 'cpulist').write_text(f'{cpus}\n')
        (node / 'distance').write_text(f'{distances}\n')
    for address in ADDRESSES if is_large else ():
        device = Path(root, 'bus/pci/devices', address)
        device.mkdir(parents=True)
        (device / 'resource').write_text(f'{WINDOW}\n')


def render(architecture: str, how: str) -> str:
    machine, firmware, feature, cpu = MACHINES[architecture]
    initiators = how == 'with'
    with tempfile.TemporaryDirectory() as sysfs:
        write_sysfs(sysfs, how == 'large')
        renderer = device_xml.DeviceXml(
            host_facts.HostFacts(types.SimpleNamespace(
                sysfs_path=sysfs, resctrl_path=sysfs,
                device_numa_nearest=False, device_numa_spare_ports=0)),
            domain_xml.LibvirtFeatures(initiators=initiators))
        return renderer.add_device_numa_nodes(
            DOMAIN.format(
                architecture=architecture, machine=machine, firmware=firmware,
                feature=feature, cpu=cpu, devices=''.join(
                    HOSTDEV.format(address[5:7]) for address in ADDRESSES)),
            GuestPolicy(device_numa='required' if initiators
                        else 'preferred'),
            [*map(device_numa.Device, ADDRESSES, DEVICES[how])], [0, 1])


if __name__ == '__main__':
    print(render(*sys.argv[1:]))

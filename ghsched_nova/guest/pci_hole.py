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

"""Address space for the large memory windows of a guest's PCI devices (pure).

The 64-bit hole of a ``q35`` machine has 32 GiB for them by default, and one
GPU may have a window of 128 GiB. ``virt`` (Arm) has 512 GiB, and libvirt
cannot change that.
"""

from collections.abc import Iterable

from lxml import etree

from ghsched_nova.guest import document
from ghsched_nova.guest import pci_topology as pci

#: Default size of the 64-bit hole (Q35_PCI_HOST_HOLE64_SIZE_DEFAULT of QEMU).
DEFAULT_BYTES = 1 << 35


def compute_hole_size(windows: Iterable[int]) -> int:
    """Return the bytes of a hole for devices behind root ports of their own.

    The sum is not rounded: QEMU refuses a hole that ends beyond the physical
    address space of the guest's CPU, and 40 bits are common.

    :param windows: bytes of all 64-bit memory windows of each device. The
        window of a port begins at a multiple of its size.
    """
    return sum(map(_round_up, windows))


def _round_up(size: int) -> int:
    """Return the smallest power of two that is not less than a size; or 0."""
    return 1 << (size - 1).bit_length() if size else 0


def render_hole(xml: str, size: int) -> str:
    """Return a domain XML with at least a size of the 64-bit PCI hole.

    :param size: bytes. The domain is unchanged if the default is enough, or if
        the machine type has no such hole.
    """
    root = pci.parse_document(xml)
    if size <= DEFAULT_BYTES or pci.get_machine_type(root) != 'q35':
        return xml
    devices = pci.get_devices(root)
    bridge = devices.find('controller[@type="pci"][@index="0"]')
    if bridge is None:
        bridge = etree.Element('controller', type='pci', index='0',
                               model='pcie-root')
        document.insert_children(devices, [bridge], 0)
    document.remove_element(bridge.find('pcihole64'))
    hole = etree.Element('pcihole64', unit='KiB')
    hole.text = str(size // 1024)
    document.insert_children(bridge, [hole], len(bridge))
    return document.render_document(root)

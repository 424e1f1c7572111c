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


"""Limit of the memory that a guest with VFIO devices may lock.

VFIO pins all memory that a device can access. Without a virtual IOMMU all
devices of a guest share one address space, which counts once. With one, each
device has its own address space, and all memory of the guest counts for each
device.

libvirt raises the limit by itself (qemuDomainGetMemLockLimitBytes in
src/qemu/qemu_domain.c, read in 9.0.0 and in 11.3.0): to the ``<hard_limit>``
of the domain, to no limit with ``<memoryBacking><locked/>``, else to memory
times devices (times one without IOMMU) plus 1 GiB. libvirt before 8.7.0 counts
the memory once in every case (its NEWS for 8.7.0), so a guest with a virtual
IOMMU and several VFs does not start. Only in that case ghsched adds a
``<hard_limit>``, because it also limits the guest's memory in its control
group.
"""

from lxml import etree

from ghsched_nova.guest import document
from ghsched_nova.guest import pci_topology as pci
from ghsched_nova.guest.pci_topology import DeviceNumaError
from ghsched_nova.host import compute_hooks

#: First libvirt version that counts the memory once per device.
COUNTS_EACH_DEVICE = (8, 7, 0)

#: KiB that libvirt adds for the MMIO regions of emulated devices.
EXTRA_KIB = 1024 * 1024

_UNITS = {'b': 1, 'bytes': 1, 'KB': 10**3, 'MB': 10**6, 'GB': 10**9,
          'TB': 10**12}
_UNITS |= {name: 1024**power for power, names in enumerate(
    (('k', 'KiB'), ('M', 'MiB'), ('G', 'GiB'), ('T', 'TiB')), start=1)
    for name in names}
#: Elements that precede memtune in the XML that libvirt writes.
_BEFORE = frozenset((
    'name', 'uuid', 'genid', 'title', 'description', 'metadata', 'maxMemory',
    'memory', 'currentMemory', 'blkiotune'))


class LockedMemory(compute_hooks.ComputeHooks):
    """Renderer of the limit of memory that a guest's devices may lock."""

    def render(self, xml: str, guest: compute_hooks.StartingGuest) -> str:
        """Return a domain XML that allows VFIO to lock the guest's memory."""
        return render_locked_memory(xml, guest.libvirt_version)


def make_compute_hooks(_services: compute_hooks.ComputeServices
                       ) -> LockedMemory:
    """Return nova-compute's renderer of limits of locked memory."""
    return LockedMemory()


def compute_locked_memory(ram_kib: int, device_count: int,
                          has_viommu: bool = False) -> int:
    """Return the KiB of memory that a guest's devices must be able to lock.

    VFIO locks the memory that a device may access.

    :param ram_kib: total memory of the guest.
    :param device_count: number of the guest's VFIO devices. Without any, the
        result is 0.
    :param has_viommu: whether the guest has a virtual IOMMU.
    """
    if not device_count:
        return 0
    return ram_kib * (device_count if has_viommu else 1) + EXTRA_KIB


def render_locked_memory(xml: str, libvirt_version: tuple[int, ...]
                         ) -> str:
    """Return a domain XML that allows VFIO to lock the guest's memory.

    The limit of locked memory is ``<hard_limit>``. Most domains need no such
    limit and are returned unchanged.

    :raises DeviceNumaError: if the domain has a hard limit that is too low for
        its devices; libvirt would apply it as it is.
    """
    root = pci.parse_document(xml)
    devices = _count_vfio_devices(root)
    viommu = root.find('devices/iommu') is not None
    needed = compute_locked_memory(_read_memory_kib(root), devices, viommu)
    limit = root.find('memtune/hard_limit')
    if limit is not None:
        _check_limit(_parse_kib(limit), needed - EXTRA_KIB, devices)
        return xml
    if (libvirt_version >= COUNTS_EACH_DEVICE or not viommu or devices < 2
            or root.find('memoryBacking/locked') is not None):
        return xml
    _set_limit(root, needed)
    return document.render_document(root)


def _check_limit(limit_kib: int, needed_kib: int, devices: int) -> None:
    if limit_kib < needed_kib:
        raise DeviceNumaError(
            f'the hard limit of {limit_kib} KiB is below the {needed_kib} '
            f'KiB that {devices} VFIO devices lock; the guest would not '
            'start')


def _count_vfio_devices(root: etree._Element) -> int:
    """Return the number of VFIO devices of a domain, counted as by libvirt."""
    devices = pci.get_devices(root)
    return (len(pci.map_passthrough_devices(root))
            + len(devices.findall("hostdev[@type='mdev']"))
            + len(devices.findall("disk[@type='nvme']")))


def _read_memory_kib(root: etree._Element) -> int:
    memory = root.find('memory')
    if memory is None:
        raise DeviceNumaError('the domain has no <memory>')
    plugged = root.findall('devices/memory/target/size')
    return _parse_kib(memory) + sum(map(_parse_kib, plugged))


def _parse_kib(element: etree._Element) -> int:
    """Convert a memory size element of a domain XML to KiB.

    :raises DeviceNumaError: if the element is not a memory size.
    """
    unit = _UNITS.get(element.get('unit', 'KiB'))
    try:
        size = int(element.text or '')
    except ValueError:
        size = -1
    if unit is None or size < 0:
        raise DeviceNumaError(
            f'<{element.tag}> is not a memory size: {element.text!r} '
            f'{element.get("unit", "")}')
    return size * unit // 1024


def _set_limit(root: etree._Element, kib: int) -> None:
    memtune = document.find_or_insert_child(root, 'memtune', _BEFORE)
    limit = etree.Element('hard_limit', unit='KiB')
    limit.text = str(kib)
    document.insert_children(memtune, [limit], len(memtune))

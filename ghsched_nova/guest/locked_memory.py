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


"""The limit on memory that a guest with VFIO devices may lock.

VFIO pins all memory that a device may reach. Without a virtual IOMMU all
devices of a guest share one address space, which counts once. With one, each
device has its own and all of the guest's memory counts for each device.

libvirt raises the limit by itself (qemuDomainGetMemLockLimitBytes in
src/qemu/qemu_domain.c, read in 9.0.0 and in 11.3.0): a ``<hard_limit>`` if the
domain has one, no limit at all with ``<memoryBacking><locked/>``, else memory
times devices (times one without IOMMU) plus 1 GiB. libvirt before 8.7.0 counts
the memory once in every case (its NEWS for 8.7.0), so there a guest with a
virtual IOMMU and several VFs does not start. Only for that case a
``<hard_limit>`` is written: it is the guest's memory limit in its cgroup too,
and better left alone.
"""

from lxml import etree

from ghsched_nova.guest import document
from ghsched_nova.guest import pci_topology as pci
from ghsched_nova.guest.pci_topology import DeviceNumaError

#: The first libvirt that counts the memory for each device.
COUNTS_EACH_DEVICE = (8, 7, 0)

#: What libvirt adds for the MMIO regions of emulated devices, in KiB.
EXTRA_KIB = 1024 * 1024

_UNITS = {'b': 1, 'bytes': 1, 'KB': 10**3, 'MB': 10**6, 'GB': 10**9,
          'TB': 10**12}
_UNITS |= {name: 1024**power for power, names in enumerate(
    (('k', 'KiB'), ('M', 'MiB'), ('G', 'GiB'), ('T', 'TiB')), start=1)
    for name in names}
#: Elements that stand before memtune in the XML that libvirt writes.
_BEFORE = frozenset((
    'name', 'uuid', 'genid', 'title', 'description', 'metadata', 'maxMemory',
    'memory', 'currentMemory', 'blkiotune'))


def locked_memory_kib(ram_kib: int, vfs: int, viommu: bool = False) -> int:
    """How much a guest with VFs must be allowed to lock, in KiB.

    :param ram_kib: all memory of the guest.
    :param vfs: its VFIO devices; without any it is 0.
    :param viommu: whether it has a virtual IOMMU.
    """
    if not vfs:
        return 0
    return ram_kib * (vfs if viommu else 1) + EXTRA_KIB


def render_locked_memory(xml: str, libvirt_version: tuple[int, ...]
                         ) -> str:
    """The domain with the ``<hard_limit>`` that it needs to start.

    Most domains come back as they were, see above.

    :raises DeviceNumaError: when the domain has a hard limit of its own that
        its devices exceed; libvirt would use it as it is.
    """
    root = pci.parse(xml)
    devices = _vfio_devices(root)
    viommu = root.find('devices/iommu') is not None
    needed = locked_memory_kib(_memory_kib(root), devices, viommu)
    limit = root.find('memtune/hard_limit')
    if limit is not None:
        _check(_kib(limit), needed - EXTRA_KIB, devices)
        return xml
    if (libvirt_version >= COUNTS_EACH_DEVICE or not viommu or devices < 2
            or root.find('memoryBacking/locked') is not None):
        return xml
    _set_limit(root, needed)
    return document.text(root)


def _check(limit_kib: int, needed_kib: int, devices: int) -> None:
    if limit_kib < needed_kib:
        raise DeviceNumaError(
            f'the hard limit of {limit_kib} KiB is below the {needed_kib} '
            f'KiB that {devices} VFIO devices lock; the guest would not '
            'start')


def _vfio_devices(root: etree._Element) -> int:
    """Devices that libvirt counts as VFIO devices."""
    devices = pci.devices_of(root)
    return (len(pci.passthrough(root))
            + len(devices.findall("hostdev[@type='mdev']"))
            + len(devices.findall("disk[@type='nvme']")))


def _memory_kib(root: etree._Element) -> int:
    memory = root.find('memory')
    if memory is None:
        raise DeviceNumaError('the domain has no <memory>')
    plugged = root.findall('devices/memory/target/size')
    return _kib(memory) + sum(map(_kib, plugged))


def _kib(element: etree._Element) -> int:
    """A memory size; libvirt's default unit is KiB."""
    unit = _UNITS.get(element.get('unit', 'KiB'))
    try:
        size = int(element.text or '')
    except ValueError:
        size = -1
    if unit is None or size < 0:
        raise DeviceNumaError(
            f'<{element.tag}> is not a size: {element.text!r} '
            f'{element.get("unit", "")}')
    return size * unit // 1024


def _set_limit(root: etree._Element, kib: int) -> None:
    memtune = root.find('memtune')
    if memtune is None:
        memtune = etree.Element('memtune')
        place = max((place for place, child in enumerate(root, start=1)
                     if child.tag in _BEFORE), default=0)
        document.insert(root, [memtune], place)
    limit = etree.Element('hard_limit', unit='KiB')
    limit.text = str(kib)
    document.insert(memtune, [limit], len(memtune))

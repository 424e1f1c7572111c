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

"""Passthrough devices of a domain in the domain's resctrl control group."""

from dataclasses import replace
import os
from pathlib import Path
from typing import Any

from ghsched_nova.host import desired
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import resctrl_host


def add_iommu_groups(
    guest: model.ResctrlGuest,
    running: desired.Running,
    host: resctrl_host.ResctrlHost,
    section: Any,
) -> model.ResctrlGuest:
    """Add the passthrough devices of a domain to its desired resctrl group.

    The kernel then also limits the memory traffic of these devices. The
    devices are given by the numbers of their IOMMU groups.

    :param guest: desired group of the domain, without devices.
    :param section: the ``[ghsched]`` section of the configuration.
    :raises DomainError: if the traffic of a device cannot be controlled.
    """
    if (not host.dialect.devices or not section.control_devices
            or guest.is_only_measured or not guest.has_other_threads):
        return guest
    return replace(guest, devices=frozenset(
        read_iommu_group(Path(section.sysfs_path), address)
        for address in running.list_passthrough_addresses()))


def read_iommu_group(sysfs: Path, address: str) -> int:
    """Return the number of the IOMMU group of a host PCI device.

    :param sysfs: mount point of sysfs.
    :param address: PCI address of the device.
    :raises DomainError: if the device is in no IOMMU group.
    """
    link = sysfs / 'bus' / 'pci' / 'devices' / address / 'iommu_group'
    try:
        return int(os.path.basename(os.readlink(link)))
    except (OSError, ValueError) as error:
        raise desired.DomainError(
            f'the traffic of PCI device {address} cannot be controlled: '
            f'{link}: {error}') from error

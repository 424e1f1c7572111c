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

"""Detects which extensions of the domain XML a host's libvirt supports."""

from collections.abc import Callable
from typing import Any

from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import guest as libvirt_guest
from oslo_log import log as logging

from ghsched_nova.guest import device_numa
from ghsched_nova.guest import memorytune
from ghsched_nova.host.domain_xml import LibvirtFeatures
from ghsched_nova.nova_seams import shared

LOG = logging.getLogger(__name__)


def detect_features(host: Any) -> LibvirtFeatures:
    """Return which optional features the host's libvirt supports.

    A feature is detected only if the configuration does not set it.

    :param host: nova.virt.libvirt.host.Host of the driver.
    """
    return LibvirtFeatures(
        extended=_supports_memorytune_attributes(host),
        process_groups=_creates_process_groups(host),
        numa_element=_supports_numa_element(host))


def _supports_memorytune_attributes(host: Any) -> bool:
    """Return whether libvirt supports openEuler's memorytune attributes.

    These are ``min_bandwidth``, ``hardlimit`` and ``priority``, which upstream
    libvirt lacks.
    """
    choice = shared.config().ghsched.memorytune_attributes
    if choice != 'auto':
        return bool(choice == 'extended')
    return _keeps_element_after_define(
        host, memorytune.make_memorytune_probe_xml(),
        memorytune.keeps_extended_attributes)


def _creates_process_groups(host: Any) -> bool:
    """Return whether libvirt can put a whole QEMU process in a resctrl group.

    libvirt before 12.8 can put only the vCPU threads of the process in the
    group. libvirt is asked only if ``[ghsched]control_threads`` is ``all``;
    otherwise the result is False.
    """
    if shared.config().ghsched.control_threads != 'all':
        return False
    return _keeps_element_after_define(
        host, memorytune.make_process_group_probe_xml(),
        memorytune.keeps_process_group)


def _supports_numa_element(host: Any) -> bool:
    """Return whether libvirt supports a device's element ``<numa node='N'/>``.

    The element shows the guest the device on one of its NUMA nodes.
    """
    choice = shared.config().ghsched.device_numa_renderer
    if choice != 'auto':
        return bool(choice == 'element')
    return _keeps_element_after_define(host, device_numa.make_numa_probe_xml(),
                                       device_numa.keeps_numa_element)


def _keeps_element_after_define(host: Any, xml: str,
                                has_element: Callable[[str], bool]) -> bool:
    """Return whether libvirt keeps an XML element of a defined domain.

    Upstream libvirt silently drops unknown elements. A probe domain is defined
    and never started. It is a KVM guest, because memorytune needs KVM. On a
    host without KVM nothing is probed, because Nova would log an error at each
    start.

    :param xml: XML of the probe domain.
    :param has_element: function that returns whether an XML still has the
        element.
    """
    if shared.config().libvirt.virt_type != 'kvm':
        return False
    try:
        probe = libvirt_guest.Guest.create(xml, host)
    except libvirt_driver.libvirt.libvirtError as error:
        LOG.info('ghsched: cannot detect libvirt support for an XML element '
                 'because libvirt refused the probe domain; not using the '
                 'element: %s', error)
        return False
    try:
        return has_element(probe.get_xml_desc())
    finally:
        probe.delete_configuration()

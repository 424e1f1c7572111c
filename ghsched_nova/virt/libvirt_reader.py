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

"""Reads from libvirt the guests of a host, and which XML it supports."""

from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import guest as libvirt_guest
from oslo_log import log as logging
from oslo_utils import versionutils

from ghsched_nova.guest import libvirt_probes
from ghsched_nova.host import desired
from ghsched_nova.host.domain_xml import LibvirtFeatures
from ghsched_nova.nova_seams import compute
from ghsched_nova.nova_seams import shared
from ghsched_nova.resctrl import model

LOG = logging.getLogger(__name__)


class GuestReader:
    """Reader of the guests of this host, with their XML.

    :param host: nova.virt.libvirt.host.Host of the driver.
    """

    def __init__(self, host: Any) -> None:
        self.host = host
        #: Running guests as last listed.
        self.running: list[desired.Running] = []
        self._others: list[desired.Running] = []

    def list_running(self) -> list[desired.Running]:
        """Return all running guests."""
        self.running = self._read_guests(
            self.host.list_guests(only_running=True), self.running)
        return self.running

    def list_all(self, running: list[desired.Running]
                 ) -> list[desired.Running] | None:
        """Return all guests, running or not.

        :param running: the running guests.
        :returns: None if the others cannot be read; the error is logged.
        """
        try:
            self._others = self._read_guests(
                self.host.list_guests(only_running=False), self._others,
                {guest.domain.uuid for guest in running})
        except Exception as error:
            LOG.warning('ghsched: cannot read stopped guests from libvirt; '
                        'not reporting free bandwidth to nova-scheduler until '
                        'the next periodic task: %r', error)
            return None
        return [*running, *self._others]

    def list_stopped(self) -> list[desired.Running]:
        """Return the guests that do not run."""
        return [self.read_guest(guest) for guest
                in self.host.list_guests(only_running=False)
                if not is_running(guest)]

    def list_running_ids(self) -> set[tuple[str, int]]:
        """Return UUID and ID of running guests, read in one native thread."""
        guests = self.host.list_guests(only_running=True)
        return compute.call_in_native_thread(
            lambda: {(guest.uuid, guest.id) for guest in guests})

    def find_running(self, uuid: str) -> desired.Running | None:
        """Return a running guest; None if no guest with this UUID runs."""
        return next((self.read_guest(guest) for guest
                     in self.host.list_guests(only_running=True)
                     if guest.uuid == uuid), None)

    def _read_guests(self, guests: Sequence[Any],
                     last: Sequence[desired.Running],
                     skipped: Collection[str] = ()) -> list[desired.Running]:
        """Return guests with their live XML, read in one native thread.

        :param guests: guests of nova.virt.libvirt.guest.
        :param last: result of the last call; a guest with the same XML is not
            parsed again.
        :param skipped: UUIDs of guests to leave out.
        """
        found = compute.call_in_native_thread(lambda: [
            self.read_guest(guest) for guest in guests
            if not skipped or guest.uuid not in skipped])
        known = {one.domain.uuid: one for one in last}
        return [old
                if (old := known.get(one.domain.uuid, one)) == one else one
                for one in found]

    def read_guest(self, guest: Any) -> desired.Running:
        """Return a guest with its live XML.

        The XML is left out if libvirt cannot return it.

        :param guest: guest of nova.virt.libvirt.guest.
        """
        domain = model.Domain(guest.uuid, guest.id, guest.name)
        try:
            return desired.Running(domain, guest.get_xml_desc())
        except libvirt_driver.libvirt.libvirtError as error:
            if is_running(guest):
                LOG.error('ghsched: cannot read the XML of running guest '
                          '%(name)s from libvirt; its bandwidth policy is '
                          'unknown until the next periodic task: %(error)s',
                          {'name': guest.name, 'error': error})
            return desired.Running(domain)


def is_running(guest: Any) -> bool:
    """Return whether a guest runs.

    The result is False if libvirt no longer has the guest's domain.

    :param guest: guest of nova.virt.libvirt.guest.
    """
    try:
        return bool(guest.is_active())
    except libvirt_driver.libvirt.libvirtError:
        return False


def get_libvirt_version(host: Any) -> tuple[int, ...]:
    """Return the version of the host's libvirt, such as ``(11, 3, 0)``.

    :param host: nova.virt.libvirt.host.Host of the driver.
    """
    text = versionutils.convert_version_to_str(
        host.get_connection().getLibVersion())
    return tuple(versionutils.convert_version_to_tuple(text))


def detect_features(host: Any) -> LibvirtFeatures:
    """Return which optional features the host's libvirt supports.

    A feature is detected only if the configuration does not set it. These are
    openEuler's memorytune attributes (``min_bandwidth``, ``hardlimit`` and
    ``priority``), QEMU processes as a whole in a resctrl group (libvirt 12.8
    and later; asked only if ``[ghsched]control_threads`` is ``all``), a
    device's element ``<numa node='N'/>``, which shows the guest its node, and
    devices that are ACPI initiators of their node (libvirt 11.8 and later).

    :param host: nova.virt.libvirt.host.Host of the driver.
    """
    section = shared.config().ghsched
    attributes, renderer = (section.memorytune_attributes,
                            section.device_numa_renderer)
    return LibvirtFeatures(
        extended=attributes == 'extended' or attributes == 'auto'
        and _keeps_element(host, libvirt_probes.EXTENDED_MEMORYTUNE),
        process_groups=section.control_threads == 'all'
        and _keeps_element(host, libvirt_probes.PROCESS_GROUP),
        numa_element=renderer == 'element' or renderer == 'auto'
        and _keeps_element(host, libvirt_probes.DEVICE_NODE),
        initiators=renderer != 'element'
        and _keeps_element(host, libvirt_probes.DEVICE_INITIATOR))


def _keeps_element(host: Any, probe: libvirt_probes.LibvirtProbe) -> bool:
    """Return whether libvirt keeps the element of a probe.

    The domain of the probe is defined, read and undefined. On a host without
    KVM nothing is probed, because Nova would log an error at each start.
    """
    if shared.config().libvirt.virt_type != 'kvm':
        return False
    try:
        domain = libvirt_guest.Guest.create(probe.xml, host)
    except libvirt_driver.libvirt.libvirtError as error:
        LOG.info('ghsched: cannot detect libvirt support for an XML element '
                 'because libvirt refused the probe domain; not using the '
                 'element: %s', error)
        return False
    try:
        return probe.is_kept(domain.get_xml_desc())
    finally:
        domain.delete_configuration()

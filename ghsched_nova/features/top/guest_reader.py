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


"""Running guests of this host, read from libvirt.

libvirt-python is imported when guests are first read. Without it, or while
libvirtd does not answer, the callers know guests only by their resctrl groups.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections import Counter
import re
import time
from typing import Any

from lxml import etree

from ghsched_nova.features.top import shared_work
from ghsched_nova.guest import cells
from ghsched_nova.guest import document
from ghsched_nova.guest import metadata
from ghsched_nova.guest import pci_topology
from ghsched_nova.monitor import view
from ghsched_placement.features.real_time import thread_keys
from ghsched_placement.flavor import keys

#: Seconds after which the policy of a guest is read again: it may be changed
#: while the guest runs.
FRESH = 30.0

#: XML namespace of Nova's own metadata element since Nova 24
#: (nova/virt/libvirt/config.py, LibvirtConfigGuestMetaNovaInstance).
NOVA = 'http://openstack.org/xmlns/libvirt/nova/1.1'

#: Seconds within which libvirt has to list and describe the guests; calls of
#: libvirt-python have no time-out.
TIMEOUT = 5.0

#: Counters of a vCPU in libvirt's statistics of domains: those of KVM, and the
#: nanoseconds in which it waited for a CPU of the host.
_VCPU_COUNTER = re.compile(
    r'vcpu\.[0-9]+\.((?:exits|halt_poll_(?:success|fail)_ns)\.sum|delay)')

#: Extra spec of the flavor, which newer releases of Nova write.
_IRQ_BYPASS = ('{*}flavor/{*}extraSpecs/{*}extraSpec[@name='
               f"'{thread_keys.IRQ_BYPASS.extra_spec}']")

Clock = Callable[[], float]


class LibvirtReader:
    """Reader of the running guests over a read-only libvirt connection.

    :param uri: URI of libvirt.
    :param module: the libvirt-python module; None imports it.
    :param clock: monotonic clock in seconds.
    """

    def __init__(self, uri: str = 'qemu:///system', module: Any = None,
                 clock: Clock = time.monotonic) -> None:
        self._uri = uri
        self._module = module
        self._clock = clock
        self._connection: Any = None
        self._known: dict[tuple[str, int],
                          tuple[float, view.MonitoredGuest]] = {}
        #: Cause why guests could not be read; empty if libvirt answered.
        self.problem = ''
        self._asked = shared_work.SharedWork(self._ask, TIMEOUT)
        self._counted = shared_work.SharedWork(self._count, TIMEOUT)

    def read_guests(self) -> tuple[view.MonitoredGuest, ...]:
        """Read the running guests of the host from libvirt.

        The result is empty if libvirt does not answer. :attr:`problem` then
        has the cause.
        """
        try:
            return self._asked.get_result()
        except shared_work.NoAnswer as error:
            self.problem = f'libvirt ({self._uri}): {error}'
            return ()

    def read_vcpu_counters(self) -> Mapping[str, Mapping[str, int]]:
        """Read the KVM and scheduler counters of each guest's vCPUs.

        Guests must have been read before. A guest that is busy with another
        call of libvirt has old or no counters.

        :returns: sum of each counter over the vCPUs, by UUID of the guest and
            name of the counter. Counters that libvirt does not report are left
            out. The result is empty if libvirt does not answer.
        """
        try:
            return self._counted.get_result()
        except shared_work.NoAnswer:
            return {}

    def _count(self) -> dict[str, Counter[str]]:
        connection, module = self._connection, self._module
        if connection is None:
            return {}
        try:
            answers = connection.getAllDomainStats(
                module.VIR_DOMAIN_STATS_VCPU,
                module.VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE
                | module.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT)
        except module.libvirtError:
            return {}
        return {domain.UUIDString(): sum_vcpu_counters(stats)
                for domain, stats in answers}

    def _ask(self) -> tuple[view.MonitoredGuest, ...]:
        try:
            self._load()
        except ImportError as error:
            self.problem = f'libvirt-python is not installed: {error}'
            return ()
        try:
            return self._guests()
        except self._module.libvirtError as error:
            self.problem = f'libvirt ({self._uri}): {error}'
            self._connection = None     # libvirtd may come back
            return ()

    def _load(self) -> None:
        if self._module is None:
            import libvirt
            # libvirt prints each error to stderr otherwise, into the screen of
            # ghsched-top.
            libvirt.registerErrorHandler(lambda _context, _error: None, None)
            self._module = libvirt

    def _guests(self) -> tuple[view.MonitoredGuest, ...]:
        if self._connection is None:
            self._connection = self._module.openReadOnly(self._uri)
        domains = self._connection.listAllDomains(
            self._module.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        found = {}
        for domain in domains:
            if domain.ID() >= 0:        # -1: the guest has ended
                key = domain.UUIDString(), domain.ID()
                found[key] = self._fresh(key, domain)
        self._known = found
        self.problem = ''
        return tuple(guest for _when, guest in found.values())

    def _fresh(self, key: tuple[str, int],
               domain: Any) -> tuple[float, view.MonitoredGuest]:
        known = self._known.get(key)
        if known is not None and self._clock() - known[0] < FRESH:
            return known
        policy, problem = self._policy(domain)
        return self._clock(), view.MonitoredGuest(
            domain.name(),
            key[0],
            key[1],
            policy,
            problem,
            **(self._read_nova_metadata(domain)
               | self._parse_cells_and_devices(domain)),
        )

    def _parse_cells_and_devices(self, domain: Any) -> dict[str, Any]:
        """Return the NUMA cells and PCI devices of a libvirt domain.

        The result has the fields of :class:`view.MonitoredGuest` by name. A
        field that cannot be parsed is left out.
        """
        found: dict[str, Any] = {}
        try:
            root = document.parse_element(domain.XMLDesc(0))
            found['cells'] = cells.parse_cells(root)
            found['devices'] = tuple(
                pci_topology.map_passthrough_devices(root)
            )
        except (
            ValueError,
            self._module.libvirtError,
            pci_topology.DeviceNumaError,
        ):
            pass
        return found

    def _read_nova_metadata(self, domain: Any) -> dict[str, Any]:
        """Read the server name and IRQ bypass request from Nova's metadata.

        The result has fields of :class:`view.MonitoredGuest` by name; it is
        empty if the domain was not started by Nova.
        """
        text = self._read_metadata_element(domain, NOVA)
        try:
            root = document.parse_element(text) if text else None
        except document.DocumentError:
            return {}
        return {} if root is None else {
            'server': root.findtext('{*}name', '').strip(),
            'requires_irq_bypass': root.findtext(_IRQ_BYPASS) == keys.REQUIRED}

    def _read_metadata_element(
            self, domain: Any, namespace: str) -> str | None:
        """Read an XML element of a libvirt domain's metadata.

        :param namespace: XML namespace of the element.
        :returns: None if the domain has no such element.
        """
        try:
            return str(domain.metadata(
                self._module.VIR_DOMAIN_METADATA_ELEMENT, namespace,
                self._module.VIR_DOMAIN_AFFECT_LIVE))
        except self._module.libvirtError as error:
            if error.get_error_code() in (
                    self._module.VIR_ERR_NO_DOMAIN_METADATA,
                    self._module.VIR_ERR_NO_DOMAIN,
                    self._module.VIR_ERR_OPERATION_INVALID):
                return None
            raise

    def _policy(self, domain: Any
                ) -> tuple[metadata.DomainPolicy | None, str]:
        element = self._read_metadata_element(domain, metadata.NAMESPACE)
        if element is None:
            return None, ''
        try:
            return metadata.read_policy(_wrap_metadata_in_domain(element)), ''
        except (metadata.MetadataError, document.DocumentError) as error:
            return None, str(error)


def _wrap_metadata_in_domain(metadata_xml: str) -> str:
    """Wrap a domain's metadata element in an XML document like the domain's.

    libvirt returns the element without its XML namespace
    (virXMLExtractNamespaceXML). The parser of policies needs the namespace, so
    it is added again.
    """
    root = etree.Element('domain')
    policy = document.parse_element(metadata_xml)
    for one in policy.iter('{*}*'):
        one.tag = f'{{{metadata.NAMESPACE}}}{etree.QName(one).localname}'
    etree.SubElement(root, 'metadata').append(policy)
    return etree.tostring(root, encoding='unicode')


def sum_vcpu_counters(stats: Mapping[str, Any]) -> Counter[str]:
    """Return the sums of counters over all vCPUs of a domain, by name.

    :param stats: libvirt's statistics of the domain, such as
        ``vcpu.0.exits.sum``.
    """
    found: Counter[str] = Counter()
    for key, value in stats.items():
        counter = _VCPU_COUNTER.fullmatch(key)
        if counter and isinstance(value, int):
            found[counter[1].removesuffix('.sum')] += value
    return found

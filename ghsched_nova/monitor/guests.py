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


"""The running guests, from libvirt where there is one.

libvirt-python is looked for when it is needed. Without it, or where libvirtd
does not answer, guests are known by their groups alone.
"""

from collections.abc import Callable
import time
from typing import Any

from lxml import etree

from ghsched_nova.guest import cells
from ghsched_nova.guest import document
from ghsched_nova.guest import metadata
from ghsched_nova.guest import pci_topology
from ghsched_nova.monitor import shared_work
from ghsched_nova.monitor import view

#: A policy may be changed while the guest runs, so it is read again after so
#: many seconds.
FRESH = 30.0

#: Of Nova's part of the metadata, since its version 24 (nova/virt/libvirt/
#: config.py, LibvirtConfigGuestMetaNovaInstance).
NOVA = 'http://openstack.org/xmlns/libvirt/nova/1.1'

#: Seconds that libvirt has to list and describe the guests; its own calls
#: wait for ever.
TIMEOUT = 5.0

Clock = Callable[[], float]


class Libvirt:
    """Reads guests over a connection that is read-only.

    :param uri: of libvirt.
    :param module: libvirt-python; None: import it.
    :param clock: seconds; must never go back.
    """

    def __init__(self, uri: str = 'qemu:///system', module: Any = None,
                 clock: Clock = time.monotonic) -> None:
        self._uri = uri
        self._module = module
        self._clock = clock
        self._connection: Any = None
        self._known: dict[tuple[str, int], tuple[float, view.Guest]] = {}
        #: Why there are no guests; empty when libvirt answered.
        self.problem = ''
        self._asked = shared_work.SharedWork(self._ask, TIMEOUT)

    def guests(self) -> tuple[view.Guest, ...]:
        """Return all running guests; none when libvirt cannot be asked."""
        try:
            return self._asked.result()
        except shared_work.NoAnswer as error:
            self.problem = f'libvirt ({self._uri}): {error}'
            return ()

    def _ask(self) -> tuple[view.Guest, ...]:
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
            # It writes each error to stderr, which is a terminal that shows
            # something else.
            libvirt.registerErrorHandler(lambda _context, _error: None, None)
            self._module = libvirt

    def _guests(self) -> tuple[view.Guest, ...]:
        if self._connection is None:
            self._connection = self._module.openReadOnly(self._uri)
        domains = self._connection.listAllDomains(
            self._module.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        found = {}
        for domain in domains:
            if domain.ID() >= 0:        # -1: it has ended meanwhile
                key = domain.UUIDString(), domain.ID()
                found[key] = self._fresh(key, domain)
        self._known = found
        self.problem = ''
        return tuple(guest for _when, guest in found.values())

    def _fresh(self, key: tuple[str, int],
               domain: Any) -> tuple[float, view.Guest]:
        known = self._known.get(key)
        if known is not None and self._clock() - known[0] < FRESH:
            return known
        policy, problem = self._policy(domain)
        return self._clock(), view.Guest(
            domain.name(), *key, policy, problem,
            server=self._server(domain), **self._hardware(domain))

    def _hardware(self, domain: Any) -> dict[str, Any]:
        """NUMA nodes and devices; what makes no sense is not measured."""
        found: dict[str, Any] = {}
        try:
            root = document.parse_element(domain.XMLDesc(0))
            found['cells'] = cells.of(root)
            found['devices'] = tuple(pci_topology.passthrough(root))
        except (ValueError, etree.XMLSyntaxError, self._module.libvirtError,
                pci_topology.DeviceNumaError):
            pass
        return found

    def _server(self, domain: Any) -> str:
        """The name of the server; empty where Nova has not started it."""
        text = self._metadata(domain, NOVA)
        try:
            root = document.parse_element(text) if text else None
        except etree.XMLSyntaxError:
            return ''
        return '' if root is None else root.findtext('{*}name', '').strip()

    def _metadata(self, domain: Any, namespace: str) -> str | None:
        """An element of a domain's metadata; None without it."""
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
        element = self._metadata(domain, metadata.NAMESPACE)
        if element is None:
            return None, ''
        try:
            return metadata.read(_domain(element)), ''
        except (metadata.MetadataError, etree.XMLSyntaxError) as error:
            return None, str(error)


def _domain(element: str) -> str:
    """An element of metadata, as it is in the XML of the domain.

    libvirt takes its namespace out (virXMLExtractNamespaceXML).
    """
    root = etree.Element('domain')
    policy = document.parse_element(element)
    for one in policy.iter('{*}*'):
        one.tag = f'{{{metadata.NAMESPACE}}}{etree.QName(one).localname}'
    etree.SubElement(root, 'metadata').append(policy)
    return etree.tostring(root, encoding='unicode')

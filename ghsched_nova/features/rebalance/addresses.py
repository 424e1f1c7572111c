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

"""IP addresses that Nova assigned to a guest, from its domain XML (pure)."""

from collections.abc import Iterator
import ipaddress

from lxml import etree

from ghsched_nova.guest import document

#: XML namespace of Nova's metadata element (nova.virt.libvirt.config.NOVA_NS).
_NOVA = 'http://openstack.org/xmlns/libvirt/nova/1.1'


def parse_fixed_addresses(xml: str) -> frozenset[str]:
    """Return the fixed IP addresses in the Nova metadata of a domain XML."""
    return list_fixed_addresses(document.parse_element(xml))


def list_fixed_addresses(domain: etree._Element) -> frozenset[str]:
    """Return the fixed IP addresses in the Nova metadata of a parsed domain.

    Nova writes the addresses when the guest starts. They are returned in their
    shortest form.

    :param domain: root element of the domain XML.
    """
    return frozenset(_parse_addresses(domain))


def _parse_addresses(domain: etree._Element) -> Iterator[str]:
    for found in domain.iterfind(
            f'metadata/{{{_NOVA}}}instance/{{{_NOVA}}}ports/{{{_NOVA}}}port/'
            f'{{{_NOVA}}}ip[@type="fixed"]'):
        try:
            yield str(ipaddress.ip_address(found.get('address', '')))
        except ValueError:
            continue

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

"""Domains that show which elements of its XML a libvirt keeps (pure).

Upstream libvirt silently drops elements and attributes that it does not know
when it defines a domain. The caller defines the domain of a probe, reads its
XML, and undefines it. The domain is never started, and libvirt does not check
that its device exists. It is a KVM guest, because libvirt refuses a memorytune
for other types. Name and UUID are fixed, so that a domain left behind by a
crash is simply defined again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ghsched_nova.guest import document

NAME = 'ghsched-probe'
_DOMAIN = (f'<domain type="kvm"><name>{NAME}</name>'
           '<uuid>3d0f3c52-6d0e-5d55-8a3c-3f6f0b8f6c11</uuid>'
           '<memory>2048</memory><vcpu>2</vcpu>'
           '<os><type>hvm</type></os>%s</domain>')


@dataclass(frozen=True)
class LibvirtProbe:
    """Element of a domain that a libvirt may drop.

    :param elements: elements of the probe domain, as XML.
    :param path: path of the element in question.
    :param attributes: attributes that libvirt must return; None for one that
        it must not add. No value is a default of any libvirt.
    """

    elements: str
    path: str
    attributes: Mapping[str, str | None]

    @property
    def xml(self) -> str:
        """XML of the domain to define."""
        return _DOMAIN % self.elements

    def is_kept(self, returned_xml: str) -> bool:
        """Whether libvirt has kept the element and its attributes.

        :param returned_xml: XML that libvirt returned for the domain.
        :raises ValueError: if the XML is not a domain.
        """
        found = document.parse_document(returned_xml).find(self.path)
        return found is not None and all(
            found.get(name) == text for name, text in self.attributes.items())


_DEVICE = (
    '<cpu><numa><cell id="0" cpus="0" memory="1024"/>'
    '<cell id="1" cpus="1" memory="1024"/></numa></cpu><devices>'
    '<hostdev mode="subsystem" type="pci" managed="no"><source>'
    '<address domain="0xfffe" bus="0xfe" slot="0x1f" function="0x7"/>'
    '</source>%s</hostdev></devices>')

#: openEuler's attributes of ``<memorytune>``.
EXTENDED_MEMORYTUNE = LibvirtProbe(
    '<cputune><memorytune vcpus="0"><node id="0" bandwidth="90" '
    'hardlimit="0" priority="5" min_bandwidth="10"/></memorytune></cputune>',
    'cputune/memorytune/node', {
        'id': '0', 'bandwidth': '90', 'hardlimit': '0', 'priority': '5',
        'min_bandwidth': '10'})
#: Limits of the whole QEMU process; libvirt before 12.8 refuses a
#: ``<memorytune>`` without ``vcpus``.
PROCESS_GROUP = LibvirtProbe(
    '<cputune><memorytune><node id="0" bandwidth="90"/></memorytune>'
    '</cputune>', 'cputune/memorytune', {'vcpus': None})
#: openEuler's element that names the guest NUMA node of a device.
DEVICE_NODE = LibvirtProbe(_DEVICE % '<numa node="1"/>',
                           'devices/hostdev/numa', {'node': '1'})
#: Device that is an ACPI initiator of a guest NUMA node (libvirt 11.8).
#: libvirt refuses the domain if QEMU has no such object.
DEVICE_INITIATOR = LibvirtProbe(_DEVICE % '<acpi nodeset="1"/>',
                                'devices/hostdev/acpi', {'nodeset': '1'})

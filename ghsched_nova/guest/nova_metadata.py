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


"""Names of a guest in the metadata that Nova writes into its domain (pure)."""

from lxml import etree

#: Element of the instance's project in the metadata that Nova writes
#: (nova/virt/libvirt/config.py, LibvirtConfigGuestMetaNovaOwner).
_PROJECT = ('metadata/{http://openstack.org/xmlns/libvirt/nova/1.1}instance/'
            '{*}owner/{*}project')
#: Element of the instance's flavor there (LibvirtConfigGuestMetaNovaFlavor).
_FLAVOR = ('metadata/{http://openstack.org/xmlns/libvirt/nova/1.1}instance/'
           '{*}flavor')
#: Element of the instance's name there (LibvirtConfigGuestMetaNovaInstance).
_NAME = ('metadata/{http://openstack.org/xmlns/libvirt/nova/1.1}instance/'
         '{*}name')


def read_project_id(domain: etree._Element) -> str:
    """Return the UUID of the Nova project that owns a domain.

    The result is empty if the domain was not created by Nova.

    :param domain: root element of the domain XML.
    """
    element = domain.find(_PROJECT)
    return '' if element is None else str(element.get('uuid', ''))


def read_server_name(domain: etree._Element) -> str:
    """Return the name of a domain's server in Nova.

    The result is empty if the domain was not created by Nova.

    :param domain: root element of the domain XML.
    """
    return (domain.findtext(_NAME) or '').strip()


def read_flavor_name(domain: etree._Element) -> str:
    """Return the name of a domain's Nova flavor.

    The result is empty if the domain was not created by Nova.

    :param domain: root element of the domain XML.
    """
    element = domain.find(_FLAVOR)
    return '' if element is None else str(element.get('name', ''))

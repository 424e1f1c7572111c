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


"""Domains of this host's libvirt, for the commands of a host."""

from collections.abc import Iterator
import contextlib
from typing import Any

from ghsched_nova.host import desired
from ghsched_nova.resctrl import model


class HostError(Exception):
    """Raised if the state of the host cannot be read; has the reason."""


def list_running_domains(uri: str) -> list[desired.Running]:
    """Return the running libvirt domains with their XML.

    :raises HostError: if libvirt does not answer.
    """
    return _select_domains(uri, 'VIR_CONNECT_LIST_DOMAINS_ACTIVE')


def list_all_domains(uri: str) -> list[desired.Running]:
    """Return all libvirt domains, running or not, with their XML.

    :raises HostError: when libvirt does not answer.
    """
    return _select_domains(
        uri,
        'VIR_CONNECT_LIST_DOMAINS_ACTIVE',
        'VIR_CONNECT_LIST_DOMAINS_INACTIVE',
    )


def get_libvirt_host_name(uri: str) -> str:
    """Return the host name that libvirt reports.

    It is also the name of the host's compute node in Nova.

    :raises HostError: when libvirt does not answer.
    """
    with _connect_libvirt(uri) as (_libvirt, connection):
        return str(connection.getHostname())


def _import_libvirt() -> Any:
    """Import libvirt-python, and stop it from printing errors to stderr.

    :raises HostError: if libvirt-python is not installed.
    """
    try:
        import libvirt
    except ImportError as error:
        raise HostError('the Python binding of libvirt is needed: '
                        f'{error}') from error
    # Errors come as exceptions; without this they are printed as well.
    libvirt.registerErrorHandler(lambda *_: None, None)
    return libvirt


@contextlib.contextmanager
def _connect_libvirt(uri: str) -> Iterator[tuple[Any, Any]]:
    """Within this context, a read-only connection to libvirt is open.

    :returns: context of the module libvirt and the connection.
    :raises HostError: for an error of libvirt.
    """
    libvirt = _import_libvirt()
    try:
        connection = libvirt.openReadOnly(uri)
        try:
            yield libvirt, connection
        finally:
            connection.close()
    except libvirt.libvirtError as error:
        raise HostError(f'libvirt ({uri}): {error}') from error


def _select_domains(uri: str, *flags: str) -> list[desired.Running]:
    """Return the libvirt domains that flags select, with their XML.

    :param flags: names of ``VIR_CONNECT_LIST_DOMAINS_...`` constants.
    """
    with _connect_libvirt(uri) as (libvirt, connection):
        return [_read_domain(domain, libvirt.libvirtError) for domain in
                connection.listAllDomains(
                    sum(getattr(libvirt, flag) for flag in flags))]


def _read_domain(domain: Any, error_class: type[Exception]) -> desired.Running:
    """Return a libvirt domain with its XML.

    The XML is empty if the domain has just stopped.

    :param error_class: exception that libvirt-python raises.
    """
    found = model.Domain(domain.UUIDString(), domain.ID(), domain.name())
    try:
        return desired.Running(found, domain.XMLDesc(0))
    except error_class:
        if domain.isActive():
            raise
        return desired.Running(found)

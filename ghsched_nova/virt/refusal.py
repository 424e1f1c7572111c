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

"""Reasons of a host's refusal that a tenant may see.

Exceptions of nova-compute reach the fault of the server, the details of its
events and HTTP errors. They name the flavor's keys, but not the NUMA nodes,
PCI addresses and control groups of the host, nor libvirt's name of the guest:
only the log of nova-compute has those.
"""

from collections.abc import Iterator
import contextlib
import re
from typing import Any

from nova import exception
from oslo_log import log as logging

from ghsched_nova.guest import memorytune
from ghsched_nova.guest import metadata
from ghsched_nova.guest import pci_topology
from ghsched_nova.host import allocation_check
from ghsched_nova.host import desired
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_placement.flavor import keys
from ghsched_placement.flavor import policy as policies

LOG = logging.getLogger(__name__)

#: Exceptions that mean that this host cannot enforce a policy.
CANNOT_ENFORCE = (
    resctrl_host.ResctrlUnavailable, resolve.PolicyRefused, fs.GroupError,
    metadata.MetadataError, memorytune.MemoryTuneError,
    pci_topology.DeviceNumaError, desired.DomainError, policies.PolicyError)


class LockedMemoryError(Exception):
    """Raised if libvirt cannot lock the memory of a guest."""


#: Reason for the tenant by exceptions; a PolicyError has its own text.
_REASONS = (
    (allocation_check.ClaimMismatch,
     'the resources allocated to the server (ghsched:mem_bw_min, ghsched:vfs) '
     'are not on the NUMA nodes that it would run on'),
    (pci_topology.DeviceNumaError,
     'the guest cannot see the NUMA node of each device '
     '(ghsched:device_numa=required)'),
    (LockedMemoryError, 'the host cannot lock the memory of the guest '
     f'({keys.LOCK_MEMORY.extra_spec})'),
    ((resctrl_host.ResctrlUnavailable, resolve.PolicyRefused, fs.GroupError),
     'the host cannot hold the memory bandwidth of the flavor '
     '(ghsched:mem_bw_*)'))


def describe_error_for_tenant(error: Exception) -> str:
    """Describe an error for a tenant, without names of hosts.

    The text refers to the extra specs of the flavor.
    """
    if isinstance(error, policies.PolicyError):
        return f'ghsched: {error}'
    return 'ghsched: ' + next(
        (reason for kinds, reason in _REASONS if isinstance(error, kinds)),
        'the host cannot provide what the flavor asks for')


def log_refusal(error: Exception,
                instance: object) -> exception.ComputeResourcesUnavailable:
    """Log why a guest is refused, and return the exception for Nova.

    Tenants can read the text of the exception, so it does not name hosts.
    """
    LOG.error('ghsched: refusing to start a guest because this host cannot '
              'provide what its flavor requires: %s',
              error, instance=instance)
    return exception.ComputeResourcesUnavailable(
        reason=describe_error_for_tenant(error))


@contextlib.contextmanager
def refusing_guest(instance: Any,
                   *causes: type[Exception]) -> Iterator[None]:
    """Within this context, an error of some types refuses a guest.

    :param causes: types of the errors.
    :raises nova.exception.ComputeResourcesUnavailable: with the reason.
    """
    try:
        yield
    except causes as error:
        raise log_refusal(error, instance) from error


@contextlib.contextmanager
def naming_lock_memory(instance: Any, libvirt_error: type[Exception]
                       ) -> Iterator[None]:
    """Within this context, an error about locked memory names its extra spec.

    libvirt's own text names a process of the host, which a tenant would see.

    :param libvirt_error: type of libvirt's errors.
    """
    try:
        yield
    except libvirt_error as error:
        # libvirt raises the limit, then QEMU locks.
        if (keys.LOCK_MEMORY.extra_spec not in instance.flavor.extra_specs
                or not re.search('lock(ed|ing) memory', str(error))):
            raise
        raise log_refusal(LockedMemoryError(str(error)), instance) from error

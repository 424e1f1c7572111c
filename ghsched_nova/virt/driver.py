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

"""``compute_driver = ghsched.GhschedLibvirtDriver``.

Nova's libvirt driver with three additions: it reports NUMA nodes with their
memory bandwidth to Placement, puts a guest's policy into its XML, and makes
resctrl enforce that policy before the guest's CPUs run. Each method hooks one
method of Nova's and delegates to the other modules of this package.
"""

from typing import Any

from nova import exception

from ghsched_nova import conf
from ghsched_nova.features import declared_compute
from ghsched_nova.nova_fixes import table as fixes
from ghsched_nova.nova_seams import compute_claims
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova.nova_seams import signatures
from ghsched_nova import pci_requests
from ghsched_nova.virt import driver_devices
from ghsched_nova.virt import driver_migration
from ghsched_nova.virt import driver_reports
from ghsched_nova.virt import driver_start
from ghsched_nova.virt import libvirt_features

fixes.require_known_fixes()
signatures.require_seams(registry.COMPUTE, fixes.list_fix_only_functions())
pci_requests.patch_nova_pci_requests()
compute_claims.call_before_claims(pci_requests.store_allocated_pfs)
numa.patch_numa_fit()
fixes.apply_fixes(registry.COMPUTE)


class GhschedLibvirtDriver(driver_reports.ReportingDriver,
                           driver_start.StartingDriver,
                           driver_devices.AttachingDriver,
                           driver_migration.MigratingDriver):
    """Nova's libvirt driver with memory bandwidth per host NUMA node."""

    features = declared_compute.FEATURES

    @property
    def rpc_endpoints(self) -> list[Any]:
        """RPC endpoints of the features, which nova-compute serves."""
        return self._parts.endpoints

    def init_host(self, host: str) -> None:
        try:
            conf.check_options(shared.config().ghsched)
        except ValueError as error:
            raise exception.InvalidConfiguration(
                f'nova.conf: {error}') from error
        super().init_host(host)
        self._ghsched.domain_xml.libvirt = libvirt_features.detect_features(
            self._host)
        self._ghsched.describe_bandwidth_control()
        self._ghsched.warn_if_any_user_can_lock()
        self._reconcile()

    # -- a guest ends ---------------------------------------------------------

    def power_off(self, instance: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().power_off(instance, *args, **kwargs)
        self._ghsched.release_group(instance.uuid)
        return result

    def suspend(self, context: Any, instance: Any) -> None:
        super().suspend(context, instance)
        self._ghsched.release_group(instance.uuid)

    def cleanup(self, context: Any, instance: Any, *args: Any,
                **kwargs: Any) -> Any:
        """Clean up a guest that was deleted or moved away, as Nova does.

        The guest's resctrl control group is removed, too.
        """
        result = super().cleanup(context, instance, *args, **kwargs)
        self._ghsched.release_group(instance.uuid)
        return result

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

"""Nova's own tests of PCI devices in Placement, on our driver and filter."""

from nova.tests.functional.libvirt import base
from nova.tests.functional.libvirt import test_pci_in_placement as nova_tests
from nova.tests.functional.libvirt import test_pci_sriov_servers as sriov

from ghsched_nova.tests.functional import nova_base
from ghsched_placement.providers import names
from ghsched_placement.tests.fixtures import spaces


class PciTestCase(nova_base.NovaTestCase):

    def base_filters(self):
        enabled = base.CONF.filter_scheduler.enabled_filters
        return [name for name in [*enabled, *self.ADDITIONAL_FILTERS]
                if name != self.FILTER_NAME]

    def _get_all_rps_in_a_tree(self, uuid):
        """All but ours: Nova's tests count the providers of a host."""
        ours = {names.make_numa_provider_uuid(uuid, node) for node in range(2)}
        return [provider for provider
                in super()._get_all_rps_in_a_tree(uuid)
                if provider['uuid'] not in ours]


@spaces.run_sample
class InventoryReportingTest(
        PciTestCase, nova_tests.PlacementPCIInventoryReportingTests):
    """Providers and inventories, whatever their parent."""


@spaces.run_sample
class AllocationHealingTest(
        PciTestCase, nova_tests.PlacementPCIAllocationHealingTests):
    """Allocations of guests that are older than the providers."""


@spaces.run_sample
class SimpleRCAndTraitBasedPCIAliasTest(
        PciTestCase, nova_tests.SimpleRCAndTraitBasedPCIAliasTests):
    """Aliases alone."""


@spaces.run_sample
class RCAndTraitBasedPCIAliasTest(
        PciTestCase, nova_tests.RCAndTraitBasedPCIAliasTests):
    """Devices asked for by resource class and traits."""


@spaces.run_sample
class SRIOVAttachDetachTest(PciTestCase, sriov.SRIOVAttachDetachTest):
    """Passthrough ports of Neutron, attached to a running guest."""

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

"""Base class of the tempest tests of ghsched."""

from tempest.api.compute import base
from tempest.common import waiters
from tempest import config
from tempest.lib.common.utils import test_utils

from ghsched_placement.providers import names
from tempest_plugin.services import capabilities
from tempest_plugin.services import host_client

CONF = config.CONF


class GhschedTest(base.BaseV2ComputeAdminTest):
    """Guests of flavors with ghsched: keys, seen by Placement and the host.
    """

    # 2.37 can boot without a network, 2.86 checks the flavor's extra specs.
    min_microversion = '2.86'
    # 1.18 lists providers by trait.
    placement_min_microversion = '1.18'

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        if not CONF.service_available.ghsched:
            raise cls.skipException('ghsched is not available')

    @classmethod
    def setup_clients(cls):
        super().setup_clients()
        cls.placement = cls.os_admin.placement_client
        cls.providers = cls.os_admin.resource_providers_client
        cls.host = host_client.HostClient(
            CONF.ghsched.host_command, CONF.ghsched.libvirt_uri,
            CONF.ghsched.resctrl_path)

    # -- steps --------------------------------------------------------------

    def _create_flavor(self, nodes=1, **keys):
        """Create a flavor with ``ghsched:`` keys and one vCPU per guest node.
        """
        flavor = self.create_flavor(
            ram=CONF.ghsched.flavor_ram * nodes, vcpus=nodes,
            disk=CONF.ghsched.flavor_disk)
        specs = {f'ghsched:{key}': str(value).lower()
                 for key, value in keys.items()}
        self.admin_flavors_client.set_flavor_extra_spec(
            flavor['id'], **{'hw:numa_nodes': str(nodes), **specs})
        return flavor['id']

    def _boot_server(self, flavor, status='ACTIVE', **more):
        """Boot a server, wait for a status, and delete it after the test."""
        server = self.create_test_server(flavor=flavor, **more)
        self.addCleanup(waiters.wait_for_server_termination,
                        self.servers_client, server['id'])
        self.addCleanup(test_utils.call_and_ignore_notfound_exc,
                        self.servers_client.delete_server, server['id'])
        waiters.wait_for_server_status(
            self.servers_client, server['id'], status,
            raise_on_error=status != 'ERROR')
        return self.admin_servers_client.show_server(server['id'])['server']

    def _get_allocations(self, server):
        """Return the allocations of a server by UUID of the provider."""
        return {uuid: allocation['resources'] for uuid, allocation
                in self.placement.list_allocations(
                    server['id'])['allocations'].items()}

    def _list_numa_providers(self):
        """Return ghsched's NUMA providers by UUID."""
        found = self.providers.list_resource_providers(
            required=names.NUMA_NODE_TRAIT)['resource_providers']
        return {provider['uuid']: provider for provider in found}

    def _can(self, *wanted):
        return capabilities.has_capable_host(self.providers, *wanted)

    def _need(self, *wanted):
        if not self._can(*wanted):
            raise self.skipException(
                'no host of this cloud can hold all of: ' + ', '.join(wanted))

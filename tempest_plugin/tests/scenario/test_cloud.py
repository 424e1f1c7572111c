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

"""The cloud as a whole. These tests run while no other does."""

import math

from tempest import config
from tempest.lib.cli import base as cli
from tempest.lib import decorators
from tempest.lib import exceptions

from ghsched_placement.providers import names
from tempest_plugin.tests import base

CONF = config.CONF

#: Percent of a host NUMA node's memory bandwidth, more than half a node.
SHARE = 60


@decorators.serial
class CloudTest(base.GhschedTest):
    """Placement, nova-compute and the configuration of tempest agree."""

    def _has_provider(self, **query):
        """Whether Placement has a resource provider of this kind."""
        try:
            return bool(self.providers.list_resource_providers(
                **query)['resource_providers'])
        except exceptions.BadRequest:
            # A trait or a class that no host has ever had.
            return False

    @decorators.idempotent_id('394c5ed0-7829-43bd-9d5e-091a2b3c4d45')
    def test_capabilities_of_tempest_are_those_of_the_hosts(self):
        found = {name for name, trait in names.CAPABILITY_TRAITS.items()
                 if self._has_provider(required=trait)}
        found |= {one.removeprefix('CUSTOM_') for one in names.OUR_CLASSES
                  if self._has_provider(resources=f'{one}:1')}
        known = {*names.CAPABILITY_TRAITS, *(
            one.removeprefix('CUSTOM_') for one in names.OUR_CLASSES)}
        self.assertEqual(
            ','.join(sorted(found)),
            ','.join(sorted(known.intersection(CONF.ghsched.capabilities))),
            'set [ghsched]capabilities of tempest.conf to the first value')

    def _count_free(self, uuid):
        """Bandwidth that Placement may still give away on one provider."""
        inventory = self.providers.list_resource_provider_inventories(
            uuid)['inventories'].get(names.MEM_BW_PCT)
        if inventory is None:
            return 0
        used = self.providers.list_resource_provider_usages(
            uuid)['usages'].get(names.MEM_BW_PCT, 0)
        capacity = ((inventory['total'] - inventory['reserved'])
                    * inventory['allocation_ratio'])
        return max(math.floor(capacity) - used, 0)

    @decorators.attr(type=['negative', 'slow'])
    @decorators.idempotent_id('c9a3f0b6-5a0d-44b8-8a4f-63f5b2d8a7e3')
    @base.needs('MEM_BW_MIN')
    def test_guest_is_refused_when_no_node_has_its_share(self):
        places = sum(self._count_free(uuid) // SHARE
                     for uuid in self._list_numa_providers())
        if places > CONF.ghsched.max_guests:
            raise self.skipException(
                f'{places} guests fit, [ghsched]max_guests is '
                f'{CONF.ghsched.max_guests}')
        flavor = self._create_flavor(mem_bw_min=SHARE)
        for _ in range(places):
            self._boot_server(flavor)
        refused = self._boot_server(flavor, status='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])

    @decorators.idempotent_id('4a5d6fe1-893a-44ce-ae6f-1a2b3c4d5e46')
    def test_audit_finds_nothing(self):
        """Records of guests that other tests have deleted may be on the way.
        """
        if not CONF.ghsched.cli_dir:
            raise self.skipException('[ghsched]cli_dir is not set')
        admin = self.os_admin.credentials
        client = cli.CLIClient(
            username=admin.username, password=admin.password,
            tenant_name=admin.project_name, uri=CONF.identity.uri_v3,
            cli_dir=CONF.ghsched.cli_dir, user_domain_name='Default',
            project_domain_name='Default', identity_api_version='3')
        said = []

        def agrees():
            try:
                said[:] = [client.openstack('ghsched audit')]
            except exceptions.CommandFailed as failed:
                said[:] = [f'{failed.stdout}{failed.stderr}']
                return False
            return 'All records agree' in said[0]
        self._wait(agrees, 'openstack ghsched audit finds nothing')

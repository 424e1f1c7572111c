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

import testtools

from tempest.common import compute
from tempest import config
from tempest.lib.common import api_microversion_fixture
from tempest.lib.common import api_version_utils
from tempest.lib.common.utils import data_utils
from tempest.lib.common.utils import test_utils
from tempest.lib import exceptions
from tempest import test

from ghsched_placement.providers import names
from tempest_plugin.services import devices
from tempest_plugin.services import host_client

CONF = config.CONF

#: 2.37 can boot without a network, 2.86 checks the flavor's extra specs.
COMPUTE_MICROVERSION = '2.86'
#: 1.18 lists providers by trait.
PLACEMENT_MICROVERSION = '1.18'


def needs(*capabilities):
    """Return a decorator: skip a test where no host has the capabilities.

    :param capabilities: as in ``[ghsched]capabilities``.
    """
    missing = sorted(set(capabilities) - set(CONF.ghsched.capabilities))
    return testtools.skipIf(
        missing, f'[ghsched]capabilities has no {", ".join(missing)}')


#: Skips a test that looks at the compute host.
looks_at_host = testtools.skipUnless(
    CONF.ghsched.host_command, '[ghsched]host_command is not set')

#: Skips a test that reads what the guest prints.
reads_console = testtools.skipUnless(
    CONF.ghsched.console_timeout, '[ghsched]console_timeout is 0')


class ServerFailed(Exception):
    """A server has the status ERROR, with its UUID and its fault."""


class GhschedTest(test.BaseTestCase):
    """Guests of flavors with ghsched: keys, seen by Placement and the host.
    """

    credentials = ['primary', 'admin']

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        if not CONF.service_available.ghsched:
            raise cls.skipException('ghsched is not available')
        for microversion, section in (
                (COMPUTE_MICROVERSION, CONF.compute),
                (PLACEMENT_MICROVERSION, CONF.placement)):
            api_version_utils.check_skip_with_microversion(
                microversion, microversion, section.min_microversion,
                section.max_microversion)

    @classmethod
    def setup_credentials(cls):
        # Guests have no network.
        cls.set_network_resources()
        super().setup_credentials()

    @classmethod
    def setup_clients(cls):
        super().setup_clients()
        cls.servers = cls.os_primary.servers_client
        cls.admin_servers = cls.os_admin.servers_client
        cls.flavors = cls.os_admin.flavors_client
        cls.placement = cls.os_admin.placement_client
        cls.providers = cls.os_admin.resource_providers_client

    def setUp(self):
        super().setUp()
        self.useFixture(api_microversion_fixture.APIMicroversionFixture(
            compute_microversion=COMPUTE_MICROVERSION,
            placement_microversion=PLACEMENT_MICROVERSION))

    # -- steps --------------------------------------------------------------

    def _create_flavor(self, nodes=1, specs=(), **keys):
        """Create a flavor with ``ghsched:`` keys and return its ID.

        :param nodes: number of guest NUMA nodes; each has one vCPU.
        :param specs: extra specs with their full names. One with the value
            None is left out, such as ``hw:numa_nodes`` that is set otherwise.
        """
        flavor = self.flavors.create_flavor(
            name=data_utils.rand_name(
                'ghsched', prefix=CONF.resource_name_prefix),
            ram=CONF.ghsched.flavor_ram * nodes, vcpus=nodes,
            disk=CONF.ghsched.flavor_disk)['flavor']
        self.addCleanup(test_utils.call_and_ignore_notfound_exc,
                        self.flavors.delete_flavor, flavor['id'])
        every = {'hw:numa_nodes': nodes, **dict(specs),
                 **{f'ghsched:{key}': value for key, value in keys.items()}}
        self.flavors.set_flavor_extra_spec(
            flavor['id'], **{key: str(value).lower()
                             for key, value in every.items()
                             if value is not None})
        return flavor['id']

    def _boot_server(self, flavor, status='ACTIVE', **more):
        """Boot a server, wait for a status, and delete it after the test.

        :returns: the server as an admin sees it.
        """
        server, _ = compute.create_test_server(
            self.os_primary, flavor=flavor, networks='none', **more)
        self.addCleanup(self._delete_server, server)
        return self._wait_for_status(server, status)

    def _delete_server(self, server):
        """Delete a server and wait until it is gone."""
        test_utils.call_and_ignore_notfound_exc(
            self.servers.delete_server, server['id'])
        self._wait(lambda: self._is_gone(server), f'{server["id"]} is deleted')

    def _is_gone(self, server):
        try:
            self.servers.show_server(server['id'])
        except exceptions.NotFound:
            return True
        return False

    def _show_server(self, server):
        """Return a server as an admin sees it."""
        return self.admin_servers.show_server(server['id'])['server']

    def _wait_for_status(self, server, status):
        """Wait until a server has a status and no task; return the server.

        :raises ServerFailed: if it has the status ERROR instead.
        """
        shown = {}

        def has_status():
            shown.update(self._show_server(server))
            if shown['status'] == 'ERROR' != status:
                raise ServerFailed(
                    server['id'], shown.get('fault', {}).get('message'))
            return (shown['status'] == status
                    and shown['OS-EXT-STS:task_state'] is None)
        self._wait(has_status, f'{server["id"]} is {status}')
        return shown

    def _wait(self, condition, text, timeout=None):
        """Wait until a condition holds.

        :param text: the condition in words.
        :param timeout: seconds, ``[compute]build_timeout`` by default.
        """
        timeout = timeout or CONF.compute.build_timeout
        if not test_utils.call_until_true(
                condition, timeout, CONF.compute.build_interval):
            raise exceptions.TimeoutException(
                f'not so within {timeout} s: {text}')

    # -- what Placement, the host and the guest say --------------------------

    def _get_allocations(self, server):
        """Return the allocations of a server by UUID of the provider."""
        return {uuid: allocation['resources'] for uuid, allocation
                in self.placement.list_allocations(
                    server['id'])['allocations'].items()}

    def _get_amounts(self, server, resource_class):
        """Return the amounts of a class that a server holds, in order."""
        return sorted(
            resources[resource_class]
            for resources in self._get_allocations(server).values()
            if resource_class in resources)

    def _list_numa_providers(self):
        """Return ghsched's NUMA providers by UUID."""
        found = self.providers.list_resource_providers(
            required=names.NUMA_NODE_TRAIT)['resource_providers']
        return {provider['uuid']: provider for provider in found}

    def _get_host_nodes(self, server, resource_class=names.MEM_BW_PCT):
        """Return the amounts of a class by host NUMA node."""
        providers = self._list_numa_providers()
        return {int(providers[uuid]['name'].rpartition('_NUMA')[2]):
                resources[resource_class] for uuid, resources
                in self._get_allocations(server).items()
                if resource_class in resources}

    @staticmethod
    def _host(server):
        """Return a client of the compute host that a server is on."""
        return host_client.HostClient(
            CONF.ghsched.host_command.replace(
                '{host}', server['OS-EXT-SRV-ATTR:host']),
            CONF.ghsched.libvirt_uri, CONF.ghsched.resctrl_path)

    def _read_xml(self, server):
        """Return the XML of a server's libvirt domain."""
        return self._host(server).read_domain_xml(
            server['OS-EXT-SRV-ATTR:instance_name'])

    def _read_threads(self, server):
        """Return the thread IDs of a server's vCPUs."""
        return self._host(server).read_vcpu_threads(
            server['OS-EXT-SRV-ATTR:instance_name'])

    def _read_schemata(self, server):
        """Return the schemata of the control group of a server's vCPUs."""
        host = self._host(server)
        return host.read_schemata(
            host.find_group_of_threads(self._read_threads(server)))

    def _read_console(self, server, *words):
        """Return a server's console once it has lines with all of the words.

        A line that the guest still writes is not in it.
        """
        console = ['']

        def has_words():
            console[:] = ['\n'.join(devices.get_complete_lines(
                self.servers.get_console_output(server['id'])['output']))]
            return all(word in console[0] for word in words)
        if not test_utils.call_until_true(
                has_words, CONF.ghsched.console_timeout,
                CONF.compute.build_interval):
            raise exceptions.TimeoutException(
                f'the console lacks one of {words}: {console[0]}')
        return console[0]

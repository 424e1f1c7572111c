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

"""Client of ghsched's commands for Placement and Nova.

Everything goes through openstacksdk, which knows the clouds of clouds.yaml
and of the environment.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Any
from urllib import parse

from openstack import exceptions as sdk_exceptions
import os_traits
from osc_lib import exceptions
import tenacity

from ghsched_placement.audit import repair
from ghsched_placement.base import retries
from ghsched_placement.fit import capacity
from ghsched_placement.osc import base
from ghsched_placement.osc import http
from ghsched_placement.osc import nova_reader
from ghsched_placement.providers import allocations
from ghsched_placement.providers import names
from ghsched_placement.providers import placement_client

#: Placement: same_subtree and groups without resources.
_PLACEMENT = '1.36'
#: Nova: any one that has a server's flavor.
COMPUTE = '2.47'

#: Attempts to write an allocation that others change at the same time (409).
_ATTEMPTS = 5

#: Seconds for nova-api to change or move a server; a move takes as long as a
#: live migration ([DEFAULT]long_rpc_timeout of Nova, 1800 by default).
ACTION_TIMEOUT_S = (5, 2000)


class Client(nova_reader.NovaReader):
    """Client of ghsched's OpenStackClient commands for Nova and Placement.

    :param connection: connection of openstacksdk.
    :param workers: number of requests that are sent at the same time; with 1,
        no threads are started.
    """

    @property
    def placement(self) -> Any:
        """Adapter of openstacksdk for Placement's API."""
        with http.translate_unreachable(self.connection, 'placement'):
            return self.connection.placement

    def list_hosts(self, host_names: Sequence[str] = ()
                   ) -> tuple[capacity.HostInventory, ...]:
        """Read the compute hosts that run ghsched from Placement.

        :param host_names: names of the hosts; empty for all hosts.
        :raises CommandError: when one of the named hosts does not exist.
        """
        roots = (set(map(self._find_root_uuid, host_names)) if host_names
                 else self._list_ghsched_compute_nodes())
        trees = self.map_in_parallel(
            lambda root: self.query_placement(
                f'/resource_providers?in_tree={root}')['resource_providers'],
            sorted(roots))
        records = [record for tree in trees for record in tree]
        found = capacity.build_hosts(
            provider
            for provider in self.map_in_parallel(self._read_provider, records)
            if provider is not None)
        missing = sorted(set(host_names) - {host.name for host in found})
        if missing:
            raise exceptions.CommandError(
                f'{", ".join(missing)}: Placement has no provider of ghsched '
                'for this host. Does nova-compute run there with '
                'compute_driver = ghsched.GhschedLibvirtDriver?')
        return found

    def list_host_allocations(self, host: capacity.HostInventory
                              ) -> dict[str, dict[str, dict[str, int]]]:
        """Return all allocations from the resource providers of a host.

        :returns: amounts by consumer, provider and resource class.
        """
        uuids = {host.uuid, *(node.uuid for node in host.nodes),
                 *(pf.uuid for pf in host.pfs)}
        found: dict[str, dict[str, dict[str, int]]] = {}
        for uuid, by_consumer in self.map_in_parallel(
                self._read_provider_allocations, sorted(uuids)):
            for consumer, entry in by_consumer.items():
                found.setdefault(consumer, {})[uuid] = dict(
                    entry['resources'])
        return found

    def get_consumer_allocations(self,
                                 consumer: str) -> dict[str, dict[str, int]]:
        """Return a consumer's allocations by provider and resource class."""
        return allocations.parse_allocations(
            self.query_placement(f'/allocations/{consumer}'))

    def post_server_action(self, uuid: str, action: Mapping[str, Any],
                           advice: str = '') -> dict[str, Any]:
        """Send a ghsched server action to nova-api and return the response.

        :param uuid: UUID of the server.
        :param action: JSON value of ``ghsched`` in the request body: the name
            of the action, with its arguments.
        :param advice: text to add to the error if nova-api does not know the
            action.
        :raises CommandRefused: if the request is refused.
        :raises CommandError: if the request fails.
        """
        response = http.send_request(
            self.connection, 'compute', 'post', f'/servers/{uuid}/action',
            json={'ghsched': action}, microversion=COMPUTE,
            timeout=ACTION_TIMEOUT_S)
        if response.status_code == 200:
            return dict(response.json())
        if response.status_code == 403:
            sdk_exceptions.raise_from_response(response)
        ours = response.text.startswith('{"ghsched"')
        if response.status_code == 400 and not ours:
            raise exceptions.CommandError(
                'nova-api of this cloud runs without the paste filter of '
                'ghsched (see "Change a guest that runs" in the manual)'
                f'{advice}')
        if response.status_code < 500 and ours:
            raise base.CommandRefused(
                f'refused: {http.get_error_message(response)}')
        raise exceptions.CommandError(
            f'nova-api: HTTP {response.status_code} '
            f'{http.get_error_message(response)}')

    def write_allocation_repair(self, planned: repair.Repair) -> str:
        """Write a planned repair of a consumer's allocations to Placement.

        The write is retried if the allocations have been changed at the same
        time.

        :param planned: the repair.
        :returns: reason why Placement refuses the write; empty on success.
        """
        attempts = itertools.count()
        response = retries.call_with_retries(
            lambda: self._try_allocation_repair(planned, next(attempts)),
            tenacity.retry_if_result(
                lambda response: response is not None
                and placement_client.is_conflict(response)),
            tenacity.stop_after_attempt(_ATTEMPTS))
        if response is None or response.status_code == 204:
            return ''
        return (f'HTTP {response.status_code} '
                f'{http.get_error_message(response)}')

    def _try_allocation_repair(self, planned: repair.Repair,
                               attempt: int) -> Any:
        """Write a planned repair of allocations once, without a retry.

        :param planned: the repair.
        :param attempt: number of earlier attempts at the same repair. Every
            second attempt assumes that Placement already has the server as a
            consumer without allocations.
        :returns: Placement's response; None if the allocations need no repair.
        """
        path = f'/allocations/{planned.consumer}'
        now = self.query_placement(path)
        if planned.owner:
            # A consumer without allocations is unknown to Placement, unless
            # it was stopped between making the consumer and them.
            both = repair.make_transfer_body(
                now, self.query_placement(f'/allocations/{planned.owner}'),
                planned, generation=0 if attempt % 2 else None)
            return both and http.send_request(
                self.connection, 'placement', 'post', '/allocations',
                json=both, microversion=_PLACEMENT)
        change = repair.make_repair_body(now, planned.wanted)
        return change and http.send_request(
            self.connection, 'placement', 'put', path, json=change,
            microversion=_PLACEMENT)

    def is_owner_trait_required(self) -> bool:
        """Return whether nova-scheduler requires the trait OWNER_NOVA.

        The trait is required once all compute services run Nova 34 or newer.
        """
        known = self.query_placement(
            f'/traits?name=in:{names.OWNER_TRAIT}')['traits']
        return bool(known) and not self.query_placement(
            f'/resource_providers?required={os_traits.COMPUTE_NODE},'
            f'!{names.OWNER_TRAIT}')['resource_providers']

    def _find_root_uuid(self, name: str) -> str:
        found = self.query_placement('/resource_providers?' + parse.urlencode(
            {'name': name}))['resource_providers']
        if not found:
            raise exceptions.CommandError(
                f'no compute host {name} in Placement; "openstack ghsched '
                'host list" lists them')
        return str(found[0]['root_provider_uuid'])

    def _list_ghsched_compute_nodes(self) -> set[str]:
        """Return the UUIDs of the compute nodes that run ghsched."""
        markers = {names.NUMA_NODE_TRAIT,
                   names.CAPABILITY_TRAITS['DEVICE_NUMA']}
        # Placement refuses a query for a trait that nobody ever had.
        known = markers.intersection(self.query_placement(
            '/traits?name=in:' + ','.join(sorted(markers)))['traits'])
        return {provider['root_provider_uuid'] for trait in sorted(known)
                for provider in self.query_placement(
                    f'/resource_providers?required={trait}')[
                        'resource_providers']}

    def _read_provider(self, record: Mapping[str, Any]
                       ) -> capacity.Provider | None:
        """Read a resource provider with its inventories, usages and traits.

        :param record: record of the provider in Placement's list of providers.
        :returns: None if the provider has been deleted.
        """
        base = f'/resource_providers/{record["uuid"]}'
        inventories = self.query_placement(f'{base}/inventories', default={})
        usages = self.query_placement(f'{base}/usages', default={})
        traits = self.query_placement(f'{base}/traits', default={})
        if not (inventories and usages and traits):
            return None
        return capacity.Provider(
            record['uuid'], record['name'], record['parent_provider_uuid'],
            record['root_provider_uuid'], inventories['inventories'],
            usages['usages'], frozenset(traits['traits']))

    def _read_provider_allocations(self,
                                   uuid: str) -> tuple[str, dict[str, Any]]:
        answer = self.query_placement(
            f'/resource_providers/{uuid}/allocations',
            default={'allocations': {}})
        return uuid, dict(answer['allocations'])

    def query_placement(self, path: str, default: Any = None) -> Any:
        """Return the JSON document of a GET request to Placement.

        :param path: URL path, with the query.
        :param default: result if there is no such document (404); None raises
            the error.
        """
        return http.get_json(self.connection, 'placement', path, _PLACEMENT,
                             default)


def get_client(app: Any) -> Client:
    """Return the client that ghsched's OpenStackClient commands use.

    :param app: OpenStackClient's application.
    """
    client: Client = app.client_manager.ghsched
    return client

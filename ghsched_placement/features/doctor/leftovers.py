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

"""``openstack ghsched leftover list``: objects of ghsched in a cloud."""

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import astuple
from dataclasses import dataclass
from typing import Any

from keystoneauth1 import exceptions as ksa_exceptions
from openstack import exceptions as sdk_exceptions
from osc_lib import exceptions

from ghsched_placement.base import exits
from ghsched_placement.flavor import policy as policies
from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients
from ghsched_placement.osc import http
from ghsched_placement.osc import observe
from ghsched_placement.providers import names

COLUMNS = ('Where', 'Kind', 'Name', 'Remedy')

#: Prefix of the unified limits of a resource class in Keystone.
_LIMIT = 'class:'

#: A service that the cloud does not have, or that the user may not read.
_ABSENT = (exceptions.CommandError, ksa_exceptions.ClientException,
           sdk_exceptions.SDKException)


@dataclass(frozen=True)
class Leftover:
    """Object of ghsched to remove from a cloud before ghsched is uninstalled.

    :param where: name of the service that stores it.
    :param kind: kind of object, as the service calls it.
    :param name: name of the object.
    :param remedy: command or page of the manual that removes it.
    """

    where: str
    kind: str
    name: str
    remedy: str


class ListLeftovers(base.Lister):
    """List what ghsched has left in a cloud that is going back to stock Nova.

    The rows are in the order in which to remove the objects. "ghsched-status
    doctor --leftovers" lists the files and processes that are left on one
    node. Exit status: 0 nothing is left, 1 something is left, 2 the cloud
    cannot be reached.
    """

    nothing = 'Nothing of ghsched is left in Nova and Placement.'

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        client = clients.get_client(self.app)
        found = [
            *yield_server_leftovers(client.list_servers()),
            *yield_flavor_leftovers(client.list_flavors()),
            *_yield_placement_leftovers(client)]
        read = ['Nova', 'Placement']
        for service, look in (('Keystone', _list_keystone_leftovers),
                              ('Glance', _list_glance_leftovers)):
            try:
                found += look(client)
                read.append(service)
            except _ABSENT as error:
                self.log.warning('cannot list leftovers in %s: %s',
                                 service, base.format_error(error))
        self.status = exits.FOUND if found else exits.DONE
        self.nothing = ('Nothing of ghsched is left in '
                        f'{", ".join(read[:-1])} and {read[-1]}.')
        return COLUMNS, [astuple(one) for one in found]


def yield_server_leftovers(
        records: Iterable[Mapping[str, Any]]) -> Iterator[Leftover]:
    """Yield a leftover for each server whose flavor has ghsched extra specs.

    Leftovers must be removed before the cloud can run without ghsched.

    :param records: server records of Nova's API.
    """
    for record in records:
        if policies.has_ghsched_keys(observe.get_flavor_extra_specs(record)):
            yield Leftover(
                'Nova', 'server', f'{record["name"]} ({record["id"]})',
                'resize it to a flavor without keys of ghsched, or delete it')


def yield_flavor_leftovers(
        records: Iterable[Mapping[str, Any]]) -> Iterator[Leftover]:
    """Yield a leftover for each flavor that has ghsched extra specs.

    Leftovers must be removed before the cloud can run without ghsched.

    :param records: flavor records of Nova's API.
    """
    for record in sorted(records, key=lambda one: str(one['name'])):
        specs = record.get('extra_specs') or {}
        ours = sorted(key for key in specs
                      if policies.has_ghsched_keys({key: ''}))
        if ours:
            yield Leftover(
                'Nova', 'flavor', str(record['name']),
                f'openstack flavor unset {record["id"]} '
                + ' '.join(f'--property {key}' for key in ours))


def _yield_placement_leftovers(client: clients.Client) -> Iterator[Leftover]:
    known = {one['name'] for one in client.query_placement(
        '/resource_classes')['resource_classes']}
    classes = sorted(known & names.OUR_CLASSES)
    traits = sorted(filter(names.is_ghsched_trait, client.query_placement(
        '/traits?name=startswith:CUSTOM_')['traits']))
    for name in _list_hosts_with_traits(client, traits):
        yield Leftover('Placement', 'compute node', name,
                       'ghsched-host retire, on that host')
    for name in classes:
        yield Leftover('Placement', 'resource class', name,
                       f'openstack resource class delete {name}')
    for name in traits:
        yield Leftover('Placement', 'trait', name,
                       f'openstack trait delete {name}')


def _list_hosts_with_traits(client: clients.Client,
                            traits: Iterable[str]) -> list[str]:
    """Return the names of compute nodes that have any of the given traits."""
    roots = {provider['root_provider_uuid'] for trait in traits
             for provider in client.query_placement(
                 f'/resource_providers?required={trait}')[
                     'resource_providers']}
    return sorted(str(client.query_placement(
        f'/resource_providers/{root}')['name']) for root in roots)


def _list_keystone_leftovers(client: clients.Client) -> list[Leftover]:
    ours = {f'{_LIMIT}{name}' for name in names.OUR_CLASSES}
    return [Leftover('Keystone', word, str(one['resource_name']),
                     f'openstack {word} delete {one["id"]}')
            for kind, word in (('limits', 'limit'),
                               ('registered_limits', 'registered limit'))
            for one in http.get_json(client.connection, 'identity',
                                     f'/{kind}', None)[kind]
            if one['resource_name'] in ours]


def _list_glance_leftovers(client: clients.Client) -> list[Leftover]:
    name = names.METADATA_NAMESPACE
    if not http.get_json(client.connection, 'image',
                         f'/metadefs/namespaces/{name}', None, default={}):
        return []
    return [Leftover(
        'Glance', 'metadata namespace', name,
        f'glance md-namespace-update {name} --protected False, then glance '
        f'md-namespace-delete {name}')]

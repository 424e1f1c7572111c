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

"""Find NUMA nodes that guarantee more bandwidth than memory delivers."""

from collections.abc import Iterator
from http import HTTPStatus
import math
from typing import Any
from typing import NamedTuple

from keystoneauth1 import exceptions
from keystoneauth1 import loading
from oslo_config import cfg

from ghsched_nova.features.doctor import checks
from ghsched_placement.providers import names
from ghsched_placement.providers import placement_client
from ghsched_placement.providers import tree

#: Seconds to wait for an answer where nova.conf has no [placement]timeout.
ANSWER_TIMEOUT = 10
#: NUMA nodes that are named, most allocated first.
NAMED_NODES = 20

_TITLE = 'guaranteed bandwidth'
_GROUP = 'placement'


class _Node(NamedTuple):
    percent: int
    name: str


class _Session:
    """Client of Placement with credentials from a configuration file.

    It has only the method ``get`` of Nova's report client.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def get(self, url: str, version: str) -> Any:
        """Send a GET request to Placement; return the response of any status.
        """
        return self._adapter.get(url, microversion=version, raise_exc=False)


def make_placement_client(
    options: cfg.ConfigOpts,
) -> placement_client.PlacementClient | None:
    """Return a Placement client that uses the credentials in nova.conf.

    :param options: configuration whose files have been read.
    :returns: None if nova.conf has no credentials for Placement.
    :raises keystoneauth1.exceptions.ClientException: if the section
        ``[placement]`` cannot be used; TypeError or ValueError if its options
        contradict each other.
    """
    loading.register_auth_conf_options(options, _GROUP)
    loading.register_session_conf_options(options, _GROUP)
    # As Nova has them: it ignores [placement]interface, which devstack sets.
    loading.register_adapter_conf_options(options, _GROUP,
                                          include_deprecated=False)
    options.set_default('service_type', 'placement', group=_GROUP)
    options.set_default('valid_interfaces', ['internal', 'public'],
                        group=_GROUP)
    auth = loading.load_auth_from_conf_options(options, _GROUP)
    if auth is None:
        return None
    session = loading.load_session_from_conf_options(options, _GROUP,
                                                     auth=auth)
    session.timeout = session.timeout or ANSWER_TIMEOUT
    return placement_client.PlacementClient(_Session(
        loading.load_adapter_from_conf_options(
            options, _GROUP, session=session)))


def check_guaranteed_bandwidth(
    facts: checks.MachineFacts, options: cfg.ConfigOpts
) -> Iterator[checks.Check]:
    """Check that no NUMA node of the cloud guarantees too much bandwidth.

    Guarantees must not exceed the bandwidth that memory delivers. The check
    reads all hosts, so it is skipped on a node that is only a compute host.
    """
    if facts.is_compute_host and not facts.is_scheduler_node:
        yield checks.Check(_TITLE, 'skipped',
                           'a node of the control plane checks all hosts')
        return
    try:
        client = make_placement_client(options)
        if client is None:
            yield checks.Check(_TITLE, 'skipped', 'nova.conf of this node has '
                               'no credentials of Placement')
            return
        yield warn_of_overcommitted_nodes(client)
    except (cfg.Error, exceptions.ClientException, OSError, TypeError,
            ValueError, placement_client.PlacementError) as error:
        yield checks.Check(_TITLE, 'warning', f'cannot read Placement: '
                           f'{error}', 'run this where nova-api or '
                           'nova-scheduler runs')


def warn_of_overcommitted_nodes(
    client: placement_client.PlacementClient,
) -> checks.Check:
    """Warn if guests' guarantees on a NUMA node exceed what memory delivers.

    Memory delivers only a part of a NUMA node's theoretical bandwidth.

    :raises PlacementError: when Placement cannot be read.
    """
    found = sorted(
        _find_overcommitted_nodes(client),
        key=lambda one: (-one.percent, one.name),
    )
    if not found:
        return checks.Check(_TITLE, 'ok', 'no NUMA node guarantees more than '
                            f'{tree.DELIVERED} %')
    text = ', '.join(f'{one.name} ({one.percent} %)'
                     for one in found[:NAMED_NODES])
    more = len(found) - NAMED_NODES
    return checks.Check(
        _TITLE, 'warning', f'memory delivers about {tree.DELIVERED} % of its '
        f'theoretical bandwidth, more is guaranteed on {text}'
        + (f' and {more} more' if more > 0 else ''),
        'move guests away, or set [ghsched]reserved_bandwidth on these hosts '
        'to what their memory does not deliver')


def _find_overcommitted_nodes(
    client: placement_client.PlacementClient,
) -> Iterator[_Node]:
    """Yield NUMA nodes with more guaranteed bandwidth than memory delivers.

    Each has its provider's name in Placement and the guaranteed percent of its
    bandwidth.
    """
    if not client.is_trait_in_use(names.NUMA_NODE_TRAIT):
        return
    for provider in client.get('/resource_providers', [
            ('required', names.NUMA_NODE_TRAIT)])['resource_providers']:
        percent = _read_guaranteed_percent(client, provider['uuid'])
        if percent > tree.DELIVERED:
            yield _Node(percent, provider['name'])


def _read_guaranteed_percent(
    client: placement_client.PlacementClient, uuid: str
) -> int:
    """Return the percent of a NUMA node's bandwidth guaranteed to guests.

    An allocated percent above the part that memory delivers is divided by the
    allocation ratio of the inventory.

    :param uuid: UUID of the node's provider.
    :returns: 0 if the provider has been deleted.
    """
    try:
        used = client.get_usages(uuid).get(names.MEM_BW_PCT, 0)
        if used <= tree.DELIVERED:
            return used
        record = client.get_inventories(uuid)[names.MEM_BW_PCT]
    except placement_client.PlacementError as error:
        if error.code != HTTPStatus.NOT_FOUND:
            raise
        return 0
    return math.ceil(used / record['allocation_ratio'])

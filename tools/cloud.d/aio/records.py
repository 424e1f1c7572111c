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


"""Whether the records of the guests agree.

They are Placement's allocations, Nova's claim, the domain's XML, and the
control groups of the hosts.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import json
import os
import subprocess
from typing import Any

from aio.lab import Lab
from aio.settings import CloudError

_BANDWIDTH = 'CUSTOM_MEM_BW_PCT'
_DEFAULT_GROUP = 'ghsched-default'

#: A guest in these runs on a host, or would if its CPUs were not stopped.
_RUNNING = ('ACTIVE', 'PAUSED', 'RESCUE', 'PASSWORD', 'REBOOT',
            'HARD_REBOOT', 'VERIFY_RESIZE')
_GONE = ('SHELVED_OFFLOADED', 'BUILD', 'ERROR', 'DELETED')

#: Guaranteed percent by host NUMA node.
Shares = dict[int, int]


def disagreements(lab: Lab) -> list[str]:
    """Every disagreement of the records, on all hosts of the cloud."""
    servers = [lab.server(one) for one in lab.cloud.compute.servers(
        all_projects=True)]
    labs = [lab.on(host) for host in lab.settings.hosts]
    found: list[str] = []
    for server in servers:
        found += [f'{server.name} ({server.status}): {text}'
                  for text in _or_error(_of_server(labs, server))]
    for one in labs:
        found += [f'{one.settings.host.name}: {text}'
                  for text in _of_host(one, servers)]
    return found or _of_audit(lab)


def _of_audit(lab: Lab) -> list[str]:
    """What an operator is told; see ``openstack ghsched audit --help``."""
    done = subprocess.run(
        [f'{lab.settings.venv}/bin/openstack', 'ghsched', 'audit',
         '-f', 'json'], env={**os.environ, **lab.settings.admin},
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False)
    if not done.returncode:
        return []
    try:
        return [f'audit: {row}' for row in json.loads(done.stdout)]
    except ValueError:
        return [f'audit: {done.stderr.strip()}']


def _or_error(texts: Iterator[str]) -> Iterator[str]:
    """A record that cannot be read does not agree, either."""
    try:
        yield from texts
    except (CloudError, OSError) as error:
        yield str(error)


def _of_server(labs: Sequence[Lab], server: Any) -> Iterator[str]:
    held = labs[0].allocations(server)
    if server.status in _GONE:
        if held and server.status in ('SHELVED_OFFLOADED', 'DELETED'):
            yield f'holds {held} and is on no host'
        return
    here = next(one for one in labs
                if one.settings.host.name == server.compute_host)
    name = here.settings.host.hypervisor
    shares = {}
    for provider, resources in held.items():
        if provider.partition('_NUMA')[0] != name:
            yield f'is on {name} and holds {resources} of {provider}'
        elif resources.get(_BANDWIDTH):
            shares[int(provider.rpartition('_NUMA')[2])] = (
                resources[_BANDWIDTH])
    claimed = [cell['host_node'] for cell in here.topology(server)
               if 'host_node' in cell]
    if not set(shares) <= set(claimed):
        yield f'holds shares {shares}, but Nova claims the nodes {claimed}'
    policy = _policy(here, server)
    if policy != shares:
        yield f'holds shares {shares}, but its XML says {policy}'
    if server.status in _RUNNING:
        yield from _of_group(here, server, shares)


def _policy(lab: Lab, server: Any) -> Shares:
    """The guarantees that the XML of a guest says."""
    if lab.domain_name(server) not in lab.domains():
        return {}
    found = lab.domain_xml(server).iterfind('metadata/{*}policy/{*}node')
    return {int(node.get('host', -1)): int(node.get('min', 0))
            for node in found if int(node.get('min', 0))}


def _of_group(lab: Lab, server: Any, shares: Shares) -> Iterator[str]:
    if not shares:
        return
    mine = set(lab.vcpu_threads(server))
    holding = [one for one in lab.groups() if mine & set(one.threads)]
    if len(holding) != 1 or not mine <= set(holding[0].threads):
        yield f'its vCPUs are in {[one.name for one in holding]}'
        return
    values = {node: int(value) for node, value in holding[0].schemata.get(
        'MBMIN', {}).items()}
    alone = all(thread in mine for thread, name in holding[0].threads.items()
                if name.startswith('CPU '))
    expected = {node: shares.get(node, 0) for node in values}
    # A group that guests share has the sum of their guarantees.
    if values != expected and (alone or any(
            values.get(node, 0) < share for node, share in shares.items())):
        yield f'holds shares {shares}, and its group has {values}'


def _of_host(lab: Lab, servers: Sequence[Any]) -> Iterator[str]:
    name = lab.settings.host.name
    # The host that a resize has left keeps the domain until it is confirmed.
    known = {one.instance_name for one in servers
             if one.compute_host == name or one.status == 'VERIFY_RESIZE'}
    stray = sorted(set(lab.domains()) - known)
    if stray:
        yield f'domains of no server here: {stray}'
    empty = [one.name for one in lab.groups()
             if not one.threads and one.name != _DEFAULT_GROUP]
    if empty:
        yield f'control groups without a guest: {empty}'
    yield from _of_consumers(lab, {one.id for one in servers},
                             any(one.status in ('VERIFY_RESIZE', 'RESIZE')
                                 for one in servers))


def _of_consumers(lab: Lab, servers: set[str], moving: bool
                  ) -> Iterator[str]:
    """Consumers that are neither a server nor, if one moves, a migration."""
    for provider in lab.providers():
        held = lab.placement(
            f'/resource_providers/{provider.uuid}/allocations')['allocations']
        stray = set(held) - servers
        if stray and not moving:
            yield f'{provider.name} is held by {sorted(stray)}'
        total = sum(one['resources'].get(_BANDWIDTH, 0)
                    for one in held.values())
        if total > 100:
            yield f'{total} % of {provider.name} are given out'

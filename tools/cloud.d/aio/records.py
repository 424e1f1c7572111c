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


"""Whether the records of the guests agree, as ``ghsched audit`` finds it.

The records are Placement's allocations, Nova's claim, the domain's XML, and
the control groups of the hosts. They are read here a second time, by another
way, to judge the audit: what they show and it does not name is a fault of it.
"""

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from aio.lab import Group
from aio.lab import Lab
from aio.placement import Provider
from aio.settings import CloudError
from ghsched_placement.audit import repair
from ghsched_placement.osc import audit
from ghsched_placement.osc import client
from openstack.exceptions import NotFoundException
from osc_lib import exceptions

_BANDWIDTH = 'CUSTOM_MEM_BW_PCT'
_DEFAULT_GROUP = 'ghsched-default'
#: Policy of a guest in the XML of its domain.
_POLICY = 'metadata/{*}policy'
#: How groups of other software are named by who makes them here.
OTHERS = 'somebody-'

#: A guest in these runs on a host, or would if its CPUs were not stopped.
_RUNNING = ('ACTIVE', 'PAUSED', 'RESCUE', 'PASSWORD', 'REBOOT',
            'HARD_REBOOT')
#: Nova's power state of a guest that does not run.
_STOPPED = 4
_GONE = ('SHELVED_OFFLOADED', 'BUILD', 'ERROR', 'DELETED')

#: Guaranteed percent by host NUMA node.
Shares = dict[int, int]


@dataclass(frozen=True)
class _Host:
    """Records of a host about its guests, read at once.

    :param domains: the XML that Nova has defined, by name.
    :param threads: names of vCPU threads by their ids, by the domain's name.
    """

    lab: Lab
    domains: Mapping[str, ElementTree.Element]
    threads: Mapping[str, Mapping[int, str]]
    groups: Sequence[Group]

    @property
    def name(self) -> str:
        return self.lab.settings.host.name


#: How a disagreement begins that "ghsched audit --fix" can put right.
FIXABLE = 'audit --fix: '


@dataclass(frozen=True)
class _Fact:
    """Something that the records show and that does not agree.

    :param subjects: what the audit may name it by: UUIDs and names.
    """

    subjects: frozenset[str]
    text: str


def disagreements(lab: Lab) -> list[str]:
    """Return what the audit finds, and what it should have found."""
    asked = argparse.Namespace(hosts=[], no_effective=False,
                               accounting='min')
    try:
        seen = audit.audit_hosts(client.Client(lab.cloud), asked)
        facts = list(_facts(lab))
    except (exceptions.CommandError, CloudError, OSError) as error:
        return [str(error)]
    found = [finding for host in seen
             for finding in (*host.findings, *host.unchecked)]
    repairs = {(one.host, one.consumer) for host in seen
               for one in audit.list_planned_repairs(host)}
    named = {finding.subject for finding in found}
    return [*((FIXABLE if (one.host, one.subject) in repairs
               and repair.is_repairable(one) else 'audit: ') + str(one)
              for one in found),
            *(f'the audit does not name: {fact.text}' for fact in facts
              if named.isdisjoint(fact.subjects))]


def _facts(lab: Lab) -> Iterator[_Fact]:
    """Yield every disagreement of the records, on all hosts of the cloud.

    :raises CloudError: when a host cannot be read.
    """
    servers = list(lab.cloud.compute.servers(all_projects=True))
    hosts = [_read(lab.on(host)) for host in lab.settings.hosts]
    providers = lab.every_provider()
    names = {one.uuid: one.name for one in providers}
    held = {one.uuid: lab.placement(
        f'/resource_providers/{one.uuid}/allocations')['allocations']
        for one in providers}
    servers += _restorable(lab, {consumer for one in held.values()
                                 for consumer in one}
                           - {one.id for one in servers})
    for server in servers:
        # One that is deleted meanwhile is in the next answer no more.
        with contextlib.suppress(NotFoundException):
            for text in _of_server(hosts, server, names):
                yield _Fact(frozenset({server.id}),
                            f'{server.name} ({server.status}): {text}')
    for one in hosts:
        for fact in (*_of_host(one, servers), *_of_consumers(
                one.lab.own(providers), held, servers)):
            yield _Fact(fact.subjects, f'{one.name}: {fact.text}')


def _restorable(lab: Lab, consumers: set[str]) -> list[Any]:
    """Servers that are deleted and can be restored; no list has them."""
    found = []
    for uuid in consumers:
        with contextlib.suppress(NotFoundException):
            server = lab.cloud.compute.get_server(uuid)
            if server.status == 'SOFT_DELETED':
                found.append(server)
    return found


def _read(lab: Lab) -> _Host:
    domains = {name: lab.xml_of(name) for name in lab.domains()}
    return _Host(lab, domains, {name: lab.threads_of(name)
                                for name in domains}, lab.groups())


def _of_server(hosts: Sequence[_Host], server: Any,
               names: Mapping[str, str]) -> Iterator[str]:
    lab = hosts[0].lab
    held = {names.get(uuid, uuid): entry['resources']
            for uuid, entry in lab.placement(
                f'/allocations/{server.id}')['allocations'].items()}
    if server.status in _GONE:
        if held and server.status in ('SHELVED_OFFLOADED', 'DELETED'):
            yield f'holds {held} and is on no host'
        return
    here = next((one for one in hosts if one.name == server.compute_host),
                None)
    if here is None:
        yield f'is on {server.compute_host}'
        return
    name = here.lab.settings.host.name
    shares = {}
    for provider, resources in held.items():
        if provider.partition('_NUMA')[0] != name:
            yield f'is on {name} and holds {resources} of {provider}'
        elif resources.get(_BANDWIDTH):
            shares[int(provider.rpartition('_NUMA')[2])] = (
                resources[_BANDWIDTH])
    claimed = [cell['host_node'] for cell in lab.topology(server)
               if 'host_node' in cell]
    if not set(shares) <= set(claimed):
        yield f'holds shares {shares}, but Nova claims the nodes {claimed}'
    policy = _policy(here, server)
    # One that does not run is defined again when it is started. A change that
    # the host did not live to answer may have left it a smaller share.
    if policy != shares and (_runs(server) or (
            server.instance_name in here.domains and any(
                share > shares.get(node, 0)
                for node, share in policy.items()))):
        yield f'holds shares {shares}, but its XML says {policy}'
    if _runs(server):
        yield from _of_group(here, server, shares)


def _runs(server: Any) -> bool:
    """Whether its vCPUs have to be there."""
    if server.status in ('VERIFY_RESIZE', 'RESCUE'):
        # One that was stopped is not started by a move, and one in rescue is
        # not told from others when its host has rebooted.
        return bool(server.power_state != _STOPPED)
    return server.status in _RUNNING


def _policy(host: _Host, server: Any) -> Shares:
    """The guarantees that the XML of a guest says."""
    xml = host.domains.get(server.instance_name)
    if xml is None:
        return {}
    return {int(node.get('host', -1)): int(node.get('min', 0))
            for node in xml.iterfind(f'{_POLICY}/{{*}}node')
            if int(node.get('min', 0))}


def _of_group(host: _Host, server: Any, shares: Shares) -> Iterator[str]:
    xml = host.domains.get(server.instance_name)
    if xml is not None and xml.find(f'{_POLICY}/{{*}}class') is not None:
        threads = host.threads.get(server.instance_name, {})
        yield from _of_classes(host, xml, threads)
        yield from _of_sum(host, threads, shares)
        return
    if not shares:
        return
    mine = set(host.threads.get(server.instance_name, ()))
    holding = [one for one in host.groups if mine & set(one.threads)]
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


def _of_classes(host: _Host, xml: ElementTree.Element,
                threads: Mapping[int, str]) -> Iterator[str]:
    """Yield what is wrong with the groups of the vCPU classes of a guest."""
    thread_of = {int(name.split()[1].partition('/')[0]): thread
                 for thread, name in threads.items()}
    nodes = [int(one.get('host', -1))
             for one in xml.iterfind(f'{_POLICY}/{{*}}node')]
    for one in xml.iterfind(f'{_POLICY}/{{*}}class'):
        name, minimums = one.get('name'), [
            int(node.get('min', 0)) for node in one.iterfind('{*}node')]
        mine = {thread_of[vcpu] for vcpu in _numbers(
            one.get('moved', one.get('vcpus', ''))) if vcpu in thread_of}
        if not minimums or not mine:
            continue
        holding = [group for group in host.groups
                   if mine & set(group.threads)]
        if len(holding) != 1 or mine != {
                thread for thread, comm in holding[0].threads.items()
                if comm.startswith('CPU ')}:
            yield f'vCPUs of its class {name} are in ' + ', '.join(
                group.name for group in holding)
            continue
        shares = dict(zip(nodes, minimums, strict=True))
        values = {node: int(value) for node, value
                  in holding[0].schemata.get('MBMIN', {}).items()}
        if values != {node: shares.get(node, 0) for node in values}:
            yield f'its class {name} has {shares}, and its group {values}'


def _of_sum(host: _Host, threads: Mapping[int, str], shares: Shares
            ) -> Iterator[str]:
    """Yield nodes where groups of a guest have more than is allocated."""
    groups = [one for one in host.groups if threads.keys() & set(one.threads)]
    for node in sorted({node for one in groups
                        for node in one.schemata.get('MBMIN', {})}):
        total = sum(int(one.schemata['MBMIN'][node]) for one in groups)
        if total > shares.get(node, 0):
            yield (f'groups of its classes have {total} % of node {node}, '
                   f'allocated are {shares.get(node, 0)}')


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list such as 0-2,5."""
    ends = [part.partition('-')[::2] for part in text.split(',') if part]
    return {number for first, last in ends
            for number in range(int(first), int(last or first) + 1)}


def _is_left(host: _Host, name: str, servers: Sequence[Any]) -> bool:
    """Whether Nova leaves a stopped domain where a move began that failed."""
    return not host.threads.get(name) and any(
        move.source_compute == host.name and move.status == 'error'
        for one in servers if one.instance_name == name
        for move in host.lab.cloud.compute.migrations(server_id=one.id))


def _of_host(host: _Host, servers: Sequence[Any]) -> Iterator[_Fact]:
    # The host that a resize has left keeps the domain until it is confirmed,
    # and Nova keeps it there when that fails; but it does not run.
    known = {one.instance_name for one in servers
             if one.compute_host == host.name
             or one.status in ('VERIFY_RESIZE', 'ERROR')
             and not host.threads.get(one.instance_name)}
    stray = [name for name in sorted(set(host.domains) - known)
             if not _is_left(host, name, servers)]
    if stray:
        yield _Fact(frozenset(str(host.domains[name].findtext('uuid'))
                              for name in stray),
                    f'domains of no server here: {stray}')
    empty = [one.name for one in host.groups
             if not one.threads and one.name != _DEFAULT_GROUP
             and not one.name.startswith(OTHERS)]
    if empty:
        yield _Fact(frozenset(empty),
                    f'control groups without a guest: {empty}')


def _of_consumers(providers: Sequence[Provider],
                  allocations: Mapping[str, Mapping[str, Any]],
                  servers: Sequence[Any]) -> Iterator[_Fact]:
    """Yield consumers that are neither servers nor migrations of moves.

    :param allocations: by the provider's UUID and the consumer's.
    """
    known = {one.id for one in servers}
    moving = any(one.status in ('VERIFY_RESIZE', 'RESIZE') for one in servers)
    for provider in providers:
        held = allocations[provider.uuid]
        stray = set(held) - known
        if stray and not moving:
            yield _Fact(frozenset(stray),
                        f'{provider.name} is held by {sorted(stray)}')
        total = sum(one['resources'].get(_BANDWIDTH, 0)
                    for one in held.values())
        if total > 100:
            yield _Fact(frozenset({provider.name}),
                        f'{total} % of {provider.name} are given out')

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

"""Read the hosts of a cloud from Placement; write nothing to it."""

from collections.abc import Callable
from collections.abc import Iterable
from concurrent import futures
from typing import Any

from ghsched_placement.features.planner import client
from ghsched_placement.features.planner.client import PlacementReader
from ghsched_placement.features.planner.hosts import (
    sort_providers_parents_first)
from ghsched_placement.features.planner.hosts import PlannedHost
from ghsched_placement.fit.capacity import Provider

#: Requests at the same time.
WORKERS = 8

_SHARING = 'MISC_SHARES_VIA_AGGREGATE'

Progress = Callable[[float, str], None]


def ignore_progress(_fraction: float, _step: str) -> None:
    """Ignore a progress report; used if no progress is displayed."""


def make_step_progress(
        progress: Progress, start: float, end: float) -> Progress:
    """Return a progress callback for one step of a longer operation.

    The callback converts the progress of the step, 0 to 1, to the progress of
    the whole operation.

    :param progress: progress callback of the whole operation.
    :param start: progress of the whole operation, 0 to 1, when the step
        begins.
    :param end: progress of the whole operation, 0 to 1, when the step ends.
    """
    def report(fraction: float, step: str) -> None:
        progress(start + (end - start) * fraction, step)
    return report


def read_compute_hosts(reader: PlacementReader,
                       progress: Progress = ignore_progress,
                       workers: int = WORKERS) -> tuple[PlannedHost, ...]:
    """Read all compute hosts of a cloud from Placement, sorted by name.

    A root resource provider without VCPU, PCPU and MEMORY_MB, such as a shared
    disk or a network agent, is not a compute host and is skipped.

    :param workers: number of threads that send requests in parallel.
    :raises PlannerError: when Placement does not answer.
    """
    records = client.get_json(
        reader, '/resource_providers')['resource_providers']
    roots: dict[str, list[Provider]] = {}
    with futures.ThreadPoolExecutor(max_workers=workers) as pool:
        found = pool.map(
            lambda record: _read_provider(reader, record), records)
        for number, provider in enumerate(found, start=1):
            if provider is not None:
                roots.setdefault(provider.root, []).append(provider)
            progress(number / len(records), 'reading the cloud')
    hosts = (_build_host(root, members) for root, members in roots.items())
    return tuple(sorted((host for host in hosts if host is not None),
                        key=lambda host: host.name))


def list_shared_resource_classes(
        hosts: Iterable[PlannedHost],
        reader: PlacementReader) -> tuple[str, ...]:
    """Return the resource classes that hosts get from sharing providers.

    A sharing provider, such as a shared disk, belongs to no single host. The
    planner leaves these classes out of its Placement queries.
    """
    known = client.get_json(reader, f'/traits?name=in:{_SHARING}')['traits']
    if _SHARING not in known:
        return ()
    sharing = client.get_json(
        reader, f'/resource_providers?required={_SHARING}')
    found = {name for record in sharing['resource_providers']
             if (provider := _read_provider(reader, record))
             for name in provider.inventories}
    own = {name for host in hosts for name in host.root.inventories}
    return tuple(sorted(found - own))


def _read_provider(reader: PlacementReader, record: Any) -> Provider | None:
    """Read a resource provider from Placement.

    :param record: record of the provider in Placement's list of providers.
    :returns: None if the provider has been deleted.
    """
    path = f'/resource_providers/{record["uuid"]}'
    inventories, usages, traits = (
        client.get_json(reader, f'{path}/{what}', missing_ok=True)
        for what in ('inventories', 'usages', 'traits'))
    if not (inventories and usages and traits):
        return None
    return Provider(
        uuid=record['uuid'], name=record['name'],
        parent=record['parent_provider_uuid'],
        root=record['root_provider_uuid'],
        inventories=inventories['inventories'], used=usages['usages'],
        traits=frozenset(traits['traits']))


def _build_host(root: str, members: list[Provider]) -> PlannedHost | None:
    providers = sort_providers_parents_first(members, root)
    if not providers or providers[0].inventories.keys().isdisjoint(
            ('VCPU', 'PCPU', 'MEMORY_MB')):
        return None
    return PlannedHost(providers[0].name, providers)

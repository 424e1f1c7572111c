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

"""Placement's records of the cloud's hosts and servers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aio import catalog
from aio.settings import CloudError
from aio.settings import Settings


@dataclass(frozen=True)
class Provider:
    """A resource provider of Placement."""

    name: str
    uuid: str
    parent: str | None


class PlacementReader:
    """Reads Placement with the rights of the cloud's admin."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.cloud = catalog.connect(settings)

    def placement(self, path: str) -> dict[str, Any]:
        answer = self.cloud.placement.get(path, microversion='1.39')
        if answer.status_code != 200:
            raise CloudError(f'GET {path}: {answer.text}')
        return dict(answer.json())

    def every_provider(self) -> list[Provider]:
        """The trees of all hosts, their roots first."""
        found = [Provider(one['name'], one['uuid'],
                          one['parent_provider_uuid'])
                 for one in self.placement(
                     '/resource_providers')['resource_providers']]
        return sorted(found, key=lambda one: (one.parent or '', one.name))

    def providers(self) -> list[Provider]:
        """The host's root, and its nodes."""
        return self.own(self.every_provider())

    def own(self, every: Sequence[Provider]) -> list[Provider]:
        """Return the providers of the host."""
        name = self.settings.host.name
        roots = [one.uuid for one in every if one.name == name]
        return [one for one in every
                if one.uuid in roots or one.parent in roots]

    def node_provider(self, node: int) -> Provider:
        for one in self.providers():
            if one.name.endswith(f'_NUMA{node}'):
                return one
        raise CloudError(f'Placement has no provider of NUMA node {node}')

    def inventory(self, provider: Provider) -> dict[str, Any]:
        return dict(self.placement(
            f'/resource_providers/{provider.uuid}/inventories')['inventories'])

    def usage(self, provider: Provider) -> dict[str, int]:
        return dict(self.placement(
            f'/resource_providers/{provider.uuid}/usages')['usages'])

    def traits(self, provider: Provider) -> list[str]:
        return sorted(self.placement(
            f'/resource_providers/{provider.uuid}/traits')['traits'])

    def allocations(self, server: Any) -> dict[str, dict[str, int]]:
        """Return the allocations of a server, by name of the provider."""
        names = {one.uuid: one.name for one in self.every_provider()}
        found = self.placement(f'/allocations/{server.id}')['allocations']
        return {names[uuid]: dict(entry['resources'])
                for uuid, entry in found.items()}

    def allocated_nodes(self, server: Any) -> list[int]:
        """Host NUMA nodes on which a server holds bandwidth."""
        return sorted(
            int(name.rpartition('_NUMA')[2])
            for name, resources in self.allocations(server).items()
            if 'CUSTOM_MEM_BW_PCT' in resources)

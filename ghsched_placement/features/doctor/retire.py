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


"""Remove all data about a compute host that ghsched reported to Placement.

This is for a host that returns to the stock driver, which removes nothing that
it has not created. After each step, Placement and both drivers can work with
the tree of providers. Steps that are done are not repeated, so the next run
completes an interrupted one.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import Literal

from ghsched_placement.providers import names
from ghsched_placement.providers.placement_client import PlacementClient
from ghsched_placement.providers.placement_client import PlacementError


@dataclass(frozen=True)
class RetiredProvider:
    """Resource provider in the tree of a compute node.

    :param parent: UUID of the parent; empty for the compute node itself.
    :param classes: resource classes of its inventories.
    :param traits: its traits.
    :param holders: UUIDs of consumers that have allocated ghsched's resource
        classes from it.
    """

    uuid: str
    name: str
    parent: str
    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    holders: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Step:
    """Change of a provider that removes ghsched's data from Placement.

    :param kind: ``move`` gives the provider another parent, ``class`` removes
        one inventory, ``traits`` removes traits, ``delete`` deletes the
        provider.
    :param value: UUID of the new parent, or the name of the resource class, or
        names of the traits.
    """

    kind: Literal['move', 'class', 'traits', 'delete']
    provider: RetiredProvider
    value: tuple[str, ...] = ()

    def __str__(self) -> str:
        name = self.provider.name
        return {'move': f'move {name} below the compute node',
                'class': f'remove the inventory {"".join(self.value)} of '
                         f'{name}',
                'traits': f'remove from {name}: {", ".join(self.value)}',
                'delete': f'delete {name}'}[self.kind]


def plan_retirement(providers: Sequence[RetiredProvider]) -> tuple[Step, ...]:
    """Plan how to remove ghsched's data about a host from Placement.

    The provider of a NUMA node is deleted, unless it has an inventory that
    ghsched has not reported.

    :param providers: all providers in the tree of a compute node.
    :returns: the steps, in the order in which to make them.
    """
    found: list[Step] = []
    root = next((one.uuid for one in providers if not one.parent), '')
    for provider in providers:
        if names.NUMA_NODE_TRAIT in provider.traits and provider.parent:
            found += [Step('move', child, (root,))
                      for child in providers
                      if child.parent == provider.uuid]
            if provider.classes <= names.OUR_CLASSES:
                found.append(Step('delete', provider))
                continue
        found += _make_strip_steps(provider)
    return tuple(found)


def _make_strip_steps(provider: RetiredProvider) -> Iterator[Step]:
    for name in sorted(provider.classes & names.OUR_CLASSES):
        yield Step('class', provider, (name,))
    ours = tuple(sorted(_select_ghsched_traits(provider.traits)))
    if ours:
        yield Step('traits', provider, ours)


def _select_ghsched_traits(traits: Iterable[str]) -> frozenset[str]:
    return frozenset(filter(names.is_ghsched_trait, traits))


def read_provider_tree(client: PlacementClient,
                       name: str) -> tuple[RetiredProvider, ...]:
    """Return all resource providers in the tree of a compute node.

    The result is empty if Placement has no provider of this name.

    :param name: name of the compute node's provider.
    :raises PlacementError: when Placement refuses or does not answer.
    """
    for root in client.get('/resource_providers', [('name', name)])[
            'resource_providers']:
        tree = client.get('/resource_providers', [('in_tree', root['uuid'])])
        return tuple(_read_provider(client, record)
                     for record in tree['resource_providers'])
    return ()


def _read_provider(client: PlacementClient,
                   record: Mapping[str, Any]) -> RetiredProvider:
    uuid = record['uuid']
    classes = frozenset(client.get_inventories(uuid))
    holders = [client.get_usage_by_consumer(uuid, name)
               for name in sorted(classes & names.OUR_CLASSES)]
    return RetiredProvider(
        uuid, record['name'], record['parent_provider_uuid'] or '', classes,
        client.get_traits(uuid), frozenset().union(*holders))


def apply_retirement_step(client: PlacementClient, step: Step) -> None:
    """Make one planned change that removes ghsched's data from Placement.

    If the provider does not exist any more, the step counts as done.

    :raises PlacementError: when Placement refuses or does not answer.
    """
    provider = step.provider
    path = f'/resource_providers/{provider.uuid}'
    try:
        if step.kind == 'move':
            client.move_provider(provider.uuid, provider.name, step.value[0])
        elif step.kind == 'class':
            client.delete(f'{path}/inventories/{step.value[0]}')
        elif step.kind == 'traits':
            now = client.get(f'{path}/traits')
            now['traits'] = sorted(set(now['traits']) - set(step.value))
            client.put(f'{path}/traits', now)
        else:
            client.delete(path)
    except PlacementError as error:
        if error.code != 404:
            raise PlacementError(f'{step}: {error}', error.code) from error

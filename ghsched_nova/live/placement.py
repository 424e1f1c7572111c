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

"""The memory bandwidth that Placement holds for a guest."""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from typing import Any

from ghsched_nova.live import errors
from ghsched_placement import change
from ghsched_placement import lack
from ghsched_placement import names
from ghsched_placement.placement_client import PlacementClient
from ghsched_placement.placement_client import PlacementError
from ghsched_placement.policy import GuestPolicy
from ghsched_placement import tree

#: How often a change that met another one is tried in all.
_TRIES = 5


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """What Placement refuses is a change that is refused."""
    try:
        yield
    except PlacementError as error:
        raise errors.Refused(str(error)) from error


#: More NUMA nodes than a host has.
_NODES = 256


class Shares:
    """Allocation of one consumer on host NUMA nodes.

    :param client: with ``get`` and ``put``, as Nova's report client has them.
    :param host: provider of the compute node, of which each guest that is
        there holds something.
    :param nodes: host NUMA node of each provider that may have a share.
    :param classes: resource classes that are read and written.
    :param left: other providers with a share that is none of this class's
        business.
    """

    def __init__(self, client: Any, consumer: str, host: str,
                 nodes: Mapping[str, int], classes: Collection[str],
                 left: frozenset[str] = frozenset()) -> None:
        self._client = PlacementClient(client)
        self._consumer = consumer
        self._host = host
        self._nodes = nodes
        self._classes = classes
        self._left = left

    @_refusing()
    def held(self) -> dict[tuple[str, str], int]:
        """Return what is held of each node and class.

        :raises Gone: when Placement holds nothing of the host for the
            consumer.
        :raises Refused: when it cannot be asked, or when the guest holds
            something of a node that it does not run on.
        """
        now = self._held()
        strange = change.find_other_providers(now, self._nodes) - self._left
        if strange:
            held = ', '.join(sorted({lack.WORDS[name] for provider, name in now
                                     if provider in strange}))
            raise errors.Refused(
                f'Placement holds {held} for the guest on providers that are '
                f'none of its host NUMA nodes: {sorted(strange)}; put its '
                'allocation right first')
        return {(provider, name): now.get((provider, name), 0)
                for provider in self._nodes for name in self._classes}

    @_refusing()
    def put(self, wanted: change.Amounts) -> bool:
        """Have Placement hold these amounts, in one request.

        All else in the allocation stays. A change that meets another one of
        the same consumer, or of a provider, is made again on top of that.

        :returns: whether anything had to be written.
        :raises Gone: when Placement holds nothing of the host for the
            consumer.
        :raises Refused: when a node has too little left, or Placement cannot
            be asked.
        """
        for _ in range(_TRIES):
            body = change.make_allocation_body(self._get(), wanted)
            if body is None:
                return False
            try:
                self._client.put(self._url, body)
                return True
            except PlacementError as error:
                if not error.concurrent:
                    # Better than what Placement says: which node lacks it.
                    self.check_room(wanted)
                    raise
        raise errors.Refused(
            f'the allocation of the guest was changed by somebody else '
            f'{_TRIES} times while it was to be changed here; try again')

    @_refusing()
    def check_room(self, wanted: change.Amounts) -> None:
        """Whether :meth:`put` would find enough left, as of now.

        :raises Refused: naming each node and class that has not.
        """
        short = list(self._shortages(wanted))
        if short:
            raise errors.Refused('; '.join(short))

    @_refusing()
    def check_traits(self, compute_node_uuid: str,
                     policy: GuestPolicy) -> None:
        """Whether the host tells Placement that it can hold a policy.

        :raises Refused: naming the key that it cannot hold.
        """
        traits = self._client.traits(compute_node_uuid)
        needed = GuestPolicy(nodes=policy.nodes).capabilities()
        for capability in sorted(needed):
            trait = names.CAPABILITY_TRAITS[capability]
            if trait not in traits:
                key = lack.HELD_BY_KEY[capability]
                raise errors.Refused(
                    f'{key.extra_spec}: the host of the guest cannot hold '
                    f'it (its provider lacks the trait {trait})')

    @property
    def _url(self) -> str:
        return f'/allocations/{self._consumer}'

    def _get(self) -> dict[str, Any]:
        answer = self._client.get(self._url)
        if self._host not in answer['allocations']:
            raise errors.Gone('Placement holds nothing of its host for the '
                              'guest; was it deleted, or evacuated?')
        return answer

    def _held(self) -> dict[tuple[str, str], int]:
        return change.select_amounts(self._get()['allocations'], self._classes)

    def _shortages(self, wanted: change.Amounts) -> Iterator[str]:
        now = self._held()
        for (provider, name), amount in wanted.items():
            own = now.get((provider, name), 0)
            if amount <= own:
                continue
            record = self._client.inventories(provider).get(name)
            used = self._client.usages(provider).get(name, 0)
            left = tree.free(record, used - own) if record else 0
            if left < amount:
                what = lack.ON_NODE[name]
                percent = ' %' if what.startswith('%') else ''
                yield (f'host NUMA node {self._nodes[provider]} has {left} '
                       f'{what} left for the guest, with what it holds '
                       f'already, {amount}{percent} are asked for')


def nodes_of(compute_node_uuid: str,
             host_nodes: Sequence[int]) -> dict[str, int]:
    """Host NUMA node by provider."""
    return {names.numa_provider_uuid(compute_node_uuid, node): node
            for node in host_nodes}


def providers_of(compute_nodes: Iterable[str]) -> frozenset[str]:
    """All providers that may have a share on compute nodes.

    :param compute_nodes: UUIDs.
    """
    return frozenset(names.numa_provider_uuid(uuid, node)
                     for uuid in compute_nodes for node in range(_NODES))

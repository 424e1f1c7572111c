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

"""Reads and changes a guest's allocation on host NUMA nodes in Placement."""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
from typing import Any

import tenacity

from ghsched_nova.base import action_errors as errors
from ghsched_placement.base import retries
from ghsched_placement.features.live_change import change
from ghsched_placement.fit import lack
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.resources import KEY_OF_CAPABILITY
from ghsched_placement.providers import names
from ghsched_placement.providers.placement_client import PlacementClient
from ghsched_placement.providers.placement_client import PlacementError
from ghsched_placement.providers import tree

#: Attempts to write an allocation that others change at the same time (409).
_ATTEMPTS = 5


@contextlib.contextmanager
def _convert_errors_to_refusals() -> Iterator[None]:
    """Within this context, raise Refused in place of PlacementError.

    A caller that changes or moves a guest handles Refused.
    """
    try:
        yield
    except PlacementError as error:
        raise errors.Refused(str(error)) from error


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, PlacementError) and error.concurrent


#: Maximum number of NUMA nodes of a host.
_NODES = 256


class GuestAllocation:
    """Client of a guest's allocation in Placement on some host NUMA nodes.

    :param client: Nova's report client, of which ``get`` and ``put`` are used.
    :param consumer: UUID of the guest.
    :param host: UUID of the compute node's root provider. A guest without an
        allocation on this provider is not on the host.
    :param nodes: host NUMA node of each provider that is read and written.
    :param classes: resource classes that are read and written.
    :param other_providers: other providers on which the consumer may have
        allocations, for example after an evacuation.
    """

    def __init__(self, client: Any, consumer: str, host: str,
                 nodes: Mapping[str, int], classes: Collection[str],
                 other_providers: frozenset[str] = frozenset()) -> None:
        self._client = PlacementClient(client)
        self._consumer = consumer
        self._host = host
        self._nodes = nodes
        self._classes = classes
        self._other_providers = other_providers

    @_convert_errors_to_refusals()
    def read_allocated_amounts(self) -> dict[tuple[str, str], int]:
        """Read a guest's allocated amounts by provider and resource class.

        :raises GuestGone: if the consumer has no allocation on the host.
        :raises Refused: if Placement cannot be read, or if the consumer has an
            allocation on a NUMA node that it does not run on.
        """
        now = self._read_amounts()
        strange = (change.find_unlisted_providers(now, self._nodes)
                   - self._other_providers)
        if strange:
            held = ', '.join(sorted({lack.WORDS[name] for provider, name in now
                                     if provider in strange}))
            raise errors.Refused(
                f'in Placement the guest has {held} allocated on providers '
                'that are not NUMA nodes on which it runs: '
                f'{sorted(strange)}; correct its allocation first')
        return {(provider, name): now.get((provider, name), 0)
                for provider in self._nodes for name in self._classes}

    @_convert_errors_to_refusals()
    def write_amounts(self, amounts: change.Amounts) -> bool:
        """Change the amounts in a guest's allocation, in one request.

        The rest of the allocation is unchanged. After a conflict with another
        change (409) the allocation is read again and the write is retried.

        :param amounts: new amount by provider and resource class.
        :returns: whether the allocation was changed.
        :raises GuestGone: if the consumer has no allocation on the host.
        :raises Refused: if a NUMA node has too little left, or Placement
            cannot be read or written.
        """
        try:
            return retries.call_with_retries(
                functools.partial(self._try_write, amounts),
                tenacity.retry_if_exception(_is_conflict),
                tenacity.stop_after_attempt(_ATTEMPTS))
        except PlacementError as error:
            if error.concurrent:
                raise errors.Refused(
                    f'the allocation of the guest was changed by other '
                    f'requests {_ATTEMPTS} times at the same time; try again'
                ) from error
            # Names the NUMA nodes, unlike Placement's error.
            self.check_capacity(amounts)
            raise

    def _try_write(self, amounts: change.Amounts) -> bool:
        body = change.make_changed_allocation_body(self._get(), amounts)
        if body is not None:
            self._client.put(self._url, body)
        return body is not None

    @_convert_errors_to_refusals()
    def check_capacity(self, amounts: change.Amounts) -> None:
        """Refuse amounts for which Placement has too little free capacity.

        :param amounts: new amount of the guest by provider and resource class.
        :raises Refused: naming each NUMA node and class with too little left.
        """
        short = list(self._shortages(amounts))
        if short:
            raise errors.Refused('; '.join(short))

    @_convert_errors_to_refusals()
    def check_policy_traits(
        self, compute_node_uuid: str, policy: GuestPolicy
    ) -> None:
        """Refuse a policy that needs Placement traits the compute node lacks.

        :raises Refused: naming the key of the policy and the trait.
        """
        traits = self._client.get_traits(compute_node_uuid)
        needed = GuestPolicy(
            nodes=policy.nodes, classes=policy.classes
        ).get_needed_capabilities()
        for capability in sorted(needed):
            trait = names.CAPABILITY_TRAITS[capability]
            if trait not in traits:
                key = KEY_OF_CAPABILITY[capability]
                raise errors.Refused(
                    f'{key.extra_spec}: the host of the guest cannot enforce '
                    f'it (its provider lacks the trait {trait})')

    @property
    def _url(self) -> str:
        return f'/allocations/{self._consumer}'

    def _get(self) -> dict[str, Any]:
        answer = self._client.get(self._url)
        if self._host not in answer['allocations']:
            raise errors.GuestGone(
                'the guest has no allocation in Placement on its host; it '
                'may have been deleted or evacuated')
        return answer

    def _read_amounts(self) -> dict[tuple[str, str], int]:
        return change.select_allocation_amounts(self._get()['allocations'],
                                                self._classes)

    def _shortages(self, wanted: change.Amounts) -> Iterator[str]:
        now = self._read_amounts()
        for (provider, name), amount in wanted.items():
            own = now.get((provider, name), 0)
            if amount <= own:
                continue
            record = self._client.get_inventories(provider).get(name)
            used = self._client.get_usages(provider).get(name, 0)
            left = tree.compute_free_amount(record,
                                            used - own) if record else 0
            if left < amount:
                what = lack.ON_NODE[name]
                percent = ' %' if what.startswith('%') else ''
                yield (f'host NUMA node {self._nodes[provider]} has {left} '
                       f'{what} left for the guest (its present allocation '
                       f'included), but {amount}{percent} are requested')


def map_numa_providers_to_nodes(
    compute_node_uuid: str, host_nodes: Sequence[int]
) -> dict[str, int]:
    """Return the host NUMA node of each NUMA provider of a compute node.

    :returns: host NUMA node by UUID of the provider.
    """
    return {names.make_numa_provider_uuid(compute_node_uuid, node): node
            for node in host_nodes}


def list_possible_numa_providers(
    compute_nodes: Iterable[str],
) -> frozenset[str]:
    """Return the UUIDs of all NUMA providers that compute nodes can have.

    The UUIDs are computed from the compute node's UUID and node numbers.

    :param compute_nodes: UUIDs of the compute nodes.
    """
    return frozenset(names.make_numa_provider_uuid(uuid, node)
                     for uuid in compute_nodes for node in range(_NODES))

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

"""Claims of a request in Placement, released if the request fails.

nova-conductor buries a server whose request failed with an unexpected error,
and leaves its allocations in Placement.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any

from oslo_log import log as logging

from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import scheduler

LOG = logging.getLogger(__name__)

seam = registry.make_seam_decorator(registry.SCHEDULER)


@dataclass(frozen=True)
class _Claim:
    """Claim of a server's resources in Placement.

    :param client: Placement client with which it was claimed.
    :param allocations: ``{provider: {'resources': {class: amount}}}`` that the
        claim adds.
    :param certain: whether Placement has confirmed the claim.
    """

    client: Any
    allocations: Mapping[str, Any]
    certain: bool


@dataclass
class _Group:
    """Claims of one search, sent to Placement with that of the last server.

    :ivar servers: number of servers that are claimed together; 1 if each is
        claimed by itself.
    :ivar waiting: allocation candidates that are not claimed yet, by consumer.
    :ivar was_refused: whether Placement has refused to claim several servers
        of this request together.
    :ivar is_lost: whether a server was refused that Nova considers claimed, so
        that the search must fail.
    """

    servers: int = 1
    waiting: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    was_refused: bool = False
    is_lost: bool = False


class Claims:
    """Claims in Placement of the request that this thread schedules."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the claims recorded for the thread's earlier request."""
        self._claims: dict[str, _Claim] = {}    # the last, by consumer
        self._group = _Group()

    def begin_search(self, servers: int) -> None:
        """Begin a search; the claims of all its servers are sent together.

        Placement takes about as long for the claims of several servers as for
        that of one. They are sent with the claim of the last server. After
        a refusal, each server of the request is claimed by itself.

        :param servers: number of servers that the search places.
        """
        was_refused = self._group.was_refused
        self._group = _Group(1 if was_refused else servers,
                             was_refused=was_refused)

    def claim_resources(self, client: Any, context: Any, consumer: str,
                        request: Mapping[str, Any], *args: Any,
                        **kwargs: Any) -> bool:
        """Claim the resources of a server in Placement and record the claim.

        If the request fails later, :meth:`release_claims` removes the recorded
        claims. The parameters and the result are those of Nova's
        ``SchedulerReportClient.claim_resources``.
        """
        group = self._group
        if group.is_lost:
            return False
        if group.servers < 2 or not scheduler.has_ghsched_class(request):
            return self._claim_one(client, context, consumer, request, *args,
                                   **kwargs)
        group.waiting[consumer] = request
        if len(group.waiting) < group.servers:
            return True
        group.servers = 1
        if self._claim_all(client, context, group.waiting, *args, **kwargs):
            return True
        group.was_refused = True
        for server, its_request in group.waiting.items():
            if not self._claim_one(client, context, server, its_request,
                                   *args, **kwargs):
                # Nova tries the last server on other hosts.
                group.is_lost = server != consumer
                return False
        return True

    def _claim_all(self, client: Any, context: Any,
                   requests: Mapping[str, Mapping[str, Any]], *args: Any,
                   **kwargs: Any) -> bool:
        """Return whether several servers were claimed by one request."""
        new = {consumer: _Claim(client, request['allocations'], certain=False)
               for consumer, request in requests.items()}
        self._claims.update(new)
        is_claimed = scheduler.claim_all_or_none(client, context, requests,
                                                 *args, **kwargs)
        for consumer, claim in new.items():
            if is_claimed:
                self._claims[consumer] = replace(claim, certain=True)
            else:
                del self._claims[consumer]
        return is_claimed

    def _claim_one(self, client: Any, context: Any, consumer: str,
                   request: Mapping[str, Any], *args: Any,
                   **kwargs: Any) -> bool:
        wanted = request['allocations']
        self._claims[consumer] = _Claim(client, wanted, certain=False)
        added = scheduler.claim_resources(client, context, consumer, request,
                                          *args, **kwargs)
        if added:
            self._claims[consumer] = _Claim(
                client, {uuid: wanted[uuid] for uuid in added}, certain=True)
        else:
            del self._claims[consumer]
        return bool(added)

    @seam('nova.scheduler.client.report.SchedulerReportClient.'
          'remove_resources_from_instance_allocation',
          ('self', 'context', 'consumer_uuid', 'resources'))
    def release_claims(self, context: Any) -> None:
        """Remove the allocations that a failed scheduling request has claimed.

        Errors are logged and not raised.
        """
        for consumer, claim in self._claims.items():
            try:
                if claim.certain or _has_only_claimed_allocations(
                        context, consumer, claim):
                    claim.client.remove_resources_from_instance_allocation(
                        context, consumer, claim.allocations)
                    LOG.info('ghsched: server %(server)s: removed the '
                             'allocations of a failed scheduling request from '
                             'Placement',
                             {'server': consumer})
            except Exception as error:
                LOG.error('ghsched: server %(server)s: cannot remove the '
                          'allocations of a failed scheduling request from '
                          'Placement: %(error)s; check "openstack resource '
                          'provider allocation show %(server)s" for leftover '
                          'allocations',
                          {'server': consumer, 'error': error})
        self.reset()


def _has_only_claimed_allocations(context: Any, consumer: str,
                                  claim: _Claim) -> bool:
    """Return whether a server has allocations, all from providers of a claim.

    If Placement's response to the claim was lost, this shows that the claim
    succeeded. Allocations of other providers are from another claim.

    :param consumer: UUID of the server.
    :param claim: the claim, with the resource providers that it names.
    """
    held = claim.client.get_allocs_for_consumer(
        context, consumer)['allocations']
    return bool(held) and held.keys() <= claim.allocations.keys()

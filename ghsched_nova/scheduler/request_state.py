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

"""State of the request that a thread of nova-scheduler schedules."""

from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Mapping
import threading
from typing import Any
from urllib import parse

from oslo_log import log as logging

from ghsched_nova.scheduler.claims import Claims
from ghsched_nova.scheduler import resource_classes
from ghsched_placement.fit import lack
from ghsched_placement.providers.placement_client import PlacementClient

LOG = logging.getLogger(__name__)


class RequestState(threading.local):
    """State of the request that this thread schedules.

    :ivar claims: claims in Placement of all searches for the request.
    :param known_classes: resource classes that Placement has, for all threads:
        with eventlet, each request has a thread of its own.
    :ivar lost: whether a claim failed because another request was faster.
    :ivar query: last query for allocation candidates; empty before the first.
    :ivar hosts: UUIDs of compute nodes in Placement's answer.
    :ivar filtered: number of hosts before and after each filter, for the last
        instance.
    :ivar shortages: reasons of the last refusal; empty if unknown.
    :ivar summaries: provider summaries of Placement's answer, by UUID.
    :ivar answers: Placement's answers to other questions since the request
        began, by question.
    """

    def __init__(self, known_classes: set[str] | None = None) -> None:
        self.claims = Claims()
        self.known_classes = set() if known_classes is None else known_classes
        self.answers: dict[Hashable, Any] = {}
        self.reset()

    def begin_request(self) -> None:
        """Forget the claims and the answers of earlier requests."""
        self.claims.reset()
        self.answers = {}

    def ask_once(self, question: Hashable, ask: Callable[[], Any]) -> Any:
        """Return the answer to a question, which is asked once per request.

        :param ask: asks Placement.
        """
        if question not in self.answers:
            self.answers[question] = ask()
        return self.answers[question]

    def reset(self) -> None:
        self.lost = False
        self.query: list[tuple[str, str]] = []
        self.hosts: frozenset[str] = frozenset()
        self.filtered: list[lack.FilterResult] = []
        self.shortages: list[lack.Lack] = []
        self.summaries: Mapping[str, Any] = {}

    def subtract_claim(self, allocations: Mapping[str, Any]) -> None:
        """Count the resources of a claim as used in Placement's answer.

        The next instance of a multi-create request is placed by that answer.

        :param allocations: ``{provider: {'resources': {class: amount}}}``.
        """
        for provider, allocation in allocations.items():
            known = self.summaries.get(provider, {}).get('resources', {})
            for name, amount in allocation['resources'].items():
                if name in known:
                    known[name]['used'] += amount

    def reset_filters(self) -> None:
        self.filtered = []

    def record_filter(self, name: str, before: int, after: int) -> None:
        self.filtered.append(lack.FilterResult(name, before, after))

    @property
    def removing_filters(self) -> set[str]:
        """Names of the filters that removed hosts for the last request."""
        return {one.name for one in self.filtered if one.after < one.before}


class RecordingClient:
    """A Placement client that records the query and the claims of a request.
    """

    def __init__(self, client: Any, seen: RequestState) -> None:
        self._client, self._seen = client, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def claim_resources(self, context: Any, consumer: str, request: Any,
                        *args: Any, **kwargs: Any) -> bool:
        """Claim a server's resources in Placement, and record a failed claim.

        A claim fails if another request has taken the resources first.
        """
        claimed = self._seen.claims.claim_resources(
            self._client, context, consumer, request, *args, **kwargs)
        if claimed:
            self._seen.subtract_claim(request['allocations'])
        else:
            self._seen.lost = True
        return claimed

    def get_allocation_candidates(self, context: Any,
                                  resources: Any) -> Any:
        query = parse.parse_qsl(resources.to_querystring())
        # Nova may ask once more, with VCPU in place of PCPU.
        self._seen.query = self._seen.query or query
        unknown = resource_classes.find_unknown_class(
            PlacementClient(self._client), query, self._seen.known_classes)
        if unknown:
            LOG.info('ghsched: no host has reported resource class %(name)s '
                     'to Placement yet, so no host can be chosen',
                     {'name': unknown})
            return [], {}, None
        found = self._client.get_allocation_candidates(context, resources)
        if not found or found[0] is None:
            # Nova fails on that in the answer for VCPU in place of PCPU.
            return [], {}, None
        self._seen.hosts |= {summary['root_provider_uuid']
                             for summary in found[1].values()}
        return found

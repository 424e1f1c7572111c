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

"""Refusals of whole searches that nova-scheduler repeats without a search.

A refusal is repeated only while its proof holds, which is checked again for
each request: Placement is asked again for the resources that no host had,
or else the last reports of all hosts have too few CPUs or too little memory.
So the cache does not need to know which events free resources.
"""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
import hashlib
from typing import Any
from typing import TypeAlias

from oslo_serialization import jsonutils

from ghsched_nova.features.index.aged_cache import AgedCache
from ghsched_nova.features.index.host_capacity import RequestNeed

#: Parameters of a query for allocation candidates.
Query: TypeAlias = Sequence[tuple[str, str]]

#: Seconds for which a refusal is cached. Numbers in its reason, such as how
#: many hosts a filter removed, may be that old.
MAX_AGE = 60.0

#: Maximum number of cached refusals.
_MAX_REFUSALS = 256

#: Fields of a RequestSpec that differ between requests for the same resources.
_OF_ONE_REQUEST = frozenset({'instance_uuid', 'request_id', 'requester_id',
                             'id', 'nova_object.changes'})


@dataclass(frozen=True)
class _Refusal:
    """Refusal of a request for which a search of all hosts found no host.

    :param reason: reason why no host was found.
    :param queries: queries without an answer, one for each part of the reason;
        empty if the reports of the hosts prove the refusal.
    """

    reason: str
    queries: Sequence[Query]


class RefusalCache:
    """Cache of requests for which no host was found; thread-safe.

    :param may_have_room: function that returns whether a host may have enough
        CPUs and memory for a request.
    """

    def __init__(self, may_have_room: Callable[[RequestNeed], bool]) -> None:
        self._may_have_room = may_have_room
        self._refusals = AgedCache[str, _Refusal](MAX_AGE, _MAX_REFUSALS)

    def find_refusal_reason(self, spec: Any, need: RequestNeed,
                            has_candidates: Callable[[list[tuple[str, str]]],
                                                     bool]) -> str | None:
        """Return the cached reason why an equal request was refused.

        Returns None if none was refused, or if the reason may hold no more.

        :param has_candidates: function that returns whether Placement has an
            allocation candidate for a query.
        """
        known = self._refusals.get_fresh_value(make_request_signature(spec))
        if known is None:
            return None
        holds = (not any(has_candidates([*query]) for query in known.queries)
                 if known.queries else not self._may_have_room(need))
        return known.reason if holds else None

    def add_refusal(self, spec: Any, reason: str, queries: Sequence[Query],
                    is_proven: bool) -> None:
        """Cache the reason why a search of all hosts refused a request.

        A refusal without a proof that can be checked again is not cached.

        :param reason: text that explains why no host fits.
        :param queries: for each part of the reason the query that proves it;
            empty if none does.
        :param is_proven: whether the reports of the hosts, when the search
            began, had too few CPUs or too little memory for the request.
        """
        proofs = queries if all(queries) else ()
        if not proofs and not is_proven:
            return
        self._refusals.set_value(make_request_signature(spec),
                                 _Refusal(reason, proofs))

    def clear(self) -> None:
        """Drop all cached refusals of scheduling requests."""
        self._refusals.clear()


def make_request_signature(spec: Any) -> str:
    """Return a hash of a request without its identifiers.

    Requests for the same resources have the same hash.
    """
    return hashlib.sha256(
        jsonutils.dump_as_bytes(_remove_request_ids(spec.obj_to_primitive()),
                                sort_keys=True)).hexdigest()


def _remove_request_ids(document: Any) -> Any:
    if isinstance(document, dict):
        return {
            name: _remove_request_ids(value)
            for name, value in document.items() if name not in _OF_ONE_REQUEST
        }
    if isinstance(document, list):
        return [_remove_request_ids(value) for value in document]
    return document

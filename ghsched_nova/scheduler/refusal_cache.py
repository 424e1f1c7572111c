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

"""Refusals of whole searches that nova-scheduler repeats from memory."""

from dataclasses import dataclass
import hashlib
import threading
import time
from typing import Any

from oslo_serialization import jsonutils

from ghsched_nova.scheduler.host_capacity import Need
from ghsched_nova.scheduler.host_index import Index

#: Minimum and maximum seconds for which a refusal is cached. It is dropped
#: earlier if hosts gain free resources and may fit the request.
AGE = 5.0, 300.0

#: Ratio of the time for which a refusal is cached to the duration of the
#: search. Repeated requests therefore take at most this fraction of a
#: scheduler's time.
SEARCH_TIMES = 30

#: Maximum number of cached refusals.
_MAX_REFUSALS = 256

#: Fields of a RequestSpec that differ between requests for the same resources.
_OF_ONE_REQUEST = frozenset({'instance_uuid', 'request_id', 'requester_id',
                             'id', 'nova_object.changes'})


@dataclass(frozen=True)
class _Refusal:
    """Refusal of a request for which a search of all hosts found no host.

    :param until: time at which the refusal expires, in seconds of the
        monotonic clock.
    :param gains: value of :attr:`Index.gains` when the search began.
    :param reason: reason why no host was found.
    """

    until: float
    gains: int
    reason: str


class RefusalCache:
    """Cache of requests for which no host was found; thread-safe.

    :param index: tells which hosts have gained room since a refusal.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._refusals: dict[str, _Refusal] = {}

    def find_refusal_reason(self, spec: Any, need: Need) -> str | None:
        """Return the cached reason why an equal request was refused.

        Returns None if none was refused. A cached refusal is dropped once
        hosts may have gained enough free resources for the request.
        """
        name = make_request_signature(spec)
        with self._lock:
            known = self._refusals.get(name)
        if known is None or time.monotonic() > known.until or (
                self._index.may_fit_since(need, known.gains)):
            return None
        return known.reason

    def add_refusal(self, spec: Any, need: Need, gains: int, seconds: float,
                    reason: str) -> None:
        """Cache the reason why a search of all hosts refused a request.

        Requests with bandwidth bursts are not cached: a host may offer more
        bursts after a measurement, and the index of hosts does not see that.

        :param need: resources that the request needs on one host.
        :param gains: value of :attr:`Index.gains` when the search began. The
            refusal is dropped when hosts that gained free resources later may
            fit the request.
        :param seconds: duration of the search. A refusal by a slow search is
            cached longer.
        :param reason: text that explains why no host fits.
        """
        if need.needs_bursts:
            return
        name = make_request_signature(spec)
        least, most = AGE
        found = _Refusal(
            time.monotonic() + min(max(least, SEARCH_TIMES * seconds), most),
            gains, reason)
        with self._lock:
            self._refusals.pop(name, None)
            self._refusals[name] = found
            if len(self._refusals) > _MAX_REFUSALS:
                del self._refusals[next(iter(self._refusals))]

    def clear(self) -> None:
        """Drop all cached refusals of scheduling requests."""
        with self._lock:
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

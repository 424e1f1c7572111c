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

"""nova-scheduler's way by the index of hosts, beside the whole search.

Whatever is not for the index, or finds nothing by it, is searched for in the
whole cloud as before; so a refusal always comes from a whole search.
"""

from collections.abc import Callable
from dataclasses import dataclass
import hashlib
import threading
import time
from typing import Any

from nova import exception
from oslo_log import log as logging
from oslo_serialization import jsonutils

from ghsched_nova import compat
from ghsched_nova.scheduler.host_index import Index
from ghsched_nova.scheduler.host_index import Need
from ghsched_nova.scheduler import index_feed
from ghsched_nova.scheduler import index_metrics
from ghsched_nova.scheduler import index_search
from ghsched_nova.scheduler import request_filter
from ghsched_placement import policy as policies
from ghsched_placement.request import LOCALITIES

LOG = logging.getLogger(__name__)

#: Parsed NUMA topologies of hosts that are kept.
_TOPOLOGIES = 512

#: Seconds for which a refusal holds at least and at most, while no host that
#: seems to have room has got more.
REFUSAL_AGE = 5.0, 300.0

#: How many times as long as its search took a refusal holds: refusing the
#: same again and again takes no more than this part of a scheduler's time.
REFUSAL_TIMES = 30

#: Refusals that are kept.
_REFUSALS = 256

#: Seconds between two lines about the use of the index.
_LOG_EVERY = 60.0

#: What differs between two requests for the same.
_OF_ONE_REQUEST = frozenset({'instance_uuid', 'request_id', 'requester_id',
                             'id', 'nova_object.changes'})


@dataclass(frozen=True)
class _Refusal:
    """A whole search that was in vain.

    :ivar until: when it is forgotten, of the monotonic clock.
    :ivar gains: of the index when the search began.
    """

    until: float
    gains: int
    reason: str


class _Current(threading.local):
    """The search of this thread."""

    search: index_search.Search | None = None


class IndexedScheduler:
    """The index, for one scheduler manager.

    :param manager: ``nova.scheduler.host_manager.HostManager``.
    """

    def __init__(self, manager: Any) -> None:
        compat.cache_host_topologies(_TOPOLOGIES)
        self.index = Index()
        self.feed = index_feed.Feed(self.index)
        self._manager = manager
        self._current = _Current()
        self._refusals: dict[str, _Refusal] = {}
        self._counts = {'hits': 0, 'fallbacks': 0, 'others': 0,
                        'remembered': 0}
        self._logged = time.monotonic()
        self._metrics = index_metrics.Writer(
            compat.config().ghsched.scheduler_metrics_directory)

    @property
    def search(self) -> index_search.Search | None:
        """What this thread is looking for by the index now."""
        return self._current.search

    def need(self, context: Any, spec: Any, instances: Any) -> Need | None:
        """What a request takes, when the index is for it; see need_of."""
        try:
            need = index_search.need_of(
                spec, instances,
                compat.config().ghsched.bandwidth_accounting)
            if need is not None:
                self.feed.refresh(context, self._manager.enabled_cells,
                                  compat.unavailable_hosts)
                if len(self.index.hosts) < (
                        compat.config().ghsched.scheduler_index_hosts):
                    need = None
        except policies.PolicyError:
            need = None
        except Exception:
            LOG.exception('ghsched: the index of hosts cannot be used')
            need = None
        if need is None:
            self._count('others')
        return need

    def select(self, spec: Any, need: Need,
               run: Callable[[Any], Any]) -> Any:
        """Selections by the index; None when it has found nothing.

        :param run: schedules a copy of the request.
        """
        self.index.release(spec.instance_uuid)
        search = index_search.Search(spec, need)
        try:
            while search.batches < index_search.BATCHES:
                found = self._once(search, spec, run)
                if found is not None:
                    self._count('hits')
                    return found
                if not search.states:
                    break
        except index_search.NotForIndex as reason:
            LOG.debug('ghsched: not by the index: %s', reason)
        finally:
            self._current.search = None
        self._count('fallbacks')
        return None

    def _once(self, search: index_search.Search, spec: Any,
              run: Callable[[Any], Any]) -> Any:
        search.spec, search.asked = spec.obj_clone(), False
        search.states = {}
        policy = request_filter.policy_of(spec)
        nearest = (request_filter.Try(LOCALITIES[0])
                   if policy and policy.vfs else None)
        request_filter.set_try(search.spec, nearest, {})
        self._current.search = search
        try:
            return run(search.spec)
        except exception.NoValidHost:
            self.index.refuse(search.states, search.need, time.monotonic())
            return None

    def candidates(self, client: Any, context: Any, resources: Any) -> Any:
        """In place of the client's ``get_allocation_candidates``.

        :raises NotForIndex: for every error, too: nothing is claimed yet.
        """
        assert self.search is not None  # noqa: S101
        try:
            return index_search.candidates(
                self.search, self.index, client, self._manager, context,
                resources)
        except index_search.NotForIndex:
            raise
        except Exception as error:
            LOG.exception('ghsched: the index of hosts has failed')
            raise index_search.NotForIndex(repr(error)) from error

    def claimed(self, selections: Any, spec: Any, need: Need) -> None:
        """Note what was placed, whichever way."""
        (chosen, *_alternates), = selections
        self.index.claim(chosen.compute_node_uuid, spec.instance_uuid, need,
                         time.monotonic())

    # -- refusals -------------------------------------------------------------

    def check(self, spec: Any, need: Need) -> None:
        """Refuse at once what has just been refused.

        :raises nova.exception.NoValidHost: with the reason of then.
        """
        known = self._refusals.get(signature(spec))
        if known is None or time.monotonic() > known.until:
            return
        if not self.index.may_fit_since(need, known.gains):
            self._count('remembered')
            raise exception.NoValidHost(reason=known.reason)

    def refused(self, spec: Any, need: Need, gains: int, took: float,
                reason: str) -> None:
        """Keep a refusal of the whole search.

        Not of a guest with bursts, of which hosts offer more when they have
        measured that they can.

        :param gains: of the index when the search began.
        :param took: seconds of the search.
        """
        if need.unreported:
            return
        least, most = REFUSAL_AGE
        self._refusals.pop(signature(spec), None)
        self._refusals[signature(spec)] = _Refusal(
            time.monotonic() + min(max(least, REFUSAL_TIMES * took), most),
            gains, reason)
        if len(self._refusals) > _REFUSALS:
            del self._refusals[next(iter(self._refusals))]

    def forget_refusals(self) -> None:
        """Something has changed that no host reports: aggregates."""
        self._refusals.clear()

    # -- for the admin --------------------------------------------------------

    def _count(self, what: str) -> None:
        self._counts[what] += 1
        now = time.monotonic()
        self._write_metrics()
        if now - self._logged >= _LOG_EVERY:
            self._logged = now
            LOG.info(
                'ghsched: index of %(hosts)d hosts, looked at %(age).1f s '
                'ago, all of them %(rebuilt)d times; by the index '
                '%(hits)d requests, by it in vain %(fallbacks)d, not for it '
                '%(others)d, refused from memory %(remembered)d',
                {'hosts': len(self.index.hosts), 'age': self.feed.age,
                 'rebuilt': self.feed.rebuilt, **self._counts})

    def _write_metrics(self) -> None:
        figures = self._metrics.figures
        figures.counts, figures.hosts = self._counts, len(self.index.hosts)
        figures.rebuilt = self.feed.rebuilt
        figures.looked = time.time() - self.feed.age
        self._metrics.write()


def signature(spec: Any) -> str:
    """The same for requests that ask for the same."""
    return hashlib.sha256(jsonutils.dump_as_bytes(
        _common(spec.obj_to_primitive()), sort_keys=True)).hexdigest()


def _common(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: _common(value) for name, value in document.items()
                if name not in _OF_ONE_REQUEST}
    if isinstance(document, list):
        return [_common(value) for value in document]
    return document

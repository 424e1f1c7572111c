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

"""Scheduling by the index of hosts, before a search of all hosts.

If the index does not support a request, or finds no host, all hosts of the
cloud are searched. So a request is refused only after a search of all hosts.

After resources are claimed in Placement, no function of this module raises an
error: the request would fail while its resources stay allocated.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import threading
import time
from typing import Any

from nova import exception
from oslo_log import log as logging

from ghsched_nova.features.index import cloud_memory
from ghsched_nova.features.index import derived_candidates
from ghsched_nova.features.index.host_capacity import RequestNeed
from ghsched_nova.features.index.host_index import Index
from ghsched_nova.features.index import index_feed
from ghsched_nova.features.index import index_metrics
from ghsched_nova.features.index import index_search
from ghsched_nova.features.index import nova_seams
from ghsched_nova.features.index.refusal_cache import RefusalCache
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import request_filter
from ghsched_nova.scheduler.select_call import NoHostFits
from ghsched_placement.flavor import policy as policies
from ghsched_placement.query.request import LOCALITIES

LOG = logging.getLogger(__name__)

#: Maximum number of parsed NUMA topologies of hosts that are kept.
_TOPOLOGIES = 512

#: Minimum number of hosts of a cloud for the index to be used. In a smaller
#: cloud a search of all hosts is cheap and weighs all of them.
MIN_HOSTS = 100

#: Minimum seconds between two log lines about the use of the index.
_LOG_EVERY = 60.0


class _Current(threading.local):
    """Search of the index of hosts that this thread runs; None without one."""

    search: index_search.Search | None = None


class IndexedScheduler:
    """Schedules requests by an in-memory index of hosts; thread-safe.

    :param manager: ``nova.scheduler.host_manager.HostManager``.
    """

    def __init__(self, manager: Any) -> None:
        nova_seams.cache_host_topologies(_TOPOLOGIES)
        self.index = Index()
        self.feed = index_feed.Feed(self.index)
        self._manager = manager
        self._current = _Current()
        self._templates = derived_candidates.make_template_cache()
        self._memory = cloud_memory.CloudMemory(self.index)
        self._refusals = RefusalCache(self.may_have_cpus_and_memory)
        self._lock = threading.Lock()
        self._counts = {'hits': 0, 'fallbacks': 0, 'others': 0,
                        'remembered': 0}
        self._last_log = time.monotonic()
        self._metrics = index_metrics.Writer(
            shared.config().ghsched.scheduler_metrics_directory)

    @property
    def current_search(self) -> index_search.Search | None:
        """This thread's current search of the index of hosts, or None.

        The index holds the free resources of all hosts in nova-scheduler's
        memory.
        """
        return self._current.search

    @property
    def memory(self) -> cloud_memory.CloudMemory | None:
        """Answers that explain refusals; None if the index is not up to date.
        """
        is_usable = (len(self.index) >= MIN_HOSTS
                     and self.feed.age < cloud_memory.MAX_AGE
                     and not self.feed.unreadable_hosts)
        return self._memory if is_usable else None

    def compute_need(self, context: Any, spec: Any,
                     instance_uuids: Any) -> RequestNeed | None:
        """Return the resources that a scheduling request needs.

        Also updates the in-memory index of hosts from Nova's database. Returns
        None if the index cannot be used for the request; Nova then searches
        all hosts.
        """
        try:
            need = index_search.compute_request_need(
                spec, instance_uuids,
                shared.config().ghsched.bandwidth_accounting)
            if need is not None:
                self.feed.refresh(context, self._manager.enabled_cells,
                                  nova_seams.list_unavailable_hosts)
                if len(self.index) < MIN_HOSTS:
                    need = None
        except policies.PolicyError:
            need = None
        except Exception:
            LOG.exception('ghsched: cannot use the index of hosts for a '
                          'scheduling request; searching all hosts instead')
            need = None
        if need is None:
            self._count_request_result('others')
        return need

    def select_hosts(self, spec: Any, servers: Sequence[str],
                     need: RequestNeed, schedule_request: Callable[[Any], Any],
                     has_other: bool = False,
                     wanted: int = index_search.BATCH) -> Any:
        """Select hosts for a request with the in-memory index of hosts.

        :param servers: UUIDs of the servers of the request.
        :param need: resources that each server needs on one host.
        :param schedule_request: function that schedules a copy of the request.
        :param has_other: whether the caller can try another number of guest
            NUMA nodes before it searches all hosts.
        :param wanted: number of hosts to find: the one to claim, and
            alternates.
        :returns: the selected hosts; None if the index finds none.
        :raises NoHostFits: if ``has_other``, and the index proves that the
            request fits on no host.
        """
        with _logging_errors('cannot release the earlier claims'):
            for server in servers:
                self.index.drop_claim(server)
        search = index_search.Search(spec, need, wanted, servers=len(servers))
        try:
            while search.may_propose:
                found = self._try_selecting_hosts(search, spec,
                                                  schedule_request)
                if found is not None:
                    self._count_request_result('hits')
                    return found
                if not search.states or len(servers) > 1:
                    break
        except index_search.UnsupportedByIndex as reason:
            LOG.debug('ghsched: the index of hosts does not support a '
                      'scheduling request; searching all hosts instead: %s',
                      reason)
        finally:
            self._current.search = None
        if has_other and not self.may_have_cpus_and_memory(need):
            raise NoHostFits
        self._count_request_result('fallbacks')
        return None

    def may_have_cpus_and_memory(self, need: RequestNeed) -> bool:
        """Return whether a host may have enough CPUs and memory for a request.

        The answer is no only if all hosts' reports were read just now. It
        cannot be no if a report is unreadable.
        """
        return (not self.feed.is_current or bool(self.feed.unreadable_hosts)
                or self.index.has_cpus_and_memory_for(need))

    def _try_selecting_hosts(self, search: index_search.Search, spec: Any,
                             schedule_request: Callable[[Any], Any]) -> Any:
        search.spec, search.asked = spec.obj_clone(), False
        search.states = {}
        policy = request_filter.parse_policy(spec)
        nearest = (request_filter.VfQueryOption(LOCALITIES[0])
                   if policy and policy.vfs else None)
        request_filter.set_vf_query_option(search.spec, nearest, {})
        self._current.search = search
        try:
            return schedule_request(search.spec)
        except exception.NoValidHost:
            # Each host may hold some of several servers.
            if search.servers == 1:
                self.index.add_refusals(search.states, search.need,
                                        time.monotonic())
            return None

    def get_allocation_candidates(self, client: Any, context: Any,
                                  resources: Any) -> Any:
        """Return allocation candidates on hosts that the index proposes.

        The result has the form of the client's ``get_allocation_candidates``.

        :raises UnsupportedByIndex: if the index cannot serve the request, or
            after any other error. Nothing is claimed yet, so that all hosts
            can be searched.
        """
        assert self.current_search is not None  # noqa: S101
        try:
            return index_search.get_allocation_candidates(
                self.current_search, self.index, client, self._manager,
                context, resources, self._templates)
        except index_search.UnsupportedByIndex:
            raise
        except Exception as error:
            LOG.exception('ghsched: cannot get allocation candidates from the '
                          'index of hosts; searching all hosts instead')
            raise index_search.UnsupportedByIndex(repr(error)) from error

    def record_refused_claim(self, request: Any) -> None:
        """Record that Placement has refused an allocation candidate.

        Its host is not proposed for equal requests for up to one minute, so
        that the same candidate is not derived again. Of several servers, any
        may have been refused, so none is recorded. Errors are logged.

        :param request: the allocation candidate.
        """
        search = self.current_search
        if search is not None and search.servers == 1:
            with _logging_errors('cannot record a refused claim'):
                self.index.add_refusals(request['allocations'], search.need,
                                        time.monotonic())

    def subtract_placed_guests(self, selections: Any, servers: Sequence[str],
                               need: RequestNeed) -> None:
        """Subtract placed guests from the free resources of hosts.

        Errors are logged and not raised. Guests that Nova's own search placed
        are subtracted, too. A host that cannot be updated is removed from the
        index until its next report.

        :param selections: the selected hosts of each server.
        :param servers: UUIDs of the servers.
        :param need: resources of each guest.
        """
        for server, hosts in zip(servers, selections, strict=False):
            if not self._subtract_placed_guest(hosts, server, need):
                with _logging_errors('cannot drop the host from the index'):
                    self.index.update_hosts(
                        (), [hosts[0].compute_node_uuid], time.monotonic())

    def _subtract_placed_guest(self, hosts: Any, server: str,
                               need: RequestNeed) -> bool:
        """Return whether a placed guest was subtracted from its host."""
        with _logging_errors('cannot subtract the claim from the index',
                             server):
            self.index.add_claim(
                hosts[0].compute_node_uuid, server, need, time.monotonic(),
                numa.parse_chosen_host_nodes(
                    hosts[0].limits and hosts[0].limits.numa_topology))
            return True
        return False

    def confirm_started_guests(self, host_name: str, guests: Any) -> None:
        """Stop subtracting guests that a host has started and reports.

        Errors are logged.

        :param guests: ``nova.objects.InstanceList``.
        """
        with _logging_errors('cannot confirm the claims of started guests'):
            self.index.confirm_claims(
                host_name, [guest.uuid for guest in guests.objects])

    def drop_removed_guest(self, host_name: str, uuid: str) -> None:
        """Drop the claim of a guest that has left a host.

        Errors are logged.

        :param uuid: UUID of the guest.
        """
        with _logging_errors('cannot drop the claim of a removed guest'):
            self.index.drop_claim(uuid, host_name)

    # -- refusals -------------------------------------------------------------

    def refuse_if_cached(
            self, spec: Any, need: RequestNeed,
            has_candidates: Callable[[list[tuple[str, str]]], bool]) -> None:
        """Refuse a request if an equal one was, and nothing has changed since.

        :param has_candidates: function that returns whether Placement has an
            allocation candidate for a query.
        :raises nova.exception.NoValidHost: with the reason of the earlier
            refusal.
        """
        reason = None
        with _logging_errors('cannot look up a cached refusal',
                             spec.instance_uuid):
            reason = self._refusals.find_refusal_reason(spec, need,
                                                        has_candidates)
        if reason is not None:
            self._count_request_result('remembered')
            raise exception.NoValidHost(reason=reason)

    def cache_refusal(self, spec: Any, reason: str,
                      queries: Sequence[Sequence[tuple[str, str]]],
                      is_proven: bool) -> None:
        """Cache the reason why a search of all hosts refused a request.

        Errors are logged. The parameters are those of
        :meth:`ghsched_nova.features.index.refusal_cache.RefusalCache.add_refusal`.
        """
        with _logging_errors('cannot cache the refusal', spec.instance_uuid):
            self._refusals.add_refusal(spec, reason, queries, is_proven)

    def drop_cached_refusals(self) -> None:
        """Drop all cached refusals of scheduling requests.

        This is called after a change of host aggregates, because refused
        requests may then fit.
        """
        self._refusals.clear()

    # -- for the admin --------------------------------------------------------

    def _count_request_result(self, result: str) -> None:
        """Count a scheduling request by its result.

        The counts are logged once a minute and written to the metrics file.

        :param result: key of the count, such as ``hits``.
        """
        now = time.monotonic()
        with self._lock:
            self._counts[result] += 1
            counts = dict(self._counts)
            is_time = now - self._last_log >= _LOG_EVERY
            if is_time:
                self._last_log = now
        if is_time:
            LOG.info(
                'ghsched: index of %(hosts)d hosts, updated %(age).1f s ago, '
                'rebuilt %(rebuilt)d times; scheduling requests: %(hits)d '
                'answered by the index, %(fallbacks)d and %(others)d by '
                "Nova's search (the latter are of a kind that the index does "
                'not serve), %(remembered)d refused as shortly before',
                {'hosts': len(self.index), 'age': self.feed.age,
                 'rebuilt': self.feed.rebuilt, **counts})
        with _logging_errors('cannot write metrics'):
            self._metrics.write_metrics(index_metrics.Figures(
                counts, len(self.index), self.feed.rebuilt,
                max(0.0, time.time() - self.feed.age),
                self.feed.hosts_with_future_reports,
                self.feed.unreadable_hosts))


@contextlib.contextmanager
def _logging_errors(failure: str, server: str = '-') -> Iterator[None]:
    """Within this context, log any error instead of raising it.

    :param failure: beginning of the log line, such as "cannot write metrics".
    :param server: UUID of the server that the log line names.
    """
    try:
        yield
    except Exception:
        LOG.exception('ghsched: ignoring an error of the index of hosts '
                      '(server %(server)s): %(failure)s',
                      {'failure': failure, 'server': server})

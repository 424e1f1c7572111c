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

"""nova-scheduler's manager, with reasons for refusals.

If Placement has no candidate, no filter runs, and Nova's only reason is "No
valid host was found". This manager queries Placement to find the resource that
is missing. If parallel requests want the same NUMA node, those that lose are
retried. VFs are first requested from the nearest nodes and from one PF,
because Placement would take too long to try all ways to divide them among PFs.
If no host has a free control group, guests may share one. Features extend the
manager in :mod:`ghsched_nova.features.declared_scheduler`. It is used if
nova-scheduler is started as ``ghsched-nova-scheduler``.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
from typing import Any

from nova import exception
from nova.scheduler import manager as nova_manager
from oslo_log import log as logging
import oslo_messaging as messaging
import tenacity

from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import filters
from ghsched_nova.scheduler import host_view
from ghsched_nova.scheduler import off
from ghsched_nova.scheduler import request_filter
from ghsched_nova.scheduler.request_state import RecordingClient
from ghsched_nova.scheduler.request_state import RequestState
from ghsched_nova.scheduler.select_call import SelectCall
from ghsched_placement.base import retries
from ghsched_placement.fit import cloud_lack
from ghsched_placement.fit import cloud_totals
from ghsched_placement.fit import lack
from ghsched_placement.flavor import policy as policies
from ghsched_placement.providers import names
from ghsched_placement.providers.placement_client import PlacementClient
from ghsched_placement.query import candidates
from ghsched_placement.query import request as requests
from ghsched_placement.query import vfs

LOG = logging.getLogger(__name__)

#: Number of times that a request is scheduled if other requests claim the
#: resources first.
ATTEMPTS = 3

#: Maximum number of PFs with free VFs that are read from Placement.
_MAX_PFS = 10000

#: Name of the event in the instance actions of a server for which no host was
#: found.
_EVENT = 'ghsched_select_destinations'

#: Name of ghsched's filter in Nova's messages.
_OUR_FILTER = filters.GhschedNUMATopologyFilter.__name__

#: Texts of Nova's NoValidHost that give no reason.
_NO_REASON = ('', 'There are not enough hosts available.')


class CoreSchedulerManager(nova_manager.SchedulerManager):
    """Nova's scheduler manager with reasons for refusals.

    Features override its methods: ``_schedule_request``, ``_record_refusal``,
    ``_choose_forced_candidates``, and methods of Nova's manager.
    """

    _seen = RequestState(set())

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if off.is_off():    # with this Nova
            return off.RefusingManager(*args, **kwargs)
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.host_manager.enabled_filters = scheduler.make_counting_filters(
            self.host_manager.enabled_filters, self._seen.record_filter)
        scheduler.set_host_state_class(self.host_manager,
                                       host_view.GhschedHostState)

    @property
    def placement_client(self) -> Any:
        return RecordingClient(super().placement_client, self._seen)

    @property
    def _placement(self) -> PlacementClient:
        return PlacementClient(super().placement_client)

    @messaging.expected_exceptions(exception.NoValidHost)
    def select_destinations(self, context: Any, *args: Any,
                            **kwargs: Any) -> Any:
        """Select hosts for a request; release its claims after any error.

        Nova itself releases them only after a NoValidHost.
        """
        self._seen.begin_request()
        call = SelectCall(context, args, kwargs)
        try:
            return self._schedule_request(call)
        except exception.NoValidHost as error:
            self._record_refusal(call, error.kwargs.get('reason', ''))
            raise
        except Exception:
            self._seen.claims.release_claims(context)
            raise

    def _get_all_host_states(self, context: Any, spec_obj: Any,
                             provider_summaries: Any) -> Any:
        """Return the states of hosts with allocation candidates."""
        self._set_provider_summaries(spec_obj, provider_summaries)
        return super()._get_all_host_states(context, spec_obj,
                                            provider_summaries)

    def _set_provider_summaries(self, spec: shared.RequestSpec,
                                summaries: Any) -> None:
        """Store the provider summaries of Placement's answer to a request."""
        self._seen.summaries = summaries or {}
        request_filter.set_provider_summaries(spec, summaries)

    def _schedule_request(self, call: SelectCall) -> Any:
        """Select hosts for a request, and claim the resources of the first.

        A feature that overrides this method tries variants of the request, or
        a faster search, before it calls the method that it overrides.

        :raises NoHostFits: if the call has another variant of the request and
            this one is proven to fit nowhere.
        :raises nova.exception.NoValidHost: with the reason.
        """
        return self._search_all_hosts(call)

    def _record_refusal(self, call: SelectCall, reason: str) -> None:
        """Record the refusal of a request; never raises."""
        _record_refused_move(call.context, call.spec, reason)

    def _search_all_hosts(self, call: SelectCall) -> Any:
        """Select hosts for a request by Nova's search of all hosts.

        :raises nova.exception.NoValidHost: with a reason by ghsched if Nova
            has none.
        """
        spec = call.spec
        if (spec is None or scheduler.is_rebuild(spec)
                or not request_filter.has_ghsched_extra_specs(spec)):
            return self._select_hosts(call)
        logged: request_filter.Refusals = {}
        why: list[lack.Lack] = []
        for option in self._iterate_vf_options(spec):
            now: request_filter.Refusals = {}
            try:
                found = self._select_with_retries(call, spec, option, now)
                _log_distinct_lines(logged, LOG.debug)
                _log_distinct_lines(now, LOG.info)
                return found
            except exception.NoValidHost as error:
                refused = error
            # Why hosts were refused matters for the last way in which there
            # were some.
            if now:
                _log_distinct_lines(logged, LOG.debug)
                logged = now
            if self._seen.hosts:
                why = lack.explain_filtered_hosts(
                    self._seen.filtered, len(self._seen.hosts),
                    {_OUR_FILTER: list(now.values())})
        _log_distinct_lines(logged, LOG.info)
        reason = refused.kwargs.get('reason', '')
        if reason in _NO_REASON:
            reason = self._format_no_host_reason(spec, why)
        if not reason:
            raise refused
        raise exception.NoValidHost(reason=reason) from None

    def _iterate_vf_options(self, spec: shared.RequestSpec
                            ) -> Iterator[request_filter.VfQueryOption | None]:
        """Yield the variants of the Placement query for a request, best first.

        Variants with nearer VFs come first, then those in which the VFs of a
        guest NUMA node come from fewer PFs. In the last variants the guest
        shares an existing control group with other guests.
        """
        policy = _get_valid_policy(spec)
        if policy is None:
            yield None
            return
        tries = vfs.yield_vf_requests(
            policy, lambda: self._list_free_pfs(spec, policy),
            _log_too_many_combinations)
        for locality, sizes in tries if policy.vfs else ():
            yield request_filter.VfQueryOption(locality, sizes)
        if not policy.vfs:
            yield None
        if policy.needs_control_group and self._has_shared_group(policy):
            last = requests.LOCALITIES.index(policy.vfs_locality)
            for locality in (requests.LOCALITIES[:last + 1] if policy.vfs
                             else (policy.vfs_locality,)):
                yield request_filter.VfQueryOption(locality, joins=True)

    def _has_shared_group(self, policy: policies.GuestPolicy) -> bool:
        """Return whether any host has a shared group of this policy."""
        trait = names.make_share_trait(policy.fingerprint, 0)
        found: bool = self._seen.ask_once(
            trait, lambda: self._placement.is_trait_in_use(trait))
        return found

    def _select_with_retries(self, call: SelectCall, spec: shared.RequestSpec,
                             option: request_filter.VfQueryOption | None,
                             refusals: request_filter.Refusals) -> Any:
        """Select hosts; retry if another request claimed the resources first.

        :param option: how to query Placement for the VFs of the request.
        :param refusals: collects the reasons why hosts are refused.
        """
        def select_hosts() -> Any:
            tried = spec.obj_clone()
            request_filter.set_vf_query_option(tried, option, refusals)
            self._seen.reset()
            return self._select_hosts(call.with_spec(tried))

        return _retry_lost_claims(select_hosts, self._seen, spec.flavor.name)

    def _get_sorted_hosts(self, spec_obj: Any, host_states: Any,
                          index: int) -> Any:
        """Return a request's hosts sorted by weight.

        Nova runs no filter for a forced host, so its candidate is chosen here.
        """
        self._seen.reset_filters()
        hosts = super()._get_sorted_hosts(spec_obj, host_states, index)
        if scheduler.is_host_forced(spec_obj):
            return self._choose_forced_candidates(hosts, spec_obj)
        return hosts

    def _choose_forced_candidates(self, hosts: list[Any],
                                  spec: shared.RequestSpec) -> list[Any]:
        """Return forced hosts with their VFs assigned to PFs."""
        if request_filter.has_ghsched_extra_specs(spec):
            for host in hosts:
                candidates.map_vfs_to_pfs(host.allocation_candidates,
                                          host_view.list_vf_requests(spec))
        return hosts

    def _select_hosts(self, call: SelectCall) -> Any:
        """Select hosts by Nova's method; unwrap the errors that it raises."""
        self._seen.claims.begin_search(
            len(call.keywords.get('instance_uuids') or ()))
        try:
            return super().select_destinations(
                call.context, *call.arguments, **call.keywords)
        except messaging.ExpectedException as expected:
            error = expected.exc_info[1]
            assert error is not None  # noqa: S101
            raise error from None

    def _format_no_host_reason(self, spec: shared.RequestSpec,
                               shortages: list[lack.Lack]) -> str:
        """Return the reason why no host fits a guest; empty if unknown.

        :param shortages: shortages of the refused hosts; may be empty.
        """
        policy = _get_valid_policy(spec)
        if policy is None:
            return ''
        try:
            found = shortages
            if not shortages:
                found = self._find_shortages(self._make_cloud_queries(
                    spec, policy), spec, policy)
            elif self._seen.removing_filters == {_OUR_FILTER}:
                # What no host has says more than what one candidate lacked.
                # Placement had candidates, so each need alone is met.
                cloud = dataclasses.replace(
                    self._make_cloud_queries(spec, policy),
                    ask=lambda _query: True, has_trait=lambda _trait: True)
                found = [one for one
                         in self._find_shortages(cloud, spec, policy)
                         if one.resource != lack.COMBINATION] or shortages
        except Exception:
            # The refusal stands whether or not its reason can be had.
            LOG.exception('ghsched: cannot determine why no host fits flavor '
                          '%s; refusing without a reason', spec.flavor.name)
            return ''
        for item in found:
            LOG.info('ghsched: no host found for flavor %(flavor)s: %(item)s',
                     {'flavor': spec.flavor.name, 'item': item})
        self._seen.shortages = found
        return '; '.join(item.reason for item in found)

    def _find_shortages(self, cloud: cloud_lack.CloudQueries,
                        spec: shared.RequestSpec,
                        policy: policies.GuestPolicy) -> list[lack.Lack]:
        """Return the requested resources of which no host has enough free."""
        return cloud_lack.find_refusal_reasons(
            policy, shared.config().ghsched.bandwidth_accounting, cloud,
            cloud_lack.strip_ghsched_requests(
                self._seen.query, request_filter.list_group_prefixes(spec)))

    def _make_cloud_queries(self, spec: shared.RequestSpec,
                            policy: policies.GuestPolicy
                            ) -> cloud_lack.CloudQueries:
        """Return the queries to Placement that explain a refusal."""
        return cloud_lack.CloudQueries(
            self._has_candidates, self._list_free_pfs(spec, policy),
            policy.needs_control_group and self._has_shared_group(policy),
            lambda: self._list_free_providers(
                names.MEM_BW_PCT, frozenset({names.NUMA_NODE_TRAIT})),
            lambda: cloud_totals.read_cloud_totals(self._placement),
            not shared.config().workarounds.disable_fallback_pcpu_query,
            has_trait=self._placement.is_trait_in_use)

    def _list_free_pfs(self, spec: shared.RequestSpec,
                       policy: policies.GuestPolicy,
                       ) -> dict[str, list[vfs.Pf]]:
        """Return the PFs with free VFs, for each PCI alias of a policy."""
        devices = request_filter.make_vf_request_groups(
            spec, policy, request_filter.VfQueryOption('node'))
        found: dict[str, list[vfs.Pf]] = {}
        for need, item in zip(policy.vfs, devices, strict=True):
            if need.alias not in found:
                found[need.alias] = self._list_free_providers(
                    item.resource_class, item.required)
        return found

    def _list_free_providers(self, *resource_and_traits: Any) -> list[vfs.Pf]:
        """Return the resource providers with free units of a resource.

        :param resource_and_traits: resource class and required traits.
        """
        found: list[vfs.Pf] = self._seen.ask_once(
            resource_and_traits, lambda: vfs.parse_pfs(
                self._placement.get_allocation_candidates(
                    vfs.make_pf_query(*resource_and_traits),
                    _MAX_PFS)['provider_summaries'], *resource_and_traits))
        return found

    def _has_candidates(self, query: list[tuple[str, str]]) -> bool:
        """Return whether Placement has an allocation candidate for a query."""
        return bool(self._placement.get_allocation_candidates(query, 1)[
            'allocation_requests'])


def _retry_lost_claims(select_hosts: Callable[[], Any],
                       seen: RequestState, flavor: str) -> Any:
    """Select hosts again if another request has claimed them first.

    Each request claims one candidate per host. Placement's next answer has
    candidates on other NUMA nodes.

    :param flavor: name of the flavor.
    """
    def prepare_retry(_state: tenacity.RetryCallState) -> None:
        seen.answers.clear()
        LOG.info('ghsched: another request claimed the resources first; '
                 'scheduling flavor %s again', flavor)

    return retries.call_with_retries(
        select_hosts,
        tenacity.retry_if_exception(
            lambda error: (isinstance(error, exception.NoValidHost)
                           and seen.lost)),
        tenacity.stop_after_attempt(ATTEMPTS),
        on_retry=prepare_retry)


def _get_valid_policy(spec: shared.RequestSpec) -> policies.GuestPolicy | None:
    """Return the bandwidth policy of a request's flavor.

    Returns None if the flavor has no policy or an invalid one.
    """
    try:
        policy = request_filter.parse_policy(spec)
        if policy is not None:
            request_filter.make_vf_request_groups(
                spec, policy, request_filter.VfQueryOption('node'))
        return policy
    except policies.PolicyError:
        return None


def _record_refused_move(context: Any, spec: shared.RequestSpec | None,
                         reason: str) -> None:
    """Add the reason why a server could not be moved to its instance actions.

    Users see the reason there. nova-conductor replaces the reason of a refused
    resize or migration by a sentence of its own, and Nova shows the fault only
    of servers in ERROR.
    """
    if (spec is None or reason in _NO_REASON or scheduler.is_rebuild(spec)
            or not request_filter.has_ghsched_extra_specs(spec)):
        return
    try:
        scheduler.add_failed_action_event(context, spec.instance_uuid, _EVENT,
                                          reason)
    except Exception as error:
        LOG.warning('ghsched: cannot record the reason of a refused move in '
                    'the instance actions of server %(uuid)s: %(error)s',
                    {'uuid': spec.instance_uuid, 'error': error})


def _log_too_many_combinations(sizes: vfs.Sizes) -> None:
    LOG.info('ghsched: skipping VF distribution %s among PFs because the '
             'Placement query would have too many combinations',
             sizes)


def _log_distinct_lines(lines: Iterable[str],
                        log_method: Callable[..., None]) -> None:
    """Log why hosts were refused, each distinct reason once.

    :param lines: the reasons, each with the flavor and the names of hosts.
    :param log_method: method of the logger, such as ``LOG.info``.
    """
    for line in dict.fromkeys(lines):
        log_method('ghsched: hosts refused or ranked lower: flavor %s', line)

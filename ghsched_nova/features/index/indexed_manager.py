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

"""nova-scheduler's manager with the index of hosts."""

from typing import Any

from nova import exception

from ghsched_nova.features.index.aged_cache import AgedCache
from ghsched_nova.features.index.host_capacity import RequestNeed
from ghsched_nova.features.index import indexed
from ghsched_nova.features.index import nova_seams
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import manager
from ghsched_nova.scheduler.select_call import SelectCall
from ghsched_placement.fit import cloud_lack
from ghsched_placement.flavor import policy as policies
from ghsched_placement.providers import names

#: Seconds for which Nova's answer is used that all hosts have their owner's
#: trait.
_OWNER_AGE = 60.0


class IndexClient:
    """A Placement client for requests that the index of hosts schedules.

    The allocation candidates of such a request are those of the hosts that the
    index proposes. All else is passed on.
    """

    def __init__(self, client: Any,
                 scheduler: indexed.IndexedScheduler) -> None:
        self._client, self._scheduler = client, scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def claim_resources(self, context: Any, consumer: str, request: Any,
                        *args: Any, **kwargs: Any) -> bool:
        """Claim a server's resources; record a refusal in the index."""
        claimed = self._client.claim_resources(context, consumer, request,
                                               *args, **kwargs)
        if not claimed:
            self._scheduler.record_refused_claim(request)
        return bool(claimed)

    def get_allocation_candidates(self, context: Any,
                                  resources: Any) -> Any:
        if self._scheduler.current_search is None:
            return self._client.get_allocation_candidates(context, resources)
        return self._scheduler.get_allocation_candidates(
            self._client, context, resources)


class IndexedManager(manager.CoreSchedulerManager):
    """Scheduler manager that asks an index of hosts before it asks Placement.

    Nova's casts about guests and aggregates update the index.
    """

    _indexed: indexed.IndexedScheduler | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._owned = AgedCache[None, bool](_OWNER_AGE, 1)
        if nova_seams.is_index_enabled():
            self._indexed = indexed.IndexedScheduler(self.host_manager)

    @property
    def placement_client(self) -> Any:
        client = super().placement_client
        return (client if self._indexed is None
                else IndexClient(client, self._indexed))

    def _schedule_request(self, call: SelectCall) -> Any:
        """Select hosts for a request by the index of hosts or Nova's search.

        Nova's search of all hosts follows if the index, which is faster, finds
        none.
        """
        spec, index = call.spec, self._indexed
        need = (index.compute_need(call.context, spec,
                                   call.keywords.get('instance_uuids'))
                if index is not None and spec is not None else None)
        if index is None or spec is None or need is None:
            return super()._schedule_request(call)
        servers = call.keywords['instance_uuids']
        found = index.select_hosts(
            spec, servers, need, lambda tried: self._select_hosts(
                call.with_spec(tried)), call.has_other, call.wanted_hosts)
        if found is None:
            found = self._search_unless_refused(index, need, call, spec)
        if call.keywords.get('return_objects'):
            index.subtract_placed_guests(found, servers, need)
        return found

    def _select_hosts(self, call: SelectCall) -> Any:
        """Select hosts by Nova's method; require the owner's trait beforehand.

        Nova requires this trait once all hosts have it. To find out, it reads
        the versions of all services of the cloud, unless the request already
        requires the trait.
        """
        if self._indexed is None or call.spec is None:
            return super()._select_hosts(call)
        required = call.spec.root_required
        was_required = names.OWNER_TRAIT in required
        if self._owned.get_fresh_value(None):
            required.add(names.OWNER_TRAIT)
            was_required = True
        try:
            return super()._select_hosts(call)
        finally:
            if not was_required and names.OWNER_TRAIT in required:
                self._owned.set_value(None, True)

    def _search_unless_refused(self, index: indexed.IndexedScheduler,
                               need: RequestNeed, call: SelectCall,
                               spec: shared.RequestSpec) -> Any:
        """Search all hosts for a request unless a cached refusal still holds.
        """
        spec = spec.obj_clone()
        index.refuse_if_cached(spec, need, self._has_candidates)
        is_proven = not index.may_have_cpus_and_memory(need)
        self._seen.reset()
        try:
            return super()._schedule_request(call)
        except exception.NoValidHost as error:
            if not self._seen.lost:
                index.cache_refusal(
                    spec, error.kwargs.get('reason', ''),
                    [item.query for item in self._seen.shortages], is_proven)
            raise

    def _make_cloud_queries(self, spec: shared.RequestSpec,
                            policy: policies.GuestPolicy
                            ) -> cloud_lack.CloudQueries:
        """Return the queries that find the reasons of a refusal.

        The index of hosts answers those that it can, Placement the others.
        """
        cloud = super()._make_cloud_queries(spec, policy)
        memory = self._indexed and self._indexed.memory
        return memory.answer_from_index(cloud) if memory else cloud

    def _get_all_host_states(self, context: Any, spec_obj: Any,
                             provider_summaries: Any) -> Any:
        """Return the states of hosts with allocation candidates.

        With the index of hosts, only hosts that it proposed are returned.
        """
        search = self._indexed and self._indexed.current_search
        if not search:
            return super()._get_all_host_states(context, spec_obj,
                                                provider_summaries)
        self._set_provider_summaries(spec_obj, provider_summaries)
        return (state for uuid, state in search.states.items()
                if uuid in provider_summaries)

    def update_instance_info(self, context: Any, host_name: str,
                             instance_info: Any) -> None:
        super().update_instance_info(context, host_name, instance_info)
        if self._indexed is not None:
            self._indexed.confirm_started_guests(host_name, instance_info)

    def delete_instance_info(self, context: Any, host_name: str,
                             instance_uuid: str) -> None:
        super().delete_instance_info(context, host_name, instance_uuid)
        if self._indexed is not None:
            self._indexed.drop_removed_guest(host_name, instance_uuid)

    def update_aggregates(self, ctxt: Any, aggregates: Any) -> None:
        super().update_aggregates(ctxt, aggregates)
        if self._indexed is not None:
            self._indexed.drop_cached_refusals()

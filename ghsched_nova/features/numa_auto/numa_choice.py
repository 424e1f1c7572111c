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

"""The number of guest NUMA nodes of a flavor with ghsched:numa=auto.

The request is scheduled with each number in turn, from one node on. So every
later step, of Nova and of ghsched, sees a request with a fixed number, and the
claim takes the number from the limits. VFs are requested for the guest NUMA
nodes of this number, and the answer to nova-conductor names them as nova-api
requested them (:mod:`ghsched_nova.pci_requests`).
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Any

from nova import exception
from oslo_log import log as logging
from oslo_serialization import jsonutils

from ghsched_nova.features.numa_auto import nova_seams
from ghsched_nova.features.numa_auto import vf_requests
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova import pci_requests
from ghsched_nova.scheduler.select_call import NoHostFits
from ghsched_placement.flavor import auto_nodes

LOG = logging.getLogger(__name__)


def schedule_with_fitting_numa_count(
        context: Any, spec: shared.RequestSpec,
        schedule_request: Callable[[shared.RequestSpec, bool], Any]) -> Any:
    """Schedule a server with the first number of guest NUMA nodes that fits.

    The flavor (``ghsched:numa=auto``) leaves the number to the scheduler. A
    number is skipped if the index of hosts proves that no host has room for
    it. Only if no other number fits, all hosts are searched for such a number,
    which is slow in a large cloud.

    :param schedule_request: function that schedules a request; its second
        argument says whether it may raise :class:`.NoHostFits`.
    :raises nova.exception.NoValidHost: if no number fits; with the reasons for
        all numbers.
    """
    refusals: dict[int, exception.NoValidHost] = {}
    requests = _list_requests_by_numa_count(context, spec)
    for has_other in (True, False) if len(requests) > 1 else (False,):
        for count, tried in requests:
            if count in refusals:
                continue
            try:
                return _rename_vf_groups(schedule_request(tried, has_other),
                                         spec, count)
            except NoHostFits:
                LOG.debug('ghsched: no host in the index has room for flavor '
                          '%(flavor)s with %(count)d guest NUMA nodes; trying '
                          'another number of guest NUMA nodes',
                          {'flavor': spec.flavor.name, 'count': count})
            except exception.NoValidHost as error:
                refusals[count] = error
                LOG.debug('ghsched: no host found for flavor %(flavor)s with '
                          '%(count)d guest NUMA nodes: %(error)s',
                          {'flavor': spec.flavor.name, 'count': count,
                           'error': error})
    raise _join_refusals(dict(sorted(refusals.items())))


def _join_refusals(refusals: Mapping[int, exception.NoValidHost]
                   ) -> exception.NoValidHost:
    """Join the refusals for several numbers of guest NUMA nodes.

    :param refusals: the refusal for each number.
    :returns: one error with all reasons.
    """
    reasons = {count: error.kwargs.get('reason', '')
               for count, error in refusals.items()}
    if len(set(reasons.values())) == 1:
        return refusals[max(refusals)]
    return exception.NoValidHost(reason='; '.join(
        f'with {count} NUMA node{"s" if count > 1 else ""}: '
        f'{reason.rstrip(".") or "no host"}'
        for count, reason in reasons.items()))


def has_chosen_numa_count(spec: shared.RequestSpec) -> bool:
    """Return whether nova-scheduler chose a request's number of NUMA nodes.

    It chooses the number of guest NUMA nodes for flavors with
    ``ghsched:numa=auto``.
    """
    return ('extra_specs' in spec.flavor
            and auto_nodes.has_chosen_node_count(spec.flavor.extra_specs))


def limit_to_chosen_numa_count(state: Any, spec: shared.RequestSpec) -> Any:
    """Return a host state whose limits name the chosen number of NUMA nodes.

    nova-compute claims this number of guest NUMA nodes. This is called for
    each host that passed Nova's filter. For flavors that set the number, the
    host state is returned unchanged.
    """
    if has_chosen_numa_count(spec):
        state.limits['numa_topology'] = nova_seams.copy_limits_with_numa_count(
            state.limits['numa_topology'], len(spec.numa_topology))
    return state


def _list_requests_by_numa_count(context: Any, spec: shared.RequestSpec
                                 ) -> Sequence[tuple[int, shared.RequestSpec]]:
    """Return a copy of a request for each number of guest NUMA nodes to try.

    :returns: pairs of the number and the copy. If the flavor does not leave
        the number to ghsched, the result is only the request itself.
    :raises nova.exception.NoValidHost: if the image sets guest NUMA nodes,
        too.
    """
    extra_specs = (spec.flavor.extra_specs
                   if 'extra_specs' in spec.flavor else {})
    if not auto_nodes.is_node_count_undecided(extra_specs):
        return [(0, spec)]
    had, is_live = nova_seams.get_current_numa_count(
        context, spec.instance_uuid)
    counts = auto_nodes.list_server_node_counts(
        extra_specs, spec.flavor.vcpus, spec.flavor.memory_mb, had,
        is_live or scheduler.is_rebuild(spec))
    try:
        return [(count, _copy_with_count(spec, count)) for count in counts]
    except exception.NovaException as error:
        raise exception.NoValidHost(reason=str(error)) from error


def _copy_with_count(spec: shared.RequestSpec,
                     count: int) -> shared.RequestSpec:
    tried = spec.obj_clone()
    tried.flavor = numa.copy_flavor_with_numa_count(spec.flavor, count)
    tried.numa_topology = numa.make_guest_topology(tried.flavor, spec.image)
    _join_vf_requests(tried, count)
    return tried


def _join_vf_requests(spec: shared.RequestSpec, count: int) -> None:
    """Join PCI requests for VFs of the same guest NUMA node and PCI alias.

    One PCI request remains for each guest NUMA node and alias. The request
    groups of the PCI requests that are gone are removed.

    :param spec: copy of a request; it is changed.
    :param count: number of guest NUMA nodes.
    """
    if not _requests_vfs(spec):
        return
    requests = spec.pci_requests.requests
    joined = vf_requests.join_vf_requests(requests, count)
    removed = ({request.request_id for request in requests}
               - {request.request_id for request in joined})
    spec.pci_requests.requests = joined
    if 'requested_resources' in spec and spec.requested_resources:
        spec.requested_resources = [
            group for group in spec.requested_resources
            if (group.requester_id or '').rpartition('-')[0] not in removed]


def _rename_vf_groups(selections: Any, spec: shared.RequestSpec,
                      count: int) -> Any:
    """Rename VF request groups in selected hosts as nova-conductor expects.

    :param selections: chosen hosts and alternates for each server of the
        request; their provider mappings are changed.
    :param spec: the request as nova-conductor has sent it.
    :param count: number of guest NUMA nodes that was chosen.
    :returns: the selections.
    """
    if not (count and _requests_vfs(spec)):
        return selections
    suffixes = vf_requests.map_original_suffixes(spec.pci_requests.requests,
                                                 count)
    for selection in itertools.chain.from_iterable(selections):
        chosen = jsonutils.loads(selection.allocation_request or 'null')
        if chosen and chosen.get('mappings'):
            chosen['mappings'] = {
                suffixes.get(suffix, suffix): providers
                for suffix, providers in chosen['mappings'].items()}
            selection.allocation_request = jsonutils.dumps(chosen)
    return selections


def _requests_vfs(spec: shared.RequestSpec) -> bool:
    """Return whether a request's flavor asks for VFs by ``ghsched:vfs``."""
    requests = spec.pci_requests if 'pci_requests' in spec else None
    return bool(requests
                and pci_requests.select_vf_requests(requests.requests))

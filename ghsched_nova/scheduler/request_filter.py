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

"""Request pre-filter that adds a flavor's ghsched keys to a request."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
import re
from typing import Any
from typing import TypeAlias

from nova import exception
from oslo_log import log as logging

from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova import pci_requests
from ghsched_placement.fit.lack import Lack
from ghsched_placement.flavor import auto_nodes
from ghsched_placement.flavor import keys
from ghsched_placement.flavor import policy as policies
from ghsched_placement.providers import names
from ghsched_placement.query import combinations
from ghsched_placement.query import request
from ghsched_placement.query import vfs

LOG = logging.getLogger(__name__)

_GROUP_POLICY = 'group_policy'

#: Extra specs of a flavor that make a request group of their own.
_NUMBERED = re.compile(r'(resources|trait)[a-zA-Z0-9_-]+:')

#: Shortages of refused hosts, by the log line about them.
Refusals: TypeAlias = dict[str, Lack]


def has_ghsched_extra_specs(spec: shared.RequestSpec) -> bool:
    """Return whether a request's flavor has extra specs of ghsched."""
    return 'extra_specs' in spec.flavor and policies.has_ghsched_keys(
        spec.flavor.extra_specs)


def parse_policy(spec: shared.RequestSpec) -> policies.GuestPolicy | None:
    """Parse the bandwidth policy of a request's flavor.

    Returns None if the flavor has no policy.

    :raises policies.PolicyError: if the policy is invalid.
    """
    extra_specs = (spec.flavor.extra_specs
                   if 'extra_specs' in spec.flavor else {})
    is_undecided = auto_nodes.is_node_count_undecided(extra_specs)
    policies.refuse_unfixed_node_count(extra_specs)
    if is_undecided:
        raise policies.PolicyError(
            keys.NUMA.extra_spec, 'needs the scheduler of ghsched; start '
            'nova-scheduler as ghsched-nova-scheduler')
    topology = spec.numa_topology if 'numa_topology' in spec else None
    return policies.parse_policy(extra_specs, len(topology) if topology else 0,
                                 spec.flavor.vcpus)


@dataclass(frozen=True)
class VfQueryOption:
    """Variant of the Placement query for a request's VFs.

    The scheduler searches with one variant after the other until hosts fit.

    :param locality: how far VFs may be from their guest NUMA node, one of
        :data:`ghsched_placement.query.request.LOCALITIES`.
    :param sizes: how to divide the VFs of a guest node among PFs, by guest
        node and alias. Other VFs must come from one PF.
    :param joins: whether the guest must share an existing control group.
    """

    locality: str
    sizes: vfs.Sizes = field(default_factory=dict)
    joins: bool = False


def set_vf_query_option(spec: shared.RequestSpec,
                        option: VfQueryOption | None,
                        refusals: Refusals) -> None:
    """Set how the next search for a request queries Placement for VFs.

    The option is stored in the request. nova-scheduler may search several
    times for a request, with another option each time.

    :param option: how to query Placement; None for the default.
    :param refusals: dictionary to which the search adds a log line for each
        reason why hosts are refused, with the shortages on these hosts.
    """
    spec.__dict__['_ghsched_try'] = option
    spec.__dict__['_ghsched_refusals'] = refusals


def get_refusals(spec: shared.RequestSpec) -> Refusals | None:
    """Return the dictionary that collects why hosts refuse a request.

    Returns None if the reasons are not collected.
    """
    found: Refusals | None = spec.__dict__.get('_ghsched_refusals')
    return found


def set_provider_summaries(spec: shared.RequestSpec,
                           summaries: Mapping[str, Any] | None) -> None:
    """Store the provider summaries of Placement's answer in a request.

    :param summaries: summaries by provider UUID; None if Placement was not
        queried.
    """
    spec.__dict__['_ghsched_summaries'] = summaries or {}


def get_provider_summaries(spec: shared.RequestSpec) -> Mapping[str, Any]:
    """Return the provider summaries that are stored in a request.

    :returns: summaries by provider UUID; empty if there are none.
    """
    found: Mapping[str, Any] = spec.__dict__.get('_ghsched_summaries', {})
    return found


def get_vf_query_option(spec: shared.RequestSpec,
                        policy: policies.GuestPolicy) -> VfQueryOption:
    """Return how the current search for a request queries Placement for VFs.

    By default all VFs of an alias and a guest NUMA node come from one PF,
    which may be as far from the guest as the policy allows.
    """
    found = spec.__dict__.get('_ghsched_try')
    return (found if isinstance(found, VfQueryOption)
            else VfQueryOption(policy.vfs_locality))


def ghsched_request_filter(_context: Any, spec: shared.RequestSpec) -> bool:
    """Add the flavor's bandwidth, control group, VFs and traits to a request.

    nova-scheduler then asks Placement for them.

    :returns: whether the request was changed.
    :raises nova.exception.RequestFilterFailed: if no host can offer what the
        flavor asks for. The message names the extra spec and the reason; users
        see it in the fault of the server.
    """
    try:
        policy = parse_policy(spec)
        if policy is None:
            return False
        option = get_vf_query_option(spec, policy)
        devices = make_vf_request_groups(spec, policy, option)
        accounting = shared.config().ghsched.bandwidth_accounting
        wanted = request.build_request(policy, accounting, devices,
                                       option.locality, option.joins)
        combinations.check_combination_count(policy, accounting)
    except policies.PolicyError as error:
        LOG.info('ghsched: refusing a scheduling request for flavor '
                 '%(flavor)s because no host can provide its extra specs: '
                 '%(error)s',
                 {'flavor': spec.flavor.name, 'error': error})
        raise exception.RequestFilterFailed(reason=str(error)) from error
    _replace_requested_resources(spec, wanted)
    return True


def make_vf_request_groups(spec: shared.RequestSpec,
                           policy: policies.GuestPolicy,
                           option: VfQueryOption) -> list[request.PciRequest]:
    """Return the request groups of the VFs that a policy asks for.

    nova-scheduler asks Placement for one allocation for each group.

    :raises PolicyError: if nova-api has not added PCI requests for these VFs,
        or nova-scheduler does not ask Placement for PCI devices.
    """
    ours = pci_requests.select_vf_requests(
        spec.pci_requests.requests if spec.pci_requests else ())
    if pci_requests.parse_vf_requests(ours) != policy.vfs:
        raise policies.PolicyError(
            keys.VFS.extra_spec,
            'the PCI requests that nova-api made do not match; check that the '
            'filter of ghsched is in api-paste.ini, that the flavor has '
            'hw:numa_nodes, and that no resize was reverted without the '
            'filter')
    return [_make_vf_request_group(spec, need, pci_request, option)
            for need, pci_request in zip(policy.vfs, ours, strict=True)]


def _make_vf_request_group(spec: shared.RequestSpec, need: policies.Vfs,
                           pci_request: Any,
                           option: VfQueryOption) -> request.PciRequest:
    first = names.make_vf_suffix(pci_request.request_id, 0)
    groups = (spec.requested_resources
              if 'requested_resources' in spec else None) or ()
    group = next((group for group in groups if group.requester_id == first),
                 None)
    if group is None:
        raise policies.PolicyError(
            keys.VFS.extra_spec,
            'nova-api, nova-conductor and nova-scheduler need '
            '[filter_scheduler]pci_in_placement')
    (resource_class,) = group.resources
    return request.PciRequest(
        guest_node=need.guest_node, request_id=pci_request.request_id,
        resource_class=resource_class,
        sizes=option.sizes.get((need.guest_node, need.alias),
                               (need.count,)),
        required=frozenset(group.required_traits))


def list_group_prefixes(spec: shared.RequestSpec) -> tuple[str, ...]:
    """Return the prefixes of the names of request groups that ghsched adds."""
    of_vfs = (f'{pci_request.request_id}-' for pci_request in
              pci_requests.select_vf_requests(spec.pci_requests.requests
                                              if spec.pci_requests else ()))
    return names.GROUP_PREFIX, *of_vfs


def _replace_requested_resources(
        spec: shared.RequestSpec, new: request.Request) -> None:
    """Replace the request groups that ghsched has added to a request.

    A rescheduled request has groups from its first scheduling.

    :param new: the new request groups and traits.
    """
    ours = list_group_prefixes(spec)
    others = [group for group in (
        spec.requested_resources
        if 'requested_resources' in spec else None) or []
        if not (group.requester_id or '').startswith(ours)]
    spec.requested_resources = others + [
        scheduler.make_request_group(group.suffix, group.resources,
                                     group.required) for group in new.groups
    ]
    # Of the unnumbered group Nova takes no more than the flavor has, and the
    # group policy from the flavor alone; the scheduler's copy of the request
    # is not saved.
    more = {f'resources:{name}': str(amount)
            for name, amount in new.resources.items()}
    if new.is_isolated and not others and not any(
            map(_NUMBERED.match, spec.flavor.extra_specs)):
        more[_GROUP_POLICY] = 'isolate'
    if more:
        spec.flavor.extra_specs = {
            **spec.flavor.extra_specs, **more, **{
                name: text for name, text in spec.flavor.extra_specs.items()
                if name == _GROUP_POLICY}}
    params = spec.request_level_params
    params.root_required = params.root_required | new.root_required
    params.same_subtree = [
        suffixes for suffixes in params.same_subtree
        if not any(suffix.startswith(ours) for suffix in suffixes)] + [
        list(suffixes) for suffixes in new.same_subtree]


def register_request_filter() -> None:
    shared.config()
    pci_requests.patch_nova_pci_requests()
    scheduler.add_request_filter(ghsched_request_filter)

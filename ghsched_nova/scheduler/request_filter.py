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

"""Scheduler request pre-filter: flavor keys -> Placement request groups."""

from typing import Any

from nova import exception
from nova import objects
from oslo_log import log as logging

from ghsched_nova import compat
from ghsched_placement import names
from ghsched_placement import policy as policies
from ghsched_placement import request

LOG = logging.getLogger(__name__)


def is_ours(spec: compat.RequestSpec) -> bool:
    """Whether the flavor of a request has any key of ours."""
    return 'extra_specs' in spec.flavor and policies.wanted(
        spec.flavor.extra_specs)


def policy_of(spec: compat.RequestSpec) -> policies.GuestPolicy | None:
    """What the flavor of a request asks for.

    :raises policies.PolicyError: when it can not be honoured.
    """
    extra_specs = (spec.flavor.extra_specs
                   if 'extra_specs' in spec.flavor else {})
    topology = spec.numa_topology if 'numa_topology' in spec else None
    return policies.parse(extra_specs, len(topology) if topology else 0)


def ghsched_request_filter(_context: Any, spec: compat.RequestSpec) -> bool:
    """Ask Placement for the bandwidth, control group and capabilities.

    :returns: whether the request was changed.
    :raises nova.exception.RequestFilterFailed: when the flavor asks for what
        no host can give; the message names the key and the reason, and
        reaches the fault of the server.
    """
    try:
        policy = policy_of(spec)
    except policies.PolicyError as error:
        LOG.info('ghsched: flavor %(flavor)s refused: %(error)s',
                 {'flavor': spec.flavor.name, 'error': error})
        raise exception.RequestFilterFailed(reason=str(error)) from error
    if policy is None:
        return False
    wanted = request.build(policy,
                           compat.config().ghsched.bandwidth_accounting)
    _forget_ours(spec)
    for group in wanted.groups:
        spec.requested_resources.append(objects.RequestGroup(
            requester_id=group.suffix, use_same_provider=True,
            resources=dict(group.resources),
            required_traits=set(group.required)))
    spec.request_level_params.root_required = (
        spec.request_level_params.root_required | wanted.root_required)
    return True


def _forget_ours(spec: compat.RequestSpec) -> None:
    """Drop what an earlier pass added: a reschedule brings the same spec."""
    groups = (spec.requested_resources
              if 'requested_resources' in spec else None) or []
    spec.requested_resources = [
        group for group in groups
        if not (group.requester_id or '').startswith(names.GROUP_PREFIX)]


def register() -> None:
    compat.config()
    compat.add_request_filter(ghsched_request_filter)

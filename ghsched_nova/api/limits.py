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

"""Bandwidth, control groups and VFs under unified limits.

nova-api enforces the limits of a project on what a flavor asks Placement for.
What the scheduler's request filter adds is not among it, so it is added here;
what a project uses nova-api reads from Placement, which knows all of it.
"""

import collections
from collections.abc import Callable
from typing import Any

from nova import objects
from nova.pci import request as pci_request

from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova import pci_requests
from ghsched_placement.flavor import policy as policies
from ghsched_placement.query import request

seam = registry.make_seam_decorator(registry.API, part=registry.LIMITS)


def add_usage_deltas(original: Callable[[Any, int], dict[str, int]], spec: Any,
                     count: int) -> dict[str, int]:
    """Return the resources by which new servers raise their project's usage.

    Resources of ghsched are added to the resources that Nova counts.

    :param original: ``nova.limit.placement._get_deltas``.
    :param spec: request for the servers.
    :param count: number of servers.
    :returns: amounts by name of the limit.
    """
    deltas = original(spec, count)
    for resource_class, amount in count_server_resources(spec).items():
        name = f'class:{resource_class}'
        deltas[name] = deltas.get(name, 0) + amount * count
    return deltas


def count_server_resources(spec: Any) -> collections.Counter[str]:
    """Return a server's Placement resources that Nova does not count.

    A control group is counted even if the server will share an existing one,
    because only nova-scheduler finds out.

    :param spec: request for the server.
    :returns: amounts by resource class.
    """
    found: collections.Counter[str] = collections.Counter()
    policy = _parse_policy(spec.flavor)
    if policy is None:
        return found
    asked = request.build_request(policy,
                                  shared.config().ghsched.bandwidth_accounting)
    for resources in (asked.resources,
                      *(group.resources for group in asked.groups)):
        found.update(resources)
    # For a new server Nova makes the requests for devices, and counts them.
    if policy.vfs and 'pci_requests' not in spec:
        found.update(_count_vfs(spec.flavor))
    return +found


def _parse_policy(flavor: Any) -> policies.GuestPolicy | None:
    """Return a flavor's bandwidth policy.

    Returns None if the flavor has no policy or an invalid one.
    """
    extra_specs = flavor.extra_specs
    try:
        return policies.parse_policy(
            extra_specs, policies.get_guest_node_count(extra_specs),
            flavor.vcpus)
    except policies.PolicyError:
        return None


@seam('nova.objects.request_spec.RequestSpec.'
      'generate_request_groups_from_pci_requests', ('self',))
def _count_vfs(flavor: Any) -> collections.Counter[str]:
    """Return how many VFs a flavor requests, by resource class.

    The result is empty if devices are not tracked in Placement.
    """
    requests = pci_request.get_pci_requests_from_flavor(flavor).requests
    spec = objects.RequestSpec(
        requested_resources=[], pci_requests=objects.InstancePCIRequests(
            requests=pci_requests.select_vf_requests(requests)))
    spec.generate_request_groups_from_pci_requests()
    found: collections.Counter[str] = collections.Counter()
    for group in spec.requested_resources:
        found.update(group.resources)
    return found

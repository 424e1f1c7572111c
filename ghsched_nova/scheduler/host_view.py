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

"""Host states of Nova, copied for each instance of a request."""

from typing import Any

from nova.scheduler import host_manager

from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova import pci_requests
from ghsched_placement.query import candidates

seam = registry.make_seam_decorator(registry.SCHEDULER)


def list_vf_requests(spec: shared.RequestSpec) -> list[candidates.VfRequest]:
    """Return the VFs that a request's flavor asks for.

    A flavor asks for VFs by the extra spec ``ghsched:vfs``.
    """
    requests = spec.pci_requests and spec.pci_requests.requests
    return [candidates.VfRequest(node, pci_request.request_id,
                                 pci_request.count)
            for pci_request in requests or ()
            if (node := pci_requests.get_guest_node(pci_request))
            is not None]


class GhschedHostState(host_manager.HostState):
    """Nova's host state with a correct count of the VFs of a placed guest."""

    @seam('nova.scheduler.host_manager.HostState.consume_from_request',
          ('self', 'spec_obj'))
    def consume_from_request(self, spec_obj: Any) -> None:
        """Subtract the resources of a placed guest from this host state.

        For a request group with several VFs, Placement's mapping has the UUID
        of the PF once. Nova subtracts one device for each UUID, so the UUID is
        repeated for each VF.
        """
        vfs = list_vf_requests(spec_obj)
        mapping = (scheduler.get_request_group_providers(spec_obj) if vfs
                   else {})
        if not mapping:
            with numa.choosing_cpus(spec_obj.flavor):
                super().consume_from_request(spec_obj)
            return
        candidates.map_vfs_to_pfs([{'mappings': mapping}], vfs)
        mapped = scheduler.copy_with_request_group_providers(spec_obj, mapping)
        with numa.choosing_cpus(spec_obj.flavor):
            super().consume_from_request(mapped)
        # Nova fits the guest and stores its host NUMA nodes in the request.
        if 'numa_topology' in mapped:
            spec_obj.numa_topology = mapped.numa_topology


class HostStateView(GhschedHostState):
    """Copy of a host state for one instance of a request.

    Nova reads the NUMA limits for the claims from ``HostState.limits`` only
    after all instances of a multi-create request have been placed
    (``Selection.from_host_state`` in ``_get_alternate_hosts``). ghsched's
    limits differ by instance, so each instance needs a host state of its own.

    :ivar consumed: whether this instance was placed on the host.
    :ivar near: whether the filter has looked for devices on the guest's NUMA
        nodes; None before the filter has chosen a candidate.
    :ivar claimed: whether an earlier instance of the request was placed on
        the host, so that Placement's candidates may be out of date.
    :ivar all_candidates: the host's allocation candidates before one is
        chosen.
    """

    # pylint: disable=super-init-not-called
    @seam('nova.scheduler.host_manager.HostState.__init__',
          ('self', 'host', 'node', 'cell_uuid'))
    def __init__(self, state: host_manager.HostState) -> None:
        self.__dict__.update(state.__dict__)
        # Bypasses the property that computes limits when they are read.
        self.__dict__['limits'] = dict(state.__dict__['limits'])
        self.consumed = False
        self.near: bool | None = None
        self.claimed = False
        candidates: list[Any] = state.allocation_candidates
        if isinstance(state, HostStateView):
            # A later instance of the same request: every candidate is open
            # again.
            candidates = state.all_candidates
            self.claimed = state.claimed or state.consumed
        self.all_candidates: list[Any] = list(candidates)
        self.allocation_candidates: list[Any] = list(candidates)

    def consume_from_request(self, spec_obj: Any) -> None:
        super().consume_from_request(spec_obj)
        self.consumed = True

    def _get_key(self) -> tuple[str, str, str]:
        return self.cell_uuid, self.host, self.nodename

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, host_manager.HostState) and self._get_key()
                == (other.cell_uuid, other.host, other.nodename))

    def __hash__(self) -> int:
        return hash(self._get_key())

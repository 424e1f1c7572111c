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

"""A host's state as one selection sees it."""

from typing import Any

from nova.scheduler import host_manager

from ghsched_nova.nova_seams import registry

seam = registry.in_processes(registry.SCHEDULER)


class HostStateView(host_manager.HostState):
    """Copy of a HostState for one instance of a request.

    SchedulerManager makes the limits that go to the claim from
    ``HostState.limits`` only after every instance of a multi-create was
    placed (``Selection.from_host_state`` in ``_get_alternate_hosts``). Our
    limits differ by instance, so each selection needs an object of its own.

    :ivar claimed: whether an earlier instance of the request was placed on
        the host, so that Placement's candidates may be out of date.
    """

    # pylint: disable=super-init-not-called
    @seam('nova.scheduler.host_manager.HostState.__init__',
          ('self', 'host', 'node', 'cell_uuid'))
    def __init__(self, state: host_manager.HostState) -> None:
        self.__dict__.update(state.__dict__)
        # By its own name a view may make them, and so may the state.
        self.__dict__['limits'] = dict(state.__dict__['limits'])
        self.consumed = False
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

    def _key(self) -> tuple[str, str, str]:
        return self.cell_uuid, self.host, self.nodename

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, host_manager.HostState)
                and self._key() == (other.cell_uuid, other.host,
                                    other.nodename))

    def __hash__(self) -> int:
        return hash(self._key())

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

"""A call of nova-scheduler that asks for hosts for a request."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from dataclasses import dataclass
from typing import Any

from ghsched_nova.nova_seams import shared


class NoHostFits(Exception):
    """Raised if it is proven that a request fits on no host."""


@dataclass(frozen=True)
class SelectCall:
    """Call of ``SchedulerManager.select_destinations``.

    :param arguments: positional arguments after the context.
    :param keywords: keyword arguments; the request is ``spec_obj``.
    :param has_other: whether the caller has another variant of the request to
        try, so that :class:`NoHostFits` may be raised.
    """

    context: Any
    arguments: Sequence[Any] = ()
    keywords: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    has_other: bool = False

    @property
    def spec(self) -> shared.RequestSpec | None:
        """Request to schedule; None if the call has none."""
        return self.keywords.get('spec_obj')

    def with_spec(self, spec: shared.RequestSpec,
                  has_other: bool = False) -> 'SelectCall':
        """Return a copy of the call with another request.

        :param has_other: whether a further request is tried if this one is
            refused.
        """
        return dataclasses.replace(
            self, keywords={**self.keywords, 'spec_obj': spec},
            has_other=has_other)

    @property
    def wanted_hosts(self) -> int:
        """Number of hosts that the call asks for.

        These are the host to claim and the alternates.
        """
        if (self.keywords.get('return_objects')
                and self.keywords.get('return_alternates')):
            return int(shared.config().scheduler.max_attempts)
        return 1

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

When Placement has no candidate, no filter runs, and Nova says no more than
"No valid host was found". This manager asks Placement which need of ours was
the one. And when requests at the same time want one NUMA node, it gives those
that lost another try. It is chosen by starting nova-scheduler as
``ghsched-nova-scheduler``; everything else works with Nova's own.
"""

from typing import Any
from urllib import parse

from nova import exception
from nova.scheduler import manager
from oslo_log import log as logging
import oslo_messaging as messaging

from ghsched_nova import compat
from ghsched_nova.scheduler import filters
from ghsched_nova.scheduler import request_filter
from ghsched_placement import policy as policies
from ghsched_placement import shortage

LOG = logging.getLogger(__name__)

#: First microversion with root_required.
_MICROVERSION = '1.35'


#: How often a request is scheduled when others are faster.
ATTEMPTS = 3


class GhschedSchedulerManager(manager.SchedulerManager):
    """Nova's scheduler manager; a NoValidHost of ours carries its reason."""

    @messaging.expected_exceptions(exception.NoValidHost)
    def select_destinations(self, context: Any, *args: Any,
                            **kwargs: Any) -> Any:
        spec = kwargs.get('spec_obj')
        if spec is None or not request_filter.is_ours(spec):
            return self._select(context, *args, **kwargs)
        for attempt in range(1, ATTEMPTS + 1):
            tried = kwargs['spec_obj'] = spec.obj_clone()
            try:
                return self._select(context, *args, **kwargs)
            except exception.NoValidHost:
                # Nova claims one candidate per host, and so do its rivals:
                # in Placement's next answer another NUMA node has its turn.
                if attempt < ATTEMPTS and filters.had_a_host(tried):
                    LOG.info('ghsched: other requests were faster, flavor '
                             '%s is scheduled again', spec.flavor.name)
                    continue
                reason = self._reason(tried)
                if reason:
                    raise exception.NoValidHost(reason=reason) from None
                raise

    def _select(self, *args: Any, **kwargs: Any) -> Any:
        """The parent's method, without what its decorator does to errors."""
        try:
            return super().select_destinations(*args, **kwargs)
        except messaging.ExpectedException as expected:
            error = expected.exc_info[1]
            assert error is not None  # noqa: S101
            raise error from None

    def _reason(self, spec: compat.RequestSpec) -> str:
        """Why no host can take a guest of ours; empty when it is not ours."""
        try:
            policy = request_filter.policy_of(spec)
            if policy is None:
                return ''
            found = shortage.find(
                policy, compat.config().ghsched.bandwidth_accounting,
                self._ask)
        except policies.PolicyError:
            return ''     # the request filter has said so
        except Exception:
            # The refusal stands whether or not its reason can be had.
            LOG.exception('ghsched: can not find out why flavor %s was '
                          'refused', spec.flavor.name)
            return ''
        for item in found:
            LOG.info('ghsched: flavor %(flavor)s refused: %(item)s',
                     {'flavor': spec.flavor.name, 'item': item})
        return '; '.join(item.reason for item in found)

    def _ask(self, query: list[tuple[str, str]]) -> bool:
        """Whether any host satisfies an allocation candidates query."""
        response = self.placement_client.get(
            '/allocation_candidates?' + parse.urlencode(
                [*query, ('limit', '1')]),
            version=_MICROVERSION)
        if response.status_code != 200:
            raise exception.NovaException(
                f'Placement: {response.status_code} {response.text}')
        return bool(response.json()['allocation_requests'])

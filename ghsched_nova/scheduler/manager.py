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
the one. When requests at the same time want one NUMA node, it gives those
that lost another try. And VFs are first asked for where they are nearest and
of one PF each, because Placement would drown in the ways to share them among
all PFs. It is chosen by starting nova-scheduler as
``ghsched-nova-scheduler``; everything else works with Nova's own.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections import Counter
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
from ghsched_placement import request as requests
from ghsched_placement import shortage
from ghsched_placement import vfs

LOG = logging.getLogger(__name__)

#: First microversion with root_required.
_MICROVERSION = '1.35'

#: How often a request is scheduled when others are faster.
ATTEMPTS = 3

#: How many ways to share the VFs of a guest among PFs are tried, of those
#: that some host has room for.
SPLITS = 3

#: Placement goes through every way to give the PFs of a host to the groups of
#: a request; with more ways than this it would take too long.
_MAX_COMBINATIONS = 20000

#: How many hosts Placement is asked for to find those ways.
_MAX_HOSTS = 1000


class GhschedSchedulerManager(manager.SchedulerManager):
    """Nova's scheduler manager; a NoValidHost of ours carries its reason."""

    @messaging.expected_exceptions(exception.NoValidHost)
    def select_destinations(self, context: Any, *args: Any,
                            **kwargs: Any) -> Any:
        spec = kwargs.get('spec_obj')
        if spec is None or not request_filter.is_ours(spec):
            return self._select(context, *args, **kwargs)
        for attempt in self._tries(spec):
            try:
                return self._select_again(context, attempt, *args, **kwargs)
            except exception.NoValidHost as error:
                refused = error
        reason = self._reason(spec)
        if reason:
            raise exception.NoValidHost(reason=reason) from None
        raise refused

    def _tries(self, spec: compat.RequestSpec
               ) -> Iterator[request_filter.Try | None]:
        """Ways to ask Placement for a request, the best first.

        With all VFs of a guest node from one PF first, because then there
        are few candidates; then as some host could share them among PFs. For
        each, the nearest first.
        """
        policy = _policy(spec)
        if policy is None or not policy.vfs:
            yield None
            return
        last = requests.LOCALITIES.index(policy.vfs_locality)
        localities = requests.LOCALITIES[:last + 1]
        for locality in localities:
            yield request_filter.Try(locality)
        pfs = self._pfs(spec, policy)
        for locality in localities:
            for sizes in _sizes(policy, pfs, locality):
                yield request_filter.Try(locality, sizes)

    def _select_again(self, context: Any,
                      how: request_filter.Try | None, *args: Any,
                      **kwargs: Any) -> Any:
        """Schedule a request, more than once if others are faster."""
        spec = kwargs['spec_obj']
        for attempt in range(1, ATTEMPTS + 1):
            tried = kwargs['spec_obj'] = spec.obj_clone()
            if how is not None:
                request_filter.set_try(tried, how)
            try:
                return self._select(context, *args, **kwargs)
            except exception.NoValidHost:
                # Nova claims one candidate per host, and so do its rivals:
                # in Placement's next answer another NUMA node has its turn.
                if attempt == ATTEMPTS or not filters.had_a_host(tried):
                    raise
                LOG.info('ghsched: other requests were faster, flavor %s is '
                         'scheduled again', spec.flavor.name)
        return None     # not reached

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
        policy = _policy(spec)
        if policy is None:
            return ''
        try:
            found = shortage.find(
                policy, compat.config().ghsched.bandwidth_accounting,
                self._ask, self._pfs(spec, policy))
        except Exception:
            # The refusal stands whether or not its reason can be had.
            LOG.exception('ghsched: can not find out why flavor %s was '
                          'refused', spec.flavor.name)
            return ''
        for item in found:
            LOG.info('ghsched: flavor %(flavor)s refused: %(item)s',
                     {'flavor': spec.flavor.name, 'item': item})
        return '; '.join(item.reason for item in found)

    def _pfs(self, spec: compat.RequestSpec, policy: policies.GuestPolicy,
             ) -> dict[str, list[vfs.Pf]]:
        """The PFs of each alias that a policy has VFs of."""
        devices = request_filter.devices_of(spec, policy,
                                            request_filter.Try('node'))
        found: dict[str, list[vfs.Pf]] = {}
        for need, item in zip(policy.vfs, devices, strict=True):
            if need.alias not in found:
                answer = self._candidates(vfs.query(item), _MAX_HOSTS)
                found[need.alias] = vfs.read(answer['provider_summaries'],
                                             item)
        return found

    def _ask(self, query: list[tuple[str, str]]) -> bool:
        """Whether any host satisfies an allocation candidates query."""
        return bool(self._candidates(query, 1)['allocation_requests'])

    def _candidates(self, query: list[tuple[str, str]], limit: int) -> Any:
        response = self.placement_client.get(
            '/allocation_candidates?' + parse.urlencode(
                [*query, ('limit', str(limit))]),
            version=_MICROVERSION)
        if response.status_code != 200:
            raise exception.NovaException(
                f'Placement: {response.status_code} {response.text}')
        return response.json()


def _policy(spec: compat.RequestSpec) -> policies.GuestPolicy | None:
    """What a request asks for; None when the request filter refuses it."""
    try:
        policy = request_filter.policy_of(spec)
        if policy is not None:
            request_filter.devices_of(spec, policy,
                                      request_filter.Try('node'))
        return policy
    except policies.PolicyError:
        return None


def _sizes(policy: policies.GuestPolicy, pfs: Mapping[str, list[vfs.Pf]],
           locality: str) -> Iterator[dict[tuple[str, int], tuple[int, ...]]]:
    """Ways to share the VFs of each guest node among PFs."""
    ways = {}
    for need in policy.vfs:
        pools = vfs.by_place(pfs.get(need.alias, ()), locality).values()
        found = vfs.splits(need.count, pools, SPLITS)
        if found:
            ways[need.alias, need.count] = found
    for number in range(max(map(len, ways.values()), default=0)):
        sizes = {key: found[min(number, len(found) - 1)]
                 for key, found in ways.items()}
        parts = Counter[str]()
        for need in policy.vfs:
            parts[need.alias] += len(sizes.get((need.alias, need.count), '.'))
        if vfs.combinations(parts, pfs) <= _MAX_COMBINATIONS:
            yield sizes
        else:
            LOG.info('ghsched: the VFs of the flavor are not shared among '
                     'PFs as %s: Placement would have too many ways', sizes)

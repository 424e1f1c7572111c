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

"""Claims of requests that fail after Placement has confirmed the claim."""

import json
import sys
import types
from unittest import mock

import fixtures
from keystoneauth1 import exceptions as ks_exc
from nova import context as nova_context
from nova import exception
from nova.scheduler.client import report
import oslo_messaging as messaging

from ghsched_nova.features import declared_scheduler
from ghsched_nova.features.index.host_capacity import ReportedHost
from ghsched_nova.features.index.host_capacity import ReportedNode
from ghsched_nova.features.index.host_capacity import RequestNeed
from ghsched_nova.features.index.host_capacity import RequestNodeNeed
from ghsched_nova.features.index import indexed
from ghsched_nova.scheduler import claims
from ghsched_placement.tests import base

NEED = RequestNeed((RequestNodeNeed(pinned=1),))

#: A claim of a host with two NUMA nodes and shared storage.
CLAIM = {'root': {'resources': {'VCPU': 1, 'MEMORY_MB': 512}},
         'node': {'resources': {'CUSTOM_MEM_BW_PCT': 30}},
         'shared': {'resources': {'DISK_GB': 10}}}

#: Allocation of an evacuated server on its source.
SOURCE = {'source': {'resources': {'VCPU': 1}},
          'shared': {'resources': {'DISK_GB': 10}}}


def response(code, body=None):
    """Return an answer of Placement, false if it is an error."""
    found = mock.MagicMock(status_code=code, json=lambda: body,
                           text=json.dumps(body))
    found.__bool__.return_value = code < 400
    return found


class Placement:
    """The allocations of consumers, with their generations."""

    def __init__(self, **allocations):
        self.allocations = allocations
        self.fails = False
        self.refused = ()
        self.calls = []
        self.answer_post = lambda: response(204)

    def get(self, url, **_kwargs):
        found = self.allocations.get(url.rsplit('/', 1)[1], {})
        return response(200, {
            'allocations': json.loads(json.dumps(found)), 'project_id': 'p',
            'user_id': 'u', 'consumer_generation': 1 if found else None})

    def put(self, url, **kwargs):
        consumer, body = url.rsplit('/', 1)[1], kwargs['json']
        self.calls.append(consumer)
        if not {*body['allocations']}.isdisjoint(self.refused):
            return response(409, {'errors': [{'code': '', 'detail': 'full'}]})
        known = self.allocations.get(consumer)
        if (body['consumer_generation'] is None) is not (not known):
            return response(409, {'errors': [{
                'code': 'placement.concurrent_update',
                'detail': 'consumer generation conflict'}]})
        self.allocations[consumer] = body['allocations']
        if not body['allocations']:
            del self.allocations[consumer]
        if self.fails:
            raise OSError('the answer is lost')
        return response(204)

    def post(self, url, **kwargs):
        assert url == '/allocations', url
        bodies = kwargs['json']
        self.calls.append(' '.join(bodies))
        if any(not {*body['allocations']}.isdisjoint(self.refused)
               or consumer in self.allocations
               for consumer, body in bodies.items()):
            return response(409, {'errors': [{'code': '', 'detail': 'full'}]})
        self.allocations |= {consumer: body['allocations']
                             for consumer, body in bodies.items()}
        if self.fails:
            raise OSError('the answer is lost')
        return self.answer_post()

    def delete(self, url, **_kwargs):
        held = self.allocations.pop(url.rsplit('/', 1)[1], None)
        return response(204 if held else 404)


class ClaimsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.claims = claims.Claims()

    def use(self, **allocations):
        self.placement = Placement(**allocations)
        self.client = report.SchedulerReportClient(adapter=self.placement)

    def claim(self, consumer='guest', **resources):
        return self.claims.claim_resources(
            self.client, self.context, consumer, {'allocations': resources},
            'p', 'u', allocation_request_version='1.36',
            consumer_generation=None)

    def test_release_of_a_new_server_removes_its_allocation(self):
        self.use(other=SOURCE)
        self.assertTrue(self.claim(**CLAIM))
        self.assertIn('guest', self.placement.allocations)
        self.claims.release_claims(self.context)
        self.assertEqual({'other': SOURCE}, self.placement.allocations)

    def test_release_of_an_evacuated_server_keeps_its_source(self):
        self.use(guest=SOURCE)
        self.assertTrue(self.claim(**CLAIM))
        self.assertEqual({*SOURCE, *CLAIM},
                         set(self.placement.allocations['guest']))
        self.claims.release_claims(self.context)
        self.assertEqual({'guest': SOURCE}, self.placement.allocations)

    def test_release_of_a_claim_without_an_answer_removes_it(self):
        self.use()
        self.placement.fails = True
        self.assertRaises(OSError, self.claim, **CLAIM)
        self.placement.fails = False
        self.claims.release_claims(self.context)
        self.assertEqual({}, self.placement.allocations)

    def test_release_of_a_failed_claim_removes_nothing(self):
        self.use(guest=SOURCE)
        self.placement.put = lambda _url, **_kwargs: response(
            409, {'errors': [{'code': '', 'detail': 'no room'}]})
        self.assertFalse(self.claim(**CLAIM))
        self.claims.release_claims(self.context)
        self.assertEqual({'guest': SOURCE}, self.placement.allocations)

    def test_release_takes_the_last_claim_of_each_server(self):
        self.use()
        self.claim(**CLAIM)
        del self.placement.allocations['guest']    # Nova has removed it
        self.claim(root=CLAIM['root'])
        self.claim('second', **CLAIM)
        self.claims.release_claims(self.context)
        self.assertEqual({}, self.placement.allocations)

    def test_release_that_fails_raises_nothing(self):
        log = self.useFixture(fixtures.FakeLogger())
        self.use()
        self.claim(**CLAIM)
        self.placement.get = mock.Mock(side_effect=OSError('no network'))
        self.claims.release_claims(self.context)
        self.assertIn('cannot remove the allocations of a failed scheduling '
                      'request from Placement: no network', log.output)

    def use_several(self, *refused):
        self.use()
        self.placement.refused = refused
        self.claims.begin_search(3)

    def claim_on(self, consumer, host):
        return self.claim(consumer, **{host: CLAIM['node']})

    def test_claims_of_several_servers_are_one_request(self):
        self.use_several()
        for server in 'abc':
            self.assertEqual([], self.placement.calls)
            self.assertTrue(self.claim_on(server, 'host'))
        self.assertEqual(['a b c'], self.placement.calls)
        self.assertEqual({*'abc'}, {*self.placement.allocations})
        self.claims.release_claims(self.context)
        self.assertEqual({}, self.placement.allocations)

    def test_claims_without_an_answer_are_released(self):
        self.use_several()
        self.placement.fails = True
        self.claim_on('a', 'host')
        self.claim_on('b', 'host')
        self.assertRaises(OSError, self.claim_on, 'c', 'host')
        self.placement.fails = False
        self.claims.release_claims(self.context)
        self.assertEqual({}, self.placement.allocations)

    def test_last_server_refused_is_claimed_on_another_host(self):
        self.use_several('full')
        self.claim_on('a', 'host')
        self.claim_on('b', 'host')
        self.assertFalse(self.claim_on('c', 'full'))
        self.assertTrue(self.claim_on('c', 'host'))
        self.assertEqual(['a b c', 'a', 'b', 'c', 'c'], self.placement.calls)
        self.assertEqual({*'abc'}, {*self.placement.allocations})

    def test_earlier_server_refused_refuses_the_search(self):
        self.use_several('full')
        self.claim_on('a', 'host')
        self.claim_on('b', 'full')
        self.assertFalse(self.claim_on('c', 'host'))
        self.assertFalse(self.claim_on('c', 'other'))
        self.assertEqual(['a b c', 'a', 'b'], self.placement.calls)

    def test_retry_claims_each_server_by_itself(self):
        self.use_several('full')
        for server, host in zip('abc', ('host', 'full', 'host'), strict=True):
            self.claim_on(server, host)
        for first in ('a', 'a b c'):
            self.claims.begin_search(3)
            self.placement.allocations, self.placement.calls = {}, []
            for server in 'abc':
                self.assertTrue(self.claim_on(server, 'host'))
            self.assertEqual(first, self.placement.calls[0])
            self.claims.reset()    # the next request

    def test_servers_of_an_unclear_answer_are_claimed_one_by_one(self):
        # keystoneauth may repeat a lost request: the claims then conflict.
        for answer in ({'return_value': response(409)},
                       {'return_value': response(504)},
                       {'side_effect': ks_exc.ConnectFailure}):
            self.claims.reset()
            self.use_several()
            self.placement.answer_post = mock.Mock(**answer)
            for server in 'abc':
                self.assertTrue(self.claim_on(server, 'host'))
            self.assertEqual(['a b c', *'abc'], self.placement.calls)
            self.assertEqual(dict.fromkeys('abc', {'host': CLAIM['node']}),
                             self.placement.allocations)

    def test_unclear_claims_that_cannot_be_deleted_are_released(self):
        for delete in ({'return_value': response(502)},
                       {'side_effect': ks_exc.ConnectFailure}):
            self.use_several()
            self.placement.answer_post = lambda: response(504)
            self.placement.delete = mock.Mock(**delete)
            self.claim_on('a', 'host')
            self.claim_on('b', 'host')
            self.assertRaises(exception.NovaException, self.claim_on, 'c',
                              'host')
            self.assertEqual({*'abc'}, {*self.placement.allocations})
            self.claims.release_claims(self.context)
            self.assertEqual({}, self.placement.allocations)

    def test_search_that_ended_early_leaves_no_claim_to_the_next(self):
        self.use_several()
        self.claim_on('a', 'host')
        self.claims.begin_search(1)
        self.assertTrue(self.claim_on('b', 'host'))
        self.assertEqual(['b'], self.placement.calls)

    def test_start_forgets_the_claims_of_the_last_request(self):
        self.use()
        self.claim(**CLAIM)
        self.claims.reset()
        self.claims.release_claims(self.context)
        self.assertIn('guest', self.placement.allocations)


class Injected(Exception):  # noqa: N818
    """An error that nobody expects."""


class Injector:
    """Raises in the n-th call of a function of this project's.

    :ivar calls: number of calls so far.
    """

    def __init__(self, number):
        self.number, self.calls = number, 0

    def trace(self, frame, event, _arg):
        """A trace function, see sys.settrace."""
        path = frame.f_code.co_filename
        if event == 'call' and '/ghsched_' in path and (
                '/tests/' not in path):
            self.calls += 1
            if self.calls == self.number:
                raise Injected


class Scheduler(declared_scheduler.GhschedSchedulerManager):
    """The manager, with Nova's part of a request that fits."""

    def __init__(self, by_index, injector):
        self._indexed, self._injector = by_index, injector

    def _select_hosts(self, call):
        uuid = call.spec.instance_uuid
        self.placement_client.claim_resources(
            call.context, uuid, {'allocations': CLAIM}, 'p', 'u', '1.36')
        sys.settrace(self._injector.trace)
        return [[types.SimpleNamespace(compute_node_uuid='h', limits=None)]]


class InjectionTest(base.TestCase):
    """An error in each of the calls that follow a claim, one by one."""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.FakeLogger())
        self.addCleanup(sys.settrace, sys.gettrace())
        for name, value in (
            ('ghsched_nova.features.index.nova_seams.'
             'cache_host_topologies', lambda _number: None),
            ('ghsched_nova.scheduler.request_filter.parse_policy',
             lambda _spec: None),
            ('ghsched_nova.scheduler.request_filter.set_vf_query_option',
             lambda *_args: None),
            ('ghsched_nova.scheduler.request_filter.has_ghsched_extra_specs',
             lambda _spec: False),
            ('ghsched_nova.nova_seams.scheduler.is_rebuild',
             lambda _spec: False),
            ('nova.scheduler.manager.SchedulerManager.placement_client',
             property(lambda _manager: self.client))):
            self.useFixture(fixtures.MonkeyPatch(name, value))

    def schedule(self, number, by_index):
        """Return the number of calls, and whether the request succeeded."""
        self.placement = Placement()
        self.client = report.SchedulerReportClient(adapter=self.placement)
        injector = Injector(number)
        one = indexed.IndexedScheduler(None)
        one.index.update_hosts([ReportedHost('h', 'h', 'c', 1, (
            ReportedNode(0, 4, pages={0: 9}),))], (), 0)
        one.compute_need = lambda *_args: NEED if by_index else None
        spec = types.SimpleNamespace(instance_uuid='guest', flavor={})
        spec.obj_clone = lambda: spec
        try:
            found = Scheduler(one, injector).select_destinations(
                nova_context.get_admin_context(), spec_obj=spec,
                instance_uuids=['guest'], return_objects=True)
            succeeded = found is not None
        except (Injected, messaging.ExpectedException):
            succeeded = False
        finally:
            sys.settrace(None)
        return injector.calls, succeeded

    def test_request_that_fails_after_the_claim_holds_nothing(self):
        for by_index in (True, False):
            number, succeeded, failed = 1, 0, 0
            while True:
                calls, ok = self.schedule(number, by_index)
                self.assertEqual(ok, 'guest' in self.placement.allocations,
                                 f'call {number}, by index: {by_index}')
                if calls < number:
                    break
                succeeded, failed = succeeded + ok, failed + (not ok)
                number += 1
            self.assertTrue(ok)
            # Of the index, most errors are logged only.
            self.assertEqual(by_index, succeeded > 10)
            self.assertGreaterEqual(failed, by_index)

    def test_request_refused_by_nova_keeps_the_refusal(self):
        one = Scheduler(None, None)
        self.patch(one, '_schedule_request', mock.Mock(
            side_effect=exception.NoValidHost(reason='full')))
        self.assertRaises(messaging.ExpectedException,
                          one.select_destinations, None)

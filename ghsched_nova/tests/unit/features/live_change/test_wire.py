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


"""Messages between releases, pinned.

A sample that does not hold any more is a change of the wire: it takes a new
version in :mod:`ghsched_nova.features.live_change.messages`, and a new sample
beside the old.
"""

from concurrent import futures
import inspect
import socket
import types
from unittest import mock

from nova import rpc as nova_rpc
from oslo_config import cfg
import oslo_messaging

from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.live_change import messages
from ghsched_nova.features.live_change import move_messages
from ghsched_nova.features.live_change import rpc
from ghsched_nova.features.live_change import rpcapi
from ghsched_nova.nova_seams import messaging
from ghsched_nova.tests.fixtures import plans
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

GUEST = types.SimpleNamespace(uuid='u', host='host_a', running=True)
NODE = {'host_node': 1, 'min': 20, 'max': 60, 'hardlimit': False,
        'priority': 3}

MOVE = [{
    'before': {'host_node': 0, 'vcpus': [1], 'pins': [[0, 4]],
               'reserved': [5], 'memory': 512, 'page_size': 2048,
               'shared': [1, 2]},
    'after': {'host_node': 1, 'vcpus': [1], 'pins': [[0, 8]],
              'reserved': [9], 'memory': 512, 'page_size': 2048,
              'shared': [3]}}]

#: Version and arguments, beside instance_uuid, by method.
REQUESTS = {
    'check_policy': ('1.0', {'policy': [NODE], 'running': True}),
    'policy_of': ('1.0', {'void': 't'}),
    'set_policy': ('1.0', {'policy': [NODE], 'token': 't', 'lock': 'l'}),
    'check_move': ('1.0', {'move': MOVE}),
    'move_nodes': ('1.0', {'move': MOVE, 'token': 't', 'lock': 'l'}),
}


class Bus:
    """A host that answers, as far as its release knows the call."""

    def __init__(self, answer, highest=messages.VERSION):
        self.answer, self.highest, self.calls = answer, highest, []

    def connect(self, _context, target):
        self.version = target.version
        return self

    def prepare(self, server, **patience):
        assert server == 'host_a'
        self.patience = patience
        return self

    def call(self, context, method, **arguments):
        if self.version > self.highest:
            raise oslo_messaging.RemoteError('UnsupportedVersion', 'x')
        assert arguments.pop('instance_uuid') == 'u'
        self.calls.append((method, self.version, arguments))
        return self.answer


class RequestTest(base.TestCase):

    def setUp(self):
        super().setUp()
        # oslo.messaging registers one of them with the first transport.
        self.enterContext(mock.patch(
            'ghsched_nova.features.live_change.rpcapi.get_long_rpc_timeouts',
            return_value={'timeout': 9}))

    def client(self, *args, **kwargs):
        self.bus = Bus(*args, **kwargs)
        with mock.patch('ghsched_nova.nova_seams.messaging.make_rpc_client',
                        self.bus.connect):
            return rpcapi.HostClient(None)

    def policy(self):
        return messages.pack_policy(
            GuestPolicy((NodePolicy(20, 60, False, 3),)), [1])

    def test_a_policy_is_packed_as_ever(self):
        self.assertEqual([NODE], self.policy())

    def test_each_request_is_as_ever(self):
        client = self.client({'policy': [NODE]})
        client.check_policy(GUEST, self.policy())
        client.cancel_call(GUEST, 't')
        client.set_policy(GUEST, self.policy(), 't', 'l')
        client.check_move(GUEST, move_messages.pack_move(plans.REQUEST))
        self.assertEqual({'call_monitor_timeout': 10, 'retry': 2},
                         self.bus.patience)
        client.move_nodes(
            GUEST, move_messages.pack_move(plans.REQUEST), 't', 'l'
        )
        self.assertEqual({'timeout': 9, 'retry': 2}, self.bus.patience)
        self.assertEqual(
            [(method, *request) for method, request in REQUESTS.items()],
            self.bus.calls)

    def test_report_of_a_feature_is_passed_on(self):
        client = self.client({'report': {'x': 1}})
        self.assertEqual({'x': 1}, client.get_report(GUEST, 'find', x=1))
        self.assertEqual([('find', '1.0', {'x': 1})], self.bus.calls)
        self.assertEqual({'timeout': 9, 'retry': 2}, self.bus.patience)
        error = self.assertRaises(errors.Refused,
                                  self.client({}, '0.9').get_report, GUEST,
                                  'find')
        self.assertIn('does not know the call', str(error))
        error = self.assertRaises(
            errors.Refused, self.client({'refused': 'no'}).get_report, GUEST,
            'find')
        self.assertEqual('host host_a: no', str(error))

    def test_a_move_is_read_as_ever(self):
        _version, arguments = REQUESTS['check_move']
        self.assertEqual(plans.REQUEST,
                         move_messages.unpack_move(arguments['move']))

    def test_answer_that_is_no_document_is_a_refusal(self):
        for answer in (None, [], 'x', 7, True):
            self.assertRaises(errors.Refused, self.client(answer).check_policy,
                              GUEST, self.policy())

    def test_each_answer_is_understood(self):
        for answer, kind, text in (
                ({'refused': 'no'}, errors.Refused, 'host host_a: no'),
                ({'refused': 'no', 'gone': True}, errors.GuestGone, 'no'),
                ({'refused': 'no', 'left': True}, errors.HostRollbackFailed,
                 'host host_a: no')):
            for more in ({}, {'new': 1}):
                error = self.assertRaises(
                    kind, self.client({**answer, **more}).set_policy, GUEST,
                    self.policy(), 't', 'l')
                self.assertIs(kind, type(error))
                self.assertEqual(text, str(error))

    def test_unknown_answers_of_a_later_release_are_ignored(self):
        client = self.client({'policy': [{**NODE, 'new': 1}], 'new': 2})
        self.assertEqual(
            (GuestPolicy((NodePolicy(20, 60, False, 3),)), (1,)),
            messages.unpack_policy(client.cancel_call(GUEST, 't')))


class EndpointTest(base.TestCase):

    def test_it_takes_what_each_release_sends(self):
        target = rpc.PolicyEndpoint.target
        self.assertEqual((messages.NAMESPACE, '1.0'),
                         (target.namespace, target.version))
        for method, (_version, arguments) in REQUESTS.items():
            inspect.signature(getattr(rpc.PolicyEndpoint, method)).bind(
                None, None, instance_uuid='u', **arguments)


class OutageTest(base.TestCase):
    """A real transport of oslo.messaging, to a bus that is not there."""

    def context(self, *urls):
        hosts = ','.join(urls)
        conf = cfg.ConfigOpts()
        conf([], project='x', default_config_files=[])
        transport = oslo_messaging.get_rpc_transport(
            conf, f'rabbit://{hosts}/')
        self.addCleanup(transport.cleanup)
        self.enterContext(mock.patch.object(nova_rpc, 'TRANSPORT', transport))
        return types.SimpleNamespace(mq_connection=transport, to_dict=dict)

    def unused(self):
        with socket.create_server(('127.0.0.1', 0)) as one:
            return f'u:p@127.0.0.1:{one.getsockname()[1]}'

    def test_question_without_a_bus_is_refused_at_once(self):
        client = rpcapi.HostClient(self.context(self.unused(), self.unused()))
        # The client's own wait is without an end here.
        with futures.ThreadPoolExecutor(1) as pool:
            error = pool.submit(client.check_policy, GUEST, ()).exception(
                timeout=base.GIVE_UP_S)
        self.assertIsInstance(error, errors.HostSilent)
        self.assertIn('the message bus does not answer', str(error))

    def test_bus_with_one_host_of_two_that_answers_is_up(self):
        with socket.create_server(('127.0.0.1', 0)) as one:
            up = f'u:p@127.0.0.1:{one.getsockname()[1]}'
            self.assertTrue(messaging.is_bus_reachable(
                self.context(self.unused(), up)))
        self.assertFalse(
            messaging.is_bus_reachable(self.context(self.unused())))

    def test_bus_whose_hosts_are_not_known_is_taken_to_be_up(self):
        for transport in (None, types.SimpleNamespace(), mock.Mock(
                _driver=mock.Mock(_url=None))):
            with mock.patch.object(nova_rpc, 'TRANSPORT', None):
                self.assertTrue(messaging.is_bus_reachable(
                    types.SimpleNamespace(mq_connection=transport)))

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

"""Changes and moves of guests under native threads."""

import contextlib
from types import SimpleNamespace
import uuid

from ghsched_nova.features.live_change import guest_move
from ghsched_nova.features.live_change import move_messages
from ghsched_nova.features.live_change import rpc
from ghsched_nova.tests.fixtures import moving_host
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import threads


class MoverStressTest(base.TestCase):

    def test_mover_under_native_threads_moves_each_guest(self):
        own_engine = SimpleNamespace(
            reconcile_guest=lambda _running: None,
            domain_xml=SimpleNamespace(update_memorytune=lambda xml: xml))
        memory = SimpleNamespace(move_guest_memory=self.move_guest_memory)
        mover = guest_move.Mover(own_engine, memory, threads.threading.RLock())
        self.hosts = {}

        def step(chance):
            name = f'u-{chance.randrange(2 ** 60)}'
            host = moving_host.MovingHost(moving_host.XML,
                                          (moving_host.OLD,))
            host.guest.uuid = host.guest.name = name
            self.hosts[name] = host
            mover.move_guest(
                host.domain, move_messages.pack_move(moving_host.REQUEST),
                lambda: host.claim((moving_host.NEW,)), lambda: host.cells)
            assert host.cells == (moving_host.NEW,) and host.node == 1
            assert not mover.is_moving(name)

        self.assertEqual([], threads.stress([step] * 4, 1))
        self.assertEqual(set(), mover._busy)

    def move_guest_memory(self, name, moved, nodes):
        self.hosts[name].move_guest_memory(name, moved, nodes)


class EndpointStressTest(base.TestCase):

    def test_void_calls_under_native_threads_are_refused(self):
        self.patch(rpc.PolicyEndpoint, 'running_domain', lambda _self, _uuid: (
            contextlib.nullcontext(SimpleNamespace(live_xml='<domain/>'))))
        endpoint = rpc.PolicyEndpoint(None, None, contextlib.nullcontext(),
                                      None, None, None)

        def step(chance):
            token = str(uuid.UUID(int=chance.getrandbits(128)))
            server = str(chance.randrange(3))
            assert endpoint.policy_of(None, server, token) == {'policy': None}
            answer = endpoint.set_policy(None, server, [], token, 'lock')
            assert 'has cancelled the change' in answer['refused'], answer

        self.assertEqual([], threads.stress([step] * 6, 20))
        self.assertEqual(120 * threads.SCALE, len(endpoint._void))

    def test_call_to_cancel_without_a_uuid_is_refused_and_not_kept(self):
        endpoint = rpc.PolicyEndpoint(None, None, contextlib.nullcontext(),
                                      None, None, None)
        self.patch(rpc.PolicyEndpoint, 'running_domain', lambda _self, _uuid: (
            contextlib.nullcontext(SimpleNamespace(live_xml='<domain/>'))))
        for void in ('x' * 2 ** 20, '', None, 7, ['a'], {}, 'not-a-uuid'):
            answer = endpoint.policy_of(None, 'server', void)
            self.assertIn('is not a UUID', answer['refused'])
        self.assertEqual(0, len(endpoint._void))
        void = '00000000-0000-4000-8000-000000000001'
        endpoint.policy_of(None, 'server', '-' * 2 ** 20 + void)
        self.assertEqual([void], list(endpoint._void))

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

"""Requests to nova-api that change a server."""

import types

from osc_lib import exceptions

from ghsched_placement.features.live_change import server_change
from ghsched_placement.osc import base as osc_base
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures.responses import make_client
from ghsched_placement.tests.fixtures.responses import Response


class SetBandwidthTest(base.TestCase):

    move = False

    def ask(self, response):
        self.sent = []

        def post(path, json, microversion, timeout):
            self.sent.append((path, json))
            return response

        client = make_client(compute=types.SimpleNamespace(post=post))
        if self.move:
            return server_change.move_server_nodes(client, 'a-b', {0: 1}, True)
        return server_change.set_bandwidth_policy(
            client, 'a-b', {'ghsched:mem_bw_min': '20'}, False)

    def refused(self, response, kind=exceptions.CommandError):
        with self.assertRaises(kind) as raised:
            self.ask(response)
        return str(raised.exception)

    def test_the_answer_is_the_document(self):
        self.assertEqual({'changed': True},
                         self.ask(Response(200, {'changed': True})))
        self.assertEqual([('/servers/a-b/action', {'ghsched': {
            'extra_specs': {'ghsched:mem_bw_min': '20'},
            'dry_run': False}})], self.sent)

    def test_a_refusal_has_the_words_of_the_cloud(self):
        for status in (400, 404, 409):
            self.assertEqual('refused: full', self.refused(Response(
                status, {'ghsched': {'code': status, 'message': 'full'}}),
                osc_base.CommandRefused))

    def test_a_cloud_without_the_filter_is_explained(self):
        told = self.refused(Response(
            400, {'badRequest': {'message': 'no such action'}}))
        self.assertIn('without the paste filter', told)
        self.assertIn('"ghsched server set" works without it', told)

    def test_a_move_is_asked_for_by_the_same_action(self):
        self.move = True
        self.ask(Response(200, {'changed': True}))
        self.assertEqual([('/servers/a-b/action', {'ghsched': {
            'move_nodes': {'0': 1}, 'dry_run': True}})], self.sent)
        self.assertNotIn('server set', self.refused(Response(
            400, {'badRequest': {'message': 'no such action'}})))

    def test_remaining_manual_work_is_no_refusal(self):
        self.assertIn('reboot it', self.refused(Response(
            500, {'ghsched': {'code': 500, 'message': '- reboot it'}})))

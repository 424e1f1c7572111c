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

"""The server action "ghsched", and who may use it."""

from tempest import config
from tempest.lib import decorators
from tempest.lib import exceptions

from ghsched_placement.providers import names
from tempest_plugin.tests import base

CONF = config.CONF

#: More than a NUMA node has.
TOO_MUCH = 101


def describe_answer(**properties):
    """Return what tempest is to find in the answer of nova-api."""
    return {'status_code': [200], 'response_body': {
        'type': 'object', 'required': ['server', *properties],
        'properties': {key: {'const': value}
                       for key, value in properties.items()}}}


class ServerActionTest(base.GhschedTest):
    """Base of tests with a running server that has a share."""

    #: Of the host NUMA node's memory bandwidth, in percent.
    SHARE = 20

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        if not CONF.ghsched.live_change:
            raise cls.skipException('[ghsched]live_change is off')

    def setUp(self):
        super().setUp()
        self.server = self._boot_server(self._create_flavor(
            mem_bw_min=self.SHARE, mem_bw_max=60))

    def _act(self, client, answer=None, **body):
        client.action(self.server['id'], 'ghsched',
                      schema=answer or describe_answer(), **body)

    def _change(self, client=None, **keys):
        self._act(client or self.admin_servers, describe_answer(changed=True),
                  extra_specs={f'ghsched:{key}': str(value)
                               for key, value in keys.items()})

    def _assert_share(self, share):
        self.assertEqual(
            [share], self._get_amounts(self.server, names.MEM_BW_PCT))


class LiveChangeTest(ServerActionTest):
    """A server gets another share while it runs."""

    @decorators.attr(type='smoke')
    @decorators.idempotent_id('91f0b3d7-5a6e-4c28-9e17-2b4d6f8a0c35')
    @base.needs('MEM_BW_MIN', 'MEM_BW_MAX')
    def test_placement_and_flavor_have_the_new_share(self):
        self._change(mem_bw_min=30)
        self._assert_share(30)
        shown = self._show_server(self.server)
        self.assertEqual('ACTIVE', shown['status'])
        self.assertEqual(
            '30', shown['flavor']['extra_specs']['ghsched:mem_bw_min'])

    @decorators.idempotent_id('1c8e54a2-0d0e-4a43-9a53-7be52e3f9d12')
    @base.needs('MEM_BW_MIN', 'MEM_BW_MAX')
    def test_lower_share_is_free_again(self):
        self._change(mem_bw_min=10)
        self._assert_share(10)

    @decorators.idempotent_id('f7c6e1d5-2f5e-4d0c-8c5f-90be6a2d4e13')
    @base.needs('MEM_BW_MIN', 'MEM_BW_MAX')
    @base.looks_at_host
    def test_host_holds_the_new_share_and_cap(self):
        self._change(mem_bw_min=30, mem_bw_max=40)
        node, = self._get_host_nodes(self.server)
        schemata = self._read_schemata(self.server)
        step = self._host(self.server).read_bandwidth_step()
        self.assertIn(int(schemata['MB'][node]), range(40, 40 + step))
        if 'MBMIN' in schemata:
            self.assertEqual(30, int(schemata['MBMIN'][node]))

    @decorators.idempotent_id('7de9c0fb-0a53-4c1e-b7a8-4fd6ae1f5b14')
    @base.needs('MEM_BW_MIN', 'MEM_BW_MAX')
    def test_dry_run_changes_nothing(self):
        self._act(self.admin_servers, dry_run=True,
                  extra_specs={'ghsched:mem_bw_min': '30'})
        self._assert_share(self.SHARE)

    @decorators.attr(type='negative')
    @decorators.idempotent_id('c82d4e6f-1b3a-4957-8c0e-7f5a3b1d9e42')
    @base.needs('MEM_BW_MIN', 'MEM_BW_MAX')
    def test_impossible_values_are_refused_and_change_nothing(self):
        for keys in ({'mem_bw_min': TOO_MUCH}, {'mem_bw_min': 70},
                     {'l3_ways': 2}):
            refused = self.assertRaises(
                exceptions.BadRequest, self._change, **keys)
            self.assertIn('ghsched:', str(refused))
        self._assert_share(self.SHARE)

    @decorators.idempotent_id('2b7a4e90-6c1d-4f3a-a8e5-d01c9b3f7e15')
    @base.needs('MEM_BW_MIN', 'MEM_BW_MAX')
    def test_server_moves_to_another_node_of_its_host_or_is_refused(self):
        """Whether a host can is known to the host alone."""
        node, = self._get_host_nodes(self.server)
        try:
            self._act(self.admin_servers, move_nodes={'0': 1 - node})
            node = 1 - node
        except exceptions.Conflict as refused:
            self.assertIn('NUMA nodes', str(refused))
        self.assertEqual(
            {node: self.SHARE}, self._get_host_nodes(self.server))


class RightsTest(ServerActionTest):
    """A tenant may use no part of the action, and learns no host."""

    credentials = ['primary', 'admin', 'project_member', 'project_reader']

    def _list_actions(self):
        """Return each act that a rule of ghsched allows."""
        specs = {'ghsched:mem_bw_min': '30'}
        return ({'extra_specs': specs},
                {'extra_specs': specs, 'dry_run': True},
                {'move_nodes': {'0': 1}},
                {'move_nodes': {'0': 1}, 'dry_run': True},
                {'blame': True},
                {'blame': True, 'prove': True})

    @decorators.attr(type='negative')
    @decorators.idempotent_id('d4f2a8b6-3e17-4c59-8b0d-6a1e9f5c2d16')
    @base.needs('MEM_BW_MIN', 'MEM_BW_MAX')
    def test_member_of_the_project_is_refused_each_act(self):
        for body in self._list_actions():
            refused = self.assertRaises(
                exceptions.Forbidden, self._act, self.servers, **body)
            self.assertNotIn(self.server['OS-EXT-SRV-ATTR:host'],
                             str(refused))
        self._assert_share(self.SHARE)

    @decorators.attr(type='negative')
    @decorators.idempotent_id('83b5d7c1-9a2f-4e6c-b4d8-0f7e1a3c5b17')
    @base.needs('MEM_BW_MIN', 'MEM_BW_MAX')
    def test_users_of_other_projects_are_refused_each_act(self):
        for manager in (self.os_project_member, self.os_project_reader):
            for body in self._list_actions():
                self.assertRaises(
                    (exceptions.Forbidden, exceptions.NotFound), self._act,
                    manager.servers_client, **body)
        self._assert_share(self.SHARE)

    @decorators.attr(type='negative')
    @decorators.idempotent_id('5f3c1e7a-8d4b-4206-9e8c-b2a6d0f4c718')
    @base.needs('MEM_BW_MIN', 'MEM_BW_MAX')
    def test_refused_requests_are_listed_to_admins_alone(self):
        answer, _ = self.admin_servers.get('ghsched/refusals')
        self.assertEqual(200, answer.status)
        for client in (self.servers, self.os_project_reader.servers_client):
            self.assertRaises(
                exceptions.Forbidden, client.get, 'ghsched/refusals')

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

"""Forged diagnostics of one host: the commands show the others as ever.

Each field of each record in the diagnostics of a guest is forged in turn
(tests/fixtures/forged.py), and the commands of an administrator run: audit,
host show, server list, server history, flavor check and rebalance plan.
"""

import json

from ghsched_placement.audit import diagnostics
from ghsched_placement.features.history import server_history
from ghsched_placement.features.history import usage_history
from ghsched_placement.features.load import load
from ghsched_placement.features.rebalance import affinity
from ghsched_placement.features.rebalance import affinity_policy
from ghsched_placement.features.rebalance import measured
from ghsched_placement.features.rebalance import move_plan
from ghsched_placement.features.rebalance import traffic
from ghsched_placement.fit import capacity
from ghsched_placement.fit import fitting
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.fit import node_capacity
from ghsched_placement.flavor import policy as policies
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.osc import audit as audits
from ghsched_placement.osc import client as clients
from ghsched_placement.osc import host_commands
from ghsched_placement.osc import node_capacities
from ghsched_placement.osc import observe
from ghsched_placement.osc import server as servers
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds
from ghsched_placement.tests.fixtures import commands
from ghsched_placement.tests.fixtures import forged
from ghsched_placement.tests.osc import test_client

SERVERS = {'good': '11111111-1111-1111-1111-111111111111',
           'evil': '22222222-2222-2222-2222-222222222222'}
NOW = 1_800_000_000
#: Calls that all the commands take at most, for a forged record too.
MOST_CALLS = 100000


def make_report(uuid):
    return diagnostics.make_guest_diagnostics(diagnostics.GuestReport(
        (diagnostics.GuestNodeReport(0, 30, 100.0, False, 3, 5, '', 30, 100,
                                     True),),
        (diagnostics.HostNodeReport(0, 5, 10, 20.0, 10, 30, .1, 9, 1, 1, 10),),
        domains=(uuid,), accounting='min',
        missing_devices=()))[diagnostics.KEY]


def make_capacity(_uuid):
    return {'version': 1, 'nodes': [
        {'node': one, 'cpus': 8, 'vcpus_used': 1, 'cpu_ratio': 4.0,
         'dedicated': 8, 'dedicated_used': 1, 'memory': 1000,
         'memory_used': 10, 'ram_ratio': 1.0, 'socket': 0, 'pages': [
             {'size_kb': 4, 'total': 256000, 'used': 0, 'reserved': 0},
             {'size_kb': 2048, 'total': 9, 'used': 0, 'reserved': 0}]}
        for one in range(2)]}


def make_load(uuid):
    node = {'cpus': 4, 'vcpus': 2, 'memory': 1000, 'memory_free': 500,
            'cpu_load': .9, 'cpu_wait': .1, 'bandwidth': 1e9,
            'capacity': 2e9, 'memory_load': .5, 'io_wait': .5,
            'bottlenecks': ['cpu_load']}
    return {
        'version': 1, 'time': NOW, 'period': 60.0,
        'nodes': [{'node': one, **node} for one in range(2)],
        'guests': [{'guest': uuid, 'node': 0, 'host_node': 0, 'vcpus': 2,
                    'memory': 100, 'cpu_load': .9, 'cpu_wait': .1,
                    'bandwidth': 1e8}]}


def make_history(uuid):
    return {
        'version': 1, 'names': {uuid: 'web'}, 'capacity': [[0, 10 ** 10]],
        'minutes': [[uuid, 0, [NOW // 60, 60.0, 10 ** 9, 1, 60.0, 7]]]}


#: Functions that make the records of an honest host with one guest, by key.
RECORDS = {
    diagnostics.KEY: make_report,
    traffic.KEY: lambda _uuid: [['10.0.0.1', '10.0.0.2', 1000]],
    load.KEY: make_load,
    node_capacity.KEY: make_capacity,
    usage_history.KEY: make_history,
}
#: Records of which another version is skipped.
WITH_VERSION = (load.KEY, node_capacity.KEY, usage_history.KEY)


def make_records(name):
    """Return the records of an honest host with one guest, by their keys."""
    return {key: make(SERVERS[name]) for key, make in RECORDS.items()}


#: Records that are inside the answer; the others are texts in it.
INSIDE = (diagnostics.KEY, traffic.KEY)


def make_answer(records):
    """Return the diagnostics of a guest as JSON, of the texts of records."""
    inside = ', '.join(
        f'"{key}": {text if key in INSIDE else json.dumps(text)}'
        for key, text in records.items())
    return f'{{{inside}}}'


class Cloud(clients.Client):
    """Two hosts with one guest each.

    :param answers: diagnostics of the guest of each host, as JSON.
    """

    def __init__(self, answers):
        super().__init__(None, workers=1)
        self._answers = answers
        self._hosts = [clouds.host(
            clouds.node(0, used=30, name=name), clouds.node(1, name=name),
            name=name, VCPU=64, MEMORY_MB=65536) for name in answers]

    def _request_diagnostics(self, uuid, host):
        name = {uuid: name for name, uuid in SERVERS.items()}[uuid]
        return test_client.Response(200, text=self._answers[name])

    def list_hosts(self, names=()):
        return self._hosts

    def list_compute_nodes(self):
        return {one.uuid: {'state': 'up', 'status': 'enabled',
                           'service': {'host': one.name}}
                for one in self._hosts}

    def list_servers(self, service_host=None):
        return [{'id': SERVERS[one.name], 'name': one.name, 'tenant_id': 'p',
                 'status': 'ACTIVE', 'OS-EXT-STS:task_state': None,
                 'OS-EXT-STS:power_state': 1,
                 'OS-EXT-SRV-ATTR:hypervisor_hostname': one.name,
                 'addresses': {'net': [{'addr': f'10.0.0.{number}'}]},
                 'flavor': {'vcpus': 2, 'extra_specs': {
                     'ghsched:mem_bw_min': '30'}}}
                for number, one in enumerate(self._hosts, 1)]

    def list_active_servers(self, service_host, limit):
        return [SERVERS[service_host]]

    def get_host_numa_nodes(self, uuid):
        return (0,)

    def query_nova(self, _path, _microversion, default=None):
        return {'server_groups': []}

    def list_host_allocations(self, host):
        return {SERVERS[host.name]: {
            host.uuid: {names.RESCTRL_GROUP: 1},
            host.nodes[0].uuid: {names.MEM_BW_PCT: 30}}}


def run_commands(answers):
    """Return what the commands show of each host, by name of the host."""
    client = Cloud(answers)
    seen = observe.collect_host_records(client, ask_hosts=True)
    shown = {one.host.name: {
        'findings': [*one.findings, *one.unchecked],
        'repairs': audits.list_planned_repairs(one),
        'row': commands.plain(host_commands.make_host_row(one)),
        'report': commands.plain(host_commands.make_host_report(one).values())}
        for one in seen}
    for one in seen:
        json.dumps(shown[one.host.name]['row'])
        json.dumps(shown[one.host.name]['report'])
        shown[one.host.name]['servers'] = [
            commands.plain(servers.make_server_row(one, guest))
            for guest in one.servers]
        shown[one.host.name]['fits'] = _check_flavor(client, one.host)
    for record in client.list_servers():
        for command, show in SERVER_COMMANDS.items():
            shown[record['name']][command] = show(client, record)
    return shown, [plan(client) for plan in PLANS]


def _check_flavor(client, host):
    rooms = node_capacities.read_free_node_resources(
        client, [host], client.list_compute_nodes())
    found, = rooms.add_free_node_resources([host])
    capacity.compute_fragmentation(found)
    host_commands.make_host_report(observe.HostRecords(found, (), {}, ()))
    return fitting.check_host_capacity(found, GuestDemand(
        policies.GuestPolicy((policies.NodePolicy(10),)), 1,
        needs=(GuestNode(shared=2, memory=100),)))


def _list_history(client, record):
    try:
        return server_history.list_history_rows(client, record)
    except servers.base.CommandRefused as error:
        return str(error)


def _plan_moves(client):
    cloud, _records = measured.read_cloud_for_rebalance(
        client, affinity.Bounds())
    affinity_policy.Affinity().plan(cloud, move_plan.Settings(), (), NOW)
    return [node for node in cloud.nodes if node.spot.host == 'good']


#: Functions that show something of a server, by module of the command.
SERVER_COMMANDS = {server_history: _list_history}
#: Functions that plan something for a cloud, and what they know of a host.
PLANS = (_plan_moves,)


class ForgedDiagnosticsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.texts = {name: {key: json.dumps(one) for key, one
                             in make_records(name).items()}
                      for name in SERVERS}
        self.answers = {name: make_answer(texts)
                        for name, texts in self.texts.items()}
        self.honest = run_commands(self.answers)

    def check(self, what, answer):
        """Check that the good host is as ever; return what the other is."""
        (shown, plans), calls = forged.count_calls(
            lambda: run_commands({**self.answers, 'evil': answer}))
        self.assertEqual(self.honest[0]['good'], shown['good'], what)
        self.assertEqual(self.honest[1], plans, what)
        self.assertLess(calls, MOST_CALLS, what)
        return [one for one in shown['evil']['findings']
                if one.kind == 'report-malformed']

    def test_records_of_honest_hosts_are_all_shown(self):
        for name in SERVERS:
            shown = self.honest[0][name]
            self.assertEqual([], shown['findings'])
            self.assertEqual(16, shown['fits'].guests)

    def test_history_of_honest_hosts_is_shown(self):
        for name in SERVERS:
            self.assertEqual(2, len(self.honest[0][name][server_history]))

    def test_load_of_honest_host_is_known_to_the_planner_of_moves(self):
        nodes = self.honest[1][PLANS.index(_plan_moves)]
        self.assertEqual([500.0] * 2, [node.memory for node in nodes])

    def test_forged_records_cost_their_own_host_only(self):
        for key, record in make_records('evil').items():
            for what, text in forged.forge({'record': record}, 25):
                # Of an object with one field, its value is the record.
                if not text.startswith('{"record": ') or text == '{}':
                    continue
                self.check(f'{key}: {what}', make_answer({
                    **self.texts['evil'],
                    key: text.removeprefix('{"record": ')[:-1]}))

    def test_forged_answers_cost_their_own_host_only(self):
        for answer in ('', '[]', '7', '"x"', 'null', 'NaN', '[' * 100000,
                       f'{{"ghsched": {"9" * 5000}}}',
                       f'{{"x": "{"x" * 5 * 2 ** 20}"}}'):
            found = self.check(answer[:30], answer)
            self.assertEqual(['evil'], [one.subject for one in found], answer)

    def test_each_record_that_cannot_be_read_is_a_finding_of_its_host(self):
        for key in make_records('evil'):
            text = '{"version": 1}'
            if key == diagnostics.KEY:
                text = '{"guest": [{"host_node": []}]}'
            finding, = self.check(key, make_answer({
                **self.texts['evil'], key: text}))
            self.assertEqual(('evil', 'evil'), (finding.host, finding.subject))
            self.assertIn(f'({key})', finding.text)

    def test_record_of_another_version_is_no_finding(self):
        for key in WITH_VERSION:
            self.assertEqual([], self.check(key, make_answer({
                **self.texts['evil'], key: '{"version": 2}'})))

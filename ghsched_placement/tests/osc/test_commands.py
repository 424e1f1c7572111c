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

"""The pure parts of the commands: what goes in, what is shown."""

import argparse
import contextlib
import dataclasses
import io
import json
import types
from unittest import mock

import fixtures
from hypothesis import given
from hypothesis import strategies as st
from osc_lib import exceptions

from ghsched_placement.audit import audit
from ghsched_placement.audit import audit_host
from ghsched_placement.audit import diagnostics
from ghsched_placement.audit.findings import Finding
from ghsched_placement.audit.findings import Server
from ghsched_placement.features.flavor_check import flavor_check as flavor
from ghsched_placement.features.rebalance import rebalance
from ghsched_placement.fit import capacity as capacities
from ghsched_placement.fit import fitting
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.flavor import policy as policies
from ghsched_placement.osc import audit as audits
from ghsched_placement.osc import capacity
from ghsched_placement.osc import columns
from ghsched_placement.osc import host_commands
from ghsched_placement.osc import observe
from ghsched_placement.osc import server
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds
from ghsched_placement.tests.fixtures import commands
from ghsched_placement.tests.osc import test_client


def record(status='ACTIVE', task=None, **specs):
    return {'id': 'u', 'name': 'web', 'status': status,
            'OS-EXT-STS:task_state': task,
            'OS-EXT-SRV-ATTR:hypervisor_hostname': 'a',
            'flavor': {'extra_specs': {
                f'ghsched:{key}': value for key, value in specs.items()}}}


class CapacityTest(base.TestCase):

    def test_a_row_for_each_node_and_one_for_the_rest(self):
        found = clouds.host(
            clouds.node(0, used=30, reserved=10, bursts=40, bursts_used=30),
            clouds.node(1, bandwidth=0),
            clouds.pf('0000:01:00.0', 0, used=1),
            clouds.pf('0000:02:00.0', None))
        rows = [commands.plain(row) for row in capacity.list_node_rows(found)]
        self.assertEqual([
            ['a', 0, 100, 10, 30, 60, 60], ['a', 1, *[None] * 5],
            ['a', *[None] * 6]], [row[:7] for row in rows])
        self.assertEqual([7, None, 8], [
            row[7][0]['free'] if row[7] else None for row in rows])
        self.assertEqual([[31, 100]] * 3, [row[8:10] for row in rows])
        self.assertEqual([[40, 30, 10], [None] * 3, [None] * 3],
                         [row[10:13] for row in rows])
        self.assertEqual(len(capacity.COLUMNS), len(rows[0]))

    def test_rows_of_nodes_with_a_room_have_cpus_and_memory(self):
        found = capacities.set_node_capacity(
            clouds.host(clouds.node(0), clouds.node(1)),
            [NodeCapacity(0, 4, 2, 2.0, 8, 9, 1024, 512)])
        rows = [commands.plain(row) for row in capacity.list_node_rows(found)]
        self.assertEqual([[6, 0, 512], [None] * 3],
                         [row[13:16] for row in rows])


class BurstsTest(base.TestCase):

    def test_largest_project_is_shown_where_the_host_reports_it(self):
        node = clouds.host(clouds.node(
            0, used=30, bursts=40, bursts_used=30)).nodes[0]
        for largest, shown in (
                (18, ', 18 % are of one project,'),
                (None, '40 % kept for bursts, 10 % more can be promised')):
            report = host_commands._make_burst_report(
                node, diagnostics.HostNodeReport(
                    0, bursts_chance=.004, bursts_largest_project=largest))
            self.assertIn(shown, host_commands._format_bursts(report))


class ServersTest(base.TestCase):

    def test_a_server_of_the_api(self):
        found = observe.parse_server_record(record(mem_bw_min='30'), (1, None))
        self.assertEqual(
            ('u', 'a', (1,), False, 2),
            (found.uuid, found.host, found.nodes, found.moving,
             len(found.policy.nodes)))

    def test_on_its_way(self):
        for status, task, moving in (
                ('ACTIVE', None, False), ('VERIFY_RESIZE', None, True),
                ('ACTIVE', 'migrating', True), ('SHUTOFF', None, False)):
            self.assertEqual(moving, observe.is_server_moving(
                record(status, task)), status)

    def observed(self, *listed, status, known):
        """A host of which a consumer holds a share.

        :param listed: servers that Nova lists for the host.
        :param status: of the consumer's server, which is known to be there.
        """
        held = {clouds.node_uuid('a', 0): {'resources': {
            names.MEM_BW_PCT: 30}}}
        found = record(status)
        nova = test_client.Adapter(
            servers=test_client.Response(200, {'server': found}),
            os_migrations=test_client.Response(200, {'migrations': []}))
        placement = test_client.Adapter(
            resource_providers=test_client.Response(
                200, {'allocations': {known: held[clouds.node_uuid('a', 0)]}}),
            allocations=test_client.Response(200, {'allocations': held}))
        client = test_client.make_client(placement, nova)
        return observe._collect_records_of_host(
            client, clouds.host(clouds.node(0)), listed, {'state': 'up'},
            client.list_migrations_in_progress, False, 'min')

    def test_a_deleted_server_that_can_be_restored_keeps_what_it_holds(self):
        seen = self.observed(status='SOFT_DELETED', known='soft-deleted')
        self.assertIn('soft-deleted', seen.holdings)
        self.assertEqual((), seen.findings)

    def test_an_offloaded_server_is_on_no_host_whatever_nova_says(self):
        left = record('SHELVED_OFFLOADED')
        seen = self.observed(left, status='SHELVED_OFFLOADED',
                             known=left['id'])
        self.assertEqual([('allocation-elsewhere', left['id'])],
                         [(one.kind, one.subject) for one in seen.findings])
        self.assertIn('on no host', seen.findings[0].text)
        self.assertEqual([left['id']],
                         [one.consumer
                          for one in audits.list_planned_repairs(seen)])
        coming = record('SHELVED_OFFLOADED', task='unshelving')
        self.assertTrue(observe.is_on_recorded_host(coming))

    def test_a_host_knows_best_what_it_counts(self):
        for told, said, counted in (
                ((), 'min', 'min'), ((), 'max', 'max'),
                (('max',), 'min', 'max'), (('min',), 'max', 'min'),
                (('',), 'max', 'max'), (('', 'max'), 'min', 'max')):
            self.assertEqual(counted, observe.get_reported_accounting(
                [diagnostics.GuestReport(accounting=one) for one in told],
                said))

    def test_a_policy_that_makes_no_sense(self):
        found = observe.parse_server_record(record(mem_bw_min='x'), (0,))
        self.assertIn('not a whole number', found.problem)

    def test_a_class_of_ghsched_by_hand_is_named_by_the_audit(self):
        known = record()
        known['flavor']['extra_specs'] = {'resources:CUSTOM_MEM_BW_PCT': '30'}
        found = observe.parse_server_record(known, (0,))
        self.assertIn('use ghsched:mem_bw_min', found.problem)
        finding, = audit.audit_host_allocations(
            clouds.host(clouds.node(0)), [found], {'u': {
                clouds.node_uuid('a', 0): {names.MEM_BW_PCT: 30}}},
            audits.observe.OtherConsumers(), 'min')
        self.assertIn('resources:CUSTOM_MEM_BW_PCT', finding.text)
        self.assertIn('resize', finding.remedy)

    def test_extra_specs_that_nova_keeps_to_itself(self):
        with self.assertRaisesRegex(exceptions.CommandError, 'os-flavor-ext'):
            observe.get_flavor_extra_specs({'flavor': {}})

    @base.needs_features('bursts')
    def test_a_row_for_each_guest_node(self):
        policy = policies.parse_policy({
            'ghsched:mem_bw_min.1': '20', 'ghsched:vfs.0': 'nic:2'}, 2)
        rows = [commands.plain(row)
                for row in server.list_node_rows(server.ServerRecords(
                    'a', policy, (1, 0), {0: 20}, diagnostics.GuestReport((
                        diagnostics.GuestNodeReport(
                            0, 20, 100, True, 3, 1500000),))))]
        self.assertEqual([
            [0, 'a', 1, 0, 100, True, None, ['nic:2'], 0, *[None] * 5,
             0, 0, 0, *[None] * 3],
            [1, 'a', 0, 20, 100, True, None, [], 20, 20, 100, True, 3, 1.5,
             0, 0, 0, *[None] * 3],
        ], rows)
        self.assertEqual(len(server.COLUMNS), len(rows[0]))


class MissingHostTest(base.TestCase):
    """Servers on no host, and servers whose host is not shown."""

    FAULT = 'No valid host was found. no host NUMA node has 90 % left'

    def records(self, shown, cells=1, host=None, **more):
        """Rows and notes of a server.

        :param shown: whether Nova shows hosts to the user.
        :param cells: guest NUMA nodes that Nova has of the server.
        """
        known = {**record(**{'mem_bw_min': '90', **more.pop('specs', {})}),
                 **more}
        known['OS-EXT-SRV-ATTR:hypervisor_hostname'] = host
        if not shown:
            del known['OS-EXT-SRV-ATTR:hypervisor_hostname']
        # Nova has the number of the guest node where it has no host node.
        client = types.SimpleNamespace(get_host_numa_nodes=lambda _uuid: tuple(
            number if shown else None for number in range(cells)))
        notes = []
        found = server.collect_server_records(
            client, known, lambda text, *args: notes.append(text % args))
        return notes, [commands.plain(row)
                       for row in server.list_node_rows(found)]

    def test_a_refused_server_is_on_no_host_whoever_asks(self):
        for shown in (True, False):
            notes, rows = self.records(shown, status='ERROR',
                                       fault={'message': self.FAULT})
            self.assertEqual([f'web is on no host: {self.FAULT}'], notes)
            self.assertEqual([[0, None, None, 90]],
                             [row[:4] for row in rows])

    def test_a_refused_server_with_any_number_of_nodes_has_its_fault(self):
        for shown in (True, False):
            notes, rows = self.records(
                shown, 0, specs={'numa': 'auto'}, status='ERROR',
                fault={'message': self.FAULT})
            self.assertEqual([f'web is on no host: {self.FAULT}'], notes)
            self.assertEqual([[None] * 3], [row[:3] for row in rows])

    def test_a_server_without_a_fault_has_its_status(self):
        notes, _rows = self.records(True, status='SHELVED_OFFLOADED')
        self.assertEqual(
            ['web is on no host: its status is SHELVED_OFFLOADED'], notes)

    def test_a_running_server_is_not_said_to_be_on_no_host_to_a_tenant(self):
        for more in ({'status': 'ACTIVE'}, {
                'status': 'ERROR', 'fault': {'message': 'libvirt broke'}}):
            notes, rows = self.records(False, **more)
            self.assertIn('Only an admin sees the host', notes[0])
            self.assertEqual([[0, None, None, 90]], [row[:4] for row in rows])


class CountOptionTest(base.TestCase):
    """Numbers of servers and guests on the command line."""

    COMMANDS = ((server.ListServers, '--limit', ()),
                (flavor.CheckFlavor, '--count', ('f',)),
                (rebalance.PlanRebalance, '--count', ()),
                (rebalance.ApplyRebalance, '--count', ()))

    def test_a_number_below_one_is_wrong_usage(self):
        for kind, option, arguments in self.COMMANDS:
            parser = kind(None, None).get_parser('openstack ghsched')
            for value in ('-1', '0', '', '1e3', '9' * 5000):
                with contextlib.redirect_stderr(io.StringIO()) as said:
                    self.assertRaises(SystemExit, parser.parse_args,
                                      [*arguments, f'{option}={value}'])
                self.assertIn('not an integer from 1', said.getvalue())
            parser.parse_args([*arguments, f'{option}=7'])


class AuditTest(base.TestCase):
    """Output of an audit, and its pause after the first look at hosts."""

    def audit(self, kind, fix, second=True):
        """Return log and pauses of an audit that finds something.

        :param second: whether a second look finds it as well.
        """
        found = observe.HostRecords(
            clouds.host(clouds.node(0)), (), {},
            (Finding('a', kind, 'u', 'text', 'remedy'),))
        looks = [[found], [found if second else dataclasses.replace(
            found, findings=())]]
        pauses = []
        self.patch(audits.time, 'sleep', pauses.append)
        self.patch(audits, 'collect_host_records',
                   lambda *_args: looks.pop(0))
        self.patch(audits.clients, 'get_client', lambda _app: None)
        command = audits.Audit(None, None)
        parser = command.get_parser('openstack ghsched audit')
        with fixtures.FakeLogger() as log:
            _columns, rows = command.take_action(parser.parse_args(
                ['--fix'] if fix else []))
        return log.output, pauses, len(rows)

    def test_nothing_that_can_be_fixed_is_said(self):
        for fix in (True, False):
            log, _pauses, rows = self.audit('host-differs', fix)
            self.assertEqual((fix, 1), ('nothing of this can be' in log, rows))

    def test_a_list_of_the_host_is_looked_at_again_when_it_is_a_new_one(self):
        for kind in audit_host.REPORTED_KINDS:
            _log, pauses, rows = self.audit(kind, False, second=False)
            self.assertEqual(0, rows)
            self.assertGreater(sum(pauses), diagnostics.LISTED_FOR_S)
        self.assertEqual([], self.audit('host-differs', False)[1])


class ServersOfTheCloudTest(base.TestCase):
    """The order of "openstack ghsched server list"."""

    def listed(self, by, **hosts):
        """Names, and MB/s as a program gets them.

        :param hosts: bytes per second of each of their servers, which are
            named after the host and these.
        """
        policy = policies.GuestPolicy((policies.NodePolicy(10),))
        seen = [observe.HostRecords(
            clouds.host(clouds.node(0, name=name), name=name),
            tuple(Server(f'{name}-{used}', f'{name}-{used}', name, policy,
                         nodes=(0,), effective={0: diagnostics.GuestNodeReport(
                             0, 10, used=used)}) for used in uses),
            {}, ()) for name, uses in hosts.items()]
        return [(row[1], commands.plain(row)[6])
                for row in server.make_sorted_server_rows(seen, by)]

    def test_the_largest_of_all_hosts_is_first_and_the_unknown_last(self):
        self.assertEqual(
            [('b-9000000', 9.0), ('a-2000000', 2.0), ('b-1000000', 1.0),
             ('a-0', 0.0), ('a-None', None), ('b-None', None)],
            self.listed('used', b=(None, 1000000, 9000000),
                        a=(0, None, 2000000)))


class HostTest(base.TestCase):

    def seen(self, **more):
        found = clouds.host(clouds.node(0, used=30), clouds.node(1),
                            clouds.pf('0000:01:00.0', 0, used=1))
        guest = Server(
            'u', 'web', 'a', policies.GuestPolicy((policies.NodePolicy(30),)),
            nodes=(0,), effective={0: diagnostics.GuestNodeReport(0, 30)})
        findings = audit.audit_host_allocations(found, [guest], {})
        return observe.HostRecords(
            found, (guest, Server('v', 'plain', 'a')),
            {'u': {clouds.node_uuid('a', 0): {'CUSTOM_MEM_BW_PCT': 30}}},
            findings, 'up', 'enabled',
            (diagnostics.HostNodeReport(0, 10 ** 9, 10 ** 10),))

    def test_a_host_in_one_line(self):
        self.assertEqual(
            ['a', 'up', 'enabled', 2, 30, 170, 100, 7, 31, 1, 2, [70, 100]],
            commands.plain(host_commands.make_host_row(self.seen())))

    def test_all_of_a_host(self):
        found = host_commands.make_host_report(self.seen())
        told = dict(zip(found, commands.plain(found.values()), strict=True))
        json.dumps(told)
        node = told['numa_nodes'][0]
        self.assertEqual((30, 30, 10 ** 9), (
            node['used_percent'], node['effective_percent'],
            node['measured_bytes_per_second']))
        self.assertEqual(['u'], [one['server'] for one in told['guests']])
        self.assertEqual({0: 30}, told['guests'][0]['allocated_percent'])

    def test_for_people(self):
        found = host_commands.make_host_report(self.seen())
        self.assertEqual(
            'node 0: 30 % used, 70 % free, 30 % set on the host, measured '
            '1000 MB/s of 10000 MB/s, 0000:01:00.0 7/8 VFs free\n'
            'node 1: 0 % used, 100 % free, 0 % set on the host',
            found['numa_nodes'].human_readable())
        self.assertEqual(
            'web (u): allocated 30 % on node 0, set on the host 30 % on node '
            '0', found['guests'].human_readable())
        self.assertTrue(found['drift'].human_readable().startswith(
            'allocation-differs: u: web has no allocation on this host'))


class SharedGroupTest(base.TestCase):

    def seen(self, *groups):
        """Guests of 10 % that are told to be in groups of 30 %."""
        found = clouds.host(clouds.node(0, used=30), clouds.node(1))
        servers = tuple(Server(
            f'u{number}', 'web', 'a', policies.GuestPolicy(
                (policies.NodePolicy(10),)), nodes=(0,),
            effective={0: diagnostics.GuestNodeReport(0, 30, group=group)})
            for number, group in enumerate(groups))
        return host_commands.make_host_report(
            observe.HostRecords(found, servers, {}, ()))

    def test_guarantees_are_counted_once(self):
        for groups, percent in ((('g', 'g', 'g'), 30), (('g', 'h'), 60),
                                (('', ''), 60), (('g', '', 'g'), 60)):
            node, other = self.seen(*groups)['numa_nodes'].machine_readable()
            self.assertEqual((percent, 0), (node['effective_percent'],
                                            other['effective_percent']))

    def test_a_guest_that_has_it_with_others_says_so(self):
        guests = self.seen('g', '')['guests']
        self.assertEqual(
            ['g', None],
            [one['shared_group'] for one in guests.machine_readable()])
        self.assertEqual(
            'web (u0): allocated nothing, set on the host 30 % on node 0 for '
            'all in g\n'
            'web (u1): allocated nothing, set on the host 30 % on node 0',
            guests.human_readable())


class FlavorTest(base.TestCase):

    SIZE = flavor.Size(4, 2048, 10)

    def test_every_problem_is_in_the_error(self):
        with self.assertRaises(exceptions.CommandError) as raised:
            flavor.parse_flavor_specs(
                self.SIZE, {
                    'ghsched:x': '1', 'hw:numa_nodes': '2',
                    'ghsched:mem_bw_min': '101'})
        self.assertEqual(2, len(str(raised.exception).splitlines()))

    def test_a_topology_that_nova_refuses(self):
        with self.assertRaisesRegex(exceptions.CommandError,
                                    'the flavor: hw:numa_nodes'):
            flavor.parse_flavor_specs(self.SIZE, {'hw:numa_nodes': '3'})

    def test_a_flavor_that_is_too_large_for_placement_is_refused(self):
        size = flavor.Size(9, 9 * 1024, 10)
        with self.assertRaisesRegex(
                exceptions.CommandError, 'the flavor: hw:numa_nodes: 9 guest '
                'NUMA nodes have bandwidth .* 387420489 combinations'):
            flavor.parse_flavor_specs(
                size, {'hw:numa_nodes': '9', 'ghsched:mem_bw_min': '10'})

    def test_host_with_many_combinations_is_named(self):
        """Six guest nodes on 8 host nodes have 8^6 = 262144 combinations."""
        small, large = (clouds.host(*map(clouds.node, range(nodes)))
                        for nodes in (6, 8))
        policy = policies.parse_policy({'ghsched:mem_bw_min': '5'}, 6)
        (text, ) = flavor.yield_slow_query_warnings(policy, 'min',
                                                    [small, large], {})
        self.assertIn(f'host {large.name} has 262144 combinations', text)
        self.assertEqual([],
                         list(
                             flavor.yield_slow_query_warnings(
                                 policy, 'min', [small], {})))

    def test_the_topology_of_an_image_does_not_do(self):
        with self.assertRaisesRegex(
                exceptions.CommandError,
                'the flavor: ghsched:mem_bw_min: .*hw:numa_nodes'):
            flavor.merge_image_properties({'ghsched:mem_bw_min': '30'},
                                          {'hw_numa_nodes': '2'})

    def test_an_image_that_does_not_go_with_it(self):
        with self.assertRaisesRegex(exceptions.CommandError,
                                    'the image: hw_machine_type: pc-i440fx'):
            flavor.merge_image_properties({'ghsched:device_numa': 'required'},
                                          {'hw_machine_type': 'pc-i440fx-7.2'})

    def test_the_class_of_an_alias_where_there_is_no_choice(self):
        policy = policies.parse_policy({'ghsched:vfs': 'nic:1'}, 1)
        with_vfs = clouds.host(clouds.node(0), clouds.pf('0000:01:00.0', 0))
        self.assertEqual({'nic': clouds.VF},
                         flavor.guess_vf_classes(policy, [with_vfs]))
        found = fitting.check_host_capacity(
            clouds.host(clouds.node(0)),
            GuestDemand(policy, 1, classes=flavor.guess_vf_classes(
                policy, [])))
        self.assertIn('0 VFs of nic free, 1 needed',
                      found.reason_texts[0])

    def test_placement_is_asked_for_what_the_guest_would_take(self):
        policy = policies.GuestPolicy((policies.NodePolicy(30),))
        shared = clouds.node(0, traits=clouds.NODE_TRAITS | {
            names.make_share_trait(policy.fingerprint, 0)})
        for groups_used, expected in ((2, 'own'), (3, 'joining')):
            asked = []
            self.patch(flavor, 'is_allocation_candidate',
                       lambda _client, _host, query, asked=asked:
                       asked.append(query) or True)
            verdict = flavor.check_host_for_flavor(
                None, clouds.host(shared, groups=3, groups_used=groups_used),
                flavor.Requirements(GuestDemand(policy, 1), 'own',
                                    'joining'))
            self.assertEqual([expected], asked)
            row, = flavor.list_verdict_rows([verdict])
            self.assertEqual(
                ['a', True, 3, 2 if expected == 'own' else 3, [0], []],
                commands.plain(row))
            self.assertEqual(len(flavor.COLUMNS), len(row))

    def test_dedicated_cpus_are_counted_as_nova_counts_them(self):
        asked = flavor.make_flavor_requirements(
            flavor.Size(3, 96), {'hw:cpu_policy': 'dedicated',
                                 'hw:cpu_thread_policy': 'isolate',
                                 'hw:emulator_threads_policy': 'isolate'},
            {}, 'min', False)
        for inventories, fits, resources in (
                ({'VCPU': 4}, 1, 'VCPU:3'), ({'VCPU': 2}, 0, ''),
                ({'VCPU': 9, 'PCPU': 4}, 1, 'PCPU:4'),
                ({'VCPU': 9, 'PCPU': 3}, 0, '')):
            sent = []
            self.patch(flavor, 'is_allocation_candidate',
                       lambda _client, _host, query, sent=sent:
                       sent.append(dict(query)) or True)
            verdict = flavor.check_host_for_flavor(None, clouds.host(
                clouds.node(0), MEMORY_MB=500, **inventories), asked)
            self.assertEqual(fits, verdict.guests, verdict.reason_texts)
            self.assertEqual([f'MEMORY_MB:96,{resources}'] * fits,
                             [one['resources'] for one in sent])
            # Nova asks for threads of cores with PCPU only.
            self.assertEqual([resources != 'VCPU:3'] * fits,
                             ['required' in one for one in sent])

    def test_too_few_guests_that_fit_are_said(self):
        size = types.SimpleNamespace(
            vcpus=1, ram=64, disk=0, ephemeral=0, swap=0, extra_specs={
                'hw:numa_nodes': '1', 'ghsched:mem_bw_min': '60'})
        client = mock.MagicMock(map_in_parallel=lambda function, items: [
            function(item) for item in items])
        client.get_flavor.return_value = size
        client.list_unavailable_nodes.return_value = {}
        client.list_compute_nodes.return_value = {}
        client.is_owner_trait_required.return_value = False
        client.list_hosts.return_value = [clouds.host(
            clouds.node(0), clouds.node(1), VCPU=9, MEMORY_MB=900)]
        self.patch(flavor.clients, 'get_client', lambda _app: client)
        for count, said, status in (('2', '', 0), ('99', '2 fit, 99 asked', 1),
                                    ('3', '2 fit, 3 asked for', 1)):
            command = flavor.CheckFlavor(None, None)
            parser = command.get_parser('openstack ghsched flavor check')
            with fixtures.FakeLogger() as log:
                command.take_action(parser.parse_args(['f', '--count',
                                                       count]))
            self.assertIn(said, log.output)
            self.assertEqual((status, bool(said)),
                             (command.status, 'asked' in log.output))

    @given(st.text(min_size=1).filter(lambda text: '=' not in text),
           st.from_regex('[A-Z0-9_]{1,9}', fullmatch=True))
    def test_classes_that_are_reported(self, alias, name):
        self.assertEqual((alias, 'CUSTOM_' + name),
                         flavor.parse_vf_class(f'{alias}=CUSTOM_{name}'))

    @given(st.text())
    def test_any_other_text_is_refused(self, text):
        if '=CUSTOM_' not in text:
            with self.assertRaises(argparse.ArgumentTypeError):
                flavor.parse_vf_class(text)


class ShapeTest(base.TestCase):
    """Numbers of guest NUMA nodes of a flavor with ghsched:numa=auto."""

    def counts(self, memory, **more):
        return [
            shape['hw:numa_nodes']
            for shape in flavor.list_node_count_variants(
                flavor.Size(2, memory), {'ghsched:numa': 'auto', **more})]

    def test_number_that_would_break_huge_pages_is_left_out(self):
        pages = {'hw:mem_page_size': '1GB'}
        self.assertEqual(['1'], self.counts(1024, **pages))
        self.assertEqual(['1', '2'], self.counts(2048, **pages))
        self.assertEqual(['1', '2'], self.counts(1024))

    def test_flavor_that_no_number_suits_is_refused_for_its_pages(self):
        error = self.assertRaises(
            exceptions.CommandError, flavor.parse_flavor_specs,
            flavor.Size(2, 1000), {'ghsched:numa': 'auto',
                                   'hw:mem_page_size': '1GB'})
        self.assertIn('hw:mem_page_size', str(error))


class PlainTest(base.TestCase):
    """Cells of CSV and of bare values."""

    @given(st.none() | st.integers() | st.lists(st.text(
        st.characters(categories=['L', 'N']), min_size=1), max_size=3))
    def test_no_cell_is_a_repr_of_python(self, value):
        cell = (columns.MultilineCell(value) if isinstance(value, list)
                else columns.mark_unknown(value))
        found = columns.make_plain_cell(cell, 'x')
        text = str(getattr(found, 'machine_readable', lambda: found)())
        expected = ('x' if not value and value != 0 else '; '.join(value)
                    if isinstance(value, list) else str(value))
        self.assertEqual(expected, text)

    def test_unknown_values_come_first(self):
        first, *rest = sorted(
            columns.make_plain_cell(columns.mark_unknown(one))
            for one in (3, None, 1))
        self.assertEqual(('', [1, 3]), (first.machine_readable(), rest))

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

"""``openstack ghsched ...`` against Nova and Placement."""

from pathlib import Path
import shutil
from unittest import mock

import fixtures
from nova.compute import task_states
from nova import context as nova_context
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt

from ghsched_nova.tests.functional import emptied_hosts
from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import openstack_base
from ghsched_nova.tests.functional import test_lifecycle
from ghsched_placement.features.doctor import leftovers
from ghsched_placement.features.flavor_check import flavor_check as flavor
from ghsched_placement.features.rebalance import rebalance
from ghsched_placement.features.refusals import refusals
from ghsched_placement.osc import capacity
from ghsched_placement.osc import client
from ghsched_placement.osc import host_commands
from ghsched_placement.osc import http
from ghsched_placement.osc import server
from ghsched_placement.providers import names
from ghsched_placement.tests.fixtures import spaces


class CapacityTest(emptied_hosts.EmptiedHosts, openstack_base.CommandTestCase):

    def test_capacity_of_hosts_is_shown_to_admins(self):
        self.assertEqual([], self.json_of(capacity.ShowCapacity))
        self.start_host()
        self.take_steps(
            self.csv_and_table,
            self.each_node_in_a_row,
            self.a_host_that_is_none,
            self.who_is_no_admin)

    def each_node_in_a_row(self):
        self.reserve(n0=60)
        self.boot(self.flavor(mem_bw_min=70))
        rows = self.json_of(capacity.ShowCapacity)
        self.assertEqual(
            [('host_a', 0, 60, 0, 40), ('host_a', 1, 0, 70, 30)],
            [(row['Host'], row['NUMA Node'], row['BW Reserved (%)'],
              row['BW Used (%)'], row['Largest Guarantee (%)'])
             for row in rows])
        self.assertEqual([30] * 2, [row['Groups Free']
                                    for row in rows])

    def csv_and_table(self):
        for kind, words in (
                ('csv', '"host_a",0,100,0,0,100,100,"",31,0,"","","",0,4,'),
                ('value', 'host_a 0 100 0 0 100 100 - 31 0 - - - 0 4 '),
                ('table', '| host_a |')):
            status, text = self.command(capacity.ShowCapacity, '-f', kind,
                                        'host_a')
            self.assertEqual(0, status)
            self.assertIn(words, text.replace('\r', ''))

    def a_host_that_is_none(self):
        error = self.said(2, capacity.ShowCapacity, 'host_z')
        self.assertIn('no compute host host_z in Placement', error)

    def who_is_no_admin(self):
        error = self.said(2, capacity.ShowCapacity,
                          api=self.api_fixture.reader_api)
        self.assertIn('This command is for admins', error)


class HostTest(emptied_hosts.EmptiedHosts, openstack_base.CommandTestCase):

    def test_records_of_hosts_are_shown_and_compared(self):
        self.start_host()
        self.take_steps(
            self.the_history_of_migrations_is_not_read,
            self.only_a_migration_in_progress_owns_what_it_holds,
            self.a_migration_of_a_server_that_is_gone_owns_nothing,
            self.everything_of_a_host)
        self.start_host('host_b')
        self.take_steps(
            self.hosts_that_agree,
            self.a_server_on_its_way_is_left_alone)

    def hosts_that_agree(self):
        self.boot(self.flavor(mem_bw_min=70))
        self.boot(self.flavor())
        rows = self.json_of(host_commands.ListHosts)
        self.assertEqual(['host_a', 'host_b'], [row['Host'] for row in rows])
        self.assertEqual([0, 0], [row['Drift'] for row in rows])
        self.assertEqual(1, sum(row['Guests'] for row in rows))
        self.assertEqual(70, sum(row['BW Used (%)'] for row in rows))

    def everything_of_a_host(self):
        booted = self.boot(self.flavor(mem_bw_min=70))
        told = self.json_of(host_commands.ShowHost, 'host_a', '--no-effective')
        self.assertEqual([], told['drift'])
        self.assertEqual([70, 0], sorted(
            (node['used_percent'] for node in told['numa_nodes']),
            reverse=True))
        guest, = told['guests']
        self.assertEqual(booted['id'], guest['server'])
        self.assertEqual([70], list(guest['allocated_percent'].values()))

    def a_server_on_its_way_is_left_alone(self):
        booted = self.boot(self.flavor(mem_bw_min=70))
        with mock.patch(test_lifecycle.MOVE_DISK, return_value='{}'):
            self._migrate_server(booted)
        self.assertEqual([0, 0], [row['Drift'] for row
                                  in self.json_of(host_commands.ListHosts)])
        self._confirm_resize(booted)
        self.assertEqual([0, 0], [row['Drift'] for row
                                  in self.json_of(host_commands.ListHosts)])

    def _migration(self, server, status):
        """A migration that holds something, as a server leaves it."""
        migration = objects.Migration(
            nova_context.get_admin_context(), status=status,
            instance_uuid=server['id'], source_compute='host_a',
            dest_compute='host_b', source_node='host_a',
            project_id='p', user_id='u',
            migration_type='live-migration')
        migration.create()
        self._allocate(migration.uuid)
        return migration

    def _allocate(self, consumer):
        """Allocate 10 % of the host to a consumer for the rest of the step."""
        path = f'/allocations/{consumer}'
        self.placement.put(path, {
            'allocations': {self.provider('host_a', 1): {
                'resources': {names.MEM_BW_PCT: 10}}},
            'project_id': 'p', 'user_id': 'u',
            'consumer_generation': None}, version='1.28')
        self._step.callback(self.placement.delete, path)

    def only_a_migration_in_progress_owns_what_it_holds(self):
        server = self.boot(self.flavor())
        instance = self.instance(server)
        instance.task_state = task_states.MIGRATING
        instance.save()
        migration = self._migration(server, 'running')
        self.assertEqual([0], [row['Drift'] for row
                               in self.json_of(host_commands.ListHosts)])
        migration.status = 'error'
        migration.save()
        finding, = self.json_of(host_commands.ShowHost, 'host_a')['drift']
        self.assertEqual(('allocation-without-server', migration.uuid),
                         (finding['kind'], finding['subject']))
        instance.task_state = None
        instance.save()

    def a_migration_of_a_server_that_is_gone_owns_nothing(self):
        server = self.boot(self.flavor())
        migration = self._migration(server, 'preparing')
        self._delete_server(server)
        finding, = self.json_of(host_commands.ShowHost, 'host_a')['drift']
        self.assertEqual(('allocation-without-server', migration.uuid),
                         (finding['kind'], finding['subject']))

    def the_history_of_migrations_is_not_read(self):
        server = self.boot(self.flavor())
        for _ in range(3):
            self._migration(server, 'completed')
        told = self.api.api_get('/os-migrations').body['migrations']
        self.assertEqual(3, len(told))
        asking = client.Client(self.connection(), workers=1)
        answers = []
        pages = asking._read_pages

        def read(*arguments):
            for record in pages(*arguments):
                answers.append(record)
                yield record

        asking._read_pages = read
        running = self._migration(server, 'running').uuid
        self.assertEqual({running: server['id']},
                         asking.list_migrations_in_progress())
        self.assertEqual([running], [record['uuid'] for record in answers])


class ServerTest(emptied_hosts.EmptiedHosts, openstack_base.CommandTestCase):

    def test_servers_are_shown_with_what_they_asked_for(self):
        self.start_host()
        self.take_steps(
            self.asked_and_allocated,
            self.who_is_no_admin_sees_what_is_asked,
            self.server_shown_without_placement_has_the_rest_and_a_note,
            self.a_server_without_a_policy,
            self.the_servers_of_the_cloud,
            self.list_without_servers_of_ghsched_is_a_sentence,
            self.no_such_server)

    def asked_and_allocated(self):
        booted = self.boot(self.flavor(
            nodes=2, mem_bw_min=10, mem_bw_max=50, mem_bw_min__1=20))
        rows = self.json_of(server.ShowServerBandwidth, booted['id'])
        nodes = self.host_nodes(booted)
        self.assertEqual(
            [(0, nodes[0], 10, 50, 10), (1, nodes[1], 20, 50, 20)],
            [(row['Guest Node'], row['Host Node'], row['Min (%)'],
              row['Max (%)'], row['Allocated (%)']) for row in rows])

    def test_server_shown_with_history_has_the_minutes_of_its_host(self):
        self.flags(node_bandwidth={'0': 10000, '1': 10000}, group='ghsched')
        self.start_measured_host('host_a', 10000, 50, 50)
        booted = self.boot(self.flavor(mem_bw_min=10))
        node, = self.host_nodes(booted)
        # The simulated libvirt makes no group. It moves 2 GB/s.
        domain, = self.domains('host_a')
        group = Path(self.kernel.path, f'qemu-{domain.ID()}-{domain.name()}')
        path = group / f'mon_data/mon_MB_{node:02}/mbm_total_bytes'
        path.parent.mkdir(parents=True)
        path.write_text('2000\n')
        shutil.copy(Path(self.kernel.path, 'schemata'), group)
        for _report in range(3):
            self._run_periodics()
        rows = self.json_of(server.ShowServerBandwidth, booted['id'],
                            '--history')
        self.assertEqual({(node, 2000.0, 20.0)}, {
            (row['Host Node'], row['Used (MB/s)'], row['Used (%)'])
            for row in rows if row['Host Node'] == node})

    def who_is_no_admin_sees_what_is_asked(self):
        booted = self.boot(self.flavor(mem_bw_min=10))
        row, = self.json_of(server.ShowServerBandwidth, booted['id'],
                            api=self.api_fixture.reader_api)
        self.assertEqual((10, None, None), (
            row['Min (%)'], row['Host'], row['Allocated (%)']))

    def server_shown_without_placement_has_the_rest_and_a_note(self):
        made = self.boot(self.flavor(mem_bw_min=30))
        with mock.patch.object(
                client.Client, 'list_hosts',
                side_effect=http.Unreachable('Placement does not answer')):
            with fixtures.FakeLogger() as log:
                row, = self.json_of(server.ShowServerBandwidth, made['id'])
        self.assertEqual((30, None), (row['Min (%)'], row['Allocated (%)']))
        self.assertIn('Allocated values are not known: Placement does not '
                      'answer', log.output)

    def a_server_without_a_policy(self):
        booted = self.boot(self.flavor())
        error = self.said(1, server.ShowServerBandwidth, booted['id'])
        self.assertIn('has no extra spec of ghsched', error)

    def test_a_guest_that_is_only_measured(self):
        self.flags(cpu_shared_set='0-3', cpu_dedicated_set='4-7',
                   group='compute')
        self.start_host()
        booted = self.boot(self.flavor(nodes=0, policy=None, monitor='true'))
        rows = self.json_of(server.ShowServerBandwidth, booted['id'])
        self.assertEqual({'host_a'}, {row['Host'] for row in rows})

    def the_servers_of_the_cloud(self):
        first = self.boot(self.flavor(nodes=2, mem_bw_min=10))
        second = self.boot(self.flavor(mem_bw_min=30))
        self.boot(self.flavor())
        rows = self.json_of(server.ListServers, '--sort', 'min',
                            '--interval', '0')
        self.assertEqual(
            [(second['id'], 'host_a', 30, 30), (first['id'], 'host_a', 20,
                                                20)],
            [(row['Server'], row['Host'], row['Min (%)'],
              row['Allocated (%)']) for row in rows])
        row, = self.json_of(server.ListServers, '--limit', '1', '--interval',
                            '0', '--sort', 'name')
        self.assertEqual(min(first['name'], second['name']), row['Name'])

    def list_without_servers_of_ghsched_is_a_sentence(self):
        self.boot(self.flavor())
        self.assertEqual(
            (0, 'No server asks for anything of ghsched: 1 host, 1 server.\n'),
            self.command(server.ListServers, '--interval', '0'))

    def no_such_server(self):
        error = self.said(2, server.ShowServerBandwidth, 'nobody')
        self.assertIn('no server nobody\n', error)


class RefusalTest(openstack_base.CommandTestCase):
    """nova-api asks nova-scheduler over the message bus."""

    def test_flavor_that_was_refused_is_listed_and_has_moves_that_help(self):
        self.assertEqual(
            (0, 'No request has been refused.\n'),
            self.command(refusals.ListRefusals))
        self.assertIn('This command is for admins', self.said(
            2, refusals.ListRefusals, api=self.api_fixture.reader_api))
        for name in ('host_a', 'host_b'):
            self.start_host(name)
        servers = [self.boot(self.flavor(vcpus=2)) for _node in range(4)]
        wanted = self.flavor(vcpus=4)
        for _time in range(2):
            self.boot(wanted, state='ERROR')
        row, = self.json_of(refusals.ListRefusals)
        self.assertEqual((wanted, 2), (row['Flavor'], row['Refusals']))
        moves = self.json_of(rebalance.PlanRebalance, '--for', row['Flavor'])
        self.assertEqual(1, len(moves))
        for one in servers:
            self.api.post_server_action(one['id'], {'lock': None})
        self.assertEqual([], self.json_of(rebalance.PlanRebalance, '--for',
                                          row['Flavor']))

    def test_flavor_whose_resize_was_refused_is_listed(self):
        self.start_host()
        server = self.boot(self.flavor(vcpus=2))
        wanted = self.flavor(vcpus=9)
        # nova-conductor's cast is a call in these tests.
        self.assertRaises(
            nova_base.ApiException, self.api.post_server_action,
            server['id'], {'resize': {'flavorRef': wanted}})
        row, = self.json_of(refusals.ListRefusals)
        self.assertEqual((wanted, 1), (row['Flavor'], row['Refusals']))


class FlavorTest(emptied_hosts.EmptiedHosts, openstack_base.CommandTestCase):

    def test_check_of_a_flavor_says_what_the_scheduler_does(self):
        self.start_host()
        self.take_steps(
            self.check_of_a_host_without_servers_says_what_it_assumes,
            self.as_many_guests_start_as_are_said_to_fit,
            self.check_counts_guests_that_fit_by_numa_node,
            self.a_host_whose_nova_compute_is_down,
            self.who_is_no_admin)
        self.start_host('host_b')
        self.take_steps(
            self.count_of_guests_beyond_the_room_of_hosts_is_refused,
            self.host_option_limits_the_answer_to_the_host)

    def check(self, *arguments):
        return {row['Host']: row for row in self.json_of(
            flavor.CheckFlavor, *arguments)}

    def as_many_guests_start_as_are_said_to_fit(self):
        self.reserve(n0=60)
        wanted = self.flavor(vcpus=1, mem_bw_min=35)
        fits = self.check(wanted)['host_a']['Guests That Fit']
        self.assertEqual(3, fits)
        for _ in range(fits):
            self.boot(wanted)
        row = self.check(wanted)['host_a']
        self.assertFalse(row['Fits'])
        self.assertEqual(
            ['NUMA node 0 cannot take guest NUMA node 0: 5 % of '
             'memory bandwidth free, 35 needed',
             'NUMA node 1 cannot take guest NUMA node 0: 30 % of '
             'memory bandwidth free, 35 needed'], row['Reasons'])
        self.boot(wanted, state='ERROR')

    def test_check_of_cpus_and_memory_by_node_agrees_with_boots(self):
        """Nova's own fit and claim judge each answer."""
        self.flags(cpu_dedicated_set='0-2,4-6', cpu_shared_set='3,7',
                   group='compute')
        self.flags(cpu_allocation_ratio=2.0, ram_allocation_ratio=1.0)
        self.start_host('host_a')
        cases = spaces.choose(
            (filled, vcpus, nodes, policy, ram) for filled in (False, True)
            for policy in ('shared', 'dedicated') for vcpus, nodes, ram in (
                (1, 1, 512), (2, 1, 512), (2, 2, 512), (3, 1, 512),
                (1, 1, 7168), (2, 2, 14336)))
        busy = False
        for filled, vcpus, nodes, policy, ram in cases:
            if filled and not busy:
                busy = self.boot(self.flavor(vcpus=2, ram=2048, mem_bw_min=5))
            wanted = self.flavor(vcpus=vcpus, nodes=nodes, ram=ram,
                                 policy=policy, mem_bw_min=10)
            row = self.check(wanted)['host_a']
            with self.subTest(filled=filled, vcpus=vcpus, nodes=nodes,
                              policy=policy, ram=ram, row=row):
                made = self.boot(wanted, state='ACTIVE' if row['Fits']
                                 else 'ERROR')
            self._delete_server(made)

    def check_counts_guests_that_fit_by_numa_node(self):
        for _node in range(2):
            self.boot(self.flavor(vcpus=1, mem_bw_min=60))
        row = self.check(self.flavor(vcpus=2, mem_bw_min=5))['host_a']
        self.assertEqual(2, row['Guests That Fit'])
        self.assertEqual(
            [(3, 7680)] * 2,
            [(row['Dedicated CPUs Free'], row['Memory Free (MiB)'] % 8192)
             for row in self.json_of(capacity.ShowCapacity)])

    def check_of_a_host_without_servers_says_what_it_assumes(self):
        wanted = self.flavor(vcpus=5, mem_bw_min=5)
        with fixtures.FakeLogger() as log:
            self.assertFalse(self.check(wanted)['host_a']['Fits'])
        self.assertIn('CPUs and memory of host_a are taken as spread evenly '
                      'over the NUMA nodes', log.output)

    def count_of_guests_beyond_the_room_of_hosts_is_refused(self):
        wanted = self.flavor(vcpus=1, mem_bw_min=60)
        fits = {name: row['Guests That Fit']
                for name, row in self.check(wanted).items()}
        self.assertEqual({'host_a': 2, 'host_b': 2}, fits)
        for count, options, end in ((4, (), 0), (5, (), 1),
                                    (2, ('--host', 'host_a'), 0),
                                    (3, ('--host', 'host_a'), 1)):
            self.assertEqual(end, self.command(
                flavor.CheckFlavor, wanted, '--count', str(count),
                *options)[0], (count, options))
        for _guest in range(4):
            self.boot(wanted)
        self.assertEqual(1, self.command(flavor.CheckFlavor, wanted)[0])

    def host_option_limits_the_answer_to_the_host(self):
        wanted = self.flavor(mem_bw_min=35)
        self.assertEqual({'host_b'}, set(self.check(
            wanted, '--host', 'host_b')))
        error = self.said(2, flavor.CheckFlavor, wanted, '--host', 'host_c')
        self.assertIn('no host host_c', error)

    def change_service(self, before, after):
        """Change nova-compute until the end of the step."""
        service = self.api.get_services(binary='nova-compute')[0]['id']
        self.api.put_service(service, after)
        self._step.callback(self.api.put_service, service, before)

    def a_host_whose_nova_compute_is_down(self):
        self.change_service({'forced_down': False}, {'forced_down': True})
        status, (row,) = self.outcome(flavor.CheckFlavor,
                                      self.flavor(mem_bw_min=35))
        self.assertEqual((1, False, ['nova-compute is down; see openstack '
                                     'compute service list']),
                         (status, row['Fits'], row['Reasons']))

    def who_is_no_admin(self):
        error = self.said(2, flavor.CheckFlavor, self.flavor(),
                          api=self.api_fixture.reader_api)
        self.assertIn('is for admins', error)


class SharingTest(openstack_base.CommandTestCase):
    """A host whose three control groups are taken."""

    def setUp(self):
        super().setUp()
        self.flags(group_sharing=True, group='ghsched')
        self.kernel.closids = 4
        # All on one node, whose CPUs the command does not count.
        self.start_host(cores=6)
        self.first, *_others = (
            self._boot_and_report(self.wanted(priority))
            for priority in (1, 2, 3))

    def test_check_knows_the_groups_that_can_be_shared(self):
        self.take_steps(self.another_policy_finds_no_group,
                        self.as_many_join_as_were_said_to, tidy=False)

    def wanted(self, priority):
        return self.flavor(vcpus=1, mem_bw_min=20, mem_bw_priority=priority)

    def _boot_and_report(self, flavor):
        server = self.boot(flavor)
        self._run_periodics()
        return server

    def check(self, wanted):
        row, = self.json_of(flavor.CheckFlavor, wanted)
        return row

    def as_many_join_as_were_said_to(self):
        wanted = self.wanted(1)
        row = self.check(wanted)
        nodes = self.host_nodes(self.first)
        self.assertEqual((True, nodes, []), (
            row['Fits'], row['Host Nodes'], row['Reasons']))
        self.assertEqual(row['Guests That Fit'], row['Sharing'])
        for _ in range(row['Sharing']):
            self.assertEqual(nodes, self.host_nodes(self.boot(wanted)))
        row = self.check(wanted)
        self.assertEqual((False, 0), (row['Fits'], row['Sharing']))
        self.assertIn('none that can be shared', ''.join(row['Reasons']))
        self.boot(wanted, state='ERROR')

    def another_policy_finds_no_group(self):
        self.assertEqual(['0 control groups free, 1 needed'],
                         self.check(self.wanted(4))['Reasons'])
        self.assertEqual({0}, {row['Largest Guarantee (%)'] for row
                               in self.json_of(capacity.ShowCapacity)})


class VfTest(openstack_base.CommandTestCase):
    """VFs by host NUMA node; both PFs of four VFs are there."""

    def setUp(self):
        self.track_vfs(nic=fakelibvirt.VF_PROD_ID)
        super().setUp()
        self.start_compute(
            'host_a', host_info=fakelibvirt.HostInfo(
                cpu_nodes=2, cpu_sockets=1, cpu_cores=4, cpu_threads=1,
                kB_mem=16 * 1024 * 1024),
            pci_info=fakelibvirt.HostPCIDevicesInfo(
                num_pci=0, num_pfs=2, num_vfs=8, numa_node=0))

    def test_vfs_are_counted_by_host_numa_node(self):
        self.take_steps(self.vfs_of_each_node, self.a_flavor_with_vfs,
                        tidy=False)

    def vfs_of_each_node(self):
        rows = self.json_of(capacity.ShowCapacity)
        self.assertEqual(
            [8, 0], [sum(pf['free'] for pf in row['VFs Free'])
                     for row in rows])

    def a_flavor_with_vfs(self):
        wanted = self.flavor(vfs='nic:3', vfs_locality='node')
        row, = self.json_of(flavor.CheckFlavor, wanted)
        self.assertEqual((True, 2), (row['Fits'], row['Guests That Fit']))
        for _ in range(2):
            self.boot(wanted)
        row, = self.json_of(flavor.CheckFlavor, wanted)
        self.assertIn('2 VFs of nic free, 3 needed',
                      row['Reasons'][0])


class LeftoversTest(openstack_base.CommandTestCase):

    def setUp(self):
        super().setUp()
        # Neither is there in these tests.
        for name in ('_list_keystone_leftovers', '_list_glance_leftovers'):
            self.useFixture(fixtures.MockPatchObject(
                leftovers, name,
                side_effect=http.Unreachable('does not answer')))

    def test_leftovers_of_ghsched_are_listed(self):
        self.take_steps(self.stock_cloud_has_nothing_left,
                        self.cloud_of_ghsched_lists_each_kind_of_thing,
                        tidy=False)

    def list_leftovers(self):
        with fixtures.FakeLogger() as log:
            status, rows = self.outcome(leftovers.ListLeftovers)
        for service in ('Keystone', 'Glance'):
            self.assertIn(f'cannot list leftovers in {service}: does not '
                          'answer', log.output)
        return status, rows

    def cloud_of_ghsched_lists_each_kind_of_thing(self):
        self.start_host()
        flavor_id = self.flavor(mem_bw_min=30, mem_bw_max=50)
        self.boot(flavor_id)
        status, rows = self.list_leftovers()
        self.assertEqual(1, status)
        by_kind = {}
        for row in rows:
            by_kind.setdefault(row['Kind'], []).append(row)
        self.assertEqual(['server', 'flavor', 'compute node',
                          'resource class', 'trait'], list(by_kind))
        self.assertEqual(
            [f'openstack flavor unset {flavor_id} --property '
             'ghsched:mem_bw_max --property ghsched:mem_bw_min'],
            [row['Remedy'] for row in by_kind['flavor']])
        self.assertEqual(['host_a'],
                         [row['Name'] for row in by_kind['compute node']])
        # Every class and trait that Placement has of ours, by another way.
        known = {one['name'] for one in self.placement.get(
            '/resource_classes', version='1.36').body['resource_classes']}
        self.assertEqual(
            sorted(name for name in known if name.startswith('CUSTOM_')
                   and not name.startswith('CUSTOM_PCI')),
            [row['Name'] for row in by_kind['resource class']])
        traits = self.placement.get('/traits', version='1.36').body['traits']
        self.assertEqual(
            sorted(name for name in traits
                   if name.startswith('CUSTOM_GHSCHED_')),
            [row['Name'] for row in by_kind['trait']])

    def stock_cloud_has_nothing_left(self):
        self.assertEqual((0, []), self.list_leftovers())
        status, text = self.command(leftovers.ListLeftovers)
        self.assertEqual(
            (0, 'Nothing of ghsched is left in Nova and Placement.\n'),
            (status, text))

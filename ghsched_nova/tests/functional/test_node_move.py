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

"""A move between host NUMA nodes, with Nova's records and real Placement."""

import os
import random
import time
from unittest import mock

import fixtures
from lxml import etree
from nova import context as nova_context
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt
from oslo_utils import importutils
from testtools import content

from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.live_change import guest_move
from ghsched_nova.features.live_change import move_xml
from ghsched_nova.features.live_change import page_move
from ghsched_nova.features.live_change import policy_change
from ghsched_nova.features.live_change import records
from ghsched_nova.features.live_change import servers
from ghsched_nova.features.load import load_use
from ghsched_nova.guest import metadata
from ghsched_nova.guest import thread_pins
from ghsched_nova.host import compute_hooks
from ghsched_nova.tests.fixtures import guest_memory
from ghsched_nova.tests.fixtures import libvirt
from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import openstack_base
from ghsched_placement.features.live_change import move_report
from ghsched_placement.features.live_change import past_moves
from ghsched_placement.features.live_change import server_change
from ghsched_placement.features.load import load
from ghsched_placement.features.rebalance import rebalance
from ghsched_placement.osc import audit
from ghsched_placement.osc import client


class CheckMoveTest(nova_base.GhschedTestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(guest_memory.FakeMemory())

    def check(self, server, nodes):
        with records.open_cell_context(server['id']) as context:
            return servers.move_server(context, server['id'], nodes, True)

    def test_it_is_found_out_and_nothing_changes(self):
        self.start_host()
        server = self.boot(self.flavor(mem_bw_min=30, mem_bw_max=60))
        node, = self.host_nodes(server)
        held = self.bandwidth(server['id'])
        shown = move_report.make_move_report(
            self.check(server, {0: 1 - node}), True)
        found, = shown['nodes']
        self.assertEqual((node, 1 - node), (
            found['before']['host_node'], found['after']['host_node']))
        pins = self.instance(server).numa_topology.cells[0].cpu_pinning
        self.assertEqual({str(vcpu): [cpu] for vcpu, cpu in pins.items()},
                         found['before']['cpus'])
        self.assertEqual([], [
            cpu for cpu in found['after']['cpus'].values()
            if cpu in found['before']['cpus'].values()])
        self.assertEqual([node], self.host_nodes(server))
        self.assertEqual(held, self.bandwidth(server['id']))
        self.reserve(**{f'n{1 - node}': 80})
        error = self.assertRaises(errors.Refused, self.check, server,
                                  {0: 1 - node})
        self.assertIn('20 % of its memory bandwidth left', str(error))

    def test_guests_of_each_kind_are_found_as_nova_has_them(self):
        self.flags(cpu_shared_set='0-1,4-5', cpu_dedicated_set='2-3,6-7',
                   group='compute')
        self.start_host()
        for policy, extra in (
                ('shared', {}), ('mixed', {'hw:cpu_dedicated_mask': '1'}),
                ('dedicated', {'hw:cpu_thread_policy': 'prefer'})):
            server = self.boot(self.flavor(policy=policy, extra=extra))
            node, = self.host_nodes(server)
            plan = self.check(server, {0: 1 - node})
            self.assertEqual({0: (node, 1 - node)},
                             plan.request.move.nodes_moved)
            self._delete_server(server)
        server = self.boot(self.flavor(nodes=2, policy='shared'))
        first, second = self.host_nodes(server)
        error = self.assertRaises(errors.Refused, self.check, server,
                                  {0: second, 1: first})
        self.assertIn('keeps the order', str(error))
        error = self.assertRaises(errors.Refused, self.check, server,
                                  {0: second})
        self.assertIn('two NUMA nodes of the guest', str(error))


class Steps(fixtures.Fixture):
    """Counts what a move does, and has one of these fail.

    :param fatal: whether nova-compute ends there, so that nothing is put
        back.
    :param after: whether it does so after the step.
    """

    def __init__(self, number, fatal=False, after=False):
        super().__init__()
        self.number, self.fatal, self.after = number, fatal, after
        self.names = []

    def _setUp(self):
        domain = 'nova.tests.fixtures.libvirt.Domain.'
        for path, counts in (
            (
                domain + 'setMetadata',
                lambda args: (
                    args[4] in libvirt.OURS
                    and not (self.fatal and args[2] is None))),
            (domain + 'pinVcpuFlags', None),
            (domain + 'pinEmulator', None),
            (domain + 'pinIOThread', None),
            ('ghsched_nova.host.engine.HostEngine.reconcile_guest', None),
            ('ghsched_nova.features.live_change.page_move.MemoryMover.'
             'move_guest_memory', None),
            ('nova.tests.fixtures.libvirt.Connection.defineXML', None),
            # Not those that lock and unlock the server.
            (
                'nova.objects.Instance.save',
                lambda args: (
                    {'numa_topology'} == args[0].obj_what_changed()
                    & {'numa_topology', 'task_state'})),
        ):
            function = importutils.import_class(path.rpartition('.')[0])
            name = path.rpartition('.')[2]
            self.useFixture(fixtures.MonkeyPatch(
                path, self._step(name, getattr(function, name), counts)))
        if self.fatal:
            def end(_self, _domain, _request, _record, error):
                raise policy_change.NotChanged(
                    'nova-compute was killed', incomplete=True)
            self.useFixture(fixtures.MockPatchObject(
                guest_move.Mover, '_roll_back', end))
            self.useFixture(fixtures.MockPatchObject(
                guest_move.Mover, '_remove_record', self._last))

    def _last(self, domain):
        if self._count('_remove_record'):
            return
        domain.guest._domain.setMetadata(
            2, None, move_xml.PREFIX, move_xml.NAMESPACE, 3)

    def _count(self, name):
        self.names.append(name)
        return len(self.names) == self.number

    def _step(self, name, function, counts):
        def step(*args, **kwargs):
            fails = (counts is None or counts(args)) and self._count(name)
            if fails and not self.after:
                raise fakelibvirt.libvirtError(f'{name} fails')
            found = function(*args, **kwargs)
            if fails:
                raise fakelibvirt.libvirtError(f'{name} fails')
            return found
        return step


class MoveTest(openstack_base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.memory = self.useFixture(guest_memory.FakeMemory())
        self.start_host()
        self.server = self.boot(self.flavor(mem_bw_min=30, mem_bw_max=60))
        self.old, = self.host_nodes(self.server)

    def move(self, node, server=None):
        uuid = (server or self.server)['id']
        with records.open_cell_context(uuid) as context:
            return servers.move_server(context, uuid, {0: node}, False)

    @property
    def domain(self):
        connection = self.computes['host_a'].driver._host.get_connection()
        return connection.lookupByUUIDString(self.server['id'])

    def assert_on(self, node):
        """All that knows where the guest is agrees."""
        instance = self.instance(self.server)
        self.assertIsNone(instance.task_state)
        cell, = instance.numa_topology.cells
        self.assertEqual(node, cell.id)
        self.assertEqual({self.provider('host_a', node): 30},
                         self.bandwidth(self.server['id']))
        live, stored = self.domain.XMLDesc(0), self.domain.XMLDesc(2)
        for xml in (live, stored):
            self.assertEqual((node,), metadata.read_policy(xml).host_nodes)
            self.assertIsNone(move_xml.read_move_record(xml))
            self.assertEqual(
                {vcpu: frozenset({cpu})
                 for vcpu, cpu in cell.cpu_pinning.items()},
                {number: cpus for (kind, number), cpus
                 in thread_pins.parse_pins(etree.fromstring(xml)).items()
                 if kind == 'vcpu'})
        self.assertIn(f'<memnode cellid="0" nodeset="{node}"', stored)
        self.assertIn(f'<node id="{node}"', stored)
        self.assertIn(self.memory.nodes.get(self.domain.name()),
                      (frozenset({node}), None))
        self.assertEqual(set(cell.cpu_pinning.values()), self.taken())

    def taken(self):
        """CPUs that Nova counts as taken, now and after a report."""
        found = []
        for report in (False, True):
            if report:
                self.computes['host_a'].manager.update_available_resource(
                    nova_context.get_admin_context())
            node = objects.ComputeNode.get_by_host_and_nodename(
                nova_context.get_admin_context(), 'host_a', 'host_a')
            found.append({cpu for cell in objects.NUMATopology.obj_from_db_obj(
                node.numa_topology).cells for cpu in cell.pinned_cpus})
        self.assertEqual(*found)
        return found[0]

    def test_all_records_move(self):
        shown = []
        with mock.patch.object(
                compute_hooks.ComputeHookCaller, 'refresh_guest',
                side_effect=lambda find: shown.append(
                    metadata.read_policy(find().xml).host_nodes)):
            plan = self.move(1 - self.old)
        self.assertTrue(plan.is_needed)
        self.assert_on(1 - self.old)
        # The other features see the guest on its new node.
        self.assertEqual([(1 - self.old,)], shown)
        reader = client.Client(self.connection(), workers=1)
        self.assertEqual(1, len(past_moves.list_moves_within_host(
            reader, self.server['id'], '2000-01-01T00:00:00Z')))
        self.assertEqual([], past_moves.list_moves_within_host(
            reader, self.server['id'], '2999-01-01T00:00:00Z'))
        self.assertFalse(self.move(1 - self.old).is_needed)
        self.move(self.old)
        self.assert_on(self.old)

    def test_a_plan_of_rebalancing_is_applied(self):
        uuid, new = self.server['id'], 1 - self.old
        for target, name, value in (
                (load_use.LoadReporter, 'load',
                 load.HostLoad(
                     time.time(), 60.0,
                     (load.HostNodeLoad(self.old, 4, memory_free=8192,
                                        cpu_load=1.0),
                      load.HostNodeLoad(new, 4, memory_free=8192,
                                        cpu_load=0.0)),
                     (load.GuestNodeLoad(uuid, 0, self.old, 2, 512, 0.5, 0.5),
                      ))),
                # nova-api has no filter here.
                (server_change, 'move_server_nodes',
                 lambda _client, _uuid, nodes, dry_run: self.move(nodes[0]))):
            self.useFixture(fixtures.MockPatchObject(target, name, value))
        inside = '--only', 'inside', '--period', '1'
        planned, = self.json_of(rebalance.PlanRebalance, *inside)
        self.assertEqual((uuid, f'host_a node {new}'),
                         (planned['Server'], planned['To']))
        self.assert_on(self.old)
        moved, = self.json_of(rebalance.ApplyRebalance, *inside, '--yes')
        self.assertEqual({**planned, 'Result': 'moved'}, moved)
        self.assert_on(new)
        self.assertEqual((0, []), self.outcome(audit.Audit,
                                               '--no-effective'))
        # It rests.
        self.assertEqual([], self.json_of(rebalance.PlanRebalance, *inside))

    def test_refused_flavor_fits_after_the_plan_for_it_is_applied(self):
        self.patched_move()
        other = self.boot(self.flavor(mem_bw_min=30))
        if self.host_nodes(other) == self.host_nodes(self.server):
            self.move(1 - self.old, other)
        large = self.flavor(mem_bw_min=80)
        self._delete_server(self.boot(large, 'ERROR'))
        asked = '--for', large
        planned, = self.json_of(rebalance.PlanRebalance, *asked)
        self.assertEqual('makes room', planned['Reason'])
        self.assertEqual('host_a node', planned['To'].rpartition(' ')[0])
        moved, = self.json_of(rebalance.ApplyRebalance, *asked, '--yes')
        self.assertEqual({**planned, 'Result': 'moved'}, moved)
        self.boot(large)
        self.assertEqual((0, []), self.outcome(audit.Audit,
                                               '--no-effective'))

    def patched_move(self):
        """Patch the commands to move servers without the filter of nova-api.
        """
        self.useFixture(fixtures.MockPatchObject(
            server_change, 'move_server_nodes',
            lambda _client, uuid, nodes, dry_run: self.move(
                nodes[0], {'id': uuid})))

    def each_step(self, **how):
        """Names of the steps, each of which has failed."""
        failed = []
        while True:
            steps = Steps(len(failed) + 1, **how)
            start, = self.host_nodes(self.server)
            with steps:
                try:
                    self.move(1 - start)
                except (errors.Refused, errors.RollbackIncomplete):
                    pass
            if len(steps.names) < steps.number:
                return failed
            failed.append(steps.names[steps.number - 1])
            node, = self.host_nodes(self.server)
            if how.get('fatal'):
                self.report_and_repair(node)
            elif node != start:
                # That it is over could not be written down.
                self.computes['host_a'].driver._enforcer.reconcile_all_guests()
            self.assert_on(node)

    def report_and_repair(self, node):
        """Restart the host as after a crash, and move the server once more."""
        instance = self.instance(self.server)
        if instance.task_state:
            instance.task_state = None
            instance.save()
        self.computes['host_a'].manager.update_available_resource(
            nova_context.get_admin_context())
        self.move(node)

    def test_a_step_that_fails_takes_all_back(self):
        failed = self.each_step()
        for step in ('setMetadata', 'reconcile_guest', 'pinVcpuFlags',
                     'pinEmulator', 'move_guest_memory', 'defineXML', 'save'):
            self.assertIn(step, failed)
        # The last failed after it had moved, and one more did not fail.
        self.assert_on(self.old)

    def test_a_crash_before_each_step_is_overcome(self):
        self.assertIn('save', self.each_step(fatal=True))

    def test_a_crash_after_each_step_is_overcome(self):
        failed = self.each_step(fatal=True, after=True)
        self.assertEqual('_remove_record', failed[-1])

    def pins(self):
        cell, = self.instance(self.server).numa_topology.cells
        return set(cell.cpu_pinning.values())

    def test_both_places_count_as_taken_while_it_moves(self):
        taken, before = [], self.pins()

        def move(*args):
            self.computes['host_a'].manager.update_available_resource(
                nova_context.get_admin_context())
            taken.append((self.taken(), self.bandwidth(self.server['id'])))
        with fixtures.MockPatchObject(page_move.MemoryMover,
                                      'move_guest_memory', move):
            self.move(1 - self.old)
        self.assertEqual([(before | self.pins(), {
            self.provider('host_a', node): 30 for node in (0, 1)})], taken)
        self.assert_on(1 - self.old)

    def crash(self, chosen):
        """Kill nova-compute somewhere in a move, and start the next one.

        :returns: the step at which it was killed, and whether after it.
        """
        start, = self.host_nodes(self.server)
        steps = Steps(chosen.randint(1, self.steps), fatal=True,
                      after=chosen.random() < 0.5)
        with steps:
            try:
                self.move(1 - start)
            except (errors.Refused, errors.RollbackIncomplete):
                pass
        instance = self.instance(self.server)
        if instance.task_state:
            instance.task_state = None
            instance.save()
        self.restart_compute_service('host_a')
        return steps.names[steps.number - 1], steps.after

    def test_moves_that_are_killed_at_random_leave_nothing_to_audit(self):
        """GHSCHED_KILLED_MOVES is the number of moves, 2 by default."""
        with Steps(0, fatal=True) as whole:
            self.move(1 - self.old)
        self.steps = len(whole.names)
        # A failure names it, by which it can be had again.
        seed = int(os.environ.get('GHSCHED_SEED', time.time()))
        chosen, seen = random.Random(seed), []  # noqa: S311
        self.addDetail('seed', content.text_content(str(seed)))
        for _turn in range(int(os.environ.get('GHSCHED_KILLED_MOVES', 2))):
            seen.append(self.crash(chosen))
            self.addDetail('killed', content.text_content(repr(seen)))
            node, = self.host_nodes(self.server)
            # Both places may be held in Placement; nothing else is left.
            _status, rows = self.outcome(
                audit.Audit, '--no-effective', '--fix', '--yes')
            self.assertEqual([], rows)
            self.assert_on(node)
            self.assertEqual((0, []), self.outcome(audit.Audit,
                                                   '--no-effective'))

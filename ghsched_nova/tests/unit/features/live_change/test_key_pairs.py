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

"""Keys alone and in pairs through moves and live changes, without hardware.

Placement, libvirt and memory are faked. What nova-api counts, what a move
takes along, what a live change writes, what the source of a live migration
renders, what a report and an audit find is the code that runs in a cloud.
"""

from collections import Counter
import contextlib
import dataclasses
import functools
import threading
import types
from unittest import mock

import ddt
from lxml import etree
from nova import objects
from testtools import content

from ghsched_nova.api import limits
from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.live_change import change
from ghsched_nova.features.live_change import guest_move
from ghsched_nova.features.live_change import move_xml
from ghsched_nova.features.live_change import node_move
from ghsched_nova.features.live_change import nova_seams
from ghsched_nova.features.live_change import placement
from ghsched_nova.features.live_change import policy_change
from ghsched_nova.features.real_time import scheduling
from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.host import domain_xml
from ghsched_nova.host import migration_xml
from ghsched_nova.host import uncounted_guests
from ghsched_nova.nova_seams import shared
from ghsched_nova.resctrl.cache_facts import CacheWays
from ghsched_nova.resctrl import model
from ghsched_nova.tests.fixtures import captured
from ghsched_nova.tests.fixtures import moving_host
from ghsched_placement.audit import audit
from ghsched_placement.audit import findings
from ghsched_placement.features.live_change import change as changes
from ghsched_placement.features.real_time.scheduling import ThreadPolicy
from ghsched_placement.fit import capacity
from ghsched_placement.fit.cells import GuestCell
from ghsched_placement.fit.cells import HostCell
from ghsched_placement.flavor import policy as policies
from ghsched_placement.providers import names
from ghsched_placement.providers import tree
from ghsched_placement.query import request
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds
from ghsched_placement.tests.fixtures import sample_flavors
from ghsched_placement.tests.fixtures import spaces

objects.register_all()

shared.config()

UUID = '3f0c6a51-16d5-4d5e-8a0c-1f5b2b0d7c10'
ROOT = clouds.root_uuid('a')
NODES = [clouds.node_uuid('a', number) for number in (0, 1)]
CORES = [tuple(frozenset({cpu}) for cpu in range(first, first + 4))
         for first in (0, 4)]
SHARED = {0: frozenset({0, 1}), 1: frozenset({4, 5})}
HOST = captured.openeuler(cache=CacheWays(
    ('L3',), 0xfffff, 0x3ffff, 1, {0: (0,), 1: (1,)}))


def facts(memorytune='none'):
    """Return facts of a host.

    :param memorytune: ``[ghsched]memorytune_attributes``: who makes the
        control groups, nova-compute (none) or libvirt (basic).
    """
    return types.SimpleNamespace(
        read_resctrl_host=lambda: HOST, can_share_groups=False,
        all_threads=False,
        section=types.SimpleNamespace(memorytune_attributes=memorytune))


#: A value of each key that can change while a guest runs; no sample has it.
CHANGED = {'mem_bw_min': '25', 'mem_bw_max': '70',
           'mem_bw_hardlimit': 'false', 'mem_bw_priority': '3'}
assert CHANGED.keys() == {key.name for key in changes.CHANGEABLE}


class Placement:
    """Placement's answers about one consumer and two NUMA nodes.

    :ivar written: what was held after each PUT.
    """

    def __init__(self, allocations):
        self.allocations, self.generation = allocations, 1
        self.written = []

    def get(self, url, **_kwargs):
        kind, uuid, *rest = url.strip('/').split('/')
        if kind == 'allocations':
            body = {'allocations': {
                provider: {'resources': dict(amounts)} for provider, amounts
                in self.allocations.items()}, 'project_id': 'p',
                'user_id': 'u', 'consumer_generation': self.generation}
        elif rest == ['inventories']:
            body = {'inventories': {name: tree.make_inventory(total) for
                                    name, total in clouds.OFFERED.items()}}
        elif rest == ['usages']:
            body = {'usages': dict(self.allocations.get(uuid, {}))}
        else:
            body = {'traits': sorted(names.CAPABILITY_TRAITS.values())}
        return types.SimpleNamespace(
            status_code=200, json=lambda: body, __bool__=lambda: True)

    def put(self, _url, body, **_kwargs):
        assert body['consumer_generation'] == self.generation
        self.generation += 1
        self.allocations = {
            provider: dict(one['resources'])
            for provider, one in body['allocations'].items()}
        self.written.append(self.allocations)
        return types.SimpleNamespace(status_code=204)

    def by_consumer(self):
        """Return allocations by consumer, for the report of nova-compute."""
        return {UUID: {provider: {'resources': amounts} for provider, amounts
                       in self.allocations.items()}}


class Server:
    """A server that runs on host NUMA node 0.

    :param accounting: ``[ghsched]bandwidth_accounting``.
    """

    def __init__(self, extra_specs, accounting='min'):
        self.specs, self.accounting = extra_specs, accounting
        shared = extra_specs.get('hw:cpu_policy') == 'shared'
        self.cell = GuestCell(
            0, vcpus=frozenset({0, 1}) if shared else frozenset(),
            pins={} if shared else {0: 0, 1: 1}, memory=512)
        self.placement = Placement(self.allocations_on(0))
        self.host = moving_host.MovingHost(self.render(), (self.cell,))
        self.mover = guest_move.Mover(self.host, self.host, threading.RLock())
        # As virt.rpc: nothing of a refusal is left, or some is.
        self.check_move = lambda _guest, _packed: None
        self.host.read_resctrl_host = lambda: HOST

    @property
    def policy(self):
        return policies.parse_policy(self.specs, 1, 2)

    def render(self, memorytune='none'):
        cpus = ['0-1' if self.cell.vcpus else str(cpu) for cpu in (0, 1)]
        xml = domain_xml.DomainXml(facts(memorytune)).render_policy(
            f"""<domain><name>i-1</name><uuid>{UUID}</uuid><vcpu>2</vcpu>
             <cputune><vcpupin vcpu="0" cpuset="{cpus[0]}"/>
              <vcpupin vcpu="1" cpuset="{cpus[1]}"/>
              <emulatorpin cpuset="0-1"/></cputune>
             <numatune><memnode cellid="0" mode="strict" nodeset="0"/>
             </numatune></domain>""", self.policy, (0,))
        return scheduling.render_scheduling(
            xml, self.policy.get_part(ThreadPolicy))

    def allocations_on(self, node):
        held = len(self.policy.groups)
        groups = {names.RESCTRL_GROUP: held} if held else {}
        wanted = self.policy.get_resources_by_node(self.accounting)
        return {ROOT: {'VCPU': 2, **groups},
                **({NODES[node]: wanted[0]} if wanted else {})}

    # -- what a move works with -----------------------------------------------

    @property
    def guest(self):
        return change.GuestRecord(UUID, 'web', 'a', ROOT, (
            self.host.cells[0].host_node,), self.specs, True, vcpus=2)

    def read_guest(self):
        return self.guest

    def read_guest_nodes(self):
        return node_move.GuestLocation(self.guest, self.host.cells, {
            node: HostCell(frozenset().union(*CORES[node]), CORES[node],
                           shared=SHARED[node], memory_free=1024)
            for node in (0, 1)},
            ('0000:81:00.1',) if self.policy.vfs else ())

    def lock_server(self):
        return 'lock'

    def check_lock(self):
        """The lock is never taken over here."""

    def unlock_server(self):
        return ''

    def move_nodes(self, _guest, packed, _token, _lock):
        after = node_move.move_messages.unpack_move(packed).move.after
        try:
            self.mover.move_guest(self.host.domain, packed,
                                  lambda: self.host.claim(after),
                                  lambda: self.host.cells)
        except policy_change.NotChanged as error:
            raise (errors.HostRollbackFailed
                   if error.incomplete else errors.Refused)(
                str(error)) from error

    def make_allocation_client(self, classes, _guest, nodes=(0, 1)):
        return placement.GuestAllocation(
            self.placement, UUID, ROOT,
            placement.map_numa_providers_to_nodes(ROOT, nodes), classes)

    def move(self, node):
        return node_move.NodeMover(
            self, functools.partial(self.make_allocation_client,
                                    names.NODE_CLASSES),
            self, self.accounting).move_guest({0: node})

    # -- what a live change works with, beside --------------------------------

    def check_policy(self, _guest, policy):
        return {
            'policy': policy_change.read_packed_policy(self.host.xml[0]),
            'same': False,
            'effective': policy_change.compute_enforced_limits(
                self.host, policy
            ),
        }

    def set_policy(self, _guest, policy, _token, _lock):
        policy_change.change_policy(self.host, self.host.domain, policy)

    def save_extra_specs(self, extra_specs):
        self.specs = dict(extra_specs)

    def change(self, key, value):
        """Change a key while the server runs, and its copy of the flavor."""
        wish = {f'ghsched:{key}': value}
        change.PolicyChanger(self, functools.partial(
            self.make_allocation_client, {names.MEM_BW_PCT}), self,
            self.accounting).change_policy(wish)

    # -- live migration -------------------------------------------------------

    def migrated(self, node, memorytune):
        """Return the XML that the source sends for a host NUMA node."""
        xml = self.render(memorytune)
        return migration_xml.MigratingGuest(
            types.SimpleNamespace(get_xml_desc=lambda: xml),
            domain_xml.DomainXml(facts(memorytune)),
            migration_xml.list_destination_nodes(
                MigrateData(node))).get_xml_desc()


class MigrateData:
    """Nova's LibvirtLiveMigrateData of a guest with one NUMA node."""

    def __init__(self, node):
        self.dst_numa_info = objects.LibvirtLiveMigrateNUMAInfo(
            cell_pins={'0': {node}})

    def __contains__(self, name):
        return hasattr(self, name)


class KeyTestCase(base.TestCase):

    def assert_agrees(self, server, node):
        """All records have the server on a node, with all of each class."""
        self.assertEqual(node, server.host.cells[0].host_node)
        self.assertEqual(server.allocations_on(node),
                         server.placement.allocations)
        for xml in server.host.xml.values():
            domain = metadata.read_policy(xml)
            self.assertLessEqual(set(domain.allocated_nodes), {node})
            self.assertIsNone(move_xml.read_move_record(xml))
            self.assert_policy(server, domain)
        self.assertEqual({}, uncounted_guests.log_unallocated_guests(
            [desired.Running(model.Domain(UUID, 1, 'i-1'),
                             server.host.xml[0])],
            ROOT, server.accounting, server.placement.by_consumer(), list))
        self.assertEqual((), self.audited(server))

    def assert_policy(self, server, domain):
        """The metadata of a domain has all that a host holds of a policy."""
        self.assertEqual(
            (server.policy.nodes, server.policy.rt_permille,
             server.policy.monitor, server.policy.device_numa),
            (domain.policy.nodes, domain.policy.rt_permille,
             domain.policy.monitor, domain.policy.device_numa))

    def audited(self, server):
        held = server.placement.allocations
        host, = capacity.build_hosts([clouds.root(used=held[ROOT]), *(
            clouds.counting_node(number, used=held.get(NODES[number]))
            for number in (0, 1))])
        # Its VFs are not among what is faked here.
        policy = dataclasses.replace(server.policy, vfs=())
        return audit.audit_host_allocations(host, [findings.Server(
            UUID, 'web', 'a', policy, nodes=(
                server.host.cells[0].host_node,))], {UUID: held},
            accounting=server.accounting)

    def check_limits(self, server):
        asked = request.build_request(server.policy, server.accounting)
        self.assertEqual(
            Counter(asked.resources) + sum(
                (Counter(one.resources) for one in asked.groups), Counter()),
            +Counter({name: amount for amounts
                      in server.placement.allocations.values()
                      for name, amount in amounts.items()
                      if name in names.OUR_CLASSES}))
        with mock.patch.object(limits, '_count_vfs', lambda _flavor: {}):
            counts = limits.count_server_resources(objects.RequestSpec(
                flavor=objects.Flavor(vcpus=2, extra_specs=server.specs)))
        self.assertEqual(self.allocated_amounts(server), counts)

    def allocated_amounts(self, server):
        """Return what Placement holds of our classes, by class."""
        return {name: amount
                for amounts in server.placement.allocations.values()
                for name, amount in amounts.items()
                if name in names.OUR_CLASSES}

    def check_moves(self, server):
        if server.policy.vfs:
            error = self.assertRaises(errors.Refused, server.move, 1)
            self.assertIn('0000:81:00.1', str(error))
            self.assertEqual([], server.placement.written)
            self.assert_agrees(server, 0)
            return
        for node in (1, 0):
            server.placement.written.clear()
            server.move(node)
            self.assert_agrees(server, node)
            # Both places in one request, then the new one in another.
            self.assertEqual(
                2 if server.policy.get_resources_by_node(server.accounting)
                else 0,
                len(server.placement.written))

    def check_live_changes(self, specs, accounting):
        """Each key that can change does so, and nothing else changes."""
        for key, value in CHANGED.items():
            server = Server(specs, accounting)
            before, held = server.policy, self.allocated_amounts(server)
            wanted = {**specs, f'ghsched:{key}': value}
            try:
                server.change(key, value)
            except policies.PolicyError as error:
                self.assertIn('ghsched:mem_bw', str(error))
                self.assertTrue(not before.needs_control_group
                                or self.contradicts(wanted))
                self.assertEqual([], server.placement.written)
                self.assertEqual(specs, server.specs)
            else:
                self.assertTrue(before.needs_control_group)
                self.assertEqual(wanted, server.specs)
                self.assertEqual({
                    f'class:{name}': amount - held.get(name, 0)
                    for name, amount in self.allocated_amounts(server).items()
                    if amount > held.get(name, 0)
                }, nova_seams.count_added_usage(
                    objects.Flavor(vcpus=2, extra_specs=specs), wanted))
            self.assert_agrees(server, 0)

    def contradicts(self, specs):
        try:
            policies.parse_policy(specs, 1, 2)
        except policies.PolicyError:
            return True
        return False

    def check_live_migration(self, server):
        for memorytune in ('none', 'basic'):
            for node in (1, 0):
                xml = server.migrated(node, memorytune)
                domain = metadata.read_policy(xml)
                counted = bool(server.policy.nodes
                               or server.policy.rt_permille)
                self.assertEqual({node} if counted else set(),
                                 set(domain.allocated_nodes))
                self.assert_policy(server, domain)
                tuned = (memorytune == 'basic' and any(
                    key.startswith('ghsched:mem_bw') for key in server.specs))
                self.assertEqual({str(node)} if tuned else set(), {
                    element.get('id') for element in etree.fromstring(
                        xml).iterfind('cputune/memorytune/node')})

    def check(self, specs):
        conf = shared.config()
        self.addCleanup(conf.clear_override, 'bandwidth_accounting',
                        group='ghsched')
        for accounting in ('min', 'max'):
            conf.set_override('bandwidth_accounting', accounting,
                              group='ghsched')
            server = Server(specs, accounting)
            self.assert_agrees(server, 0)
            self.check_limits(server)
            self.check_moves(server)
            self.check_live_changes(specs, accounting)
            self.check_live_migration(server)


@ddt.ddt
class SingleKeyTest(KeyTestCase):

    @ddt.data(*sorted(sample_flavors.SAMPLES))
    def test_key_alone_moves_or_stays_with_all_records(self, name):
        self.check(sample_flavors.flavor(name))

    @ddt.data(*sorted(sample_flavors.SAMPLES))
    def test_key_alone_is_put_back_whatever_step_fails(self, name):
        specs = sample_flavors.flavor(name)
        if 'ghsched:vfs' in specs:
            return
        whole = Server(specs)
        whole.move(1)
        for step in range(1, whole.host.count + 1):
            server = Server(specs)
            server.host.fails_at = step
            with contextlib.suppress(errors.Refused):
                server.move(1)
            # As the next report does.
            server.mover.resolve_interrupted_move(server.host.domain,
                                                  server.host.cells)
            self.assert_agrees(server, server.host.cells[0].host_node)


class PairTest(KeyTestCase):

    def test_pairs_of_keys_move_or_stay_with_all_records(self):
        pairs = sample_flavors.paired_flavors()
        self.assertGreater(len(pairs), 200)
        for pair, specs in spaces.choose(pairs.items()):
            self.addDetail('pair', content.text_content(', '.join(pair)))
            self.check(specs)


class ClassTest(KeyTestCase):

    def test_each_class_without_room_refuses_the_move(self):
        specs = sample_flavors.flavor(*sample_flavors.KEY_OF_CLASS.values())
        for name in sorted(sample_flavors.KEY_OF_CLASS):
            server = Server(specs)
            with mock.patch.dict(clouds.OFFERED, {name: 1}):
                error = self.assertRaises(errors.Refused, server.move, 1)
            self.assertIn('host NUMA node 1 has 1', str(error))
            self.assert_agrees(server, 0)

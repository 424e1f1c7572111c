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

"""XML that the source of a live migration sends, by guest NUMA node."""

import types

import fixtures
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from nova import objects

from ghsched_nova.guest import memorytune
from ghsched_nova.guest import metadata
from ghsched_nova.host import domain_xml
from ghsched_nova.host import migration_xml
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.tests.fixtures import captured
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

objects.register_all()

HOST_NODES = 8
HOST = captured.openeuler(domains_by_node={
    node: (node,) for node in range(HOST_NODES)})
SHARES = (60, 20, 35, 10)


def places(count):
    """Host NUMA nodes for a number of guest NUMA nodes."""
    return st.permutations(range(HOST_NODES)).map(
        lambda nodes: tuple(nodes[:count]))


#: Nodes of a domain at its start, after each move inside its host, and at the
#: destination.
JOURNEYS = st.integers(1, len(SHARES)).flatmap(lambda count: st.tuples(
    places(count), st.lists(places(count), max_size=2), places(count)))


def make_renderer():
    renderer = domain_xml.DomainXml(types.SimpleNamespace(
        read_resctrl_host=lambda: HOST, can_share_groups=False,
        all_threads=False,
        section=types.SimpleNamespace(memorytune_attributes='basic')))
    renderer.libvirt = domain_xml.LibvirtFeatures(extended=True)
    return renderer


def start(nodes):
    """XML of a domain that runs on host NUMA nodes since its start."""
    memory = ''.join(
        f'<memnode cellid="{cell}" mode="strict" nodeset="{node}"/>'
        for cell, node in enumerate(nodes))
    return make_renderer().render_policy(
        f'<domain><name>i-1</name><vcpu>4</vcpu><cputune/>'
        f'<numatune>{memory}</numatune></domain>',
        GuestPolicy(tuple(NodePolicy(share) for share
                          in SHARES[:len(nodes)])), nodes)


def move(xml, nodes):
    """Move a running domain; libvirt changes its metadata, not its numbers."""
    return metadata.write_policy(
        xml, metadata.read_policy(xml).replace_host_nodes(nodes))


def read_guarantees(xml):
    """Guaranteed percent by number of the node in ``<memorytune>``."""
    return {int(node.get('id')): int(node.get('min_bandwidth')) for node
            in etree.fromstring(xml).findall('cputune/memorytune/node')}


class MigrateData:
    """Nova's LibvirtLiveMigrateData."""

    def __init__(self, pins):
        self.dst_numa_info = objects.LibvirtLiveMigrateNUMAInfo(
            cell_pins=pins)

    def __contains__(self, name):
        return hasattr(self, name)


class RenderTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.FakeLogger())

    def assert_on(self, nodes, xml):
        domain = metadata.read_policy(xml)
        self.assertEqual(tuple(nodes), domain.host_nodes)
        self.assertEqual(SHARES[:len(nodes)], tuple(
            node.minimum for node in domain.policy.nodes))
        self.assertEqual(dict(zip(nodes, SHARES, strict=False)),
                         read_guarantees(xml))

    @given(JOURNEYS)
    def test_each_guest_node_takes_its_own_share_after_moves(self, journey):
        started, moves, target = journey
        xml = start(started)
        for nodes in moves:
            xml = move(xml, nodes)
        self.assert_on(target, migration_xml.render_for_destination(
            make_renderer(), xml, target))

    @given(JOURNEYS)
    def test_old_limits_follow_their_guest_node_without_resctrl(
            self, journey):
        started, moves, target = journey
        xml = start(started)
        for nodes in moves:
            xml = move(xml, nodes)
        renderer = make_renderer()
        renderer._facts.read_resctrl_host = self.lose_resctrl
        self.assert_on(target, migration_xml.render_for_destination(
            renderer, xml, target))

    def lose_resctrl(self):
        raise resctrl_host.ResctrlUnavailable('lost')

    @given(JOURNEYS)
    def test_stored_definition_has_the_nodes_of_a_move(self, journey):
        started, moves, _target = journey
        xml = start(started)
        for nodes in moves:
            xml = make_renderer().update_memorytune(move(xml, nodes))
            self.assert_on(nodes, xml)

    def test_a_number_that_is_not_in_the_map_is_refused(self):
        xml = start((0, 1))
        self.assertRaises(migration_xml.NotRenumbered,
                          migration_xml.render_for_destination,
                          make_renderer(), xml, (3,))
        renderer = make_renderer()
        renderer._facts.read_resctrl_host = self.lose_resctrl
        self.assertRaises(memorytune.MemoryTuneError,
                          migration_xml.render_for_destination, renderer,
                          xml.replace('nodeset="1"', 'nodeset="5"'), (3, 4))

    def test_domain_without_a_policy_stays_as_it_is(self):
        self.assertEqual('<domain/>', migration_xml.render_for_destination(
            make_renderer(), '<domain/>', ()))


class ListTest(base.TestCase):

    def test_nodes_come_in_the_order_of_guest_nodes(self):
        self.assertEqual([7, 3, 5], migration_xml.list_destination_nodes(
            MigrateData({'2': {5}, '0': {7}, '1': {3}})))

    def test_a_guest_node_without_one_host_node_is_refused(self):
        for pins in ({'0': {1}, '2': {3}}, {'1': {1}}, {'0': {1, 2}},
                     {'0': set()}):
            self.assertRaises(migration_xml.NotRenumbered,
                              migration_xml.list_destination_nodes,
                              MigrateData(pins))

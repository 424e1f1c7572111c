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


import os
import re
import shutil
import subprocess
import tempfile
import unittest

from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from ghsched_nova.guest import document
from ghsched_nova.guest import libvirt_probes
from ghsched_nova.guest import memorytune as mt
from ghsched_nova.tests.fixtures.memory_tunes import read_memorytune
from ghsched_nova.tests.fixtures import samples
from ghsched_placement.tests import base

SCHEMA = '/usr/share/libvirt/schemas/domain.rng'

NODES = st.lists(
    st.builds(mt.NodeTune, id=st.integers(0, 31),
              bandwidth=st.integers(0, 2048),
              hardlimit=st.none() | st.booleans(),
              priority=st.none() | st.integers(0, 7),
              min_bandwidth=st.none() | st.integers(0, 100)),
    max_size=5, unique_by=lambda node: node.id).map(tuple)
VCPUS = st.frozensets(st.integers(0, 511), min_size=1, max_size=12)
TUNES = st.builds(mt.MemoryTune, vcpus=st.none() | VCPUS, nodes=NODES,
                  monitor=st.booleans()).filter(
                      lambda tune: tune.nodes or tune.monitor)
DOMAINS = st.sampled_from(samples.ALL)

TUNE = mt.MemoryTune(
    vcpus=frozenset(range(4)),
    nodes=(mt.NodeTune(0, 60, True, 5, 40), mt.NodeTune(1, 100, False)),
    monitor=True)
EXTENDED = '''
    <memorytune vcpus="0-3">
      <node id="0" bandwidth="60" hardlimit="1" priority="5" \
min_bandwidth="40"/>
      <node id="1" bandwidth="100" hardlimit="0"/>
      <monitor vcpus="0-3"/>
    </memorytune>'''
PLAIN = '''
    <memorytune vcpus="0-3">
      <node id="0" bandwidth="60"/>
      <node id="1" bandwidth="100"/>
      <monitor vcpus="0-3"/>
    </memorytune>'''


def same(xml):
    """The document as lxml writes it, untouched."""
    parser = etree.XMLParser(strip_cdata=False)
    return etree.tostring(etree.fromstring(xml, parser), encoding='unicode')


def without(xml):
    """A domain with no ``<memorytune>``, nor a ``<cputune>`` for it alone."""
    root = document.parse_document(xml)
    for element in root.findall('cputune/memorytune'):
        cputune = element.getparent()
        document.remove_element(element if len(cputune) > 1 else cputune)
    return document.render_document(root)


def plain(tune):
    """Return a tune with its monitor, and of its nodes only the bandwidth."""
    return mt.MemoryTune(
        tune.vcpus, tuple(mt.NodeTune(node.id, node.bandwidth)
                          for node in tune.nodes), tune.monitor)


def replace_memorytune(xml, tune, extended):
    return mt.replace_memorytunes(xml, [tune], extended)


def update_nodes(xml, nodes, extended):
    return mt.update_memorytune_nodes(xml, {None: nodes}, extended)


class RenderTest(base.TestCase):

    def test_goes_last_into_the_cputune_that_is_there(self):
        for extended, text in ((True, EXTENDED), (False, PLAIN)):
            self.assertEqual(
                samples.NOVA.replace('\n  </cputune>',
                                     text + '\n  </cputune>'),
                replace_memorytune(samples.NOVA, TUNE, extended))

    def test_makes_a_cputune_where_libvirt_has_it(self):
        self.assertEqual(
            samples.WITHOUT_CPUTUNE.replace(
                '  <!-- by hand',
                f'  <cputune>{PLAIN}\n  </cputune>\n  <!-- by hand'),
            replace_memorytune(samples.WITHOUT_CPUTUNE, TUNE, False))

    def test_a_one_line_document_stays_on_one_line(self):
        self.assertNotIn('\n',
                         replace_memorytune(samples.ONE_LINE, TUNE, True))

    def test_monitor_alone_has_no_node(self):
        tune = mt.MemoryTune(frozenset({0, 1, 5}), monitor=True)
        self.assertEqual(
            b'<memorytune vcpus="0-1,5"><monitor vcpus="0-1,5"/>'
            b'</memorytune>', etree.tostring(mt.make_element(tune, True)))

    def test_a_knob_that_the_host_has_not_is_not_named(self):
        tune = mt.MemoryTune(frozenset({0}), (mt.NodeTune(0, 40),))
        self.assertEqual(*(etree.tostring(mt.make_element(tune, extended))
                           for extended in (False, True)))

    def test_an_empty_domain_gets_a_cputune(self):
        tune = mt.MemoryTune(frozenset({0}), monitor=True)
        self.assertEqual(
            '<domain><cputune><memorytune vcpus="0"><monitor vcpus="0"/>'
            '</memorytune></cputune></domain>',
            replace_memorytune('<domain/>', tune, True))

    def test_takes_the_place_of_every_older_one(self):
        xml = ('<domain><cputune><memorytune vcpus="0"/><shares>1</shares>'
               '<memorytune vcpus="1"/></cputune></domain>')
        tune = mt.MemoryTune(frozenset({7}), (mt.NodeTune(2, 30),))
        self.assertEqual(
            '<domain><cputune><shares>1</shares><memorytune vcpus="7">'
            '<node id="2" bandwidth="30"/></memorytune></cputune></domain>',
            replace_memorytune(xml, tune, False))

    def test_takes_a_document_with_a_declaration(self):
        xml = '<?xml version="1.0" encoding="utf-8"?>\n' + samples.NOVA
        self.assertEqual(replace_memorytune(samples.NOVA, TUNE, True),
                         replace_memorytune(xml, TUNE, True))

    @given(DOMAINS, TUNES)
    def test_read_gives_back_what_was_rendered(self, xml, tune):
        self.assertEqual(
            tune, read_memorytune(replace_memorytune(xml, tune, True)))
        self.assertEqual(plain(tune), read_memorytune(
            replace_memorytune(xml, tune, False)))

    @given(DOMAINS, TUNES, TUNES, st.booleans())
    def test_the_last_tune_wins_and_twice_is_once(self, xml, old, new, ext):
        once = replace_memorytune(xml, new, ext)
        self.assertEqual(once, replace_memorytune(once, new, ext))
        self.assertEqual(
            once, replace_memorytune(replace_memorytune(xml, old, True),
                                     new, ext))

    @given(DOMAINS, TUNES, st.booleans())
    def test_nothing_else_changes(self, xml, tune, extended):
        self.assertEqual(same(xml),
                         without(replace_memorytune(xml, tune, extended)))

    def test_refuses_what_libvirt_would_drop_or_refuse(self):
        cpus = frozenset({0})
        node = mt.NodeTune(0, 100, True)
        for tune, reason in (
                (mt.MemoryTune(frozenset(), (node,)), 'at least one vCPU'),
                (mt.MemoryTune(cpus), 'a node or a monitor'),
                (mt.MemoryTune(cpus, (node, node)), 'twice: 0, 0')):
            with self.assertRaisesRegex(mt.MemoryTuneError, reason):
                replace_memorytune(samples.NOVA, tune, True)

    def test_refuses_a_document_that_is_no_domain(self):
        for xml, reason in (('', 'not XML'),
                            ('<domain>', 'not XML'),
                            ('<network/>', '<network>')):
            with self.assertRaisesRegex(mt.MemoryTuneError, reason):
                replace_memorytune(xml, TUNE, True)


class ReadTest(base.TestCase):

    def test_a_domain_without_has_none(self):
        for xml in samples.ALL:
            self.assertIsNone(read_memorytune(xml))

    def test_reads_what_libvirt_writes(self):
        xml = ("<domain type='kvm' id='3'><cputune><memorytune vcpus='0-1' "
               "id='vcpus_0-1'><node id='1' bandwidth='20'/></memorytune>"
               "</cputune></domain>")
        self.assertEqual(
            mt.MemoryTune(frozenset({0, 1}), (mt.NodeTune(1, 20),)),
            read_memorytune(xml))


class RetuneTest(base.TestCase):

    @given(DOMAINS, TUNES.filter(lambda tune: tune.nodes),
           NODES.filter(bool), st.booleans())
    def test_update_leaves_exactly_the_given_nodes_and_no_other_change(
            self, xml, tune, nodes, extended):
        before = replace_memorytune(xml, tune, extended)
        after = update_nodes(before, nodes, extended)
        self.assertEqual(without(before), without(after))
        wanted = mt.MemoryTune(tune.vcpus, nodes, tune.monitor)
        self.assertEqual(wanted if extended else plain(wanted),
                         read_memorytune(after))
        self.assertIs(after,
                      update_nodes(after, nodes, extended))

    def test_update_keeps_more_attributes_that_libvirt_returns(self):
        xml = replace_memorytune(samples.NOVA, TUNE, True)
        self.assertIs(xml, update_nodes(
            xml, TUNE.nodes[::-1], False))

    def test_update_refuses_one_number_for_two_nodes(self):
        xml = replace_memorytune(samples.NOVA, TUNE, True)
        with self.assertRaisesRegex(mt.MemoryTuneError, 'twice: 3, 3'):
            update_nodes(
                xml, (mt.NodeTune(3, 20), mt.NodeTune(3, 30)), True)

    def test_update_of_a_domain_without_nodes_returns_the_same_text(self):
        for xml in (*samples.ALL, replace_memorytune(
                samples.NOVA, mt.MemoryTune(frozenset({0}), monitor=True),
                True)):
            self.assertIs(xml,
                          update_nodes(xml, TUNE.nodes, True))


class RemapTest(base.TestCase):

    @given(DOMAINS, TUNES, st.permutations(range(32)))
    def test_only_the_node_numbers_change(self, xml, tune, targets):
        remapped = mt.renumber_nodes(replace_memorytune(xml, tune, True),
                                     dict(enumerate(targets)))
        expected = mt.MemoryTune(tune.vcpus, tuple(
            mt.NodeTune(targets[node.id], node.bandwidth, node.hardlimit,
                        node.priority, node.min_bandwidth)
            for node in tune.nodes), tune.monitor)
        self.assertEqual(replace_memorytune(xml, expected, True), remapped)

    def test_two_nodes_can_change_places(self):
        xml = mt.renumber_nodes(
            replace_memorytune(samples.NOVA, TUNE, True), {0: 1, 1: 0})
        self.assertEqual(
            mt.MemoryTune(TUNE.vcpus, (mt.NodeTune(1, 60, True, 5, 40),
                                       mt.NodeTune(0, 100, False)), True),
            read_memorytune(xml))

    def test_a_domain_without_is_left_alone(self):
        self.assertEqual(same(samples.NOVA),
                         mt.renumber_nodes(samples.NOVA, {}))

    def test_refuses_a_lost_or_shared_node(self):
        xml = replace_memorytune(samples.NOVA, TUNE, True)
        for nodes, reason in (({0: 0}, 'node 1 has no counterpart'),
                              ({0: 1, 1: 1}, 'would become node 1')):
            with self.assertRaisesRegex(mt.MemoryTuneError, reason):
                mt.renumber_nodes(xml, nodes)


class ProbeTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.probe = libvirt_probes.EXTENDED_MEMORYTUNE.xml
        self.is_kept = libvirt_probes.EXTENDED_MEMORYTUNE.is_kept

    def test_a_libvirt_that_returns_everything_keeps_it(self):
        self.assertTrue(self.is_kept(self.probe))

    def test_one_dropped_attribute_is_enough(self):
        for name in ('hardlimit', 'priority', 'min_bandwidth'):
            returned = re.sub(f' {name}="[0-9]+"', '', self.probe)
            self.assertNotEqual(self.probe, returned)
            self.assertFalse(self.is_kept(returned))

    def test_one_changed_attribute_is_enough(self):
        self.assertFalse(self.is_kept(
            self.probe.replace('priority="5"', 'priority="3"')))

    def test_a_dropped_element_is_enough(self):
        self.assertFalse(self.is_kept(without(self.probe)))

    def test_a_group_for_the_process_is_kept_without_vcpus(self):
        probe = libvirt_probes.PROCESS_GROUP
        self.assertTrue(probe.is_kept(probe.xml))
        self.assertFalse(probe.is_kept(without(probe.xml)))
        self.assertFalse(probe.is_kept(self.probe))


@unittest.skipUnless(os.path.exists(SCHEMA), "libvirt's schemas are not "
                                             'installed')
class LibvirtSchemaTest(base.TestCase):
    """libvirt's own grammar takes what is written for upstream libvirt."""

    def check(self, xml):
        schema = etree.RelaxNG(file=SCHEMA)
        schema.validate(etree.fromstring(xml))
        return [error.message for error in schema.error_log]

    def test_upstream_xml_is_valid(self):
        probe = libvirt_probes.EXTENDED_MEMORYTUNE.xml
        for tune in (TUNE, mt.MemoryTune(frozenset({0}), monitor=True)):
            self.assertEqual(
                [], self.check(replace_memorytune(probe, tune, False))
            )

    def test_extended_xml_is_openeulers_alone(self):
        probe = libvirt_probes.EXTENDED_MEMORYTUNE.xml
        self.assertNotEqual(
            [], self.check(replace_memorytune(probe, TUNE, True)))


@unittest.skipUnless(shutil.which('virsh'), 'virsh is not installed')
class UpstreamLibvirtTest(base.TestCase):
    """An upstream libvirt reads it; its test driver needs no daemon."""

    def round_trip(self, xml):
        with tempfile.NamedTemporaryFile('w', suffix='.xml') as file:
            file.write(xml)
            file.flush()
            output = subprocess.run(
                ['virsh', '-q', '-c', 'test:///default',
                 f'define {file.name}; dumpxml {libvirt_probes.NAME}'],
                check=True, capture_output=True, text=True).stdout
        return output[output.index('<domain'):]

    def test_the_extended_attributes_are_dropped(self):
        probe = libvirt_probes.EXTENDED_MEMORYTUNE.xml
        self.assertFalse(libvirt_probes.EXTENDED_MEMORYTUNE.is_kept(
            self.round_trip(probe)))

    def test_it_reads_a_plain_tune_as_we_do(self):
        probe = libvirt_probes.EXTENDED_MEMORYTUNE.xml
        probe = probe.replace('<vcpu>2<', '<vcpu>8<')
        tune = mt.MemoryTune(frozenset({0, 1, 4}),
                             (mt.NodeTune(0, 20), mt.NodeTune(1, 100)), True)
        for xml in (replace_memorytune(probe, tune, False),
                    replace_memorytune(probe, plain(tune), False)):
            self.assertEqual(tune, read_memorytune(self.round_trip(xml)))

    def test_it_keeps_a_monitor_without_a_node(self):
        tune = mt.MemoryTune(frozenset({0}), monitor=True)
        xml = replace_memorytune(
            libvirt_probes.EXTENDED_MEMORYTUNE.xml, tune, False)
        self.assertEqual(tune, read_memorytune(self.round_trip(xml)))

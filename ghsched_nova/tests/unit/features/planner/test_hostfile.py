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
import tempfile

from hypothesis import given
from hypothesis import strategies as st
import yaml

from ghsched_nova.features.planner import host_pfs
from ghsched_nova.features.planner import hostfile
from ghsched_placement.tests import base

GOOD = {
    'name': 'h',
    'nodes': [{'id': 1, 'cpus': '2-3', 'memory_mb': 9},
              {'id': 0, 'cpus': '0-1', 'memory_mb': 8}],
    'resctrl': {'dialect': 'openeuler-6.6', 'num_closids': 4,
                'min_bandwidth': 1, 'bandwidth_gran': 1},
}
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 999) | st.floats()
    | st.text(max_size=5) | st.sampled_from(['0-3', 'MB', 'intel-rdt']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(['name', 'nodes', 'id', 'cpus', 'dialect', 'x']),
        inner, max_size=3), max_leaves=5)


def changed(value, *path):
    """The good file with one thing in another way; None takes it out."""
    document = yaml.safe_load(yaml.safe_dump(GOOD))
    place = document
    for step in path[:-1]:
        place = (place.setdefault(step, {}) if isinstance(place, dict)
                 else place[step])
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return yaml.safe_dump(document)


class LoadTestCase(base.TestCase):

    def load(self, text):
        with tempfile.NamedTemporaryFile('w', suffix='.yaml') as file:
            file.write(text)
            file.flush()
            try:
                return hostfile.load_host_file(file.name)
            except hostfile.HostFileError as error:
                self.assertTrue(str(error).startswith(f'{file.name}: '))
                raise hostfile.HostFileError(
                    str(error).removeprefix(f'{file.name}: ')) from None

    def refused(self, text, *parts):
        with self.assertRaises(hostfile.HostFileError) as raised:
            self.load(text)
        for part in parts:
            self.assertIn(part, str(raised.exception))


class LoadTest(LoadTestCase):

    def test_omitted_values_have_defaults(self):
        host = self.load(yaml.safe_dump(GOOD))
        self.assertEqual([0, 1], [node.id for node in host.nodes])
        self.assertEqual(frozenset({2, 3}), host.nodes[1].cpus)
        self.assertEqual({0: (0,), 1: (1,)}, host.resctrl.domains_by_node)
        self.assertEqual(3, host.resctrl.priority_default)
        self.assertFalse(host.resctrl.monitored)
        self.assertEqual('none', host.attributes)
        self.assertEqual(1.0, host.tree_config.allocation_ratio)
        self.assertIsNone(host.node(2))

    def test_pfs(self):
        pf = {'address': '0000:81:00.0', 'node': 1, 'vfs': 8, 'alias': 'nic',
              'resource_class': 'CUSTOM_VF'}
        self.assertEqual((), self.load(yaml.safe_dump(GOOD)).pfs)
        self.assertEqual(
            (host_pfs.HostPf('0000:81:00.0', 1, 8, 'nic', 'CUSTOM_VF'),),
            self.load(changed([pf], 'pfs')).pfs)
        for key, value, reason in (
                ('node', 7, 'no NUMA node 7'), ('vfs', 0, 'between 1'),
                ('address', '81:00.0', 'not of the form'),
                ('alias', 'a:b', 'not of the form'),
                ('resource_class', 'vf', 'not of the form'),
                ('speed', 1, 'unknown key')):
            self.refused(changed([{**pf, key: value}], 'pfs'),
                         f'pfs[0].{key}', reason)
        self.refused(changed([pf, pf], 'pfs'), 'is given twice')
        other = {**pf, 'address': '0000:82:00.0', 'resource_class': 'OTHER'}
        self.refused(changed([pf, other], 'pfs'), 'has CUSTOM_VF')

    def test_settings_of_the_host(self):
        host = self.load(changed(
            {'memorytune_attributes': 'extended', 'reserved_control_groups':
             1, 'reserved_bandwidth': {1: 30},
             'bandwidth_allocation_ratio': 2, 'bandwidth_bursts': {1: 40},
             'bandwidth_burst_ratio': 1.5}, 'ghsched'))
        self.assertTrue(host.has_all_memorytune_attributes)
        self.assertEqual(1, host.reserved_groups)
        self.assertEqual({1: 30}, host.tree_config.reserved_bandwidth)
        self.assertEqual(2.0, host.tree_config.allocation_ratio)
        self.assertEqual({1: 40}, host.tree_config.bursts)
        self.assertEqual(1.5, host.burst_ratio)

    def test_reserved_bandwidth_has_the_default_of_nova_compute(self):
        for section, reserved in (
                ({}, 20), ({'reserved_bandwidth': {}}, 0),
                ({'reserved_bandwidth': {'*': 25}}, 25),
                ({'reserved_bandwidth': {1: 30, '*': 5}}, 30)):
            host = self.load(changed(section, 'ghsched'))
            self.assertEqual(reserved,
                             host.tree_config.get_reserved_percent(1), section)
        self.refused(changed({'bandwidth_bursts': {'*': 5}}, 'ghsched'),
                     'bandwidth_bursts.*: the host has no such')

    def test_hardware_with_fewer_lines(self):
        host = self.load(changed(['MB', 'MBMIN'], 'resctrl', 'lines'))
        self.assertEqual(['MB', 'MBMIN'],
                         [knob.line for knob in host.resctrl.dialect.knobs])
        self.assertIsNone(host.resctrl.priority_default)

    def test_caches_have_each_cpu_of_the_node_once(self):
        host = self.load(changed([2, '3-7'], 'nodes', 0, 'caches'))
        self.assertEqual(((), (frozenset({2}), frozenset(range(3, 8)))),
                         tuple(node.caches for node in host.nodes))
        for caches, wrong in ((['2'], '3'), (['2-3', '3'], '3'),
                              (['0-1', '4'], '2-3')):
            self.refused(changed(caches, 'nodes', 0, 'caches'),
                         'nodes[0].caches: ', f'one cache: {wrong}')
        self.refused(changed(['x'], 'nodes', 0, 'caches'),
                     'nodes[0].caches[0]: ')

    def test_one_cpu_is_a_number_to_yaml(self):
        host = self.load(changed(7, 'nodes', 0, 'cpus'))
        self.assertEqual(frozenset({7}), host.nodes[1].cpus)

    def test_other_settings_of_nova_compute(self):
        self.assertEqual(hostfile.Compute(),
                         self.load(yaml.safe_dump(GOOD)).compute)
        host = self.load(changed(
            {'dedicated_cpus': '1-2', 'cpu_allocation_ratio': 2,
             'disk_gb': 100}, 'nova'))
        self.assertEqual(hostfile.Compute(frozenset({1, 2}), 2.0, 1.0, 100),
                         host.compute)


class RefusalTest(LoadTestCase):

    def test_dedicated_cpus_that_no_node_has(self):
        self.refused(changed('3-4', 'nova', 'dedicated_cpus'),
                     'nova.dedicated_cpus: no node has CPU 4')

    def test_device_cells_with_openeulers_libvirt(self):
        document = yaml.safe_load(changed(
            {'memorytune_attributes': 'extended'}, 'ghsched'))
        for shown in (True, False):
            document['nova'] = {'device_cells': shown}
            text = yaml.safe_dump(document)
            if shown:
                self.refused(text, 'nova.device_cells: must be false',
                             'ghsched.memorytune_attributes: extended')
            else:
                self.load(text)

    def test_no_yaml(self):
        self.refused('name: [', 'not YAML')
        self.refused('name: a\nname: b\n', 'a key is given twice')
        self.refused('', 'the file: must be a mapping, is empty')
        self.refused('- a', 'the file: must be a mapping, is a list')
        self.refused('name: !!python/object:os.system x', 'not YAML')

    def test_bytes_that_are_no_text(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b'\xff\xfe\xfa')
            file.flush()
            with self.assertRaisesRegex(hostfile.HostFileError, 'not YAML'):
                hostfile.load_host_file(file.name)

    def test_a_directory(self):
        with self.assertRaisesRegex(hostfile.HostFileError, 'directory'):
            hostfile.load_host_file(os.path.dirname(__file__))

    def test_keys(self):
        for path, reason in (
                (('name',), 'name: is missing'),
                (('nodes', 0, 'cpus'), 'nodes[0].cpus: is missing'),
                (('resctrl', 'num_closids'), 'resctrl.num_closids: is miss')):
            self.refused(changed(None, *path), reason)
        for path, reason in (
                (('nodse',), 'nodse: unknown key'),
                (('nodes', 1, 'cpu'), 'nodes[1].cpu: unknown key'),
                (('resctrl', 'gran'), 'resctrl.gran: unknown key'),
                (('ghsched', 'x'), 'ghsched.x: unknown key')):
            self.refused(changed(1, *path), reason)

    def test_values(self):
        for value, path, reason in (
                (7, ('name',), 'name: must be text, is a number'),
                ({}, ('nodes',), 'nodes: must be a list'),
                ([], ('nodes',), 'nodes: must be a list'),
                ([7], ('nodes',), 'nodes[0]: must be a mapping, is a number'),
                (True, ('nodes', 0, 'id'), 'nodes[0].id: must be a whole'),
                (0, ('nodes', 0, 'id'), 'nodes[1].id: node 0 is given twice'),
                ('0-2', ('nodes', 1, 'cpus'),
                 'nodes[1].cpus: 2 is on another node'),
                ('a', ('nodes', 0, 'cpus'), "nodes[0].cpus: 'a'"),
                ([9], ('nodes', 0, 'domains'), 'leave it out or say [1]'),
                ('amd', ('resctrl', 'dialect'), "'amd' is not one of amd-qos"),
                (['MBX'], ('resctrl', 'lines'),
                 "lines[0]: 'MBX' is not one of"),
                (['MBMIN'], ('resctrl', 'lines'), 'lines: must name MB'),
                (0, ('resctrl', 'num_closids'), '0 is not between 1 and'),
                (9, ('resctrl', 'priority_default'), '9 is not between 0 and'),
                ('x', ('ghsched', 'memorytune_attributes'),
                 'not one of none, basic'),
                ({7: 1}, ('ghsched', 'reserved_bandwidth'),
                 'reserved_bandwidth.7: the host has no such'),
                ({0: 101}, ('ghsched', 'bandwidth_bursts'),
                 'bandwidth_bursts.0: 101 is not between'),
                ({0: 101}, ('ghsched', 'reserved_bandwidth'),
                 'reserved_bandwidth.0: 101 is not between'),
                (0, ('ghsched', 'bandwidth_allocation_ratio'), '0 is not')):
            self.refused(changed(value, *path), reason)

    def test_an_l3_dialect_needs_domains(self):
        self.refused(changed('intel-rdt', 'resctrl', 'dialect'),
                     'nodes: no node has domains')

    def test_a_cap_that_is_a_bandwidth_needs_that_of_the_node(self):
        document = yaml.safe_load(changed('amd-qos', 'resctrl', 'dialect'))
        document['resctrl']['min_bandwidth'] = 0
        for place, node in enumerate(document['nodes']):
            node['domains'] = [2 * place, 2 * place + 1]
        self.refused(yaml.safe_dump(document), 'bandwidth_mb: is missing')
        for node in document['nodes']:
            node['bandwidth_mb'] = 100000
        host = self.load(yaml.safe_dump(document)).resctrl
        self.assertEqual({0: 10 ** 11, 1: 10 ** 11}, host.node_bandwidth)
        self.assertEqual((2048, False), (host.no_cap, host.libvirt_reads))

    def test_steps_that_no_mpam_control_has(self):
        document = yaml.safe_load(changed('mpam', 'resctrl', 'dialect'))
        document['nodes'] = [dict(node, domains=[node['id']])
                             for node in document['nodes']]
        document['resctrl'].update(cap='hard', bandwidth_gran=10)
        self.refused(yaml.safe_dump(document), 'granularity of 10')
        document['resctrl']['bandwidth_gran'] = 1
        held = self.load(yaml.safe_dump(document)).resctrl.capabilities()
        self.assertIn('MEM_BW_HARDLIMIT', held)

    def test_one_line_for_the_cap(self):
        text = changed('openeuler-5.10', 'resctrl', 'dialect')
        self.refused(text, 'lines: must name MBMAX or MB')
        document = yaml.safe_load(text)
        document['resctrl']['lines'] = ['MBMAX', 'MBHDL']
        host = self.load(yaml.safe_dump(document)).resctrl
        self.assertEqual('MBMAX', host.dialect.find_knob('maximum').line)

    @given(st.sampled_from([('name',), ('nodes',), ('nodes', 0),
                            ('nodes', 0, 'cpus'), ('nodes', 1, 'domains'),
                            ('resctrl',), ('resctrl', 'lines'),
                            ('ghsched',), ('ghsched', 'reserved_bandwidth')]),
           JUNK)
    def test_junk_is_taken_or_refused_and_nothing_else(self, path, junk):
        try:
            self.load(changed(junk, *path) if junk is not None
                      else changed('', *path))
        except hostfile.HostFileError as error:
            self.assertTrue(str(error))

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


import contextlib
import io
import json
import os
from pathlib import Path
import tempfile

from lxml import etree

from ghsched_nova.cmd import main
from ghsched_nova.features.explain import output
from ghsched_nova.guest import metadata
from ghsched_nova.tests.fixtures import memory_tunes
from ghsched_placement.flavor import key_names
from ghsched_placement.flavor import resources
from ghsched_placement.tests import base

ROOT = Path(__file__).parents[5]
HOSTS = ROOT / 'etc' / 'ghsched' / 'hosts'
GOLDEN = Path(__file__).parent / 'golden'

#: Set it to write the golden files again; then read the difference.
UPDATE = 'GHSCHED_UPDATE_GOLDEN'

TWO_NODES = ['--vcpus', '8', '--ram', '16384', '--disk', '20', '--swap',
             '1025', '--property', 'hw:numa_nodes=2']
KUNPENG = [*TWO_NODES, '--property', 'ghsched:mem_bw_min=60',
           '--property', 'ghsched:mem_bw_max.1=75',
           '--property', 'ghsched:mem_bw_hardlimit=false',
           '--property', 'ghsched:mem_bw_priority.0=6',
           '--property', 'ghsched:monitor=true']
INTEL = [*TWO_NODES, '--property', 'ghsched:mem_bw_max=25', '--node', '1,0']


def run(host, *arguments):
    """Exit status, what was printed, and what was complained about."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main.main(['explain', '--host',
                                str(HOSTS / f'{host}.yaml'), *arguments])
        except SystemExit as stop:
            status = stop.code
    return status, out.getvalue(), err.getvalue()


def document_of(host, *arguments):
    """Exit status and the JSON document."""
    status, text, _ = run(host, *arguments, '--format', 'json')
    return status, json.loads(text)


def small(*properties, host='kunpeng920', extra=()):
    """A guest of 2 vCPUs and 1 GB with some extra specs."""
    arguments = ['--vcpus', '2', '--ram', '1024', *extra]
    for one in properties:
        arguments += ['--property', one]
    return document_of(host, *arguments)


@contextlib.contextmanager
def host_file(text):
    """A host of this description, for as long as it is needed."""
    with tempfile.NamedTemporaryFile('w', suffix='.yaml') as file:
        file.write(text)
        file.flush()
        yield file.name.removesuffix('.yaml')


def changed(changes):
    """A host like kunpeng920 but for some words of its description."""
    text = (HOSTS / 'kunpeng920.yaml').read_text()
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    return host_file(text)


class GoldenTest(base.TestCase):
    """The whole output, for two of the hosts that are shipped."""

    maxDiff = None

    def compare(self, host, form, *arguments):
        status, text, err = run(host, *arguments, '--format', form)
        self.assertEqual((0, ''), (status, err))
        path = GOLDEN / f'{host}.{form}'
        if os.environ.get(UPDATE):
            path.write_text(text)
        self.assertEqual(path.read_text(), text)
        return text

    def test_kunpeng(self):
        for form in ('table', 'json', 'xml'):
            self.compare('kunpeng920', form, *KUNPENG)

    def test_intel(self):
        for form in ('table', 'json', 'xml'):
            self.compare('intel-2s', form, *INTEL)

    def test_the_xml_is_the_one_of_the_driver(self):
        text = self.compare('kunpeng920', 'xml', *KUNPENG)
        added = etree.fromstring(f'<domain>{text}</domain>')
        policy = metadata.parse_policy(added)
        self.assertEqual((2, 3), policy.host_nodes)
        self.assertEqual(75, policy.policy.nodes[1].maximum)
        tune = memory_tunes.read_memorytune(
            f'<domain><cputune>{text}</cputune></domain>')
        assert tune is not None
        self.assertTrue(text.endswith(
            output.render_memorytune(tune, True) + '\n'))


class VfsTest(base.TestCase):
    """The reference guest, its VFs on guest NUMA node 0 or on both."""

    GUEST = ('--vcpus', '160', '--ram', '245760', '--property',
             'hw:numa_nodes=2')

    def explain(self, *properties, host='kunpeng920', extra=()):
        arguments = [*self.GUEST, *extra]
        for one in properties:
            arguments += ['--property', one]
        return document_of(host, *arguments)

    def nodes(self, document):
        return [cell['host_node'] for cell in document['guest']['nodes']]

    def test_one_nic_serves_one_guest_node(self):
        status, document = self.explain('ghsched:vfs.0=nic:40',
                                        'ghsched:vfs_locality=node')
        self.assertEqual(0, status)
        self.assertEqual([0, 1], self.nodes(document))
        self.assertEqual([{'guest_node': 0, 'alias': 'nic', 'count': 40}],
                         document['policy']['vfs'])

    def test_a_nic_on_each_socket_serves_two(self):
        status, document = self.explain(
            'ghsched:vfs=nic:40', 'ghsched:device_numa=required',
            host='kunpeng920-2nic')
        self.assertEqual(0, status)
        self.assertEqual([0, 2], self.nodes(document))

    def test_the_nearest_is_taken_where_near_is_not_a_must(self):
        _status, document = self.explain('ghsched:vfs.1=nic:40')
        self.assertEqual([1, 0], self.nodes(document))

    def test_a_place_of_ones_own_choice_is_checked(self):
        status, document = self.explain(
            'ghsched:vfs.0=nic:40', 'ghsched:vfs_locality=socket',
            extra=('--node', '1,2'))
        self.assertEqual((0, [1, 2]), (status, self.nodes(document)))
        status, document = self.explain(
            'ghsched:vfs.0=nic:40', 'ghsched:vfs_locality=socket',
            extra=('--node', '2,3'))
        self.assertEqual(1, status)
        self.assertIn('0 VFs of nic free, 40 needed', document['refusal'])
        status, _document = self.explain(
            'ghsched:vfs.0=nic:40', extra=('--node', '2,3'))
        self.assertEqual(0, status)

    def test_an_alias_that_the_host_has_not(self):
        status, document = self.explain('ghsched:vfs=gpu:1')
        self.assertEqual(1, status)
        self.assertIn("'gpu'", document['refusal'])

    def test_the_query_is_the_one_that_finds_the_host(self):
        for properties, locality in (
                (['ghsched:vfs.0=nic:40'], 'node'),
                (['ghsched:vfs=nic:40'], 'socket'),
                (['ghsched:vfs=nic:40', 'ghsched:mem_bw_min=60'], 'socket')):
            _status, document = self.explain(*properties)
            asked = document['placement_query']
            self.assertEqual(locality, asked['vfs_locality'])
        status, text, _ = run('kunpeng920', *self.GUEST, '--property',
                              'ghsched:vfs=nic:40')
        self.assertEqual(0, status)
        self.assertIn('(VFs on the same socket; nearer ones were asked for '
                      'first and not found)', text)

    def test_isolated_groups_need_a_pf_each(self):
        guest = ('ghsched:vfs=nic:4', 'ghsched:vfs_locality=socket')
        self.assertEqual(0, self.explain(*guest)[0])
        status, document = self.explain(*guest, 'group_policy=isolate')
        self.assertEqual(1, status)
        self.assertIn('group_policy=isolate', document['refusal'])
        status, _document = self.explain(*guest, 'group_policy=isolate',
                                         host='kunpeng920-2nic')
        self.assertEqual(0, status)


class RefusedTableTest(base.TestCase):
    """Table of a guest that fits, and of one that is refused."""

    def test_refusal_leaves_the_provider_tree_out(self):
        for minimum, shown in ((30, True), (90, False)):
            _status, text, _err = run(
                'kunpeng920', '--vcpus', '2', '--ram', '1024', '--property',
                'hw:numa_nodes=1', '--property',
                f'ghsched:mem_bw_min={minimum}')
            self.assertEqual(shown, 'Providers of kunpeng920' in text)
            self.assertEqual(not shown, text.startswith('Refused\n'))


class QueryTest(base.TestCase):

    def parameters(self, *properties, extra=()):
        _, document = small(*properties, extra=extra)
        return dict(document['placement_query']['parameters'])

    def test_a_kernel_that_libvirt_can_not_read_has_no_memorytune(self):
        with changed({'memorytune_attributes: extended':
                      'memorytune_attributes: none'}) as host:
            for form in ('xml', 'table', 'json'):
                status, out, _ = run(
                    host, '--format', form, '--vcpus', '2', '--ram', '1024',
                    '--property', 'hw:numa_nodes=1', '--property',
                    'ghsched:mem_bw_max=50')
                self.assertEqual(0, status)
                self.assertIn('control group ghsched-UUID', out)
                self.assertNotIn('<memorytune', out)

    def test_dedicated_cpus(self):
        got = self.parameters('hw:cpu_policy=dedicated')
        # Nova's second query finds hosts without [compute]cpu_dedicated_set.
        self.assertEqual('MEMORY_MB:1024,VCPU:2', got['resources'])
        with changed({'ram_allocation_ratio: 1.0':
                      'ram_allocation_ratio: 1.0\n  dedicated_cpus: 0-3'
                      }) as host:
            _, out, _ = run(host, '--format', 'json', '--vcpus', '2', '--ram',
                            '1024', '--property', 'hw:cpu_policy=dedicated')
        self.assertIn('MEMORY_MB:1024,PCPU:2', out)

    def test_omitted_parts_are_named(self):
        _, document = small('hw:tpm_version=2.0', 'hw:pmem=x')
        self.assertEqual(['hw:pmem', 'hw:tpm_version'],
                         document['placement_query']['not_shown'])


class PlaceTest(base.TestCase):

    def host_nodes(self, document):
        return [node['host_node'] for node in document['guest']['nodes']]

    def test_the_nodes_asked_for(self):
        status, document = small('hw:numa_nodes=2', 'ghsched:mem_bw_min.0=9',
                                 extra=('--node', '3,1'))
        self.assertEqual(0, status)
        self.assertEqual([3, 1], self.host_nodes(document))
        self.assertEqual('MBMIN:1=0;3=9', document['schemata'][-1])

    @base.needs_features('bursts')
    def test_bursts_where_something_is_kept_for_them(self):
        keys = ['hw:numa_nodes=1', 'ghsched:mem_bw_min=5',
                'ghsched:mem_bw_burst=30']
        status, document = small(*keys)
        self.assertEqual(1, status)
        self.assertIn('it has 0 % of its memory bandwidth for bursts, 30 '
                      'needed', str(document))
        with changed({'bandwidth_bursts: {}': 'bandwidth_bursts: {3: 40}'
                      }) as host:
            status, document = small(*keys, host=host)
        self.assertEqual((0, [3]), (status, self.host_nodes(document)))
        # The part that is left to it when all want theirs, rounded down.
        self.assertEqual('MBMIN:3=15', document['schemata'][-1])

    def test_a_monitor_alone_needs_no_topology(self):
        status, document = small('ghsched:monitor=true')
        self.assertEqual(0, status)
        self.assertEqual([], document['schemata'])
        self.assertTrue(document['xml'].endswith(
            '<memorytune vcpus="0-1">\n  <monitor vcpus="0-1"/>\n'
            '</memorytune>'))

    def test_a_monitor_that_libvirt_can_not_make(self):
        old = {'dialect: openeuler-6.6': 'dialect: openeuler-5.10',
               'lines: [MB, ': 'lines: [MBMAX, ',
               '  memorytune_attributes: extended\n': ''}
        none = {'memorytune_attributes: extended':
                'memorytune_attributes: none'}
        for changes, makes in (({}, True), (none, False), (old, False)):
            with changed(changes) as host:
                _, out, _ = run(host, '--format', 'xml', '--vcpus', '2',
                                '--ram', '1024', '--property',
                                'ghsched:monitor=true')
            self.assertEqual(makes, '<memorytune' in out)
            self.assertEqual(not makes, 'mon_groups/ghsched-UUID' in out)

    def test_flavor_without_our_keys_gets_a_comment_for_xml(self):
        arguments = ('--vcpus', '1', '--ram', '1')
        status, text, err = run('intel-2s', *arguments, '--format', 'xml')
        self.assertEqual((0, ''), (status, err))
        self.assertEqual('<!-- nothing is added: the flavor has no key of '
                         'ghsched -->\n', text)
        self.assertIsNone(document_of('intel-2s', *arguments)[1]['xml'])


#: For each key: a value, other extra specs that it needs, and what the XML of
#: the guest has of it beside the policy in its metadata.
EXAMPLES: dict[str, tuple[str, dict[str, str], str]] = {
    'mem_bw_min': ('20', {}, '<memorytune'),
    'mem_bw_burst': ('20', {'ghsched:mem_bw_min': '5'}, 'burst="20"'),
    'mem_bw_max': ('50', {}, '<memorytune'),
    'mem_bw_hardlimit': ('false', {'ghsched:mem_bw_max': '50'}, 'hardlimit='),
    'mem_bw_priority': ('5', {}, 'priority='),
    'vcpu_classes': ('latency:1', {'ghsched:mem_bw_min.latency': '20'},
                     '<memorytune vcpus="1">'),
    'l3_ways': ('2', {}, 'l3_ways="2"'),
    'monitor': ('true', {}, '<monitor'),
    'device_numa': ('preferred', {}, 'device NUMA'),
    'vfs': ('nic:2', {'ghsched:device_numa': 'required'}, '<numa node="0"/>'),
    'vfs_locality': ('node', {'ghsched:vfs': 'nic:1'}, ''),
    'vcpu_scheduler': ('rr', {}, '<vcpusched'),
    'vcpu_priority': ('5', {'ghsched:vcpu_scheduler': 'rr'}, 'priority="5"'),
    'vcpu_runtime_us': ('500', {
        'ghsched:vcpu_scheduler': 'deadline',
        'ghsched:vcpu_period_us': '1000'}, ''),
    'vcpu_period_us': ('1000', {
        'ghsched:vcpu_scheduler': 'deadline',
        'ghsched:vcpu_runtime_us': '500'}, ''),
    'vcpu_deadline_us': ('900', {
        'ghsched:vcpu_scheduler': 'deadline', 'ghsched:vcpu_period_us': '1000',
        'ghsched:vcpu_runtime_us': '500'}, ''),
    'vcpu_scheduler_mask': ('1', {'ghsched:vcpu_scheduler': 'rr'},
                            'vcpus="1"'),
    'emulator_scheduler': ('rr', {}, '<emulatorsched'),
    'emulator_priority': ('5', {'ghsched:emulator_scheduler': 'rr'},
                          'priority="5"'),
    'iothread_scheduler': ('rr', {}, ''),
    'iothread_priority': ('5', {'ghsched:iothread_scheduler': 'rr'}, ''),
    'lock_memory': ('true', {}, '<locked'),
    'irq_bypass': ('preferred', {}, ''),
    'irq_affinity': ('housekeeping', {}, ''),
    'affinity_group': ('db', {}, ''),
    'guest_topology': ('host', {}, '<entry'),
    'guest_channel': ('read', {}, ''),
    'pv_hints': ('dedicated', {}, '<hint-dedicated'),
    'cpu_cache': ('prefer', {}, ''),
    'numa': ('auto', {'ghsched:mem_bw_min': '20'}, '<memorytune'),
    'numa_max': ('2', {'ghsched:numa': 'auto'}, ''),
    'numa_keep': ('true', {'ghsched:numa': 'auto'}, '')}


class EachKeyTest(base.TestCase):
    """XML of a guest with one key, on a host that supports all keys."""

    def test_xml_of_each_key_is_there_or_the_guest_is_refused(self):
        told = {}
        for name in key_names.BY_NAME:
            value, more, expected = EXAMPLES[name]
            is_auto = name.startswith('numa')
            specs = {**({} if is_auto else {'hw:numa_nodes': '1'}),
                     'hw:cpu_policy': 'dedicated',
                     'hw:emulator_threads_policy': 'isolate',
                     f'ghsched:{name}': value, **more}
            arguments = [word for key, text in specs.items()
                         for word in ('--property', f'{key}={text}')]
            with changed({'nova:\n': "nova:\n  dedicated_cpus: '0-15'\n"},
                         ) as host:
                status, text, err = run(host, '--vcpus', '2', '--ram', '1024',
                                        *arguments, '--format', 'xml')
            if resources.NOT_READ in err:   # The feature is deleted.
                continue
            told[name] = status
            if status:
                self.assertEqual((1, ''), (status, text), name)
                self.assertIn('refused: ', err)
                continue
            self.assertIn('<ghsched:policy', text, name)
            self.assertIn(expected, text, name)
            etree.fromstring(f'<domain>{text}</domain>')
        # Those that this host or the shape of the guest has not.
        self.assertLessEqual({name for name, one in told.items() if one}, {
            'mem_bw_burst', 'l3_ways', 'vfs', 'vfs_locality', 'pv_hints',
            'vcpu_runtime_us', 'vcpu_period_us', 'vcpu_deadline_us'})

    def test_hints_are_for_guests_on_x86(self):
        asked = [word for spec in (
            'hw:cpu_policy=dedicated', 'hw:emulator_threads_policy=isolate',
            'ghsched:pv_hints=dedicated') for word in ('--property', spec)]
        told = {host: run(host, '--vcpus', '2', '--ram', '512', '--format',
                          'xml', *asked)
                for host in ('intel-2s', 'amd-epyc', 'kunpeng920')}
        for host in ('intel-2s', 'amd-epyc'):
            self.assertIn('<kvm><hint-dedicated state="on"/>', told[host][1])
        self.assertIn('CUSTOM_GHSCHED_PV_HINTS', told['kunpeng920'][2])

    def test_devices_are_behind_a_bus_of_their_guest_node(self):
        """Upstream libvirt needs the bus; on openEuler's the device names its
        node.
        """
        asked = ('--vcpus', '4', '--ram', '512', '--format', 'xml',
                 '--property', 'hw:numa_nodes=2', '--property',
                 'ghsched:vfs=nic:3', '--property',
                 'ghsched:device_numa=required')
        text = (HOSTS / 'kunpeng920-2nic.yaml').read_text()
        for extended in (True, False):
            with host_file(text if extended else text.replace(
                    'memorytune_attributes: extended',
                    'memorytune_attributes: none')) as host:
                status, out, err = run(host, *asked)
            self.assertEqual((0, ''), (status, err))
            added = etree.fromstring(f'<domain>{out}</domain>')
            self.assertEqual(3, len(added.findall('hostdev')))
            self.assertEqual(
                ['0', '0', '1'] if extended else [],
                [one.get('node') for one in added.iter('numa')])
            self.assertEqual(
                [] if extended else ['0', '1'],
                [one.text for one in added.iterfind('controller/target/node')])


class RefusalTest(base.TestCase):

    def refused(self, pattern, *properties, host='kunpeng920', extra=()):
        status, document = small(*properties, host=host, extra=extra)
        self.assertEqual(1, status)
        self.assertRegex(document['refusal'], pattern)
        self.assertEqual(([], None),
                         (document['schemata'], document['xml']))
        return document

    def test_a_guarantee_on_intel(self):
        document = self.refused(
            'mem_bw_min=20 cannot be enforced.*Intel.*guaranteed share',
            'hw:numa_nodes=1', 'ghsched:mem_bw_min=20', host='intel-2s')
        self.assertIn('CUSTOM_GHSCHED_MEM_BW_MIN',
                      document['placement_query']['query'])

    def test_a_bad_flavor(self):
        for pattern, properties in (
                ('ghsched:mem_bw: unknown key', ['ghsched:mem_bw=1']),
                ('Ghsched:monitor: do you mean ghsched:monitor',
                 ['Ghsched:monitor=true']),
                ('101 is greater than 100', ['hw:numa_nodes=1',
                                             'ghsched:mem_bw_min=101']),
                ('ghsched:mem_bw_min: .*set hw:numa_nodes',
                 ['ghsched:mem_bw_min=1']),
                ('mem_bw_min.1: the guest has no NUMA node 1',
                 ['hw:numa_nodes=1', 'ghsched:mem_bw_min.1=1']),
                ('hw:numa_nodes: 2 vCPUs', ['hw:numa_nodes=3'])):
            document = self.refused(pattern, *properties)
            self.assertEqual([], document['placement_query']['parameters'])

    def test_a_wrong_node(self):
        for nodes, pattern in (('7', 'no NUMA node 7, it has 0-3'),
                               ('0,1', 'has 1 NUMA nodes, but .* for 2')):
            self.refused(pattern, 'hw:numa_nodes=1', extra=('--node', nodes))
        self.refused('node 2 is given twice', 'hw:numa_nodes=2',
                     extra=('--node', '2,2'))

    def test_huge_pages_are_those_of_the_file_or_unknown(self):
        asked = ('--vcpus', '4', '--ram', '4096', '--property',
                 'hw:numa_nodes=1', '--property')
        memory = 'memory_mb: 131072'
        for pages, size, said in (
                (None, '1GB', 'huge pages of kunpeng920 are not known'),
                (None, 'large', 'huge pages of kunpeng920 are not known'),
                (None, 'small', ''), ('1048576: 4', '1GB', ''),
                ('1048576: 3, 2048: 9', '1GB', '3 of 3 pages of 1 GB free, 4 '
                 'needed (hw:mem_page_size)'),
                ('1048576: 3, 2048: 9', 'large', '3 of 3 pages of 1 GB free, '
                 '4 needed'),
                ('1048576: 4', '2MB', '0 of 0 pages of 2 MB free, 2048 '
                 'needed'), ('2048: 60000', 'any', '')):
            with changed({memory: memory if pages is None else
                          f'{memory}, pages: {{{pages}}}'}) as host:
                status, out, err = run(host, *asked,
                                       f'hw:mem_page_size={size}')
            self.assertEqual('needed' in said, status == 1, (size, out))
            self.assertIn(said, out + err)
            self.assertEqual('known' in said, bool(err), err)

    def test_more_huge_pages_than_memory_are_refused(self):
        memory = 'memory_mb: 131072'
        with changed({memory: f'{memory}, pages: {{1048576: 129}}'}) as host:
            status, _out, err = run(host, '--vcpus', '1', '--ram', '64')
        self.assertEqual(2, status)
        self.assertIn('nodes[0].pages: they need 132096 MiB', err)

    def test_l3_ways_are_those_of_the_file_or_not_said(self):
        keys = ('hw:numa_nodes=2', 'ghsched:l3_ways.0=2',
                'ghsched:l3_ways.1=4')
        self.refused('the host file does not say how many ways of an L3 '
                     r'guests can have \(resctrl.ways\), 2 needed '
                     r'\(ghsched:l3_ways\)', *keys)
        for ways, refusal in ((4, None), (3, '3 ways of an L3 free, 4 need')):
            with changed({'num_closids: 32':
                          f'num_closids: 32\n  ways: {ways}'}) as host:
                status, out, _err = run(
                    host, '--vcpus', '10', '--ram', '256',
                    *(word for key in keys for word in ('--property', key)))
            self.assertEqual(1 if refusal else 0, status, out)
            self.assertIn(refusal or 'CUSTOM_L3_WAYS', out)

    def test_the_table_and_the_xml_say_it_too(self):
        asked = ['--vcpus', '1', '--ram', '1', '--property', 'ghsched:x=1']
        status, text, err = run('intel-2s', *asked)
        self.assertEqual((1, ''), (status, err))
        self.assertTrue(text.startswith('Refused\nghsched:x: unknown key'))
        self.assertNotIn('Providers', text)
        status, text, err = run('intel-2s', *asked, '--format', 'xml')
        self.assertEqual((1, ''), (status, text))
        self.assertIn('refused: ghsched:x: unknown key', err)


class UsageTest(base.TestCase):

    def test_wrong_usage_is_not_a_refusal(self):
        for arguments, reason in (
                (['--vcpus', '0', '--ram', '1'], 'at least 1'),
                (['--vcpus', 'x', '--ram', '1'], "'x' is not a whole"),
                (['--vcpus', '1'], 'required: --ram'),
                (['--vcpus', '1', '--ram', '1', '--property', 'a'],
                 "'a' is not KEY=VALUE"),
                (['--vcpus', '1', '--ram', '1', '--node', '0,'],
                 'is not a whole number'),
                (['--vcpus', '1', '--ram', '1', '--property', 'a=1',
                  '--property', 'a=2'], 'a key is given twice')):
            status, text, err = run('intel-2s', *arguments)
            self.assertEqual((2, ''), (status, text))
            self.assertIn(reason, err)

    def test_a_host_file_that_is_not_there(self):
        status, _, err = run('no-such', '--vcpus', '1', '--ram', '1')
        self.assertEqual(2, status)
        self.assertIn('no-such.yaml: No such file', err)


class ThreadsTest(base.TestCase):

    GUEST = ('--vcpus', '4', '--ram', '4096', '--property', 'hw:numa_nodes=1',
             '--property', 'ghsched:vcpu_scheduler=fifo',
             '--property', 'ghsched:vcpu_priority=7')
    DEDICATED = ('--property', 'hw:cpu_policy=dedicated', '--property',
                 'hw:emulator_threads_policy=share')

    def test_the_xml_has_the_classes(self):
        text = (HOSTS / 'kunpeng920.yaml').read_text().replace(
            'nova:\n', "nova:\n  dedicated_cpus: '0-15'\n")
        directory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (directory / 'host.yaml').write_text(text)
        for mask, vcpus in ((), '0-3'), (
                ('--property', 'ghsched:vcpu_scheduler_mask=^0'), '1-3'):
            status, out, err = run(directory / 'host', *self.GUEST,
                                   *self.DEDICATED, *mask, '--format', 'xml')
            self.assertEqual((0, ''), (status, err))
            self.assertIn(f'\n<vcpusched scheduler="fifo" vcpus="{vcpus}" '
                          'priority="7"/>\n', out)

    def test_guest_with_vcpu_classes_is_shown_to_share_no_group(self):
        asked = ['--vcpus', '4', '--ram', '4096', '--property',
                 'hw:numa_nodes=1', '--property', 'ghsched:mem_bw_max=60']
        classes = ['--property', 'ghsched:vcpu_classes=latency:0',
                   '--property', 'ghsched:mem_bw_min.latency=20']
        for more, groups in (([], None), (classes, 2)):
            _status, document = document_of('kunpeng920', *asked, *more)
            self.assertEqual(groups, document['policy'].get('control_groups'))
            _status, out, _err = run(HOSTS / 'kunpeng920', *asked, *more)
            self.assertEqual(groups == 2, (
                'control groups: 2, shared with no other guest, because'
                in out))

    def test_the_xml_has_the_topology_too(self):
        text = (HOSTS / 'kunpeng920.yaml').read_text().replace(
            'nova:\n', "nova:\n  dedicated_cpus: '0-127'\n")
        directory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (directory / 'host.yaml').write_text(text)
        status, out, err = run(
            directory / 'host', *(
                word.replace('nodes=1', 'nodes=2') for word in self.GUEST),
            *self.DEDICATED,
            '--property', 'ghsched:emulator_scheduler=rr',
            '--property', 'ghsched:guest_topology=host',
            '--property', 'ghsched:mem_bw_min=20', '--format', 'xml')
        self.assertEqual((0, ''), (status, err))
        for element in ('memorytune', 'vcpusched', 'emulatorsched',
                        'distances', 'interconnects'):
            self.assertIn(f'<{element}', out)

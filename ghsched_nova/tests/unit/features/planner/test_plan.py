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
import dataclasses
import io
import json
from pathlib import Path
import sys
import tempfile
from unittest import mock

import fixtures
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from ghsched_nova.cmd import main
from ghsched_nova.features.planner import hostfile
from ghsched_nova.features.planner import planner_inputs
from ghsched_placement.features.planner.client import PlannerError
from ghsched_placement.features.planner import density
from ghsched_placement.features.planner.flavors import Flavor
from ghsched_placement.features.planner import limits
from ghsched_placement.features.planner.more import AdditionalGuests
from ghsched_placement.features.planner import need as needs
from ghsched_placement.features.planner import output
from ghsched_placement.features.planner import plan
from ghsched_placement.features.planner import plan_picture
from ghsched_placement.features.planner import progress
from ghsched_placement.fit import lack
from ghsched_placement.tests import base

HOSTS = Path(__file__).parents[5] / 'etc' / 'ghsched' / 'hosts'
KUNPENG = str(HOSTS / 'kunpeng920.yaml')
EPYC = str(HOSTS / 'amd-epyc9755.yaml')
REFERENCE = Flavor('ref', 160, 240 * 1024, extra_specs={
    'hw:numa_nodes': '2', 'ghsched:vfs.0': 'nic:40',
    'ghsched:mem_bw_min': '50', 'ghsched:device_numa': 'preferred'})


def machine(path):
    return hostfile.load_host_file(path).contention


def host_plan(*names, **known):
    known = {'guests': 4, 'nodes': 4, 'whole_before': 4, 'whole_after': 0,
             'pooled': 6,
             'uses': (limits.InventoryUse(0, lack.BANDWIDTH, 100, 5, 60),),
             'lacks': tuple(lack.Lack(node, lack.BANDWIDTH, 40, 60)
                            for node in (0, 1, 3)),
             'more': (AdditionalGuests(0, 'h_NUMA0', lack.BANDWIDTH, 10, 0),
                      AdditionalGuests(None, 'h', lack.GROUPS, 1, 2)), **known}
    return plan.HostPlan(names, **known)


def example(kinds=1):
    hosts = tuple(host_plan(f'h{kind}', f'g{kind}') for kind in range(kinds))
    return plan.CapacityPlan(
        2 * kinds, kinds,
        (plan.FlavorPlan(Flavor('bw60', 2, 4096), 8 * kinds, hosts),),
        plan.MixPlan({'bw60': 1}, {'bw60': 3}, 'bw60',
                     (host_plan('h0', pooled=None, more=(), by_flavor={
                         'ref': 1, 'bw60': 3}),)),
        ('a note',))


class InputTest(base.TestCase):

    def test_copies_of_a_host(self):
        found = planner_inputs.read_host_files([f'{KUNPENG}*2', EPYC])
        self.assertEqual([('kunpeng920-1', 'kunpeng920-2'),
                          ('amd-epyc9755',)], [one.names for one in found])

    def test_a_name_can_not_be_there_twice(self):
        with self.assertRaisesRegex(PlannerError, r'equal hosts, use .*\*N'):
            planner_inputs.read_host_files([KUNPENG, KUNPENG])

    def test_number_after_a_star_is_required(self):
        for end in ('*', '*0', '*100000'):
            with self.assertRaisesRegex(PlannerError, 'FILE.*from 1 to'):
                planner_inputs.read_host_files([KUNPENG + end])

    def test_machines_are_there_once_and_of_one_host(self):
        self.assertEqual(
            2, len(planner_inputs.load_density_machines([KUNPENG, EPYC])))
        with self.assertRaisesRegex(PlannerError, 'kunpeng920 already'):
            planner_inputs.load_density_machines([KUNPENG, KUNPENG])
        with self.assertRaisesRegex(PlannerError, 'for one host'):
            planner_inputs.load_density_machine(f'{KUNPENG}*2')

    def test_guests_of_a_machine_that_is_planned_for_are_counted(self):
        hosts = planner_inputs.read_host_files([f'{KUNPENG}*2', EPYC])
        self.assertEqual(
            hosts[0].names,
            planner_inputs.load_density_machine(KUNPENG, hosts).counted)
        self.assertEqual(
            (), planner_inputs.load_density_machine(KUNPENG, hosts[1:]).counted
        )

    def test_a_bad_file_is_reported(self):
        with self.assertRaisesRegex(PlannerError, 'No such file'):
            planner_inputs.read_host_files(['/nowhere.yaml*3'])

    def test_an_alias_is_one_resource_class(self):
        hosts = planner_inputs.read_host_files([KUNPENG])
        self.assertEqual(
            {'nic': 'CUSTOM_PCI_15B3_1018', 'gpu': 'CUSTOM_GPU'},
            planner_inputs.map_pci_aliases_to_classes(
                hosts, [('gpu', 'CUSTOM_GPU')]))

    def test_an_alias_that_is_two_must_be_reported_if_a_flavor_needs_vfs(self):
        with tempfile.NamedTemporaryFile('w', suffix='.yaml') as other:
            other.write(Path(EPYC).read_text().replace(
                'CUSTOM_PCI_15B3_1018', 'CUSTOM_PCI_8086_1889'))
            other.flush()
            hosts = planner_inputs.read_host_files([KUNPENG, other.name])
        plain = Flavor('a', 1, 1)
        vfs = Flavor('b', 1, 1, extra_specs={'ghsched:vfs.0': 'nic:1'})
        self.assertEqual(
            {}, planner_inputs.map_pci_aliases_to_classes(
                hosts, flavors=[plain]))
        with self.assertRaisesRegex(PlannerError, '--alias nic=CLASS'):
            planner_inputs.map_pci_aliases_to_classes(
                hosts, flavors=[plain, vfs])
        self.assertEqual(
            {'nic': 'CUSTOM_X'}, planner_inputs.map_pci_aliases_to_classes(
                hosts, [('nic', 'CUSTOM_X')], [vfs]))
        with self.assertRaisesRegex(PlannerError, 'A and B'):
            planner_inputs.map_pci_aliases_to_classes(
                (), [('nic', 'A'), ('nic', 'B')])

    def flavors(self, text, suffix='.yaml'):
        with tempfile.NamedTemporaryFile('w', suffix=suffix) as file:
            file.write(text)
            file.flush()
            return planner_inputs.load_flavors([file.name])

    def test_flavors_of_a_file(self):
        self.assertEqual(
            [Flavor('a', 2, 1024, 5, extra_specs={'hw:numa_nodes': '1'}),
             Flavor('b', 1, 512)],
            self.flavors('a: {vcpus: 2, ram: 1024, disk: 5, '
                         '"hw:numa_nodes": 1}\nb: {vcpus: 1, ram: 512}'))
        self.assertEqual([Flavor('a', 2, 1024)], self.flavors(
            json.dumps({'a': {'vcpus': 2, 'ram': 1024}}), '.json'))

    def test_mistakes_in_a_file_are_reported_with_its_name(self):
        for text in ('- 1', 'a: 1', 'a: {vcpus: x}', '{', 'a: {ram: 5}'):
            with self.assertRaisesRegex(PlannerError, r'\.yaml: '):
                self.flavors(text)

    @given(st.recursive(st.none() | st.integers() | st.text(max_size=4),
                        lambda inner: st.dictionaries(
                            st.sampled_from(['a', 'vcpus', 'ram', 'hw:x']),
                            inner, max_size=3), max_leaves=6))
    def test_any_document_is_read_or_refused(self, document):
        with contextlib.suppress(PlannerError):
            for flavor in self.flavors(json.dumps(document)):
                self.assertGreater(flavor.vcpus, 0)

    def test_a_name_alone_needs_a_cloud(self):
        with self.assertRaisesRegex(PlannerError, 'require a cloud'):
            planner_inputs.load_flavors(['m1.small'])

    def test_a_flavor_of_a_cloud(self):
        connection = mock.Mock()
        connection.compute.find_flavor.return_value = mock.Mock(
            vcpus=2, ram=64, disk=5, ephemeral=3, swap=0,
            extra_specs={'hw:numa_nodes': '1'})
        (found,) = planner_inputs.load_flavors(['m1'], connection)
        self.assertEqual((2, 64, 8, {'hw:numa_nodes': '1'}), (
            found.vcpus, found.ram, found.disk, found.extra_specs))
        connection.compute.find_flavor.return_value = None
        with self.assertRaisesRegex(PlannerError, 'no such flavor'):
            planner_inputs.load_flavors(['m1'], connection)


class NotesTest(base.TestCase):

    def test_a_plan_with_bursts_says_how_short_they_may_be(self):
        def notes(**specs):
            flavor = Flavor('f', 1, 1024, extra_specs={
                f'ghsched:{name}': text for name, text in specs.items()})
            return plan._list_notes([], [flavor], None, plan.PlanSettings())
        self.assertEqual([], notes(mem_bw_min='10'))
        self.assertEqual([plan.BURSTS], notes(mem_bw_burst='10'))


class DensityTest(base.TestCase):

    def test_the_published_test_and_what_the_model_gives(self):
        found = density.predict_published_test_density(machine(KUNPENG),
                                                       machine(EPYC))
        curves = found.report.curves
        self.assertEqual(['none', 'static', 'ghsched'],
                         [curve.scenario for curve in curves])
        self.assertEqual([60, 48], [found.report.ratios[place].line
                                    for place in (0, 1)])
        self.assertEqual(
            {('kunpeng920', 'demand_mb'), ('kunpeng920', 'far_latency'),
             ('amd-epyc9755', 'demand_mb')},
            {(name, one.name) for name, one in found.fitted})
        self.assertEqual(2 * len(found.fitted), len(found.shifts))

    def need(self, **changes):
        return needs.build_flavor_need(
            Flavor(**{**vars(REFERENCE), **changes}),
            aliases={'nic': 'CUSTOM_NIC'})

    def test_the_reference_flavor_is_the_published_test(self):
        ours = machine(KUNPENG)
        found = density.predict_flavor_density(ours, self.need(), 2)
        self.assertEqual(
            density.predict_published_test_density(ours).report.curves,
            found.report.curves)

    def test_ratios_of_a_flavor_are_those_of_the_densities_shown(self):
        found = density.predict_flavor_density(machine(KUNPENG), self.need(),
                                               2)
        none, static, ours = (curve.density for curve in found.report.curves)
        self.assertEqual([ours / none, ours / static],
                         [ratio.value for ratio in found.report.ratios])

    def test_as_many_guests_as_the_host_has_room_for(self):
        found = density.predict_flavor_density(machine(KUNPENG), self.need())
        self.assertEqual(60, len(found.report.curves[0].points))

    def test_without_keys_there_may_be_more_guests(self):
        whole = self.need(vcpus=40, ram=64 * 1024, extra_specs={
            'hw:numa_nodes': '1', 'ghsched:vfs': 'nic:8',
            'ghsched:mem_bw_min': '100'})
        found = density.predict_flavor_density(machine(KUNPENG), whole, 4,
                                               search=True, guests_without=8)
        self.assertEqual([64, 64, 32], [
            len(curve.points) for curve in found.report.curves])
        self.assertLess(found.report.ratios[1].value, 1)
        self.assertGreater(found.found.curve.density, 32)

    def test_guests_without_vfs_have_a_density_and_a_note(self):
        plain = self.need(extra_specs={'hw:numa_nodes': '2'})
        found = density.predict_flavor_density(machine(KUNPENG), plain, 2,
                                               search=True)
        none, static, ours = found.report.curves
        self.assertLess(none.density, static.density)
        self.assertEqual(static.points, ours.points)
        self.assertEqual((density.NO_VFS,), found.notes)
        self.assertNotIn('ghsched:device_numa', found.best_extra_specs)
        self.assertEqual({'far_latency', 'demand_mb'},
                         {one.name for _machine, one in found.fitted})
        self.assertEqual(
            (density.BASELINE,),
            density.predict_published_test_density(machine(KUNPENG)).notes)

    def test_guests_that_share_cpus_are_not_all_in_the_model(self):
        many = self.need(vcpus=80, ram=16 * 1024,
                         extra_specs={'hw:numa_nodes': '1'})
        found = density.predict_flavor_density(machine(KUNPENG), many, 16)
        self.assertEqual(4, found.guests['ghsched'])
        self.assertIn(density.NOT_ALL.format(16, 4), found.notes)
        self.assertEqual((density.NO_VFS,), density.predict_flavor_density(
            machine(KUNPENG), many).notes)

    def test_the_reason_is_said_where_nothing_is_predicted(self):
        for changes, guests, reason in (
                ({'ram': 4096}, 2, 'no room for a container of 2 vCPUs'),
                ({'extra_specs': {}}, 2, 'hw:numa_nodes'),
                ({}, 0, 'no guest fits on the host')):
            with self.assertRaisesRegex(
                    density.NotPredicted,
                    f'density of ref on kunpeng920: not .*{reason}'):
                density.predict_flavor_density(machine(KUNPENG),
                                               self.need(**changes), guests)
        with self.assertRaisesRegex(density.NotPredicted, 'MEM_BW_MIN'):
            density.predict_flavor_density(machine(EPYC), self.need(), 0)

    def test_keys_that_the_machine_can_not_hold_are_refused(self):
        with self.assertRaisesRegex(PlannerError, 'MEM_BW_MIN'):
            density.predict_flavor_density(machine(EPYC), self.need(), 2)

    def test_keys_as_extra_specs(self):
        policy = self.need(extra_specs={
            'hw:numa_nodes': '2', 'ghsched:mem_bw_min.0': '20',
            'ghsched:mem_bw_max': '80', 'ghsched:mem_bw_hardlimit': 'false',
            'ghsched:mem_bw_priority': '5'}).policy
        specs = density.make_bandwidth_extra_specs(policy)
        again = self.need(extra_specs={'hw:numa_nodes': '2', **specs}).policy
        self.assertEqual(policy, again)

    def test_keys_of_vcpu_classes_as_extra_specs(self):
        specs = {'ghsched:vcpu_classes': 'latency:0-1,batch:80-99',
                 'ghsched:mem_bw_priority.latency': '7',
                 'ghsched:mem_bw_max.batch': '40',
                 'ghsched:mem_bw_min.1': '20'}
        policy = self.need(extra_specs={'hw:numa_nodes': '2', **specs}).policy
        self.assertEqual(specs, density.make_bandwidth_extra_specs(policy))


class OutputTest(base.TestCase):

    def test_nodes_that_lack_the_same_are_on_one_line(self):
        text = output.render_plan_as_text(example(), ())
        self.assertIn('node 0-1,3: 40 % of memory bandwidth free, 60 needed',
                      text)
        self.assertIn('Flavor bw60: 8 more guests', text)
        self.assertIn('Mix 1 bw60: 3 bw60; then there is no host for bw60',
                      text)
        self.assertIn('| 3 bw60 + 1 ref ', text)
        self.assertIn('- a note', text)

    def test_one_of_something_is_not_many(self):
        self.assertIn('| 1 control group ',
                      output.render_plan_as_text(example(), ()))
        self.assertEqual('1 VF of nic', lack.describe_amount(1, 'VFs of nic'))
        self.assertEqual('10 % of memory bandwidth',
                         lack.describe_amount(10, lack.BANDWIDTH))

    def test_a_table_is_not_longer_than_people_read(self):
        text = output.render_plan_as_text(example(kinds=200), ())
        self.assertLess(len(text.splitlines()), 150)
        self.assertIn('188 more kinds of hosts; JSON has them all', text)

    def test_json_has_all(self):
        document = json.loads(
            output.render_plan_as_json(example(kinds=200), ()))
        (flavor,) = document['flavors']
        self.assertEqual(200, len(flavor['hosts']))
        self.assertEqual({'node': 0, 'resource': lack.BANDWIDTH,
                          'free': 40, 'needed': 60, 'text':
                          '40 % of memory bandwidth free, 60 needed'},
                         flavor['hosts'][0]['lacks'][0])
        self.assertEqual({'bw60': 3}, document['mix']['guests'])
        self.assertEqual({'bw60': 3, 'ref': 1},
                         document['mix']['hosts'][0]['by_flavor'])

    def test_every_figure_of_the_model_is_labelled(self):
        found = density.predict_published_test_density(
            machine(KUNPENG), machine(EPYC), True)
        text = output.render_plan_as_text(example(), [found])
        titles = [line for line in text.splitlines()
                  if line.startswith(('Density', 'ghsched on', 'Ratios',
                                      'Best keys'))]
        self.assertEqual(4, len(titles))
        for title in titles:
            self.assertIn('(simulated)', title)
        self.assertIn('without control the p99 of redis fails at 28', text)
        self.assertNotIn('kunpeng920, none', text)
        document = json.loads(output.render_plan_as_json(example(), [found]))
        (told,) = document['densities']
        self.assertIs(True, told['simulated'])
        self.assertEqual(6, len(told['sensitivity']))
        self.assertEqual(['density', 'density'],
                         [ratio['line_is'] for ratio in told['ratios']])
        self.assertEqual(found.best_extra_specs, told['search']['keys'])

    def test_fitted_parameters_are_reported_in_full_once(self):
        first = density.predict_published_test_density(machine(KUNPENG))
        second = dataclasses.replace(first, subject='a', notes=('a caveat',))
        text = output.render_plan_as_text(example(), [first, second])
        self.assertEqual(1, text.count('| fitted to '))
        self.assertIn('Fitted parameters: far_latency of kunpeng920', text)
        self.assertIn('"Density of published test on kunpeng920"',
                      ' '.join(text.split()))
        self.assertIn('\n- a caveat', text)
        document = json.loads(output.render_plan_as_json(example(), [second]))
        self.assertEqual(['a caveat'], document['densities'][0]['notes'])

    def test_how_many_guests_a_density_is_of(self):
        found = density.predict_published_test_density(machine(KUNPENG))
        self.assertEqual({2}, set(found.guests.values()))
        text = output.render_plan_as_text(example(), [dataclasses.replace(
            found, guests={'none': 4, 'static': 3, 'ghsched': 1})])
        self.assertIn('8192 MB in 1 guest (3 without the keys), keys:', text)

    def test_goals_of_the_project_are_not_in_the_output(self):
        found = density.predict_published_test_density(machine(KUNPENG),
                                                       machine(EPYC))
        for text in (output.render_plan_as_text(example(), [found]),
                     output.render_plan_as_json(example(), [found])):
            self.assertNotIn('goal', text)


class PictureTest(base.TestCase):

    def test_svg_has_the_text_of_all_parts(self):
        found = density.predict_published_test_density(machine(KUNPENG))
        root = etree.fromstring(plan_picture.draw_plan(example(), [found]))
        self.assertEqual('{http://www.w3.org/2000/svg}svg', root.tag)
        texts = ' '.join(root.itertext())
        for part in ('bw60, in the mix', 'node 0, % of memory bandwidth',
                     '(simulated)', 'no control: density 27',
                     'latency line', 'in use now'):
            self.assertIn(part, texts)

    def test_picture_shows_what_is_used_and_what_binds(self):
        uses = (limits.InventoryUse(0, lack.BANDWIDTH, 100, 5, 60),
                limits.InventoryUse(1, lack.BANDWIDTH, 100, 0, 0),
                limits.InventoryUse(0, 'memory', 4096, 0, 1024),
                limits.InventoryUse(0, 'unused', 72000, 0, 0))
        texts = ' '.join(etree.fromstring(plan_picture.draw_plan(
            plan.CapacityPlan(1, 1, (plan.FlavorPlan(Flavor('one', 1, 1), 1, (
                host_plan('h', uses=uses),)),)), [])).itertext())
        self.assertIn('35 left, too little for one more', texts)
        self.assertIn('node 1, % of memory bandwidth', texts)
        self.assertIn('3072 MiB left', texts)
        self.assertNotIn('unused', texts)

    def test_equal_plans_are_equal_files_of_each_format(self):
        found = density.predict_published_test_density(machine(KUNPENG))
        for file_format, begin in (('svg', b'<?xml'), ('png', b'\x89PNG'),
                                   ('pdf', b'%PDF')):
            first, second = (plan_picture.draw_plan(example(), [found],
                                                    file_format) for _ in '12')
            self.assertEqual(begin, first[:len(begin)])
            self.assertEqual(first, second)

    def test_names_are_not_taken_for_markup(self):
        odd = plan.CapacityPlan(1, 1, (plan.FlavorPlan(
            Flavor('<&> $x$', 1, 1), 0, (host_plan('h'),)),))
        self.assertIn('<&> $x$', ' '.join(etree.fromstring(
            plan_picture.draw_plan(odd, [])).itertext()))

    def test_missing_matplotlib_is_a_refusal_with_its_name(self):
        with mock.patch.dict(sys.modules, matplotlib=None):
            error = self.assertRaises(PlannerError, plan_picture.draw_plan,
                                      example(), [])
        self.assertIn("pip install 'ghsched[plan]'", str(error))


class ProgressTest(base.TestCase):

    def drawn(self, began, shown=True):
        stream = io.StringIO()
        bar = progress.Bar(stream, shown, began)
        bar(0.5, 'half')
        bar.clear()
        return stream.getvalue()

    def test_it_is_shown_after_a_second_and_wiped(self):
        text = self.drawn(began=-1e9)
        self.assertIn('50 % half', text)
        self.assertTrue(text.endswith('\r'))

    def test_nothing_before_or_when_nobody_looks(self):
        self.assertEqual('', self.drawn(began=None))
        self.assertEqual('', self.drawn(began=-1e9, shown=False))

    @given(st.floats(-1, 2), st.text(max_size=5))
    def test_any_share_gives_a_bar_of_one_width(self, share, what):
        line = progress.render_progress_bar(share, what)
        self.assertEqual(len(progress.render_progress_bar(0, what)), len(line))


class UsageTest(base.TestCase):

    def run_plan(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = main.main(['plan', *arguments])
            except SystemExit as stop:
                status = stop.code
        return status, out.getvalue(), err.getvalue()

    def test_pages_of_one_gigabyte_limit_the_guests_of_a_host(self):
        """The reference document's guests have 120 of them on each node."""
        host = self.useFixture(fixtures.TempDir()).join('host.yaml')
        for pages, guests, reason in (
                (120, 2, ''), (119, 0, 'node 0-3: 119 of 119 pages of 1 GB '
                                       'free, 120 needed')):
            memory = 'memory_mb: 131072'
            Path(host).write_text(Path(KUNPENG).read_text().replace(
                memory, f'{memory}, pages: {{1048576: {pages}}}'))
            status, out, err = self.run_plan(
                '--no-more', '--hosts', host, '--flavor',
                'a:vcpus=160,ram=245760,hw:numa_nodes=2,'
                'hw:mem_page_size=1GB,ghsched:mem_bw_min=40')
            self.assertEqual((int(not guests), ''), (status, err))
            self.assertIn(f'Flavor a: {guests} more guests', out)
            self.assertIn(reason, out)
            self.assertNotIn('not known', out)

    def refused(self, *arguments):
        status, out, err = self.run_plan(*arguments)
        self.assertEqual((2, ''), (status, out))
        return err

    def test_mistakes_end_with_2_and_a_reason(self):
        small = ('--flavor', 'a:vcpus=1,ram=1')
        self.assertIn('required', self.refused(*small))
        self.assertIn('not one of the flavors', self.refused(
            '--hosts', KUNPENG, *small, '--mix', 'b=1'))
        self.assertIn('PCI alias gpu', self.refused(
            '--hosts', KUNPENG, '--flavor',
            'a:vcpus=1,ram=1,hw:numa_nodes=1,ghsched:vfs=gpu:1'))
        self.assertIn('no section "contention"', self.refused(
            '--hosts', KUNPENG, *small, '--against',
            str(HOSTS / 'intel-2s.yaml')))
        self.assertIn('--search', self.refused(
            '--hosts', str(HOSTS / 'intel-2s.yaml'), *small, '--search'))
        self.assertIn('--against: no host file', self.refused(
            '--hosts', str(HOSTS / 'intel-2s.yaml'), *small, '--against',
            EPYC))
        self.assertIn('is given twice', self.refused(
            '--hosts', KUNPENG, *small, *small))

    def test_picture_with_the_suffix_of_another_format_is_refused(self):
        for name in ('plan.gif', 'a.b/plan.jpg', 'plan.svg.gz'):
            path = Path(self.useFixture(fixtures.TempDir()).path, name)
            err = self.refused('--hosts', KUNPENG, '--flavor',
                               'a:vcpus=1,ram=1', '--picture', str(path))
            self.assertIn('pictures are SVG, PNG or PDF', err)
            self.assertFalse(path.exists())

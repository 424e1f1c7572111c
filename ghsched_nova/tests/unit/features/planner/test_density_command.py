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

import contextlib
import dataclasses
import io
import json
from pathlib import Path
import types
from unittest import mock

from osc_lib import exceptions

from ghsched_nova.features.planner import density_command as osc
from ghsched_nova.tests.fixtures import figures
from ghsched_placement.features.planner.client import PlannerError
from ghsched_placement.features.planner import density as predicted
from ghsched_placement.features.planner import flavors as planned
from ghsched_placement.features.planner import more
from ghsched_placement.features.planner import plan as planner
from ghsched_placement.features.planner import predict
from ghsched_placement.features.planner import progress
from ghsched_placement.fit import lack
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds
from ghsched_placement.tests.fixtures import commands

HOSTS = Path(__file__).parents[5] / 'etc' / 'ghsched' / 'hosts'


class DensityTest(base.TestCase):

    FLAVOR = types.SimpleNamespace(
        name='bw30', vcpus=2, ram=512, disk=1, ephemeral=2, swap=None,
        extra_specs={'hw:numa_nodes': '1', 'ghsched:mem_bw_min': '30'})

    def plan(self, mix=None):
        host = planner.HostPlan(
            ('a', 'b'), 6, 2, 2, 0, (lack.Lack(0, lack.BANDWIDTH, 10, 30),
                                     lack.Lack(None, 'VCPU', 0, 2)),
            (), 6, (more.AdditionalGuests(0, 'a_NUMA0', lack.BANDWIDTH, 10, 0),
                    more.AdditionalGuests(1, 'a_NUMA1', lack.BANDWIDTH, 20,
                                          1)))
        return planner.CapacityPlan(2, 1, (planner.FlavorPlan(
            osc.convert_flavor_for_planner(self.FLAVOR), 12,
            (host,)),), mix and
            planner.MixPlan({'bw30': 1}, {'bw30': 12}, 'bw30', (host,)))

    def run_command(self, plan, terminal=True, prediction=None):
        """Return the result of the command, and its output to stderr."""
        client = types.SimpleNamespace(
            get_flavor=lambda _name: self.FLAVOR, placement=None,
            list_unavailable_nodes=lambda _nodes: {},
            list_compute_nodes=dict, list_hosts=tuple, map_in_parallel=map)
        stream = io.StringIO()
        stream.isatty = lambda: terminal
        command = osc.PlanDensity(None, None)
        asked = command.get_parser('plan').parse_args(['--flavor', 'bw30'])
        with mock.patch.object(osc.clients, 'get_client',
                               return_value=client), \
                mock.patch.object(osc.planner, 'plan_cloud_capacity', plan), \
                mock.patch.object(
                    command, 'load_target_machines',
                    return_value=('machine',) if prediction else ()), \
                mock.patch.object(
                    osc, 'predict_container_densities',
                    return_value=prediction or predict.DensityPredictions()), \
                mock.patch.object(progress, 'DELAY', -1), \
                contextlib.redirect_stderr(stream):
            try:
                return command.take_action(asked), stream.getvalue()
            except exceptions.CommandError as error:
                return str(error), stream.getvalue()

    def test_a_bar_is_shown_meanwhile_and_wiped(self):
        def plan(_cloud, _wanted, _mix, _settings, bar, **_known):
            bar(0.5, 'half')
            return self.plan()
        (columns, rows), text = self.run_command(plan)
        self.assertEqual((osc.COLUMNS, 1), (columns, len(rows)))
        self.assertIn('50 % half', text)
        self.assertTrue(text.endswith(' \r'))
        self.assertNotIn('\r', self.run_command(plan, terminal=False)[1])

    def answer(self, *_arguments, **_known):
        return self.plan()

    def logged(self, *args, **kwargs):
        with self.assertLogs(level='WARNING') as logs:
            self.result, _text = self.run_command(*args, **kwargs)
        return [record.getMessage() for record in logs.records]

    def test_without_a_machine_no_density_is_predicted(self):
        (columns, rows), text = self.run_command(self.answer, terminal=False)
        self.assertEqual('', text)
        self.assertEqual((osc.COLUMNS, 1), (columns, len(rows)))

    def test_predictions_for_a_machine(self):
        found = dataclasses.replace(
            predicted.predict_published_test_density(figures.machine()),
            notes=('a caveat',))
        reason, caveat, fitted = self.logged(
            self.answer,
            prediction=predict.DensityPredictions((found, found), ('none',)))
        self.assertEqual(('none', 'published test: a caveat'),
                         (reason, caveat))
        for words in ('(simulated)', 'far_latency 1.45', 'demand_mb 340'):
            self.assertIn(words, fitted)
        columns, (of_cloud, row, _again) = self.result
        self.assertEqual((*osc.COLUMNS, osc.PREDICTED), columns)
        self.assertEqual('-', of_cloud[-1].human_readable())
        self.assertEqual({len(columns)}, {len(of_cloud), len(row)})
        self.assertEqual(('published test', 'host (simulated)', 2), (
            row[0], row[1].human_readable(), row[2]))
        self.assertRegex(row[-1].human_readable(),
                         r'^no control: \d+ containers, p99 1\.0\d+, latency'
                         r'\nbest static bind: .*\nghsched: ')
        none, *_others = json.loads(json.dumps(commands.plain(row)))[-1]
        curve = found.report.curves[0]
        self.assertEqual((curve.density, curve.first_failing, True), (
            none['density'], none['first_failing'], none['simulated']))

    def test_a_bar_does_not_stay_before_an_error(self):
        def plan(_cloud, _wanted, _mix, _settings, bar, **_known):
            bar(0.5, 'half')
            raise PlannerError('no host')
        told, text = self.run_command(plan)
        self.assertEqual('no host', told)
        self.assertTrue(text.endswith(' \r'))

    def test_a_flavor_of_the_cloud(self):
        self.assertEqual(
            planned.Flavor('bw30', 2, 512, 3, 0, self.FLAVOR.extra_specs),
            osc.convert_flavor_for_planner(self.FLAVOR))

    def test_a_row_for_each_kind_of_host(self):
        row, = osc.yield_plan_rows(self.plan())
        json.dumps(commands.plain(row))
        self.assertEqual(
            ['bw30', ['a', 'b'], 6, 12, 6, '2 -> 0 of 2'],
            commands.plain(row)[:6])
        self.assertEqual(
            ('node 0: 10 % of memory bandwidth free, 30 needed\n'
             'host: 0 vCPUs free, 2 needed',
             'node 1: +20 % of memory bandwidth: +1 guests'),
            (row[6].human_readable(), row[7].human_readable()))
        self.assertEqual(len(osc.COLUMNS), len(row))

    def test_the_mix_by_host_and_by_flavor(self):
        rows = list(osc.yield_plan_rows(self.plan(mix=True)))
        self.assertEqual(
            [('bw30', 12), ('(mix)', 12), ('(mix) bw30', 12)],
            [(row[0], row[3]) for row in rows])

    def test_only_vfs_make_the_cloud_be_asked_for_their_class(self):
        self.assertEqual({}, osc.map_flavor_aliases_to_vf_classes(
            None, [osc.convert_flavor_for_planner(self.FLAVOR)]))
        with_vfs = planned.Flavor('v', 1, 512, extra_specs={
            'hw:numa_nodes': '1', 'ghsched:vfs': 'nic:2'})
        found = clouds.host(clouds.node(0), clouds.pf('0000:01:00.0', 0))
        self.assertEqual(
            {'nic': clouds.VF}, osc.map_flavor_aliases_to_vf_classes(
                types.SimpleNamespace(list_hosts=lambda: (found,)),
                [with_vfs]))
        with self.assertRaisesRegex(exceptions.CommandError, 'no host of'):
            osc.map_flavor_aliases_to_vf_classes(
                types.SimpleNamespace(list_hosts=tuple), [with_vfs]
            )


class PlanDensityTest(base.TestCase):

    def asked(self, *files):
        self.command = osc.PlanDensity(mock.MagicMock(), None)
        parser = self.command.get_parser('openstack ghsched density plan')
        return parser.parse_args(
            ['--flavor', 'a', *(part for file in files
                                for part in ('--machine', str(file)))])

    def test_a_machine_is_read_with_its_vfs(self):
        asked = self.asked(HOSTS / 'kunpeng920.yaml',
                           HOSTS / 'amd-epyc9755.yaml')
        ours, theirs = self.command.load_target_machines(asked)
        self.assertEqual(('kunpeng920', 'amd-epyc9755'),
                         (ours.machine.name, theirs.machine.name))
        self.assertEqual({'nic': 'CUSTOM_PCI_15B3_1018'}, ours.aliases)
        self.assertEqual((), ours.counted)
        self.assertEqual((), self.command.load_target_machines(self.asked()))

    def test_a_bad_file_is_an_error_before_the_cloud_is_asked(self):
        for name, words in (('absent.yaml', 'No such file'),
                            ('intel-2s.yaml', 'no section "contention"')):
            asked = self.asked(HOSTS / name)
            with contextlib.redirect_stderr(io.StringIO()):
                error = self.assertRaises(exceptions.CommandError,
                                          self.command.take_action, asked)
            self.assertIn(words, str(error))
            self.command.app.client_manager.ghsched.flavor.assert_not_called()

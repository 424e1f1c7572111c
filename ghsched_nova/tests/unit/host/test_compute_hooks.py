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
"""Parts of features in nova-compute, whatever they do."""

import ast
import inspect
from pathlib import Path
import sys

import fixtures

from ghsched_nova.features import declared_compute
from ghsched_nova.host import compute_hooks
from ghsched_nova.tests.fixtures import observing
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.tests import base

MOST_HOOKS = 12

TOP = Path(declared_compute.__file__).parent


class Broken(compute_hooks.ComputeHooks):
    """Part whose hooks that must not raise do so."""

    def observe(self, snapshot):
        raise ValueError('observe')

    def make_stats(self):
        raise ValueError('make_stats')

    def make_diagnostics(self, guest, found):
        raise ValueError('make_diagnostics')

    def reconcile_guests(self, running):
        raise ValueError('reconcile')


class Noting(compute_hooks.ComputeHooks):
    """Part that notes what it observes, and has a word for everything."""

    def __init__(self):
        self.seen = []

    def observe(self, snapshot):
        self.seen.append(snapshot)
        return 'result'

    def make_stats(self):
        return {'x': 'y'}

    def make_diagnostics(self, guest, found):
        return {'x': found.get('x', 0) + 1}

    def reconcile_guests(self, running):
        return ['kind', 'kind']


class PartsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.part = Noting()
        self.host = observing.make_parts(
            ('broken', Broken()), ('first', Noting()),
            ('last', self.part, 'first', 'broken'))

    def observe(self, now):
        self.host.observe(lambda: compute_hooks.HostSnapshot(time=now))
        return self.part.seen[-1]

    def test_broken_part_stops_neither_the_host_nor_later_parts(self):
        self.host.reconcile_guests([])
        found = self.observe(1.0)
        self.assertEqual({'first': 'result'}, found.results)
        self.assertEqual({'kind': 4}, found.repairs)
        self.assertEqual({'stats': {'a': 'b', 'x': 'y'}},
                         self.host.add_stats({'stats': {'a': 'b'}}))
        self.assertEqual({'x': 2}, self.host.add_diagnostics({}, None))
        self.assertEqual(
            {('broken', hook): 1 for hook in (
                'observe', 'make_stats', 'make_diagnostics',
                'reconcile_guests')},
            self.host.failures)

    def test_lasting_error_is_logged_once_and_counted(self):
        for now in (1.0, 2.0, 3.0):
            self.observe(now)
        self.assertEqual(1, self.log.output.count('cannot run hook observe'))
        self.assertEqual(3, self.host.failures['broken', 'observe'])

    def test_snapshot_that_cannot_be_taken_stops_no_report(self):
        self.host.observe(lambda: 1 / 0)
        self.assertIn('division by zero', self.log.output)
        self.assertEqual([], self.part.seen)

    def test_period_begins_with_the_last_report(self):
        self.assertEqual([None, 1.0, None, 5.0], [
            self.observe(now).since for now in (1.0, 5.0, 3.0, 6.0)])

    def test_report_that_waits_too_long_is_not_observed(self):
        self.patch(compute_hooks, 'OBSERVE_WAIT_S', .01)
        with self.host._observing:
            self.host.observe(lambda: compute_hooks.HostSnapshot(time=1.0))
        self.assertEqual([], self.part.seen)
        self.assertIn('features do not see this report', self.log.output)

    def test_stats_that_nova_could_not_store_are_left_out(self):
        self.part.make_stats = lambda: {'long': 'x' * compute_hooks.MAX_STATS}
        self.assertEqual({'stats': {'x': 'y'}}, self.host.add_stats({}))
        self.assertIn('30004 characters', self.log.output)

    def test_result_that_is_not_needed_is_not_shown(self):
        alone = Noting()
        host = observing.make_parts(('first', Noting()), ('alone', alone))
        host.observe(lambda: compute_hooks.HostSnapshot(time=1.0))
        self.assertEqual({}, alone.seen[0].results)

    def test_host_without_features_is_as_the_core_describes_it(self):
        host, found = observing.make_parts(), HostDescription()
        self.assertIs(found, host.describe_host(found))
        self.assertEqual(('<x/>', []), (host.render('<x/>', None),
                                        host.endpoints))


def list_hooks():
    return {name for name in vars(compute_hooks.ComputeHooks)
            if name[0] != '_'}


class DeclaredTest(base.TestCase):

    def test_part_is_a_function_of_its_feature(self):
        for one in declared_compute.FEATURES:
            self.assertTrue(one.hooks.__module__.startswith(
                f'ghsched_nova.features.{one.name}.'), one)

    def test_feature_needs_results_of_earlier_ones_only(self):
        earlier = set()
        for one in declared_compute.FEATURES:
            self.assertLessEqual(set(one.needs), earlier)
            earlier.add(one.name)

    def test_hooks_are_few(self):
        self.assertLessEqual(len(list_hooks()), MOST_HOOKS)

    @base.needs_features('blame', 'index', 'live_change', 'load', 'pv_hints',
                         'real_time')
    def test_each_hook_has_two_users(self):
        users = dict.fromkeys(list_hooks(), 0)
        for one in declared_compute.FEATURES:
            used = set()
            for path in (TOP / one.name).rglob('*.py'):
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.FunctionDef):
                        used.add(node.name)
                    elif isinstance(node, ast.Attribute) and isinstance(
                            node.ctx, ast.Store):
                        used.add(node.attr)
            for name in used & users.keys():
                users[name] += 1
        self.assertEqual(set(), {name for name, count in users.items()
                                 if count < 2})

    def test_hook_has_the_same_parameters_in_each_part(self):
        wanted = {name: list(inspect.signature(hook).parameters)
                  for name, hook in vars(compute_hooks.ComputeHooks).items()
                  if inspect.isfunction(hook)}
        for one in declared_compute.FEATURES:
            for kind in vars(sys.modules[one.hooks.__module__]).values():
                if inspect.isclass(kind) and issubclass(
                        kind, compute_hooks.ComputeHooks):
                    for name, expected in wanted.items():
                        self.assertEqual(expected, list(inspect.signature(
                            getattr(kind, name)).parameters), kind)

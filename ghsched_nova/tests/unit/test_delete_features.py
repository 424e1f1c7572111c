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

"""Deletion of the feature "fog" from a small tree that has "rain" as well."""

import contextlib
import importlib
import io
from pathlib import Path
import sys
from unittest import mock

import fixtures

from ghsched_placement.tests import base

TOP = Path(__file__).parents[3]
with mock.patch('sys.path', [str(TOP / 'tools'), *sys.path]):
    delete_features = importlib.import_module('delete_features')

#: Files by name: lines that go with the feature begin with a minus.
TREE = {
    'ghsched_nova/features/fog/fog_part.py': '-VALUE = 1\n',
    'ghsched_nova/features/rain/rain_part.py': ' VALUE = 2\n',
    'ghsched_placement/features/declared.py': '''\
-from ghsched_nova.features.fog import fog_part
 from ghsched_nova.features.rain import rain_part

 FEATURES = (
-    fog_part.VALUE,
     rain_part.VALUE,
 )
''',
    'setup.cfg': '''\
-ghsched_nova.features.fog =
-    *.json
 ghsched_nova.features.rain = *.json
-    ghsched-fog = ghsched_nova.features.fog.command:main
     ghsched-rain = ghsched_nova.features.rain.command:main
''',
    'doc/source/contributor/design.rst': '''\
-    ``fog``  makes hosts hard to see
     ``rain``  makes hosts wet
-#. ``ghsched_nova.features.fog.fog_part.see``: what is
-   near.
 #. ``ghsched_nova.features.rain.rain_part.see``: drops.
''',
    'doc/source/reference/commands.rst': '''\
-.. made of command ghsched_nova.features.fog.command:make_parser fog
-
-usage
-
-.. end
-.. made of metrics fog.fog_metrics
-
-.. end
 .. made of command ghsched_nova.features.rain.command:make_parser rain

 .. end
''',
    'tools/releases/functional': '''\
-\\.test_fog\\.
 \\.test_weather\\.
''',
    'etc/ghsched/prometheus/ghsched.rules.yaml': '''\
-  # feature: fog
-  - alert: Fog
-    expr: fog
-
   # feature: rain
   - alert: Rain
     expr: rain
''',
    'ghsched_nova/tests/fixtures/weather.py': '''\
-from ghsched_nova.features.fog import fog_part
 from ghsched_nova.features.rain import rain_part

 WORDS = {
-    'f': fog_part.VALUE,
     'r': rain_part.VALUE,
 }


-# The comment goes with its function.
-def make_fog():
-    return fog_part.VALUE
-
-
 def make_rain(fog_part=0):
     return rain_part.VALUE + fog_part
''',
    'ghsched_nova/tests/unit/test_fog.py': '''\
-from ghsched_nova.tests.fixtures import weather
-
-
-class FogTest:
-
-    def test_fog(self):
-        weather.make_fog()
''',
    'ghsched_nova/tests/unit/test_weather.py': '''\
 from ghsched_nova.tests.fixtures import weather


 class WeatherTest:

-    def make(self):
-        return weather.make_fog()
-
-    def test_fog(self):
-        self.make()
-
     def test_rain_is_no_fog(self):
         weather.make_rain()
-
-
-class StormTest(WeatherTest):
-
-    def setUp(self):
-        self.make()
-
-    def test_storm(self):
-        weather.make_rain()
'''}


def read_lines(text, marks):
    """Return the lines with one of these marks, without blank ones."""
    return [line[1:] for line in text.splitlines()
            if line[:1] in marks and line[1:].strip()]


class DeleteTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.top = Path(self.useFixture(fixtures.TempDir()).path)
        guards = dict.fromkeys(delete_features.GUARDS, '')
        for name, text in (guards | TREE).items():
            path = self.top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(''.join(
                f'{line[1:]}\n' for line in text.splitlines()))
        self.copy = delete_features.Copy(self.top, 'fog', {'fog'}, ())
        self.copy.delete()

    def test_users_of_the_feature_go_and_the_rest_stays(self):
        for name, text in TREE.items():
            path = self.top / name
            left = path.read_text().splitlines() if path.exists() else []
            self.assertEqual(read_lines(text, ' '),
                             [line for line in left if line.strip()], name)

    def test_tests_that_are_in_no_folder_of_the_feature_are_reported(self):
        self.assertEqual([f'ghsched_nova.tests.unit.{name}' for name in (
            'test_fog.FogTest.test_fog', 'test_weather.StormTest.test_storm',
            'test_weather.WeatherTest.test_fog')], self.copy.shared_tests)

    def test_feature_goes_with_those_that_need_it(self):
        self.assertEqual({'fog', 'rain', 'snow'},
                         delete_features.add_dependents('fog', {
                             'fog': (), 'sun': (), 'rain': ('fog',),
                             'snow': ('rain', 'sun')}))

    def test_only_names_that_the_core_keeps_are_printed(self):
        (self.top / 'ghsched_placement/names.py').write_text("KEPT = 'MIST'\n")
        self.copy.words = ('DEW', 'MIST')
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            delete_features.delete_in_place(self.copy)
        self.assertIn('core keeps (declared.py): MIST\n', output.getvalue())

    def test_last_line_counts_features_as_nightly_reads_it(self):
        needs = {'fog': (), 'rain': (), 'wind': ()}
        output = io.StringIO()
        with mock.patch.object(delete_features, 'check_without',
                               side_effect=(False, True, False)), (
                mock.patch.object(delete_features, 'read_needs',
                                  lambda _top: needs)), (
                mock.patch.object(delete_features, 'read_names',
                                  lambda _top: {})), (
                mock.patch('sys.argv', ['delete_features.py'])), (
                contextlib.redirect_stdout(output)):
            self.assertEqual(1, delete_features.main())
        self.assertEqual('2 passed, 1 failed\n', output.getvalue())

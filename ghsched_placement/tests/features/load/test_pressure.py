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
from pathlib import Path

import fixtures
from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.base import wire
from ghsched_placement.features.load import pressure
from ghsched_placement.tests import base

_PERCENT = st.floats(0, 100, allow_nan=False)
_PRESSURE = st.builds(pressure.Pressure, _PERCENT, _PERCENT, _PERCENT)


class PressureTest(base.TestCase):

    @given(_PRESSURE)
    def test_pressure_in_the_diagnostics_is_read_again(self, found):
        self.assertEqual(found, pressure.FORMAT.parse(
            pressure.make_pressure_diagnostics(found)))

    @given(st.dictionaries(st.uuids().map(str), st.builds(
        pressure.ReportedPressure, _PRESSURE, st.just('p'), st.just('f'))))
    def test_file_is_read_again(self, found):
        self.assertEqual(found, pressure.FILE_FORMAT.parse(
            pressure.FILE_FORMAT.render(found)))

    def test_values_that_are_no_percentages_are_malformed(self):
        for value in (-1, 100.5, float('nan'), float('inf'), '1', True, None,
                      [1], 10 ** 400):
            for name in ('cpu', 'memory', 'steal'):
                self.assertRaises(wire.MALFORMED, pressure.parse_pressure,
                                  {name: value})

    def test_old_or_missing_file_has_no_pressure(self):
        path = Path(self.useFixture(fixtures.TempDir()).path, 'pressure')
        self.assertEqual({}, pressure.read_pressures(path, 0.0))
        self.assertEqual({}, pressure.read_pressures(None, 0.0))
        path.write_text(pressure.FILE_FORMAT.render({
            'u': pressure.ReportedPressure(pressure.Pressure(1.0))}))
        os.utime(path, (1000, 1000))
        self.assertEqual(['u'], list(pressure.read_pressures(path, 1600.0)))
        self.assertEqual({}, pressure.read_pressures(path, 1601.0))

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


"""The emulator shows what Linux' own MPAM driver shows, and registers hold.

What was recorded is described in ``tests/fixtures/mpam_driver.py``. What a
register holds is no word of the driver's.
"""

from fractions import Fraction

from ghsched_nova.lab.emulator import conversions
from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import mpam_driver
from ghsched_nova.tests.fixtures.mpam_driver import percent_of
from ghsched_placement.tests import base

MASK = 0xffff
#: Percentages that the kernel takes and holds as the least, by machine.
OVERFLOWS = {'4': {99, 100}, '4 narrowed': {99, 100}}


def overflows(step, bits, machine):
    """Whether a write leaves the driver's 16 bits.

    fs/resctrl checks a value, rounds it up to a whole bandwidth_gran, which
    can be above 100, and does not check it again; the band behind the last
    one is then cut off to the first.
    """
    if step.what != 'MB':
        return False
    gran = machine['bandwidth_gran']
    rounded = -(-int(step.text) // gran) * gran
    return 2 * (rounded << bits) >= 100 * ((2 << bits) + 1)


class DriverTest(base.TestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.recorded = mpam_driver.recorded()

    def test_widths_and_writes_are_as_many_as_were_recorded(self):
        self.assertEqual(
            {(bits, name.endswith('narrowed'))
             for name, bits, _machine, _steps in self.recorded},
            {(bits, narrowed) for bits in range(1, 17)
             for narrowed in (False, True)})
        self.assertLess(15000, sum(
            len(steps) for _name, _bits, _machine, steps in self.recorded))

    def test_each_percentage_is_shown_as_the_driver_shows_it(self):
        for name, bits, machine, steps in self.recorded:
            table = conversions.table('linux', bits)
            self.assertEqual(
                (machine['min_bandwidth'], machine['bandwidth_gran']),
                (table.min_bandwidth, table.bandwidth_gran), name)
            for step in steps:
                if step.what == 'MB':
                    percent = int(step.text)
                    expected = (table.shown[percent] if percent <= 100
                                else -1)
                    self.assertEqual(
                        expected, step.bandwidth if step.taken else -1,
                        (name, step))

    def test_register_is_within_half_a_percent_of_what_is_shown(self):
        for name, bits, _machine, steps in self.recorded:
            for step in steps:
                self.assertEqual(0, step.mbw_max % (1 << 16 - bits), name)
                self.assertLessEqual(
                    abs(percent_of(step.mbw_max, bits) - step.bandwidth),
                    Fraction(1, 2), (name, step))

    def test_register_is_within_one_step_of_what_was_asked(self):
        for name, bits, machine, steps in self.recorded:
            for step in steps:
                if step.what == 'MB' and step.taken and not overflows(
                        step, bits, machine):
                    distance = percent_of(step.mbw_max, bits) - int(step.text)
                    # Half a band to the nearest one, after fs/resctrl has
                    # rounded up to a whole bandwidth_gran.
                    band = Fraction(100, 1 << bits)
                    self.assertLessEqual(-band / 2, distance, (name, step))
                    self.assertLess(
                        distance, machine['bandwidth_gran'] + band / 2,
                        (name, step))

    def test_percentage_that_overflows_is_held_as_the_least(self):
        found = {name: {int(step.text) for step in steps
                        if step.what == 'MB' and step.taken
                        and overflows(step, bits, machine)}
                 for name, bits, machine, steps in self.recorded}
        self.assertEqual(OVERFLOWS, {name: values for name, values
                                     in found.items() if values})
        for name, bits, machine, steps in self.recorded:
            for step in steps:
                if step.taken and overflows(step, bits, machine):
                    self.assertEqual(
                        (0, machine['min_bandwidth']),
                        (step.mbw_max, step.bandwidth), (name, step))

    def test_portions_are_held_as_they_were_written(self):
        for name, _bits, _machine, steps in self.recorded:
            for step in steps:
                self.assertEqual(step.portions, step.cpbm, (name, step))
                if step.what == 'L3':
                    self.assertEqual((True, int(step.text, 16)),
                                     (step.taken, step.cpbm), (name, step))

    def test_registers_of_a_group_follow_its_own_writes_alone(self):
        for name, bits, _machine, steps in self.recorded:
            whole = MASK & ~((1 << 16 - bits) - 1)
            expected = {}
            for step in steps:
                if step.what == 'reset':
                    expected.clear()
                limit, mask = expected.get(step.partid, (whole, MASK))
                if step.what != 'MB':
                    self.assertEqual(limit, step.mbw_max, (name, step))
                if step.what != 'L3':
                    self.assertEqual(mask, step.cpbm, (name, step))
                expected[step.partid] = step.mbw_max, step.cpbm

    def test_guarantee_and_priority_stay_as_they_are_after_a_reset(self):
        for name, _bits, _machine, steps in self.recorded:
            self.assertEqual({(0, 7, 0)}, {
                (step.mbw_min, step.priority, step.errors)
                for step in steps}, name)

    def test_narrowed_partids_are_as_many_as_internal_ones(self):
        for name, _bits, machine, steps in self.recorded:
            narrowed = name.endswith('narrowed')
            self.assertEqual(12 if narrowed else 32, machine['num_closids'])
            for step in steps:
                self.assertEqual(
                    step.partid | 1 << 16 if narrowed else 0, step.internal,
                    (name, step))

    def test_all_ways_are_shared_with_devices_as_in_the_emulator(self):
        model = kernel.ResctrlModel(machines.build('mpam', emulated.NODES),
                                    emulated.NoThreads())
        self.assertEqual(
            int(model.read('/info/L3/cbm_mask'), 16),
            int(model.read('/info/L3/shareable_bits'), 16))
        for name, _bits, machine, _steps in self.recorded:
            self.assertEqual(MASK, int(machine['shareable_bits'], 16), name)


class EngineTest(base.TestCase):
    """The host engine starts guests and repairs their caps on the driver.

    ``tools/judge/mpam_driver/engine.py`` does the same with the driver in a
    process, for as many guests as one likes.
    """

    def test_registers_of_guests_are_what_the_engine_promises(self):
        for bits in mpam_driver.WIDTHS:
            for narrowed in (False, True):
                driver = mpam_driver.RecordedDriver(bits, narrowed)
                found = mpam_driver.check(
                    mpam_driver.run('each run', bits, narrowed), bits, driver)
                self.assertEqual([], found.wrong, (bits, narrowed))
                self.assertEqual(mpam_driver.GUESTS, found.guests)

    def test_register_that_another_wrote_is_found(self):
        driver = mpam_driver.RecordedDriver(7, False)
        promised, asked = mpam_driver.run('each run', 7, False)
        held = next(one for one in promised if one.maximum < 90)
        found = mpam_driver.check(
            (promised, [*asked, (held.domain, held.partid, 95, 95)]), 7,
            driver)
        self.assertEqual(1, len(found.wrong))

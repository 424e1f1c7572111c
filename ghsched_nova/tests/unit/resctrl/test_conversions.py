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

"""Every percentage on every dialect, MPAM driver and width of its control.

What an MPAM driver shows is taken from the recorded tables alone, and what
another kernel shows from writing each percentage to it; the engine has asked
the emulated kernel, or read info/.
"""

import contextlib
import dataclasses
from pathlib import Path
import tempfile

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.emulator import conversions
from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_nova.resctrl import schemata
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.providers import names
from ghsched_placement.providers import tree
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

WIDTHS = range(4, 17)
#: Each width is checked on these, by dialect and driver; no driver stands for
#: that of the dialect.
KINDS = (('mpam', ''), ('mpam', 'linux-unrounded'), ('nvidia', ''),
         ('openeuler66', ''), ('openeuler510', ''))
#: There are some 20,000 repairs, of which a commit makes one eighth.
#: Dialects whose caps are rates: bytes per second that a value stands for,
#: step of values (Documentation/filesystems/resctrl.rst, info/MB), and L3
#: caches of a NUMA node, which share its bandwidth.
RATES = {'amd': (10 ** 9 // 8, 1, 2), 'intel-mbps': (2 ** 20, 10, 1)}
_MEMORY = '/dev/shm' if Path('/dev/shm').is_dir() else None  # noqa: S108


def machine_of(dialect, driver, bits):
    machine = machines.build(dialect, emulated.NODES)
    return machines.with_bits(dataclasses.replace(machine, lines=tuple(
        dataclasses.replace(line, conversion=driver)
        if line.conversion and driver else line
        for line in machine.lines)), bits)


def shown(machine, line):
    """Return the percentages that a line shows of 0 to 100, by the judge."""
    line = machine.line(line)
    if not line.conversion:
        return written_and_read(machine, line.name)
    return {value for value in conversions.table(
        line.conversion, line.bits).shown if value >= 0}


def written_and_read(machine, line):
    """Return what an emulated kernel shows of each percentage from 0 on."""
    model = kernel.ResctrlModel(machine, emulated.NoThreads())

    def read():
        return schemata.parse_kernel_schemata(model.read('/schemata')).values(
            line
        )

    domain = min(read())
    found = set()
    for percent in range(101):
        with contextlib.suppress(kernel.ResctrlError):
            model.write('/schemata', f'{line}:{domain}={percent}\n')
            found.add(read()[domain])
    return found


def is_usable(machine):
    """Whether a group can be without a cap: at 16 bits openEuler's cannot."""
    return 100 in shown(machine, machine.cap)


class EveryPercentageTest(base.TestCase):

    def world(self, machine):
        top = self.enterContext(tempfile.TemporaryDirectory(dir=_MEMORY))
        return world.World(Path(top), machine, ('ghsched',))

    def check(self, held, maximum, minimum):
        """Hold a cap and a guarantee; return what is shown of each."""
        desired = resolve.make_desired_lines(
            held.host,
            resolve.resolve_settings(
                held.host,
                GuestPolicy(
                    nodes=(NodePolicy(maximum=maximum, minimum=minimum),)
                ),
                (0,),
            ),
        )
        held.guests[0] = dataclasses.replace(held.guests[0], desired=desired)
        asked = (held.model.machine.dialect, held.model.machine.lines[0].bits,
                 maximum, minimum)
        self.assertEqual((), held.reconcile().problems, asked)
        self.assertEqual((), held.reconcile().actions, asked)
        domain = min(held.host.domains_by_node[0])
        rows = held.schemata(held.guests[0].group)
        return {knob.role: rows.values(knob.line)[domain]
                for knob in held.host.dialect.knobs}

    def check_machine(self, machine):
        held = self.world(machine)
        lines = {knob.role: shown(machine, knob.line)
                 for knob in held.host.dialect.knobs
                 if knob.role in ('maximum', 'minimum')}
        for share in spaces.choose(range(1, 101)):
            for role, known in lines.items():
                both = (100, share) if role == 'minimum' else (share, 0)
                self.assertEqual(
                    min(value for value in known if value >= share),
                    self.check(held, *both)[role],
                    (machine.dialect, role, share))

    def check_widths(self, kind):
        dialect, driver = KINDS[kind]
        for bits in WIDTHS:
            machine = machine_of(dialect, driver, bits)
            if is_usable(machine):
                self.check_machine(machine)
            else:
                self.assertEqual(16, bits)
                error = self.assertRaises(resctrl_host.ResctrlUnavailable,
                                          self.world, machine)
                self.assertIn('caps the bandwidth of every', str(error))

    def test_percentage_on_linux_is_held_as_the_next_one_shown(self):
        self.check_widths(0)

    def test_percentage_on_a_kernel_that_does_not_round_is_held_nearest(self):
        self.check_widths(1)

    def test_percentage_on_nvidia_is_held_as_the_next_one_shown(self):
        self.check_widths(2)

    def test_percentage_on_openeuler_66_is_held_as_the_next_one_shown(self):
        self.check_widths(3)

    def test_percentage_on_openeuler_510_is_held_as_the_next_one_shown(self):
        self.check_widths(4)

    def test_each_recorded_driver_is_checked_at_each_width(self):
        checked = set()
        for dialect, driver in KINDS:
            machine = machine_of(dialect, driver, 8)
            checked |= {line.conversion for line in machine.lines} - {''}
        self.assertEqual(
            checked, {driver for driver, _bits in conversions.tables()})

    def test_percentage_on_each_dialect_is_held_as_the_next_one_shown(self):
        rates = set()
        for dialect in machines.DIALECTS:
            machine = machines.build(dialect, emulated.NODES)
            if machine.line(machine.cap).default == 100:
                self.check_machine(machine)
            else:
                rates.add(dialect)
        self.assertEqual(RATES.keys(), rates)

    def test_percentage_on_a_dialect_with_rates_is_held_as_the_next_rate(self):
        for dialect, (unit, step, caches) in RATES.items():
            held = self.world(machines.build(dialect, emulated.NODES))
            for share in spaces.choose(range(1, 100)):
                asked = share * world.SPEED * 2 ** 20 / caches / 100
                value = self.check(held, share, 0)['maximum']
                self.assertEqual(0, value % step)
                self.assertTrue((value - step) * unit < asked <= value * unit,
                                (dialect, share, value))


class SumsTest(base.TestCase):
    """Sums of shown guarantees, which never exceed the node that Placement
    fills.
    """

    @given(st.sampled_from(('openeuler66', 'openeuler510')),
           st.integers(4, 15), st.integers(0, 40),
           st.lists(st.integers(1, 100), min_size=1, max_size=40))
    def test_guarantees_shown_of_any_guests_fit_the_node(
            self, dialect, bits, reserved, asked):
        machine = machine_of(dialect, '', bits)
        host = world.measured_host(machine)
        uuid = names.make_numa_provider_uuid(world.UUID.format(0), 0)
        config = tree.Config(reserved_bandwidth={0: reserved})
        taken = []
        for share in asked:
            record = next(
                one for one in tree.build_providers(
                    world.UUID.format(0), 'node', host.make_description(),
                    config,
                    {uuid: tree.CurrentInventory(amounts=tuple(taken))})
                if one.uuid == uuid).inventories[names.MEM_BW_PCT]
            if (share % record['step_size'] == 0
                    and share >= record['min_unit']
                    and share <= tree.compute_free_amount(record, sum(taken))):
                taken.append(share)
        held = [resolve.resolve_settings(host, GuestPolicy(
            nodes=(NodePolicy(minimum=share),)), (0,))[0].minimum
            for share in taken]
        known = shown(machine, host.dialect.find_knob('minimum').line)
        self.assertEqual(set(), set(held) - known)
        self.assertLessEqual(sum(held), 100 - reserved)


class GuestsTest(base.TestCase):

    def test_guests_that_fill_a_node_are_all_held(self):
        # 27 % is shown as 28 with a control of 6 bits.
        with tempfile.TemporaryDirectory(dir=_MEMORY) as top:
            held = world.World(Path(top), 'openeuler66-6bit', ())
            for number, share in enumerate((27, 27, 27, 13)):
                desired = resolve.make_desired_lines(
                    held.host,
                    resolve.resolve_settings(
                        held.host,
                        GuestPolicy(nodes=(NodePolicy(minimum=share),)), (0,)),
                )
                held.guests.append(model.ResctrlGuest(
                    model.Domain(world.UUID.format(number), number + 1,
                                 f'instance-{number:08x}'),
                    frozenset({0, 1}), 2, desired, 'ghsched'))
                held.start(number, ['qemu-system-x86', 'CPU 0/KVM',
                                    'CPU 1/KVM'])
            self.assertEqual((), held.reconcile().problems)
            self.assertEqual([28, 28, 28, 13], [
                held.schemata(guest.group).values('MBMIN')[0]
                for guest in held.guests])

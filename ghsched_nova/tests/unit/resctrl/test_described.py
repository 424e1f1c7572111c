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


"""Controls that the kernel describes itself."""

import dataclasses
from fractions import Fraction
from pathlib import Path
import tempfile

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.emulator import described as described_machines
from ghsched_nova.lab.emulator import machines
from ghsched_nova.monitor import effective_limits
from ghsched_nova.monitor import topology
from ghsched_nova.resctrl import described
from ghsched_nova.resctrl import detection
from ghsched_nova.resctrl import resolve
from ghsched_nova.resctrl import schemata
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

#: As shown on the linux-kernel list on 13 February 2026.
INTEL_MB = {'type': 'scalar linear', 'unit': 'all', 'scale': '1',
            'resolution': '100', 'tolerance': '0', 'max': '100', 'min': '10'}
AMD_MB = {'type': 'scalar linear', 'unit': 'GBps', 'scale': '1',
          'resolution': '8', 'tolerance': '0', 'max': '8192', 'min': '1',
          'scope': 'L3'}
AMD_GMB = {'type': 'scalar linear', 'unit': 'GBps', 'scale': '1',
           'resolution': '1', 'tolerance': '0', 'max': '4096', 'min': '1',
           'scope': 'NODE'}


def _info(path, files):
    return {f'MB/resource_schemata/{path}/{name}': f'{text}\n'
            for name, text in files.items()}


_controls = st.builds(
    lambda low, high, reset, **more: described.Control(
        minimum=min(low, high), maximum=max(low, high), reset=None
        if reset is None else min(low, high) + reset % (
            abs(high - low) + 1), **more),
    st.integers(0, 2 ** 32 - 1), st.integers(0, 2 ** 32 - 1),
    st.none() | st.integers(0, 2 ** 32 - 1),
    resource=st.sampled_from(('MB', 'L3', 'NEW')),
    name=st.from_regex('[A-Z][A-Z0-9_]{0,9}', fullmatch=True),
    kind=st.sampled_from(('scalar', 'bitmap')),
    flags=st.frozensets(st.sampled_from(('linear', 'sparse', 'weight'))),
    unit=st.sampled_from(('all', 'GBps', 'MBps', 'watts')),
    scale=st.integers(1, 10 ** 6), resolution=st.integers(1, 2 ** 32),
    tolerance=st.none() | st.integers(0, 999),
    scope=st.sampled_from(('', 'L3', 'NODE', 'SYSTEM')),
    parent=st.sampled_from(('', 'PARENT')))


def _files(control, digits):
    top = '/'.join(filter(None, (control.resource, 'resource_schemata',
                                 control.parent, control.name)))
    files = {'type': ' '.join((control.kind, *sorted(control.flags))),
             'unit': control.unit, 'scope': control.scope,
             'min': digits(control.minimum), 'max': digits(control.maximum),
             'scale': str(control.scale),
             'resolution': str(control.resolution),
             'tolerance': '-1' if control.tolerance is None
             else str(control.tolerance)}
    if control.reset is not None:
        files['reset_val'] = digits(control.reset)
    return {f'{top}/{name}': f'{text}\n' for name, text in files.items()}


class ParseTest(base.TestCase):

    @given(st.lists(_controls, max_size=5, unique_by=lambda one: (
        one.resource, one.parent, one.name)),
        st.sampled_from((str, hex)))
    def test_descriptions_that_were_rendered_are_parsed_again(
            self, controls, digits):
        info = {'MB/num_closids': '8\n', 'MB/resource_schemata/mode': 'x\n'}
        for control in controls:
            info |= _files(control, digits)
        self.assertEqual(set(controls), set(described.parse_controls(info)))

    @given(st.dictionaries(
        st.sampled_from([
            f'{top}/{name}' for name in INTEL_MB for top in (
                'MB/resource_schemata/MB', 'MB/resource_schemata/MB/MB_MAX',
                'MB/resource_schemata', 'MB/resource_schemata/mb')]),
        st.text(max_size=12) | st.sampled_from(
            ('scalar linear', 'bitmap', 'all', '1', '0', '-1', '0x', '1e3',
             '99999999999999999999', '\udcff'))))
    def test_descriptions_of_any_text_are_parsed_or_left_out(self, info):
        for control in described.parse_controls(info):
            self.assertLessEqual(control.minimum, control.maximum)
            self.assertGreaterEqual(min(control.scale, control.resolution), 1)
            self.assertIn(control.role, (
                None, 'maximum', 'minimum', 'hardlimit', 'priority'))

    def test_examples_of_the_list_have_their_amounts(self):
        (intel,) = described.parse_controls(_info('MB', INTEL_MB))
        self.assertEqual((Fraction(100), None, 'maximum'), (
            intel.full_value, intel.unit_bytes_per_s, intel.role))
        amd, gmb = sorted(described.parse_controls(
            _info('MB', AMD_MB) | _info('GMB', AMD_GMB)),
            key=lambda one: one.resolution, reverse=True)
        self.assertEqual((None, 125 * 10 ** 6, 'maximum'), (
            amd.full_value, amd.unit_bytes_per_s, amd.role))
        self.assertEqual((10 ** 9, 'NODE'), (gmb.unit_bytes_per_s, gmb.scope))


class RolesTest(base.TestCase):

    def _host(self, machine):
        return world.measured_host(machine)

    def _build_host(self, name):
        return self._host(described_machines.build(name, emulated.NODES))

    def test_mpam_holds_a_guarantee(self):
        host = self._build_host('mpam-described')
        self.assertEqual({'maximum': 'MB', 'minimum': 'MB_MIN'}, {
            knob.role: knob.line for knob in host.dialect.knobs})
        self.assertIn('MEM_BW_MIN', host.make_description().capabilities)
        self.assertEqual({'MB_MIN': 256}, host.tolerance)
        self.assertEqual(0, host.unguaranteed_percent)

    def test_intel_regions_are_left_alone(self):
        host = self._build_host('intel-regions')
        self.assertEqual(['MB'], [k.line for k in host.dialect.knobs])
        self.assertEqual(6, len([note for note in host.notes
                                 if note != detection.THREAD_NOTE]))

    def test_intel_lines_other_than_the_cap_are_left_alone(self):
        host = self._build_host('intel-optimal')
        self.assertEqual(['MB'], [k.line for k in host.dialect.knobs])
        self.assertNotIn('MEM_BW_MIN', host.capabilities())

    def test_guarantee_is_found_under_both_names_of_the_directory(self):
        machine = described_machines.build('mpam-described', emulated.NODES)
        for directory, capable in (('resource_schemata', True),
                                   ('resource_schema', True),
                                   ('schemata', False)):
            host = self._host(dataclasses.replace(machine, lines=tuple(
                dataclasses.replace(line, description=dataclasses.replace(
                    line.description, directory=directory))
                if line.description else line for line in machine.lines)))
            self.assertEqual(capable, 'MEM_BW_MIN' in host.capabilities(),
                             directory)

    def test_an_intel_minimum_that_all_groups_have_is_no_guarantee(self):
        line = described_machines.described_line(
            'MB_MIN', 'l3', 255, 255, machines.Description(resolution=255))
        host = self._host(_with('intel', line))
        self.assertNotIn('MEM_BW_MIN', host.capabilities())

    def test_amd_keeps_the_cap_of_the_node(self):
        host = self._build_host('amd-gmb')
        self.assertEqual({'maximum': 'MB', 'kept': 'GMB'}, {
            knob.role: knob.line for knob in host.dialect.knobs})
        self.assertEqual(4096, host.unused_domain_values['GMB'])
        self.assertEqual((), host.notes)

    def test_riscv_holds_guarantees_alone(self):
        host = self._build_host('riscv')
        self.assertEqual({'MEM_BW_MIN', 'MEM_BW_MONITOR'}, {
            name for name in host.capabilities() if name.startswith('MEM')})
        self.assertEqual({'MB_MIN': 1}, host.initial_guarantees)
        # 64 of 819 blocks are those that each group has.
        self.assertEqual(8, host.unguaranteed_percent)
        error = self.assertRaises(
            resolve.PolicyRefused, resolve.resolve_settings, host, GuestPolicy(
                nodes=(NodePolicy(maximum=50),)), (0,))
        self.assertIn('knows no cap', error.reason)

    def test_a_new_architecture_is_known_by_its_description_alone(self):
        info = _info('MB_MAX', INTEL_MB | {'resolution': '1000',
                                           'max': '1000', 'scope': 'NODE'})
        found = detection.detect_dialect(
            info, schemata.parse_schemata('MB_MAX:0=1000;1=1000')
        )
        self.assertEqual(('self-described', 'numa', ['MB_MAX']), (
            found.name, found.domain_kind, [k.line for k in found.knobs]))

    def test_the_role_of_a_line_follows_from_its_description(self):
        share = INTEL_MB | {'scope': 'NODE', 'min': '0'}
        top = 'MB_MAX:0=100;1=100\n'
        for path, files, row, role in (
                ('MB_MIN', share, '0=0;1=0', 'minimum'),
                ('MB_MIN', share, '0=100;1=100', None),
                ('MB_MIN', share | {'reset': '0'}, '0=100;1=100', 'minimum'),
                ('MB_MIN', share, '5=0;6=0', None),     # other domains
                ('MB_MIN', share | {'unit': 'GBps'}, '0=0;1=0', None),
                ('MB_MIN', share | {'type': 'scalar'}, '0=0;1=0', None),
                ('MB_MAX/MB_MIN', share, '0=0;1=0', None),
                ('MB_PRIO', share | {'max': '7'}, '0=3;1=3', 'priority'),
                ('MB_HLIM', share | {'max': '1'}, '0=0;1=0', 'hardlimit'),
                ('MB_HLIM', share | {'max': '3'}, '0=0;1=0', None),
                ('MB_REGION0_MIN', share, '0=0;1=0', None),
                ('MB_SHINE', share, '0=0;1=0', None),
                ('MB_SHINE', share | {'default': '7'}, '0=0;1=0', 'kept'),
                ('GMB', share | {'scope': 'L3'}, '0=100', 'kept'),
                ('MB_NODE', share, '0=100;1=100', None)):
            name = path.rpartition('/')[2]
            found = detection.detect_dialect(
                _info('MB_MAX', share) | _info(path, files),
                schemata.parse_schemata(f'{top}{name}:{row}\n'))
            self.assertEqual(
                {'MB_MAX': 'maximum'} | ({name: role} if role else {}),
                {knob.line: knob.role for knob in found.knobs}, path)

    def test_a_unit_that_nobody_knows_is_left_alone(self):
        info = _info('MB_MAX', INTEL_MB | {'unit': 'furlongs'})
        self.assertIsNone(detection.detect_dialect(
            info, schemata.parse_schemata('MB_MAX:0=1000;1=1000')))

    def test_amd_has_the_highest_value_that_is_described(self):
        machine = described_machines.build('amd-gmb', emulated.NODES)
        cap = machine.line('MB')
        machine = dataclasses.replace(machine, lines=tuple(
            dataclasses.replace(cap, maximum=5000, default=5000)
            if line is cap else line for line in machine.lines))
        self.assertEqual(5000, self._host(machine).no_cap)

    def test_the_monitor_shows_described_values_in_percent(self):
        with tempfile.TemporaryDirectory() as top:
            emulated.write_tree(emulated.model('mpam-described'), Path(top))
            host = topology.read_monitored_host(
                Path(top) / 'resctrl', Path(top) / 'sysfs')
        found = effective_limits.compute_effective_limits(
            host, schemata.parse_schemata(
                'MB:5=60;71=100\nMB_MIN:5=24248;71=0'), 0)
        self.assertEqual((37, 60), (found.minimum, found.maximum))


def _with(name, *lines):
    """Return a machine of a kernel that knows nothing, with more lines."""
    machine = machines.build(name, emulated.NODES)
    return dataclasses.replace(machine, lines=machine.lines + lines)


class EngineTest(base.TestCase):
    """The engine on each machine that describes its controls."""

    def _worlds(self):
        for name in described_machines.MACHINES:
            with tempfile.TemporaryDirectory() as top:
                yield name, world.World(Path(top), name)

    def test_guests_are_held_and_a_second_run_is_quiet(self):
        for name, host in self._worlds():
            self.assertEqual((), host.reconcile().problems, name)
            self.assertEqual([], host.wrong(), name)
            self.assertEqual((), host.reconcile().actions, name)

    def test_a_line_that_follows_the_cap_is_left_alone(self):
        for name, host in self._worlds():
            if name != 'mpam-described':
                continue
            host.reconcile()
            group = host.guests[0].group
            rows = host.schemata(group)
            self.assertEqual((41, 26870), (
                rows.values('MB')[5], rows.values('MB_MAX')[5]))
            host.model.write(f'/{group}/schemata', 'MB_MAX:5=700\n')
            self.assertEqual((), host.reconcile().problems)
            self.assertEqual(rows, host.schemata(group))

    def test_a_lowered_cap_of_the_node_is_repaired(self):
        for name, host in self._worlds():
            if name != 'amd-gmb':
                continue
            host.reconcile()
            for guest in host.guests:
                host.model.write(f'/{guest.group}/schemata', 'GMB:1=9\n')
            self.assertEqual((), host.reconcile().problems)
            for guest in host.guests:
                self.assertEqual({0: 4096, 1: 4096}, host.schemata(
                    guest.group).values('GMB'))


class InventedTest(base.TestCase):
    """Three controls that are known by their descriptions alone."""

    LINES = (
        described_machines.described_line(
            'MB_FANCY_MIN', 'l3', 1000, 0,
            machines.Description(resolution=1000, scope='L3')),
        described_machines.described_line(
            'MB_HARDLIM', 'l3', 1, 0,
            machines.Description(resolution=1, reset='reset')),
        described_machines.described_line(
            'MB_FLOW', 'l3', 64, 17,
            machines.Description(resolution=64, reset='default')))

    def test_three_invented_controls_are_held_shown_and_repaired(self):
        for name in ('intel', 'mpam', 'mpam71', 'amd'):
            with tempfile.TemporaryDirectory() as top:
                self._check(world.World(Path(top), _with(name, *self.LINES),
                                        ()), name)

    def _check(self, host, name):
        self.assertLessEqual(
            {'MEM_BW_MIN', 'MEM_BW_HARDLIMIT', 'MEM_BW_SOFTLIMIT'},
            host.host.capabilities(), name)
        self.assertLessEqual(set(host.host.notes), {detection.THREAD_NOTE})
        host.add(0, 'ghsched')
        host.guests[0] = dataclasses.replace(
            host.guests[0],
            desired=resolve.make_desired_lines(
                host.host,
                resolve.resolve_settings(
                    host.host,
                    GuestPolicy(
                        nodes=(
                            NodePolicy(maximum=60, minimum=37, hardlimit=True),
                        )
                    ),
                    (1,),
                ),
            ),
        )
        self.assertEqual((), host.reconcile().problems)
        group = host.guests[0].group
        mine = set(host.host.domains_by_node[1])
        self._check_group_values(host, group, mine)
        for line, value in (('MB_FANCY_MIN', 3), ('MB_HARDLIM', 0),
                            ('MB_FLOW', 5)):
            for domain in host.model.machine.domains('l3'):
                host.model.write(f'/{group}/schemata',
                                 f'{line}:{domain}={value}\n')
            self.assertEqual((), host.reconcile().problems)
            self._check_group_values(host, group, mine)
        self.assertEqual((), host.reconcile().actions)

    def _check_group_values(self, host, group, mine):
        rows = host.schemata(group)
        for line, value, other in (('MB_FANCY_MIN', 370, 0),
                                   ('MB_HARDLIM', 1, 0), ('MB_FLOW', 17, 17)):
            for domain, found in rows.values(line).items():
                self.assertEqual(value if domain in mine else other, found)


class BoundedTest(base.TestCase):
    """The default group gives away what guests are guaranteed."""

    def _world(self, *shares):
        top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        host = world.World(top, 'riscv', ())
        for number, share in enumerate(shares):
            host.add(number, 'ghsched')
            self._ask(host, number, share)
        return host

    def _ask(self, host, number, share):
        host.guests[number] = dataclasses.replace(
            host.guests[number], desired=resolve.make_desired_lines(
                host.host, resolve.resolve_settings(host.host, GuestPolicy(
                    nodes=(NodePolicy(minimum=share),)), (0,))))

    def test_guests_are_guaranteed_what_the_default_group_had(self):
        host = self._world(60, 32)
        self.assertEqual((), host.reconcile().problems)
        self.assertEqual({72: 1, 73: 756},
                         host.schemata('').values('MB_MIN'))
        self.assertEqual([491, 262], [
            host.schemata(guest.group).values('MB_MIN')[72]
            for guest in host.guests])
        self.assertEqual((), host.reconcile().actions)

    def test_shares_that_change_places_are_lowered_first(self):
        host = self._world(12, 80)
        self.assertEqual((), host.reconcile().problems)
        for shares in ((80, 12), (12, 80)):
            for number, share in enumerate(shares):
                self._ask(host, number, share)
            self.assertEqual((), host.reconcile().problems)
            self.assertEqual([], host.wrong())

    def test_a_guest_that_leaves_makes_room_in_the_same_run(self):
        host = self._world(12, 80)
        host.reconcile()
        self._ask(host, 0, 90)
        host.end(1)
        self.assertEqual((), host.reconcile(without={1}).problems)
        self.assertEqual([], host.wrong(without={1}))

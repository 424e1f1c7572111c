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


"""The host engine against every emulated kernel."""

from dataclasses import replace
import functools
from pathlib import Path
import tempfile

from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_nova.lab.emulator import described
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import differences
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_nova.resctrl import schemata
from ghsched_nova.tests.fixtures import captured
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_nova.tests.unit.resctrl import fuzz
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

#: The emulated machine, the dialect that it speaks, and the captured tree of
#: such a machine.
SPEAKS = {
    'intel': ('intel-rdt', 'intel-xeon-2s'),
    'intel-snc-cdp': ('intel-rdt', 'intel-2s-snc-cdp'),
    'intel-mbps': ('intel-mba-mbps', 'intel-mba-mbps'),
    'amd': ('amd-qos', 'amd-epyc'),
    'mpam': ('mpam', 'arm-mainline'),
    'mpam71': ('mpam', 'arm-mainline-7.1'),
    'openeuler510': ('openeuler-5.10', 'kunpeng920-openeuler22.03-mbmax'),
    'openeuler66': ('openeuler-6.6', 'kunpeng920b-openeuler24.03'),
    'openeuler66-6bit': ('openeuler-6.6', 'kunpeng920b-openeuler24.03'),
    'openeuler66-7bit': ('openeuler-6.6', 'kunpeng920b-openeuler24.03'),
    'kunpeng950': ('openeuler-6.6', 'kunpeng950-openeuler24.03'),
    'nvidia': ('nvidia-mpam', 'nvidia-grace'),
    'nvidia-vera': ('nvidia-mpam', 'nvidia-vera'),
}
SPEED = 195312      # MiB/s
#: That of the one guest of a world.
GROUP = naming.render_own_group_name(world.UUID.format(0))


def read(dialect, nodes=emulated.NODES):
    return world.measured_host(described.build(dialect, nodes))


class DialectsTest(base.TestCase):

    def test_each_is_recognised(self):
        self.assertEqual(set(machines.DIALECTS), set(SPEAKS))
        self.assertEqual(set(dialects.BY_NAME),
                         {name for name, _machine in SPEAKS.values()})
        self.assertEqual(set(dialects.BY_NAME),
                         {SPEAKS[machine][0] for machine in fuzz.DIALECTS})
        for dialect, (name, _machine) in SPEAKS.items():
            host = read(dialect)
            self.assertEqual(name, host.dialect.name)
            self.assertEqual({0, 1}, set(host.domains_by_node))
            self.assertEqual({2: 'it has no CPU'}, host.left_out)

    def test_each_is_like_the_captured_one(self):
        # The counts differ, the kind does not.
        for dialect, (_name, machine) in SPEAKS.items():
            host = read(dialect)
            like = captured.read_machine(machine, cap='hard')
            if dialect == 'openeuler510':   # it has mbPrio besides
                self.assertEqual({'MBPRI'}, _lines(host) - _lines(like))
                continue
            self.assertEqual(like.dialect, host.dialect, dialect)
            self.assertEqual(
                (like.min_bandwidth, like.granularity, like.no_cap,
                 like.libvirt_reads, like.openeuler_libvirt_reads,
                 bool(like.counters)),
                (host.min_bandwidth, host.granularity, host.no_cap,
                 host.libvirt_reads, host.openeuler_libvirt_reads,
                 bool(host.counters)), dialect)

    def test_monitor_files_are_where_the_dialect_says(self):
        for dialect in SPEAKS:
            monitor = read(dialect).dialect.monitor
            model = emulated.model(dialect)
            if monitor is None:
                self.assertEqual('mpam71', dialect)
                continue
            names = [name for name in model.listdir('/mon_data')
                     if name.removeprefix(monitor.prefix).isdecimal()]
            self.assertEqual(2 + 2 * (dialect == 'amd')
                             - (dialect == 'intel-snc-cdp')
                             + (dialect == 'nvidia-vera'), len(names))
            for name in names:
                text = model.read(f'/mon_data/{name}/{monitor.file}'
                                  .rstrip('/'))
                self.assertTrue(text.strip().isdecimal(), text)


def _lines(host):
    return {knob.line for knob in host.dialect.knobs}


def _disorder(data, model, group):
    """Any values that the kernel takes, in the lines of bandwidth."""
    for line in model.machine.lines:
        if line.base == 16 or not data.draw(st.booleans()):
            continue
        domain = data.draw(st.sampled_from(
            model.machine.domains(line.scope)))
        value = data.draw(st.integers(line.minimum, line.maximum))
        model.write(f'/{group}/schemata', f'{line.name}:{domain}={value}\n')


def _other_lines(model, group, knobs):
    parsed = schemata.parse_schemata(model.read(f'/{group}/schemata'))
    return [line for line in parsed.lines if line.name not in knobs]


class OneGuestTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self._top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self._world = functools.cache(self._new_world)

    def _new_world(self, dialect):
        """A host on which one guest runs, whose group is there."""
        made = world.World(self._top / 'worlds' / dialect, dialect,
                           ('ghsched',))
        made.reconcile()
        return made


class RoundTripTest(OneGuestTestCase):
    """Parse, plan, apply and read back: nothing is left to do."""

    def _hold(self, held, desired):
        held.guests[0] = replace(held.guests[0], desired=desired)
        self.assertEqual((), held.reconcile().problems)

    def _check(self, data, dialect):
        host = read(dialect)
        held = self._world(dialect)
        nodes = data.draw(st.lists(captured.policies_of(host), min_size=1,
                                   max_size=2))
        if dialect == 'intel-snc-cdp':      # both nodes are in one domain
            nodes = nodes[:1] * len(nodes)
        places = data.draw(st.permutations((0, 1)))[:len(nodes)]
        _disorder(data, held.model, GROUP)
        knobs = _lines(host)
        others = _other_lines(held.model, GROUP, knobs)
        settings_ = resolve.resolve_settings(
            host, GuestPolicy(nodes=tuple(nodes)), places
        )
        desired = resolve.make_desired_lines(host, settings_)
        self._hold(held, desired)
        self.assertEqual(
            (),
            differences.find_schemata_differences(
                held.schemata(GROUP),
                desired,
                host.unused_domain_values,
            ),
        )
        for setting in settings_:
            self.assertGreaterEqual(setting.maximum_percent,
                                    setting.requested.maximum)
            if setting.minimum is not None:
                self.assertTrue(setting.requested.minimum <= setting.minimum
                                <= setting.maximum)
        self.assertEqual(others, _other_lines(held.model, GROUP, knobs))
        self._hold(held, desired)
        self.assertEqual([], held.files.operations)

    def test_every_dialect(self):
        for dialect in spaces.choose(SPEAKS):
            self._check_dialect(dialect)

    def test_kernels_that_describe_their_controls(self):
        # Regions and lines of caches are never written.
        for dialect in ('intel-regions', 'amd-gmb'):
            self._check_dialect(dialect)

    def _check_dialect(self, dialect):
        @settings(deadline=None, max_examples=25, database=None)
        @given(st.data())
        def check(data):
            self._check(data, dialect)

        check()

    def test_each_cap_and_guarantee_by_itself(self):
        for dialect in SPEAKS:
            host = read(dialect)
            held = self._world(dialect)
            least = 'MEM_BW_MIN' in host.capabilities()
            for share in range(1, 101):
                asked = NodePolicy(maximum=share, minimum=share * least)
                desired = resolve.make_desired_lines(
                    host,
                    resolve.resolve_settings(
                        host, GuestPolicy(nodes=(asked,)), (1,)
                    ),
                )
                self._hold(held, desired)

    def test_a_cap_that_was_lowered_by_one_unit_is_repaired(self):
        for dialect in SPEAKS:
            host = read(dialect)
            held = self._world(dialect)
            for share in (20, 33, 50):
                desired = resolve.make_desired_lines(
                    host,
                    resolve.resolve_settings(
                        host, GuestPolicy(nodes=(NodePolicy(maximum=share),)),
                        (1,)),
                )
                self._hold(held, desired)
                self._lower(held, host, desired)

    def _lower(self, held, host, desired):
        line = host.dialect.find_knob('maximum').line
        domain, value = next(iter(desired[line].items()))
        path = f'/{GROUP}/schemata'
        right = held.model.read(path)
        held.model.write(path, f'{line}:{domain}='
                               f'{value - host.granularity}\n')
        held.reconcile()
        self.assertEqual(right, held.model.read(path),
                         host.dialect.name)

    def test_lines_that_are_not_ours_are_kept(self):
        for dialect, line in (('kunpeng950', 'L3MAX:1=50\n'),
                              ('kunpeng950', 'L3MIN:122=7\n'),
                              ('intel-snc-cdp', 'L3CODE:0=3\n'),
                              ('amd', 'SMBA:9=64\n'),
                              ('openeuler510', 'L3PBM:1=3\n')):
            host = read(dialect)
            held = self._world(dialect)
            held.model.write(f'/{GROUP}/schemata', line)
            before = _other_lines(held.model, GROUP, _lines(host))
            desired = resolve.make_desired_lines(
                host,
                resolve.resolve_settings(
                    host, GuestPolicy(nodes=(NodePolicy(maximum=40),)), (0,)
                ),
            )
            self._hold(held, desired)
            self.assertEqual(before, _other_lines(held.model, GROUP,
                                                  _lines(host)))


_JUNK = (st.binary(max_size=60) | st.sampled_from(
    (b'', b'\n', b'MB:0=1', b'MB:0=\n', b'MB 0=1\n', b'\x00' * 9,
     b'MB:0=100;0=1\n', b'MB:\xff=1\n')))


def _whole(text, desired):
    """Whether a text has a number for all that is desired."""
    try:
        parsed = schemata.parse_kernel_schemata(text)
        return all(set(values) <= set(parsed.values(line) or ())
                   for line, values in desired.items())
    except schemata.SchemataError:
        return False


class FuzzTest(OneGuestTestCase):

    def _tree(self, dialect):
        """A tree of an emulated machine, and its files."""
        top = self._top / dialect
        if not top.exists():
            emulated.write_tree(emulated.model(dialect, '0=0;1=1'), top,
                                SPEED)
        return top, {path: path.read_bytes() for path
                     in sorted(top.rglob('*')) if path.is_file()}

    @settings(deadline=None, max_examples=100)
    @given(st.data(), st.sampled_from(sorted(SPEAKS)))
    def test_a_tree_that_is_damaged_anywhere(self, data, dialect):
        top, whole = self._tree(dialect)
        damaged = {}
        for path in data.draw(st.lists(st.sampled_from(sorted(whole)),
                                       min_size=1, max_size=5)):
            cut = data.draw(st.integers(0, len(whole[path])))
            damaged[path] = data.draw(_JUNK | st.just(whole[path][:cut]))
        try:
            for path, content in damaged.items():
                path.write_bytes(content)
            self._read(top)
            self.assertEqual(whole | damaged, self._tree(dialect)[1])
        finally:
            for path in damaged:
                path.write_bytes(whole[path])

    def _read(self, top):
        try:
            host = resctrl_host.read_host(top / 'resctrl', top / 'sysfs')
        except resctrl_host.ResctrlUnavailable as exc:
            self.assertTrue(exc.reason)
        else:
            self.assertGreaterEqual(host.make_description().control_groups, 0)
            self.assertIsInstance(host.unused_domain_values, dict)

    @settings(deadline=None, max_examples=200)
    @given(st.sampled_from(sorted(SPEAKS)), _JUNK)
    def test_a_group_that_shows_junk_is_not_written_to(self, dialect, junk):
        host = read(dialect)
        held = self._world(dialect)
        text = junk.decode(errors='replace')
        desired = resolve.make_desired_lines(host, resolve.resolve_settings(
            host, GuestPolicy(nodes=(NodePolicy(maximum=40),)), (0,)))
        assume(not _whole(text, desired))
        held.guests[0] = replace(held.guests[0], desired=desired)
        read_file = held.files.read
        held.files.read = lambda path: (
            text if path.name == 'schemata' else read_file(path))
        try:
            problem, = held.reconcile().problems
        finally:
            del held.files.read
        self.assertTrue(problem.reason)
        self.assertEqual([], held.files.operations)

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

"""Ids of groups that others use up, against the emulated kernels."""

import dataclasses
from pathlib import Path
import shutil
import tempfile
from unittest import mock

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslo_config import cfg

from ghsched_nova import conf
from ghsched_nova.features.doctor import checks_groups
from ghsched_nova.host import arrival_check
from ghsched_nova.host import engine
from ghsched_nova.lab.emulator import described
from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import counters
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import group_ids
from ghsched_nova.resctrl import resolve
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

UUID = '3f0c6a51-16d5-4d5e-8a0c-1f5b2b0d7{:03}'
DIALECTS = sorted({**machines.DIALECTS, **described.MACHINES})

#: What num_rmids of Arm's kernels has meant for P PARTIDs and M PMGs.
ARM_RMIDS = {'product': lambda p, m: p * m, 'pmgs': lambda _p, m: m,
             'one': lambda _p, _m: 1}


def fill(model, groups, monitors, inside):
    """Create groups of other software, as far as the kernel allows.

    :param inside: whether monitoring groups are in these control groups, too.
    """
    made = []
    for number in range(groups):
        try:
            model.mkdir(f'/pqos-{number}')
        except kernel.ResctrlError:
            break
        made.append(f'/pqos-{number}')
    parents = ['', *(made if inside else ())]
    for number in range(monitors):
        try:
            model.mkdir(f'{parents[number % len(parents)]}'
                        f'/mon_groups/{number}')
        except kernel.ResctrlError:
            break


def count_successful_starts(model):
    """Create control groups of guests until the kernel refuses."""
    for number in range(1000):
        try:
            model.mkdir(f'/ghsched-{UUID.format(number)}')
        except kernel.ResctrlError:
            return number
    raise AssertionError('the kernel has no limit')


class Case:
    """An emulated host whose ids are partly used by other software."""

    def __init__(self, top, machine):
        self.model = kernel.ResctrlModel(machine, emulated.NoThreads())
        self.host = dataclasses.replace(
            world.measured_host(described.build(
                machine.dialect, emulated.NODES)),
            num_closids=machine.num_closids, num_rmids=min(
                monitor.rmids or machine.num_rmids
                for monitor in machine.monitors))
        self.root = top / 'resctrl'
        options = cfg.ConfigOpts()
        options([], project='nova', default_config_files=[],
                default_config_dirs=[])
        conf.register_opts(options)
        options.set_override('resctrl_path', str(self.root), 'ghsched')
        self.engine = engine.HostEngine(options.ghsched)

    def show(self):
        """Write the directories of the emulated groups to the file system."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        for name in self.model.listdir('/'):
            if self.model.lookup(f'/{name}').children is None:
                continue
            (self.root / name).mkdir()
            if name not in ('info', 'mon_data', 'mon_groups'):
                (self.root / name / 'tasks').write_text('')
        for name in ('', *(path.name for path in self.root.iterdir())):
            path = f'/{name}/mon_groups'.replace('//', '/')
            try:
                inside = self.model.listdir(path)
            except kernel.ResctrlError:
                continue
            for one in inside:
                (self.root / name / 'mon_groups' / one).mkdir(parents=True)

    def describe(self):
        with mock.patch.object(engine.HostEngine, 'read_resctrl_host',
                               return_value=self.host):
            return self.engine.describe_bandwidth_control().control_groups

    def can_arrive(self, policy):
        with mock.patch.object(engine.HostEngine, 'read_resctrl_host',
                               return_value=self.host), \
                mock.patch.object(engine.HostEngine, 'check_resctrl_access'), \
                mock.patch.object(resolve, 'resolve_settings'):
            try:
                arrival_check.check_arrival(self.engine, policy, (0,))
            except fs.GroupError:
                return False
            return True


class OfferedGroupsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.top = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def build(self, dialect, closids, rmids, spell='product'):
        machine = described.build(dialect, emulated.NODES, closids=closids)
        pmgs = machine.rmids_per_closid
        if not pmgs:
            return dataclasses.replace(machine, num_rmids=rmids)
        shown = ARM_RMIDS[spell](closids, pmgs)
        return dataclasses.replace(
            machine, num_rmids=closids * pmgs, monitors=tuple(
                dataclasses.replace(monitor, rmids=shown)
                for monitor in machine.monitors))

    def compare_offer_with_starts(self, case):
        case.show()
        offered = case.describe()
        left = checks_groups.count_groups_left(
            case.host.ids, group_ids.read_existing_groups(case.root), 0,
            False)
        arrives = case.can_arrive(
            GuestPolicy(nodes=(NodePolicy(maximum=50),)))
        started = count_successful_starts(case.model)
        self.assertEqual((started, started, started > 0),
                         (offered, left, arrives), case.model.machine.dialect)

    @settings(max_examples=150, deadline=None)
    @given(st.sampled_from(DIALECTS), st.integers(1, 12), st.integers(1, 30),
           st.integers(0, 12), st.integers(0, 30), st.booleans(),
           st.sampled_from(sorted(ARM_RMIDS)))
    def test_ids_used_by_others_are_not_offered(
            self, dialect, closids, rmids, groups, monitors, inside, spell):
        case = Case(self.top, self.build(dialect, closids, rmids, spell))
        fill(case.model, groups, monitors, inside)
        self.compare_offer_with_starts(case)

    def test_each_dialect_with_all_monitoring_ids_used(self):
        for dialect in DIALECTS:
            for spell in ARM_RMIDS:
                case = Case(self.top, self.build(dialect, 8, 20, spell))
                fill(case.model, 2, 1000, True)
                self.compare_offer_with_starts(case)

    def test_own_groups_and_monitors_are_counted_once(self):
        case = Case(self.top, self.build('intel', 8, 12))
        case.model.mkdir('/pqos')
        for number in (901, 902, 903):
            case.model.mkdir(f'/ghsched-{UUID.format(number)}')
        for number in range(3):
            case.model.mkdir(f'/mon_groups/cpu-{number}')
        case.show()
        self.assertEqual(6, case.describe())
        case.model.mkdir('/mon_groups/cpu-3')
        case.model.mkdir('/pqos/mon_groups/cpu-4')
        case.show()
        self.assertEqual(5, case.describe())
        self.assertEqual(2, count_successful_starts(case.model))

    def test_monitoring_groups_of_libvirt_energytune_are_counted(self):
        case = Case(self.top, self.build('intel', 8, 12))
        case.model.mkdir('/pqos')
        for number in range(5):
            case.model.mkdir(f'/mon_groups/qemu-{number}-db-vcpus_0-3')
        case.model.mkdir('/pqos/mon_groups/qemu-1-web-vcpus_0')
        self.compare_offer_with_starts(case)
        case = Case(self.top, self.build('intel', 8, 12))
        for number in range(11):
            self.assertTrue(case.can_arrive(GuestPolicy(monitor=True)))
            case.model.mkdir(f'/mon_groups/qemu-{number}-db-vcpus_0-3')
            case.show()
        self.assertEqual(0, case.describe())
        self.assertFalse(case.can_arrive(GuestPolicy(monitor=True)))

    def test_measured_guest_arrives_if_a_monitoring_id_is_free(self):
        for dialect in DIALECTS:
            case = Case(self.top, self.build(dialect, 6, 9))
            if not case.host.monitored:
                continue
            policy = GuestPolicy(monitor=True)
            for number in range(40):
                case.show()
                arrives = case.can_arrive(policy)
                try:
                    case.model.mkdir(f'/mon_groups/{number}')
                except kernel.ResctrlError:
                    self.assertFalse(arrives, dialect)
                    break
                self.assertTrue(arrives, dialect)
            else:
                self.fail(dialect)


class OfferedWaysTest(base.TestCase):
    """Ways of the L3 in exclusive groups of other software."""

    def take_ways(self, made, count):
        """Give the lowest ways of each L3 to an exclusive group of others."""
        line = made.model.machine.line('L3')
        domains = made.model.machine.domains(line.scope)
        for group, mask in (('', line.maximum >> count << count),
                            ('/pqos', (1 << count) - 1)):
            if group:
                made.model.mkdir(group)
            made.model.write(f'{group}/schemata', 'L3:' + ';'.join(
                f'{domain}={mask:x}' for domain in domains) + '\n')
        made.model.write('/pqos/mode', 'exclusive\n')

    def test_ways_of_exclusive_groups_are_not_offered(self):
        for dialect in ('intel', 'amd'):
            ways = machines.build(dialect, emulated.NODES).line(
                'L3').maximum.bit_length()
            for count in range(ways):
                top = Path(self.enterContext(tempfile.TemporaryDirectory()))
                made = world.World(top / 'world', dialect, ('ghsched',))
                if count:
                    self.take_ways(made, count)
                host = emulated.read_host(made.model, top / 'shown',
                                          world.SPEED)
                offered = host.cache.way_count if host.cache else 0
                self.assertEqual(max(0, ways - count - 2), offered,
                                 (dialect, count))
                self.start_with_ways(made, host, offered)

    def start_with_ways(self, made, host, ways):
        """Start a guest that reserves all ways on offer, and one with more."""
        def policy(count):
            return GuestPolicy(nodes=(NodePolicy(l3_ways=count),))

        self.assertRaises(resolve.PolicyRefused, resolve.resolve_l3_ways,
                          host, policy(ways + 1), (0,))
        if not ways:
            return
        made.guests[0] = dataclasses.replace(
            made.guests[0], ways=resolve.resolve_l3_ways(
                host, policy(ways), (0,)))
        self.assertEqual((), made.reconcile(cache=host.cache).problems)
        domain = host.cache.domains_by_node[0][0]
        mask = made.schemata(made.guests[0].group).values('L3', 16)[domain]
        self.assertEqual(ways, mask.bit_count())
        for other in ('', *({'pqos'} & set(made.groups()))):
            self.assertFalse(
                mask & made.schemata(other).values('L3', 16)[domain])


class OfferedCountersTest(base.TestCase):
    """Bandwidth counters that groups of other software have."""

    def test_guest_is_measured_exactly_if_a_counter_is_free(self):
        for dialect in ('amd', 'mpam'):
            seen = set()
            for others in range(20):
                top = Path(self.enterContext(tempfile.TemporaryDirectory()))
                made = world.World(top, dialect, ('ghsched',))
                fill(made.model, min(others, 12), max(0, others - 12), False)
                free = counters.read_counter_assignments(
                    made.files, made.root, ()).free
                made.guests[0] = dataclasses.replace(made.guests[0],
                                                     monitor=True)
                report = made.reconcile()
                self.assertEqual((), report.problems)
                self.assertEqual(min(free.values()) > 0,
                                 not report.unmeasured, (dialect, others))
                seen.add(bool(report.unmeasured))
            self.assertIn(True, seen, dialect)

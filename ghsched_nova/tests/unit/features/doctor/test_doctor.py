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

"""Whether a node is set up for ghsched."""

import configparser
import contextlib
import dataclasses
import fnmatch
import importlib
import importlib.util
import io
import json
import os
from pathlib import Path
import re
import shutil
import tempfile

import fixtures
from hypothesis import given
from hypothesis import strategies as st
from oslo_upgradecheck import upgradecheck

from ghsched_nova.cmd import configured
from ghsched_nova.cmd import console
from ghsched_nova.cmd.service_program import COMPUTE
from ghsched_nova.cmd.service_program import DRIVER
from ghsched_nova.cmd.service_program import SCHEDULER
from ghsched_nova.features.doctor import checks
from ghsched_nova.features.doctor import checks_groups
from ghsched_nova.features.doctor import leftovers
from ghsched_nova.features.doctor import node
from ghsched_nova.features.doctor import preconditions
from ghsched_nova.features.doctor import status
from ghsched_nova.host import host_facts
from ghsched_nova.lab.emulator import described
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import group_ids
from ghsched_nova.resctrl import kernel_mode
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import state_files
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

TREE = Path(__file__).parents[5]
GOING_BACK = TREE / 'doc' / 'source' / 'operators' / 'going-back.rst'

#: A node with all services, and nothing wrong.
GOOD = checks.MachineFacts(
    nova='34.0.0', placement='16.0.0', files=('/etc/nova/nova.conf',),
    driver=DRIVER, available=(checks.FILTERS,),
    enabled=('ComputeFilter', checks.FILTER),
    programs=(SCHEDULER, COMPUTE),
    mounted=True, mode=0o700, dialect='intel', bandwidth={0: 100},
    helper=True, own_file='/etc/placement/placement.conf', attempts=1)

#: What is wrong: change, name of the check, its status.
WRONG: tuple[tuple[dict, str, str], ...] = (
    ({'nova': '30.1.0'}, 'nova release', 'error'),
    ({'nova': '35.0.0'}, 'nova release', 'warning'),
    ({'placement': '12.0.0'}, 'placement release', 'error'),
    ({'files': ()}, 'configuration', 'warning'),
    ({'invalid': 'no number'}, 'options', 'error'),
    ({'attempts': 10}, 'placement retries', 'warning'),
    ({'attempts': None}, 'placement retries', 'warning'),
    ({'driver': 'libvirt.LibvirtDriver', 'programs': (
        SCHEDULER, 'nova-compute')}, 'driver', 'error'),
    ({'programs': (SCHEDULER, 'nova-compute')}, 'compute program',
     'error'),
    ({'programs': (SCHEDULER, 'nova-compute', COMPUTE)},
     'compute program', 'error'),
    ({'mounted': False}, 'resctrl', 'error'),
    ({'mode': 0o755}, 'resctrl mode', 'warning'),
    ({'dialect': '', 'unavailable': 'no MB line'}, 'dialect', 'error'),
    ({'notes': ('the line MB_MIN is not known',)}, 'controls', 'warning'),
    ({'overlaps': ('control group low_prio has 3 ways of L3 0',)}, 'L3 ways',
     'warning'),
    ({'doubtful': ('no such option',)}, 'option values', 'warning'),
    ({'groups': checks_groups.GroupFacts(
        group_ids.GroupIds(4, 8, False), group_ids.ExistingGroups(
            frozenset(('a', 'b', 'c')), 0, 0))}, 'control groups', 'warning'),
    ({'groups': checks_groups.GroupFacts(
        group_ids.GroupIds(4, 16, True), group_ids.ExistingGroups(
            frozenset(('a',)), 3, 3))}, 'monitoring ids', 'warning'),
    ({'groups': checks_groups.GroupFacts(
        group_ids.GroupIds(4, 8, False), group_ids.ExistingGroups(),
        counters={0: 3, 1: 0})}, 'bandwidth counters', 'warning'),
    ({'groups': checks_groups.GroupFacts(
        group_ids.GroupIds(4, 8, False), group_ids.ExistingGroups(),
        kernel=kernel_mode.KernelBinding('global_assign_ctrl_assign_mon'))},
     'kernel work', 'warning'),
    ({'groups': checks_groups.GroupFacts(
        group_ids.GroupIds(4, 8, False), group_ids.ExistingGroups(),
        wrong_unit=checks_groups.explain_wrong_unit(
            'jep106:036b:0241\n', '6.17.0-1014-nvidia-64k'))},
     'measured bandwidth', 'warning'),
    ({'bandwidth': {}}, 'node_bandwidth', 'warning'),
    ({'helper': False}, 'privsep', 'error'),
    ({'available': ()}, 'filter', 'error'),
    ({'available': (), 'enabled': ()}, 'filter', 'warning'),
    ({'enabled': ('ComputeFilter',)}, 'filter', 'error'),
    ({'enabled': (checks.FILTER, 'ComputeFilter')}, 'filter', 'error'),
    ({'enabled': ('NUMATopologyFilter', checks.FILTER)}, 'filter', 'error'),
    ({'programs': ('nova-scheduler', COMPUTE)}, 'scheduler program',
     'warning'),
)

#: /proc/PID/cmdline of nova-scheduler: Nova's release and how it was started,
#: what is there, and the program that it is.
TITLES = (
    ('31, package', '/usr/bin/python3\0/usr/bin/nova-scheduler\0'
     '--config-file=/etc/nova/nova.conf\0', 'nova-scheduler'),
    ('31, isolated', '/usr/bin/python3\0-s\0/usr/bin/nova-scheduler\0',
     'nova-scheduler'),
    ('32, devstack', '/opt/stack/data/venv/bin/python3.12\0'
     '/opt/stack/data/venv/bin/nova-scheduler\0--config-file\0'
     '/etc/nova/nova.conf\0', 'nova-scheduler'),
    ('33, eventlet', '/usr/bin/python3\0/usr/bin/ghsched-nova-scheduler\0',
     'ghsched-nova-scheduler'),
    ('33, threads', 'nova-scheduler: master process [/usr/bin/nova-scheduler'
     ' --config-file /etc/nova/nova.conf]\0', 'nova-scheduler'),
    ('34, parent', 'ghsched-nova-scheduler: master process '
     '[/usr/bin/ghsched-nova-scheduler]\0\0\0\0', 'ghsched-nova-scheduler'),
    ('34, worker', 'ghsched-nova-scheduler: ServiceWrapper worker(0)\0',
     'ghsched-nova-scheduler'),
    ('34, another program', 'nova-conductor: master process '
     '[/usr/bin/nova-conductor]\0', ''),
    ('an editor', 'vi\0-R\0-n\0nova-scheduler\0', ''),
    ('a search', 'grep\0-r\0nova-scheduler: master process [\0', ''),
    ('kernel thread', '', ''))


class ChecksTest(base.TestCase):

    def test_unit_is_doubted_on_grace_with_old_kernels_alone(self):
        for soc_id, release in (
                ('jep106:036b:0241', '7.3.0'),
                ('jep106:036b:0241', '10.0-rc1'),
                ('jep106:036b:0264', '6.17.0'), ('', '6.17.0'),
                ('jep106:036b:0241', 'unknown')):
            self.assertEqual('', checks_groups.explain_wrong_unit(
                soc_id, release))

    def test_a_node_that_is_set_up(self):
        self.assertEqual({'ok'}, {one.status for one
                                  in checks.run_node_checks(GOOD)})

    def test_each_thing_that_is_wrong_is_named_with_what_to_do(self):
        for change, name, found in WRONG:
            bad, = (one for one in checks.run_node_checks(
                dataclasses.replace(GOOD, **change)) if one.status != 'ok')
            self.assertEqual((name, found), (bad.name, bad.status), change)
            self.assertTrue(bad.remedy, change)

    def test_our_compute_program_with_another_driver_is_an_error(self):
        for driver in ('libvirt.LibvirtDriver', ''):
            found = {one.name: one for one in checks.run_node_checks(
                dataclasses.replace(GOOD, driver=driver))
                if one.status == 'error'}
            self.assertEqual({'driver', 'compute program'}, set(found))
            self.assertIn('or start nova-compute',
                          found['compute program'].remedy)

    def test_compute_program_that_does_not_run_is_a_warning(self):
        found, = (one for one in checks.run_node_checks(dataclasses.replace(
            GOOD, programs=(SCHEDULER,))) if one.status != 'ok')
        self.assertEqual(('compute program', 'warning'),
                         (found.name, found.status))
        self.assertIn('/etc/nova/nova.conf', found.text)

    def test_compute_host_whose_configuration_is_not_found_is_skipped(self):
        """The service in a container has files of its own."""
        found = checks.run_node_checks(
            checks.MachineFacts(programs=(COMPUTE,))
        )
        self.assertEqual(
            {'compute': 'skipped'},
            {one.name: one.status for one in found if 'compute' in one.name},
        )

    def test_preconditions_that_are_missing_come_before_the_mount(self):
        lack = preconditions.UnmetPrecondition(
            'firmware', 'no table', 'switch it on')
        mount = preconditions.UnmetPrecondition(
            'mount', 'not mounted', 'mount it')
        found = [one for one in checks.run_node_checks(dataclasses.replace(
            GOOD, mounted=False, missing=(lack, mount)))
            if one.status != 'ok']
        self.assertEqual(
            [('resctrl: firmware', 'no table', 'switch it on'),
             ('resctrl', 'it is not mounted at /sys/fs/resctrl',
              'mount -t resctrl resctrl /sys/fs/resctrl, if the kernel has '
              'it')], [(one.name, one.text, one.remedy) for one in found])

    def test_checks_not_about_a_node_are_skipped(self):
        found = checks.run_node_checks(
            checks.MachineFacts(files=('nova.conf',)))
        self.assertEqual({'ok', 'skipped'}, {one.status for one in found})
        self.assertFalse(checks.has_failed_check(found))

    @given(st.builds(
        checks.MachineFacts, st.text(max_size=5), st.text(max_size=5),
        driver=st.text(max_size=3), enabled=st.lists(st.sampled_from(
            ['', 'NUMATopologyFilter', checks.FILTER])).map(tuple),
        programs=st.lists(st.text(max_size=3)).map(tuple),
        mode=st.none() | st.integers(0, 0o7777)))
    def test_no_node_is_an_error_of_ours(self, facts):
        found = checks.run_node_checks(facts)
        self.assertEqual(
            checks.has_failed_check(found),
            status.make_upgrade_result(found).code
            == upgradecheck.Code.FAILURE)


class CommandTest(base.TestCase):

    def setUp(self):
        super().setUp()
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.top = Path(place.name)
        self.file = self.top / 'nova.conf'

    def write(self, text):
        self.file.write_text(text.format(top=self.top))

    def run_command(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ended = status.main(['doctor', '--config-file', str(self.file),
                                 *arguments])
        return ended, out.getvalue(), err.getvalue()

    def test_a_compute_host_without_resctrl(self):
        self.write('[DEFAULT]\ncompute_driver = ' + DRIVER + '\n'
                   '[ghsched]\nresctrl_path = {top}/resctrl\n')
        ended, text, _errors = self.run_command('--format', 'json')
        found = {one['name']: one for one in json.loads(text)}
        self.assertEqual(1, ended)
        self.assertEqual('error', found['resctrl']['status'])
        self.assertEqual('ok', found['driver']['status'])

    def test_group_of_others_in_the_ways_of_a_guest_is_a_warning(self):
        model = emulated.model('intel')
        guest = 'ghsched-' + '3f0c6a51-16d5-4d5e-8a0c-1f5b2b0d7c00'
        for group, masks in ((guest, '0=7;1=fffff'), (
                'low_prio', '0=3e;1=fffff'), ('high', '0=f00;1=fffff')):
            model.mkdir('/' + group)
            model.write(f'/{group}/schemata', f'L3:{masks}\n')
        model.write('/schemata', 'L3:0=ffff8;1=fffff\n')
        emulated.write_tree(model, self.top)
        self.write('[DEFAULT]\ncompute_driver = ' + DRIVER + '\n'
                   '[ghsched]\nresctrl_path = {top}/resctrl\n'
                   'sysfs_path = {top}/sysfs\n')
        _ended, text, _errors = self.run_command('--format', 'json')
        found, = (one for one in json.loads(text) if one['name'] == 'L3 ways')
        self.assertEqual('warning', found['status'])
        self.assertEqual(
            f'control group low_prio has 2 ways of L3 0 that {guest} has to '
            'itself', found['text'])

    def read_checks(self):
        _ended, text, _errors = self.run_command('--format', 'json')
        return {one['name']: one for one in json.loads(text)}

    def write_host(self, machine, speed=0, options=''):
        shutil.rmtree(self.top / 'resctrl', ignore_errors=True)
        shutil.rmtree(self.top / 'sysfs', ignore_errors=True)
        emulated.write_tree(emulated.model(machine) if isinstance(
            machine, str) else machine, self.top, speed)
        self.write('[DEFAULT]\ncompute_driver = ' + DRIVER + '\n'
                   '[ghsched]\nresctrl_path = {top}/resctrl\n'
                   'sysfs_path = {top}/sysfs\n' + options)

    def test_host_is_described_as_nova_compute_describes_it(self):
        # One that is refused without an option is in each sample.
        for machine in ('amd', *spaces.choose(
                {**machines.DIALECTS, **described.MACHINES})):
            for options in ('', 'node_bandwidth = 0:204800,1:204800\n',
                            'bandwidth_cap = soft\n',
                            'l3_ways_shared = 5\n'):
                self.write_host(machine, options=options)
                section = configured.read_ghsched_options([str(self.file)])
                try:
                    expected = host_facts.HostFacts(
                        section).read_resctrl_host(), ''
                except resctrl_host.ResctrlUnavailable as error:
                    expected = None, str(error)
                self.assertEqual(expected, node._read_resctrl_features(
                    section, ''), (machine, options))

    def test_control_groups_of_others_are_named_with_what_is_left(self):
        model = emulated.model('intel')
        for number in range(14):
            if number in (0, 1, 13):
                self.write_host(model)
                found = self.read_checks()['control groups']
                self.assertEqual('ok', found['status'])
                self.assertIn(f'others use {number}, guests 0; left for '
                              f'guests: {14 - number}', found['text'])
            model.mkdir(f'/COS{number + 1}')
        self.write_host(model)
        self.assertEqual('warning',
                         self.read_checks()['control groups']['status'])

    def test_bandwidth_counters_of_others_are_named(self):
        model = emulated.model('amd')
        for number in range(15):
            model.mkdir(f'/others-{number}')
        self.write_host(model, 195312)
        self.assertEqual('warning', self.read_checks()['bandwidth counters'][
            'status'])

    def test_cap_that_slows_sibling_threads_is_noted(self):
        for machine, noted in (('intel', True), ('intel-snc-cdp', False),
                               ('openeuler66', False)):
            self.write_host(machine)
            found = self.read_checks()
            self.assertEqual(noted, 'thread throttling' in found, machine)
            self.assertNotIn('all threads of a core',
                             found.get('controls', {'text': ''})['text'])

    def test_options_that_the_host_cannot_follow_are_named(self):
        for option, word in (
                ('bandwith_accounting = max', 'mean bandwidth_accounting?'),
                ('reserved_bandwidth = 7:20', 'NUMA nodes [7]'),
                ('node_bandwidth = 0:100,9:100', 'NUMA nodes [9]'),
                ('bandwidth_bursts = 5:10', 'NUMA nodes [5]'),
                ('nova_fixes = foo', 'nova_fixes names foo'),
                ('l3_ways_shared = 99', 'has 20 ways'),
                ('reserved_control_groups = 99', 'has 14 control groups')):
            self.write_host('intel', options=option + '\n')
            found = self.read_checks()['option values']
            self.assertEqual('warning', found['status'])
            self.assertIn(word, found['text'])
        self.write_host('intel', options='nova_fixes = none\n'
                        'reserved_bandwidth = *:10,0:20\n')
        self.assertNotIn('option values', self.read_checks())

    def test_a_section_that_cannot_be_read(self):
        self.write('[ghsched]\nreserved_bandwidth = x:10\n')
        ended, text, _errors = self.run_command()
        self.assertEqual(1, ended)
        self.assertIn('NUMA node number', ' '.join(
            text.replace('|', ' ').split()))

    def test_a_file_that_is_not_there(self):
        ended, _text, errors = self.run_command()
        self.assertEqual(2, ended)
        self.assertIn('ghsched-status doctor: ', errors)

    def test_programs_of_nova_and_ours_are_found_by_name(self):
        self.write('')
        for number, words in enumerate((
                '/usr/bin/python3\0/usr/bin/nova-scheduler\0',
                '/usr/bin/ghsched-nova-scheduler\0',
                '/usr/bin/python3\0/usr/bin/ghsched-nova-compute\0'
                '--config-file\0/etc/nova/nova-compute.conf\0',
                'tail\0-f\0-n\0nova-compute\0')):
            os.makedirs(self.top / 'proc' / str(number))
            (self.top / 'proc' / str(number) / 'cmdline').write_text(words)
        facts = node.read_node_facts([str(self.file)], self.top / 'proc')
        self.assertEqual(('ghsched-nova-compute', 'ghsched-nova-scheduler',
                          'nova-scheduler'), facts.programs)

    def test_scheduler_with_each_title_of_a_release_is_found(self):
        for release, cmdline, expected in TITLES:
            self.assertEqual(expected, node.identify_program(cmdline.encode()),
                             (release, cmdline))

    def test_option_that_ends_services_at_their_start_is_named(self):
        self.write('[ghsched]\nresctrl_magic = 0x65735546\n')
        facts = node.read_node_facts([str(self.file)], self.top)
        self.assertIn('resctrl_magic', facts.invalid)

    def test_how_often_placement_tries(self):
        own = self.top / 'placement.conf'
        self.write('[placement]\nallocation_conflict_retry_count = 3\n')
        for text, seen in (('', 10), ('[placement]\n'
                           'allocation_conflict_retry_count = 1\n', 1),
                           ('[placement]\n'
                            'allocation_conflict_retry_count = x\n', None)):
            own.write_text(text)
            facts = node.read_node_facts([str(self.file), str(own)], self.top)
            self.assertEqual((str(own), seen),
                             (facts.own_file, facts.attempts))
        self.assertEqual('', node.read_node_facts(
            [str(self.file)], self.top).own_file)

    def test_where_placement_looks_for_its_configuration(self):
        self.useFixture(fixtures.EnvironmentVariable('HOME', str(self.top)))
        os.mkdir(self.top / '.placement')
        own = self.top / '.placement' / 'placement.conf'
        own.write_text('')
        self.assertEqual(
            (str(own), 10), node.read_placement_conflict_retries(None)
        )

    def test_upgrade_check_ends_with_the_worst(self):
        self.write('[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver\n')
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(2, status.main([
                '--config-file', str(self.file), 'upgrade', 'check']))
        self.assertIn('compute_driver is', out.getvalue())

    def test_upgrade_check_reads_what_nova_compute_reads(self):
        self.useFixture(fixtures.EnvironmentVariable('HOME', str(self.top)))
        os.mkdir(self.top / '.nova')
        for name, text in (('nova', ''), (
                'nova-compute', 'compute_driver = libvirt.LibvirtDriver\n')):
            (self.top / '.nova' / f'{name}.conf').write_text(
                '[DEFAULT]\n' + text)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(2, status.main(['upgrade', 'check']))
        self.assertIn('compute_driver is', out.getvalue())


NOVA_CONF = """\
[DEFAULT]
# compute_driver = ghsched.GhschedLibvirtDriver
log_dir = /var/log/ghsched
compute_driver = ghsched.GhschedLibvirtDriver

[filter_scheduler]
available_filters = nova.scheduler.filters.all_filters
available_filters = ghsched_nova.scheduler.filters.GhschedNUMATopologyFilter
enabled_filters = ComputeFilter,GhschedNUMATopologyFilter
[ghsched]
node_bandwidth = 0:100
resctrl_path = {top}/resctrl
"""

BARE_CONF = """\
[DEFAULT]
state_path = {top}
"""

PASTE = """\
[composite:openstack_compute_api_v21]
keystone = cors authtoken keystonecontext ghsched osapi_compute_app_v21

[filter:ghsched]
paste.filter_factory = """ + (
    'ghsched_nova.api.server_filter:filter_factory\n')


class LeftoversTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.top = Path(self.useFixture(fixtures.TempDir()).path)
        self.proc = self.top / 'proc'
        os.makedirs(self.proc / '1')
        os.makedirs(self.top / 'resctrl' / 'mon_groups' / 'ghsched-u')
        os.makedirs(self.top / 'resctrl' / 'ghsched-default')
        (self.proc / '1' / 'cmdline').write_text(
            'ghsched-nova-scheduler: ServiceWrapper worker(0)\0')

    def write(self, nova, paste):
        (self.top / 'nova.conf').write_text(nova.format(top=self.top))
        (self.top / 'api-paste.ini').write_text(paste)

    def found(self):
        return leftovers.make_leftover_checks(leftovers.find_leftovers(
            [str(self.top / 'nova.conf')], self.proc, self.top))

    def stop_all(self):
        """Remove control groups and programs of ghsched."""
        for name in ('ghsched-default', 'mon_groups/ghsched-u'):
            os.rmdir(self.top / 'resctrl' / name)
        (self.proc / '1' / 'cmdline').write_text('nova-scheduler\0')

    def test_node_of_ghsched_names_all_that_is_to_be_removed(self):
        self.write(NOVA_CONF, PASTE)
        found = self.found()
        self.assertEqual({'warning'}, {one.status for one in found})
        self.assertTrue(all(one.remedy for one in found))
        self.assertEqual([
            'compute_driver = ghsched.GhschedLibvirtDriver',
            'available_filters = ghsched_nova.scheduler.filters.'
            'GhschedNUMATopologyFilter',
            'enabled_filters = ComputeFilter,GhschedNUMATopologyFilter',
            '[ghsched]',
            'keystone = cors authtoken keystonecontext ghsched '
            'osapi_compute_app_v21', '[filter:ghsched]',
            'ghsched-nova-scheduler runs', 'ghsched-default, ghsched-u'],
            [one.text for one in found])
        self.assertIn('start nova-scheduler in its place',
                      [one.remedy for one in found])

    def test_node_that_has_gone_back_has_nothing(self):
        self.write(BARE_CONF + 'log_dir = /var/log/ghsched\n'
                   f'[libvirt]\nx = {self.top}\n', '[filter:cors]\n')
        self.stop_all()
        found, = self.found()
        self.assertEqual('ok', found.status)
        self.assertIn('nothing of ghsched is left', found.text)

    def test_each_file_that_the_manual_has_copied_is_named(self):
        self.write(BARE_CONF, '')
        self.stop_all()
        page = GOING_BACK.read_text()
        for directory, target in (
                ('etc/ghsched/systemd', 'etc/systemd/system'),
                ('etc/nova/rootwrap.d', 'etc/nova/rootwrap.d')):
            for source in (TREE / directory).rglob('*'):
                if source.is_dir():
                    continue
                name = source.relative_to(TREE / directory)
                copy = self.top / target / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(source.read_text())
                with self.subTest(file=str(name)):
                    found, = self.found()
                    self.assertEqual(('warning', str(copy)),
                                     (found.status, found.text))
                    self.assertIn(f'rm {copy}', found.remedy)
                    self.assertIn(f'/{target}/{name}', page)
                copy.unlink()

    def test_each_file_that_nova_compute_keeps_is_named(self):
        self.write(BARE_CONF, '')
        self.stop_all()
        page = GOING_BACK.read_text()
        for name in state_files.list_names():
            (self.top / name).touch()
            found, = self.found()
            self.assertEqual(str(self.top / name), found.text)
            # The page removes them by this pattern.
            self.assertTrue(fnmatch.fnmatch(name, 'ghsched-*.json'), name)
            (self.top / name).unlink()
        self.assertIn('/ghsched-*.json', page)

    def test_unit_of_another_program_is_not_named(self):
        self.write(BARE_CONF, '')
        self.stop_all()
        units = self.top / 'etc/systemd/system'
        units.mkdir(parents=True)
        (units / 'nova-compute.service').write_text(
            '# not ghsched-nova-compute\n[Service]\n'
            'ExecStart=/usr/bin/nova-compute\n')
        (units / 'masked.service').symlink_to('/dev/null')
        found, = self.found()
        self.assertEqual('ok', found.status)

    def test_command_ends_with_1_while_something_is_left(self):
        self.write(NOVA_CONF, PASTE)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            ended = status.main(['doctor', '--leftovers', '--config-file',
                                 str(self.top / 'nova.conf')])
        self.assertEqual(1, ended)
        self.assertIn('[filter:ghsched]', out.getvalue())


class VersionTest(base.TestCase):

    def test_every_command_has_one(self):
        setup = configparser.ConfigParser()
        setup.read(TREE / 'setup.cfg')
        commands = re.findall(r'= ([\w.]+):main$',
                              setup['entry_points']['console_scripts'],
                              re.MULTILINE)
        self.assertIn('ghsched_nova.cmd.host', commands)
        # Those of Nova's services have its options.
        for name in {*commands} - {f'ghsched_nova.cmd.{one}' for one in (
                'compute', 'scheduler')}:
            module = importlib.import_module(name)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                error = self.assertRaises(
                    SystemExit, module.make_parser().parse_args, ['--version'])
            self.assertEqual(0, error.code)
            self.assertEqual(console.get_version(), out.getvalue().split()[1])


class UsageTest(base.TestCase):

    def test_wrong_usage_ends_as_the_help_says(self):
        for arguments in (['--format', 'x'], ['--x']):
            with contextlib.redirect_stderr(io.StringIO()):
                error = self.assertRaises(
                    SystemExit, status.main, ['doctor', *arguments])
            self.assertEqual(2, error.code)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertRaises(SystemExit, status.main, ['doctor', '--help'])
        self.assertIn('1 something is, 2 wrong usage',
                      ' '.join(out.getvalue().split()))

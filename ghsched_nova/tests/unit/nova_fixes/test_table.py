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


import pathlib
import re
import shutil
import subprocess
from types import SimpleNamespace
from unittest import mock

import ddt
import fixtures
from nova import conf
from nova import exception
from nova import objects
from nova import version

from ghsched_nova.nova_fixes import cut_off_live_migration
from ghsched_nova.nova_fixes import evacuated_live_migration
from ghsched_nova.nova_fixes import failed_live_migration
from ghsched_nova.nova_fixes import failed_post_live_migration
from ghsched_nova.nova_fixes import live_migrations
from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_fixes import rolled_back_resize
from ghsched_nova.nova_fixes import rows
from ghsched_nova.nova_fixes import servers
from ghsched_nova.nova_fixes import table
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova.nova_seams import signatures
from ghsched_placement.tests import base

TOP = pathlib.Path(__file__).parents[4]
FIX = rows.Fix('one', (registry.API,))
DIFFER = (registry.Mismatch('nova.x', ('a',), None),)
PATCHES = TOP / 'tools/upstream/nova'
NOVA = table.SOURCE

#: Patches of defects for which there is no fix, but other code of ghsched.
WITHOUT_FIX = {'0010', '0011', '0017'}


@ddt.ddt
class StateTest(base.TestCase):

    @ddt.data((['auto'], (), True, 'applied'),
              (['one'], (), True, 'applied'),
              (['none'], (), False, 'off'),
              (['two'], (), False, 'off'),
              ([], (), False, 'off'),
              (['auto'], DIFFER, False,
               'not applied, nova.x: expected (a), it is missing'))
    @ddt.unpack
    def test_fix_with_an_option_has_a_state(self, chosen, differ, applied,
                                            text):
        self.assertEqual(table.FixState(applied, text),
                         table.get_fix_state(FIX, chosen, differ))


class FixedNovaTest(base.TestCase):
    """A Nova in which a bug is fixed does not get the repair of it."""

    def setUp(self):
        super().setUp()
        self.addCleanup(table.read_nova_source.cache_clear)

    def patch_nova(self, *patches):
        """Replace the source of Nova by one with some patches."""
        tree = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        for patch in patches:
            for name in re.findall(r'^--- a/(nova/(?!tests/).*)$',
                                   patch.read_text(), re.MULTILINE):
                if not (tree / name).exists():
                    (tree / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(NOVA.parent / name, tree / name)
            subprocess.run(
                ['git', 'apply', '--exclude=nova/tests/*', str(patch)],
                cwd=tree, check=True)
        self.enterContext(mock.patch.object(table, 'SOURCE', tree / 'nova'))
        table.read_nova_source.cache_clear()

    def test_bug_of_the_installed_nova_is_not_taken_for_fixed(self):
        for fix in rows.FIXES:
            if not fix.fixed_in:
                self.assertFalse(table.is_fixed_in_nova(fix), fix.name)

    def test_patch_is_that_of_a_fix_or_listed(self):
        self.assertEqual(
            sorted(path.name[:4] for path in PATCHES.glob('*.patch')),
            sorted(WITHOUT_FIX.union(*(
                {patch for patch, _, _ in fix.fixed_source}
                for fix in rows.FIXES))))

    def test_fix_ends_when_nova_has_all_of_its_patches(self):
        if not version.version_string().startswith('34.'):
            self.skipTest('the patches are for Nova 34')
        for fix in rows.FIXES:
            patches = [next(PATCHES.glob(f'{patch}-*'))
                       for patch, _, _ in fix.fixed_source]
            for number in range(len(patches)):
                with self.subTest(fix.name, patches=number):
                    self.patch_nova(*patches[:number])
                    self.assertEqual('applied', self.describe(fix))
            if patches:
                self.patch_nova(*patches)
                self.assertEqual(
                    'not needed, the installed Nova has the fix',
                    self.describe(fix))

    @staticmethod
    def describe(fix):
        return table.get_fix_state(fix, ['auto', fix.name], ()).text


@ddt.ddt
class PlainServerTest(base.TestCase):
    """A server without a key of ghsched is Nova's alone."""

    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.object(
            live_migrations, 'list_live_migrations_in_progress',
            return_value=[mock.Mock()]))
        self.enterContext(mock.patch.object(
            evacuated_live_migration, 'is_being_scheduled',
            return_value=True))
        self.taken = self.enterContext(mock.patch.object(
            live_migrations, 'roll_back_live_migration'))

    def evacuate(self, **extra_specs):
        shared.config()
        server = SimpleNamespace(
            uuid='1', flavor=SimpleNamespace(extra_specs=extra_specs))
        try:
            evacuated_live_migration.refuse_early_evacuation(None, server)
        except exception.InstanceInvalidState:
            refused = True
        else:
            refused = False
        evacuated_live_migration.cancel_live_migrations(None, server)
        return refused, self.taken.called

    def test_evacuation_of_a_plain_server_is_left_to_nova(self):
        self.assertEqual((False, False), self.evacuate())
        self.assertEqual((True, True),
                         self.evacuate(**{'ghsched:mem_bw_min': '1'}))

    def test_request_of_a_plain_server_is_not_read(self):
        read = self.enterContext(mock.patch.object(
            objects.RequestSpec, 'get_by_instance_uuid',
            side_effect=exception.RequestSpecNotFound(instance_uuid='1')))
        for specs in ({}, {'ghsched:mem_bw_min': '1'}):
            self.assertFalse(read.called)
            rolled_back_resize.reset_flavor_of_request_spec(
                None,
                SimpleNamespace(uuid='1', task_state=None,
                                flavor=SimpleNamespace(extra_specs=specs)))
        read.assert_called_once_with(None, '1')

    @ddt.data(({'one'}, True, True), ({'one'}, False, False),
              (set(), True, False))
    @ddt.unpack
    def test_repair_of_the_driver_acts_where_it_is_applied(
            self, applied, ours, acts):
        with (mock.patch.object(table, 'APPLIED', applied),
              mock.patch.object(servers, 'has_ghsched_flavor',
                                return_value=ours)):
            self.assertIs(acts, table.is_fix_applied_to('one', None))

    @ddt.data((cut_off_live_migration, '_reset_live_migration'),
              (evacuated_live_migration, 'live_migration'),
              (failed_live_migration, '_revert_allocation'),
              (failed_post_live_migration,
               '_post_live_migration_update_host'))
    @ddt.unpack
    def test_method_of_the_manager_is_changed_for_our_servers_alone(
            self, fix, name):
        name = f'nova.compute.manager.ComputeManager.{name}'
        replaced = self.enterContext(
            mock.patch.object(registry, 'replace_function'))
        patches.apply_patches(fix.__name__, registry.COMPUTE)
        self.assertEqual(name, replaced.call_args.args[0])
        changed = replaced.call_args.args[1]
        arguments = [mock.sentinel.instance if one == 'instance' else None
                     for one in registry.SEAMS[name].parameters]
        with mock.patch.object(servers, 'has_ghsched_flavor',
                               return_value=False) as asked:
            self.assertEqual('Nova', changed(lambda *_args: 'Nova',
                                             *arguments))
        asked.assert_called_once_with(mock.sentinel.instance)


@ddt.ddt
class FixesTest(base.TestCase):

    def choose(self, *names):
        shared.config()
        conf.CONF.set_override('nova_fixes', list(names), 'ghsched')
        self.addCleanup(conf.CONF.clear_override, 'nova_fixes', 'ghsched')

    @ddt.data(*rows.FIXES)
    def test_fix_is_described_and_known(self, fix):
        self.assertTrue((TOP / 'doc/source/contributor/upstream'
                         / f'{fix.name}.rst').exists())
        registry.load_all_seams()
        for process in fix.processes:
            self.assertNotEqual(set(), fix.list_nova_functions(process))
        self.assertIn(fix.servers, ('ours', 'none'))

    @ddt.data(*rows.FIXES)
    def test_fix_that_is_not_chosen_is_not_applied(self, fix):
        self.choose('none')
        self.assertFalse(table.is_fix_applied(fix.name, fix.processes[0]))
        self.choose(fix.name)
        self.assertTrue(table.is_fix_applied(fix.name, fix.processes[0]))

    @ddt.data(*((fix, process) for fix in rows.FIXES
                for process in fix.processes))
    @ddt.unpack
    def test_fix_with_any_name_that_nova_renames_is_off_with_a_warning(
            self, fix, process):
        self.choose('auto')
        log = self.useFixture(fixtures.FakeLogger())
        for name in fix.list_nova_functions(process):
            if registry.SEAMS[name].may_be_missing:
                continue
            with mock.patch.object(
                    signatures, 'get_installed_parameters',
                    lambda one, name=name: None if one == name
                    else registry.SEAMS[one].parameters or ()):
                self.assertFalse(table.is_fix_applied(fix.name, process))
            self.assertIn(name, log.output)

    def test_unknown_fix_refuses_the_start(self):
        self.choose('auto', 'colour')
        error = self.assertRaises(registry.IncompatibleNova,
                                  table.require_known_fixes)
        self.assertIn('colour; known: cut-off', str(error))

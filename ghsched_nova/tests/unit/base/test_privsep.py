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

"""Attacks on the arguments of every entry point of every privileged helper.

The entry points are found by oslo.privsep's own mark. Those that are new need
a sample here: arguments that are allowed. Each value in a sample is then
replaced by hostile ones; none may reach the function.
"""

import ast
import importlib
import os
from pathlib import Path
import re
import shutil
import sys
import tempfile
import threading
from typing import Annotated
from unittest import mock

import ddt
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslo_config import cfg
from oslo_privsep import comm
from oslo_privsep import priv_context

import ghsched_nova
from ghsched_nova.base import bounds
from ghsched_nova.base import kernel_files
from ghsched_nova.base import privsep
from ghsched_nova import conf
from ghsched_nova.features.blame import counters
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import naming
from ghsched_nova.tests.fixtures import fake_qemu
from ghsched_nova.tests.fixtures import trees
from ghsched_placement.tests import base

TOP = Path(ghsched_nova.__file__).parent
UUID = '3f0c6a51-16d5-4d5e-8a0c-1f5b2b0d7c11'
VF = 'vfio-msix[0](0000:18:00.2)'

#: No argument of a privileged call has one of these anywhere.
HOSTILE = (
    1.5, float('inf'), b'/etc/shadow', -1, -2 ** 63, 2 ** 63, 2 ** 64 - 1,
    '/etc/shadow', '../../etc/shadow', 'a/../../b', 'a\0b', 'x' * 5000,
    {'a': '/etc/shadow'}, [None], ['/etc/shadow'], [-1], [2 ** 63],
    [[[['/etc/shadow']]]], None)


def contexts():
    return [one for one in vars(privsep).values()
            if isinstance(one, priv_context.PrivContext)]


def entry_points():
    """All functions that a helper would call, by their dotted name."""
    found = {}
    for path in sorted(TOP.rglob('*.py')):
        relative = path.relative_to(TOP.parent)
        if 'tests' in relative.parts or 'privsep' not in path.read_text():
            continue
        module = importlib.import_module('.'.join(
            relative.with_suffix('').parts))
        for name, value in vars(module).items():
            if any(context.is_entrypoint(value) for context in contexts()):
                found[f'{module.__name__}.{name}'] = value
    return found


ENTRY_POINTS = entry_points()


def checked(entry_point):
    """Return the argument check of an entry point; None without one."""
    while entry_point is not None:
        if isinstance(entry_point, bounds.Checked):
            return entry_point
        entry_point = getattr(entry_point, '__wrapped__', None)
    return None


def replaced(value, hostile):
    """Yield a sample once for each value in it, with a hostile one there."""
    yield hostile
    yield from inside(value, lambda inner: replaced(inner, hostile))
    if isinstance(value, dict) and not isinstance(hostile, list | dict):
        yield from ({hostile: inner} for inner in value.values())


def inside(value, change):
    """Yield a sample with one of the values in it changed, in all ways."""
    if isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            for changed in change(inner):
                yield [*value[:place], changed, *value[place + 1:]]
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from ({key: changed} for changed in change(inner))


def of_other_types(value):
    """Yield a sample with one value of another type that reads alike."""
    if isinstance(value, bool):
        yield from (int(value), str(value), None)
    elif isinstance(value, int):
        yield from (bool(value), str(value), float(value))
    elif isinstance(value, str):
        yield from (value.encode(), [value], list(value), 0)
    else:
        yield from inside(value, of_other_types)


def with_other(value, mine, other):
    """Yield a sample with another number in place of one of some."""
    if type(value) is int and value in mine and value != other:
        yield other
    yield from inside(value, lambda inner: with_other(inner, mine, other))


def leaves(value):
    if isinstance(value, list | tuple):
        return [leaf for inner in value for leaf in leaves(inner)]
    if isinstance(value, dict):
        return [leaf for pair in value.items() for leaf in leaves(pair)]
    return [value]


#: Packages whose functions run as root for their caller.
ROOT = re.compile(r'\b(?:oslo_privsep|nova\.privsep|run_as_root|rootwrap)\b')
#: They give contexts their names and start no helper.
ROOT_IN = {'base/privsep.py', 'conf/__init__.py'}


def decorated(tree):
    """Yield the functions that are made entry points, and at which depth.

    :returns: name, and whether it is a function of a module.
    """
    top = set(tree.body)
    for one in ast.walk(tree):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in one.decorator_list:
                if 'entrypoint' in ast.unparse(decorator):
                    yield one.name, one in top


def uses(tree):
    """Return the number of times that a source names entrypoint."""
    return sum(isinstance(one, ast.Attribute | ast.Name)
               and getattr(one, 'attr', getattr(one, 'id', '')).startswith(
                   'entrypoint')
               or isinstance(one, ast.alias) and 'entrypoint' in one.name
               for one in ast.walk(tree))


class SourceTest(base.TestCase):
    """No way to root but by entry points that the attacks find."""

    def sources(self):
        for path in sorted(TOP.rglob('*.py')):
            relative = path.relative_to(TOP)
            if 'tests' not in relative.parts:
                yield relative, path.read_text()

    def test_entry_points_of_the_source_are_all_attacked(self):
        found = []
        for relative, text in self.sources():
            if str(relative) == 'base/privsep.py' or 'entrypoint' not in text:
                continue
            tree = ast.parse(text)
            names = dict(decorated(tree))
            self.assertEqual([True] * len(names), [*names.values()],
                             f'{relative}: an entry point in a function')
            self.assertEqual(len(names), uses(tree),
                             f'{relative}: an entry point by another way')
            module = '.'.join(relative.with_suffix('').parts)
            found += [f'ghsched_nova.{module}.{name}' for name in names]
        self.assertEqual(sorted(ENTRY_POINTS), sorted(found))

    def test_other_ways_to_root_are_not_used(self):
        self.assertEqual(ROOT_IN, {
            str(relative) for relative, text in self.sources()
            if any(ROOT.search(ast.unparse(one))
                   for one in ast.walk(ast.parse(text))
                   if isinstance(one, ast.Import | ast.ImportFrom | ast.Call))
        })


class EntryPointTestCase(base.TestCase):
    """A guest that runs, another process, and a configuration."""

    def setUp(self):
        super().setUp()
        self.run_path = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.qemu = self.useFixture(fake_qemu.Qemu(
            self.run_path, 'web', 'CPU 0/KVM', 'worker'))
        self.foreign = self.useFixture(fake_qemu.Qemu(
            self.run_path, 'other', 'CPU 0/KVM'))
        for context in contexts():
            self.enterContext(mock.patch.object(
                context, 'client_mode', new=False))
        conf.register_opts(cfg.CONF)
        for name, value in (
                ('resctrl_path', str(self.run_path)),
                ('libvirt_run_path', str(self.run_path)),
                ('resctrl_magic',
                 str(kernel_files.get_file_system_type(str(self.run_path))))):
            cfg.CONF.set_override(name, value, 'ghsched')
            self.addCleanup(cfg.CONF.clear_override, name, 'ghsched')
        self.samples = self._samples()

    def _samples(self):
        pid = self.qemu.process.pid
        thread = ('web', 'vcpu', 0, *self.qemu.find_thread('CPU 0/KVM'))
        domain = (UUID, 3, 'web')
        values = [('MB', [(0, 60)])]
        guest = (domain, [0, 1], 2, values, 'libvirt', [7],
                 'ghsched-shared-0123456789abcdef', True, [(0, 4)], 'latency',
                 [1])
        wanted = ([guest], [domain], ['qemu-3-web-vcpus_0-1'], [('MB', 100)],
                  True, True, 16, 4, [('MB', 4)], values, True,
                  [('MB_MIN', 1)],
                  (['L3'], 0xfff, 0xf, 1, [(0, [0, 1])], [(1, 0xc)]))
        path = str(self.run_path)
        return {
            'ghsched_nova.features.rebalance.privileged._connections': (
                ['10.0.0.6', 'fd00::5'],),
            'ghsched_nova.features.interrupts.privileged.'
            '_steer': (40, VF, [4, 6]),
            'ghsched_nova.resctrl.privileged._measure': (
                path, ['MB', 'MBMIN'], 0),
            'ghsched_nova.resctrl.privileged._reconcile': (
                path, path, wanted),
            'ghsched_nova.resctrl.privileged._remove_own': (path, UUID),
            'ghsched_nova.features.blame.counters._count': (
                ('web', pid), [('web', pid)], True, 1),
            'ghsched_nova.features.real_time.privileged._pin': (thread, [0]),
            'ghsched_nova.features.real_time.privileged._set': (
                thread, ('batch', 0, 0, 0, 0)),
            'ghsched_nova.features.real_time.privileged._try': (),
            'ghsched_nova.features.real_time.privileged.'
            '_try_deadline': ([[0]],),
            'ghsched_nova.features.live_change.privileged._allow': (
                ('web', pid), [0]),
            'ghsched_nova.features.live_change.privileged.'
            '_areas': (('web', pid),),
            'ghsched_nova.features.live_change.privileged._move': (
                ('web', pid), (1 << 21, 1 << 22, 4096), 0),
        }

    def refused(self, name, args):
        """Call an entry point whose function would only be noted."""
        one = checked(ENTRY_POINTS[name])
        with mock.patch.object(one, 'function') as function:
            try:
                ENTRY_POINTS[name](*args)
            except (bounds.OutOfBounds, fs.GroupError) as error:
                function.assert_not_called()
                return str(error)
            return ''

    def assert_refused(self, name, change):
        """Refuse a sample with one of its arguments changed, in all ways."""
        sample = self.samples[name]
        for place, value in enumerate(sample):
            for changed in change(value):
                args = [*sample[:place], changed, *sample[place + 1:]]
                self.assertNotEqual('', self.refused(name, args),
                                    f'{name}{args!r:.2000}')


@ddt.ddt
class EntryPointsTest(EntryPointTestCase):

    def test_entry_points_all_have_bounds_and_a_sample(self):
        self.assertEqual(sorted(self.samples), sorted(ENTRY_POINTS))
        self.assertEqual([], [name for name, one in ENTRY_POINTS.items()
                              if checked(one) is None])

    @ddt.data(*ENTRY_POINTS)
    def test_entry_point_with_its_sample_is_called(self, name):
        self.assertEqual('', self.refused(name, self.samples[name]))

    @ddt.data(*ENTRY_POINTS)
    def test_entry_point_with_a_hostile_value_is_refused(self, name):
        for hostile in HOSTILE:
            self.assert_refused(name, lambda value, hostile=hostile: (
                changed for changed in replaced(value, hostile)
                # None stands for a host without caches.
                if not (hostile is None and isinstance(value, tuple)
                        and changed == [*value[:-1], None])))

    @ddt.data(*ENTRY_POINTS)
    def test_entry_point_with_values_of_other_types_is_refused(self, name):
        self.assert_refused(name, of_other_types)

    @ddt.data(*ENTRY_POINTS)
    def test_entry_point_with_another_number_of_arguments_is_refused(
            self, name):
        sample = self.samples[name]
        self.assertNotEqual('', self.refused(name, [*sample, 0]))
        if sample:
            self.assertNotEqual('', self.refused(name, sample[:-1]))
        self.assertRaises(TypeError, ENTRY_POINTS[name], *sample, more=0)

    @ddt.data(*ENTRY_POINTS)
    def test_entry_point_with_a_foreign_process_is_refused(self, name):
        mine = {int(path.name) for path in Path(
            f'/proc/{self.qemu.process.pid}/task').iterdir()}
        for other in (1, os.getpid(), threading.get_native_id(), 2 ** 22,
                      self.foreign.process.pid, *mine):
            self.assert_refused(name, lambda value, other=other: with_other(
                value, mine, other))

    def test_counters_of_too_many_guests_or_seconds_are_refused(self):
        name = 'ghsched_nova.features.blame.counters._count'
        process, _others, brief, _one = self.samples[name]
        most = counters.MOST_OTHERS
        self.assertEqual('', self.refused(
            name, (process, most * [process], brief, counters.LONGEST_MS)))
        for others, milliseconds in (
                ((most + 1) * [process], 1), ([], counters.LONGEST_MS + 1),
                ([], 0)):
            self.assertNotEqual('', self.refused(
                name, (process, others, brief, milliseconds)))

    def test_trials_on_too_many_sets_of_cpus_are_refused(self):
        name = 'ghsched_nova.features.real_time.privileged._try_deadline'
        self.assertEqual('', self.refused(name, (2048 * [[0]],)))
        self.assertIn('more than 2048', self.refused(name, (2049 * [[0]],)))

    @ddt.data(*ENTRY_POINTS)
    def test_entry_point_with_too_many_values_is_refused(self, name):
        with mock.patch.object(bounds, 'MAX_VALUES', 1):
            if len(leaves(self.samples[name])) > 1:
                self.assertNotEqual('', self.refused(name,
                                                     self.samples[name]))

    @ddt.data(*ENTRY_POINTS)
    def test_entry_point_is_called_with_a_timeout(self, name):
        entry_point = ENTRY_POINTS[name]
        context, = (one for one in contexts()
                    if one.is_entrypoint(entry_point))
        channel = mock.Mock(running=True)
        channel.remote_call.side_effect = comm.PrivsepTimeout
        with (mock.patch.object(context, 'client_mode', new=True),
              mock.patch.object(context, 'channel', channel)):
            error = self.assertRaises(privsep.HelperTimeout, entry_point)
        timeout = channel.remote_call.call_args.args[3]
        self.assertTrue(0 < timeout <= 600, timeout)
        self.assertIn(f'within {timeout:g} seconds', str(error))


class AuditTest(EntryPointTestCase):
    """Entry points do their work, and every file that they open is noted."""

    noted = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()

        def note(event, args):
            if event == 'open' and cls.noted is not None:
                cls.noted.append(args)

        sys.addaudithook(note)

    def test_entry_points_make_no_file_and_write_through_no_link(self):
        for name, sample in self.samples.items():
            AuditTest.noted = []
            try:
                ENTRY_POINTS[name](*sample)
            except (fs.GroupError, OSError):
                # There is no resctrl, no such interrupt, no page.
                pass
            finally:
                noted, AuditTest.noted = AuditTest.noted, None
            for path, _mode, flags in noted:
                self.assertEqual(0, flags & (os.O_CREAT | os.O_TRUNC),
                                 f'{name} opens {path}')
                if flags & (os.O_WRONLY | os.O_RDWR):
                    self.assertTrue(flags & os.O_NOFOLLOW,
                                    f'{name} opens {path}')


class LinksTest(EntryPointTestCase):
    """A resctrl whose files are links to files of root."""

    def setUp(self):
        super().setUp()
        host = trees.Host('intel')
        self.addCleanup(host.remove)
        self.own = naming.render_own_group_name(UUID)
        for name in (self.own, 'qemu-3-web-vcpus_0-1'):
            host.group(name)
        host.sync()
        self.root, self.secrets = host.root, host.top / 'secrets'
        self.secrets.mkdir()
        self.before = {}
        for number, path in enumerate(sorted(host.root.rglob('*'))):
            if path.is_file():
                secret = self.secrets / str(number)
                path.rename(secret)
                path.symlink_to(secret)
                self.before[secret] = secret.read_text()
        cfg.CONF.set_override('resctrl_path', str(host.root), 'ghsched')

    def call(self, name, *args):
        """Return what an entry point answers, or how it refuses."""
        try:
            return str(ENTRY_POINTS[f'ghsched_nova.resctrl.privileged.{name}'](
                str(self.root), *args))
        except (fs.GroupError, OSError) as error:
            return str(error)
        finally:
            self.assertEqual(self.before, {
                path: path.read_text() for path in self.secrets.iterdir()})

    def test_entry_points_of_resctrl_write_to_no_link(self):
        domain = (UUID, 3, 'web')
        guest = (domain, [0, 1], 2, [('MB', [(0, 60), (1, 60)])], 'libvirt',
                 [], '', True, [], '', [0, 1])
        self.assertIn('ELOOP', self.call(
            '_reconcile', str(self.run_path),
            ([guest], [domain], [self.own], [], True, False, 0, 0, [], [],
             False, [], None)))
        self.assertIn('cannot be measured', self.call('_measure', ['MB'], 0))

    def test_entry_points_of_resctrl_remove_no_link(self):
        elsewhere = self.root.parent / 'elsewhere'
        elsewhere.mkdir()
        shutil.rmtree(self.root / self.own)
        (self.root / self.own).symlink_to(elsewhere)
        self.assertEqual('False', self.call('_remove_own', UUID))
        self.assertTrue(elsewhere.is_dir())
        self.assertTrue((self.root / self.own).is_symlink())


class BoundsTest(base.TestCase):

    def test_checked_function_without_bounds_raises(self):
        def function(value):
            return value

        def many(*values: bool) -> None:
            del values

        for annotation in (int, str, object, float, bytes, dict, tuple[int],
                           list[tuple[int, bool]], tuple[bool, ...],
                           int | None, Annotated[int, bounds.Text('.')],
                           dict[str, bool]):
            function.__annotations__ = {'value': annotation}
            self.assertRaises(TypeError, bounds.Checked, function)
        function.__annotations__ = {}
        self.assertRaises(TypeError, bounds.Checked, function)
        self.assertRaises(TypeError, bounds.Checked, many)

    def test_entrypoint_with_a_timeout_out_of_bounds_raises(self):
        for timeout in (0.0, -1.0, 601.0, float('nan'), None, '1', 5):
            self.assertRaises(TypeError, privsep.entrypoint,
                              privsep.context, timeout)

    @settings(max_examples=200)
    @given(st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats()
        | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
    def test_checked_function_with_any_value_is_refused_or_in_bounds(
            self, value):
        def function(
                value: list[tuple[Annotated[int, bounds.Range(0, 9)],
                                  bool]]) -> object:
            return value

        try:
            found = bounds.Checked(function)(value)
        except bounds.OutOfBounds:
            return
        self.assertTrue(all(len(one) == 2 and type(one[0]) is int
                            and 0 <= one[0] <= 9 and one[1] in (True, False)
                            for one in found))


class KernelFilesTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.top / 'real').mkdir()
        (self.top / 'real/file').write_text('before')
        (self.top / 'link').symlink_to('real')
        (self.top / 'real/link').symlink_to('file')
        (self.top / 'real/pipe').parent.mkdir(exist_ok=True)
        os.mkfifo(self.top / 'real/pipe')
        self.types = {kernel_files.get_file_system_type(str(self.top))}

    def test_file_system_is_that_of_the_kernel(self):
        self.assertEqual(0x9fa0, kernel_files.get_file_system_type('/proc'))
        self.assertEqual(0, kernel_files.get_file_system_type('/nowhere'))

    def test_write_file_below_the_top_writes_it(self):
        kernel_files.write_kernel_file(
            self.top, ['real', 'file'], 'after!', self.types
        )
        self.assertEqual('after!', (self.top / 'real/file').read_text())

    def test_write_elsewhere_is_refused(self):
        for names in (['link', 'file'], ['real', 'link'], ['real', 'pipe'],
                      ['real', 'new'], ['..', 'real', 'file'], ['real', '..'],
                      ['real', ''], ['real/file'], ['/etc/passwd'], ['real']):
            self.assertRaises(OSError, kernel_files.write_kernel_file,
                              self.top, names, 'x', self.types)
        self.assertRaises(OSError, kernel_files.write_kernel_file, self.top,
                          ['real', 'file'], 'x', kernel_files.PROC)
        self.assertEqual('before', (self.top / 'real/file').read_text())
        self.assertEqual(['file', 'link', 'pipe'],
                         sorted(os.listdir(self.top / 'real')))

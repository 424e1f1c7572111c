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

"""The split of the project into packages of distributions.

The lists of files that the packages are built from are held against the tree.
"""

import ast
import fnmatch
import pathlib
import pkgutil
import re
import runpy
import subprocess
import tempfile
from unittest import mock

from oslo_config import cfg
import setuptools
import yaml

from ghsched_nova.cmd import configured
from ghsched_nova.tests.unit import test_imports
from ghsched_nova.tests.unit import test_packaging
from ghsched_placement.tests import base

TOP = pathlib.Path(__file__).parents[3]
DEBIAN = TOP / 'tools' / 'packaging' / 'debian'
SITE = 'usr/lib/python3*/dist-packages/'
LIBRARY = 'python3-ghsched'
LABORATORY = 'ghsched-lab'

split = runpy.run_path(str(DEBIAN.parent / 'split_metadata.py'))['split']


def read_lists():
    """Return patterns of installed paths by package."""
    found = {}
    for path in DEBIAN.glob('*.install'):
        lines = (line.split() for line in path.read_text().splitlines())
        found[path.stem] = [
            (f'{line[1]}/{pathlib.Path(line[0]).name}' if line[1:]
             else line[0]).removeprefix('debian/tmp/') for line in lines]
    return found


def owners(path, lists):
    """Return the packages with the longest pattern that covers a path."""
    lengths = {}
    for package, patterns in lists.items():
        for pattern in patterns:
            if (fnmatch.fnmatchcase(path, pattern)
                    or fnmatch.fnmatchcase(path, f'{pattern}/*')):
                lengths[package] = max(len(pattern), lengths.get(package, 0))
    return {one for one, length in lengths.items()
            if length == max(lengths.values())}


def read_modules():
    """Return files of the wheel's modules by dotted name."""
    find = test_packaging.read_setup()['options.packages.find']
    kept = set(setuptools.find_packages(
        str(TOP), include=find['include'].split(),
        exclude=find['exclude'].split()))
    found = {}
    for top in ('ghsched_nova', 'ghsched_placement', 'tempest_plugin'):
        for name, path in test_imports.modules(top):
            if '.'.join(path.relative_to(TOP).parts[:-1]) in kept:
                found[name] = path
    return found


def installed(path):
    """Return where a module of the tree is installed."""
    return (SITE.replace('*', '') + str(path.relative_to(TOP)))


def read_control():
    """Return names of the packages that each package depends on."""
    found = {}
    for block in (DEBIAN / 'control').read_text().split('\n\n')[1:]:
        fields = dict(re.findall(r'^([\w-]+):((?:.*)(?:\n .*)*)', block,
                                 re.MULTILINE))
        found[fields['Package'].strip()] = {
            re.split(r'[ :(]', one.strip())[0]
            for one in re.split('[,|]', fields['Depends']) if one.strip()}
    return found


def closure(name, depends):
    """Return a package and all that it depends on, as far as is known."""
    found, left = set(), [name]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += depends.get(one, ())
    return found


def entry_points():
    """Yield package, group, name and module of each entry point."""
    setup = test_packaging.read_setup()
    text = '\n'.join(
        f'[{group}]\n{lines}'.replace('\n\n', '\n')
        for group, lines in setup['entry_points'].items())
    for package, groups in split(text).items():
        for group, entries in groups.items():
            for name, value in entries.items():
                yield package, group, name, value.partition(':')[0]


class SplitTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.lists = read_lists()
        self.modules = read_modules()
        self.owner = {name: owners(installed(path), self.lists)
                      for name, path in self.modules.items()}

    def test_module_of_the_wheel_is_in_exactly_one_package(self):
        self.assertGreater(len(self.owner), 200)
        self.assertEqual({}, {name: found for name, found
                              in self.owner.items() if len(found) != 1})

    def test_pattern_of_a_list_names_what_there_is(self):
        names = {installed(path) for path in self.modules.values()}
        stale = [pattern for patterns in self.lists.values()
                 for pattern in patterns if pattern.startswith(SITE)
                 and not pattern.endswith('.dist-info')
                 and not any(owners(name, {'': [pattern]}) for name in names)]
        self.assertEqual([], stale)

    def test_file_of_the_packaging_tree_is_there(self):
        for path in DEBIAN.glob('*.install'):
            for line in path.read_text().splitlines():
                if line.startswith('tools/'):
                    self.assertTrue((TOP / line.split()[0]).exists(), line)

    def test_laboratory_is_in_its_own_package_only(self):
        for name, found in self.owner.items():
            self.assertEqual(
                test_imports.belongs(name, 'ghsched_nova.lab')
                or test_imports.belongs(name, 'tempest_plugin'),
                found == {LABORATORY}, name)

    def test_laboratory_is_needed_by_no_other_package(self):
        for name, path in self.modules.items():
            if self.owner[name] == {LIBRARY}:
                top = [ast.unparse(node) for node
                       in ast.parse(path.read_text()).body
                       if isinstance(node, ast.Import | ast.ImportFrom)]
                loaded = test_imports.imports(
                    '\n'.join(top), name, path.name == '__init__.py')
                self.assertEqual([], [
                    one for one in loaded
                    if self.owner.get(one) == {LABORATORY}], name)

    def test_console_script_is_in_exactly_one_package(self):
        scripts = [name for _, group, name, _ in entry_points()
                   if group == 'console_scripts']
        self.assertIn('ghsched-host', scripts)
        for name in scripts:
            self.assertEqual(1, len(owners(f'usr/bin/{name}', self.lists)),
                             name)

    def test_data_file_is_in_exactly_one_package_or_left_out(self):
        left_out = (DEBIAN / 'not-installed').read_text().split()
        text = test_packaging.read_setup()['files']['data_files']
        for line in filter(None, text.splitlines()):
            target = line.partition('=')[0].strip()
            path = target if target.startswith('etc') else f'usr/{target}'
            found = [package for package, patterns in self.lists.items()
                     for pattern in patterns
                     if pattern == path or pattern.startswith(f'{path}/')]
            self.assertEqual(0 if path in left_out else 1, len(found), path)


class DependenciesTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.depends = read_control()
        self.lists = read_lists()

    def test_packages_of_the_lists_are_those_of_the_control_file(self):
        self.assertEqual(set(self.depends),
                         {*self.lists, 'ghsched-doc'})

    def test_library_depends_on_each_requirement(self):
        wanted = test_imports.requirements(
            (TOP / 'requirements.txt').read_text())
        other = {'pyyaml': 'yaml'}
        found = {name.removeprefix('python3-').replace('.', '-')
                 for name in self.depends[LIBRARY]}
        self.assertEqual(set(), {other.get(one, one) for one in wanted}
                         - found)

    def test_client_exporter_and_library_need_no_nova(self):
        for name in ('ghsched-client', 'ghsched-exporter', LIBRARY):
            self.assertEqual(set(), {
                one for one in closure(name, self.depends)
                if 'nova' in one}, name)

    def test_laboratory_is_installed_on_no_node_of_a_cloud(self):
        for name in self.depends.keys() - {LABORATORY}:
            self.assertNotIn(LABORATORY, closure(name, self.depends))

    def test_entry_point_has_its_module_installed(self):
        modules = read_modules()
        for package, group, name, module in entry_points():
            if group == 'console_scripts':
                package, = owners(f'usr/bin/{name}', self.lists)
            elif package == 'ghsched':
                package = LIBRARY
            owner, = owners(installed(modules[module]), self.lists)
            self.assertIn(owner, closure(package, self.depends),
                          f'{group}: {name}')

    def test_client_commands_load_no_nova(self):
        modules = read_modules()
        left = [module for package, _, _, module in entry_points()
                if package == 'ghsched-client']
        self.assertGreater(len(left), 10)
        seen = set()
        while left:
            name = left.pop()
            if name not in seen and name in modules:
                seen.add(name)
                path = modules[name]
                loaded = test_imports.imports(
                    path.read_text(), name, path.name == '__init__.py')
                self.assertEqual([], [one for one in loaded
                                      if one.partition('.')[0] == 'nova'],
                                 name)
                left += [other for one in loaded
                         for other in (one, one.rpartition('.')[0])]


class RpmTest(base.TestCase):
    """The RPM packages are split as the Debian packages are."""

    MACROS = (('%{python3_sitelib}', SITE.rstrip('/')),
              ('%{_bindir}', 'usr/bin'), ('%{_datadir}', 'usr/share'))

    def setUp(self):
        super().setUp()
        self.spec = (DEBIAN.parent / 'rpm' / 'ghsched.spec').read_text()

    def lists(self):
        """Return patterns by package, as read_lists() does.

        A longer pattern of another package needs its %exclude, or rpm puts
        the file into both.
        """
        found, excluded = {}, {}
        for name, text in re.findall(
                r'^%files -n (\S+)\n((?:.+\n)+)', self.spec, re.MULTILINE):
            for macro, path in self.MACROS:
                text = text.replace(macro, path)
            found[name] = [line for line in text.splitlines()
                           if not line.startswith('%')]
            excluded[name] = re.findall(r'^%exclude (.*)', text, re.MULTILINE)
        return found, excluded

    def test_module_is_in_the_package_of_the_same_name(self):
        debian, (rpm, excluded) = read_lists(), self.lists()
        for name, path in read_modules().items():
            where = installed(path)
            self.assertEqual(owners(where, debian), owners(where, rpm), name)
            twice = [package for package, patterns in rpm.items()
                     if owners(where, {package: patterns})
                     and not owners(where, {package: excluded[package]})]
            self.assertEqual(1, len(twice), name)

    def test_program_and_data_are_in_the_package_of_the_same_name(self):
        rpm, _ = self.lists()
        for package, patterns in read_lists().items():
            self.assertEqual(
                {one for one in patterns if one.startswith(
                    ('usr/bin/', 'usr/share/', SITE))},
                {one for one in rpm[package] if one.startswith(
                    ('usr/bin/', 'usr/share/', SITE))
                 and 'rootwrap' not in one}, package)

    def test_library_requires_each_requirement(self):
        text = self.spec.partition('%package -n python3-ghsched')[2]
        found = {re.sub('[-_.]+', '-', name) for name in re.findall(
            r'^Requires: +python3-(\S+)', text.partition('%description')[0],
            re.MULTILINE)}
        self.assertEqual(set(), test_imports.requirements(
            (TOP / 'requirements.txt').read_text()) - found)


class DeploymentTest(base.TestCase):
    """Files for Kolla and OpenStack-Ansible say what the packages say."""

    FACTORY = 'ghsched_nova.api.server_filter:filter_factory'

    def read_options(self, path):
        """Return values of each option of a file in oslo.config's format."""
        found = {}
        for line in path.read_text().splitlines():
            name, equals, value = line.partition(' = ')
            # helper_command belongs to the sudoers file of the packages.
            if (equals and not line.startswith('#')
                    and name != 'helper_command'):
                found.setdefault(name, []).append(value)
        return found

    def setUp(self):
        super().setUp()
        self.top = DEBIAN.parent
        self.scheduler = self.read_options(
            self.top / 'files' / 'ghsched-scheduler.conf')
        self.variables = yaml.safe_load((
            self.top / 'openstack-ansible'
            / 'user_variables_ghsched.yml').read_text())

    def test_filters_of_the_scheduler_are_loadable_and_last(self):
        path = self.scheduler['available_filters'][-1]
        name = path.rpartition('.')[2]
        self.assertTrue(pkgutil.resolve_name(path))
        enabled = self.scheduler['enabled_filters'][0].split(',')
        self.assertEqual(name, enabled[-1])
        self.assertNotIn('NUMATopologyFilter', enabled)

    def test_kolla_files_have_the_options_of_the_packages(self):
        config = self.top / 'kolla' / 'config' / 'nova'
        self.assertEqual(self.scheduler, self.read_options(
            config / 'nova-scheduler.conf'))
        self.assertEqual(
            self.read_options(self.top / 'files' / 'ghsched-compute.conf'),
            self.read_options(config / 'nova-compute.conf'))

    def test_openstack_ansible_has_the_options_of_the_packages(self):
        overrides = self.variables['nova_nova_conf_overrides']
        self.assertEqual(self.scheduler['available_filters'],
                         overrides['filter_scheduler']['available_filters'])
        self.assertEqual(
            self.read_options(self.top / 'files' / 'ghsched-compute.conf'),
            {'compute_driver': [overrides['DEFAULT']['compute_driver']]})
        self.assertEqual(
            self.scheduler['enabled_filters'][0].split(',')[-1:],
            self.variables['nova_scheduler_extra_filters'])

    def test_each_pipeline_ends_with_filter_and_application(self):
        paste = self.variables['nova_api_paste_ini_overrides']
        self.assertEqual(
            ['ghsched', 'osapi_compute_app_v21'],
            paste['composite:openstack_compute_api_v21'][
                'keystone'].split()[-2:])
        self.assertTrue(pkgutil.resolve_name(self.FACTORY))
        self.assertEqual(self.FACTORY,
                         paste['filter:ghsched']['paste.filter_factory'])
        for name in ('kolla/template-overrides.j2', 'files/ghsched-api-paste'):
            self.assertIn(self.FACTORY, (self.top / name).read_text())

    def test_program_that_a_unit_starts_is_one_of_ours(self):
        scripts = {name for _, group, name, _ in entry_points()
                   if group == 'console_scripts'}
        for path in [*self.top.glob('files/*.d/*.conf'),
                     *self.top.glob('openstack-ansible/*.yml'),
                     *self.top.glob('kolla/*.j2')]:
            for name in re.findall(r'[/ ](ghsched-nova-[a-z]+)',
                                   path.read_text()):
                self.assertIn(name, scripts, path.name)


class DefaultFilesTest(base.TestCase):
    """Commands read the files that the units of the packages name."""

    def setUp(self):
        super().setUp()
        self.directory = pathlib.Path(
            self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(
            cfg, 'find_config_files', return_value=['nova', 'nova-compute']))

    def names(self):
        return [pathlib.Path(one).name
                for one in configured.list_nova_conf_files(self.directory)]

    def test_node_without_packages_has_the_files_of_nova(self):
        self.assertEqual(['nova', 'nova-compute'], self.names())

    def test_node_with_packages_has_the_order_of_the_units(self):
        orders = {}
        for service in ('scheduler', 'compute'):
            text = (DEBIAN.parent / 'files' / f'nova-{service}.service.d'
                    / 'ghsched.conf').read_text()
            names = [pathlib.Path(one).name for one in re.findall(
                r'--config-file=(\S+)', text)]
            orders[service] = ['nova' if one == 'nova.conf' else
                               one.removesuffix('.conf') if one
                               == 'nova-compute.conf' else one
                               for one in names]
            (self.directory / f'ghsched-{service}.conf').touch()
        found = self.names()
        for service, order in orders.items():
            self.assertEqual(order, [one for one in found if one in order],
                             service)
        self.assertEqual(4, len(found))


class ApiPasteTest(base.TestCase):
    """The program that puts the filter into a copy of api-paste.ini."""

    PROGRAM = DEBIAN.parent / 'files' / 'ghsched-api-paste'

    def run_program(self, text):
        directory = pathlib.Path(
            self.enterContext(tempfile.TemporaryDirectory()))
        (directory / 'in').write_text(text)
        done = subprocess.run(
            ['sh', self.PROGRAM, directory / 'in', directory / 'out'],
            capture_output=True, text=True, check=False)
        return done.returncode, (directory / 'out').read_text()

    def test_pipelines_get_the_filter_once(self):
        text = ('[composite:a]\nkeystone = cors osapi_compute_app_v21\n'
                'noauth2 = x osapi_compute_app_v21\n'
                '[app:osapi_compute_app_v21]\n')
        status, once = self.run_program(text)
        self.assertEqual(0, status)
        self.assertEqual(2, once.count(' ghsched osapi_compute_app_v21\n'))
        self.assertEqual(1, once.count('[filter:ghsched]'))
        self.assertEqual((0, once), self.run_program(once))

    def test_unknown_pipeline_is_refused(self):
        status, _ = self.run_program('[composite:a]\nkeystone = cors other\n')
        self.assertEqual(1, status)


class NamesOfEntryPointsTest(base.TestCase):

    def test_split_gives_each_entry_point_to_one_package(self):
        names = [(group, name) for _, group, name, _ in entry_points()]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(
            {'ghsched', 'ghsched-api', 'ghsched-client', 'ghsched-lab'},
            {package for package, *_ in entry_points()})

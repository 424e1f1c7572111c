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

"""Shipped files: wheels, entry points, and names that must not be in the tree.
"""

import configparser
import pathlib
import re
import shutil
import subprocess
import tempfile
import tomllib

import setuptools

from ghsched_placement.tests import base

TOP = pathlib.Path(__file__).parents[3]


#: Packages at the top of the tree that are installed.
PACKAGES = ('ghsched_nova', 'ghsched_placement', 'tempest_plugin')


def read_setup():
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(TOP / 'setup.cfg')
    return parser


class UnitsTest(base.TestCase):
    """Units of systemd."""

    #: Tenths, as --threshold= counts; 100 is a service without any limit.
    MOST_EXPOSED = 20

    def exposure(self, *paths):
        """Return systemd's judgement of units, which need not be running."""
        if shutil.which('systemd-analyze') is None:
            self.skipTest('systemd-analyze is not installed')
        done = subprocess.run(
            ['systemd-analyze', 'security', '--offline=true', '--no-pager',
             f'--threshold={self.MOST_EXPOSED}', *paths],
            capture_output=True, text=True, check=False,
            timeout=base.GIVE_UP_S)
        if 'unrecognized option' in done.stderr:
            self.skipTest('systemd-analyze is older than systemd 250')
        return done

    def test_services_are_exposed_to_2_of_10_at_most(self):
        units = sorted((TOP / 'etc/ghsched/systemd').glob('*.service'))
        self.assertNotEqual([], units)
        done = self.exposure(*units)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertEqual(len(units), done.stdout.count(
            'Overall exposure level for ghsched-'), done.stdout)

    def test_service_is_in_no_group_with_rights_of_others(self):
        """The groups libvirt and nova are root, or read passwords."""
        units = [*(TOP / 'etc/ghsched/systemd').glob('*.service'),
                 *(TOP / 'tools/packaging/files').glob('ghsched-*.d/*.conf')]
        self.assertGreater(len(units), 1)
        groups = []
        for unit in units:
            for line in unit.read_text().splitlines():
                name, _, value = line.partition('=')
                if name in ('Group', 'SupplementaryGroups', 'User'):
                    groups += value.split()
        self.assertEqual(['ghsched-resctrl'], groups)

    def test_group_of_units_is_made_and_has_the_directory(self):
        files = TOP / 'tools/packaging/files'
        for path, line in (
                ('sysusers.d/ghsched.conf', 'g ghsched-resctrl -'),
                ('tmpfiles.d/ghsched.conf',
                 'z /sys/fs/resctrl 0750 root ghsched-resctrl'),
                ('nova-compute.service.d/ghsched.conf',
                 'SupplementaryGroups=ghsched-resctrl')):
            self.assertIn(line, (files / path).read_text().splitlines())

    def test_service_without_limits_is_too_exposed(self):
        path = pathlib.Path(self.enterContext(
            tempfile.TemporaryDirectory())) / 'ghsched-bare.service'
        path.write_text('[Service]\nExecStart=/bin/true\n')
        self.assertNotEqual(0, self.exposure(path).returncode)


class WheelTest(base.TestCase):
    """Contents of wheels; tools/check-install.sh builds them."""

    def test_file_of_a_package_that_is_not_python_is_package_data(self):
        """A wheel that is not built of a git repository has no others."""
        declared = {
            path for package, patterns in
            read_setup()['options.package_data'].items()
            for pattern in patterns.split()
            for path in (TOP / package.replace('.', '/')).glob(pattern)}
        present = {
            path for package in PACKAGES
            for path in (TOP / package).rglob('*')
            if path.is_file() and path.suffix not in ('.py', '.pyc')
            and 'tests' not in path.relative_to(TOP).parts}
        self.assertNotEqual(set(), present)
        self.assertEqual(present, declared)

    def test_build_backend_is_that_of_pbr_without_code_of_this_tree(self):
        system = tomllib.loads(
            (TOP / 'pyproject.toml').read_text())['build-system']
        self.assertEqual({'requires', 'build-backend'}, set(system))
        self.assertEqual('pbr.build', system['build-backend'])

    def test_site_directory_gets_packages_and_no_other_file(self):
        setup = read_setup()
        self.assertEqual({'data_files'}, set(setup['files']))
        self.assertFalse(setup.has_option('options', 'py_modules'))
        targets = {line.partition('=')[0].strip()
                   for line in setup['files']['data_files'].split('\n')}
        self.assertEqual([], [target for target in targets - {''}
                              if not target.startswith(('etc/nova/',
                                                        'share/ghsched/'))])

    def test_packages_have_no_tests_but_those_of_tempest(self):
        find = read_setup()['options.packages.find']
        found = setuptools.find_packages(
            str(TOP), include=find['include'].split(),
            exclude=find['exclude'].split())
        self.assertIn('ghsched_nova.virt', found)
        self.assertEqual(
            {'tempest_plugin.tests', 'tempest_plugin.tests.api',
             'tempest_plugin.tests.scenario'},
            {name for name in found if '.tests' in name})


class NovaIsNoRequirementTest(base.TestCase):
    """A package takes the Nova that is there, or none."""

    @staticmethod
    def _bounds(name):
        """Lines of a file of requirements, by lower-case name."""
        return {re.split('[<>=!~;# ]', line)[0].lower(): line
                for line in (TOP / name).read_text().splitlines()
                if line and not line.startswith('#')}

    def test_package_requires_neither_nova_nor_what_comes_with_it(self):
        needed = self._bounds('requirements.txt')
        self.assertIn('oslo.config', needed)
        self.assertFalse({'nova', 'oslo.messaging', 'eventlet'} & set(needed))

    def test_extra_and_tests_have_the_same_bound(self):
        self.assertIn(self._bounds('test-requirements.txt')['nova'],
                      read_setup()['extras']['nova'].splitlines())


class EntryPointsTest(base.TestCase):

    def test_every_entry_point_names_a_module_of_the_tree(self):
        parser = configparser.ConfigParser()
        parser.read(TOP / 'setup.cfg')
        missing = []
        for group, text in parser['entry_points'].items():
            for line in filter(None, text.splitlines()):
                module = line.partition('=')[2].partition(':')[0].strip()
                path = TOP / module.replace('.', '/')
                if not (path.with_suffix('.py').exists()
                        or (path / '__init__.py').exists()):
                    missing.append(f'{group}: {line.strip()}')
        self.assertEqual([], missing)


class DropInTest(base.TestCase):
    """The drop-in by which nova-compute's unit starts our program."""

    PATH = (TOP / 'etc' / 'ghsched' / 'systemd' / 'nova-compute.service.d'
            / 'ghsched.conf')

    def test_command_of_the_unit_is_replaced_by_our_program(self):
        lines = [line for line in self.PATH.read_text().splitlines()
                 if not line.startswith('#')]
        self.assertEqual(['[Service]', 'ExecStart='], lines[:2])
        program, *arguments = lines[2].removeprefix('ExecStart=').split()
        self.assertIn(
            f'{pathlib.Path(program).name} = ghsched_nova.cmd.compute:main',
            read_setup()['entry_points']['console_scripts'].splitlines())
        self.assertEqual(['--config-file', '--config-file', '--log-file'],
                         [one.partition('=')[0] for one in arguments])
        self.assertEqual(3, len(lines))


class RequirementsTest(base.TestCase):

    def test_a_controller_needs_no_libvirt(self):
        self.assertNotIn('libvirt-python',
                         (TOP / 'requirements.txt').read_text())

    def test_compute_hosts_get_libvirt_by_an_extra(self):
        self.assertIn('libvirt-python', read_setup()['extras']['libvirt'])


class TreeTest(base.TestCase):

    def _tracked(self):
        try:
            done = subprocess.run(
                ['git', 'ls-files', '-z'], cwd=TOP, capture_output=True,
                check=True)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest('not a git work tree')
        return [TOP / name for name in done.stdout.decode().split('\0')
                if name]

    def test_no_file_names_a_place_on_one_machine(self):
        # A directory of a variable, as in "$tree"/home/, is none of them.
        # Written in pieces, or this file would be found too.
        taboo = re.compile(
            rb'(?<![\w"}])/(?:(?:work|home)' rb'/|root' rb'/[.])\w')
        found = [f'{path.relative_to(TOP)}: {match[0].decode()}'
                 for path in self._tracked() if path.is_file()
                 for match in taboo.finditer(path.read_bytes())]
        self.assertEqual([], found)

    def test_every_source_file_has_the_licence(self):
        bare = [str(path.relative_to(TOP)) for path in self._tracked()
                if path.suffix in ('.py', '.c') and path.is_file()
                and path.read_text()
                and not _is_licensed(path.suffix, path.read_text())]
        self.assertEqual([], bare)


def _is_licensed(suffix, text):
    """Whether a source file names its licence.

    Code that is compiled into Linux may be used under Linux' licence, too,
    and says so as Linux' own files do.
    """
    first = text.partition('\n')[0]
    return 'Licensed under the Apache License' in text or (
        suffix == '.c'
        and 'SPDX-License-Identifier: Apache-2.0 OR GPL-2.0' in first)

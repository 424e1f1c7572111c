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

"""What is shipped: wheels, entry points, and what must not be in the tree."""

import base64
import configparser
import hashlib
import importlib.util
import itertools
import os
import pathlib
import re
import subprocess
import zipfile

import fixtures
import yaml

from ghsched_placement.tests import base

TOP = pathlib.Path(__file__).parents[3]


def load_backend():
    spec = importlib.util.spec_from_file_location(
        'ghsched_build', TOP / 'tools' / 'backend' / 'ghsched_build.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildBackendTest(base.TestCase):

    RECORD = 'ghsched-1.dist-info/RECORD'

    def setUp(self):
        super().setUp()
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.wheel = directory / 'ghsched-1-py3-none-any.whl'
        with zipfile.ZipFile(self.wheel, 'w') as wheel:
            for name in ('ghsched_nova/__init__.py',
                         'ghsched_nova/tests/unit/test_conf.py',
                         'tempest_plugin/tests/base.py'):
                wheel.writestr(name, '')
            wheel.writestr(self.RECORD, f"""\
ghsched_nova/__init__.py,sha256=x,0
ghsched_nova/tests/unit/test_conf.py,sha256=x,0
tempest_plugin/tests/base.py,sha256=x,0
{self.RECORD},,
""")
        (directory / 'extra.pth').write_text('import sys\n')
        self.addCleanup(self._back_to, pathlib.Path.cwd())
        self._back_to(directory)
        load_backend().add_to_wheel(self.wheel, 'extra.pth')

    @staticmethod
    def _back_to(directory):
        os.chdir(directory)

    def test_file_is_in_the_root_of_the_wheel(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            self.assertEqual(b'import sys\n', wheel.read('extra.pth'))
            self.assertIn('ghsched_nova/__init__.py', wheel.namelist())

    def test_file_is_recorded_so_that_pip_can_remove_it(self):
        digest = base64.urlsafe_b64encode(
            hashlib.sha256(b'import sys\n').digest()).rstrip(b'=').decode()
        with zipfile.ZipFile(self.wheel) as wheel:
            record = wheel.read(self.RECORD).decode().splitlines()
        self.assertEqual(
            [f'{self.RECORD},,', f'extra.pth,sha256={digest},11'],
            record[-2:])

    def test_tests_are_not_shipped_but_those_of_tempest(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = wheel.namelist()
            record = wheel.read(self.RECORD).decode()
        for some in (names, record):
            self.assertIn('tempest_plugin/tests/base.py', some)
            self.assertNotIn('ghsched_nova/tests/unit/test_conf.py', some)

    def test_record_stays_last(self):
        # PEP 427 wants the dist-info directory at the end of the archive.
        with zipfile.ZipFile(self.wheel) as wheel:
            self.assertEqual(self.RECORD, wheel.namelist()[-1])


class NovaIsNoRequirementTest(base.TestCase):
    """A package takes the Nova that is there, or none."""

    def setUp(self):
        super().setUp()
        self.text = (TOP / 'requirements.txt').read_text()

    def test_the_tree_itself_needs_nova_first_of_all(self):
        self.assertTrue(self.text.startswith('nova>=31'))

    def test_packages_keep_all_that_does_not_come_with_nova(self):
        kept = load_backend().without_nova(self.text)
        gone = set(self.text.splitlines()) - set(kept.splitlines())
        self.assertEqual({'nova', 'oslo.messaging'},
                         {line.split('>=')[0] for line in gone})

    def test_names_that_only_begin_like_nova_stay(self):
        text = 'python-novaclient>=1\nnova-powervm\nnovarizer\n'
        self.assertEqual(text, load_backend().without_nova(text))

    def test_the_extra_has_the_same_bound(self):
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(TOP / 'setup.cfg')
        self.assertIn(self.text.splitlines()[0],
                      parser['extras']['nova'].splitlines())


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


#: What the templates of .zuul.yaml run. They grow by a Python with each
#: release of OpenStack, so the next ones are here already.
TEMPLATES = {
    'openstack-python3-jobs': (
        'pep8', 'py3', 'py310', 'py311', 'py312', 'py313', 'py314'),
    'openstack-cover-jobs': ('cover',),
    'publish-openstack-docs-pti': ('docs',),
    'release-notes-jobs-python3': ('releasenotes',),
}


def expand(name):
    """The names behind a{b,c}, as tox generates sections."""
    pieces = re.split(r'\{([^}]*)\}', name)
    return {''.join(parts) for parts in itertools.product(*(
        piece.split(',') if index % 2 else [piece]
        for index, piece in enumerate(pieces)))}


class ToxEnvironmentsTest(base.TestCase):
    """tox takes an environment without commands for one that has passed."""

    def setUp(self):
        super().setUp()
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(TOP / 'tox.ini')
        self.listed = parser['tox']['envlist'].split(',')
        self.base = parser['testenv'].get('commands', '')
        self.commands = {
            name: section.get('commands', self.base)
            for title, section in parser.items()
            if title.startswith('testenv:')
            for name in expand(title.removeprefix('testenv:'))}

    def _commands(self, name):
        return self.commands.get(name, self.base).strip()

    def _in_ci(self):
        """Environments that the jobs of .zuul.yaml run."""
        documents = yaml.safe_load((TOP / '.zuul.yaml').read_text())
        project, = [one['project'] for one in documents if 'project' in one]
        found = set()
        for template in project['templates']:
            found.update(TEMPLATES[template])
        for pipeline in ('check', 'gate'):
            for job in project[pipeline]['jobs']:
                name = job if isinstance(job, str) else next(iter(job))
                if name.startswith('openstack-tox-'):
                    found.add(name.removeprefix('openstack-tox-'))
        return found

    def test_names_are_expanded_as_tox_does(self):
        self.assertEqual({'a', 'a-b', 'a-c'}, expand('a{,-b,-c}'))

    def test_every_environment_has_commands(self):
        names = {*self.listed, *self.commands, *self._in_ci()}
        self.assertIn('functional-py313', names)
        self.assertEqual(
            [], sorted(name for name in names if not self._commands(name)))

    def test_functional_environments_run_the_functional_tests(self):
        names = {name for name in {*self.listed, *self._in_ci()}
                 if name.startswith('functional')}
        for name in names:
            self.assertIn('tests/functional', self._commands(name), name)

    def test_unit_environments_run_the_unit_tests(self):
        for name in {*self.listed, *self._in_ci()}:
            if re.fullmatch(r'py3\d*', name):
                self.assertIn('stestr run', self._commands(name), name)


class RequirementsTest(base.TestCase):

    def test_a_controller_needs_no_libvirt(self):
        self.assertNotIn('libvirt-python',
                         (TOP / 'requirements.txt').read_text())

    def test_compute_hosts_get_libvirt_by_an_extra(self):
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(TOP / 'setup.cfg')
        self.assertIn('libvirt-python', parser['extras']['libvirt'])


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
                and 'Licensed under the Apache License'
                not in path.read_text()]
        self.assertEqual([], bare)

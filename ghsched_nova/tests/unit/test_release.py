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

"""Lists and tools that a release is made with."""

import ast
import configparser
import pathlib
import re
import runpy
import tomllib

import ddt
from packaging import requirements

from ghsched_placement.tests import base

TOP = pathlib.Path(__file__).parents[3]
PACKAGING = TOP / 'tools' / 'packaging'

finish = runpy.run_path(str(PACKAGING / 'finish_sbom.py'))['finish']


def parse_requirements(text):
    """Return requirements of a list with comments."""
    lines = (line.partition('#')[0].strip() for line in text.splitlines())
    return [requirements.Requirement(line) for line in lines if line]


def normalize(name):
    return re.sub('[-_.]+', '-', name).lower()


def read_pins(name):
    """Return version and number of hashes by normalized name."""
    text = (PACKAGING / name).read_text().replace('\\\n', ' ')
    found = {}
    for line in text.splitlines():
        if line and not line.startswith('#'):
            pin, *hashes = re.split(r'\s+--hash=', line.strip())
            package, version = pin.partition(';')[0].split('==')
            found[normalize(package)] = (version.strip(), len(hashes))
    return found


@ddt.ddt
class ListsTest(base.TestCase):

    @ddt.data('constraints.txt', 'release-tools.txt')
    def test_list_of_versions_each_entry_has_a_hash(self, name):
        pins = read_pins(name)
        self.assertGreater(len(pins), 20)
        self.assertEqual([], [package for package, (_, hashes) in pins.items()
                              if not hashes])

    def test_constraints_requirements_are_all_met(self):
        pins = read_pins('constraints.txt')
        setup = configparser.ConfigParser(interpolation=None)
        setup.read(TOP / 'setup.cfg')
        wanted = [*parse_requirements(setup['extras']['osc']),
                  *parse_requirements(
                      (TOP / 'requirements.txt').read_text())]
        self.assertEqual([], [
            str(one) for one in wanted
            if pins[normalize(one.name)][0] not in one.specifier])

    def test_dependency_groups_name_what_the_files_name(self):
        groups = tomllib.loads(
            (TOP / 'pyproject.toml').read_text())['dependency-groups']
        for names, file in ((('docs',), 'doc/requirements.txt'),
                            (('lint', 'types', 'test'),
                             'test-requirements.txt')):
            lines = sorted({str(requirements.Requirement(line))
                            for name in names for line in groups[name]})
            self.assertEqual(sorted({str(one) for one in parse_requirements(
                (TOP / file).read_text())}), lines, file)


class SbomTest(base.TestCase):

    def setUp(self):
        super().setUp()
        licence = [{'license': {'id': 'MIT'}}]
        self.document = {
            'metadata': {},
            'components': [
                {'name': 'ghsched', 'version': '1', 'bom-ref': 'g',
                 'type': 'library', 'licenses': licence,
                 'externalReferences': [{'url': 'file:///tmp/x.whl'}]},
                {'name': 'one', 'version': '2', 'bom-ref': 'o',
                 'licenses': licence}],
            'dependencies': [{'ref': 'g', 'dependsOn': ['o']}, {'ref': 'o'}]}

    def test_sbom_complete_ghsched_is_its_subject(self):
        document = finish(self.document)
        self.assertEqual('pkg:pypi/ghsched@1',
                         document['metadata']['component']['purl'])
        self.assertEqual(['one'],
                         [one['name'] for one in document['components']])
        self.assertNotIn('file:', str(document))

    def test_sbom_component_without_licence_is_refused(self):
        del self.document['components'][1]['licenses']
        self.assertRaisesRegex(ValueError, 'no licence is known of one',
                               finish, self.document)

    def test_sbom_component_outside_dependencies_is_refused(self):
        del self.document['dependencies'][1]
        self.assertRaisesRegex(ValueError, 'no dependencies', finish,
                               self.document)


class ReleasesTest(base.TestCase):
    """The functional tests that are run with each release of Nova."""

    def test_each_pattern_of_the_list_finds_a_test(self):
        tests = [
            f'.{path.stem}.{owner.name}.{test.name}'
            for path in (TOP / 'ghsched_nova/tests/functional').glob('*.py')
            for owner in ast.walk(ast.parse(path.read_text()))
            if isinstance(owner, ast.ClassDef)
            for test in owner.body if isinstance(test, ast.FunctionDef)
            and test.name.startswith('test_')]
        patterns = [
            line for line in (TOP / 'tools/releases/functional').read_text()
            .splitlines() if not line.startswith('#')]
        self.assertEqual([], [
            pattern for pattern in patterns
            if not any(re.search(pattern, test) for test in tests)])

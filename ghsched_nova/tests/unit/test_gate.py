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

"""Jobs of Zuul, environments of tox and hooks of pre-commit: names agree.

Zuul leaves a job out without an error if no variant of a parent is defined
for the branch, so what it knows of other repositories is recorded here.
"""

import ast
import configparser
import itertools
import pathlib
import re

import yaml

from ghsched_placement.flavor import policy
from ghsched_placement.tests import base

TOP = pathlib.Path(__file__).parents[3]

#: Branches of devstack, grenade and requirements that jobs can run with, as
#: of 2026.2; with grenade the branch that is upgraded to.
BRANCHES = {'master', 'stable/2025.1', 'stable/2025.2', 'stable/2026.1'}

#: Jobs of other repositories that have one of :data:`BRANCHES` among the jobs
#: that they are made of. Those of openstack-zuul-jobs (openstack-tox-*) are
#: defined for every branch.
BRANCHED = {'devstack-tempest', 'grenade-skip-level-always',
            'requirements-check'}

#: Environments of tox that a template of openstack-zuul-jobs runs on main.
TEMPLATES = {'openstack-cover-jobs': {'cover'},
             'publish-openstack-docs-pti': {'docs', 'pdf-docs'},
             'release-notes-jobs-python3': {'releasenotes'}}

#: Defined in devstack.
NODESETS = {'openstack-two-node-noble', 'devstack-single-node-debian-trixie'}

PIPELINES = {'check', 'check-arm64', 'gate', 'periodic'}


def read_jobs():
    """Return the jobs of .zuul.yaml by name, and its project."""
    items = yaml.safe_load((TOP / '.zuul.yaml').read_text())
    jobs = {item['job']['name']: item['job'] for item in items
            if 'job' in item}
    project, = (item['project'] for item in items if 'project' in item)
    return jobs, project


def list_named_jobs(project):
    """Return (pipeline, job, options) for each job that a pipeline names."""
    found = []
    for pipeline in PIPELINES & set(project):
        for one in project[pipeline]['jobs']:
            name, options = one, {}
            if isinstance(one, dict):
                (name, options), = one.items()
            found.append((pipeline, name, options))
    return found


def expand(name):
    """Return the names that tox makes of a section such as ``a{,-b}``."""
    pieces = re.split(r'\{([^}]*)\}', name)
    return {''.join(parts) for parts in itertools.product(*(
        piece.split(',') if index % 2 else [piece]
        for index, piece in enumerate(pieces)))}


def read_commands():
    """Return the commands of each environment of tox.ini.

    The first item is those of environments without a section, such as py311.
    """
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(TOP / 'tox.ini')
    default = parser['testenv'].get('commands', '').strip()
    return default, {
        name: section.get('commands', default).strip()
        for title, section in parser.items() if title.startswith('testenv:')
        for name in expand(title.removeprefix('testenv:'))}


class ZuulTest(base.TestCase):
    """Jobs of .zuul.yaml."""

    def setUp(self):
        super().setUp()
        self.jobs, self.project = read_jobs()

    def _ancestry(self, name):
        """Return the jobs of this repository that a job is made of."""
        found = []
        while name in self.jobs:
            found.append(self.jobs[name])
            name = self.jobs[name]['parent']
        return found, name

    def test_pipelines_are_those_of_opendev(self):
        self.assertEqual(PIPELINES | {'templates'}, set(self.project))

    def test_job_has_a_parent_that_exists_on_its_branch(self):
        for _, name, options in list_named_jobs(self.project):
            ancestry, root = self._ancestry(name)
            overrides = [job['override-checkout'] for job in (
                options, *ancestry) if 'override-checkout' in job]
            with self.subTest(name):
                if root in BRANCHED:
                    self.assertEqual(1, len(overrides), overrides)
                    self.assertIn(overrides[0], BRANCHES)
                else:
                    self.assertTrue(root.startswith('openstack-tox-'), root)

    def test_job_that_is_defined_is_run_or_a_parent(self):
        used = {name for _, name, _ in list_named_jobs(self.project)}
        used |= {job['parent'] for job in self.jobs.values()}
        self.assertEqual(set(), set(self.jobs) - used)
        for name, job in self.jobs.items():
            if job.get('abstract'):
                self.assertNotIn(name, {
                    one for _, one, _ in list_named_jobs(self.project)})

    def test_tox_job_has_an_environment(self):
        wanted = set().union(*(
            TEMPLATES[name] for name in self.project['templates']))
        for _, name, _ in list_named_jobs(self.project):
            root = self._ancestry(name)[1]
            if root not in BRANCHED:
                wanted.add(root.removeprefix('openstack-tox-')
                           .removesuffix('-arm64'))
        # tox makes py311 and its like of their names.
        wanted = {name for name in wanted
                  if not re.fullmatch(r'py3\d\d', name)}
        self.assertEqual(set(), wanted - set(read_commands()[1]))

    def test_python_that_setup_cfg_names_is_tested_in_the_gate(self):
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(TOP / 'setup.cfg')
        named = {'py3' + minor for minor in re.findall(
            r':: 3\.(\d+)$', parser['metadata']['classifier'], re.MULTILINE)}
        tested = {name.removeprefix('openstack-tox-') for pipeline, name, _
                  in list_named_jobs(self.project) if pipeline == 'gate'}
        self.assertEqual(named, {name for name in tested if name[:2] == 'py'})

    def test_job_of_the_gate_votes_in_check(self):
        named = list_named_jobs(self.project)
        voting = {name for pipeline, name, options in named
                  if pipeline == 'check' and options.get('voting', True)}
        self.assertEqual(set(), {name for pipeline, name, _ in named
                                 if pipeline == 'gate'} - voting)

    def test_files_and_nodesets_of_a_job_exist(self):
        for name, job in self.jobs.items():
            with self.subTest(name):
                self.assertIn(job.get('nodeset'), {None, *NODESETS})
                for key in ('pre-run', 'run', 'post-run'):
                    if key in job:
                        self.assertTrue((TOP / job[key]).is_file(), job[key])

    def test_pattern_of_tempest_chooses_the_tests_of_the_plugin(self):
        pattern = self.jobs['ghsched-tempest-base'][
            'vars']['tempest_test_regex']
        tests = TOP / 'tempest_plugin/tests'
        modules = ['.'.join(path.relative_to(TOP).with_suffix('').parts)
                   for path in tests.rglob('test_*.py')]
        self.assertNotEqual([], modules)
        for module in modules:
            self.assertRegex(module, pattern)


class TempestTest(base.TestCase):
    """Tables of the tempest plugin, which needs a cloud to run."""

    def test_contradiction_is_refused_with_the_key_that_tempest_expects(self):
        tree = ast.parse((TOP / 'tempest_plugin/tests/api/test_flavors.py'
                          ).read_text())
        table, = (ast.literal_eval(node.value) for node in tree.body
                  if isinstance(node, ast.Assign)
                  and ast.unparse(node.targets[0]) == 'CONTRADICTIONS')
        for keys, named in table:
            specs = {'hw:numa_nodes': '1', **keys.pop('specs', {}),
                     **{f'ghsched:{key}': str(value)
                        for key, value in keys.items()}}
            error = self.assertRaises(policy.PolicyError, self.check, specs)
            self.assertIn(f'ghsched:{named}', str(error))

    def check(self, extra_specs):
        """Check a flavor as nova-api does."""
        for key in filter(lambda key: key.startswith('ghsched:'), extra_specs):
            policy.check_extra_spec(key, extra_specs[key])
        policy.check_flavor(extra_specs, extra_specs, 1)


class ToxTest(base.TestCase):
    """tox takes an environment without commands for one that has passed."""

    def test_names_are_expanded_as_tox_does(self):
        self.assertEqual({'a', 'a-b', 'a-c'}, expand('a{,-b,-c}'))

    def test_environment_has_commands_and_their_scripts_exist(self):
        default, commands = read_commands()
        for name, text in {'': default, **commands}.items():
            self.assertNotEqual('', text, name)
            for word in text.split():
                if word.startswith('tools/'):
                    self.assertTrue((TOP / word).is_file(), word)

    def test_environment_of_a_python_runs_the_tests_of_its_name(self):
        default, commands = read_commands()
        self.assertIn('tools/unit-tests.sh', default)
        for name, text in commands.items():
            if name.startswith('functional'):
                self.assertIn('tests/functional', text, name)


class PreCommitTest(base.TestCase):
    """Hooks of pre-commit."""

    def test_hook_has_the_release_of_its_tool_that_tox_has(self):
        config = yaml.safe_load((TOP / '.pre-commit-config.yaml').read_text())
        pinned = {pin for repository in config['repos']
                  for hook in repository['hooks']
                  for pin in hook['additional_dependencies']
                  if not pin.startswith('pre-commit-hooks==')}
        self.assertNotEqual(set(), pinned)
        lines = (TOP / 'test-requirements.txt').read_text().splitlines()
        self.assertEqual(set(), pinned - {
            line.partition('#')[0].strip() for line in lines})

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

"""Commands, options and names in the manual, compared with the code."""

import ast
import configparser
import contextlib
import functools
import io
import pathlib
import pkgutil
import re
import shlex
from unittest import mock

import yaml

from ghsched_nova.api import server_filter
from ghsched_nova.cmd import host
from ghsched_nova.cmd import main
from ghsched_nova import conf
from ghsched_nova.features.doctor import status
from ghsched_nova.features.exporter import exporter
from ghsched_nova.features.top import top
from ghsched_nova.lab.bench import cli
from ghsched_nova.lab.emulator import testhost
from ghsched_nova.tests.fixtures import guest_script
from ghsched_placement.features.blame import blame_report
from ghsched_placement.features.live_change import move_report
from ghsched_placement.flavor import key_names
from ghsched_placement.tests import base
from tempest_plugin import config as tempest_config

TOP = pathlib.Path(__file__).parents[3]
MANUAL = sorted((*TOP.glob('*.rst'), *(TOP / 'devstack').rglob('*.rst'),
                 *(TOP / 'doc/source').rglob('*.rst'),
                 *(TOP / 'releasenotes/source').glob('*.rst')))
NOTES = sorted((TOP / 'releasenotes/notes').glob('*.yaml'))

#: Sections of the page of a feature, in this order.
SECTIONS = ('What it gives', '(?:Keys|Options)', 'What it costs',
            'How to switch it off', 'How to see it')

#: Options of programs of others that the manual names.
OF_OTHERS = frozenset((
    '--availability-zone',  # openstack server create
    '--config-dir', '--config-file',    # oslo.config
    '--os-cloud', '--sort-column',      # python-openstackclient
))


#: Functions that make the parsers of programs.
PARSERS = {
    'ghsched': main.make_parser,
    'ghsched-bench': cli.make_parser,
    'ghsched-exporter': exporter.make_parser,
    'ghsched-guest': guest_script.GUEST._parser,
    'ghsched-host': host.make_parser,
    'ghsched-status': status.make_parser,
    'ghsched-top': top.make_parser,
    'ghsched-testhost': testhost._parser,
}


@functools.cache
def parsers():
    """The parser of each command, by the words that it begins with."""
    found = {(name,): make() for name, make in PARSERS.items()}
    setup = configparser.ConfigParser()
    setup.read(TOP / 'setup.cfg')
    entries = setup['entry_points']['openstack.ghsched.v1'].splitlines()
    for name, _, place in (line.partition('=') for line in entries if line):
        command = pkgutil.resolve_name(place.strip())(mock.Mock(), None)
        words = ('openstack', *name.strip().split('_'))
        found[words] = command.get_parser(' '.join(words))
    return found


def subparsers(parser):
    """Return the subparsers of a parser, by name."""
    return next((action.choices for action in parser._actions
                 if action.nargs == 'A...'), {})


def options(parser):
    """All options of a parser and of those below it."""
    found = set(parser._option_string_actions)
    for below in subparsers(parser).values():
        found |= options(below)
    return found


def words_of(text):
    """Words and operators of a shell's line, without its comment."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:      # It is no line of a shell.
        return text.split()


def commands(text):
    """Each command of ours in a line, with the words that belong to it."""
    words = words_of(text)
    ends = [place for place, word in enumerate(words)
            if set(word) <= set('();<>|&')] + [len(words)]
    for place, word in enumerate(words):
        end = next(one for one in ends if one >= place)
        if (word in {name for name, *_ in parsers()} - {'openstack'}
                or word.startswith('tools/')
                or words[place:place + 2] == ['openstack', 'ghsched']):
            if words[place - 1:place] == ['--image']:   # Of the demo.
                continue
            if words[place + 1:place + 2] != ['=']:     # An option.
                yield words[place:end]
            return


def typed(text):
    """Lines with a prompt, and those of a block that begin with a tool."""
    lines = iter(text.splitlines())
    for line in lines:
        found = re.match(
            r'( +)(?:[$#] (.*)|((?:tools/|openstack ghsched).*))', line)
        if found:
            whole = found[2] or found[3]
            while whole.endswith('\\'):     # As a shell reads it.
                whole = whole[:-1] + next(lines)[len(found[1]):]
            yield whole


def quoted(text):
    """Return the texts between double backquotes."""
    return [' '.join(found.split())
            for found in re.findall(r'``([^`]+)``', text)]


def prose(path):
    """The text of a page, or of a release note."""
    text = path.read_text()
    if path.suffix != '.yaml':
        return text
    return '\n'.join(line if isinstance(line, str) else '\n'.join(line)
                     for line in yaml.safe_load(text).values())


class ManualTest(base.TestCase):

    def refused(self, words, whole):
        """Return the error in a command; empty if there is none.

        :param whole: whether it is to be typed like that, and no mention.
        """
        if words[0].startswith('tools/'):
            return self.refused_tool(words)
        length, parser = max(
            ((len(name), parser) for name, parser in parsers().items()
             if tuple(words[:len(name)]) == name), default=(0, None),
            key=lambda pair: pair[0])
        if parser is None:
            return '' if words[2:] in ([], ['...']) else 'no such command'
        arguments = words[length:]
        if whole:
            told = io.StringIO()
            with contextlib.redirect_stderr(told), \
                    contextlib.redirect_stdout(told):
                try:
                    parser.parse_args(arguments)
                except SystemExit as end:
                    return told.getvalue() if end.code else ''
            return ''
        return self.refused_mention(parser, arguments)

    def refused_mention(self, parser, arguments):
        while arguments and subparsers(parser):
            name, *arguments = arguments
            if name in ('...', 'COMMAND') or name.startswith('-'):
                break
            if name not in subparsers(parser):
                return f'no {name}'
            parser = subparsers(parser)[name]
        unknown = {word.split('=')[0] for word in arguments
                   if word.startswith('-')} - options(parser) - OF_OTHERS
        return f'no {", ".join(unknown)}' if unknown else ''

    def refused_tool(self, words):
        """Scripts of the shell have no parser: their text has the words."""
        path = TOP / words[0].rstrip(':')
        if path.is_dir() or '*' in words[0]:
            return ''
        if not path.exists():
            return 'no such file'
        # A program of several parts, and one that runs those beside it.
        parts = [*(TOP / f'{path}.d').rglob('*.py'),
                 path.parent / f'{"".join(words[1:2])}.py']
        text = path.read_text() + ''.join(
            one.read_text() for one in parts if one.is_file())
        arguments = words[1:words.index('--') if '--' in words else None]
        missing = [word for word in arguments if word.startswith('--')
                   and word.split('=')[0] not in text]
        return f'no {", ".join(missing)}' if missing else ''

    def wrong(self, pages, find, whole):
        found = []
        for path in pages:
            for text in find(prose(path)):
                for words in commands(text):
                    reason = self.refused(words, whole)
                    if reason:
                        found.append(f'{path.relative_to(TOP)}: {text}: '
                                     f'{reason}')
        return found

    def test_a_wrong_one_is_found(self):
        for text, whole in (
                ('openstack ghsched server list --sort size', True),
                ('openstack ghsched server ls', True),
                ('ghsched-host --everything', True),
                ('ghsched-bench run latency --forever', False),
                ('tools/cloud up --houses 2', True), ('tools/none', False)):
            words, = commands(text)
            self.assertTrue(self.refused(words, whole), text)

    def test_all_lines_to_be_typed_are_understood(self):
        self.assertEqual([], self.wrong(MANUAL, typed, whole=True))

    def test_all_commands_that_are_mentioned_are_there(self):
        self.assertEqual([], self.wrong((*MANUAL, *NOTES), quoted,
                                        whole=False))

    def test_an_option_that_is_named_alone_is_one_of_some_command(self):
        known = OF_OTHERS.union(*map(options, parsers().values()))
        tools = ' '.join(path.read_text() for path in (
            *(TOP / 'tools').glob('*'), *(TOP / 'tools').rglob('*.py'))
            if path.is_file())
        self.assertEqual([], [
            f'{path.relative_to(TOP)}: {text}'
            for path in (*MANUAL, *NOTES) for text in quoted(prose(path))
            if (name := re.split('[ =]', text)[0]).startswith('--')
            and name not in known and name not in tools])

    def named(self, pattern):
        """Return the names that match a pattern on all pages, with one page
        each.
        """
        return {name: path.name for path in (*MANUAL, *NOTES)
                for name in re.findall(pattern, path.read_text())}

    def test_all_keys_of_flavors_are_there(self):
        named = self.named(r'ghsched:([a-z][a-z0-9_]*[a-z0-9])\b')
        self.assertIn('mem_bw_min', named)
        # A mistake to show, an element of XML, rules of Nova's policy, and a
        # recording rule of Prometheus.
        self.assertEqual(
            {'mem_bw_mim', 'policy', 'server', 'dry', 'move', 'list', 'blame',
             'server_short'},
            set(named) - {key.name for key in key_names.KEYS})

    def test_all_options_of_ghsched_are_there(self):
        named = self.named(r'\[ghsched\]\s*`*([a-z][a-z0-9_]*)')
        self.assertIn('bandwidth_accounting', named)
        self.assertEqual(set(), set(named) - {
            option.name for _, group in conf.list_opts()
            for option in group} - {
            option.name for option in tempest_config.options})


class ApiTest(base.TestCase):
    """The page on the API."""

    def test_each_act_of_the_server_action_is_there(self):
        page = (TOP / 'doc/source/reference/api.rst').read_text()
        for key in (server_filter.ACTION, 'extra_specs', 'dry_run',
                    move_report.KEY, blame_report.KEY, 'prove'):
            self.assertIn(f'"{key}": ', page)


class LogLinesTest(base.TestCase):

    def test_each_log_line_that_is_quoted_is_in_the_code(self):
        lines = [re.sub(r'%(\\\(\w+\\\))?[sdr]', '.+', re.escape(node.value))
                 for path in (TOP / 'ghsched_nova').rglob('*.py')
                 if 'tests' not in path.parts
                 for node in ast.walk(ast.parse(path.read_text()))
                 if isinstance(node, ast.Constant)
                 and str(node.value).startswith('ghsched: ')]
        quoted = [' '.join(text.split()) for path in MANUAL for text in
                  re.findall('``(ghsched: [^`]+)``', path.read_text())]
        self.assertNotEqual([], quoted)
        self.assertEqual([], [text for text in quoted if not any(
            re.fullmatch(line, text) for line in lines)])


class FeaturesTest(base.TestCase):
    """Pages of features, and their sections."""

    def setUp(self):
        super().setUp()
        self.pages = {
            feature: path for path in MANUAL
            for feature in re.findall(r'^\.\. feature: (\w+)$',
                                      path.read_text(), re.MULTILINE)}

    def test_each_feature_has_a_page(self):
        features = {
            path.parent.name
            for package in ('ghsched_nova', 'ghsched_placement')
            for path in (TOP / package / 'features').glob('*/__init__.py')}
        self.assertIn('live_change', features)
        self.assertEqual(set(), features - set(self.pages))

    def test_each_page_has_the_sections_in_their_order(self):
        for path in set(self.pages.values()):
            titles = re.findall(r'^(.+)\n-+$', path.read_text(), re.MULTILINE)
            self.assertRegex('\n'.join(titles), f'^{chr(10).join(SECTIONS)}$',
                             path.name)

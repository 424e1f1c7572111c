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

"""Words for users, compared with those of the contributor guide."""

import ast
import configparser
import dataclasses
import itertools
from pathlib import Path
import pkgutil
import re
import runpy

import fixtures
from lxml import etree

from ghsched_nova.features.live_change import messages
from ghsched_nova.features.live_change import move_messages
from ghsched_nova.features.top import top_output
from ghsched_nova.guest import metadata
from ghsched_nova.tests.fixtures import plans
from ghsched_nova.tests.fixtures import walk
from ghsched_placement.audit import diagnostics
from ghsched_placement.features.live_change import change_report
from ghsched_placement.features.live_change import move_report
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

_ROW = re.compile(
    r'^   \* - (.*)\n     - (?:.*\n)(?:       .*\n)*     - (.*)$',
    re.MULTILINE)


def forbidden():
    """Words by the word to be used in place of them."""
    text = walk.DESIGN.read_text(encoding='utf-8')
    rows = _ROW.findall(text[text.index('\nWords\n'):])
    return {word: instead for instead, words in rows[1:]
            for word in words.split(', ')}


def commands():
    """Columns of the OpenStack client's commands."""
    setup = configparser.ConfigParser()
    setup.read(walk.DESIGN.parents[3] / 'setup.cfg')
    for line in setup['entry_points']['openstack.ghsched.v1'].split('\n'):
        if line:
            command = pkgutil.resolve_name(line.partition(' = ')[2])
            module = pkgutil.resolve_name(command.__module__)
            for value in (*vars(module).values(), *vars(command).values()):
                if isinstance(value, tuple) and value and all(
                        isinstance(one, str) for one in value):
                    yield from value


def headings(*places):
    """Columns of the tables of programs: each is in the source as it is.

    Names of arguments of Nova's functions, in modules of seams, are none.

    :param places: files, with wildcards, below ghsched_nova.
    """
    top = walk.DESIGN.parents[3] / 'ghsched_nova'
    for file in (file for place in places for file in top.glob(place)
                 if not file.stem.endswith('seams')):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Tuple | ast.List):
                texts = [one.value for one in node.elts
                         if isinstance(one, ast.Constant)
                         and isinstance(one.value, str)]
                if len(texts) > 1 and all(text[:1].isalpha()
                                          for text in texts):
                    yield from texts


def keys(document):
    """Names in what is sent as JSON."""
    if isinstance(document, dict):
        yield from map(str, document)
        document = list(document.values())
    if isinstance(document, list):
        for one in document:
            yield from keys(one)


def elements():
    """Tags and attributes of a domain's metadata."""
    policy = GuestPolicy(nodes=(NodePolicy(1, 2, True, 3, l3_ways=1,
                                           burst=1),))
    for element in etree.fromstring(metadata.render_policy(
            metadata.DomainPolicy(policy, (0,)))).iter():
        yield from (element.tag, *element.attrib)


def samples():
    """Metrics and their labels: all names in the modules that have them."""
    for file in (walk.DESIGN.parents[3] / 'ghsched_nova').glob(
            'features/*/*metrics.py'):
        yield from re.findall("'([a-z][a-z0-9_]+)'", file.read_text())


def fields():
    """Yield the names of the fields that nova-compute reports of a guest and
    its host.
    """
    for record in vars(diagnostics).values():
        if dataclasses.is_dataclass(record):
            yield from (field.name for field in dataclasses.fields(record))


#: Of diagnostics; the client reads them from nova-compute of any release.
PUBLISHED = {'minimum', 'maximum', 'asked_minimum', 'asked_maximum',
             'as_wanted'}


#: Column titles of features, by the tuples that hold them.
TITLES = (
    change_report.HEADER,
    top_output._NODE_TITLES,
    (top_output._SHORT_TITLE,),
    top_output._GUEST_TITLES,
)


class WordsTest(base.TestCase):

    def wrong(self, names):
        words = forbidden()
        return {name: words[word] for name in names
                for word in re.findall('[a-z]+', name.lower())
                if word in words}

    def test_the_table_forbids_words(self):
        self.assertLess(20, len(forbidden()))
        self.assertEqual({'Host Cell': 'host node, guest node'},
                         self.wrong(['Host Cell', 'Host Node']))

    def test_columns_of_commands(self):
        names = set(commands())
        self.assertLessEqual({'Guest Node', 'BW Free (%)', 'Reasons'}, names)
        self.assertEqual({}, self.wrong(itertools.chain(names, *TITLES)))

    def test_tables_of_ghsched_host(self):
        names = set(headings('cmd/*.py', 'features/*/*.py'))
        self.assertLessEqual({'Action', 'Not measured'}, names)
        self.assertEqual({}, self.wrong(names))

    def test_tables_of_ghsched_bench(self):
        names = set(headings('lab/bench/*.py'))
        self.assertLessEqual({'Path', 'Of host-host', 'Shown'}, names)
        self.assertEqual({}, self.wrong(names))

    def test_changes_and_moves(self):
        packed = messages.pack_policy(GuestPolicy((NodePolicy(1),)), (0,))
        names = {*keys(packed),
                 *keys(move_messages.pack_move(plans.MOVE.request)),
                 *keys(change_report.make_change_report(plans.plan(), False)),
                 *keys(move_report.make_move_report(plans.MOVE, False))}
        self.assertLessEqual({'host_node', 'min', 'pins', 'effective'}, names)
        self.assertEqual({}, self.wrong(names))

    def test_metrics_and_labels(self):
        self.assertEqual({}, self.wrong(samples()))

    @base.needs_features('bursts', 'exporter')
    def test_metrics_and_labels_are_found(self):
        self.assertLessEqual(
            {'ghsched_memory_bytes', 'guest_uuid', 'pool_percent', 'cpu_wait'},
            set(samples()))

    def test_metadata(self):
        self.assertLessEqual({'node', 'host', 'min', 'burst', 'l3_ways'},
                             set(elements()))
        self.assertEqual({}, self.wrong(elements()))

    def test_diagnostics(self):
        self.assertEqual(PUBLISHED, set(self.wrong(fields())))


class RulesTest(base.TestCase):
    """Rules for words that a program can check."""

    def broken(self, name, text):
        path = Path(self.useFixture(fixtures.TempDir()).path, name)
        path.write_text(text)
        rules = runpy.run_path(str(walk.DESIGN.parents[3] / 'tools/words.py'))
        return [line.partition(': ')[2] for line in rules['broken'](str(path))]

    def test_parameter_is_described_by_a_noun(self):
        for word, wrong in (('what', True), ('of', True), ('name of', False)):
            self.assertEqual(
                [f'a parameter or result begins with "{word}"'] * wrong,
                self.broken('one.py', 'def list_names(node):\n'
                            '    """Return the names.\n\n'
                            f'    :param node: {word} the node.\n    """\n'))

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

"""Text survives every form: it is read back by real readers."""

import logging

from docutils import core
from docutils import nodes
from hypothesis import given
from hypothesis import strategies as st
import lxml.html
import markdown_it

from ghsched_nova.lab.bench import document
from ghsched_nova.lab.bench.document import Heading
from ghsched_nova.lab.bench.document import Items
from ghsched_nova.lab.bench.document import Paragraph
from ghsched_nova.lab.bench.document import Picture
from ghsched_nova.lab.bench.document import Table
from ghsched_placement.tests import base

#: What reports are made of: no control characters, which no form can hold.
LINE = st.text(st.characters(
    codec='utf-8', exclude_categories=['Cc', 'Cs', 'Cn', 'Co', 'Cf', 'Z'],
    include_characters=' '), min_size=1, max_size=20).map(
        lambda text: ' '.join(text.split())).filter(bool)
ROW = st.tuples(LINE, LINE)


def markdown_text(text):
    """Texts that a CommonMark reader finds, joined by block."""
    reader = markdown_it.MarkdownIt('commonmark').enable('table')
    return [''.join(child.content for child in token.children)
            for token in reader.parse(text) if token.type == 'inline']


def rst_text(text):
    """Paragraphs and titles that docutils finds; no message of its own."""
    tree = core.publish_doctree(text, settings_overrides={
        'report_level': 1, 'halt_level': 5, 'warning_stream': False,
        'doctitle_xform': False})
    bad = list(tree.findall(nodes.system_message))
    return [str(bad[0].astext())] if bad else [
        node.astext() for node in tree.findall() if isinstance(
            node, nodes.paragraph | nodes.title)]


def html_text(text):
    page = lxml.html.fromstring(text)
    return [element.text_content() for element in page.iter(
        'h1', 'p', 'li', 'th', 'td', 'figcaption')]


LEADS = ('# ', '- ', '* ', '1. ', '> ', '.. ', ':a: ', '```', '| ', '>>> ',
         '-- ', 'a) ', '(a) ', '__ ', '=== ')


class FormsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        # It reports about every rule that it tries.
        logging.getLogger('markdown_it').setLevel(logging.INFO)

    @given(LINE, LINE, LINE, st.lists(ROW, min_size=2, max_size=3))
    def test_text_survives(self, title, paragraph, item, rows):
        blocks = [Heading(title, 1), Paragraph(paragraph), Items((item,)),
                  Table(rows[0], tuple(rows[1:]))]
        expected = [title, paragraph, item,
                    *(cell for row in rows for cell in row)]
        for form, read in (('md', markdown_text), ('rst', rst_text),
                           ('html', html_text)):
            self.assertEqual(expected, read(document.render(blocks, form)),
                             form)

    @given(LINE, st.sampled_from(LEADS))
    def test_line_that_looks_like_markup(self, text, lead):
        line = ' '.join((lead + text + '::').split())
        blocks = [Paragraph(line)]
        self.assertEqual([line], markdown_text(
            document.render(blocks, 'md')))
        self.assertEqual([line], rst_text(document.render(blocks, 'rst')))

    def test_pictures(self):
        blocks = [Heading('A & B', 1), Picture(
            'x-1.svg', '<?xml version="1.0"?>\n<svg><g/></svg>\n', 'curve')]
        self.assertIn('![curve](x-1.svg)', document.render(blocks, 'md'))
        self.assertIn('.. image:: x-1.svg\n   :alt: curve',
                      document.render(blocks, 'rst'))
        page = document.render(blocks, 'html')
        self.assertIn('<figure>\n<svg><g/></svg>\n', page)
        self.assertIn('<title>A &amp; B</title>', page)
        self.assertEqual([blocks[1]], document.pictures(blocks))

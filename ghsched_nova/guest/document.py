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


"""A libvirt document as a tree that keeps its looks.

What is put in is indented like its neighbours, and what is taken out leaves
no trace, so that nothing changes but what a renderer means to change.
"""

from collections.abc import Sequence
import re

from lxml import etree

_DECLARATION = re.compile(r'\s*<\?xml\s[^>]*\?>')


class NotThisDocument(ValueError):  # noqa: N818
    """The text is not the kind of document that was expected; says why."""


def parse(xml: str, tag: str = 'domain') -> etree._Element:
    """The root element of a libvirt document.

    :raises NotThisDocument: when it is none, or another one.
    """
    # lxml takes no declaration in text that is decoded already.
    declaration = _DECLARATION.match(xml)
    body = xml[declaration.end():] if declaration else xml
    try:
        root = parse_element(body.strip())
    except etree.XMLSyntaxError as error:
        raise NotThisDocument(f'not a {tag} XML: {error}') from None
    if root.tag != tag:
        raise NotThisDocument(f'not a {tag} XML but <{root.tag}>')
    return root


def parse_element(xml: str | bytes) -> etree._Element:
    """Return the root element of an XML text.

    It replaces no entity, reads no other file and takes no tree of more than
    256 levels, whatever is the default of the release of lxml.

    :raises etree.XMLSyntaxError: for any other text.
    """
    return etree.fromstring(xml, etree.XMLParser(
        resolve_entities=False, load_dtd=False, no_network=True,
        strip_cdata=False, huge_tree=False))


def text(root: etree._Element) -> str:
    """The document of an element, as text."""
    return etree.tostring(root.getroottree(), encoding='unicode')


def insert(parent: etree._Element, children: Sequence[etree._Element],
           position: int) -> None:
    """Insert some, indented like the neighbours if they are indented."""
    if not children:
        return
    depth = 1 + sum(1 for _ in parent.iterancestors())
    indented = '\n' in (parent.getroottree().getroot().text or '')
    end = parent.text
    if indented and not len(parent):
        parent.text, end = '\n' + '  ' * depth, '\n' + '  ' * (depth - 1)
    if position:
        before = parent[position - 1]
        end, before.tail = before.tail, parent.text
    for child in children:
        if indented:
            etree.indent(child, level=depth)
        child.tail = parent.text
    children[-1].tail = end
    parent[position:position] = children


def remove(element: etree._Element | None) -> None:
    """Remove, and leave the blanks as if it had never been there."""
    parent = None if element is None else element.getparent()
    if element is None or parent is None:
        return
    previous = element.getprevious()
    if len(parent) == 1:
        parent.text = None
    elif element.getnext() is None and previous is not None:
        previous.tail = element.tail
    parent.remove(element)

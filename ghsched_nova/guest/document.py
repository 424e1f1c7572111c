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


"""Edits of a libvirt XML document that preserve its formatting.

New elements are indented like their neighbours, and removed ones leave no
blank lines, so that a diff shows only the intended change.
"""

from collections.abc import Collection
from collections.abc import Sequence
import re

from lxml import etree

#: Names of the x86 architectures, in domains and of hosts (``uname -m``).
X86 = frozenset({'x86_64', 'i686'})

_DECLARATION = re.compile(r'\s*<\?xml\s[^>]*\?>')


class DocumentError(ValueError):
    """Reason why a text is not a libvirt XML document of the expected kind."""


def parse_document(xml: str, tag: str = 'domain',
                   error: type[ValueError] = DocumentError) -> etree._Element:
    """Parse a libvirt XML document and return its root element.

    :param tag: expected tag of the root element.
    :param error: class of the error that is raised.
    :raises ValueError: if the text is not XML or has another root element.
    """
    # lxml refuses an encoding declaration in decoded text.
    declaration = _DECLARATION.match(xml)
    body = xml[declaration.end():] if declaration else xml
    root = parse_element(body.strip(), error)
    if root.tag != tag:
        raise error(f'not a {tag} XML but <{root.tag}>')
    return root


def read_arch(root: etree._Element) -> str:
    """Return a domain's architecture; empty if its XML names none."""
    kind = root.find('os/type')
    return '' if kind is None else kind.get('arch', '')


def parse_element(xml: str | bytes, error: type[ValueError] = DocumentError
                  ) -> etree._Element:
    """Parse an XML text with safe options and return its root element.

    Entities are not replaced, no other file is read, and a tree of more than
    256 levels is refused, whatever the defaults of the installed lxml are.

    :param error: class of the error that is raised.
    :raises ValueError: if the text is not well-formed.
    """
    try:
        return etree.fromstring(xml, etree.XMLParser(
            resolve_entities=False, load_dtd=False, no_network=True,
            strip_cdata=False, huge_tree=False))
    except (etree.XMLSyntaxError, ValueError) as cause:
        raise error(f'not XML: {cause}') from None


def render_document(root: etree._Element) -> str:
    """Render an XML document as text.

    :param root: root element of the document.
    """
    return etree.tostring(root.getroottree(), encoding='unicode')


def insert_children(parent: etree._Element, children: Sequence[etree._Element],
                    position: int) -> None:
    """Insert child elements into an XML element, indented like its children.

    :param position: index of the first inserted child.
    """
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


def find_or_insert_child(parent: etree._Element, tag: str,
                         before: Collection[str] | None = None
                         ) -> etree._Element:
    """Return a child of an XML element; insert it if it is missing.

    :param tag: tag of the child.
    :param before: tags of the children that stand before it; None for all.
    """
    found = parent.find(tag)
    if found is None:
        found = etree.Element(tag)
        insert_children(parent, [found], max(
            (place for place, child in enumerate(parent, start=1)
             if before is None or child.tag in before), default=0))
    return found


def remove_element(element: etree._Element | None) -> None:
    """Remove an XML element together with its indentation.

    :param element: the element; nothing is done if it is None.
    """
    parent = None if element is None else element.getparent()
    if element is None or parent is None:
        return
    previous = element.getprevious()
    if len(parent) == 1:
        parent.text = None
    elif element.getnext() is None and previous is not None:
        previous.tail = element.tail
    parent.remove(element)

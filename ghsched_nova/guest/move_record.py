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

"""Record of a running guest's node move, in the metadata of its domain (pure).

The element is independent of nova-compute, so that a restarted nova-compute
finds a move that was in progress.
"""

import json
from typing import Any

from lxml import etree

from ghsched_nova.guest import document

NAMESPACE = 'https://opendev.org/x/ghsched/move/1.0'
PREFIX = 'ghsched_move'
_MOVE = f'{{{NAMESPACE}}}move'


def render_move_record(packed: Any) -> str:
    """Render a guest's move between host NUMA nodes as an XML element.

    The element is stored in the metadata of the domain (virDomainSetMetadata)
    while the guest is moved. An interrupted move can thus be detected.

    :param packed: the move in the wire format of RPC calls.
    """
    element = etree.Element('move')
    element.text = json.dumps(packed)
    return etree.tostring(element, encoding='unicode')


def read_move_record(xml: str) -> Any:
    """Return the move between NUMA nodes that a domain's metadata contains.

    :returns: the move in the wire format of RPC calls; None if no move is in
        progress; an empty list if the element is malformed.
    """
    if NAMESPACE not in xml:
        return None
    element = document.parse_element(xml).find(f'metadata/{_MOVE}')
    if element is None:
        return None
    try:
        return json.loads(element.text or '')
    except (ValueError, RecursionError):
        return []

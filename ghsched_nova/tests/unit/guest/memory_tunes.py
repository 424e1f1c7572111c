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

"""Reader of the ``<memorytune>`` of a domain."""

from lxml import etree

from ghsched_nova.guest import memorytune as mt
from ghsched_placement import cpulist


def read_memorytune(xml):
    """Return the only ``<memorytune>`` of a domain; None if it has none."""
    elements = etree.fromstring(xml.encode()).findall('cputune/memorytune')
    if not elements:
        return None
    element, = elements
    vcpus = element.get('vcpus')
    return mt.MemoryTune(
        vcpus=None if vcpus is None else cpulist.parse_cpu_list(vcpus),
        nodes=tuple(map(_parse_node, element.findall('node'))),
        monitor=element.find('monitor') is not None)


def _parse_node(element):
    values = {name: int(value) for name, value in element.items()}
    if 'hardlimit' in values:
        values['hardlimit'] = bool(values['hardlimit'])
    return mt.NodeTune(**values)

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


"""The keys as a namespace of Glance's metadata definitions.

Horizon shows them where an admin edits the metadata of a flavor. The file
``etc/ghsched/metadefs/compute-ghsched.json`` is what
:func:`make_metadata_namespace` returns; a test compares them. Format:
``metadefs/v2`` schemas of the Image API.
"""

from typing import Any

from ghsched_placement import keys

#: The namespace in Glance.
NAME = 'OS::Compute::Ghsched'

_TYPES = {'int': 'integer', 'bool': 'boolean'}


def make_metadata_namespace() -> dict[str, Any]:
    """Return the Glance metadata definitions of ghsched's extra specs.

    Horizon shows these definitions to an admin who edits the extra specs of a
    flavor.
    """
    return {
        'namespace': NAME,
        'display_name': 'Memory bandwidth, VFs and scheduling (ghsched)',
        'description': 'What a guest is given of the memory bandwidth, the '
                       'devices and the CPUs of the host NUMA nodes that it '
                       'runs on.',
        'visibility': 'public',
        'protected': True,
        'resource_type_associations': [{
            'name': 'OS::Nova::Flavor', 'prefix': f'{keys.NAMESPACE}:'}],
        'properties': {key.name: _make_property(key) for key in keys.KEYS},
    }


def _make_property(key: keys.Key) -> dict[str, Any]:
    found: dict[str, Any] = {
        'title': key.title,
        'description': f'{key.summary} {key.details}'.strip()
        + f' Default: {key.default_text}.',
        'type': _TYPES.get(key.kind, 'string')}
    if key.choices:
        found['enum'] = list(key.choices)
    if key.minimum is not None:
        found['minimum'] = key.minimum
    if key.maximum is not None:
        found['maximum'] = key.maximum
    return found

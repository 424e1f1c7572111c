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

"""Resource classes of ghsched that Placement knows.

nova-compute creates a class when a host first offers it. Placement answers a
query with an unknown class with status 400, which Nova logs as an error.
"""

from collections.abc import Iterable

from ghsched_placement.providers import names
from ghsched_placement.providers.placement_client import PlacementClient
from ghsched_placement.providers.placement_client import PlacementError

_NOT_FOUND = 404


def find_unknown_class(client: PlacementClient,
                       query: Iterable[tuple[str, str]],
                       known: set[str]) -> str:
    """Return a class of ghsched in a query that Placement does not know.

    :param query: parameters of a query for allocation candidates.
    :param known: classes that Placement has once known; those that it knows
        now are added. Placement deletes no class that is in use.
    :returns: name of the class; empty if there is none, or if Placement cannot
        be asked.
    """
    asked = {part.partition(':')[0] for name, value in query
             if name.startswith('resources') for part in value.split(',')}
    for name in sorted((asked & names.OUR_CLASSES) - known):
        try:
            client.get(f'/resource_classes/{name}')
        except PlacementError as error:
            if error.code == _NOT_FOUND:
                return name
            return ''
        known.add(name)
    return ''

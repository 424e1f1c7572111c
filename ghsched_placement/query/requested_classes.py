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

"""Extra specs that request resource classes of ghsched by hand (pure).

Placement would allocate the amount, but no host would enforce it: only keys of
ghsched give a guest a control group and limits.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import re

from ghsched_placement.base.errors import PolicyError
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.resources import BESIDE_BANDWIDTH
from ghsched_placement.providers import names

_RESOURCES = re.compile(r'resources[a-zA-Z0-9_-]{0,64}:(.*)', re.DOTALL)

#: Extra specs to set in place of a resource class of the installed features.
_USE = {
    names.MEM_BW_PCT: keys.MEM_BW_MIN.extra_spec,
    **{name: resource.key.extra_spec
       for name, resource in BESIDE_BANDWIDTH.items()},
    names.RESCTRL_GROUP: f'{keys.MEM_BW_MIN.extra_spec} or another key that '
                         'needs a control group'}


def find_requested_classes(extra_specs: Iterable[str]
                           ) -> Iterator[PolicyError]:
    """Yield an error for each extra spec that requests a class of ghsched.

    :param extra_specs: names of the extra specs.
    """
    for extra_spec in sorted(extra_specs):
        match = _RESOURCES.fullmatch(extra_spec)
        if match and match[1] in names.OUR_CLASSES:
            yield PolicyError(
                extra_spec, 'takes resources of a host and sets no limit on '
                f'it: use {_USE.get(match[1], "keys of ghsched")}')

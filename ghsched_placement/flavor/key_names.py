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

"""Find misspelled names of ghsched extra specs (pure)."""

from collections.abc import Iterable
from collections.abc import Iterator
import difflib
import re

from ghsched_placement.base.errors import PolicyError
from ghsched_placement.flavor import keys

_PREFIX = keys.NAMESPACE + ':'

#: Similarity to an extra spec of ghsched, from 0 to 1, above which an unknown
#: name counts as a typing error.
_ALIKE = 0.85


#: The word of our namespace, with whatever stands in place of the colon.
_NAMED = re.compile(rf'\s*{keys.NAMESPACE}(?:[^a-z0-9]|$)\s*', re.IGNORECASE)

#: Names of keys that no other software uses without a namespace. The others
#: may be those of host aggregates, which have none.
_OWN_NAMES = 'mem_bw_'


def guess_extra_spec(extra_spec: str) -> str | None:
    """Return the ghsched extra spec that a misspelled name most likely means.

    A guest NUMA node after a dot, as in ``.1``, is kept.

    :returns: None if no ghsched extra spec has a similar name.
    """
    named = _NAMED.match(extra_spec)
    rest = extra_spec[named.end():] if named else extra_spec
    name, dot, node = rest.partition('.')
    name = name.strip().lower()
    if named or name.startswith(_OWN_NAMES) and name in keys.BY_NAME:
        name = f'{keys.NAMESPACE}:{name}'
    known = {key.extra_spec.lower(): key.extra_spec for key in keys.KEYS}
    found = difflib.get_close_matches(name, known, 1, _ALIKE)
    return known[found[0]] + dot + node if found else None


def is_in_ghsched_namespace(extra_spec: str) -> bool:
    """Whether the name of an extra spec begins with ``ghsched`` as a word.

    Any separator may follow, because an admin may mistype the colon.
    """
    return _NAMED.match(extra_spec) is not None


def _add_prefix(extra_spec: str) -> str | None:
    """Return the full name of a ghsched extra spec.

    The full name has the prefix ``ghsched:``. ``mem_bw_min.1`` becomes
    ``ghsched:mem_bw_min.1``.

    :param extra_spec: name without the prefix.
    :returns: None if ghsched has no extra spec of this name.
    """
    name, dot, node = extra_spec.strip().lower().partition('.')
    key = keys.BY_NAME.get(name)
    return None if key is None else key.extra_spec + dot + node


def find_misspelt_keys(extra_specs: Iterable[str]) -> Iterator[PolicyError]:
    """Yield an error for each extra spec that is a misspelled one of ghsched.

    :param extra_specs: names of the extra specs.
    """
    for extra_spec in sorted(extra_specs):
        if extra_spec.startswith(_PREFIX):
            continue
        nearest = guess_extra_spec(extra_spec)
        if nearest:
            yield PolicyError(extra_spec, f'do you mean {nearest}?')


def find_doubtful_keys(extra_specs: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each extra spec that may be meant for ghsched.

    Its name resembles one of ghsched's extra specs. It is not refused, because
    it may be a property of host aggregates.
    """
    for extra_spec in sorted(extra_specs):
        if extra_spec.startswith(_PREFIX) or guess_extra_spec(extra_spec):
            continue
        meant = _add_prefix(extra_spec)
        if meant or is_in_ghsched_namespace(extra_spec):
            yield (f'{extra_spec} is no key of ghsched, whose keys have the '
                   f'form {meant or _PREFIX + "NAME"}')

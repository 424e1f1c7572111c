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

"""Table of all ``ghsched:`` extra specs, and their names in flavors (pure)."""

from collections.abc import Iterable
from collections.abc import Iterator
import difflib
import re

from ghsched_placement.base.errors import PolicyError
from ghsched_placement.features import declared
from ghsched_placement.flavor.key_values import NEEDS_TOPOLOGY
from ghsched_placement.flavor.key_values import PREFIX
from ghsched_placement.flavor import keys
from ghsched_placement.flavor import vcpu_classes

#: All keys, those of the features after those of the core.
KEYS: tuple[keys.Key, ...] = (*keys.CORE, *(
    key for feature in declared.FEATURES for key in feature.keys))

BY_NAME: dict[str, keys.Key] = {key.name: key for key in KEYS}

_KEY = re.compile(r'(?P<name>[^.]+)(?:\.(?P<node>.*))?', re.DOTALL)
_NODE = re.compile(r'0|[1-9][0-9]{0,3}')

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
    if named or name.startswith(_OWN_NAMES) and name in BY_NAME:
        name = f'{keys.NAMESPACE}:{name}'
    known = {key.extra_spec.lower(): key.extra_spec for key in KEYS}
    found = difflib.get_close_matches(name, known, 1, _ALIKE)
    return known[found[0]] + dot + node if found else None


def is_in_ghsched_namespace(extra_spec: str) -> bool:
    """Whether the name of an extra spec begins with ``ghsched`` as a word.

    Any separator may follow, because an admin may mistype the colon.
    """
    return _NAMED.match(extra_spec) is not None


def complete_extra_spec_name(extra_spec: str) -> str | None:
    """Return the full name of an extra spec that lacks ``ghsched:``.

    ``mem_bw_min.1`` becomes ``ghsched:mem_bw_min.1``.

    :param extra_spec: name without the prefix.
    :returns: None if ghsched has no extra spec of this name.
    """
    name, dot, node = extra_spec.strip().lower().partition('.')
    key = BY_NAME.get(name)
    return None if key is None else key.extra_spec + dot + node


def find_misspelt_keys(extra_specs: Iterable[str]) -> Iterator[PolicyError]:
    """Yield an error for each extra spec that is a misspelled one of ghsched.

    :param extra_specs: names of the extra specs.
    """
    for extra_spec in sorted(extra_specs):
        if extra_spec.startswith(PREFIX):
            continue
        nearest = guess_extra_spec(extra_spec)
        if nearest:
            yield PolicyError(extra_spec, f'do you mean {nearest}?')


def split_extra_spec(extra_spec: str) -> tuple[keys.Key, int | str | None]:
    """Split an extra spec's name into its key and its guest node or class.

    ``ghsched:mem_bw_min.1`` is the key ``mem_bw_min`` for guest NUMA node 1,
    and ``ghsched:mem_bw_min.latency`` for the vCPU class ``latency``.

    :returns: the key, and the number of a guest NUMA node, the name of a vCPU
        class, or None.
    :raises PolicyError: for an unknown key, or for a guest NUMA node or class
        if the key cannot be set for single ones.
    """
    match = _KEY.fullmatch(extra_spec[len(PREFIX):])
    key = BY_NAME.get(match['name']) if match else None
    if match is None or key is None:
        nearest = guess_extra_spec(extra_spec)
        if nearest not in (None, extra_spec):
            raise PolicyError(extra_spec,
                              f'unknown key; do you mean {nearest}?')
        known = ', '.join(k.extra_spec for k in KEYS)
        raise PolicyError(extra_spec, f'unknown key; known are {known}')
    if match['node'] is None:
        return key, None
    if not key.per_node:
        raise PolicyError(extra_spec, 'this key holds for the whole guest and '
                                      'takes no guest NUMA node')
    if _NODE.fullmatch(match['node']):
        return key, int(match['node'])
    if key.per_class and vcpu_classes.is_class_name(match['node']):
        return key, str(match['node'])
    raise PolicyError(
        extra_spec, 'the part after the dot must be the number of a guest '
        'NUMA node' + (f' or a class of {keys.VCPU_CLASSES.extra_spec}'
                       if key.per_class else ''))


def split_extra_spec_names(extra_specs: Iterable[str], guest_nodes: int
                           ) -> dict[str, tuple[keys.Key, int | str | None]]:
    """Split the names of ghsched extra specs, see :func:`split_extra_spec`.

    :param guest_nodes: number of guest NUMA nodes.
    :raises PolicyError: for the first that is unknown, or is for a guest NUMA
        node that the guest does not have.
    """
    found = {}
    for extra_spec in extra_specs:
        key, node = found[extra_spec] = split_extra_spec(extra_spec)
        if key.per_node and not guest_nodes:
            raise PolicyError(extra_spec, NEEDS_TOPOLOGY)
        if isinstance(node, int) and node >= guest_nodes:
            raise PolicyError(
                extra_spec, f'the guest has no NUMA node {node}, it has '
                            f'{guest_nodes} (counted from 0)')
    return found

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

"""All errors in the extra specs of a flavor (pure)."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import itertools

from ghsched_placement.base.errors import PolicyError
from ghsched_placement.features import declared
from ghsched_placement.flavor import auto_nodes
from ghsched_placement.flavor import key_names
from ghsched_placement.flavor.key_names import split_extra_spec
from ghsched_placement.flavor import key_values
from ghsched_placement.flavor import keys
from ghsched_placement.flavor import policy
from ghsched_placement.query.requested_classes import find_requested_classes


def find_all_flavor_errors(extra_specs: Mapping[str, str], guest_nodes: int,
                           vcpus: int = 0) -> tuple[PolicyError, ...]:
    """Return all errors in the ghsched extra specs of a flavor.

    Extra specs are checked one by one first. Only if all are valid, they are
    checked for contradictions.

    :param vcpus: number of vCPUs; 0 if unknown.
    """
    ours = policy.select_ghsched_keys(extra_specs)
    others = {key: value for key, value in extra_specs.items()
              if key not in ours}
    found = [error for key, value in ours.items()
             if (error := _find_extra_spec_error(key, value,
                                                 guest_nodes)) is not None]
    found.extend(key_names.find_misspelt_keys(others))
    found.extend(find_requested_classes(others))
    if found:
        return tuple(found)
    for together in (*_group_related_extra_specs(ours, guest_nodes), ours):
        error = _find_policy_error(others | together, guest_nodes, vcpus)
        if error is not None and error.key not in {
                other.key for other in found}:
            found.append(error)
    return tuple(found)


def _group_related_extra_specs(ours: Mapping[str, str],
                               guest_nodes: int) -> Iterator[dict[str, str]]:
    """Split ghsched extra specs into groups that are checked separately.

    Only extra specs in the same group can contradict each other.

    :param ours: text values of ghsched's extra specs, by name.
    :param guest_nodes: number of guest NUMA nodes.
    """
    split = {extra_spec: split_extra_spec(extra_spec) for extra_spec in ours}
    for node in range(guest_nodes):
        of_others = {keys.MEM_BW_MIN.get_node_extra_spec(other): '0'
                     for other in range(guest_nodes) if other != node}
        yield of_others | {
            extra_spec: ours[extra_spec]
            for extra_spec, (key, of_node) in split.items()
            if key == keys.VCPU_CLASSES or isinstance(of_node, str)
            or key.per_node and key != keys.VFS and of_node in (None, node)}
    together = [feature.keys for feature in declared.FEATURES
                if feature.are_keys_checked_together]
    apart = frozenset(itertools.chain(*together))
    for chosen in ((keys.VFS,), *((*those, *auto_nodes.KEYS)
                                  for those in together),
                   [key for key in key_names.KEYS
                    if not key.per_node and key not in apart]):
        yield {extra_spec: ours[extra_spec]
               for extra_spec, (key, _node) in split.items() if key in chosen}


def _find_extra_spec_error(extra_spec: str, text: str,
                           guest_nodes: int) -> PolicyError | None:
    """Return the error of a single extra spec, without regard to others.

    :param text: value of the extra spec.
    :param guest_nodes: number of guest NUMA nodes.
    :returns: None if the extra spec is valid by itself.
    """
    try:
        key, node = split_extra_spec(extra_spec)
        if (key in (*auto_nodes.KEYS, keys.VCPU_CLASSES)
                or isinstance(node, str)) or any(
                feature.are_keys_checked_together and key in feature.keys
                for feature in declared.FEATURES):
            policy.check_extra_spec(extra_spec, text)
            return None
    except PolicyError as error:
        return error
    return _find_policy_error({extra_spec: text}, guest_nodes)


def _find_policy_error(extra_specs: Mapping[str, str], guest_nodes: int,
                       vcpus: int = 0) -> PolicyError | None:
    try:
        policy.parse_policy(extra_specs, guest_nodes, vcpus)
    except PolicyError as error:
        return error
    return None


def find_doubtful_keys(extra_specs: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each extra spec that may be meant for ghsched.

    Its name resembles one of ghsched's extra specs. It is not refused, because
    it may be a property of host aggregates.
    """
    for extra_spec in sorted(extra_specs):
        if (extra_spec.startswith(key_values.PREFIX)
                or key_names.guess_extra_spec(extra_spec)):
            continue
        meant = key_names.complete_extra_spec_name(extra_spec)
        if meant or key_names.is_in_ghsched_namespace(extra_spec):
            yield (f'{extra_spec} is no key of ghsched, whose keys have the '
                   f'form {meant or key_values.PREFIX + "NAME"}')

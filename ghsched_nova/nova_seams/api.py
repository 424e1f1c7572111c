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

"""Seams of nova-api: limits, flavors and rules of its policy."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import copy
import threading
from typing import Any

from nova import exception
from nova.limit import placement as placement_limits
from nova.limit import utils as limit_utils
from nova import objects
from nova import policy as nova_policy
from oslo_limit import exception as limit_exceptions

from ghsched_nova.nova_seams import registry

seam = registry.in_processes(registry.API)


@seam('nova.objects.flavor.Flavor._orig_extra_specs')
@seam('nova.objects.flavor.Flavor.save_extra_specs',
      ('self', 'to_add', 'to_delete'))
def check_flavors(check: Callable[[Mapping[str, str], Collection[str]], None]
                  ) -> None:
    """Have the extra specs of a flavor checked before they are stored.

    nova-api hands validators one key at a time, without the rest of the
    flavor. ``nova.objects.flavor.Flavor.save`` knows all of them, and calls
    ``save_extra_specs`` with the whole of what is to be there.

    :param check: takes what is to be there, and the names of what is new or
        differs. What it raises reaches the caller of nova-api.
    """
    def save(original: Callable[..., Any], flavor: Any,
             to_add: Mapping[str, str] | None = None,
             to_delete: Any = None) -> Any:
        before = getattr(flavor, '_orig_extra_specs', {})
        added = {name for name, value in (to_add or {}).items()
                 if before.get(name) != value}
        if added:
            check(to_add or {}, added)
        return original(flavor, to_add, to_delete)

    registry.replace('nova.objects.flavor.Flavor.save_extra_specs', save)


@seam('nova.limit.placement._get_deltas',
      ('request_spec', 'count'), releases=range(34, 100))
@seam('nova.limit.placement._get_deltas_by_flavor',
      ('flavor', 'is_bfv', 'count'), releases=range(31, 34))
def extend_limits(
        function: Callable[..., dict[str, int]]) -> None:
    """Have a function of ours say what a request adds to a project's usage.

    ``nova.limit.placement.enforce_num_instances_and_resources``, which
    nova-api calls for a new server, a resize, a restore and an unshelving,
    looks ``_get_deltas`` up in its module. Nova 31 to 33 have
    ``_get_deltas_by_flavor``, which knows nothing of a request but its flavor.

    :param function: takes Nova's function, and then its arguments.
    """
    def by_flavor(original: Callable[..., Any], flavor: Any, is_bfv: bool,
                  count: int) -> dict[str, int]:
        return function(lambda _spec, number: original(flavor, is_bfv, number),
                        objects.RequestSpec(flavor=flavor), count)
    if hasattr(placement_limits, '_get_deltas'):
        registry.replace('nova.limit.placement._get_deltas', function)
    else:
        registry.replace('nova.limit.placement._get_deltas_by_flavor',
                         by_flavor)


@seam('nova.limit.placement._get_enforcer', ('context', 'project_id'))
@seam('nova.limit.utils.should_enforce', ('exc',))
@seam('nova.limit.utils.use_unified_limits', ())
def enforce_limits(context: Any, project_id: str,
                   deltas: Mapping[str, int]) -> None:
    """Refuse more of some resources than a project may have.

    Nothing is refused where Nova does not use unified limits.

    :param deltas: what is added, by name of the limit.
    :raises OverQuota: of Nova, naming what is too much.
    """
    if not deltas or not limit_utils.use_unified_limits():
        return
    try:
        placement_limits._get_enforcer(context, project_id).enforce(
            project_id, dict(deltas))
    except limit_exceptions.ProjectOverLimit as error:
        if limit_utils.should_enforce(error):
            raise exception.OverQuota(str(error)) from error


#: Held while rules are added to Nova's.
_registering = threading.Lock()


@seam('nova.policy._ENFORCER')
@seam('nova.policy.init',
      ('policy_file', 'rules', 'default_rule', 'use_conf',
       'suppress_deprecation_warnings'))
@seam('nova.policy.authorize',
      ('context', 'action', 'target', 'do_raise', 'exc'))
def authorize(context: Any, rules: Iterable[Any], rule: str,
              target: Mapping[str, Any]) -> None:
    """Ask nova-api's policy whether a user may do something of ours.

    Nova has no way to add a rule, so its enforcer gets them (nova/policy.py).

    :param rules: ours, with what holds where the policy file names none.
    :param target: attributes of what it is done to.
    :raises Forbidden: of Nova, when it is not allowed.
    """
    nova_policy.init()
    enforcer = nova_policy._ENFORCER
    with _registering:
        missing = {one.name: copy.deepcopy(one) for one in rules
                   if one.name not in enforcer.registered_rules}
        if missing:
            # Other threads walk through these with each of their requests
            # (load_rules() of oslo_policy/policy.py).
            enforcer.registered_rules = {**enforcer.registered_rules,
                                         **missing}
    nova_policy.authorize(context, rule, target)

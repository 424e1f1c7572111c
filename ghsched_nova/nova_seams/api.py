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
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception
from nova.limit import placement as placement_limits
from nova import objects
from nova import policy as nova_policy
from oslo_policy import policy

from ghsched_nova.nova_seams import registry

flavor_seam = registry.make_seam_decorator(registry.API,
                                           part=registry.FLAVOR_CHECK)
limits_seam = registry.make_seam_decorator(registry.API, part=registry.LIMITS)
actions_seam = registry.make_seam_decorator(registry.API,
                                            part=registry.ACTIONS)


@flavor_seam('nova.objects.flavor.Flavor.get_by_flavor_id',
             ('context', 'flavor_id', 'read_deleted'))
@flavor_seam('nova.objects.flavor.Flavor.save_extra_specs',
             ('self', 'to_add', 'to_delete'),
             replaced='The extra specs of a flavor are checked together; '
                      'validators get one key at a time.')
def add_flavor_check(
        check: Callable[[Mapping[str, str], Collection[str], int, int], None]
) -> None:
    """Add a check of a flavor's extra specs before Nova stores the flavor.

    nova-api's own validators get one extra spec at a time, without the others
    of the flavor. ``nova.objects.flavor.Flavor.save`` knows all of them, and
    passes them to ``save_extra_specs``.

    :param check: takes all extra specs to store, the names of those that are
        new or changed, and the vCPUs and MiB of the flavor. An error that it
        raises reaches the caller of the API.
    """
    def save(original: Callable[..., Any], flavor: Any,
             to_add: Mapping[str, str] | None = None,
             to_delete: Any = None) -> Any:
        stored = objects.Flavor.get_by_flavor_id(
            nova_context.get_admin_context(), flavor.flavorid).extra_specs
        added = {name for name, value in (to_add or {}).items()
                 if stored.get(name) != value}
        if added:
            check(to_add or {}, added, flavor.vcpus, flavor.memory_mb)
        return original(flavor, to_add, to_delete)

    registry.replace_function('nova.objects.flavor.Flavor.save_extra_specs',
                              save)


@limits_seam('nova.limit.placement._get_deltas',
             ('request_spec', 'count'),
             otherwise='nova.limit.placement._get_deltas_by_flavor',
             replaced='Limits of a project count bandwidth (Nova 34); Nova '
                      'has no hook for the usage of a request.')
@limits_seam('nova.limit.placement._get_deltas_by_flavor',
             ('flavor', 'is_bfv', 'count'), may_be_missing=True,
             replaced='The same in Nova 31 to 33.')
def extend_usage_deltas(
        function: Callable[..., dict[str, int]]) -> None:
    """Make Nova count further resources against a project's unified limits.

    Nova checks the unified limits for a new server, a resize, a restore and an
    unshelving. It gets the amounts to check from ``_get_deltas``, or from
    ``_get_deltas_by_flavor`` in Nova before 34. This function is replaced.

    :param function: function that returns the amount of each resource to
        count. Its arguments are Nova's function, the RequestSpec and the
        number of requested servers.
    """
    def by_flavor(original: Callable[..., Any], flavor: Any, is_bfv: bool,
                  count: int) -> dict[str, int]:
        return function(lambda _spec, number: original(flavor, is_bfv, number),
                        objects.RequestSpec(flavor=flavor), count)
    if hasattr(placement_limits, '_get_deltas'):
        registry.replace_function('nova.limit.placement._get_deltas', function)
    else:
        registry.replace_function('nova.limit.placement._get_deltas_by_flavor',
                                  by_flavor)


def uses_unified_limits() -> bool:
    """Return whether nova.conf chooses unified limits."""
    return bool(nova.conf.CONF.quota.driver
                == 'nova.quota.UnifiedLimitsDriver')


@actions_seam('nova.policy.register_rules', ('enforcer',))
def make_policy_enforcer(
        rules: Sequence[policy.RuleDefault]) -> policy.Enforcer:
    """Return a policy enforcer with Nova's rules and additional rules.

    Nova's rules are included because a policy file may refer to them. Nova's
    own enforcer is not changed.

    :param rules: additional rules, each with its default.
    """
    enforcer = policy.Enforcer(nova.conf.CONF)
    # Nova's own enforcer has logged what is deprecated in the file.
    enforcer.suppress_default_change_warnings = True
    enforcer.suppress_deprecation_warnings = True
    nova_policy.register_rules(enforcer)
    enforcer.register_defaults(rules)
    enforcer.load_rules()
    return enforcer


def authorize(enforcer: policy.Enforcer, context: Any, rule: str,
              target: Mapping[str, Any]) -> None:
    """Refuse a request that nova-api's policy file does not allow.

    :param rule: name of the rule to check.
    :param target: attributes of the server that the request is about.
    :raises PolicyNotAuthorized: Nova's exception; nova-api answers with 403.
    """
    try:
        enforcer.authorize(rule, target, context, do_raise=True,
                           exc=exception.PolicyNotAuthorized, action=rule)
    except policy.InvalidScope:
        raise exception.PolicyNotAuthorized(action=rule) from None

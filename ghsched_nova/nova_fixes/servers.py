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

"""Detection of servers whose flavor has ghsched extra specs."""

from collections.abc import Callable
import functools
from typing import Any

from nova import exception

from ghsched_placement.flavor import policy as policies


def has_ghsched_flavor(instance: Any) -> bool:
    """Return whether a flavor of a server has ghsched extra specs.

    The current, old and new flavor are checked, because a server that is being
    resized has two flavors (``Instance.new_flavor``).
    """
    try:
        flavors = [getattr(instance, name, None)
                   for name in ('flavor', 'new_flavor', 'old_flavor')]
        return any(policies.has_ghsched_keys(flavor.extra_specs or {})
                   for flavor in flavors if flavor is not None)
    except exception.NovaException:     # one of them cannot be loaded
        return False


def limit_to_ghsched_servers(replacement: Callable[..., Any],
                             instance_position: int) -> Callable[..., Any]:
    """Wrap a replacement of a Nova function to act on ghsched's servers only.

    The replacement is called for servers whose flavor has ghsched extra specs.
    Nova's function is called for all others.

    :param replacement: takes Nova's function, then the arguments of that
        function.
    :param instance_position: position of the instance among the arguments of
        Nova's function, unless it is passed by keyword.
    """
    @functools.wraps(replacement)
    def chosen(original: Callable[..., Any], *args: Any,
               **kwargs: Any) -> Any:
        instance = (kwargs['instance'] if 'instance' in kwargs
                    else args[instance_position])
        if has_ghsched_flavor(instance):
            return replacement(original, *args, **kwargs)
        return original(*args, **kwargs)
    return chosen

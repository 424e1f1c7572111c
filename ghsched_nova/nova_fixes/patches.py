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
"""Functions that repairs put in place of those of Nova.

Each is declared where it is defined, by :func:`make_patch_decorator`, and put
in place by :func:`apply_patches`.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

from ghsched_nova.nova_fixes import servers
from ghsched_nova.nova_seams import registry

_Replacement = TypeVar('_Replacement', bound=Callable[..., Any])

#: Replacements of Nova's functions by dotted name, for each service and module
#: of a repair.
_PATCHES: dict[tuple[str, str], dict[str, Callable[..., Any]]] = {}


def make_patch_decorator(
        *processes: str) -> Callable[..., Callable[[_Replacement],
                                                   _Replacement]]:
    """Return a decorator of functions that replace one of Nova's.

    The decorator declares the dotted name and the parameters of Nova's
    function, see :func:`registry.make_seam_decorator`. The replacement takes
    Nova's function, and then the arguments of that function. With
    ``only_ours`` it is called only for servers whose flavor has ghsched extra
    specs, and Nova's function for all others.

    :param processes: services in which the functions are replaced.
    """
    seam = registry.make_seam_decorator(*processes)

    def patch(name: str, parameters: Sequence[str], only_ours: bool = False
              ) -> Callable[[_Replacement], _Replacement]:
        def declared(function: _Replacement) -> _Replacement:
            replacement = servers.limit_to_ghsched_servers(
                function, parameters.index('instance')
            ) if only_ours else function
            for process in processes:
                _PATCHES.setdefault((process, function.__module__), {})[
                    name] = replacement
            return seam(name, parameters)(function)
        return declared
    return patch


def apply_patches(module: str, process: str) -> None:
    """Replace the functions of Nova that a repair replaces in a service.

    A second call changes nothing.

    :param module: dotted name of the module of the repair.
    """
    for name, function in _PATCHES.get((process, module), {}).items():
        registry.replace_function(name, function)

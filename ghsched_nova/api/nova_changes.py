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


"""Patches of nova-api, applied by the filter of ghsched in its pipeline.

Installing ghsched changes no service of Nova. The line ``[filter:ghsched]`` of
``api-paste.ini`` loads :mod:`ghsched_nova.api.server_filter`, which calls
:func:`apply_patches`.
"""

from collections.abc import Callable
from typing import Any

from ghsched_nova.api import extra_specs
from ghsched_nova.api import limits
from ghsched_nova.nova_fixes import table as fixes
from ghsched_nova.nova_seams import api
from ghsched_nova.nova_seams import parts
from ghsched_nova.nova_seams import pci
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova import pci_requests


def apply_patches() -> None:
    """Patch the functions of nova-api that ghsched extends.

    Parts of ghsched whose functions of Nova differ are off. A second call
    changes nothing.

    :raises ghsched_nova.nova_seams.registry.IncompatibleNova: if
        ``[ghsched]nova_fixes`` names an unknown fix.
    """
    shared.config()
    fixes.require_known_fixes()
    off = parts.switch_off_parts(
        registry.API, () if api.uses_unified_limits() else (registry.LIMITS,))
    if registry.VFS not in off:
        pci_requests.patch_nova_pci_requests()
        pci.wrap_pci_requests(refuse_flavor_of_disabled_part)
    if registry.LIMITS not in off:
        api.extend_usage_deltas(limits.add_usage_deltas)
    if registry.FLAVOR_CHECK not in off:
        api.add_flavor_check(extra_specs.check_flavor)
    fixes.apply_fixes(registry.API)


def refuse_flavor_of_disabled_part(original: Callable[..., Any], flavor: Any,
                                   *args: Any, **kwargs: Any) -> Any:
    """Refuse a server's flavor if it needs a part of ghsched that is off.

    Nova makes the PCI requests of each flavor that it uses for a server.

    :param original: ``nova.pci.request.get_pci_requests_from_flavor``.
    :raises nova.exception.PciInvalidAlias: with the reason.
    """
    reason = parts.find_refusal(
        registry.API, flavor['extra_specs'] if 'extra_specs' in flavor else ())
    if reason:
        raise pci_requests.BadFlavor(reason=reason)
    return original(flavor, *args, **kwargs)


def find_api_refusal() -> str:
    """Return why nova-api cannot serve ghsched's API; empty if it can.

    Without limits, a live change could raise a project's usage above them.
    """
    return next((reason for part in (registry.ACTIONS, registry.LIMITS)
                 if (reason := parts.OFF.get((registry.API, part)))), '')

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


"""Change nova-api where an operator put the filter of ghsched in its pipeline.

Installing ghsched changes no service of Nova. The line ``[filter:ghsched]`` of
``api-paste.ini`` loads :mod:`ghsched_nova.api.server_set`, which calls
:func:`apply_patches`.
"""

from ghsched_nova.api import extra_specs
from ghsched_nova.api import limits
from ghsched_nova.nova_fixes import table as fixes
from ghsched_nova.nova_seams import api
from ghsched_nova.nova_seams import registry
from ghsched_nova import pci_requests


def apply_patches() -> None:
    """Patch the functions of nova-api that ghsched extends.

    A second call changes nothing.

    :raises ghsched_nova.nova_seams.registry.IncompatibleNova: if the installed
        Nova is not compatible with ghsched.
    """
    fixes.require_compatible_fixes(registry.API)
    pci_requests.patch_nova_pci_requests()
    api.extend_usage_deltas(limits.add_usage_deltas)
    api.add_flavor_check(extra_specs.check_flavor)
    fixes.apply_fixes(registry.API)

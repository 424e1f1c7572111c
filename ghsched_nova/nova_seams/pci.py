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

"""PCI requests of flavors and providers of pools, in all services."""

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from ghsched_nova.nova_seams import registry

seam = registry.make_seam_decorator(*registry.PROCESSES, part=registry.VFS)


@seam('nova.pci.request.get_pci_requests_from_flavor',
      ('flavor', 'affinity_policy'),
      replaced='``ghsched:vfs`` becomes PCI requests; Nova makes them of its '
               'own key alone.')
def wrap_pci_requests(function: Callable[..., Any]) -> None:
    """Wrap Nova's function that makes PCI requests from a flavor.

    nova-api (``nova.compute.api``), nova-compute
    (``nova.compute.resource_tracker``, for a move) and
    ``nova.scheduler.utils`` all look
    ``nova.pci.request.get_pci_requests_from_flavor`` up in its module when
    they call it.

    :param function: takes Nova's function, and then the arguments of that
        function.
    """
    registry.replace_function('nova.pci.request.get_pci_requests_from_flavor',
                              function)


def map_pools_to_nodes(pools: Iterable[Any]) -> dict[str, int | None]:
    return {pool['rp_uuid']: pool.get('numa_node')
            for pool in pools if pool.get('rp_uuid')}

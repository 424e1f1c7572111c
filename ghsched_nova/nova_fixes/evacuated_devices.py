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

"""Fix: an evacuated guest has only the devices of its own PCI requests.

After an evacuation the devices on the dead host stay allocated to the
guest in Nova's records until that host is back, and no request of the
guest has made them. ``Instance.get_pci_devices`` then fails with a KeyError,
and without a source it takes the devices of the other host for devices of
this one. See
``doc/source/contributor/upstream/evacuated-devices.rst``.
"""

from collections.abc import Callable
from typing import Any

from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_fixes import servers
from ghsched_nova.nova_seams import registry

patch = patches.make_patch_decorator(registry.COMPUTE)


@patch('nova.objects.instance.Instance.get_pci_devices',
       ('self', 'source', 'request_id'))
def _get_local_devices(original: Callable[..., Any],
                       instance: Any,
                       source: int | None = None,
                       request_id: str | None = None) -> list[Any]:
    if not servers.has_ghsched_flavor(instance):
        return list(original(instance, source=source, request_id=request_id))
    devices = original(instance, request_id=request_id)
    if not devices:
        return []
    sources = {request.request_id: request.source
               for request in instance.pci_requests.requests}
    return [device for device in devices
            if device.request_id in sources
            and source in (None, sources[device.request_id])]

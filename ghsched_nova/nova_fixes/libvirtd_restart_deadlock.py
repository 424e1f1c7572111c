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

"""Fix: prevent a deadlock when libvirt reports a lost connection.

``Host._get_connection`` asks with ``_wrapped_conn_lock`` held, and libvirt
calls ``Host._connection_closed``, which takes it, from that very thread.
Where nova-compute has threads and no eventlet (since Nova 33), that waits
for itself, and all others for it, until nova-compute is restarted. See
``doc/source/contributor/upstream/libvirtd-restart-deadlock.rst``.
"""

import threading
from typing import Any

from ghsched_nova.nova_seams import registry

seam = registry.make_seam_decorator(registry.COMPUTE)


@seam('nova.virt.libvirt.host.Host._wrapped_conn_lock')
@seam('nova.virt.libvirt.host.Host._get_connection', ('self',))
@seam('nova.virt.libvirt.host.Host._test_connection', ('conn',))
@seam('nova.virt.libvirt.host.Host._connection_closed',
      ('self', 'conn', 'args', 'kwargs'), may_be_missing=True)
def make_connection_lock_reentrant(host: Any) -> None:
    """Make the lock of a libvirt connection re-entrant, to prevent a deadlock.

    Since Nova 33, nova-compute hangs if libvirt reports a lost connection on
    the thread that holds the lock. One lock serves all guests of the host.

    :param host: ``nova.virt.libvirt.host.Host`` of the driver.
    """
    host._wrapped_conn_lock = threading.RLock()
    registry.record_addition('nova.virt.libvirt.host.Host._wrapped_conn_lock',
                             threading.RLock)

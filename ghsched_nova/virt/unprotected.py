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

"""The operator's rule for guests whose policy the host cannot enforce.

After a reboot into another kernel a host may be unable to enforce policies
that it enforced before. ``[ghsched]unprotected_guests`` says whether guests
of the host then start. New guests and guests that arrive are refused in any
case: other hosts can take them.
"""

from collections.abc import Iterator
import contextlib
import contextvars
from typing import Any

from oslo_log import log as logging

from ghsched_nova.guest import memorytune
from ghsched_nova.host import desired
from ghsched_nova.nova_seams import shared
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.resctrl import resolve

LOG = logging.getLogger(__name__)

START = 'start'

#: Exceptions that mean that the kernel or libvirt of this host cannot enforce
#: a bandwidth policy.
CAUSES = (resctrl_host.ResctrlUnavailable, resolve.PolicyRefused,
          fs.GroupError, desired.DomainError, memorytune.MemoryTuneError)

#: Whether the guest that this thread starts is new on this host.
_arrives = contextvars.ContextVar('ghsched_guest_arrives', default=False)


@contextlib.contextmanager
def refusing_unprotected_guests() -> Iterator[None]:
    """Within this context, no guest may start without its bandwidth policy.

    :func:`may_start_unprotected` then returns False. This is also a decorator
        for methods that start guests which are new on this host.
    """
    token = _arrives.set(True)
    try:
        yield
    finally:
        _arrives.reset(token)


def may_start_unprotected(error: Exception, instance: Any) -> bool:
    """Return whether a guest may start without bandwidth limits.

    The option ``[ghsched]unprotected_guests`` decides. If the guest may start,
    an error is logged.

    :param error: reason why the guest's policy cannot be enforced.
    """
    if (_arrives.get() or not isinstance(error, CAUSES)
            or shared.config().ghsched.unprotected_guests != START):
        return False
    LOG.error('ghsched: cannot enforce the bandwidth policy of a guest; '
              'starting it unprotected because of '
              '[ghsched]unprotected_guests: %s',
              error, instance=instance)
    return True

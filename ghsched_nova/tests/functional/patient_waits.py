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

"""Waits of Nova's functional tests for a busy machine; nothing of ghsched."""

import contextlib
import time

from ghsched_placement.tests import base

#: How often a wait of Nova is repeated, which gives up after 5 to 20 s.
WAITS = 24


class PatientWaits:
    """Waits of Nova's functional tests, with time for a busy machine.

    To stand before the class of Nova that has them.
    """

    def wait_until(self, happened):
        """Wait until a condition holds, for as long as a busy machine takes.
        """
        end = time.monotonic() + base.GIVE_UP_S
        while not happened():
            self.assertLess(time.monotonic(), end)
            time.sleep(.05)

    def _patiently(self, wait, *args, **kwargs):
        for _ in range(WAITS - 1):
            with contextlib.suppress(self.failureException):
                return wait(*args, **kwargs)
        return wait(*args, **kwargs)

    def _wait_for_server_parameter(self, *args, **kwargs):
        return self._patiently(super()._wait_for_server_parameter,
                               *args, **kwargs)

    def _wait_for_service_parameter(self, *args, **kwargs):
        return self._patiently(super()._wait_for_service_parameter,
                               *args, **kwargs)

    def _wait_for_instance_action_event(self, *args, **kwargs):
        return self._patiently(super()._wait_for_instance_action_event,
                               *args, **kwargs)

    def _wait_for_migration_status(self, *args, **kwargs):
        return self._patiently(super()._wait_for_migration_status,
                               *args, **kwargs)

    def _wait_for_volume_attach(self, *args, **kwargs):
        return self._patiently(super()._wait_for_volume_attach,
                               *args, **kwargs)

    def _wait_for_assert(self, *args, **kwargs):
        return self._patiently(super()._wait_for_assert, *args, **kwargs)

    def _wait_until_deleted(self, server):
        # It is known by whether it was in ERROR when the wait began.
        return self._patiently(super()._wait_until_deleted, server)

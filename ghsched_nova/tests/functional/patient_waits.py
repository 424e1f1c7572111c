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
import functools
import threading
import time
import types
from unittest import mock

import fixtures
from nova.db.main import api as db
from nova.tests.functional import integrated_helpers

from ghsched_placement.tests import base

#: How often a wait of Nova is repeated, which gives up after 5 to 20 s.
WAITS = 24

#: Seconds after which a wait looks at its server again though no record of
#: one has changed.
LOOK_AGAIN = 2.0

#: What Nova calls to change a server, an action and a migration.
SERVER = frozenset({'instance_update_and_get_original', 'instance_destroy',
                    'instance_fault_create'})
ACTION = frozenset({'action_event_finish'})
MIGRATION = frozenset({'migration_update'})


class Changes(fixtures.Fixture):
    """Wakes a wait when a record has changed that it looks at.

    Each look is a request to Nova: waits that look twice a second keep a busy
    machine from what they wait for.
    """

    def _setUp(self):
        self._changed = threading.Event()
        self._awaited = frozenset()
        for write in SERVER | ACTION | MIGRATION:
            self.useFixture(fixtures.MonkeyPatch(
                f'{db.__name__}.{write}',
                functools.partial(self._write, write, getattr(db, write))))

    def _write(self, name, write, *arguments, **keywords):
        done = write(*arguments, **keywords)
        # A server that is in the middle of a task will change again.
        if name in self._awaited and not (
                name == 'instance_update_and_get_original'
                and arguments[2].get('task_state')):
            self._changed.set()
        return done

    @contextlib.contextmanager
    def awaited(self, writes):
        """Make Nova's waits sleep until one of these is called."""
        self._awaited = writes
        self._changed.clear()
        with mock.patch.object(integrated_helpers, 'time',
                               types.SimpleNamespace(sleep=self._sleep)):
            yield

    def _sleep(self, _seconds):
        self._changed.wait(LOOK_AGAIN)
        self._changed.clear()


class PatientWaits:
    """Waits of Nova's functional tests, with time for a busy machine.

    To stand before the class of Nova that has them; its setUp() is to call
    wake_on_changes().
    """

    def wake_on_changes(self):
        """Wake waits when a record changes, until the test ends."""
        self._changes = self.useFixture(Changes())

    def wait_until(self, happened):
        """Wait until a condition holds, for as long as a busy machine takes.
        """
        end = time.monotonic() + base.GIVE_UP_S
        pause = .05
        while not happened():
            self.assertLess(time.monotonic(), end)
            time.sleep(pause)
            pause = min(1.0, 1.5 * pause)

    def _patiently(self, wait, *args, **kwargs):
        for _ in range(WAITS - 1):
            with contextlib.suppress(self.failureException):
                return wait(*args, **kwargs)
        return wait(*args, **kwargs)

    def _until(self, writes, wait, *args, **kwargs):
        with self._changes.awaited(writes):
            return self._patiently(wait, *args, **kwargs)

    def _wait_for_server_parameter(self, *args, **kwargs):
        return self._until(SERVER, super()._wait_for_server_parameter,
                           *args, **kwargs)

    def _wait_for_instance_action_event(self, *args, **kwargs):
        return self._until(ACTION, super()._wait_for_instance_action_event,
                           *args, **kwargs)

    def _wait_for_migration_status(self, *args, **kwargs):
        return self._until(MIGRATION, super()._wait_for_migration_status,
                           *args, **kwargs)

    def _wait_until_deleted(self, server):
        # It is known by whether it was in ERROR when the wait began.
        return self._until(SERVER, super()._wait_until_deleted, server)

    def _wait_for_service_parameter(self, *args, **kwargs):
        return self._patiently(super()._wait_for_service_parameter,
                               *args, **kwargs)

    def _wait_for_volume_attach(self, *args, **kwargs):
        return self._patiently(super()._wait_for_volume_attach,
                               *args, **kwargs)

    def _wait_for_assert(self, *args, **kwargs):
        return self._patiently(super()._wait_for_assert, *args, **kwargs)

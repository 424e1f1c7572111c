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

"""The file with the refusals of a host's nova-scheduler processes.

All processes add to one file, so each of them can return the refusals of all.
"""

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import time
from typing import Any

from oslo_log import log as logging
import oslo_messaging

from ghsched_nova.base import atomic_file
from ghsched_placement.base import retries
from ghsched_placement.base import wire
from ghsched_placement.features.refusals import refusal_record

LOG = logging.getLogger(__name__)


#: oslo.messaging namespace of ghsched's calls on the topic of nova-scheduler.
NAMESPACE = 'ghsched'
RPC_VERSION = '1.0'

#: Seconds to wait for the lock of the file.
_LOCK_TIMEOUT_S = 0.5


class RefusalLog:
    """Counts of refused requests by flavor, in a file.

    All scheduler processes of a host share the file.

    :param directory: ``[DEFAULT]state_path``.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / refusal_record.FORMAT.name

    def count_refusal(self, spec: Any) -> None:
        """Count a refused request in the record of its flavor.

        Errors are logged and not raised.
        """
        try:
            flavor = spec.flavor
            with self._file_lock():
                # It names flavors only. The exporter of a control node is in
                # no group of nova-scheduler.
                atomic_file.write_file(
                    self._path, refusal_record.FORMAT.render(
                        refusal_record.add_refusal(
                            self._parse_file(), flavor.flavorid, flavor.name,
                            time.time())), 0o644)
        except Exception as error:
            LOG.warning('ghsched: cannot record a refused scheduling request; '
                        'it is missing in the list of refusals: %(error)r',
                        {'error': error})

    def read_refusals(self) -> tuple[refusal_record.RefusalCount, ...]:
        """Return the refused scheduling requests recorded on this host.

        The result is empty if the record file cannot be read.
        """
        try:
            return self._parse_file()
        except OSError as error:
            LOG.warning('ghsched: cannot read the record of refused '
                        'scheduling requests; reporting none: %(error)s',
                        {'error': error})
            return ()

    def _parse_file(self) -> tuple[refusal_record.RefusalCount, ...]:
        try:
            return refusal_record.FORMAT.parse(
                wire.read_record_file(self._path))
        except FileNotFoundError:
            return ()

    @contextlib.contextmanager
    def _file_lock(self) -> Iterator[None]:
        """Within this context, no other process or thread changes the record.

        The record is the file of refused scheduling requests.

        :raises TimeoutError: if the lock stays taken for ``_LOCK_TIMEOUT_S``.
        """
        path = self._path.with_suffix('.lock')
        # Whoever can open the file can hold the lock.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
                             | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            try:
                retries.acquire_file_lock(descriptor, _LOCK_TIMEOUT_S)
            except TimeoutError:
                raise TimeoutError(f'{path} is locked') from None
            yield
        finally:
            os.close(descriptor)


class RefusalEndpoint:
    """RPC endpoint by which nova-api reads this host's refused requests.

    :param log: record of the refused requests.
    """

    target = oslo_messaging.Target(namespace=NAMESPACE, version=RPC_VERSION)

    def __init__(self, log: RefusalLog) -> None:
        self._log = log

    def list_refusals(self, _context: Any) -> str:
        """Return this host's recorded refused scheduling requests, as JSON."""
        return refusal_record.FORMAT.render(self._log.read_refusals())

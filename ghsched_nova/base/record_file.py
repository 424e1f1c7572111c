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

"""Records of nova-compute in files, which survive restarts."""

from dataclasses import dataclass
import logging
from pathlib import Path
from typing import Generic
from typing import TypeVar

from ghsched_nova.base import atomic_file
from ghsched_placement.base import wire

LOG = logging.getLogger(__name__)

T = TypeVar('T')


@dataclass(frozen=True)
class RecordFile(Generic[T]):
    """File with one record, which is replaced as a whole.

    :param path: path of the file.
    """

    path: Path
    format: wire.FileFormat[T]

    def read(self) -> T:
        """Return the record; an empty one if the file cannot be read."""
        try:
            return self.format.parse(wire.read_record_file(
                self.path, self.format.longest))
        except FileNotFoundError:
            pass
        except OSError as error:
            LOG.warning('ghsched: cannot read %(path)s, so what it has '
                        'recorded is lost; starting a new record: %(error)s',
                        {'path': self.path, 'error': error})
        return self.format.make_empty()

    def write(self, record: T) -> None:
        """Replace the record in the file.

        :raises OSError: if the file cannot be written.
        """
        atomic_file.write_state_file(self.path, self.format.render(record))

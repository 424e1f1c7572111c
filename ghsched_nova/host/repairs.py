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

"""How often nova-compute has made the kernel hold a policy again."""

from collections.abc import Iterable
from collections import Counter
from pathlib import Path
import threading

from oslo_log import log as logging

from ghsched_nova import atomic_file
from ghsched_nova.monitor import repair_metrics
from ghsched_nova.resctrl import model

LOG = logging.getLogger(__name__)


class Repairs:
    """Counts what reports have repaired, by kind; safe for threads.

    :param path: of the file that outlives nova-compute.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._adding = threading.Lock()

    def add(self, kinds: Iterable[str]) -> None:
        """Count some; nothing that is wrong here is raised.

        To give out the kernel's counters is no repair: nothing was wrong.
        """
        done = Counter(kind for kind in kinds if kind not in model.COUNTING)
        if not done:
            return
        try:
            with self._adding:
                text = self._path.read_text() if self._path.exists() else ''
                atomic_file.replace(self._path, repair_metrics.to_json(
                    Counter(repair_metrics.from_json(text)) + done))
        except (OSError, UnicodeDecodeError) as error:
            LOG.warning('ghsched: repairs cannot be counted: %s', error)

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


"""The host's use of memory bandwidth, in what nova-compute reports of it."""

from collections.abc import Sequence
from pathlib import Path
import threading
import time
from typing import Any

from oslo_log import log as logging

from ghsched_nova import conf
from ghsched_nova.monitor import reader
from ghsched_nova.monitor import stats
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view

LOG = logging.getLogger(__name__)


class BandwidthUse:
    """Measures between two reports of resources.

    Safe for threads.

    :param section: the ``[ghsched]`` section of the configuration.
    """

    def __init__(self, section: Any) -> None:
        self._section = section
        self._making = threading.Lock()
        self._reader: reader.Reader | None = None
        #: What was reported last; None where that was nothing.
        self.last: view.Snapshot | None = None

    def added_to(self, resources: dict[str, Any],
                 guests: Sequence[view.Guest] = ()) -> dict[str, Any]:
        """What the driver reports, with the use of bandwidth in its stats.

        A host that measures none reports none. Nothing that is wrong here
        keeps a host from reporting itself.

        :param guests: that run.
        """
        self.last = None
        try:
            resources['stats'] = {**(resources.get('stats') or {}),
                                  **self._measure(guests)}
        except topology.MonitorUnavailable as error:
            LOG.debug('ghsched: the use of bandwidth is not reported: %s',
                      error)
        except Exception as error:
            LOG.warning('ghsched: the use of bandwidth cannot be measured: '
                        '%r', error)
        return resources

    def _measure(self, guests: Sequence[view.Guest]) -> dict[str, str]:
        self.last = self.snapshot(guests)
        return stats.to_stats(self.last, time.time())

    def snapshot(self, guests: Sequence[view.Guest] = ()) -> view.Snapshot:
        """Bandwidth since the time before.

        :raises MonitorUnavailable: when the host reports none.
        """
        with self._making:
            if self._reader is None:
                self._reader = reader.Reader(
                    Path(self._section.resctrl_path),
                    Path(self._section.sysfs_path),
                    conf.by_node(self._section, 'node_bandwidth'))
        return view.make_snapshot(self._reader.usage(), guests)

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


"""Memory bandwidth in use on the host and by its guests."""

from collections.abc import Iterable
from collections.abc import Sequence
from pathlib import Path
import threading
from typing import Any

from oslo_log import log as logging

from ghsched_nova import conf
from ghsched_nova.guest import metadata
from ghsched_nova.guest import nova_metadata
from ghsched_nova.host import desired
from ghsched_nova.monitor import reader
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view

LOG = logging.getLogger(__name__)


class BandwidthMeter:
    """Memory bandwidth measured between two reports of the host.

    Thread-safe.

    :param section: the ``[ghsched]`` section of the configuration.
    """

    def __init__(self, section: Any) -> None:
        self._section = section
        self._making = threading.Lock()
        self._reader: reader.Reader | None = None

    def measure_bandwidth(self, guests: Sequence[view.MonitoredGuest] = ()
                          ) -> view.Snapshot | None:
        """Return the host's bandwidth since the last call; never raises.

        An error is logged, and the host then reports its resources without
        bandwidth.

        :param guests: running guests whose bandwidth is measured.
        :returns: None if nothing was measured.
        """
        try:
            return self.take_bandwidth_snapshot(guests)
        except topology.MonitorUnavailable as error:
            LOG.debug('ghsched: resctrl cannot monitor memory bandwidth on '
                      'this host; not measuring bandwidth use: %s', error)
        except Exception as error:
            LOG.warning('ghsched: cannot measure memory bandwidth on this '
                        'host; reporting no bandwidth use to Nova: %r',
                        error)
        return None

    def take_bandwidth_snapshot(self,
                                guests: Sequence[view.MonitoredGuest] = ()
                                ) -> view.Snapshot:
        """Measure the host's memory bandwidth since the last call.

        :param guests: running guests whose bandwidth is measured.
        :raises MonitorUnavailable: if the host cannot measure bandwidth.
        """
        with self._making:
            if self._reader is None:
                self._reader = reader.Reader(
                    Path(self._section.resctrl_path),
                    Path(self._section.sysfs_path),
                    conf.parse_node_values(self._section, 'node_bandwidth'))
        return view.make_bandwidth_snapshot(
            self._reader.measure_group_bandwidth(), guests)


def list_guests_and_policies(
        running: Iterable[desired.Running]) -> list[view.MonitoredGuest]:
    """Return each running guest with its bandwidth policy and its owner.

    The policy or the owner is left out if it is unknown.
    """
    found = []
    for one in running:
        policy, project, flavor, server = None, '', '', ''
        try:
            policy = one.policy
            if policy:
                project = nova_metadata.read_project_id(one.root)
                flavor = nova_metadata.read_flavor_name(one.root)
                server = nova_metadata.read_server_name(one.root)
        except metadata.MetadataError:
            pass
        found.append(view.MonitoredGuest(one.domain.name, one.domain.uuid,
                                         one.domain.id, policy, server=server,
                                         project=project, flavor=flavor))
    return found

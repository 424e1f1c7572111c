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

"""Measures network traffic between guests, for their diagnostics."""

from collections.abc import Iterable
import threading
import time
from typing import Any

from oslo_log import log as logging
from stevedore import driver

from ghsched_nova.features.rebalance import addresses
from ghsched_nova.features.rebalance import flow_source as sources
from ghsched_nova.host import desired
from ghsched_placement.features.rebalance import affinity
from ghsched_placement.features.rebalance import traffic

LOG = logging.getLogger(__name__)


class GuestTraffic:
    """Meter of network traffic between guests, sampled with each report.

    Thread-safe.

    :param section: the ``[ghsched]`` section of the configuration; nothing is
        measured without ``affinity_source``.
    """

    def __init__(self, section: Any) -> None:
        self._section = section
        self._measuring = threading.Lock()
        self._meter: sources.Meter | None = None
        self._failure = ''

    def measure_traffic(self, guests: Iterable[desired.Running]) -> None:
        """Measure the network traffic between the host's guests; never raises.

        :param guests: all domains of the host.
        """
        if not self._section.affinity_source:
            return
        try:
            with self._measuring:
                if self._meter is None:
                    self._meter = _make_meter(self._section)
                self._meter.update_traffic_averages(
                    frozenset().union(*(
                        addresses.list_fixed_addresses(guest.root)
                        for guest in guests if guest.xml)),
                    time.monotonic(),
                )
        except Exception as error:
            # Logged once, although each report fails the same way.
            if self._failure != str(error):
                LOG.warning(
                    'ghsched: cannot measure network traffic between guests; '
                    'omitting it from guest diagnostics: %s',
                    error,
                )
            self._failure = str(error)
        else:
            self._failure = ''

    def add_traffic_to_diagnostics(self, found: dict[str, Any],
                                   guest: Any) -> dict[str, Any]:
        """Add a guest's network traffic to its diagnostics; never raises.

        The traffic is that between this guest and other guests of the host.

        :param found: diagnostics without traffic.
        :param guest: guest of nova.virt.libvirt.guest.
        :returns: the diagnostics with traffic.
        """
        if (self._meter is None or self._meter.averages is None
                or self._failure):
            return found
        try:
            return found | traffic.make_traffic_diagnostics(
                self._meter.averages,
                addresses.parse_fixed_addresses(guest.get_xml_desc()))
        except Exception as error:
            LOG.warning('ghsched: cannot measure the network traffic of guest '
                        '%(name)s; omitting it from the guest diagnostics: '
                        '%(error)r',
                        {'name': guest.name, 'error': error})
            return found


def _make_meter(section: Any) -> sources.Meter:
    """Return a traffic meter with the plug-in ``[ghsched]affinity_source``.

    :raises Exception: of any kind, if the plug-in cannot be loaded.
    """
    source: Any = driver.DriverManager(
        sources.SOURCES, section.affinity_source, invoke_on_load=True).driver
    return sources.Meter(source, affinity.Settings())

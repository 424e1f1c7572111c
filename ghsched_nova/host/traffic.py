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

"""What the guests of this host say to each other, for the driver."""

from collections.abc import Iterable
import threading
import time
from typing import Any

from oslo_log import log as logging
from stevedore import driver

from ghsched_nova.guest import addresses
from ghsched_nova.traffic import flow_source as sources
from ghsched_placement.rebalance import affinity
from ghsched_placement import traffic

LOG = logging.getLogger(__name__)


class GuestTraffic:
    """Looks with each report, and reports on a guest when it is asked.

    Safe for threads.

    :param section: ``conf.ghsched``; without ``affinity_source`` this does
        nothing.
    """

    def __init__(self, section: Any) -> None:
        self._section = section
        self._looking = threading.Lock()
        self._meter: sources.Meter | None = None
        self._silent = ''

    def look(self, guests: Iterable[str]) -> None:
        """Count once more; never raises.

        :param guests: XML of all domains of the host.
        """
        if not self._section.affinity_source:
            return
        try:
            with self._looking:
                if self._meter is None:
                    self._meter = _meter(self._section)
                self._meter.look(frozenset().union(
                    *map(addresses.fixed_addresses, guests)), time.monotonic())
        except Exception as error:
            # It is the same with each report: once is enough.
            if self._silent != str(error):
                LOG.warning('ghsched: what guests say to each other is not '
                            'known: %s', error)
            self._silent = str(error)
        else:
            self._silent = ''

    def added_to(self, found: dict[str, Any], guest: Any) -> dict[str, Any]:
        """What the driver says of a guest, with our part; never raises.

        :param guest: of nova.virt.libvirt.guest.
        """
        if self._meter is None or self._meter.ties is None or self._silent:
            return found
        try:
            return found | traffic.write(
                self._meter.ties,
                addresses.fixed_addresses(guest.get_xml_desc()))
        except Exception as error:
            LOG.warning('ghsched: what guest %(name)s says cannot be told: '
                        '%(error)r', {'name': guest.name, 'error': error})
            return found


def _meter(section: Any) -> sources.Meter:
    """:raises Exception: of any kind, for a plug-in that does not load."""
    source: Any = driver.DriverManager(
        sources.SOURCES, section.affinity_source, invoke_on_load=True).driver
    return sources.Meter(source, affinity.Settings(
        half_life=section.affinity_half_life,
        delay=section.affinity_delay))

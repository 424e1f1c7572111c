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

from collections.abc import Mapping
import time
from typing import Any

from stevedore import driver

from ghsched_nova.features.rebalance import addresses
from ghsched_nova.features.rebalance import flow_source as sources
from ghsched_nova.host import compute_hooks
from ghsched_placement.features.rebalance import affinity
from ghsched_placement.features.rebalance import traffic


class GuestTraffic(compute_hooks.ComputeHooks):
    """Meter of network traffic between guests, sampled with each report.

    :param section: the ``[ghsched]`` section of the configuration; nothing is
        measured without ``affinity_source``.
    """

    def __init__(self, section: Any) -> None:
        self._section = section
        self._meter: sources.Meter | None = None
        # Whether the last sample could be taken.
        self._is_measured = False

    def observe(self, snapshot: compute_hooks.HostSnapshot) -> None:
        """Sample the network traffic between the host's guests.

        :raises Exception: of any kind, if the plug-in cannot be loaded or
            cannot take a sample.
        """
        if not self._section.affinity_source or snapshot.guests is None:
            return
        is_measured = False
        try:
            if self._meter is None:
                self._meter = _make_meter(self._section)
            self._meter.update_traffic_averages(
                frozenset().union(*(
                    addresses.list_fixed_addresses(guest.root)
                    for guest in snapshot.guests if guest.is_readable)),
                time.monotonic())
            is_measured = True
        finally:
            self._is_measured = is_measured

    def make_diagnostics(self, guest: Any,
                         found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the traffic between a guest and other guests of the host."""
        if (self._meter is None or self._meter.averages is None
                or not self._is_measured):
            return {}
        return traffic.make_traffic_diagnostics(
            self._meter.averages,
            addresses.parse_fixed_addresses(guest.get_xml_desc()))


def make_compute_hooks(services: compute_hooks.ComputeServices
                       ) -> GuestTraffic:
    """Return nova-compute's meter of network traffic between guests."""
    return GuestTraffic(services.section)


def _make_meter(section: Any) -> sources.Meter:
    """Return a traffic meter with the plug-in ``[ghsched]affinity_source``.

    :raises Exception: of any kind, if the plug-in cannot be loaded.
    """
    source: Any = driver.DriverManager(
        sources.SOURCES, section.affinity_source, invoke_on_load=True).driver
    return sources.Meter(source, affinity.AffinitySettings())

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

"""Recorder of bursts, which limits the bursts that the host offers."""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
from pathlib import Path
from typing import Any

from ghsched_nova.base import record_file
from ghsched_nova import conf
from ghsched_nova.host import compute_hooks
from ghsched_nova.monitor import view
from ghsched_nova.resctrl.resctrl_host import BURST_RATIO
from ghsched_placement.audit import diagnostics
from ghsched_placement.features.bursts import burst
from ghsched_placement.features.bursts import burst_record
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import tree


class BurstRecorder(compute_hooks.ComputeHooks):
    """Recorder of how much guests use bursts on each host NUMA node.

    A burst is bandwidth above a guest's guarantee.

    :param section: the ``[ghsched]`` section of the configuration.
    :param path: file that preserves the record over restarts of nova-compute.
    """

    def __init__(self, section: Any, path: Path) -> None:
        self._section = section
        self._file = record_file.RecordFile(path, burst_record.FORMAT)
        # Replaced as a whole, so that readers do not wait for the disk.
        self._records = self._file.read()

    @property
    def records(self) -> Mapping[int, burst_record.Record]:
        """Burst statistics of each host NUMA node whose guests may use bursts.

        A burst is bandwidth above a guest's guarantee.
        """
        kept = conf.make_tree_config(self._section).bursts
        return {node: record for node, record in self._records.items()
                if kept.get(node)}

    @property
    def reported_burst_percent(self) -> dict[int, int]:
        """Percent of each host NUMA node's bandwidth to report for bursts.

        A burst is bandwidth above a guest's guarantee. nova-compute reports
        the percentage to Placement as the node's inventory of bursts. It is
        derived from how much guests have used. The keys are numbers of host
        NUMA nodes.
        """
        return {node: record.offered for node, record in self.records.items()}

    def observe(self, snapshot: compute_hooks.HostSnapshot) -> None:
        """Record how much bandwidth above their guarantees guests have used.

        It is measured since the previous snapshot.
        """
        config = conf.make_tree_config(self._section)
        if snapshot.bandwidth is None or not any(config.bursts.values()):
            return
        limits = make_burst_limits(self._section)
        records = dict(self.records)
        for node, period in map_burst_use_by_node(snapshot.bandwidth,
                                                  config).items():
            records[node] = burst_record.add_period_to_record(
                records.get(node, burst_record.Record()),
                int(snapshot.time // 3600), period, limits)
        self._records = records
        self._file.write(records)

    def describe_host(self, found: HostDescription) -> HostDescription:
        """Return the description of the host with the bursts it offers."""
        return dataclasses.replace(found, bursts=self.reported_burst_percent)

    def make_diagnostics(self, guest: Any,
                         found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a guest's report with the bursts of the host NUMA nodes."""
        report, records = found.get(diagnostics.KEY), self.records
        if report is None or not records:
            return {}
        return {diagnostics.KEY: report | {'host': tuple(
            node | _describe_bursts(records.get(node['host_node']))
            for node in report['host'])}}


def make_compute_hooks(services: compute_hooks.ComputeServices
                       ) -> BurstRecorder:
    """Return nova-compute's recorder of bandwidth bursts."""
    return BurstRecorder(services.section,
                         services.state_path / burst_record.FORMAT.name)


def _describe_bursts(record: burst_record.Record | None) -> dict[str, Any]:
    if record is None:
        return {}
    total = record.total
    return {
        'bursts_pool': record.pool, 'bursts_promised': record.promised,
        'bursts_offered': record.offered, 'bursts_chance': record.chance,
        'bursts_periods': total.periods, 'bursts_over': total.over,
        'bursts_short': total.short,
        'bursts_largest_project': record.uses.largest_promised}


def map_burst_use_by_node(
    snapshot: view.Snapshot, config: tree.Config
) -> dict[int, burst_record.BurstPeriod]:
    """Return the measured use of bursts on each host NUMA node.

    A burst is bandwidth above a guest's guarantee. Only nodes with a burst
    pool are returned: bandwidth that is reserved for the bursts of all guests
    of the node. Guests that started before the pool was configured may have
    guarantees inside the pool, which make the pool smaller. A value that was
    measured for several nodes together is skipped.
    """
    found = {}
    for row in snapshot.nodes:
        if len(row.nodes) != 1 or not config.bursts.get(row.nodes[0]):
            continue
        node, = row.nodes
        usable = 100 - config.get_reserved_percent(node)
        pool = max(0, min(config.bursts[node], usable - row.guaranteed))
        found[node] = burst_record.BurstPeriod(
            list_guest_bursts(snapshot.guests, node, row.capacity), pool,
            bool(row.capacity) and (row.used.rate or 0) >= (
                tree.FULL * usable / 100 * (row.capacity or 0)))
    return found


def list_guest_bursts(guests: Iterable[view.GuestUsage], node: int,
                      capacity: int | None) -> list[burst.GuestBurst] | None:
    """Return the permitted and the used burst of each guest on a NUMA node.

    A burst is bandwidth above a guest's guarantee.

    :param node: the host NUMA node.
    :param capacity: bandwidth of the node in bytes per second; None if
        unknown.
    :returns: one item per guest that may burst, in percent of the node's
        bandwidth; None if the used burst of one of the guests is unknown.
    """
    found = []
    for guest in guests:
        for row in guest.nodes:
            if row.asked is None or not row.asked.burst or (
                    node not in row.nodes):
                continue
            if row.used.rate is None or not capacity or row.nodes != (node,):
                return None
            used = 100 * row.used.rate / capacity - row.asked.minimum
            found.append(burst.GuestBurst(row.asked.burst, max(0.0, used),
                                          guest.guest.project))
    return found


def make_burst_limits(section: Any) -> burst.BurstLimits:
    """Return the options that limit how much burst bandwidth a host offers.

    A burst is bandwidth beyond a guest's guarantee that the guest gets in all
    but a small part of the time.

    :param section: ``conf.ghsched``.
    """
    return burst.make_limits_for_risk(section.burst_risk, section.burst_window,
                                      BURST_RATIO)

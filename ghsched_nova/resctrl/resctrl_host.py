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


"""Capabilities of one host, read from resctrl and sysfs without a write.

Where a cap is a bandwidth and no share of one (AMD, mba_MBps), the share that
a flavor asks for needs to know what a host NUMA node can deliver. The kernel
has that figure where the firmware gives it: the ``read_bandwidth`` of a node
from its own CPUs, in MiB/s (Documentation/admin-guide/mm/numaperf.rst, ACPI

HMAT). Elsewhere an admin must give it, see :class:`HostSettings`. The highest
value of AMD's MB line is no such figure: it is the end of a field (256 GB/s),
the same on every L3 cache whatever is behind it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from fractions import Fraction
import math
from pathlib import Path
from types import MappingProxyType
from typing import Any
from typing import Literal

from ghsched_nova.resctrl import cache_facts
from ghsched_nova.resctrl import detection
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import errors
from ghsched_nova.resctrl import group_ids
from ghsched_nova.resctrl import host_info
from ghsched_nova.resctrl import host_texts
from ghsched_nova.resctrl import knobs
from ghsched_nova.resctrl import node_domains
from ghsched_nova.resctrl import rounding
from ghsched_nova.resctrl import schemata
from ghsched_nova.resctrl import sysfs as sysfs_files
from ghsched_placement.providers import host_description


#: Maximum rounding, in percent, of openEuler's drivers if the hardware stores
#: 6 bits or more.
_COARSEST = 3

#: Unit of HostSettings.node_bandwidth in bytes per second.
NODE_BANDWIDTH_UNIT = 10 ** 6


#: Maximum ratio of the sum of all guests' bursts to the bandwidth that is
#: reserved for bursts, whatever has been measured. The kernel guarantees each
#: burst divided by this ratio, so that all bursts together never take what
#: other guests are guaranteed.
BURST_RATIO = 3.0


@dataclass(frozen=True)
class HostSettings:
    """Configured properties of a host that its kernel does not report.

    :param node_bandwidth: theoretical memory bandwidth by host NUMA node, in
        MB/s (10^6 bytes per second); overrides the value in sysfs.
    :param cap: whether a cap also limits guests while bandwidth is idle
        (``hard``) or not (``soft``); ignored if the dialect determines it.
    :param l3_ways_shared: minimum number of ways of each L3 cache that guests
        cannot reserve.
    """

    node_bandwidth: Mapping[int, int] = field(default_factory=dict)
    cap: Literal['hard', 'soft'] | None = None
    l3_ways_shared: int = 2


ResctrlUnavailable = errors.ResctrlUnavailable
_DEFAULT = HostSettings()
_NO_READINGS: Mapping[str, rounding.Readings] = MappingProxyType({})


@dataclass(frozen=True)
class ResctrlHost:
    """Memory bandwidth and L3 cache control of one host.

    :param dialect: variant of resctrl, with the controls that this host has.
    :param num_closids: number of control groups (CLOSIDs), including the
        kernel's default group. A group needs an id in each resource, so the
        resource with the fewest ids determines the number. A CLOSID that the
        kernel uses for device traffic (``io_alloc``) does not count.
    :param num_rmids: number of monitoring ids (RMIDs) that the kernel reports;
        0 if its groups need none.
    :param min_bandwidth: lowest cap, in the unit of the dialect.
    :param granularity: step of caps; MPAM rounds caps further.
    :param domains_by_node: domains of the MB line by host NUMA node. Only
        nodes whose bandwidth can be limited are included.
    :param priority_default: priority of the root group, and of guests that
        request none; None if the host has no priorities.
    :param left_out: reason why bandwidth cannot be limited, by host NUMA node.
    :param libvirt_reads: whether upstream libvirt can parse the schemata of
        this host and write its caps.
    :param openeuler_libvirt_reads: whether openEuler's libvirt can do so. It
        also parses the lines of openEuler's 6.6 kernel.
    :param no_cap: value of a cap line that means no cap.
    :param node_bandwidth: theoretical bandwidth by host NUMA node, in bytes
        per second; empty if caps are percentages.
    :param counters: number of bandwidth counters by resctrl domain, if
        counters must be assigned to groups; empty if the kernel counts the
        bandwidth of every group.
    :param cache: the L3 caches; None if guests cannot reserve ways.
    :param l3_way_count: number of ways of each L3 cache, also of those that
        guests cannot reserve; 0 if the kernel allocates no ways.
    :param scales: percentages that a schemata line can be set to, by line. A
        line that is not listed can be set to multiples of ``granularity`` if
        it has steps, otherwise to any percentage.
    :param unmeasured: schemata lines whose rounding can be measured, but was
        not yet.
    :param notes: sentences on controls that ghsched does not use, see
        :func:`detection.describe_unused_controls`.
    """

    dialect: dialects.Dialect
    num_closids: int
    num_rmids: int
    min_bandwidth: int = 0
    granularity: int = 1
    domains_by_node: Mapping[int, tuple[int, ...]] = field(
        default_factory=dict)
    priority_default: int | None = None
    left_out: Mapping[int, str] = field(default_factory=dict)
    libvirt_reads: bool = True
    openeuler_libvirt_reads: bool = True
    no_cap: int = 100
    node_bandwidth: Mapping[int, int] = field(default_factory=dict)
    counters: Mapping[int, int] = field(default_factory=dict)
    cache: cache_facts.CacheWays | None = None
    l3_way_count: int = 0
    scales: Mapping[str, rounding.SettablePercentages] = field(
        default_factory=dict)
    unmeasured: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def monitored(self) -> bool:
        """Whether memory bandwidth can be measured."""
        return self.dialect.monitor is not None

    def can_libvirt_make_groups(self, is_openeuler: bool) -> bool:
        """Whether libvirt can create the control groups of this host's guests.

        :param is_openeuler: whether libvirt is that of openEuler. It can also
            set hard limits, priorities and guarantees.
        """
        return self.openeuler_libvirt_reads if is_openeuler else (
            self.libvirt_reads)

    @property
    def values_to_write(self) -> dict[str, dict[int, int]]:
        """Values to write, by schemata line and value that the line must show.

        The kernel rounds a written value, so another value than the wanted
        one may have to be written. Values that the kernel does not change are
        left out.
        """
        changed = {
            line: {shown: value for shown, value in scale.written.items()
                   if shown != value}
            for line, scale in self.scales.items()}
        return {line: values for line, values in changed.items() if values}

    @property
    def tolerance(self) -> dict[str, int]:
        """Accepted difference between a read and a desired value, by line.

        The kernel rounds written values. If it is not known how, a schemata
        line counts as correct if its value is close to the desired one.
        """
        return {knob.line: knob.tolerance or self.granularity + _COARSEST
                for knob in self.dialect.knobs if knob.tolerance
                or knob.measured and knob.line not in self.scales}

    @property
    def unused_domain_values(self) -> dict[str, int]:
        """Schemata values for resctrl domains that a guest does not use.

        They are the values that a new control group has there. They must be
        written, because libvirt may reuse a group with other values. Schemata
        lines whose values are unknown are left out.
        """
        values = {knob.line: self.get_default_value(knob)
                  for knob in self.dialect.knobs}
        return {line: value for line, value in values.items()
                if value is not None}

    def get_default_value(self, knob: knobs.Knob) -> int | None:
        """Return a schemata line's value in a new control group.

        Returns None if the value is unknown.
        """
        if knob.role == 'maximum' and (
                knob.is_percent or self.dialect.has_absolute_caps):
            return self.no_cap
        if knob.role == 'priority' and self.priority_default is not None:
            return self.priority_default
        return knob.default

    @property
    def initial_guarantees(self) -> dict[str, int]:
        """Guarantee of a new control group, by name of the schemata line.

        Only lines whose kernel gives new groups a guarantee are included. On
        such a line, the kernel refuses guarantees whose sum over all control
        groups exceeds the bandwidth.
        """
        return {knob.line: knob.default for knob in self.dialect.knobs
                if knob.role == 'minimum' and knob.default}

    @property
    def unguaranteed_percent(self) -> int:
        """Percent of a host NUMA node's bandwidth that cannot be guaranteed.

        The kernel gives a fixed share of this bandwidth to every possible
        control group.
        """
        knob = self.dialect.find_knob('minimum')
        if knob is None or not knob.default:
            return 0
        highest = min(knob.whole, Fraction(knob.maximum))
        left = highest - knob.default * self.num_closids
        return 100 - max(0, math.floor(knob.value_to_percent(left)))

    @property
    def ids(self) -> group_ids.GroupIds:
        """Ids that the kernel gives to control and monitoring groups."""
        return group_ids.GroupIds(self.num_closids, self.num_rmids,
                                  self.dialect.own_rmids)

    @property
    def plan_facts(self) -> dict[str, Any]:
        """Facts of the host for plans, by field of :class:`model.Wanted`.

        A monitoring group needs a monitoring id (RMID) of its own. Each
        possible control group needs one, too, so only the remaining ids count.
        """
        ids = self.ids if self.monitored else None
        return {'others': self.unused_domain_values,
                'tolerance': self.tolerance, 'writes': self.values_to_write,
                'staged': self.dialect.staged,
                'bounded': self.initial_guarantees,
                'monitors': ids.spare_monitors if ids else 0,
                'monitors_per_group': ids.monitors_per_group if ids else 0}

    def capabilities(self) -> frozenset[str]:
        """Return the bandwidth and cache controls that this host has.

        The results are keys of names.CAPABILITY_TRAITS, e.g. MEM_BW_MAX for a
        cap on memory bandwidth.
        """
        held = self.dialect.capabilities()
        return held | {'L3_WAYS'} if self.cache is not None else held

    @property
    def guaranteed_percentages(self) -> tuple[int, ...]:
        """Percentages of a NUMA node's bandwidth that can be guaranteed."""
        knob = self.dialect.find_knob('minimum')
        if knob is None:
            return tuple(range(1, 101))
        if knob.line in self.scales:
            return tuple(shown for shown in self.scales[knob.line].written
                         if shown)
        step = self.granularity if knob.stepped else 1
        return tuple(range(step, knob.maximum + 1, step))

    def make_description(
            self, reserved_groups: int = 0, monitors: int = 0
    ) -> host_description.HostDescription:
        """Return the NUMA nodes, resctrl groups and capabilities of the host.

        nova-compute makes the host's inventory in Placement from them.

        :param reserved_groups: number of control groups reserved for other
            software, without the kernel's default group.
        :param monitors: number of existing monitoring groups.
        """
        return host_description.HostDescription(
            nodes=tuple(sorted(self.domains_by_node)),
            control_groups=self.ids.count_free_control_groups(
                reserved_groups, monitors),
            capabilities=self.capabilities(),
            guarantees=self.guaranteed_percentages,
            kept_share=self.unguaranteed_percent,
            l3_ways=dict.fromkeys(
                self.cache.domains_by_node, self.cache.way_count
            )
            if self.cache
            else {},
            l3_ways_least=self.cache.least if self.cache else 1,
        )


def read_host(resctrl: Path, sysfs: Path, settings: HostSettings = _DEFAULT,
              readings: Mapping[str, rounding.Readings] = _NO_READINGS
              ) -> ResctrlHost:
    """Return the memory bandwidth and L3 cache controls of a host.

    :param resctrl: mount point of resctrl, usually /sys/fs/resctrl.
    :param sysfs: mount point of sysfs, usually /sys.
    :param settings: properties of the host from the configuration.
    :param readings: measured rounding by schemata line: the percentage that
        the kernel makes of each of 0 to 100.
    :raises ResctrlUnavailable: if resctrl is not mounted, does not control
        memory bandwidth, or is of an unknown variant (dialect).
    """
    return make_host(host_texts.read_files(resctrl, sysfs), settings, readings)


def make_host(files: host_texts.HostFiles, settings: HostSettings = _DEFAULT,
              readings: Mapping[str, rounding.Readings] = _NO_READINGS
              ) -> ResctrlHost:
    """Return the controls of a host, derived from files of its kernel.

    :param files: contents of the files in resctrl and sysfs.
    :param settings: properties of the host from the configuration.
    :param readings: measured rounding by schemata line.
    :raises ResctrlUnavailable: see :func:`read_host`.
    """
    info, root = files.info, _parse_root(files)
    has_control = any(name.startswith('MB/') for name in info)
    dialect = (_detect_dialect(files, root, settings) if has_control
               else replace(dialects.UNCONTROLLED, own_rmids=files.is_arm))
    dialect = replace(dialect, monitor=dialect.find_monitor(info))
    cache, cache_notes = cache_facts.read_caches(
        info, root, files.sysfs, settings.l3_ways_shared)
    host = ResctrlHost(
        dialect=dialect, num_closids=host_info.count_closids(info),
        num_rmids=host_info.count_rmids(dialect, info), cache=cache,
        counters=host_info.count_assignable_counters(dialect, info),
        l3_way_count=cache_facts.count_ways(info),
        notes=(*detection.describe_unused_controls(dialect, root),
               *detection.describe_thread_throttling(info), *cache_notes))
    return (_add_bandwidth_control(host, files, root, settings, readings)
            if has_control else _explain_missing_control(host, files))


def _add_bandwidth_control(
    host: ResctrlHost, files: host_texts.HostFiles, root: schemata.Schemata,
    settings: HostSettings, readings: Mapping[str, rounding.Readings]
) -> ResctrlHost:
    """Return a host with the caps and guarantees of its nodes' bandwidth.

    :param host: host without them.
    :param root: schemata of the root group.
    :raises ResctrlUnavailable: if no node's bandwidth can be limited.
    """
    dialect = host.dialect
    minimum, granularity = host_info.read_lowest_cap(dialect, files.info)
    caps = root.values(dialect.cap_or_guarantee_knob.line) or {}
    nodes, left_out, speeds = _map_controlled_nodes(
        dialect, frozenset(caps), files.sysfs, settings)
    scales = compute_settable_percentages(dialect, minimum, granularity,
                                          readings)
    openeuler_reads = (
        schemata.can_openeuler_libvirt_parse(root) and _has_dense_domains(caps)
        and _can_libvirt_write_caps(dialect, minimum, granularity, scales))
    return replace(
        host, min_bandwidth=minimum, granularity=granularity,
        domains_by_node=nodes, left_out=left_out, node_bandwidth=speeds,
        no_cap=_compute_uncapped_value(dialect, caps),
        priority_default=_get_default_priority(dialect, root),
        libvirt_reads=openeuler_reads and schemata.can_libvirt_parse(root),
        openeuler_libvirt_reads=openeuler_reads, scales=scales,
        unmeasured=_list_unmeasured_lines(dialect, granularity, readings))


def _explain_missing_control(host: ResctrlHost,
                             files: host_texts.HostFiles) -> ResctrlHost:
    """Return a host with the reason why it cannot control bandwidth.

    Guests can reserve L3 ways, and their bandwidth can be measured.

    :raises ResctrlUnavailable: if the host can do neither.
    """
    notes = (f'there is no {files.resctrl / "info" / "MB"}: this processor, '
             'or its kernel, has no control of memory bandwidth', *host.notes)
    if host.cache is None and not host.monitored:
        raise ResctrlUnavailable('; '.join(notes))
    return replace(
        host, notes=notes, libvirt_reads=False, openeuler_libvirt_reads=False,
        left_out=dict.fromkeys(
            files.cpus, 'this host has no control of memory bandwidth'))


def _detect_dialect(
    files: host_texts.HostFiles, root: schemata.Schemata,
    settings: HostSettings
) -> dialects.Dialect:
    """Return which dialect (known variant of resctrl) this host has.

    :raises ResctrlUnavailable: if no known dialect matches the host.
    """
    info = files.info
    dialect = detection.detect_dialect(info, root, files.names)
    if dialect is None:
        raise ResctrlUnavailable(
            f'the resctrl at {files.resctrl} is of an unknown variant: '
            + detection.explain_unknown_dialect(info, root, files.names))
    if dialect.name == dialects.MPAM.name and not (
            files.is_arm or dialects.MPAM_FILES & info.keys()):
        raise ResctrlUnavailable(
            f'the resctrl at {files.resctrl} is of an unknown variant: '
            'info/MB is that of MPAM, but the processors are not Arm '
            'processors, and it is unknown what MB means')
    if dialect.name == dialects.SELF_DESCRIBED.name:
        dialect = replace(dialect, own_rmids=files.is_arm)
    fixed = dialect.hardlimit_fixed
    if fixed is None and settings.cap and dialect.find_knob(
            'hardlimit') is None:
        fixed = settings.cap == 'hard'
    return replace(dialect, hardlimit_fixed=fixed)


# -- info/ and the root group -------------------------------------------------


def _parse_root(files: host_texts.HostFiles) -> schemata.Schemata:
    try:
        return schemata.parse_kernel_schemata(files.schemata)
    except schemata.SchemataError as exc:
        raise ResctrlUnavailable(
            f'{files.resctrl / "schemata"}: {exc}') from exc


def _compute_uncapped_value(dialect: dialects.Dialect,
                            caps: Mapping[int, int]) -> int:
    """Return the value of a schemata line that means no bandwidth cap.

    :param caps: values of the root group by domain.
    """
    knob = dialect.find_knob('maximum')
    if knob is None or not (knob.is_percent or dialect.has_absolute_caps):
        return 100
    if knob.default is None:
        return max(caps.values(), default=0)
    if not knob.power:
        return knob.default
    highest = max([*caps.values(), knob.default])
    return 1 << (highest - 1).bit_length()


def compute_settable_percentages(
        dialect: dialects.Dialect, minimum: int, granularity: int,
        readings: Mapping[str, rounding.Readings] = _NO_READINGS
) -> dict[str, rounding.SettablePercentages]:
    """Return the percentages that each schemata line can be set to.

    The kernel rounds all other percentages that are written to the line.

    :param dialect: the host's variant of resctrl.
    :param minimum: lowest bandwidth cap of the host.
    :param granularity: granularity of bandwidth caps.
    :param readings: measured percentages by line; they take precedence.
    :returns: settable percentages by name of the line.
    :raises ResctrlUnavailable: if the kernel rounds even the highest cap to
        less than 100 percent, so that every control group would be capped.
    """
    scales = {}
    for knob in dialect.knobs:
        if knob.line in readings and (knob.measured or knob.fraction):
            scales[knob.line] = rounding.SettablePercentages.from_readings(
                readings[knob.line])
        elif knob.fraction:
            scales[knob.line] = rounding.make_mpam_percentages(
                granularity, minimum)
        elif knob.is_coarse and not (
                knob.role == 'maximum' and dialect.has_absolute_caps):
            scales[knob.line] = rounding.SettablePercentages(
                {share: share for share in knob.list_percentages()})
        else:
            continue
        highest = scales[knob.line].highest_percent
        if knob.role == 'maximum' and highest < 100:
            raise ResctrlUnavailable(
                f'the highest value of {knob.line} is {highest}: this kernel '
                'caps the bandwidth of every control group')
    return scales


def _list_unmeasured_lines(dialect: dialects.Dialect, granularity: int,
                           readings: Mapping[str, rounding.Readings]
                           ) -> tuple[str, ...]:
    """Return the schemata lines whose rounding must still be measured.

    The kernel rounds the percentages that are written to these lines, and how
    is not known in advance.

    :param readings: measured percentages by line.
    """
    return tuple(
        knob.line for knob in dialect.knobs if knob.line not in readings
        and (knob.measured or knob.fraction and granularity > 1))


def _can_libvirt_write_caps(
    dialect: dialects.Dialect,
    minimum: int,
    granularity: int,
    scales: Mapping[str, rounding.SettablePercentages],
) -> bool:
    """Whether libvirt can write every bandwidth cap that the host supports.

    libvirt rejects a minimum of 0 and caps that are not a multiple of the
    granularity (src/util/virresctrl.c).
    """
    knob = dialect.find_knob('maximum')
    if not dialect.libvirt or minimum < 1 or knob is None:
        return False
    if any(shown != value for scale in scales.values()
           for shown, value in scale.written.items()):
        return False
    cap = scales.get(knob.line)
    return cap is None or all(shown % granularity == 0
                              for shown in cap.written)


def _get_default_priority(dialect: dialects.Dialect,
                          root: schemata.Schemata) -> int | None:
    knob = dialect.find_knob('priority')
    if knob is None:
        return None
    # Where an admin gave the root group one priority per domain, the least
    # one favours no guest that did not ask for it.
    return min((root.values(knob.line) or {}).values(), default=knob.default)


def _has_dense_domains(caps: Mapping[int, int]) -> bool:
    """Whether the resctrl domain ids of a host are consecutive from 0.

    libvirt requires that.

    :param caps: values of the MB line by domain id.
    """
    return set(caps) == set(range(len(caps)))


def _map_controlled_nodes(
    dialect: dialects.Dialect, domains: frozenset[int], sysfs: Path,
    settings: HostSettings
) -> tuple[dict[int, tuple[int, ...]], dict[int, str], dict[int, int]]:
    """Return the host NUMA nodes whose bandwidth can be limited.

    :param domains: ids of the domains in the MB schemata line.
    :returns: domains by node, the reason for each other node, and bytes per
        second by node if caps are a bandwidth.
    :raises ResctrlUnavailable: if there is no such node.
    """
    nodes, left_out = node_domains.map_domains(dialect, domains, sysfs)
    speeds = (_read_node_bandwidths(nodes, left_out, sysfs, settings)
              if dialect.has_absolute_caps else {})
    if not nodes:
        raise ResctrlUnavailable(node_domains.describe_no_domains(left_out))
    return nodes, left_out, speeds


def _read_node_bandwidths(
    by_node: dict[int, tuple[int, ...]],
    left_out: dict[int, str],
    sysfs: Path,
    settings: HostSettings,
) -> dict[int, int]:
    """Return the memory bandwidth of host NUMA nodes in bytes per second.

    A node whose bandwidth is unknown cannot have caps on this host. It is
    removed from ``by_node``, and the reason is added to ``left_out``.

    :param by_node: resctrl domains by node; changed in place.
    :param left_out: reason by removed node; changed in place.
    """
    speeds = {}
    for node in list(by_node):
        speed = (settings.node_bandwidth.get(node, 0) * NODE_BANDWIDTH_UNIT
                 or sysfs_files.read_rated_bandwidth(
                     sysfs_files.get_node_path(sysfs, node)))
        if speed:
            speeds[node] = speed
        else:
            del by_node[node]
            left_out[node] = (
                'a cap is a bandwidth on this host, and what the node can '
                'deliver is not known: there is no '
                f'node{node}/access1/initiators/read_bandwidth in sysfs, and '
                '[ghsched]node_bandwidth does not say it')
    return speeds

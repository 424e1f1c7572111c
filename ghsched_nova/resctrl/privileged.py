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


"""Changes of resctrl that nova-compute makes as root, through privsep.

What crosses to the daemon and back is made of lists, texts and numbers alone;
:class:`apply.GroupError` is made again on this side from its arguments.

Whoever is root already (``ghsched`` on a host, the tests) calls
:mod:`ghsched_nova.resctrl.reconcile` itself.
"""

from collections.abc import Sequence
import dataclasses
import functools
from pathlib import Path
from typing import Annotated

from ghsched_nova.base.bounds import Range
from ghsched_nova.base.bounds import Text
from ghsched_nova.base import privsep
from ghsched_nova.resctrl.cache_facts import Cache
from ghsched_nova.resctrl import configured_paths
from ghsched_nova.resctrl import differences
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import measure as measuring
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import reconcile as reconciling
from ghsched_nova.resctrl import rounding
from ghsched_nova.resctrl import wanted_check

_PATH = r'/[^\x00]*'

_Root = Annotated[str, Text(_PATH, 4095), configured_paths.check_root]
_RunPath = Annotated[str, Text(_PATH, 4095), functools.partial(
    configured_paths.check_path, 'libvirt_run_path')]
_Uuid = Annotated[str, Text('[0-9a-fA-F-]{36}', 36)]
#: Number of an IOMMU group, resctrl domain or vCPU, or a count.
_Number = Annotated[int, Range(0, 2 ** 31 - 1)]
#: Value in a schemata line.
_Value = Annotated[int, Range(0, 2 ** 32 - 1)]
_Line = Annotated[str, Text('[A-Z][A-Z0-9_]*', 32)]
_Mask = Annotated[str, Text('[0-9a-f]+', 256)]
#: Path of a control group or monitoring group below the mount point.
_GroupName = Annotated[str, Text(r'(mon_groups/)?(?!\.)[A-Za-z0-9_.,-]+', 300)]
#: differences.Desired in the wire format: [line, [[domain, value], ...]].
_Values = Sequence[tuple[_Line, Sequence[tuple[_Number, _Value]]]]
_Domain = tuple[_Uuid, _Number, privsep.DomainName]
#: The fields of model.Guest, in order.
_Guest = tuple[_Domain, Sequence[_Number], _Number, _Values, model.Maker,
               Sequence[_Number], Annotated[str, Text('[a-z0-9-]*', 64)],
               bool, Sequence[tuple[_Number, _Number]],
               Annotated[str, Text('[a-z0-9_]*', 16)],
               Sequence[_Number]]
#: The fields of cache.Cache, in order.
_Cache = tuple[Sequence[_Line], _Mask, _Mask, _Number,
               Sequence[tuple[_Number, Sequence[_Number]]],
               Sequence[tuple[_Number, _Mask]]]
#: The fields of model.Wanted that come from outside, in order.
_Wanted = tuple[Sequence[_Guest], Sequence[_Domain], Sequence[_GroupName],
                dict[_Line, _Value], bool, bool, _Number, _Number,
                dict[_Line, _Value], _Values, bool, dict[_Line, _Value],
                _Cache | None]
#: The fields of reconcile.Report, of model.Action and model.Problem in order.
_Report = tuple[Sequence[tuple[model.Kind, str, str, str, str,
                               Sequence[int], Sequence[int]]],
                Sequence[tuple[str, str, str]], Sequence[str],
                Sequence[tuple[str, str, str]],
                Sequence[tuple[str, str, str]]]


def remove_own_group(root: Path, uuid: str) -> bool:
    """Remove a guest's own control group with root's privileges.

    The group stays if vCPU threads are still in it.

    :returns: False if the group is in use or does not exist.
    :raises fs.GroupError: if the kernel or the helper fails.
    :raises ValueError: for a malformed UUID.
    """
    try:
        return _remove_own(str(root), uuid)
    except privsep.HelperTimeout as error:
        raise fs.GroupError(str(error)) from None


def reconcile(root: Path, run_path: Path,
              wanted: model.Wanted) -> reconciling.Report:
    """Bring the host's resctrl groups to the desired state, as root.

    :param run_path: directory with libvirt's PID files.
    :raises fs.GroupError: if resctrl is not mounted or locked, or the helper
        does not answer.
    :raises ValueError: if the desired state is malformed.
    """
    try:
        actions, problems, foreign, unmeasured, overlaps = _reconcile(
            str(root), str(run_path), _pack_wanted(wanted))
    except privsep.HelperTimeout as error:
        raise fs.GroupError(f'{error}; retrying in the next periodic '
                            'task') from None
    return reconciling.Report(
        tuple(model.Action(kind, group, reason, guest, line, tuple(threads),
                           tuple(devices))
              for kind, group, reason, guest, line, threads, devices
              in actions),
        tuple(model.Problem(*problem) for problem in problems),
        tuple(foreign),
        tuple(model.Problem(*problem) for problem in unmeasured),
        tuple(model.Problem(*problem) for problem in overlaps))


@privsep.entrypoint(privsep.context, timeout=300.0)
def _reconcile(root: _Root, run_path: _RunPath, packed: _Wanted) -> _Report:
    wanted = _unpack_wanted(packed)
    wanted_check.check_desired_state(wanted)
    report = reconciling.reconcile(
        reconciling.HostPaths(Path(root), Path(run_path)), wanted)
    return ([(one.kind, one.group, one.reason, one.guest, one.line,
              list(one.threads), list(one.devices))
             for one in report.actions],
            list(map(dataclasses.astuple, report.problems)),
            list(report.foreign),
            list(map(dataclasses.astuple, report.unmeasured)),
            list(map(dataclasses.astuple, report.overlaps)))


def measure_percentages(root: Path, lines: Sequence[str],
                        domain: int) -> dict[str, rounding.Readings]:
    """Measure how the kernel rounds bandwidth percentages, as root.

    The kernel rounds percentages that are written to a schemata line.

    :param root: mount point of resctrl.
    :param lines: names of the schemata lines.
    :param domain: resctrl domain to write to.
    :raises fs.GroupError: if resctrl cannot be used.
    :raises ValueError: for a malformed line or domain.
    """
    return {line: tuple(shown) for line, shown
            in _measure(str(root), list(lines), domain)}


@privsep.entrypoint(privsep.context, timeout=60.0)
def _measure(root: _Root, lines: Sequence[_Line], domain: _Number
             ) -> list[tuple[str, list[int | None]]]:
    return [
        (line, list(shown))
        for line, shown in measuring.measure_percentages(
            Path(root), lines, domain
        ).items()
    ]


@privsep.entrypoint(privsep.context, timeout=60.0)
def _remove_own(root: _Root, uuid: _Uuid) -> bool:
    # It becomes part of a path.
    if not naming.is_uuid(uuid):
        raise ValueError(f'{uuid!r} is not a UUID')
    return fs.remove_group(Path(root), uuid)


def _pack_lines(desired: differences.Desired
                ) -> list[tuple[str, list[tuple[int, int]]]]:
    return [(line, list(values.items())) for line, values in desired.items()]


def _unpack_lines(desired: _Values) -> dict[str, dict[int, int]]:
    return {line: dict(values) for line, values in desired}


def _pack_wanted(wanted: model.Wanted) -> _Wanted:
    return ([(_pack_domain(guest.domain), sorted(guest.vcpus),
              guest.online, _pack_lines(guest.desired), guest.maker,
              sorted(guest.devices), guest.shared, guest.monitor,
              list(guest.ways.items()), guest.vcpu_class,
              sorted(guest.libvirt_vcpus))
             for guest in wanted.guests],
            [_pack_domain(domain) for domain in wanted.domains],
            sorted(wanted.removable), dict(wanted.others),
            wanted.all_threads, wanted.devices, wanted.monitors,
            wanted.monitors_per_group, dict(wanted.tolerance),
            _pack_lines(wanted.writes), wanted.staged, dict(wanted.bounded),
            _pack_cache(wanted.cache))


def _pack_cache(cache: Cache | None) -> _Cache | None:
    # Texts, because a mask may have more bits than a number that crosses.
    return None if cache is None else (
        list(cache.lines), f'{cache.mask:x}', f'{cache.region:x}',
        cache.least, [(node, list(domains)) for node, domains
                      in cache.domains_by_node.items()],
        [(domain, f'{mask:x}') for domain, mask in cache.exclusive.items()])


def _unpack_cache(packed: _Cache | None) -> Cache | None:
    if packed is None:
        return None
    lines, mask, region, least, by_node, exclusive = packed
    return Cache(tuple(lines), int(mask, 16), int(region, 16), least,
                 {node: tuple(domains) for node, domains in by_node},
                 {domain: int(taken, 16) for domain, taken in exclusive})


def _pack_domain(domain: model.Domain) -> _Domain:
    return (domain.uuid, domain.id, domain.name)


def _unpack_wanted(packed: _Wanted) -> model.Wanted:
    (guests, domains, removable, others, all_threads, devices, monitors,
     per_group, tolerance, writes, staged, bounded, cache) = packed
    return model.Wanted(
        tuple(model.Guest(model.Domain(*domain), frozenset(vcpus), online,
                          _unpack_lines(desired), maker, frozenset(mine),
                          shared,
                          monitor, dict(ways), vcpu_class,
                          frozenset(members))
              for (domain, vcpus, online, desired, maker, mine, shared,
                   monitor, ways, vcpu_class, members) in guests),
        tuple(model.Domain(*domain) for domain in domains),
        frozenset(removable), dict(others), all_threads, devices, monitors,
        per_group, dict(tolerance), _unpack_lines(writes), staged,
        dict(bounded), cache=_unpack_cache(cache))

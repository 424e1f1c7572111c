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


"""What nova-compute may have done as root, through privsep.

What crosses to the daemon and back is made of lists, texts and numbers alone;
:class:`apply.GroupError` is made again on this side from its arguments.

Whoever is root already (``ghsched`` on a host, the tests) calls
:mod:`ghsched_nova.resctrl.reconcile` itself.
"""

from collections.abc import Sequence
import ctypes
import os
from pathlib import Path

from oslo_config import cfg

from ghsched_nova import conf
from ghsched_nova import privsep
from ghsched_nova.resctrl.cache import Cache
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import reconcile as reconciling
from ghsched_nova.resctrl import resolve

#: Desired as it crosses: [line, [[domain, value], ...]], in order.
_Values = Sequence[tuple[str, Sequence[tuple[int, int]]]]
_Domain = tuple[str, int, str]
#: The fields of model.Guest, in order.
_Guest = tuple[_Domain, Sequence[int], int, _Values, model.Maker,
               Sequence[int], str, bool, Sequence[tuple[int, int]]]
#: The fields of cache.Cache, in order.
_Cache = tuple[Sequence[str], str, str, int,
               Sequence[tuple[int, Sequence[int]]]]
#: The fields of model.Wanted that come from outside, in order.
_Wanted = tuple[Sequence[_Guest], Sequence[_Domain], Sequence[str],
                dict[str, int], bool, bool, int, int, Sequence[str],
                _Values, _Cache | None]
#: The fields of reconcile.Report, of model.Action and model.Problem in order.
_Report = tuple[Sequence[tuple[model.Kind, str, str, str, str,
                               Sequence[int], Sequence[int]]],
                Sequence[tuple[str, str, str]], Sequence[str],
                Sequence[tuple[str, str, str]]]


def remove_own(root: Path, uuid: str) -> bool:
    """:func:`fs.remove_group`, done as root.

    :raises fs.GroupError: as there.
    :raises ValueError: when it is no UUID.
    """
    return _remove_own(str(root), uuid)


def reconcile(root: Path, run_path: Path,
              wanted: model.Wanted) -> reconciling.Report:
    """:func:`reconcile.reconcile` of a whole host, done as root in one call.

    :raises fs.GroupError: as there.
    :raises ValueError: when the desired state makes no sense.
    """
    actions, problems, foreign, unmeasured = _reconcile(
        str(root), str(run_path), _packed_wanted(wanted))
    return reconciling.Report(
        tuple(model.Action(kind, group, reason, guest, line, tuple(threads),
                           tuple(devices))
              for kind, group, reason, guest, line, threads, devices
              in actions),
        tuple(model.Problem(*problem) for problem in problems),
        tuple(foreign),
        tuple(model.Problem(*problem) for problem in unmeasured))


@privsep.context.entrypoint
def _reconcile(root: str, run_path: str, packed: _Wanted) -> _Report:
    _check_paths(root, run_path)
    wanted = _unpacked_wanted(packed)
    model.check(wanted)
    report = reconciling.reconcile(
        reconciling.Place(Path(root), Path(run_path)), wanted)
    return ([(one.kind, one.group, one.reason, one.guest, one.line,
              list(one.threads), list(one.devices))
             for one in report.actions],
            _packed_problems(report.problems), list(report.foreign),
            _packed_problems(report.unmeasured))


def _packed_problems(problems: Sequence[model.Problem]
                     ) -> list[tuple[str, str, str]]:
    return [(one.guest, one.group, one.reason) for one in problems]


@privsep.context.entrypoint
def _remove_own(root: str, uuid: str) -> bool:
    # It becomes part of a path.
    if not naming.is_uuid(uuid):
        raise ValueError(f'{uuid!r} is no UUID')
    _check_paths(root)
    return fs.remove_group(Path(root), uuid)


def _check_paths(root: str, run_path: str | None = None) -> None:
    """Whether the helper is to work where it is asked to.

    It is root and its caller is not, so it goes by its own configuration and
    by what the kernel says: in resctrl nobody can make a link or a file.

    :raises GroupError: when it is not.
    """
    conf.register(cfg.CONF)
    section = cfg.CONF.ghsched
    for option, asked in (('resctrl_path', root),
                          ('libvirt_run_path', run_path)):
        # The caller has made paths of its options, without a slash at the end.
        if asked not in (None, str(Path(section[option]))):
            raise fs.GroupError(
                f'[ghsched]{option} is {section[option]} in the configuration '
                'of the privileged helper; does it read the same files as '
                'nova-compute?', str(asked))
    found = file_system(root)
    if found not in section.resctrl_magic:
        raise fs.GroupError(
            f'the file system is none of resctrl (its type is {found:#x}); '
            'is it still mounted?', root)


def file_system(path: str) -> int:
    """``f_type`` of statfs(2), the first word of the structure; 0 for none.
    """
    found = (ctypes.c_long * 32)()
    failed = ctypes.CDLL(None).statfs(os.fsencode(path), found)
    return 0 if failed else int(found[0])


def _packed(desired: resolve.Desired
            ) -> list[tuple[str, list[tuple[int, int]]]]:
    return [(line, list(values.items())) for line, values in desired.items()]


def _unpacked(desired: _Values) -> dict[str, dict[int, int]]:
    return {line: dict(values) for line, values in desired}


def _packed_wanted(wanted: model.Wanted) -> _Wanted:
    return ([(_packed_domain(guest.domain), sorted(guest.vcpus),
              guest.online, _packed(guest.desired), guest.maker,
              sorted(guest.devices), guest.shared, guest.monitor,
              list(guest.ways.items()))
             for guest in wanted.guests],
            [_packed_domain(domain) for domain in wanted.domains],
            sorted(wanted.removable), dict(wanted.others),
            wanted.all_threads, wanted.devices, wanted.monitors,
            wanted.monitors_per_group, sorted(wanted.lossy),
            _packed(wanted.writes), _packed_cache(wanted.cache))


def _packed_cache(cache: Cache | None) -> _Cache | None:
    # Texts, because a mask may have more bits than a number that crosses.
    return None if cache is None else (
        list(cache.lines), f'{cache.mask:x}', f'{cache.region:x}',
        cache.least, [(node, list(domains)) for node, domains
                      in cache.domains_by_node.items()])


def _unpacked_cache(packed: _Cache | None) -> Cache | None:
    if packed is None:
        return None
    lines, mask, region, least, by_node = packed
    return Cache(tuple(lines), int(mask, 16), int(region, 16), least,
                 {node: tuple(domains) for node, domains in by_node})


def _packed_domain(domain: model.Domain) -> _Domain:
    return (domain.uuid, domain.id, domain.name)


def _unpacked_wanted(packed: _Wanted) -> model.Wanted:
    (guests, domains, removable, others, all_threads, devices, monitors,
     per_group, lossy, writes, cache) = packed
    return model.Wanted(
        tuple(model.Guest(model.Domain(*domain), frozenset(vcpus), online,
                          _unpacked(desired), maker, frozenset(mine), shared,
                          monitor, dict(ways))
              for (domain, vcpus, online, desired, maker, mine, shared,
                   monitor, ways) in guests),
        tuple(model.Domain(*domain) for domain in domains),
        frozenset(removable), dict(others), all_threads, devices, monitors,
        per_group, frozenset(lossy), _unpacked(writes),
        cache=_unpacked_cache(cache))

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

"""Facts of this node for ``ghsched-status doctor`` and other checks."""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import gzip
from importlib import metadata
import os
from pathlib import Path
import re
import shutil
import stat
from typing import Any
import zlib

from oslo_config import cfg

from ghsched_nova.cmd import configured
from ghsched_nova import conf
from ghsched_nova.features.doctor import checks
from ghsched_nova.features.doctor import checks_groups
from ghsched_nova.features.doctor import checks_options
from ghsched_nova.features.doctor import preconditions
from ghsched_nova.features.l3_ways import reserved_ways
from ghsched_nova.host import host_facts
from ghsched_nova.resctrl.cache_facts import CacheWays
from ghsched_nova.resctrl import counters
from ghsched_nova.resctrl import detection
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import group_ids
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import schemata
from ghsched_nova.resctrl import sysfs as sysfs_files
from ghsched_placement.base import decimals

_OWN_FILE = 'placement.conf'
#: Name of the processor, below sysfs (drivers/firmware/smccc/soc_id.c).
_SOC_ID = 'bus/soc/devices/soc0/soc_id'
_TITLE = re.compile(r'([^\s:/]+): (?:master process \[|.*worker\()')


def read_node_facts(
    files: Sequence[str] | None, proc: Path = Path('/proc')
) -> checks.MachineFacts:
    """Read the configuration, programs and resctrl features of this node.

    :param files: configuration files; None for those of nova-compute.
    :raises oslo_config.cfg.Error: if a file cannot be read.
    """
    found = read_node_options(files)
    section = found.ghsched
    bandwidth, invalid = _parse_node_bandwidth(section)
    root = Path(section.resctrl_path)
    host, unavailable = _read_resctrl_features(section, invalid)
    own_file, attempts = read_placement_conflict_retries(files)
    return checks.MachineFacts(
        nova=_get_installed_release('nova'),
        placement=_get_installed_release('openstack-placement'),
        files=tuple(found.config_file or ()),
        driver=found.compute_driver or '',
        available=tuple(found.filter_scheduler.available_filters),
        enabled=tuple(found.filter_scheduler.enabled_filters),
        programs=find_running_programs(checks.PROGRAMS, proc),
        resctrl=str(root),
        mounted=(root / 'schemata').is_file(),
        mode=_read_permission_bits(root),
        dialect=host.dialect.name if host else '',
        unavailable=unavailable,
        missing=list_unmet_preconditions(root, Path(section.sysfs_path), proc),
        notes=tuple(_describe_foreign_controls(root, host)) if host else (),
        groups=_read_groups(section, host) if host and not invalid else None,
        slows_siblings=bool(
            host and detection.THREAD_NOTE in host.notes),
        overlaps=tuple(_describe_l3_overlaps(root, host.cache))
        if host else (),
        bandwidth=bandwidth, invalid=invalid,
        doubtful=_find_unusable_options(found, host, invalid),
        own_file=own_file,
        helper=shutil.which('privsep-helper') is not None, attempts=attempts)


def _parse_node_bandwidth(section: Any) -> tuple[dict[int, int], str]:
    """Parse ``[ghsched]node_bandwidth`` and check all of ``[ghsched]``.

    :returns: MB/s by host NUMA node, and the first error in the section; empty
        if there is none.
    """
    try:
        # Nova's services read all of them at their start.
        dict(section)
        conf.check_options(section)
        bandwidth = conf.parse_node_values(section, 'node_bandwidth')
        conf.make_tree_config(section)
        return bandwidth, ''
    except (cfg.Error, ValueError) as error:
        return {}, str(error)


def list_unmet_preconditions(
    resctrl_path: Path, sysfs: Path, proc: Path = Path('/proc')
) -> tuple[preconditions.UnmetPrecondition, ...]:
    """Return the preconditions of resctrl that this host does not meet."""
    return preconditions.list_unmet_preconditions(
        _read_kernel_properties(resctrl_path, sysfs, proc)
    )


def read_node_options(files: Sequence[str] | None) -> cfg.ConfigOpts:
    """Return the options of ghsched and Nova that the node checks need.

    :param files: configuration files to read; None for those of nova-compute.
    """
    found = cfg.ConfigOpts()
    conf.register_opts(found)
    found.register_opt(cfg.StrOpt('compute_driver'))
    found.register_opts(
        [cfg.MultiStrOpt('available_filters', default=[]),
         cfg.ListOpt('enabled_filters', default=[])],
        group='filter_scheduler')
    configured.load_conf_files(found, files)
    return found


def read_placement_conflict_retries(
    files: Sequence[str] | None,
) -> tuple[str, int | None]:
    """Read how often this node's Placement retries an allocation write.

    Placement retries after a conflict with another request.

    :param files: configuration files that the user named; None for the default
        files of Placement.
    :returns: path of placement.conf, and the option
        ``[placement]allocation_conflict_retry_count``. The option is None if
        the file cannot be read. The path is empty if there is no file.
    """
    found = [one for one in (
        cfg.find_config_files(project='placement') if files is None
        else files) if Path(one).name == _OWN_FILE]
    if not found:
        return '', None
    options = cfg.ConfigOpts()
    # The default is Placement's.
    options.register_opt(cfg.IntOpt('allocation_conflict_retry_count',
                                    default=10), group='placement')
    try:
        options([], project='placement', default_config_files=found)
        return found[-1], int(
            options.placement.allocation_conflict_retry_count)
    except cfg.Error:
        return found[-1], None


def _get_installed_release(package: str) -> str:
    """Return the release of an installed package.

    :returns: empty if the package is not installed.
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ''


def _read_resctrl_features(
    section: Any, invalid: str
) -> tuple[resctrl_host.ResctrlHost | None, str]:
    """Read the resctrl features of the host as nova-compute reports them.

    Default settings are used if an option is invalid.

    :param section: the ``[ghsched]`` section of the configuration.
    :param invalid: error in the section; empty if there is none.
    :returns: the features and an empty text; or None and the reason if resctrl
        is unavailable.
    """
    settings = (resctrl_host.HostSettings() if invalid
                else host_facts.make_host_settings(section))
    try:
        return resctrl_host.read_host(
            Path(section.resctrl_path), Path(section.sysfs_path), settings
        ), ''
    except (OSError, ValueError, resctrl_host.ResctrlUnavailable) as error:
        return None, str(error)


def _read_groups(section: Any, host: resctrl_host.ResctrlHost
                 ) -> checks_groups.GroupFacts:
    """Read the resctrl groups of the host, and the number of free ids."""
    root = Path(section.resctrl_path)
    return checks_groups.GroupFacts(
        host.ids, group_ids.read_existing_groups(root),
        section.reserved_control_groups, section.default_bandwidth_max < 100,
        read_free_counters(root),
        fs.read_kernel_binding(fs.Files(), root),
        checks_groups.explain_wrong_unit(
            sysfs_files.read_text(Path(section.sysfs_path) / _SOC_ID) or '',
            os.uname().release) if host.monitored else '')


def _find_unusable_options(
    options: cfg.ConfigOpts, host: resctrl_host.ResctrlHost | None,
    invalid: str
) -> tuple[str, ...]:
    """Return sentences on options that are unknown or unusable on this host.

    :param invalid: error in ``[ghsched]``; if there is one, values are not
        checked.
    """
    section = options.ghsched
    return (*checks_options.list_unknown_options(options),
            *(() if invalid else checks_options.find_unusable_option_values(
                section, Path(section.sysfs_path), host)))


def _read_kernel_properties(
    root: Path, sysfs: Path, proc: Path
) -> preconditions.Kernel:
    """Return the kernel properties that resctrl depends on."""
    system = os.uname()
    tables = sysfs / 'firmware' / 'acpi' / 'tables'
    return preconditions.Kernel(
        machine=system.machine, release=system.release,
        filesystems=sysfs_files.read_text(proc / 'filesystems') or '',
        config=_read_kernel_config(proc, system.release),
        tables={path.name for path in sysfs_files.list_directory(tables)}
        if tables.is_dir() else None,
        cpuinfo=sysfs_files.read_text(proc / 'cpuinfo') or '',
        cmdline=sysfs_files.read_text(proc / 'cmdline') or '',
        mounted=(root / 'schemata').is_file(), path=str(root),
        info={path.name for path in sysfs_files.list_directory(root / 'info')})


def _read_kernel_config(proc: Path, release: str) -> str | None:
    """Return the build configuration of the running kernel.

    :returns: None if the configuration is not found.
    """
    try:
        return gzip.decompress(
            (proc / 'config.gz').read_bytes()).decode(errors='replace')
    except (OSError, EOFError, zlib.error):
        return sysfs_files.read_text(Path('/boot') / f'config-{release}')


def _describe_foreign_controls(
    resctrl_path: Path, host: resctrl_host.ResctrlHost
) -> Iterator[str]:
    """Yield sentences about resctrl limits that ghsched does not manage."""
    yield from (one for one in host.notes if one != detection.THREAD_NOTE)
    for name, group in _read_group_schemata(resctrl_path):
        if naming.parse_group_name(name).is_managed:
            yield from (f'control group {name}: {text}'
                        for text in detection.describe_reduced_caps(group))


def _describe_l3_overlaps(
    resctrl_path: Path, cache: CacheWays | None
) -> Iterator[str]:
    """Yield a sentence for each group that uses L3 cache ways of a guest.

    These are resctrl groups of other software than ghsched. The ways are
    reserved for the guest.

    :param cache: L3 cache of the host; None if the cache cannot be controlled.
    """
    groups = dict(_read_group_schemata(resctrl_path)) if cache else {}
    if cache is None or '' not in groups:
        return
    foreign = sorted(naming.list_foreign_groups(groups) - {''})
    for name in sorted(groups.keys() - {'', *foreign}):
        domains = reserved_ways.list_unshared_caches(cache, groups[name],
                                                     groups[''])
        for other in foreign:
            text = reserved_ways.describe_shared_ways(
                cache, domains, groups[name], groups[other])
            if text:
                yield (f'control group {other} has {text} that {name} has to '
                       'itself')


def _read_group_schemata(
    resctrl_path: Path,
) -> Iterator[tuple[str, schemata.Schemata]]:
    """Yield the name and the schemata of each readable resctrl control group.

    Schemata are the limits of a group in resctrl. The root group has an empty
    name.
    """
    for path in (resctrl_path, *resctrl_path.iterdir()):
        if path.name in naming.NOT_GROUPS:
            continue
        with contextlib.suppress(OSError, ValueError):
            yield (
                ('' if path == resctrl_path else path.name),
                schemata.parse_kernel_schemata(
                    (path / 'schemata').read_text()
                ),
            )


def _read_permission_bits(path: Path) -> int | None:
    """Return the permission bits of a path; None if they cannot be read."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


def find_running_programs(known_programs: Collection[str],
                          proc: Path) -> tuple[str, ...]:
    """Return the sorted names of the known programs that run."""
    found = set()
    for entry in proc.iterdir() if proc.is_dir() else ():
        # A process may have ended meanwhile.
        with contextlib.suppress(OSError):
            if decimals.parse_decimal(entry.name) is not None:
                found.add(identify_program((entry / 'cmdline').read_bytes(),
                                           known_programs))
    return tuple(sorted(found - {''}))


def identify_program(
    cmdline: bytes, known: Collection[str] = checks.PROGRAMS
) -> str:
    """Return the name of the known program that a process runs.

    The program is the first word of the command line, or follows the
    interpreter and its options. Services of Nova 34 have a process title
    instead, such as ``NAME: master process [...]`` or ``NAME: ... worker(N)``.

    :param cmdline: content of ``/proc/PID/cmdline``.
    :param known: names of known programs.
    :returns: empty if the process runs none of them.
    """
    words = [os.fsdecode(word) for word in cmdline.split(b'\0')[:3]]
    title = _TITLE.match(words[0])
    names = [title[1]] if title else map(os.path.basename, words)
    return next((name for name in names if name in known), '')


def read_free_counters(root: Path) -> Mapping[int, int]:
    """Return the number of free bandwidth counters by resctrl domain.

    :param root: mount point of resctrl. A read clears the kernel's text of
        the last error, so it waits for writers of resctrl.
    :returns: empty if counters need not be assigned to groups.
    """
    fs.wait_for_writer(root)
    found = counters.read_counter_assignments(fs.Files(), root, ())
    return found.free if found else {}

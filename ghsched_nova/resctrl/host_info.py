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

"""Numbers in the files of resctrl's info/ that describe a host (pure)."""

from collections.abc import Mapping
import math
import re

from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl.errors import ResctrlUnavailable
from ghsched_nova.resctrl import schemata

_NUMBER = re.compile(r'[0-9]{1,18}')


def parse_info_number(info: Mapping[str, str], name: str, lowest: int) -> int:
    """Return the number in a file of resctrl's info/.

    :param name: path of the file below info/.
    :raises ResctrlUnavailable: if the file is missing, or has no number of at
        least ``lowest``.
    """
    text = info.get(name)
    if text is None:
        raise ResctrlUnavailable(f'there is no info/{name}')
    if not _NUMBER.fullmatch(text.strip()) or int(text) < lowest:
        raise ResctrlUnavailable(f'info/{name} is {text.strip()!r}, not a '
                                 f'number of at least {lowest}')
    return int(text)


def count_closids(info: Mapping[str, str]) -> int:
    """Return the number of control groups, including the default group.

    It is 1 if the kernel only monitors.
    """
    names = {name for name in info if name.endswith('/num_closids')}
    if any(name.startswith('MB/') for name in info):
        names.add('MB/num_closids')
    number = min((parse_info_number(info, name, lowest=1) for name in names),
                 default=1)
    # AMD's SDCIAE, since Linux 6.19, puts the traffic of devices into the
    # cache with the highest number (resctrl_io_alloc_closid()).
    for_devices = any(text.strip() == 'enabled' for name, text in info.items()
                      if name.endswith('/io_alloc'))
    return max(1, number - for_devices)


def count_rmids(dialect: dialects.Dialect, info: Mapping[str, str]) -> int:
    """Return the number of monitoring ids; 0 if groups need none."""
    # A group has one id, the same in each resource that is measured
    # (resctrl_arch_system_num_rmid_idx()).
    names = {name for name in info if name.endswith('_MON/num_rmids')}
    if dialect.monitor is not None:
        names.add(f'{dialect.monitor.info}/num_rmids')
    return min((parse_info_number(info, name, lowest=0) for name in names),
               default=0)


def count_assignable_counters(dialect: dialects.Dialect,
                              info: Mapping[str, str]) -> dict[int, int]:
    """Return how many bandwidth counters each resctrl domain has.

    The result is empty if counters need not be assigned to groups. They must
    be assigned only in the mode mbm_event. The kernel puts the present mode
    in brackets in mbm_assign_mode (Documentation/filesystems/resctrl.rst).
    """
    if dialect.monitor is None:
        return {}
    directory = dialect.monitor.info
    modes = info.get(f'{directory}/mbm_assign_mode', '').split()
    if '[mbm_event]' not in modes:
        return {}
    text = info.get(f'{directory}/num_mbm_cntrs', '').strip()
    try:
        return (
            schemata.parse_schemata(f'counters:{text}').values('counters')
            or {}
        )
    except schemata.SchemataError as exc:
        raise ResctrlUnavailable(
            f'info/{directory}/num_mbm_cntrs: {exc}'
        ) from exc


def read_lowest_cap(dialect: dialects.Dialect,
                    info: Mapping[str, str]) -> tuple[int, int]:
    """Return the lowest bandwidth cap of a host and the granularity of caps.

    :param info: text of the files below resctrl's info/, by path.
    """
    if dialect.name in dialects.BY_NAME:
        return (parse_info_number(info, 'MB/min_bandwidth', lowest=0),
                parse_info_number(info, 'MB/bandwidth_gran', lowest=1))
    cap = dialect.find_knob('maximum')
    if cap is None or dialect.has_absolute_caps:
        return cap.minimum if cap else 0, 1
    return math.ceil(cap.value_to_percent(cap.minimum)), 1

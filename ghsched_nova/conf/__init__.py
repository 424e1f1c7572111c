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

"""Options of the ``[ghsched]`` section.

The same file is read by nova-compute and nova-scheduler; the help of each
option says which of the two uses it. Imports nothing of Nova, so that the
sample file and the reference can be generated without it.
"""

from collections.abc import Sequence
import copy
from typing import Any

from oslo_config import cfg

from ghsched_nova.conf import bandwidth
from ghsched_nova.conf import compute
from ghsched_nova.features import declared_options
from ghsched_placement.base import decimals
from ghsched_placement.providers import tree

GROUP = cfg.OptGroup(
    'ghsched', title='Memory bandwidth and NUMA-local resources',
    help='Guarantees and limits of memory bandwidth for guests.')

#: Sections with the options of oslo.privsep, by the default capabilities of
#: the helper, as named in ghsched_nova.base.privsep.
_HELPERS = (
    (('CAP_DAC_OVERRIDE',), cfg.OptGroup(
        'ghsched_privsep', title='The privileged helper of nova-compute',
        help='How nova-compute starts the helper that writes to resctrl.')),
    (('CAP_SYS_NICE',), cfg.OptGroup(
        'ghsched_threads_privsep',
        title='The helper of nova-compute that sets scheduling classes',
        help='Options of oslo.privsep for the helper that sets the scheduling '
             'class of guest threads. It needs CAP_SYS_NICE and no other '
             'capability.')),
    (('CAP_DAC_OVERRIDE', 'CAP_SYS_NICE', 'CAP_SYS_PTRACE'), cfg.OptGroup(
        'ghsched_memory_privsep',
        title='The helper of nova-compute that moves memory of guests',
        help='Options of oslo.privsep for the helper that moves the memory of '
             'a running guest to another NUMA node. It needs CAP_SYS_NICE, '
             'CAP_SYS_PTRACE and CAP_DAC_OVERRIDE.')),
    ((), cfg.OptGroup(
        'ghsched_connections_privsep',
        title='The helper of nova-compute that reads connections of guests',
        help='Options of oslo.privsep for the helper that reads '
             '/proc/net/nf_conntrack, with [ghsched]affinity_source = '
             'conntrack. It runs as root and needs no capability.')),
    (('CAP_PERFMON',), cfg.OptGroup(
        'ghsched_counters_privsep',
        title='The helper of nova-compute that counts instructions of guests',
        help='Options of oslo.privsep for the helper that reads performance '
             'counters of guests, for "openstack ghsched server blame". It '
             'needs CAP_PERFMON and no other capability.')),
)

OPTS: list[cfg.Opt] = [
    cfg.ListOpt(
        'nova_fixes', default=['auto'],
        help='Fixes of Nova bugs that are applied to servers whose flavor '
             'has a key of ghsched. "auto" applies all that suit the '
             'installed Nova, "none" applies none. Otherwise the names are '
             'those that "ghsched-status fixes" lists. Used by nova-api, '
             'nova-scheduler and nova-compute.'),
    *bandwidth.OPTS, *compute.OPTS,
    *(one for one in declared_options.OPTS if not one.deprecated_for_removal),
]

#: Options of earlier releases, which still hold where they are set.
DEPRECATED_OPTS = [one for one in declared_options.OPTS
                   if one.deprecated_for_removal]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the ``[ghsched]`` options with a configuration.

    A second call changes nothing.
    """
    if GROUP.name in conf:
        return
    # Values that are set at run time are stored in the group, and ConfigOpts
    # makes only a shallow copy of it.
    conf.register_group(copy.deepcopy(GROUP))
    conf.register_opts(OPTS + DEPRECATED_OPTS, group=GROUP)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options of ghsched by group, for oslo-config-generator.

    This is the entry point of ``oslo.config.opts``.
    """
    return [(GROUP, OPTS + DEPRECATED_OPTS),
            *((group, _list_privsep_opts(capabilities))
              for capabilities, group in _HELPERS)]


def _list_privsep_opts(capabilities: Sequence[str]) -> list[cfg.Opt]:
    """Return oslo.privsep's options of a privileged helper of ghsched.

    oslo.privsep is imported here, because otherwise only nova-compute needs
    it.

    :param capabilities: default Linux capabilities of the helper.
    """
    from oslo_privsep import priv_context
    opts: list[cfg.Opt] = copy.deepcopy(priv_context.OPTS)
    cfg.set_defaults(opts, capabilities=list(capabilities))
    return opts


def make_tree_config(section: Any) -> tree.Config:
    """Return the options that concern a host's Placement inventories.

    :param section: ``conf.ghsched``.
    :raises ValueError: if a key of ``reserved_bandwidth`` is not a NUMA node
        number.
    """
    return tree.Config(
        reserved_bandwidth=parse_node_values(section, 'reserved_bandwidth'),
        reserved_elsewhere=section.reserved_bandwidth.get(tree.ELSEWHERE, 0),
        allocation_ratio=section.bandwidth_allocation_ratio,
        # If caps are counted, they include the bursts.
        bursts=parse_node_values(section, 'bandwidth_bursts')
        if section.bandwidth_accounting == 'min' else {})


def check_options(section: Any) -> None:
    """Parse all ``[ghsched]`` options once, so that errors appear at startup.

    oslo.config parses a value when it is first read. For some options this is
    the first report of nova-compute: the service would run, but its host would
    be missing in Placement.

    :raises ValueError: names the invalid option.
    """
    for option in OPTS + DEPRECATED_OPTS:
        try:
            value = section[option.dest]
        except ValueError as error:
            raise ValueError(f'[ghsched]{option.name}: {error}') from error
        if value is None and option.default is not None:
            # An empty number; oslo.config does not refuse it.
            raise ValueError(f'[ghsched]{option.name}: the value is empty')
    for name in ('reserved_bandwidth', 'node_bandwidth',
                 'bandwidth_bursts'):
        parse_node_values(section, name)


def parse_node_values(section: Any, option: str) -> dict[int, int]:
    """Return the values of a mapping option, by host NUMA node number.

    The value for all other nodes (``*`` of ``reserved_bandwidth``) is left
    out.

    :param option: name of the option.
    :raises ValueError: if a key is not a NUMA node number.
    """
    found = {}
    for node, number in section[option].items():
        if node == tree.ELSEWHERE and option == 'reserved_bandwidth':
            continue
        key = decimals.parse_decimal(str(node))
        if key is None:
            raise ValueError(
                f'[ghsched]{option}: {node!r} is not a NUMA node number; '
                'write it as 0:10,1:10')
        found[key] = int(number)
    return found

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


"""Options of memory bandwidth, bursts, the L3 and control groups."""

from oslo_config import cfg
from oslo_config import types

from ghsched_placement import tree

_percent = types.Integer(min=0, max=100)

OPTS: list[cfg.Opt] = [
    cfg.Opt(
        'reserved_bandwidth', type=types.Dict(_percent),
        default={tree.ELSEWHERE: tree.UNDELIVERED},
        help='Percent of each NUMA node\'s theoretical memory bandwidth that '
             'is not guaranteed to guests, as NODE:PERCENT,NODE:PERCENT: the '
             'part that memory does not deliver and the part that the host '
             'itself uses. * stands for the nodes left out; 0 percent if * '
             'is left out too. Measured memory delivers about 80 percent of '
             'its theoretical bandwidth, less with many writes: ghsched-bench '
             'run loaded-latency measures it on a host. Nodes whose guests '
             'hold more reserve only the part that guests leave. Used by '
             'nova-compute.'),
    cfg.FloatOpt(
        'bandwidth_allocation_ratio', default=1.0, min=0.1, max=100.0,
        help='How many times over the bandwidth of a NUMA node may be '
             'guaranteed. With more than 1.0 a guarantee is no longer one '
             'when all guests are busy at once. Used by nova-compute.'),
    cfg.Opt(
        'bandwidth_bursts', type=types.Dict(_percent), default={},
        help='Percent of each NUMA node\'s memory bandwidth that is kept for '
             'bursts of guests (ghsched:mem_bw_burst) and promised more than '
             'once, by what they have really used, as '
             'NODE:PERCENT,NODE:PERCENT. Nodes left out take no guest with '
             'one, nor do hosts that cannot guarantee bandwidth: nothing '
             'would protect the guarantees of others. Used by nova-compute.'),
    cfg.IntOpt(
        'burst_window', default=24, min=2, max=24 * 35,
        help='Hours over which the use of bursts is measured. Before a node '
             'has been measured for twice as long nothing is promised twice '
             'there, and no more is promised than every hour of the window '
             'allows. '
             'A day has the hours in it that are busiest every day; take 168 '
             'where they differ from day to day of a week. Used by '
             'nova-compute.'),
    cfg.StrOpt(
        'burst_risk', default='medium',
        choices=[('low', 'for guests whose loads are busy together, or change '
                         'from day to day'),
                 ('medium', 'for guests whose loads move together in part'),
                 ('high', 'for guests that have little in common')],
        help='How many bursts are promised by measured use: how much guests '
             'are taken to be busy at the same time at least, and how many '
             'times as busy as measured. The manual has the figures and '
             'simulated results. Used by nova-compute.'),
    cfg.StrOpt(
        'bandwidth_accounting', default='min',
        choices=[('min', 'count what is guaranteed (ghsched:mem_bw_min)'),
                 ('max', 'count the cap (ghsched:mem_bw_max), so that caps '
                         'never add up to more than a node has')],
        help='What a guest takes from the bandwidth of a NUMA node. Used by '
             'nova-scheduler and nova-compute; must be the same on all '
             'hosts.'),
    cfg.IntOpt(
        'reserved_control_groups', default=0, min=0,
        help='How many of the host\'s resctrl control groups are kept for '
             'other users than guests; the default group of the kernel is '
             'never counted. Used by nova-compute.'),
    cfg.IntOpt(
        'l3_ways_shared', default=2, min=1,
        help='How many ways of each L3 are left to all, at least: the host, '
             'and guests without ghsched:l3_ways. Ways that devices write '
             'into are never given to a guest. Used by nova-compute.'),
    cfg.BoolOpt(
        'group_sharing', default=False,
        help='Whether guests that ask for the same memory bandwidth on the '
             'same NUMA nodes of the host have one resctrl control group '
             'together. What is guaranteed to them, and what they are held '
             'to, then holds for all of them together: one may use what '
             'another leaves. A guest keeps the kind of group that it was '
             'started with. Used by nova-compute.'),
    cfg.IntOpt(
        'default_bandwidth_max', default=100, min=1, max=100,
        help='Percent of the bandwidth of each NUMA node that the guests '
             'without a ghsched:mem_bw_* key are held to, all together, so '
             'that they do not starve those with one; 100 is no cap. With '
             'less they have one control group, which is not offered to '
             'other guests then. Used by nova-compute and ghsched-host.'),
    cfg.Opt(
        'node_bandwidth', type=types.Dict(types.Integer(min=1)), default={},
        help='Theoretical memory bandwidth of each NUMA node in MB/s (10^6 '
             'bytes per second), as NODE:MB,NODE:MB. Used by nova-compute '
             'where a cap is a bandwidth and no percentage (AMD, and Intel '
             'with the mount option mba_MBps); what is left out is taken '
             'from the firmware\'s table (HMAT) if there is one.'),
    cfg.StrOpt(
        'bandwidth_cap',
        choices=[('hard', 'a cap holds while the node has bandwidth to '
                          'spare'),
                 ('soft', 'a guest may exceed its cap while nobody else '
                          'wants the bandwidth')],
        help='How the hardware holds a cap, where the kernel does not tell '
             '(MPAM of the mainline kernel, NVIDIA, openEuler 22.03). '
             'Without it such a host takes no guest with a cap. Used by '
             'nova-compute.'),
    cfg.StrOpt(
        'memorytune_attributes', default='auto',
        choices=[('auto', 'ask libvirt by defining a domain and reading it '
                          'back, and the kernel whether libvirt can read '
                          'what is there'),
                 ('extended', 'libvirt keeps min_bandwidth, hardlimit and '
                              'priority'),
                 ('basic', 'libvirt keeps bandwidth alone'),
                 ('none', 'libvirt cannot use the resctrl of this host')],
        help='Which attributes of <memorytune> the host\'s libvirt keeps. '
             'What libvirt does not keep, nova-compute writes to resctrl '
             'itself; with none it makes control groups and monitoring '
             'groups as well. '
             'Upstream libvirt cannot use a kernel that has more lines than '
             'MB and L3 in its schemata, as openEuler\'s has. Used by '
             'nova-compute.'),
]

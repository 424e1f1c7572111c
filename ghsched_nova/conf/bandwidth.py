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

from ghsched_placement.providers import tree

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
        help='Oversubscription of guaranteed memory bandwidth: how many times '
             'the bandwidth of a NUMA node guests may reserve together. With '
             'more than 1.0 guarantees do not hold while all guests are busy '
             'at once. Used by nova-compute.'),
    cfg.Opt(
        'bandwidth_bursts', type=types.Dict(_percent), default={},
        help='Percent of each NUMA node\'s memory bandwidth that is reserved '
             'for bursts of guests (ghsched:mem_bw_burst), as '
             'NODE:PERCENT,NODE:PERCENT. It is oversubscribed by measured '
             'use. Nodes that are not listed take no guest with a burst, nor '
             'do hosts that cannot guarantee bandwidth: nothing would protect '
             'the guarantees of other guests there. Used by nova-compute.'),
    cfg.IntOpt(
        'burst_window', default=24, min=2, max=24 * 35,
        help='Hours over which the use of bursts is measured. A node is '
             'oversubscribed only after two full windows, and never beyond '
             'what the busiest hour of the last window allows. The default '
             'covers the busiest hours of a day; set 168 if they differ '
             'between the days of a week. Used by nova-compute.'),
    cfg.StrOpt(
        'burst_risk', default='medium',
        choices=[('low', 'for guests whose loads are busy together, or change '
                         'from day to day'),
                 ('medium', 'for guests whose loads move together in part'),
                 ('high', 'for guests that have little in common')],
        help='How far bursts are oversubscribed by measured use. It stands '
             'for the minimum correlation assumed between the loads of '
             'guests, and for a factor on their measured load. The manual has '
             'the figures and simulated results. Used by nova-compute.'),
    cfg.StrOpt(
        'bandwidth_accounting', default='min',
        choices=[('min', 'count the guarantee (ghsched:mem_bw_min)'),
                 ('max', 'count the limit (ghsched:mem_bw_max), so that '
                         'limits never add up to more than a node has')],
        help='Bandwidth that a guest allocates in Placement on a NUMA node. '
             'Used by nova-scheduler and nova-compute; must be the same on '
             'all hosts.'),
    cfg.IntOpt(
        'reserved_control_groups', default=0, min=0,
        help='Number of the host\'s resctrl control groups that are reserved '
             'for other users than guests. The default group of the kernel '
             'is never counted. Used by nova-compute.'),
    cfg.IntOpt(
        'l3_ways_shared', default=2, min=1,
        help='Minimum number of ways of each L3 cache that the host and '
             'guests without ghsched:l3_ways share. Ways that devices write '
             'into are never allocated to a guest. Used by nova-compute.'),
    cfg.BoolOpt(
        'group_sharing', default=False,
        help='Whether guests that ask for the same memory bandwidth on the '
             'same NUMA nodes of the host share one resctrl control group. '
             'Their guarantee and their limit then apply to all of them '
             'together: one may use what another does not use. A guest stays '
             'in the kind of group that it was started in. Used by '
             'nova-compute.'),
    cfg.IntOpt(
        'default_bandwidth_max', default=100, min=1, max=100,
        help='Limit, in percent of the bandwidth of each NUMA node, for all '
             'guests without a ghsched:mem_bw_* key together, so that they '
             'are no noisy neighbors of guests with one; 100 is no limit. A '
             'lower value takes one control group, which other guests then '
             'cannot have. Used by nova-compute and ghsched-host.'),
    cfg.Opt(
        'node_bandwidth', type=types.Dict(types.Integer(min=1)), default={},
        help='Theoretical memory bandwidth of each NUMA node in MB/s (10^6 '
             'bytes per second), as NODE:MB,NODE:MB. Used by nova-compute '
             'where a limit is a bandwidth and no percentage (AMD, and Intel '
             'with the mount option mba_MBps). Values of other nodes come '
             'from the firmware\'s table (HMAT), if there is one.'),
    cfg.StrOpt(
        'bandwidth_cap',
        choices=[('hard', 'the limit applies even while the node has '
                          'bandwidth to spare'),
                 ('soft', 'a guest may exceed its limit while no other guest '
                          'needs the bandwidth')],
        help='How the hardware enforces a limit (ghsched:mem_bw_max), on '
             'kernels that do not report it (MPAM of the mainline kernel, '
             'NVIDIA, openEuler 22.03). If unset, such a host takes no guest '
             'with a limit. Used by nova-compute.'),
    cfg.StrOpt(
        'unprotected_guests', default='refuse',
        choices=[('refuse', 'do not start the guest; the server goes to '
                            'ERROR'),
                 ('start', 'start the guest without guarantee and limit, and '
                           'report it as not protected')],
        help='What happens to a guest of this host that starts again (after '
             'a reboot of the host, by a hard reboot, by "openstack server '
             'start") while the host cannot enforce its memory bandwidth: '
             'the kernel is another one, or resctrl is not mounted. With '
             'start, nova-compute enforces the policy of the running guest '
             'with the first report at which the host can. New guests and '
             'guests that arrive from another host are refused in any case. '
             'Used by nova-compute.'),
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

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

"""Options of earlier releases, which still hold where they are set."""

from oslo_config import cfg

_BURST_RISK = 'Set burst_risk instead.'
_UNNEEDED = 'No cloud needs another value than the default.'

OPTS: list[cfg.Opt] = [
    cfg.FloatOpt(
        'burst_percentile', min=50.0, max=99.999,
        deprecated_for_removal=True,
        deprecated_reason=_BURST_RISK,
        help='Percent of the time in which what is kept for bursts has to '
             'suffice, of periods of [DEFAULT]update_resources_interval, a '
             'minute by default. What guests do within a period is not seen. '
             'With more the tail counts, which few periods show. Used by '
             'nova-compute.'),
    cfg.FloatOpt(
        'burst_correlation', min=0.0, max=1.0,
        deprecated_for_removal=True,
        deprecated_reason=_BURST_RISK,
        help='How much guests are taken to be busy at the same time, at '
             'least: with 0 each by itself, with 1 all at once. What is '
             'measured counts where it is more. Guests that come are seldom '
             'strangers to those that are there: they serve the same users '
             'or the same clock. A day shows too few of the times when they '
             'are busy together to rely on less, unless guests are known '
             'to have nothing in common. With more than 0 the guests of one '
             'project count as replicas of one service, which may all be '
             'busy at once: a node whose guests are all of one project '
             'promises no more than what is kept for bursts. Used by '
             'nova-compute.'),
    cfg.FloatOpt(
        'burst_safety', min=1.0, max=10.0,
        deprecated_for_removal=True,
        deprecated_reason=_BURST_RISK,
        help='How many times as busy as has been measured guests are taken '
             'to be, for those that come and for days to come. Used by '
             'nova-compute.'),
    cfg.FloatOpt(
        'burst_ratio_max', default=3.0, min=1.0, max=10.0,
        deprecated_for_removal=True,
        deprecated_reason=_UNNEEDED,
        help='How many times what is kept for bursts is promised at most, '
             'whatever has been measured. The kernel holds this part of each '
             'burst in any case, as a guarantee, so that all of them '
             'together never take what other guests are guaranteed. Used by '
             'nova-compute and ghsched-host; must not be lowered while '
             'guests with bursts run.'),
    cfg.IntOpt(
        'bottleneck_hysteresis', default=20, min=0, max=99,
        deprecated_for_removal=True,
        deprecated_reason=_UNNEEDED,
        help='Percent of a threshold by which a figure has to fall below it '
             'before the node is no bottleneck any more. Used by '
             'nova-compute.'),
    cfg.FloatOpt(
        'affinity_half_life', default=300.0, min=1.0,
        deprecated_for_removal=True,
        deprecated_reason=_UNNEEDED,
        help='Seconds in which what guests have said to each other counts '
             'half, when they are silent. Used by nova-compute.'),
    cfg.FloatOpt(
        'affinity_delay', default=900.0, min=0.0,
        deprecated_for_removal=True,
        deprecated_reason=_UNNEEDED,
        help='Seconds for which guests that say less than 1 MB/s to each '
             'other still belong together. Used by nova-compute.'),
    cfg.FloatOpt(
        'load_period', default=30.0, min=0.0,
        deprecated_for_removal=True,
        deprecated_reason=_UNNEEDED,
        help='Seconds over which load and waiting of NUMA nodes are measured '
             'at least. They are measured when nova-compute reports its '
             'resources, [DEFAULT]update_resources_interval; a report that '
             'comes earlier repeats what was measured before. Used by '
             'nova-compute.'),
    cfg.FloatOpt(
        'load_smoothing', default=120.0, min=0.0,
        deprecated_for_removal=True,
        deprecated_reason=_UNNEEDED,
        help='Seconds after which what was measured before counts for 37 '
             'percent (1/e) in a figure of load or waiting; 0 reports each '
             'measurement as it is. With less, a short burst makes a node a '
             'bottleneck. Used by nova-compute.'),
    cfg.IntOpt(
        'max_candidates_per_host', default=64, min=1,
        deprecated_for_removal=True,
        deprecated_reason=_UNNEEDED,
        help='How many ways to give NUMA nodes of one host to those of the '
             'guest, among Placement\'s allocation candidates and with room '
             'for it, are tried before the host is passed over. Used by '
             'nova-scheduler.'),
    cfg.IntOpt(
        'scheduler_index_hosts', default=100, min=0,
        deprecated_for_removal=True,
        deprecated_reason=_UNNEEDED,
        help='Minimum number of hosts of a cloud for scheduler_index to take '
             'effect. In a smaller one a full search is cheap and weighs all '
             'hosts. Used by nova-scheduler.'),
    cfg.FloatOpt(
        'bandwidth_weight_multiplier', default=1.0,
        deprecated_for_removal=True,
        deprecated_reason='GhschedLoadWeigher counts memory bandwidth '
                          'together with CPUs and I/O.',
        help='Multiplier of GhschedBandwidthWeigher among the weighers. '
             'More than 0 avoids hosts whose memory bandwidth is nearly used '
             'up; 0 turns the weigher off. The same name in the metadata of '
             'an aggregate holds for its hosts. Used by nova-scheduler.'),
]

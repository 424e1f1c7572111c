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

_UNNEEDED = 'No cloud needs another value than the default.'

OPTS: list[cfg.Opt] = [
    cfg.FloatOpt(
        'burst_ratio_max', default=3.0, min=1.0, max=10.0,
        deprecated_for_removal=True,
        deprecated_reason=_UNNEEDED,
        help='Maximum ratio of the sum of all bursts to the bandwidth that is '
             'reserved for bursts, whatever has been measured. The kernel '
             'guarantees each burst divided by this ratio, so that all bursts '
             'together never take what other guests are guaranteed. Used by '
             'nova-compute and ghsched-host; must not be lowered while '
             'guests with bursts run.'),
    cfg.FloatOpt(
        'load_period', default=30.0, min=0.0,
        deprecated_for_removal=True,
        deprecated_reason=_UNNEEDED,
        help='Minimum seconds over which load and wait times of NUMA nodes '
             'are measured. They are measured when nova-compute reports its '
             'resources ([DEFAULT]update_resources_interval). An earlier '
             'report repeats the previous measurement. Used by nova-compute.'),
    cfg.FloatOpt(
        'load_smoothing', default=120.0, min=0.0,
        deprecated_for_removal=True,
        deprecated_reason=_UNNEEDED,
        help='Time constant in seconds by which load and wait times are '
             'smoothed: after this time an earlier measurement counts 37 '
             'percent (1/e). With 0 each measurement is reported as it is. '
             'With a small value, a short burst makes a node a bottleneck. '
             'Used by nova-compute.'),
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

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
]

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

"""Options of the load of NUMA nodes."""

from oslo_config import cfg
from oslo_config import types

#: Measures of load that can have a threshold.
LOADS = ('cpu_load', 'cpu_wait', 'memory_load', 'memory_wait', 'io_load',
         'io_wait')


class _Thresholds(types.Dict):
    """Percent by measure of load."""

    def __init__(self) -> None:
        super().__init__(types.Integer(min=0))

    def __call__(self, value: object) -> dict[str, int]:
        """Return the thresholds.

        :raises ValueError: for an unknown measure, or for no percentage.
        """
        found: dict[str, int] = super().__call__(value)
        for name in found:
            if name not in LOADS:
                raise ValueError(f'{name!r} is not one of {", ".join(LOADS)}')
        return found


_UNNEEDED = 'No cloud needs another value than the default.'

OPTS: list[cfg.Opt] = [
    cfg.Opt(
        'bottleneck_thresholds', type=_Thresholds(), default={},
        help='Thresholds in percent at which a NUMA node becomes a '
             'bottleneck, as NAME:PERCENT,NAME:PERCENT. The names are '
             'cpu_load (90 by default), cpu_wait (10), memory_load (80), '
             'memory_wait (5), io_load (95) and io_wait (800: eight requests '
             'that wait at a device). With 0 the value is not considered. '
             'Used by nova-compute, and by nova-scheduler to compare nodes '
             'that are not bottlenecks.'),
    cfg.BoolOpt(
        'load_placement', default=True,
        help='Whether a guest gets the least loaded of the host NUMA nodes on '
             'which it fits, and if possible none that is a bottleneck. Nodes '
             'with equal load are used in turn, unless '
             '[compute]packing_host_numa_cells_allocation_strategy is on. On '
             'hosts that do not report their load, the nodes with the lowest '
             'numbers are used. Used by nova-scheduler.'),
    cfg.FloatOpt(
        'load_weight_multiplier', default=1.0,
        help='Multiplier of GhschedLoadWeigher among the weighers. More '
             'than 0 avoids hosts whose NUMA nodes are busy or are waited '
             'for; 0 turns the weigher off. The same name in the metadata of '
             'an aggregate holds for its hosts. Used by nova-scheduler.'),
    cfg.IntOpt(
        'load_max_age', default=180, min=1,
        help='Maximum age in seconds of a measured load. nova-compute '
             'renews an unchanged load at the latest in the first resource '
             'report after half of it, so compute hosts need the same value '
             'or a smaller one. Used by nova-scheduler and nova-compute.'),
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

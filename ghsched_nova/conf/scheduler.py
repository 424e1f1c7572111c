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


"""Options of nova-scheduler."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.BoolOpt(
        'scheduler_index', default=True,
        help='Whether nova-scheduler selects hosts from an index of their '
             'reports and asks Placement about those only. A request then '
             'costs the same in a cloud of any size. For requests that the '
             'index does not support or finds no host for, the whole cloud '
             'is searched, so the index refuses no request. Used by '
             'nova-scheduler if it is started as ghsched-nova-scheduler.'),
    cfg.StrOpt(
        'scheduler_metrics_directory', default='',
        help='Directory in which each nova-scheduler process writes a file of '
             'Prometheus metrics of the index, for the textfile collector of '
             'node_exporter. Empty for no files. Used by nova-scheduler with '
             'scheduler_index.'),
    cfg.FloatOpt(
        'gradient_weight_multiplier', default=1.0,
        help='Multiplier of GhschedGradientWeigher among the weighers. '
             'More than 0 prefers hosts on which a guest leaves the least '
             'capacity that the usual guests cannot use; 0 turns the weigher '
             'off, for the choice of NUMA nodes within a host as well. The '
             'same name '
             'in the metadata of an aggregate holds for its hosts. Used by '
             'nova-scheduler.'),
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
]

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


"""Options of the index of hosts."""

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
]

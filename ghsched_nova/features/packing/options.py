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

"""Options of the weigher that keeps room for usual guests."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.FloatOpt(
        'gradient_weight_multiplier', default=1.0,
        help='Multiplier of GhschedGradientWeigher among the weighers. '
             'More than 0 prefers hosts on which a guest leaves the least '
             'capacity that the usual guests cannot use; 0 turns the weigher '
             'off, for the choice of NUMA nodes within a host as well. The '
             'same name '
             'in the metadata of an aggregate holds for its hosts. Used by '
             'nova-scheduler.'),
]

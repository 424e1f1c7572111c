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

"""Options of changes of guests that run."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.IntOpt(
        'node_move_rate', default=1024, min=0,
        help='Maximum MiB of memory per second that nova-compute migrates '
             'when a running guest moves to another NUMA node of its host; 0 '
             'for no limit.'),
]

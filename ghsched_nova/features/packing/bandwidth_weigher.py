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

"""Load weigher for memory bandwidth alone, under the name of earlier releases.

:mod:`ghsched_nova.features.load.load_weigher` counts memory bandwidth together
with CPUs and I/O, and replaces this weigher.
"""

from ghsched_nova.features.load import load_weigher


class GhschedBandwidthWeigher(load_weigher.GhschedLoadWeigher):
    """Weigher that prefers hosts with little use of memory bandwidth.

    The score is 0 if no bandwidth is used, and -1 for a host whose memory is a
    bottleneck.
    """

    option = 'bandwidth_weight_multiplier'
    resources = ('memory_load',)
    measure = 'memory bandwidth in use'
    unreadable = 0.0

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

"""Table of the features, each with the features that it imports.

A feature is listed after the features that it needs, so no two features need
each other. A test compares the table with the imports.
tools/delete_features.py deletes a feature together with those that need it.
"""

from collections.abc import Mapping
from types import MappingProxyType

NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    'bursts': (),
    'cpu_cache': (),
    'density': (),
    'flavor_check': (),
    'guest_topology': (),
    'index': (),
    'l3_ways': (),
    'live_change': (),
    'locked_memory': (),
    'numa_auto': (),
    'pv_hints': (),
    'real_time': (),
    'refusals': (),
    'doctor': ('l3_ways', 'live_change'),
    'interrupts': ('real_time',),
    'load': ('real_time',),
    'guest_channel': ('load',),
    'packing': ('index',),
    'history': ('load',),
    'planner': ('density', 'flavor_check', 'packing', 'real_time'),
    'rebalance': ('flavor_check', 'live_change', 'load', 'refusals'),
    'service_level': ('load',),
    'blame': ('live_change', 'load', 'real_time', 'service_level'),
    'explain': ('flavor_check', 'guest_topology', 'planner', 'pv_hints',
                'real_time', 'rebalance'),
    'metering': ('service_level',),
    'top': ('history', 'interrupts', 'load', 'real_time', 'service_level'),
    'exporter': ('flavor_check', 'load', 'planner', 'top'),
})

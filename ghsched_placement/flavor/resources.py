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

"""Tables of the resource classes and capabilities of all features (pure)."""

from collections.abc import Mapping
from collections.abc import Set
from types import MappingProxyType

from ghsched_placement.base.errors import PolicyError
from ghsched_placement.features import declared
from ghsched_placement.flavor import key_names
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.parts import Resource

#: Resource classes of host NUMA nodes beside bandwidth, by name.
BESIDE_BANDWIDTH: Mapping[str, Resource] = MappingProxyType({
    resource.name: resource for feature in declared.FEATURES
    for resource in feature.resources})

#: Key that requests a capability, by name of the capability.
KEY_OF_CAPABILITY: Mapping[str, keys.Key] = MappingProxyType({
    'MEM_BW_MIN': keys.MEM_BW_MIN, 'MEM_BW_MAX': keys.MEM_BW_MAX,
    'MEM_BW_HARDLIMIT': keys.MEM_BW_HARDLIMIT,
    'MEM_BW_SOFTLIMIT': keys.MEM_BW_HARDLIMIT,
    'MEM_BW_PRIORITY': keys.MEM_BW_PRIORITY,
    'MEM_BW_MONITOR': keys.MONITOR,
    'DEVICE_NUMA': keys.DEVICE_NUMA,
    'NUMA_AUTO': keys.NUMA,
    **{name: key for feature in declared.FEATURES
       for name, key in feature.capabilities.items()}})

#: Capabilities of every host with our driver, whatever its hardware.
ANY_HOST = frozenset({'DEVICE_NUMA', 'NUMA_AUTO'}).union(*(
    feature.capabilities for feature in declared.FEATURES
    if feature.are_on_any_host))

#: Reason why a key of a feature that is not installed is refused.
NOT_READ = 'no feature of this installation reads this key'

#: Keys of a guest NUMA node that the core enforces.
_NODE_KEYS = {key.name for key in (
    keys.MEM_BW_MIN, keys.MEM_BW_MAX, keys.MEM_BW_HARDLIMIT,
    keys.MEM_BW_PRIORITY)}


def refuse_unread_keys(names: Set[str]) -> None:
    """Refuse keys of guest NUMA nodes that no installed feature enforces.

    :param names: keys that no part of the policy has read.
    :raises PolicyError: for a key of a feature that is not installed.
    """
    enforced = _NODE_KEYS | {key.name for feature in declared.FEATURES
                             for key in feature.node_keys}
    for name in sorted(names - enforced):
        raise PolicyError(key_names.BY_NAME[name].extra_spec, NOT_READ)

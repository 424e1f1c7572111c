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

"""Names of ghsched in Placement, and functions that make and parse them.

No other module spells a resource class, a trait, a provider name or a request
group suffix, so that moving a name upstream (os-traits, os-resource-classes)
is a single change.
"""

from collections.abc import Iterable
from collections.abc import Sequence
import functools
import re
import uuid

from ghsched_placement.base import cpulist
from ghsched_placement.base import wire

# -- resource classes ---------------------------------------------------------

#: Share of one host NUMA node's theoretical memory bandwidth, in percent.
#: Lives on the NUMA node provider.
MEM_BW_PCT = 'CUSTOM_MEM_BW_PCT'

#: The same, beyond what is guaranteed: oversubscribed by what guests have
#: really used (ghsched:mem_bw_burst). Its total is what is kept for bursts.
#: Lives on the NUMA node provider.
MEM_BW_BURST_PCT = 'CUSTOM_MEM_BW_BURST_PCT'

#: Ways of the L3 that a guest has to itself: those of one L3 of the node, all
#: of which have as many. Lives on the NUMA node provider.
L3_WAYS = 'CUSTOM_L3_WAYS'

#: Thousandths of a shared CPU that vCPUs of a real-time class may take. Lives
#: on the NUMA node provider.
RT_CPU_PERMILLE = 'CUSTOM_RT_CPU_PERMILLE'

#: One resctrl control group (a CLOSID on x86, a PARTID on Arm). Lives on the
#: root provider, because the hardware's set is one per host.
RESCTRL_GROUP = 'CUSTOM_RESCTRL_GROUP'

# -- traits -------------------------------------------------------------------

#: Marks the providers that ghsched made for a host NUMA node.
NUMA_NODE_TRAIT = 'CUSTOM_GHSCHED_NUMA_NODE'

#: os-traits' own marker of the root of a NUMA node's subtree.
NUMA_ROOT_TRAIT = 'HW_NUMA_ROOT'

#: Nova's scheduler skips providers without it once every compute service is
#: new enough (nova.scheduler.request_filter.owner_nova_filter).
OWNER_TRAIT = 'OWNER_NOVA'

_CAPABILITY_PREFIX = 'CUSTOM_GHSCHED_'

#: Trait of each capability of hosts, by name of the capability; see
#: ghsched_placement.flavor.policy for the capabilities that a policy needs.
CAPABILITY_TRAITS = {
    name: _CAPABILITY_PREFIX + name
    for name in ('MEM_BW_MAX', 'MEM_BW_MIN', 'MEM_BW_HARDLIMIT',
                 'MEM_BW_SOFTLIMIT', 'MEM_BW_PRIORITY', 'MEM_BW_MONITOR',
                 'L3_WAYS', 'NUMA_AUTO', 'DEVICE_NUMA', 'VCPU_REALTIME',
                 'VCPU_DEADLINE',
                 'VCPU_DEADLINE_SHARED', 'PREEMPT_RT', 'GUEST_TOPOLOGY',
                 'GUEST_CHANNEL', 'PV_HINTS', 'CPU_CACHE', 'IRQ_BYPASS',
                 'IRQ_BYPASS_VLPI', 'IRQ_BYPASS_VSGI', 'IRQ_BYPASS_POSTED',
                 'IRQ_BYPASS_AVIC')
}

#: Resource classes of ghsched; for traits see :func:`is_ghsched_trait`.
OUR_CLASSES = frozenset({MEM_BW_PCT, MEM_BW_BURST_PCT, L3_WAYS,
                         RT_CPU_PERMILLE, RESCTRL_GROUP})
#: Resource classes of ghsched in the provider of a host NUMA node.
NODE_CLASSES = OUR_CLASSES - {RESCTRL_GROUP}
_OUR_TRAITS = frozenset({*CAPABILITY_TRAITS.values(), NUMA_NODE_TRAIT})

#: Beginning of the traits of :func:`make_share_trait`.
_SHARES_PREFIX = 'CUSTOM_GHSCHED_SHARES_'


def make_share_trait(fingerprint: str, guest_node: int) -> str:
    """Return the trait of host nodes that have a control group to share.

    Guests with the same bandwidth policy can share a resctrl control group.
    The trait names the policy and the guest NUMA node.

    :param fingerprint: fingerprint of the guest's policy.
    :param guest_node: number of the guest NUMA node that can be placed on the
        host node.
    """
    return f'{_SHARES_PREFIX}{fingerprint.upper()}_{guest_node}'


def is_share_trait(trait: str) -> bool:
    return trait.startswith(_SHARES_PREFIX)


def is_ghsched_trait(trait: str) -> bool:
    """Whether a trait is one of those that only ghsched reports to Placement.
    """
    return trait in _OUR_TRAITS or is_share_trait(trait)


# -- providers ----------------------------------------------------------------

_NAMESPACE = uuid.UUID('c2a9d6c4-0d6f-5c56-9a40-6f1f4d8b8d0e')


def make_numa_provider_uuid(compute_node_uuid: str, node: int) -> str:
    """Return the UUID of the resource provider of a host NUMA node.

    :param compute_node_uuid: UUID of the Nova compute node and of its resource
        provider.
    :param node: number of the host NUMA node.
    """
    return str(uuid.uuid5(_NAMESPACE, f'{compute_node_uuid}/numa/{node}'))


def make_numa_provider_name(root_name: str, node: int) -> str:
    """Return the name of the resource provider of a host NUMA node.

    The name is unique, because it begins with the name of the compute node.

    :param root_name: name of the compute node's resource provider.
    :param node: number of the host NUMA node.
    """
    return f'{root_name}_NUMA{node}'


def make_control_group_name(number: int) -> str:
    """Return the name of a resctrl control group that a host offers to guests.

    :param number: number of the group, counted from 1.
    """
    return f'ghsched-group-{number}'


# -- allocation candidate request ---------------------------------------------

#: Every request group suffix of ours starts so; Placement accepts
#: ``[a-zA-Z0-9_-]{1,64}`` as a suffix from microversion 1.33.
#:
#: Nova sorts a query by its keys, and Placement changes the provider of the
#: last group the most often. Ours come after those of VFs, which start with a
#: hexadecimal digit: where ``[placement]max_allocation_candidates`` cuts the
#: candidates of a host short, they are on many NUMA nodes, not on one.
GROUP_PREFIX = 'ghsched_'

#: Namespace of the keys in Glance's metadata definitions.
METADATA_NAMESPACE = 'OS::Compute::Ghsched'


def make_bandwidth_suffix(guest_node: int) -> str:
    """Return the request group suffix of a guest NUMA node's bandwidth.

    A suffix names a granular request group of an allocation candidates query.
    """
    return f'{GROUP_PREFIX}bw{guest_node}'


def make_node_suffix(guest_node: int) -> str:
    """Return the suffix of a request group that only selects a host node.

    The group requests no resources. It is needed for a guest NUMA node for
    which no bandwidth is requested. A suffix names a granular request group of
    an allocation candidates query.
    """
    return f'{GROUP_PREFIX}node{guest_node}'


def make_vf_suffix(request_id: str, number: int) -> str:
    """Return the suffix of the request group for one VF of a PCI request.

    It is the same as in Nova (``nova.objects.request_spec``).

    :param request_id: ID of Nova's InstancePCIRequest.
    :param number: index of the VF in the request.
    """
    return f'{request_id}-{number}'


# -- the seam into the compute claim ------------------------------------------


def make_node_physnet(node: int) -> str:
    """Return the pseudo physical network that stands for a host NUMA node.

    ghsched puts it into the scheduler's limits of a guest, so that Nova's
    claim places the guest on this host NUMA node.
    """
    return f'ghsched-numa{node}'


def _parse_node_number(text: str) -> int | None:
    """Parse a NUMA node number or a number of nodes from a network's name.

    :param text: at most four decimal digits.
    :returns: None for a number that no host has.
    """
    number = int(text)
    return number if number <= wire.MAX_NODE else None


_DEVICES = re.compile('ghsched-devices-of-([0-9]{1,4})')


def make_cpuless_node_physnet(node: int) -> str:
    """Return the pseudo physical network that stands for a node without CPUs.

    nova-compute adds it to the networks of the nearest node with CPUs in the
    host's NUMA topology, so that nova-scheduler knows the nearest node.

    :param node: number of the host NUMA node without CPUs.
    """
    return f'ghsched-devices-of-{node}'


def parse_cpuless_node_physnet(physnet: str) -> int | None:
    """Parse the number of a node without CPUs from a pseudo physical network.

    The name is made by :func:`make_cpuless_node_physnet`.

    :returns: None for any other name.
    """
    match = _DEVICES.fullmatch(physnet)
    return _parse_node_number(match[1]) if match else None


#: Pseudo physical network of each node that is the nearest of a node without
#: CPUs, on a host whose guests see NUMA nodes without CPUs for their devices.
DEVICE_CELLS_PHYSNET = 'ghsched-device-cells'

_CACHE = re.compile('ghsched-l3-([0-9]{1,5}(?:(?:to|-)[0-9]{1,5}){0,511})')


def make_cache_physnet(cpus: frozenset[int]) -> str:
    """Return the pseudo physical network that stands for an L3 cache.

    nova-compute adds one to the networks of a host NUMA node for each L3 of
    its CPUs, so that nova-scheduler knows which CPUs share one.

    :param cpus: host CPUs that share the cache.
    """
    return 'ghsched-l3-' + cpulist.render_cpu_list(cpus).replace(
        '-', 'to').replace(',', '-')


def parse_cache_physnets(physnets: Iterable[str]
                         ) -> tuple[frozenset[int], ...]:
    """Return the CPUs of each L3 cache of a host NUMA node.

    :param physnets: physical networks of the node, see
        :func:`make_cache_physnet`.
    :returns: empty if two caches have a CPU in common.
    """
    found: list[frozenset[int]] = []
    seen = set[int]()
    for cpus in filter(None, map(parse_cache_physnet, sorted(physnets))):
        if not seen.isdisjoint(cpus):
            return ()
        seen |= cpus
        found.append(cpus)
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def parse_cache_physnet(physnet: str) -> frozenset[int] | None:
    """Parse the CPUs that share an L3 cache from a pseudo physical network.

    The name is made by :func:`make_cache_physnet`.

    :returns: None for any other name.
    """
    match = _CACHE.fullmatch(physnet)
    numbers = [*map(int, re.findall('[0-9]+', match[1]))] if match else []
    # Ranges that overlap would be slow to read.
    if not match or numbers != sorted(set(numbers)):
        return None
    try:
        return cpulist.parse_cpu_list(
            match[1].replace('-', ',').replace('to', '-'))
    except cpulist.CpuListError:
        return None


_ORDER = re.compile('ghsched-order(?:-[0-9]{1,4})+')


def make_host_nodes_physnet(nodes: Sequence[int]) -> str:
    """Return a pseudo physical network that encodes the host nodes of a guest.

    nova-scheduler thus tells nova-compute which host NUMA nodes it has chosen.

    :param nodes: host NUMA node of each guest NUMA node, in their order.
    """
    return '-'.join(['ghsched-order', *map(str, nodes)])


def parse_host_nodes_physnet(physnet: str) -> tuple[int, ...] | None:
    """Parse the host NUMA nodes of a guest from a pseudo physical network.

    The name is made by :func:`make_host_nodes_physnet`.

    :returns: host node of each guest node; None for any other name.
    """
    if not _ORDER.fullmatch(physnet):
        return None
    found = [_parse_node_number(text) for text in physnet.split('-')[2:]]
    nodes = tuple(node for node in found if node is not None)
    return nodes if len(nodes) == len(found) else None


_COUNT = re.compile('ghsched-nodes-([0-9]{1,4})')


def make_node_count_physnet(nodes: int) -> str:
    """Return a pseudo physical network that encodes a guest's node count.

    nova-scheduler thus tells nova-compute how many NUMA nodes the guest has.

    :param nodes: number of guest NUMA nodes.
    """
    return f'ghsched-nodes-{nodes}'


def parse_node_count_physnet(physnet: str) -> int | None:
    """Parse the number of guest NUMA nodes from a pseudo physical network.

    The name is made by :func:`make_node_count_physnet`.

    :returns: None for any other name.
    """
    match = _COUNT.fullmatch(physnet)
    return _parse_node_number(match[1]) if match else None

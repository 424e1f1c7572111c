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

"""Find disagreements between Placement, Nova and the hosts (pure).

Three comparisons are made for each host: its resource providers with those of
:mod:`ghsched_placement.providers.tree`; its allocations with the flavors of
its servers; and, if the host reports them, its libvirt domains and control
groups with both. A comparison that is not possible is a finding, too.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections import Counter

from ghsched_placement.audit import audit_host
from ghsched_placement.audit.findings import Allocation
from ghsched_placement.audit.findings import AllocationsByConsumer
from ghsched_placement.audit.findings import Finding
from ghsched_placement.audit.findings import OtherConsumers
from ghsched_placement.audit.findings import Server
from ghsched_placement.fit import capacity
from ghsched_placement.fit import lack
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.resources import BESIDE_BANDWIDTH
from ghsched_placement.providers import names

_CONTROLS = frozenset(
    trait for name, trait in names.CAPABILITY_TRAITS.items()
    if name.startswith('MEM_BW_') and name != 'MEM_BW_MONITOR')
_CAPABILITY_TRAITS = frozenset(names.CAPABILITY_TRAITS.values())
_OF_NODES = frozenset({names.NUMA_ROOT_TRAIT, names.OWNER_TRAIT})

_NEXT_REPORT = ('nova-compute corrects this in its next periodic task; if '
                'not, see the log of nova-compute')


def audit_host_allocations(host: capacity.HostInventory,
                           servers: Iterable[Server],
                           holdings: AllocationsByConsumer,
                           others: OtherConsumers | None = None,
                           accounting: Accounting = 'min'
                           ) -> tuple[Finding, ...]:
    """Compare Nova's servers on a host with their allocations in Placement.

    Each difference is returned as a finding, with a remedy for the admin.

    :param host: host with its resource providers.
    :param servers: servers of this host, with the policies of their flavors.
    :param holdings: allocations from this host's providers, by consumer.
    :param others: servers and migrations of other hosts.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of a guest's bandwidth.
    """
    servers, others = tuple(servers), others or OtherConsumers()
    found = [*_check_providers(host)]
    for server in servers:
        if not server.moving:
            allocation = holdings.get(server.uuid, {})
            found += _check_server(host, server, allocation, accounting)
            found += audit_host.find_wrong_guest_limits(
                host, server, can_share_control_group(host, server.policy))
    accounted = {*others.known, *(server.uuid for server in servers)}
    for consumer in sorted(holdings.keys() - accounted):
        owner = others.owners.get(consumer)
        what = (describe_allocation(host, holdings[consumer])
                or _describe_resources(holdings[consumer]))
        found.append(
            _make_stale_migration_finding(host, consumer, what, owner)
            if owner else _make_absent_server_finding(
                host, consumer, what, others.servers.get(consumer)))
    return (*found, *audit_host.find_excess_guarantees(
        host, servers, sum_bandwidth_by_node(host, holdings)))


def _make_stale_migration_finding(host: capacity.HostInventory, consumer: str,
                                  what: str, owner: str) -> Finding:
    """Return the audit finding for an allocation left by an ended migration.

    :param consumer: UUID of the migration.
    :param what: allocated amounts, in words.
    :param owner: UUID of the server, which has stayed on this host.
    """
    return Finding(
        host.name, 'allocation-kept', consumer,
        f'holds {what} of the server {owner}, '
        'whose migration has ended', 'Placement or nova-compute did not '
        'answer when Nova released the allocation; --fix releases it', owner)


def _make_absent_server_finding(host: capacity.HostInventory, consumer: str,
                                what: str, server_host: str | None) -> Finding:
    """Return the audit finding for an allocation of a server not on this host.

    :param what: allocated amounts, in words.
    :param server_host: name of the host that the server is on; empty if it is
        on none, None if Nova has no such server.
    """
    text = f'holds {what}, and '
    if server_host is None:
        return Finding(
            host.name, 'allocation-without-server', consumer,
            text + 'Nova has no such server on this host',
            '"nova-manage placement audit --verbose" shows the allocation, '
            'with --delete it removes it')
    if not server_host:
        return Finding(
            host.name, 'allocation-elsewhere', consumer,
            text + 'the server is on no host',
            'Placement did not answer when Nova removed the allocation; '
            '--fix removes it')
    return Finding(
        host.name, 'allocation-elsewhere', consumer,
        text + 'the server is on ' + server_host,
        'after an evacuation nova-compute of this host removes the '
        'allocation when nova-compute starts again')


# -- providers ----------------------------------------------------------------


def _check_providers(host: capacity.HostInventory) -> Iterator[Finding]:
    controls = bool(_CONTROLS & host.root.traits)
    for node in host.nodes:
        yield from _check_node(host, node, controls)
    yield from _check_usage(host, host.name, 'control groups', host.groups)
    offered = any(node.bandwidth for node in host.nodes)
    if offered and not controls:
        yield Finding(
            host.name, 'traits-missing', host.name,
            'its NUMA nodes offer bandwidth, but the host has no trait of a '
            'bandwidth control', _NEXT_REPORT)
    if offered and host.groups is None:
        yield Finding(
            host.name, 'inventory-missing', host.name,
            f'its NUMA nodes offer bandwidth, but the host has no inventory '
            f'of {names.RESCTRL_GROUP}', 'is [ghsched]reserved_control_groups '
            'too large, or does other software use all control groups?')
    for pf in host.elsewhere:
        if host.nodes:
            yield Finding(
                host.name, 'device-without-node', pf.address,
                'the provider of the device is below no NUMA node, so '
                'ghsched:vfs_locality=node never uses the device',
                'does the host know the NUMA node of the device '
                '(/sys/bus/pci/devices/*/numa_node)?')


def _check_node(host: capacity.HostInventory, node: capacity.NodeInventory,
                controls: bool) -> Iterator[Finding]:
    if node.number is None:
        yield Finding(
            host.name, 'provider-unknown', node.name,
            f'the provider has the trait {names.NUMA_NODE_TRAIT}, but its '
            f'UUID {node.uuid} is not that of a NUMA node of this host',
            'delete the provider when it has no allocations')
        return
    missing = [*sorted(_OF_NODES - node.traits), *sorted(
        _CAPABILITY_TRAITS & host.root.traits - node.traits)]
    if missing:
        yield Finding(host.name, 'traits-missing', node.name,
                      f'the provider lacks the traits {", ".join(missing)}',
                      _NEXT_REPORT)
    if node.bandwidth is None and controls and not node.nearest:
        yield Finding(
            host.name, 'inventory-missing', node.name,
            f'the NUMA node has no inventory of {names.MEM_BW_PCT}, although '
            'the host controls bandwidth', 'the log of nova-compute says '
            'which nodes the kernel can control')
    yield from _check_usage(host, node.name, '% of memory bandwidth',
                            node.bandwidth)


def _check_usage(host: capacity.HostInventory, name: str, unit: str,
                 stock: capacity.InventoryUsage | None) -> Iterator[Finding]:
    if stock is None or stock.used <= stock.capacity:
        return
    if not stock.capacity:
        yield Finding(
            host.name, 'inventory-closed', name,
            f'{stock.used} {unit} are allocated, but none is offered any more',
            'is resctrl still mounted, and the NUMA node online? Move the '
            'guests away, or see the log of nova-compute')
    else:
        yield Finding(
            host.name, 'over-allocated', name,
            f'{stock.used} {unit} are allocated, but only {stock.capacity} '
            'are offered', 'has the reservation been raised? Move guests away')


# -- servers ------------------------------------------------------------------


def _check_server(host: capacity.HostInventory, server: Server,
                  allocation: Allocation,
                  accounting: Accounting) -> Iterator[Finding]:
    if server.problem:
        yield Finding(host.name, 'flavor-invalid', server.uuid,
                      f'{server.name}: {server.problem}',
                      'resize the server to a valid flavor')
        return
    policy = server.policy or GuestPolicy()
    if allocation or not (policy.needs_control_group or policy.vfs
                          or policy.get_resources_by_node(accounting)):
        yield from _check_allocation(host, server, policy, allocation,
                                     accounting)
    else:
        yield Finding(
            host.name, 'allocation-differs', server.uuid,
            f'{server.name} has no allocation on this host',
            f'nova-manage placement heal_allocations --instance {server.uuid},'
            ' then this command with --fix')
    if server.absent:
        yield Finding(
            host.name, 'domain-missing', server.uuid,
            f'{server.name} is ACTIVE, but its domain does not run on its '
            'host',
            'delete the server again if it was being deleted; else start it '
            'with "openstack server reboot --hard"')
    if server.not_held:
        yield Finding(
            host.name, 'not-protected', server.uuid,
            f'{server.name} runs, but its bandwidth policy is not enforced: '
            f'{server.not_held}',
            'run "ghsched-host plan" on the host; ' + _NEXT_REPORT)
    if server.missing_devices:
        yield Finding(
            host.name, 'devices-missing', server.uuid,
            f'{server.name} has {", ".join(server.missing_devices)}',
            'cold-migrate or resize the server, so that its devices are '
            'claimed again, or delete it')


def _check_allocation(host: capacity.HostInventory, server: Server,
                      policy: GuestPolicy,
                      allocation: Allocation,
                      accounting: Accounting) -> Iterator[Finding]:
    yield from _find_wrong_bandwidth(host, server, policy, allocation,
                                     accounting)
    yield from _find_wrong_node_resources(host, server, policy, allocation,
                                          accounting)
    groups = allocation.get(host.uuid, {}).get(names.RESCTRL_GROUP, 0)
    if groups != len(policy.groups) and not (
            groups == 0 and can_share_control_group(host, policy)):
        yield Finding(
            host.name, 'allocation-differs', server.uuid,
            f'{server.name} holds {groups} control groups, its flavor needs '
            f'{len(policy.groups)}', _MOVE_IT)
    yield from _find_wrong_vfs(host, server, policy, allocation)


def can_share_control_group(host: capacity.HostInventory,
                            policy: GuestPolicy | None) -> bool:
    """Whether a host has a resctrl control group that a guest may share.

    Only guests with the same bandwidth policy can share a control group.

    :param policy: bandwidth policy of the guest; None if it has none.
    """
    if policy is None:
        return False
    trait = names.make_share_trait(policy.fingerprint, 0)
    return any(trait in node.traits for node in host.nodes)


_MOVE_IT = ('live-migrate or resize the server, so that it is scheduled '
            'again; was it forced onto the host, or started before ghsched '
            'was installed?')


def _find_wrong_bandwidth(host: capacity.HostInventory, server: Server,
                          policy: GuestPolicy,
                          allocation: Allocation,
                          accounting: Accounting) -> Iterator[Finding]:
    """Yield a finding if a server's allocated bandwidth is not its flavor's.

    :param allocation: the server's amounts by provider UUID and resource
        class.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    """
    have = get_bandwidth_by_node(host, allocation)
    want = policy.get_bandwidth_by_node(accounting)
    where = {node: want[guest] for guest, node in enumerate(server.nodes)
             if guest in want}
    agrees = (have == where if server.nodes
              else Counter(have.values()) == Counter(want.values()))
    if agrees:
        return
    if server.nodes and Counter(have.values()) == Counter(want.values()):
        yield Finding(
            host.name, 'nodes-differ', server.uuid,
            f'{server.name} holds {_format_bandwidth_by_node(have)}, and runs '
            f'on the NUMA nodes {", ".join(map(str, server.nodes))}', _MOVE_IT)
        return
    asked = (_format_bandwidth_by_node(where) if server.nodes
             else _join_texts(f'{share} %' for share in want.values()))
    yield Finding(
        host.name, 'allocation-differs', server.uuid,
        f'{server.name} holds {_format_bandwidth_by_node(have)}, its flavor '
        f'needs {asked}', _MOVE_IT)


def _find_wrong_node_resources(host: capacity.HostInventory, server: Server,
                               policy: GuestPolicy,
                               allocation: Allocation,
                               accounting: Accounting) -> Iterator[Finding]:
    """Yield a finding for each wrong amount of L3 ways, bursts or RT CPU time.

    The amounts that the server has allocated from each of its host NUMA nodes
    are compared with the amounts that its flavor requests.
    """
    wanted = {server.nodes[guest]: amounts for guest, amounts
              in policy.get_resources_by_node(accounting).items()
              if guest < len(server.nodes)}
    for node in host.nodes:
        asked = wanted.get(-1 if node.number is None else node.number, {})
        for name in BESIDE_BANDWIDTH:
            have = allocation.get(node.uuid, {}).get(name, 0)
            want = asked.get(name, 0)
            if server.nodes and have != want:
                yield Finding(
                    host.name, 'allocation-differs', server.uuid,
                    f'{server.name} holds {have} {lack.WORDS[name]} on NUMA '
                    f'node {node.number}, its flavor needs {want}', _MOVE_IT)


def _find_wrong_vfs(host: capacity.HostInventory, server: Server,
                    policy: GuestPolicy,
                    allocation: Allocation
                    ) -> Iterator[Finding]:
    """Yield a finding if a server's allocated VFs do not match its flavor.

    The server has too few VFs, or VFs of wrong NUMA nodes. More VFs than the
    flavor requests are no error, because the server's ports can have VFs, too.
    """
    want = Counter[int]()
    for one in policy.vfs:
        want[one.guest_node] += one.count
    have = _count_vfs_by_node(host, policy, allocation)
    total = _count_vfs(host.pfs, allocation)
    if total < want.total():
        yield Finding(
            host.name, 'vfs-missing', server.uuid,
            f'{server.name} holds {total} VFs, its flavor needs '
            f'{want.total()}', f'{_NEXT_REPORT}, if it has the VFs; else '
            + _MOVE_IT)
    elif policy.vfs_locality == 'node' and server.nodes:
        for guest, count in sorted(want.items()):
            node = server.nodes[guest]
            if have.get(node, 0) < count:
                yield Finding(
                    host.name, 'nodes-differ', server.uuid,
                    f'{server.name} holds {have.get(node, 0)} VFs on NUMA '
                    f'node {node}, its flavor needs {count} there', _MOVE_IT)


def _count_vfs_by_node(host: capacity.HostInventory, policy: GuestPolicy,
                       allocation: Allocation
                       ) -> Counter[int | None]:
    """Return the number of a server's VFs by host NUMA node.

    With ``ghsched:device_numa``, VFs of a node without CPUs count as VFs of
    the nearest node with CPUs. Where the guest cannot be shown that node,
    ``required`` has refused it.
    """
    number_of = {node.uuid: node.number for node in host.nodes}
    have = Counter[int | None]()
    for node in host.nodes:
        number = (number_of.get(node.nearest, node.number)
                  if policy.device_numa != keys.NONE else node.number)
        have[number] += _count_vfs(node.pfs, allocation)
    return have


def _count_vfs(pfs: Iterable[capacity.PfInventory],
               allocation: Allocation) -> int:
    return sum(allocation.get(pf.uuid, {}).get(pf.resource_class, 0)
               for pf in pfs)


def sum_bandwidth_by_node(host: capacity.HostInventory,
                          holdings: AllocationsByConsumer) -> dict[int, int]:
    """Return the percent of bandwidth allocated to all guests, by host node.

    :param holdings: allocations from this host's providers, by consumer.
    """
    total = Counter[int]()
    for allocation in holdings.values():
        total.update(get_bandwidth_by_node(host, allocation))
    return total


def get_bandwidth_by_node(host: capacity.HostInventory,
                          allocation: Allocation
                          ) -> dict[int, int]:
    """Return the percent of bandwidth in one allocation, by host NUMA node.

    :param allocation: a consumer's amounts by provider UUID and resource
        class.
    """
    return {node.number: share for node in host.nodes
            if node.number is not None and (
                share := allocation.get(node.uuid, {}).get(names.MEM_BW_PCT))}


def describe_allocation(host: capacity.HostInventory,
                        allocation: Allocation) -> str:
    """Describe the bandwidth, control groups and VFs in an allocation as text.

    The text is empty if the allocation has none of these resources.

    :param allocation: amounts by provider UUID and resource class.
    """
    parts = []
    shares = get_bandwidth_by_node(host, allocation)
    if shares:
        parts.append(_format_bandwidth_by_node(shares))
    parts += [f'{allocation[node.uuid][name]} {lack.WORDS[name]} on NUMA node '
              f'{node.number}' for node in host.nodes
              for name in BESIDE_BANDWIDTH
              if allocation.get(node.uuid, {}).get(name)]
    groups = allocation.get(host.uuid, {}).get(names.RESCTRL_GROUP, 0)
    if groups:
        parts.append('a control group' if groups == 1
                     else f'{groups} control groups')
    for pf in host.pfs:
        count = allocation.get(pf.uuid, {}).get(pf.resource_class, 0)
        if count:
            parts.append(f'{count} VFs of {pf.address}')
    return ', '.join(parts)


def _describe_resources(allocation: Allocation) -> str:
    """Describe all resource classes and amounts in an allocation as text.

    :param allocation: amounts by provider UUID and resource class.
    """
    total = Counter[str]()
    for resources in allocation.values():
        total.update(resources)
    return ', '.join(f'{amount} {name}'
                     for name, amount in sorted(total.items()))


def _format_bandwidth_by_node(shares: Mapping[int, int]) -> str:
    return _join_texts(f'{share} % on node {node}'
                       for node, share in sorted(shares.items()))


def _join_texts(parts: Iterable[str]) -> str:
    return ', '.join(parts) or 'no bandwidth'

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

"""Where Placement, Nova and the hosts do not agree (pure).

Three things are compared for each host: its providers with the shape that
:mod:`ghsched_placement.tree` gives them, what consumers hold of them with the
flavors of the servers there, and, where a host told, what its control groups
hold with both.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass

from ghsched_placement import capacity
from ghsched_placement import diagnostics
from ghsched_placement import names
from ghsched_placement.policy import Accounting
from ghsched_placement.policy import GuestPolicy
from ghsched_placement.policy import NodePolicy

#: Amount by resource class, by UUID of the provider, by UUID of the consumer.
Holdings = Mapping[str, Mapping[str, Mapping[str, int]]]

_CONTROLS = frozenset(
    trait for name, trait in names.CAPABILITY_TRAITS.items()
    if name.startswith('MEM_BW_') and name != 'MEM_BW_MONITOR')
_OF_NODES = (names.NUMA_ROOT_TRAIT, names.OWNER_TRAIT)

_NEXT_REPORT = ('nova-compute puts it right with its next report; look at '
                'its log if it does not')


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be.

    :param kind: a word for scripts, which stays.
    :param subject: name or UUID of what it is about.
    :param text: what is wrong.
    :param remedy: what an admin can do about it.
    """

    host: str
    kind: str
    subject: str
    text: str
    remedy: str


@dataclass(frozen=True)
class Server:
    """A server as Nova tells of it.

    :param host: name of its compute node's provider.
    :param policy: of its flavor; None without one.
    :param problem: why the flavor has no policy that makes sense.
    :param nodes: host NUMA node of each guest NUMA node; empty where that is
        not known.
    :param moving: whether it is on its way to another host or flavor, so
        that what it holds may be of either.
    :param effective: what the host has set for it, by host NUMA node; None
        where the host was not asked or did not tell.
    :param not_held: why the host could not hold its policy, see
        :class:`diagnostics.Report`.
    """

    uuid: str
    name: str
    host: str
    policy: GuestPolicy | None = None
    problem: str = ''
    nodes: tuple[int, ...] = ()
    moving: bool = False
    effective: Mapping[int, diagnostics.GuestNode] | None = None
    not_held: str = ''


def audit(host: capacity.Host, servers: Iterable[Server],
          holdings: Holdings, known: Iterable[str] = (),
          accounting: Accounting = 'min') -> tuple[Finding, ...]:
    """All that does not agree about one host.

    :param servers: of this host.
    :param holdings: what consumers hold of the providers of this host.
    :param known: UUIDs of other consumers that are all right, such as
        migrations.
    """
    servers = tuple(servers)
    findings = [*_providers(host)]
    for server in servers:
        if not server.moving:
            held = holdings.get(server.uuid, {})
            findings += _server(host, server, held, accounting)
    accounted = {*known, *(server.uuid for server in servers)}
    for consumer in sorted(holdings.keys() - accounted):
        if _ours(host, holdings[consumer]):
            findings.append(Finding(
                host.name, 'allocation-without-server', consumer,
                f'holds {_text(host, holdings[consumer])}, and Nova has no '
                'such server on this host',
                'nova-manage placement audit --verbose shows it, with '
                '--delete it is removed'))
    return tuple(findings)


# -- providers ----------------------------------------------------------------


def _providers(host: capacity.Host) -> Iterator[Finding]:
    controls = bool(_CONTROLS & host.root.traits)
    for node in host.nodes:
        yield from _node(host, node, controls)
    yield from _stock(host, host.name, 'control groups', host.groups)
    offered = any(node.bandwidth for node in host.nodes)
    if offered and not controls:
        yield Finding(
            host.name, 'traits-missing', host.name,
            'its NUMA nodes have bandwidth, and it has no trait that says '
            'how guests can be limited', _NEXT_REPORT)
    if offered and host.groups is None:
        yield Finding(
            host.name, 'inventory-missing', host.name,
            f'its NUMA nodes have bandwidth, and it has no '
            f'{names.RESCTRL_GROUP}', 'is [ghsched]reserved_control_groups '
            'too large, or does other software use all control groups?')
    for pf in host.elsewhere:
        if host.nodes:
            yield Finding(
                host.name, 'device-without-node', pf.address,
                'its provider is below no NUMA node, so '
                'ghsched:vfs_locality=node passes it over',
                'does the host know the NUMA node of the device '
                '(/sys/bus/pci/devices/*/numa_node)?')


def _node(host: capacity.Host, node: capacity.Node,
          controls: bool) -> Iterator[Finding]:
    if node.number is None:
        yield Finding(
            host.name, 'provider-unknown', node.name,
            f'it has the trait {names.NUMA_NODE_TRAIT}, and its UUID '
            f'{node.uuid} is not that of a NUMA node of this host',
            'delete it when nothing is allocated of it')
        return
    missing = sorted(trait for trait in _OF_NODES
                     if trait not in node.traits)
    missing += sorted(trait for trait in names.CAPABILITY_TRAITS.values()
                      if trait in host.root.traits - node.traits)
    if missing:
        yield Finding(host.name, 'traits-missing', node.name,
                      f'it has not {", ".join(missing)}', _NEXT_REPORT)
    if node.bandwidth is None and controls:
        yield Finding(
            host.name, 'inventory-missing', node.name,
            f'it has no {names.MEM_BW_PCT}, other nodes of the host can be '
            'controlled', 'nova-compute tells in its log which nodes the '
            'kernel can control')
    yield from _stock(host, node.name, '% of memory bandwidth',
                      node.bandwidth)


def _stock(host: capacity.Host, name: str, unit: str,
           stock: capacity.Stock | None) -> Iterator[Finding]:
    if stock is None or stock.used <= stock.capacity:
        return
    if not stock.capacity:
        yield Finding(
            host.name, 'inventory-closed', name,
            f'{stock.used} {unit} are held, and none is offered any more',
            'did resctrl vanish, or the node? Move the guests away, or look '
            'at the log of nova-compute')
    else:
        yield Finding(
            host.name, 'over-allocated', name,
            f'{stock.used} {unit} are held of {stock.capacity} that are '
            'offered', 'was more reserved since? Move guests away')


# -- servers ------------------------------------------------------------------


def _server(host: capacity.Host, server: Server,
            held: Mapping[str, Mapping[str, int]],
            accounting: Accounting) -> Iterator[Finding]:
    if server.problem:
        yield Finding(host.name, 'flavor-invalid', server.uuid,
                      f'{server.name}: {server.problem}',
                      'resize the server to a flavor that is right')
        return
    policy = server.policy or GuestPolicy()
    yield from _shares(host, server, policy, held, accounting)
    groups = held.get(host.uuid, {}).get(names.RESCTRL_GROUP, 0)
    if groups != int(policy.controlled) and not (
            groups == 0 and _is_shared(host, policy)):
        yield Finding(
            host.name, 'allocation-differs', server.uuid,
            f'{server.name} holds {groups} control groups, its flavor needs '
            f'{int(policy.controlled)}', _MOVE_IT)
    if server.not_held:
        yield Finding(
            host.name, 'not-protected', server.uuid,
            f'{server.name} runs, and its policy does not hold: '
            f'{server.not_held}',
            'run "ghsched-host plan" on the host; ' + _NEXT_REPORT)
    yield from _effective(host, server, policy)


def _is_shared(host: capacity.Host, policy: GuestPolicy) -> bool:
    """Whether guests may have a control group together there."""
    trait = names.shares_trait(policy.fingerprint, 0)
    return any(trait in node.traits for node in host.nodes)


_MOVE_IT = ('live-migrate or resize it, so that it is scheduled again; was '
            'it forced onto the host, or started before ghsched was there?')


def _shares(host: capacity.Host, server: Server, policy: GuestPolicy,
            held: Mapping[str, Mapping[str, int]],
            accounting: Accounting) -> Iterator[Finding]:
    """Bandwidth that it holds against what its flavor asks for."""
    have = bandwidth_by_node(host, held)
    want = policy.demand(accounting)
    where = {node: want[guest] for guest, node in enumerate(server.nodes)
             if guest in want}
    agrees = (have == where if server.nodes
              else Counter(have.values()) == Counter(want.values()))
    if agrees:
        return
    if server.nodes and Counter(have.values()) == Counter(want.values()):
        yield Finding(
            host.name, 'nodes-differ', server.uuid,
            f'{server.name} holds {_shares_text(have)}, and runs on the '
            f'NUMA nodes {", ".join(map(str, server.nodes))}', _MOVE_IT)
        return
    asked = (_shares_text(where) if server.nodes
             else _list(f'{share} %' for share in want.values()))
    yield Finding(
        host.name, 'allocation-differs', server.uuid,
        f'{server.name} holds {_shares_text(have)}, its flavor needs '
        f'{asked}', _MOVE_IT)


def bandwidth_by_node(host: capacity.Host,
                      held: Mapping[str, Mapping[str, int]]
                      ) -> dict[int, int]:
    """Percent that a consumer holds, by host NUMA node."""
    found = {}
    for node in host.nodes:
        share = held.get(node.uuid, {}).get(names.MEM_BW_PCT, 0)
        if share and node.number is not None:
            found[node.number] = share
    return found


def _effective(host: capacity.Host, server: Server,
               policy: GuestPolicy) -> Iterator[Finding]:
    """What the host has set against what the flavor asks for.

    A host rounds caps and guarantees, and its kernel may show a little less
    than was written, so only what the host itself takes for wrong is told, if
    it gives the guest less than it was promised, or no cap at all.
    """
    if server.effective is None:
        return
    for guest, asked in enumerate(policy.nodes):
        node = server.nodes[guest] if guest < len(server.nodes) else None
        real = server.effective.get(node) if node is not None else None
        if node is not None:
            text = _shortfall(asked, real, _is_shared(host, policy))
            if text:
                yield _not_set(host, server, node, text)


def _shortfall(asked: NodePolicy,
               real: diagnostics.GuestNode | None,
               shared: bool) -> str:
    """What is set to less than was asked for; empty when nothing is.

    :param shared: whether the caps of several guests may add up to none.
    """
    if real is None:
        return 'no control group is set for it'
    if real.holds(asked.minimum, asked.maximum):
        return ''       # a cap near to all of a node can be none, for example
    if asked.minimum and (real.minimum or 0) < asked.minimum:
        return (f'{real.minimum or 0} % are guaranteed instead of '
                f'{asked.minimum} %')
    if asked.capped and not shared and (
            real.maximum is not None and real.maximum >= 100):
        return f'there is no cap instead of {asked.maximum} %'
    if real.differs(asked.minimum, asked.maximum):
        return ('its control group does not hold what follows from the '
                'policies of its guests')
    return ''


def _not_set(host: capacity.Host, server: Server, node: int,
             text: str) -> Finding:
    return Finding(
        host.name, 'host-differs', server.uuid,
        f'{server.name}: on NUMA node {node} {text}',
        'run "ghsched-host plan" on the host; ' + _NEXT_REPORT)


def _ours(host: capacity.Host,
          held: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether a consumer holds anything that ghsched counts."""
    return bool(_text(host, held))


def _text(host: capacity.Host,
          held: Mapping[str, Mapping[str, int]]) -> str:
    parts = []
    shares = bandwidth_by_node(host, held)
    if shares:
        parts.append(_shares_text(shares))
    groups = held.get(host.uuid, {}).get(names.RESCTRL_GROUP, 0)
    if groups:
        parts.append(f'{groups} control groups')
    for pf in host.pfs:
        count = held.get(pf.uuid, {}).get(pf.resource_class, 0)
        if count:
            parts.append(f'{count} VFs of {pf.address}')
    return _list(parts) if parts else ''


def _shares_text(shares: Mapping[int, int]) -> str:
    return _list(f'{share} % on node {node}'
                 for node, share in sorted(shares.items()))


def _list(parts: Iterable[str]) -> str:
    found: Sequence[str] = tuple(parts)
    return ', '.join(found) if found else 'no bandwidth'

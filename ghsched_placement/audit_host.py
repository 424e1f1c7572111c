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

"""Where a host does not agree with what Nova and Placement say (pure).

A host reports about its domains and control groups in the diagnostics of its
guests, see :mod:`ghsched_placement.diagnostics`.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from ghsched_placement import capacity
from ghsched_placement import diagnostics
from ghsched_placement.findings import Finding
from ghsched_placement.findings import Server
from ghsched_placement.policy import NodePolicy

_NEXT_REPORT = ('nova-compute puts it right with its next report; look at '
                'its log if it does not')


def guest(host: capacity.Host, server: Server,
          shared: bool) -> Iterator[Finding]:
    """The domain and the control group of a guest against its flavor.

    A host rounds caps and guarantees, and its kernel may show a little less
    than was written, so only what the host itself takes for wrong is told, if
    it gives the guest less than it was promised, or no cap at all.

    :param shared: whether the caps of several guests may add up to none.
    """
    if server.effective is None or server.policy is None:
        return
    for number, asked in enumerate(server.policy.nodes):
        if number >= len(server.nodes):
            return
        node = server.nodes[number]
        real = server.effective.get(node)
        other = _domain(asked, real)
        text = other or _shortfall(asked, real, shared)
        if text:
            yield Finding(
                host.name, 'domain-differs' if other else 'host-differs',
                server.uuid, f'{server.name}: on NUMA node {node} {text}',
                'set its policy with "openstack ghsched server set", or '
                'hard-reboot it' if other else
                'run "ghsched-host plan" on the host; ' + _NEXT_REPORT)


def _domain(asked: NodePolicy, real: diagnostics.GuestNode | None) -> str:
    """What the XML of the domain has instead; empty when it agrees."""
    if real is None or None in (real.asked_minimum, real.asked_maximum):
        return ''
    found = real.asked_minimum, real.asked_maximum
    if found == (asked.minimum, asked.maximum):
        return ''
    return (f'its domain asks for {found[0]} % to {found[1]} %, its flavor '
            f'for {asked.minimum} % to {asked.maximum} %')


def _shortfall(asked: NodePolicy, real: diagnostics.GuestNode | None,
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


def sums(host: capacity.Host, servers: Iterable[Server],
         allocated: Mapping[int, int]) -> Iterator[Finding]:
    """Whether the guests of a node hold more than is allocated of it.

    What a host makes of a guarantee by its own rounding counts as the
    guarantee.

    :param allocated: percent of each host NUMA node, to all consumers.
    """
    told = [one for one in servers if one.effective is not None]
    for node in host.nodes:
        if node.number is None:
            continue
        # A part of each burst is held as a guarantee, all of them together
        # no more than is kept for them.
        bursts = (min(node.bursts.total, node.bursts.used) if node.bursts
                  else 0)
        most = allocated.get(node.number, 0) + bursts
        held = sum(promised(
            real for one in told for number, real
            in (one.effective or {}).items() if number == node.number))
        if held > most:
            yield Finding(
                host.name, 'guarantees-exceed', node.name,
                f'its guests are guaranteed {held} %, and {most} % of it '
                'are allocated',
                'put right the allocations named beside this one')


def promised(guests: Iterable[diagnostics.GuestNode]) -> Iterator[int]:
    """Percent that each guest, or group of guests, is guaranteed."""
    shared: dict[str, int] = {}
    for real in guests:
        if real.as_wanted and real.asked_minimum is not None:
            yield real.asked_minimum
        elif real.group:
            shared[real.group] = real.minimum or 0
        else:
            yield real.minimum or 0
    yield from shared.values()


def left(host: capacity.Host, servers: Iterable[Server],
         reports: Iterable[diagnostics.Report]
         ) -> Iterator[Finding]:
    """What a host has of guests that are not there (any more).

    :param servers: all of Nova that are there, or may be there.
    """
    known = {server.uuid for server in servers}
    domains: set[str] = set()
    groups: set[str] = set()
    for report in reports:
        domains.update(report.domains or ())
        groups.update(report.left)
    for uuid in sorted(domains - known):
        yield Finding(
            host.name, 'domain-without-server', uuid,
            'a domain with a policy runs, and Nova has no such server on '
            'this host', 'nova-compute treats it as '
            '[DEFAULT]running_deleted_instance_action says')
    for name in sorted(groups):
        yield Finding(
            host.name, 'group-without-guest', name,
            'the control group is there, and its guest does not run',
            _NEXT_REPORT)


def unchecked(host: capacity.Host, servers: Iterable[Server],
              state: str | None) -> Iterator[Finding]:
    """What could not be compared, because nobody told.

    :param state: of nova-compute; None where Nova does not know the host.
    """
    if state != 'up':
        yield _unchecked(
            host.name, host.name,
            'nova-compute is down' if state else
            'Nova has no compute node of this name',
            'start nova-compute' if state else
            'delete its resource providers if the host is gone for good')
        return
    for server in servers:
        if server.silent:
            yield _unchecked(
                host.name, server.uuid, f'{server.name}: {server.silent}',
                'look at the log of nova-compute')


def _unchecked(host: str, subject: str, text: str,
               remedy: str) -> Finding:
    return Finding(host, NOT_CHECKED, subject, text, remedy)


#: Kind of what could not be compared.
NOT_CHECKED = 'not-checked'

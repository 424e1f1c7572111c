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


"""``ghsched explain``: what becomes of a flavor, without any service.

It goes the way that a server goes in a cloud: flavor, policy, Placement
query, a host's provider tree, guest XML, schemata. Each step is done by the
code that does it in nova-scheduler and nova-compute. What belongs to Nova and
Placement is told again, in :mod:`ghsched_placement.query`,
:mod:`ghsched_placement.topology`, :mod:`ghsched_placement.likely_nodes` and
:mod:`ghsched_placement.planner.offer`.
"""

import argparse
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
import sys
from typing import Any

from ghsched_nova.cmd import described
from ghsched_nova.cmd import hostfile
from ghsched_nova.cmd import output
from ghsched_nova.cmd import placing
from ghsched_nova.guest import memorytune
from ghsched_nova.resctrl import plan
from ghsched_placement import keys
from ghsched_placement.planner.flavors import Flavor
from ghsched_placement.planner.need import Need
from ghsched_placement.planner.state import State
from ghsched_placement import policy as policies
from ghsched_placement import request
from ghsched_placement import topology
from ghsched_placement import tree
from ghsched_placement.vfs import Sizes

#: What the host can not take ends with this; wrong usage ends with 1.
EXIT_REFUSED = 2


@dataclass(frozen=True)
class Question:
    """What was asked.

    :param flavor_specs: the flavor's extra specs.
    :param nodes: host NUMA node of each guest NUMA node, None for any.
    """

    host: hostfile.HostFile
    vcpus: int
    memory_mb: int
    disk_gb: int = 0
    swap_mb: int = 0
    flavor_specs: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[int, ...] | None = None
    accounting: policies.Accounting = 'min'


@dataclass(frozen=True)
class Explanation:
    """All that is known; what lies behind a refusal is None or empty.

    :param query: the try that finds the host; the first one when none does.
    :param locality: how near that asks for the VFs.
    """

    question: Question
    providers: tuple[tree.Provider, ...]
    refusal: str | None = None
    policy: policies.GuestPolicy | None = None
    guest: topology.Guest | None = None
    need: Need | None = None
    query: tuple[tuple[str, str], ...] = ()
    locality: str | None = None
    host_nodes: tuple[int, ...] = ()
    settings: tuple[plan.DomainSetting, ...] = ()
    tune: memorytune.MemoryTune | None = None
    lines: tuple[str, ...] = ()


def explain(question: Question) -> Explanation:
    """Go the whole way, or as far as the guest gets."""
    known: dict[str, Any] = {
        'question': question,
        'providers': described.providers(question.host, question.host.name)}
    try:
        for step in (_flavor, _placement, _host):
            known.update(step(Explanation(**known)))
    except (topology.TopologyError, policies.PolicyError, placing.Refused,
            plan.PolicyNotHeld) as error:
        known['refusal'] = str(error)
    return Explanation(**known)


def _flavor(so_far: Explanation) -> dict[str, Any]:
    question = so_far.question
    guest = topology.split(question.vcpus, question.memory_mb,
                           question.flavor_specs)
    policy = policies.parse(question.flavor_specs, len(guest.cells))
    return {'guest': guest, 'policy': policy or policies.GuestPolicy()}


def _placement(so_far: Explanation) -> dict[str, Any]:
    question, guest, policy = _known(so_far)
    flavor = Flavor(question.host.name, question.vcpus, question.memory_mb,
                    question.disk_gb, question.swap_mb,
                    question.flavor_specs)
    aliases = question.host.aliases
    for vfs in policy.vfs:
        if vfs.alias not in aliases:
            raise policies.PolicyError(
                keys.VFS.extra_spec,
                f'the host file has no PF of the alias {vfs.alias!r}')
    need = Need(flavor, guest, policy, question.accounting, aliases)
    return {'need': need, **_query(need, request.LOCALITIES[0], {})}


def _query(need: Need, locality: str, sizes: Sizes) -> dict[str, Any]:
    return {'query': tuple(need.of_nova(locality, sizes)),
            'locality': locality if need.policy.vfs else None}


def _host(so_far: Explanation) -> dict[str, Any]:
    question, guest, policy = _known(so_far)
    assert so_far.need is not None  # noqa: S101
    resctrl = question.host.resctrl
    host = described.planned(question.host, question.host.name)
    place = placing.place(placing.Wish(question.host, State(host),
                                       so_far.need, question.nodes))
    settings = plan.resolve(resctrl, policy, place.nodes)
    lines = tuple(
        f'{name}:' + ';'.join(f'{domain}={value}'
                              for domain, value in values.items())
        for name, values in plan.desired_lines(resctrl, settings).items())
    return {'host_nodes': place.nodes, 'settings': settings, 'lines': lines,
            'tune': _tune(guest, policy, settings),
            **_query(so_far.need, place.locality, place.sizes)}


def _tune(guest: topology.Guest, policy: policies.GuestPolicy,
          settings: Sequence[plan.DomainSetting],
          ) -> memorytune.MemoryTune | None:
    if not settings and not policy.monitor:
        return None
    return memorytune.MemoryTune(
        vcpus=frozenset(range(guest.vcpus)),
        nodes=tuple(memorytune.NodeTune(
            id=setting.domain, bandwidth=setting.maximum,
            hardlimit=setting.hardlimit, priority=setting.priority,
            min_bandwidth=setting.minimum) for setting in settings),
        monitor=policy.monitor)


def _known(so_far: Explanation) -> tuple[Question, topology.Guest,
                                         policies.GuestPolicy]:
    assert so_far.guest is not None  # noqa: S101
    assert so_far.policy is not None  # noqa: S101
    return so_far.question, so_far.guest, so_far.policy


# -- command line -------------------------------------------------------------


def add_parser(commands: Any) -> None:
    """Add the sub-command to a parser's sub-parsers."""
    parser = commands.add_parser(
        'explain', help='what becomes of a flavor on a host, as a dry run',
        description='Show the policy, the Placement query, the provider tree, '
                    'the guest XML and the schemata lines of a guest on an '
                    'empty host, without any service.',
        epilog='Exit status: 0 the host can take the guest, 1 wrong usage or '
               'a bad host file, 2 the guest is refused.')
    parser.add_argument('--host', required=True, metavar='FILE',
                        help='description of the host, as those in '
                             'etc/ghsched/hosts')
    parser.add_argument('--vcpus', required=True, type=_positive,
                        metavar='N', help='vCPUs of the flavor')
    parser.add_argument('--ram', required=True, type=_positive, metavar='MB',
                        help='RAM of the flavor')
    parser.add_argument('--disk', default=0, type=_natural, metavar='GB',
                        help='root and ephemeral disk of the flavor')
    parser.add_argument('--swap', default=0, type=_natural, metavar='MB',
                        help='swap disk of the flavor')
    parser.add_argument('--property', action='append', default=[],
                        type=_property, metavar='KEY=VALUE', dest='properties',
                        help='extra spec of the flavor; may be repeated')
    parser.add_argument('--node', type=_nodes, metavar='N,M,...',
                        help='host NUMA node of each guest NUMA node; without '
                             'it the first that fit')
    parser.add_argument('--accounting', choices=('min', 'max'), default='min',
                        help='the setting [ghsched]bandwidth_accounting')
    parser.add_argument('--format', choices=sorted(output.FORMATS),
                        default='table')
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry the sub-command out.

    :returns: exit status, see the help of the sub-command.
    """
    try:
        host = hostfile.load(arguments.host)
    except hostfile.HostFileError as error:
        print(f'ghsched explain: {error}', file=sys.stderr)
        return 1
    specs = dict(arguments.properties)
    if len(specs) < len(arguments.properties):
        print('ghsched explain: --property: a key is given twice',
              file=sys.stderr)
        return 1
    explanation = explain(Question(
        host, arguments.vcpus, arguments.ram, arguments.disk, arguments.swap,
        specs, arguments.node, arguments.accounting))
    text = output.FORMATS[arguments.format](explanation)
    if text:
        print(text)
    if explanation.refusal is None:
        return 0
    if not text:
        print(f'ghsched explain: refused: {explanation.refusal}',
              file=sys.stderr)
    return EXIT_REFUSED


def _natural(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise argparse.ArgumentTypeError(f'{text!r} is not a whole number')
    return int(text)


def _positive(text: str) -> int:
    number = _natural(text)
    if number == 0:
        raise argparse.ArgumentTypeError('must be at least 1')
    return number


def _property(text: str) -> tuple[str, str]:
    key, equals, value = text.partition('=')
    if not equals or not key:
        raise argparse.ArgumentTypeError(f'{text!r} is not KEY=VALUE')
    return key, value


def _nodes(text: str) -> tuple[int, ...]:
    return tuple(map(_natural, text.split(',')))

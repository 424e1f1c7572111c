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

"""``openstack ghsched flavor check``."""

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
import contextlib
from dataclasses import dataclass
from dataclasses import replace
import re
from typing import Any
from typing import TypeAlias
from urllib import parse

from osc_lib import exceptions

from ghsched_placement.base import exits
from ghsched_placement.features.flavor_check import flavor_errors
from ghsched_placement.features.flavor_check import images
from ghsched_placement.features.flavor_check import query
from ghsched_placement.fit import capacity
from ghsched_placement.fit import fitting
from ghsched_placement.fit import guest_demand
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.fit import lack
from ghsched_placement.fit import node_capacity
from ghsched_placement.flavor import auto_nodes
from ghsched_placement.flavor import policy as policies
from ghsched_placement.flavor import topology
from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients
from ghsched_placement.osc import columns
from ghsched_placement.osc import host_commands
from ghsched_placement.osc import node_capacities
from ghsched_placement.query import combinations
from ghsched_placement.query import request

COLUMNS = ('Host', 'Fits', 'Guests That Fit', 'Sharing', 'Host Nodes',
           'Reasons')

_VF_CLASS = re.compile(r'([^=]+)=(CUSTOM_[A-Z0-9_]{1,248})')

#: Parameters of a query for allocation candidates.
Query: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Requirements:
    """Resources that a guest needs, and queries that find hosts for it.

    The queries are those of nova-scheduler for allocation candidates.

    :param own_group: query for a guest with a control group of its own.
    :param shared_group: query for a guest that shares a control group.
    :param fallback: both queries for hosts that report no PCPU; None if Nova
        sends none.
    """

    demand: GuestDemand
    own_group: Query
    shared_group: Query
    fallback: tuple[Query, Query] | None = None

    def choose_query(self, host: capacity.HostInventory, is_sharing: bool
                     ) -> Query:
        """Return the query that finds a host for a guest.

        :param is_sharing: whether the guest shares a control group.
        """
        own, shared = self.own_group, self.shared_group
        if self.fallback and self.demand.uses_fallback_vcpus(host):
            own, shared = self.fallback
        return shared if is_sharing else own


@dataclass(frozen=True)
class Size:
    """Size of a flavor: vCPUs, RAM, root and ephemeral disk, and swap.

    RAM and swap are in MiB, disks in GiB.
    """

    vcpus: int
    memory_mb: int
    disk_gb: int = 0
    swap_mb: int = 0


class CheckFlavor(base.Lister):
    """Check a flavor, and show how many guests of it fit on each host now.

    Lists the errors in the flavor's extra specs. If there are none, lists for
    each host how many guests fit, or why none fits. Bandwidth, VFs, CPUs and
    memory are checked by NUMA node; for a flavor without a guest NUMA topology
    they are checked by host. If a host has no free control group, guests may
    share the control group of other guests. No guest fits on a host whose
    nova-compute is down or disabled. Exit status: 0 --count guests fit, 1 they
    do not fit or the flavor is invalid, 2 the cloud cannot be reached or has
    no such host.
    """

    nothing = base.NO_HOSTS
    SHORT = ('Host', 'Fits', 'Guests That Fit', 'Host Nodes', 'Reasons')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('flavor', metavar='<flavor>',
                            help='Flavor (name or ID)')
        parser.add_argument(
            '--image', metavar='<image>',
            help='Image (name or ID) whose properties also apply')
        parser.add_argument(
            '--count', type=base.parse_count, default=1, metavar='<n>',
            help='Number of guests to find room for (default: %(default)s)')
        parser.add_argument(
            '--host', metavar='<host>',
            help='Check this host only (hypervisor hostname)')
        add_vf_class_option(parser)
        host_commands.add_accounting_option(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        client = clients.get_client(self.app)
        flavor = client.get_flavor(parsed_args.flavor)
        properties = (client.get_image_properties(parsed_args.image)
                      if parsed_args.image else {})
        size = get_flavor_size(flavor)
        specs = merge_image_properties(flavor.extra_specs, properties)
        shapes = list_node_count_variants(size, specs)
        policy, guest = parse_flavor_specs(size, shapes[0])
        nodes = client.list_compute_nodes()
        away = client.list_unavailable_nodes(nodes)
        found = select_hosts_by_name(client.list_hosts(), parsed_args.host)
        if guest.cells:
            rooms = node_capacities.read_free_node_resources(client, [
                host for host in found if host.uuid not in away], nodes)
            found = rooms.add_free_node_resources(found)
            for note in (*rooms.describe_hosts_with_uncertain_cpus(),
                         *describe_unknown_pages(found, guest.page_size)):
                self.log.warning(note)
        classes = {**guess_vf_classes(policy, found),
                   **dict(parsed_args.vf_class)}
        self._log_flavor_warnings(policy, classes, specs)
        for text in yield_slow_query_warnings(policy, parsed_args.accounting,
                                              found, classes):
            self.log.warning(text)
        requirements = list_requirements(
            size, specs, found, classes, parsed_args.accounting,
            client.is_owner_trait_required())
        verdicts = client.map_in_parallel(
            lambda host: make_host_refusal(host, away[host.uuid])
            if host.uuid in away
            else check_host_for_node_counts(client, host, requirements), found)
        self._compare_with_wanted_count(verdicts, parsed_args.count)
        return COLUMNS, list(list_verdict_rows(verdicts))

    def _compare_with_wanted_count(self, verdicts: Iterable[fitting.Verdict],
                                   count: int) -> None:
        """Set the exit status, and log if some guests fit, but too few.

        :param count: number of guests that should fit.
        """
        fits = sum(verdict.guests for verdict in verdicts)
        if fits >= count:
            return
        self.status = exits.FOUND
        if fits:
            self.log.warning('%d %s, %d asked for', fits,
                             'fits' if fits == 1 else 'fit', count)

    def _log_flavor_warnings(self, policy: policies.GuestPolicy,
                             classes: Mapping[str, str],
                             specs: Mapping[str, str]) -> None:
        """Log extra specs that may be wrong or that cannot be checked.

        :param classes: resource class of the VFs of each PCI alias.
        :param specs: extra specs of the flavor.
        """
        for text in flavor_errors.find_doubtful_keys(specs):
            self.log.warning(text)
        for part in policy.parts:
            for text in part.find_flavor_warnings(specs):
                self.log.warning(text)
        unknown = sorted({vfs.alias for vfs in policy.vfs} - classes.keys())
        if unknown:
            self.log.warning(
                'ignoring VFs of PCI alias %s: the resource class is unknown, '
                'pass --vf-class ALIAS=CLASS', ', '.join(unknown))
        left_out = query.list_ignored_extra_specs(specs)
        if left_out:
            self.log.warning('ignoring what cannot be checked: %s',
                             ', '.join(left_out))


def select_hosts_by_name(hosts: Sequence[capacity.HostInventory],
                         name: str | None
                         ) -> Sequence[capacity.HostInventory]:
    """Return the host that has a given name, or all hosts if the name is None.

    :raises CommandError: if no host has that name.
    """
    if name is None:
        return hosts
    named = [host for host in hosts if host.name == name]
    if not named:
        raise exceptions.CommandError(f'no host {name}')
    return named


def yield_slow_query_warnings(policy: policies.GuestPolicy,
                              accounting: policies.Accounting,
                              hosts: Iterable[capacity.HostInventory],
                              classes: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning if Placement would be slow to find hosts for a flavor.

    Placement tries all combinations of a host's NUMA nodes and PFs for the
    flavor's request groups. Their number can be very large. The warning names
    the host with the most combinations.

    :param policy: bandwidth, VFs and other things that the flavor's ghsched
        extra specs request.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param hosts: hosts whose NUMA nodes and PFs are combined.
    :param classes: resource class of the VFs of each PCI alias.
    """
    def count_on(host: capacity.HostInventory) -> int:
        by_class = Counter(pf.resource_class for pf in host.pfs)
        return combinations.count_provider_combinations(
            policy, accounting, len(host.nodes),
            {alias: by_class[name] for alias, name in classes.items()})

    worst, name = max(((count_on(host), host.name) for host in hosts),
                      default=(0, ''))
    if worst > combinations.SLOW_COMBINATIONS:
        yield (f'host {name} has {worst} combinations of NUMA nodes and PFs '
               'for this flavor. Placement goes through them for seconds or '
               'minutes per server, unless '
               '[placement]max_allocation_candidates limits it')


def get_flavor_size(flavor: Any) -> Size:
    """Return vCPUs, memory, disk and swap of a flavor object of openstacksdk.
    """
    return Size(flavor.vcpus, flavor.ram, flavor.disk + flavor.ephemeral,
                flavor.swap or 0)


def add_vf_class_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--vf-class', metavar='<alias>=<class>', action='append',
        default=[], type=parse_vf_class,
        help='Resource class in Placement of the VFs of a [pci]alias; no API '
             'of Nova shows it (repeat for several; not needed if all VFs '
             'of the cloud have one class)')


def parse_vf_class(text: str) -> tuple[str, str]:
    """Parse ``ALIAS=CLASS`` from the command line.

    CLASS is the resource class of the VFs that the PCI alias ALIAS stands for.

    :raises argparse.ArgumentTypeError: if the text does not have this form.
    """
    match = _VF_CLASS.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not of the form ALIAS=CUSTOM_...')
    return match[1], match[2]


def merge_image_properties(extra_specs: Mapping[str, str],
                           properties: Mapping[str, str]) -> dict[str, str]:
    """Return a flavor's extra specs, combined with the properties of an image.

    :raises CommandError: if the image contradicts the flavor, or has a
        property that only flavors may have.
    """
    with refusing_invalid_flavor():
        policies.refuse_unfixed_node_count(extra_specs)
        found = images.merge_image_properties(extra_specs, properties)
        auto_nodes.refuse_auto_with_fixed_node_count(found)
        return found


@contextlib.contextmanager
def refusing_invalid_flavor() -> Iterator[None]:
    """Within this context, an error in a flavor or image refuses the command.

    :raises CommandRefused: in place of the error.
    """
    try:
        yield
    except images.ImageError as error:
        raise base.CommandRefused(f'the image: {error}') from None
    except (policies.PolicyError, topology.TopologyError) as error:
        raise base.CommandRefused(f'the flavor: {error}') from None


def parse_flavor_specs(size: Size, extra_specs: Mapping[str, str]
                       ) -> tuple[policies.GuestPolicy, topology.GuestShape]:
    """Parse a flavor into its bandwidth policy and its guest NUMA topology.

    :raises CommandError: if the flavor is invalid; the error names all
        problems.
    """
    extra_specs = list_node_count_variants(size, extra_specs)[0]
    with refusing_invalid_flavor():
        guest = topology.split_guest(size.vcpus, size.memory_mb, extra_specs)
    problems = flavor_errors.find_all_flavor_errors(
        extra_specs, len(guest.cells), size.vcpus)
    if problems:
        raise base.CommandRefused('\n'.join(
            f'the flavor: {problem}' for problem in problems))
    policy = policies.parse_policy(extra_specs, len(guest.cells), size.vcpus
                                   ) or policies.GuestPolicy()
    with refusing_invalid_flavor():
        combinations.check_combination_count(policy)
    return policy, guest


def list_node_count_variants(size: Size, extra_specs: Mapping[str, str]
                             ) -> list[Mapping[str, str]]:
    """Return a flavor's extra specs for each number of guest NUMA nodes.

    A flavor with ``ghsched:numa=auto`` leaves this number to the scheduler;
    any other flavor has only one variant. Numbers that would split memory
    pages are left out, unless no other number is possible.

    :raises CommandError: if the range of numbers is invalid.
    """
    if not auto_nodes.is_node_count_undecided(extra_specs):
        return [extra_specs]
    with refusing_invalid_flavor():
        policies.get_guest_node_count(extra_specs)
        auto_nodes.refuse_auto_conflicts(extra_specs)
        combinations.check_flavor_combinations(
            extra_specs, policies.GuestPolicy(), size.vcpus, size.memory_mb)
    shapes: list[Mapping[str, str]] = [
        auto_nodes.copy_with_node_count(extra_specs, count) for count
        in auto_nodes.list_node_counts(extra_specs, size.vcpus,
                                       size.memory_mb)]
    return [shape for shape in shapes
            if _can_split_guest(size, shape)] or shapes


def _can_split_guest(size: Size, extra_specs: Mapping[str, str]) -> bool:
    """Return whether Nova can split a guest into the flavor's NUMA nodes.

    Nova refuses, for example, a guest NUMA node whose memory is not a multiple
    of the page size.
    """
    try:
        topology.split_guest(size.vcpus, size.memory_mb, extra_specs)
    except topology.TopologyError:
        return False
    return True


def get_flavor_record_size(record: Mapping[str, Any]) -> Size:
    """Return vCPUs, memory, disk and swap of a flavor record of Nova's API."""
    return Size(record['vcpus'], record['ram'], record['disk']
                + record.get('OS-FLV-EXT-DATA:ephemeral', 0),
                record.get('swap') or 0)


def list_requirements(size: Size, extra_specs: Mapping[str, str],
                      hosts: Iterable[capacity.HostInventory],
                      classes: Mapping[str, str],
                      accounting: policies.Accounting,
                      needs_owner_trait: bool) -> list[Requirements]:
    """Return a flavor's requirements for each number of guest NUMA nodes.

    The list has several items if nova-scheduler chooses the number.

    :param hosts: hosts whose VFs are used to guess the resource class of VFs.
    :param classes: resource class of the VFs by PCI alias, where it is known.
    :raises CommandRefused: if the flavor is invalid.
    """
    shapes = list_node_count_variants(size, extra_specs)
    policy, _guest = parse_flavor_specs(size, shapes[0])
    classes = {**guess_vf_classes(policy, hosts), **classes}
    return [make_flavor_requirements(size, shape, classes, accounting,
                                     needs_owner_trait) for shape in shapes]


def make_flavor_requirements(size: Size, extra_specs: Mapping[str, str],
                             classes: Mapping[str, str],
                             accounting: policies.Accounting,
                             needs_owner_trait: bool) -> Requirements:
    """Return the resources that a flavor's guest needs, with its queries.

    The two queries find hosts in the way nova-scheduler does. The first is for
    a guest with its own control group. The second is for a guest that shares a
    control group with other guests.

    :param classes: resource class of the VFs of each PCI alias.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param needs_owner_trait: whether nova-scheduler requires the trait
        OWNER_NOVA.
    """
    policy, guest = parse_flavor_specs(size, extra_specs)
    flavor = query.FlavorAmounts(guest.shared, guest.pcpus, guest.memory_mb,
                                 size.disk_gb, size.swap_mb, extra_specs)
    shared_cpus = query.make_shared_cpu_flavor(flavor)

    def ask(asked: query.FlavorAmounts) -> tuple[Query, Query]:
        own, shared = (tuple(query.make_candidates_query(
            asked, request.build_request(policy, accounting,
                                         joining=is_sharing),
            needs_owner_trait)) for is_sharing in (False, True))
        return own, shared
    own, shared = ask(flavor)
    fallback = ask(shared_cpus) if shared_cpus else None
    return Requirements(
        guest_demand.make_guest_demand(
            policy, guest, own, classes, accounting, fallback and fallback[0]),
        own, shared, fallback)


def guess_vf_classes(policy: policies.GuestPolicy,
                     hosts: Iterable[capacity.HostInventory]
                     ) -> dict[str, str]:
    """Guess the resource class of the VFs of each PCI alias of a flavor.

    If the VFs of all hosts have the same resource class, each alias is assumed
    to have this class. Otherwise the result is empty.
    """
    classes = {pf.resource_class for host in hosts for pf in host.pfs}
    if len(classes) > 1:
        return {}
    return {vfs.alias: next(iter(classes), f'the alias {vfs.alias}')
            for vfs in policy.vfs}


def make_host_refusal(host: capacity.HostInventory, reason: str
                      ) -> fitting.Verdict:
    """Return the result for a host whose nova-compute takes no servers.

    :param reason: reason why nova-compute takes none.
    """
    return fitting.Verdict(host.name, lacks=(lack.Lack(
        None, 'compute service', reason=reason,
        cure='see openstack compute service list'),))


def check_host_for_flavor(
        client: clients.Client, host: capacity.HostInventory,
        requirements: Requirements, *larger: GuestDemand) -> fitting.Verdict:
    """Return how many guests of a flavor fit on a host, or why none fits.

    A guest fits only if Placement offers the host as an allocation candidate,
    too.

    :param requirements: resources that each guest needs, and the queries.
    :param larger: resources of guests with more NUMA nodes, which are counted,
        too.
    """
    verdict = fitting.check_host_capacity(host, requirements.demand, *larger)
    if not verdict.guests:
        return verdict
    asked = requirements.choose_query(host, verdict.needs_shared_group)
    if is_allocation_candidate(client, host, asked):
        return verdict
    return fitting.Verdict(host.name, lacks=tuple(
        _find_other_refusal_reasons(host, dict(asked))) or (lack.Lack(
            None, lack.COMBINATION, reason='Placement has no candidate here: '
            'something else that the flavor or the image asks for is missing '
            '(trait:..., resources:...)'),))


def _find_other_refusal_reasons(host: capacity.HostInventory,
                                parameters: Mapping[str, str]
                                ) -> Iterator[lack.Lack]:
    """Yield the traits and resources of a query that a host does not have.

    Only the query's unnumbered request group is checked, without CPUs, memory
    and other resources that are checked elsewhere.

    :param parameters: query for which Placement does not offer the host.
    """
    yield from lack.find_trait_mismatches(
        host.root.traits,
        *guest_demand.parse_traits(parameters.get('required', '')))
    amounts = guest_demand.parse_amounts(parameters.get('resources', ''))
    for name, needed in amounts.items():
        if name in guest_demand.HOST_CLASSES:
            continue
        stock = host.root.get_inventory(name)
        found = lack.find_resource_shortage(
            name, needed, stock.free if stock else 0,
            stock.max_unit if stock else None, key=f'resources:{name}')
        if found:
            yield found


def check_host_for_node_counts(
        client: clients.Client, host: capacity.HostInventory,
        requirements: Sequence[Requirements]) -> fitting.Verdict:
    """Check how many guests fit on a host with each number of NUMA nodes.

    A flavor has several numbers of guest NUMA nodes if nova-scheduler chooses
    the number.

    :param requirements: requirements of the flavor for each number of guest
        NUMA nodes, in ascending order.
    :returns: how many guests fit, with the smallest number of guest NUMA nodes
        first, and then with larger ones. If none fits, the reasons for each
        number.
    """
    lacks: list[lack.Lack] = []
    demands = [one.demand for one in requirements]
    for number, one in enumerate(requirements):
        larger = (demands[number + 1:] if fitting.count_guests(
            host, [one.demand]).guests else ())
        verdict = check_host_for_flavor(client, host, one, *larger)
        if verdict.guests or len(requirements) == 1:
            return verdict
        count = base.format_count(one.demand.guest_nodes, 'NUMA node')
        lacks += (replace(item, reason=f'with {count}: {item.text}')
                  for item in verdict.lacks)
    return fitting.Verdict(host.name, lacks=tuple(lacks))


def list_verdict_rows(verdicts: Iterable[fitting.Verdict]) -> Iterator[
        tuple[Any, ...]]:
    """Yield a table row for each host: how many guests fit, or why none fits.

    :param verdicts: results of the check of a flavor on each host.
    """
    for verdict in verdicts:
        yield (verdict.host, bool(verdict.guests), verdict.guests,
               verdict.sharing, columns.CommaListCell(list(verdict.nodes)),
               columns.MultilineCell(list(verdict.reason_texts)))


def describe_unknown_pages(hosts: Iterable[capacity.HostInventory],
                           page_size: topology.PageSize) -> list[str]:
    """Return a note on hosts whose huge pages are not known.

    :param page_size: size of the memory pages that a guest requests.
    :returns: list of one sentence; empty if the note is not needed.
    """
    unknown = [host.name for host in hosts
               if any(node.room and not node.room.pages
                      for node in host.nodes)]
    if not unknown or not node_capacity.needs_huge_pages(page_size):
        return []
    return [node_capacity.PAGES_UNKNOWN.format(
        lack.format_host_names(unknown))]


def is_allocation_candidate(client: clients.Client,
                            host: capacity.HostInventory,
                            asked: Iterable[tuple[str, str]]) -> bool:
    """Return whether Placement offers a host as an allocation candidate.

    :param asked: parameters of GET /allocation_candidates.
    """
    of_host = [*(one for one in asked if one[0] != 'limit'),
               ('limit', '1'), ('in_tree', host.uuid)]
    answer = client.query_placement(
        '/allocation_candidates?' + parse.urlencode(of_host),
        default={'allocation_requests': []})
    return bool(answer['allocation_requests'])

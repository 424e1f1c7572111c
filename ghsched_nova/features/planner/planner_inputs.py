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

"""Inputs of ``ghsched plan``: hosts, a cloud and flavors."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from dataclasses import dataclass
import re
from typing import Any

from ghsched_nova.features.planner import hostfile
from ghsched_nova.features.planner.hostfile import HostFile
from ghsched_nova.features.planner.planner_hosts import make_planner_host
from ghsched_placement.features.density import documents
from ghsched_placement.features.planner.client import PlacementReader
from ghsched_placement.features.planner.client import PlannerError
from ghsched_placement.features.planner import flavors
from ghsched_placement.features.planner.flavors import Flavor
from ghsched_placement.features.planner.predict import Target
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.flavor import keys

_COPIES = re.compile(r'(?P<path>.+)\*(?P<count>[1-9][0-9]{0,4})')
_NO_COPIES = re.compile(r'.+\*[0-9]*')
_SUFFIXES = ('.yaml', '.yml', '.json')

_NO_SDK = ('a cloud is read with openstacksdk and osc-lib, and there is no '
           "module {}; pip install 'ghsched[plan]' brings both")


@dataclass(frozen=True)
class DescribedHosts:
    """Equal hosts that one host file describes.

    :param file: content of the host file.
    :param names: names of the hosts' compute nodes.
    """

    file: HostFile
    names: tuple[str, ...]


def read_host_files(texts: Iterable[str]) -> tuple[DescribedHosts, ...]:
    """Load the hosts that command-line arguments name.

    An argument is ``FILE``, or ``FILE*COUNT`` for several equal hosts. FILE is
    a YAML description of a host.

    :raises PlannerError: if a file is invalid or two hosts have the same name.
    """
    found = []
    taken: set[str] = set()
    for text in texts:
        match = _COPIES.fullmatch(text)
        if not match and _NO_COPIES.fullmatch(text):
            raise PlannerError(f'{text}: is not FILE*N with N from 1 to '
                               '99999')
        path, count = (match['path'], int(match['count'])) if match else (
            text, 1)
        try:
            file = hostfile.load_host_file(path)
        except hostfile.HostFileError as error:
            raise PlannerError(str(error)) from None
        names = (tuple(f'{file.name}-{number}'
                       for number in range(1, count + 1))
                 if match else (file.name,))
        if taken.intersection(names):
            raise PlannerError(
                f'{path}: duplicate host {min(taken.intersection(names))}; '
                f'for N equal hosts, use {path}*N')
        taken.update(names)
        found.append(DescribedHosts(file, names))
    return tuple(found)


def load_density_machines(
        paths: Iterable[str],
        plan_hosts: Iterable[DescribedHosts] = ()) -> tuple[Target, ...]:
    """Load the machines for which to predict how many containers run well.

    :param paths: host files of the machines.
    :param plan_hosts: hosts of the capacity plan. The computed number of
        guests is used for machines that have the host file of one of them.
    :raises PlannerError: if a file is invalid or two machines have the same
        name.
    """
    known = tuple(plan_hosts)
    found = {}
    for path in paths:
        one = load_density_machine(path, known)
        if one.machine.name in found:
            raise PlannerError(f'{path}: there is a machine '
                               f'{one.machine.name} already')
        found[one.machine.name] = one
    return tuple(found.values())


def load_density_machine(
    path: str, plan_hosts: Iterable[DescribedHosts] = ()
) -> Target:
    """Load a machine for which to predict how many containers run well.

    :param path: host file of the machine.
    :param plan_hosts: hosts of the capacity plan. If one of them has the same
        host file, its computed number of guests is used for the machine.
    :raises PlannerError: if the file is invalid or has no section
        ``contention``.
    """
    if _COPIES.fullmatch(path):
        raise PlannerError(f'{path}: a density is predicted for one host; '
                           'omit the *COUNT at the end')
    (one,) = read_host_files([path])
    same = next((other for other in plan_hosts
                 if other.file == one.file), None)
    if one.file.contention is None:
        raise PlannerError(f'{path}: it has no section "contention"')
    return make_density_machine(same or one, bool(same))


def make_density_machine(host: DescribedHosts,
                         is_planned: bool = True) -> Target:
    """Return the machine of a host file, to predict a container density.

    The density is how many containers run well on the machine.

    :param host: host whose host file has the section ``contention``.
    :param is_planned: whether the host is in the capacity plan. The prediction
        then uses the number of guests that the plan computes for it.
    """
    assert host.file.contention is not None  # noqa: S101
    return Target(
        host.file.contention, make_planner_host(host.file, host.file.name),
        host.file.aliases,
        host.names if is_planned else ())


def map_pci_aliases_to_classes(
        hosts: Iterable[DescribedHosts],
        alias_pairs: Iterable[tuple[str, str]] = (),
        flavors: Iterable[Flavor] = ()) -> dict[str, str]:
    """Return the resource class of VFs in Placement, by PCI alias.

    Classes from the command line take precedence over those of host files. An
    alias that has two classes is an error if a flavor requests VFs; otherwise
    it is left out.

    :param hosts: hosts with the PFs of their host files.
    :param alias_pairs: pairs of alias and class from the command line.
    :param flavors: the requested flavors.
    :raises PlannerError: if a flavor requests VFs and an alias has two
        classes.
    """
    known = [(pf.alias, pf.resource_class)
             for host in hosts for pf in host.file.pfs]
    found = _map_unambiguous_aliases(alias_pairs)
    ours = {alias: {name for other, name in known if other == alias}
            for alias, _name in known if alias not in found}
    asked = any(key.startswith(keys.VFS.extra_spec)
                for flavor in flavors for key in flavor.extra_specs)
    return {**found, **_map_unambiguous_aliases(
        (alias, name) for alias, names in ours.items()
        if asked or len(names) == 1 for name in sorted(names))}


def _map_unambiguous_aliases(pairs: Iterable[tuple[str, str]]) -> dict[str,
                                                                       str]:
    """Convert pairs of PCI alias and resource class to a mapping.

    :param pairs: pairs of alias and resource class.
    :raises PlannerError: if an alias has two classes.
    """
    found: dict[str, str] = {}
    for alias, name in pairs:
        if found.setdefault(alias, name) != name:
            raise PlannerError(
                f'the PCI alias {alias} has the resource classes '
                f'{found[alias]} and {name}; choose one: '
                f'--alias {alias}=CLASS')
    return found


def load_flavors(texts: Sequence[str], connection: Any = None) -> list[Flavor]:
    """Load the flavors that command-line arguments name.

    :param texts: ``NAME:KEY=VALUE,...``, name of a YAML or JSON file, or name
        of a flavor in the cloud.
    :param connection: connection of openstacksdk; None without a cloud.
    :raises PlannerError: if a flavor cannot be read.
    """
    found: list[Flavor] = []
    for text in texts:
        if text.endswith(_SUFFIXES) and '=' not in text:
            found += _load_flavor_file(text)
        elif '=' in text:
            found.append(flavors.parse_flavor_argument(text))
        elif connection is None:
            raise PlannerError(
                f'flavor {text}: is neither NAME:KEY=VALUE,... nor the name '
                'of a .yaml, .yml or .json file; names of flavors require a '
                'cloud')
        else:
            found.append(_read_cloud_flavor(connection, text))
    return found


def _load_flavor_file(path: str) -> list[Flavor]:
    """Read flavors from a YAML or JSON file."""
    try:
        document = documents.load_yaml(path)
    except documents.DensityFileError as error:
        raise PlannerError(f'{path}: {error}') from None
    if not isinstance(document, Mapping) or not all(
            isinstance(entry, Mapping) for entry in document.values()):
        raise PlannerError(f'{path}: must be a mapping of flavors by name')
    try:
        return [flavors.build_flavor(str(name), entry)
                for name, entry in document.items()]
    except PlannerError as error:
        raise PlannerError(f'{path}: {error}') from None


# -- a cloud ------------------------------------------------------------------


def connect_cloud(cloud: str) -> Any:
    """Return an openstacksdk connection to a cloud with request timeouts.

    :param cloud: name in clouds.yaml, or ``envvars``.
    :raises PlannerError: if the connection fails or openstacksdk is missing.
    """
    try:
        import openstack

        from ghsched_placement.osc import http
    except ImportError as error:
        raise PlannerError(_NO_SDK.format(error.name)) from None
    try:
        connection = openstack.connect(cloud=cloud)
        http.set_session_timeout(connection)
    except Exception as error:
        raise PlannerError(f'the cloud {cloud}: {error}') from error
    return connection


@contextlib.contextmanager
def _convert_service_errors(
    connection: Any, service: str, subject: str
) -> Iterator[None]:
    """Within this context, convert errors of a cloud service to PlannerError.

    :param service: name of the service.
    :param subject: text before the error, such as ``flavor NAME``. It is left
        out if the service does not answer at all.
    :raises PlannerError: if the service does not answer or refuses a request.
    """
    from ghsched_placement.osc import http

    try:
        with http.translate_unreachable(connection, service):
            yield
    except http.Unreachable as error:
        raise PlannerError(str(error)) from error
    except Exception as error:
        raise PlannerError(f'{subject}: {error}') from error


def get_placement_client(connection: Any) -> PlacementReader:
    """Return the Placement API client of an openstacksdk connection.

    :raises PlannerError: if Placement does not answer or refuses a request.
    """
    with _convert_service_errors(connection, 'placement', 'Placement'):
        found: PlacementReader = connection.placement
    return found


def read_free_node_capacities(
        connection: Any) -> Mapping[str, tuple[NodeCapacity, ...]]:
    """Read the free CPUs and memory of host NUMA nodes from Nova.

    :returns: capacities by UUID of the compute node; empty if the user may not
        read them.
    """
    from osc_lib import exceptions

    from ghsched_placement.osc import client as clients
    from ghsched_placement.osc import node_capacities

    client = clients.Client(connection)
    try:
        return node_capacities.read_free_node_resources(
            client, client.list_hosts(), client.list_compute_nodes()).by_host
    except exceptions.CommandError:
        return {}


def _read_cloud_flavor(connection: Any, name: str) -> Flavor:
    """Read a flavor from a cloud, given its name.

    :raises PlannerError: if the cloud does not have the flavor.
    """
    with _convert_service_errors(connection, 'compute', f'flavor {name}'):
        found = connection.compute.find_flavor(name, get_extra_specs=True)
    if found is None:
        raise PlannerError(f'flavor {name}: the cloud has no such flavor')
    return Flavor(
        name=found.name, vcpus=found.vcpus, ram=found.ram,
        disk=(found.disk or 0) + (found.ephemeral or 0),
        swap=found.swap or 0, extra_specs=dict(found.extra_specs or {}))

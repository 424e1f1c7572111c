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


"""Nova's PCI requests for the VFs of ``ghsched:vfs``.

Nova makes its PCI requests (``InstancePCIRequest``) in one function, from
``pci_passthrough:alias``. The VFs of ``ghsched:vfs`` become further requests
of the same kind, one per alias and guest NUMA node, so that Nova handles their
devices as usual (request groups for Placement, claim, XML, clean-up, moves).
The guest NUMA node of a request is stored in its ``requester_id``, which Nova
uses only for ports and saves with the instance.

With ``ghsched:numa=auto`` the scheduler chooses the number of guest NUMA nodes
after nova-api has made the requests. Then each request is for a part of the
VFs that belongs to one node whatever the number will be, and its
``requester_id`` names this part. The requests of a server therefore stay as
they are when it moves; which guest node each is for follows from the number.
nova-scheduler works on copies in which the parts of each node are one request.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import re
import threading
from typing import Any

from nova import exception
from nova.objects import fields

from ghsched_nova.nova_seams import pci
from ghsched_placement.flavor import auto_nodes
from ghsched_placement.flavor import keys
from ghsched_placement.flavor import policy as policies

_PREFERRED = fields.PCINUMAAffinityPolicy.PREFERRED
_REQUESTER = re.compile(r'ghsched-vfs-node([0-9]{1,4})')

#: requester_id with ghsched:numa=auto: index of the first VF of the part, and
#: number of VFs of the alias.
_PART_REQUESTER = re.compile(r'ghsched-vfs-([0-9]{1,4})-of-([0-9]{1,4})')

#: Suffix of Nova's request group for one device: request ID and number.
_SUFFIX = re.compile(r'(.{36})-[0-9]{1,4}')

#: Resource providers of the instance that this thread is about to claim, see
#: :func:`store_allocated_pfs` and :func:`claiming_move`.
_claims = threading.local()


class BadFlavor(exception.PciInvalidAlias):
    """Raised if a flavor's ``ghsched:vfs`` keys are invalid.

    nova-api answers with HTTP 400.
    """

    msg_fmt = '%(reason)s'


def get_guest_node(pci_request: Any, node_count: int = 1) -> int | None:
    """Return the guest NUMA node for which a PCI request asks for VFs.

    Returns None for a PCI request that was not made from ``ghsched:vfs``.

    :param node_count: number of guest NUMA nodes. It is used only for requests
        of a flavor with ``ghsched:numa=auto``.
    """
    requester = pci_request.requester_id or ''
    match = _REQUESTER.fullmatch(requester)
    if match:
        return int(match[1])
    part = _PART_REQUESTER.fullmatch(requester)
    return (auto_nodes.find_node_of_vf(int(part[1]), int(part[2]), node_count)
            if part else None)


def select_vf_requests(requests: Iterable[Any] | None) -> list[Any]:
    """Return the PCI requests that were made from ``ghsched:vfs``.

    This extra spec of a flavor asks for VFs for each guest NUMA node.
    """
    return [request for request in requests or ()
            if get_guest_node(request) is not None]


def has_strict_vf_affinity(requests: Any) -> bool:
    """Return whether Nova restricts a server's VFs to some host NUMA nodes.

    Nova does so unless the server's PCI NUMA affinity policy is ``preferred``.

    :param requests: ``InstancePCIRequests`` of a server, or None.
    """
    return any(request.numa_policy != _PREFERRED
               for request in select_vf_requests(requests
                                                 and requests.requests))


def parse_vf_requests(requests: Iterable[Any]) -> tuple[policies.Vfs, ...]:
    """Return alias, count and guest NUMA node of each VF request of a server.
    """
    return tuple(policies.Vfs(node, request.alias_name, request.count)
                 for request in requests
                 if (node := get_guest_node(request)) is not None)


def list_claimed_vf_nodes(instance: Any) -> list[tuple[int, int | None]]:
    """Return guest and host NUMA node of each VF that an instance claimed.

    Only VFs that the flavor asks for by ``ghsched:vfs`` are returned.
    """
    requests = instance.pci_requests
    count = len(instance.numa_topology) if instance.numa_topology else 1
    guest_nodes = {request.request_id: node
                   for request in select_vf_requests(requests
                                                     and requests.requests)
                   if (node := get_guest_node(request, count)) is not None}
    return [(guest_nodes[device.request_id], device.numa_node)
            for device in instance.pci_devices or ()
            if device.request_id in guest_nodes]


def make_pci_requests(original: Callable[..., Any], flavor: Any,
                      affinity_policy: str | None = None) -> Any:
    """Return a flavor's PCI requests, including those for ``ghsched:vfs``.

    :param original: ``nova.pci.request.get_pci_requests_from_flavor``.
    :param affinity_policy: ``hw:pci_numa_affinity_policy``, which holds for
        the VFs as for Nova's own requests. By default Nova prefers near
        devices, and the scheduler enforces ``ghsched:vfs_locality``.
    :raises nova.exception.PciInvalidAlias: if an extra spec is invalid.
    """
    found = original(flavor, affinity_policy=affinity_policy)
    extra_specs = (flavor['extra_specs'] if 'extra_specs' in flavor else {})
    for alias, count, requester in _list_requested_vfs(extra_specs):
        more = original(
            {'extra_specs': {'pci_passthrough:alias': f'{alias}:{count}'}},
            affinity_policy=affinity_policy or _PREFERRED)
        for request in more.requests:
            request.requester_id = requester
            found.requests.append(request)
    set_allocated_pfs(found.requests, getattr(_claims, 'mapping', None),
                      policies.has_ghsched_keys(extra_specs))
    return found


def _list_requested_vfs(extra_specs: Mapping[str, str]
                        ) -> Iterator[tuple[str, int, str]]:
    """Yield the PCI requests for the VFs that a flavor asks for.

    A request is a tuple of PCI alias, number of VFs and requester ID.

    :raises BadFlavor: if the flavor is invalid with any image.
    """
    is_auto = auto_nodes.is_node_count_undecided(extra_specs)
    for vfs in parse_requested_vfs(extra_specs):
        if not is_auto:
            yield (vfs.alias, vfs.count, f'ghsched-vfs-node{vfs.guest_node}')
            continue
        for first, count in auto_nodes.divide_vfs(
                vfs.count, auto_nodes.get_max_node_count(extra_specs)):
            yield (vfs.alias, count, f'ghsched-vfs-{first}-of-{vfs.count}')


def parse_requested_vfs(
    extra_specs: Mapping[str, str],
) -> tuple[policies.Vfs, ...]:
    """Return the VFs that a flavor requests by ``ghsched:vfs``.

    With ``ghsched:numa=auto`` they are those of a guest with one NUMA node.

    :raises BadFlavor: if the flavor is invalid with any image.
    """
    try:
        policies.refuse_unfixed_node_count(extra_specs)
        if not _requests_vfs(extra_specs):
            return ()
        # Nova checks hw:numa_nodes itself. A locality without VFs does not
        # need it.
        count = policies.get_guest_node_count(extra_specs, 1)
        # Other keys may be wrong: they are the scheduler's to refuse.
        policy = policies.parse_policy(
            {key: value for key, value in extra_specs.items()
             if key.startswith(keys.VFS.extra_spec)},
            1 if auto_nodes.is_node_count_undecided(extra_specs) else count)
        return policy.vfs if policy else ()
    except policies.PolicyError as error:
        raise BadFlavor(reason=str(error)) from error


def store_allocated_pfs(requests: Sequence[Any],
                        mapping: Mapping[str, Sequence[str]]) -> None:
    """Store the PFs that Placement allocated to a moving instance.

    The claim on the destination takes VFs of these PFs.

    The resource tracker of the destination makes new PCI requests, with other
    IDs (``ResourceTracker._move_claim``), and does not know the PFs that
    Placement chose for the old ones. They are stored in a variable of this
    thread, which runs the claim, too.

    :param requests: PCI requests of the instance.
    :param mapping: UUIDs of the PFs' resource providers, by suffix of the
        request group.
    """
    _claims.given = requests, mapping


@contextlib.contextmanager
def claiming_move(instance: Any) -> Iterator[None]:
    """Within this context, a move's claim takes the PFs that Placement chose.

    The guest's allocation names these PFs. :func:`make_pci_requests` adds them
    to the PCI requests, which the resource tracker makes again for a move.
    """
    _claims.mapping = _pop_allocated_pfs(instance)
    try:
        yield
    finally:
        _claims.mapping = None


@contextlib.contextmanager
def claiming_allocated_pfs(instance: Any) -> Iterator[None]:
    """Within this context, nova-compute claims VFs of the allocated PFs.

    The PFs that Placement allocated are written into the instance's PCI
    requests. Otherwise Nova's claim would choose any matching PF.
    """
    mapping = _pop_allocated_pfs(instance)
    if mapping and instance.pci_requests:
        set_allocated_pfs(instance.pci_requests.requests, mapping,
                          policies.has_ghsched_keys(
                              instance.flavor.extra_specs))
    yield


def _pop_allocated_pfs(instance: Any) -> Mapping[str, Sequence[str]] | None:
    """Return the PFs stored for an instance's claim, and forget them.

    :func:`store_allocated_pfs` has stored the PFs that Placement chose.

    :returns: provider UUIDs by suffix of the request group; None if nothing is
        stored for the instance.
    """
    given, _claims.given = getattr(_claims, 'given', None), None
    own = instance.pci_requests and instance.pci_requests.requests
    return given[1] if given and given[0] is own else None


def set_allocated_pfs(requests: Sequence[Any],
                      mapping: Mapping[str, Sequence[str]] | None,
                      also_aliases: bool) -> None:
    """Write the PFs that Placement chose into a server's PCI requests.

    Nova's claim then takes devices of these PFs. Nothing is changed if the
    numbers of requested and allocated devices differ.

    :param requests: PCI requests of the server; changed in place.
    :param mapping: UUIDs of the PFs' resource providers, by suffix of the
        request group.
    :param also_aliases: whether requests of ``pci_passthrough:alias`` are
        changed, too, not only those of ``ghsched:vfs``.
    """
    providers: dict[str, list[str]] = {}
    for suffix, uuids in (mapping or {}).items():
        match = _SUFFIX.fullmatch(suffix)
        if match:
            providers.setdefault(match[1], []).extend(uuids)
    given = list(providers.values())
    asked = [request for request in requests if request.alias_name]
    if [len(uuids) for uuids in given] != [
            request.count for request in asked]:
        return      # the mapping is for another flavor
    for request, uuids in zip(asked, given, strict=True):
        if also_aliases or get_guest_node(request) is not None:
            for spec in request.spec:
                spec['rp_uuids'] = ','.join(uuids)


def _requests_vfs(extra_specs: Iterable[str]) -> bool:
    return any(key.startswith(keys.VFS.extra_spec) for key in extra_specs)


def patch_nova_pci_requests() -> None:
    """Patch Nova to make PCI requests for the VFs that a flavor asks for.

    A flavor asks for VFs by its extra spec ``ghsched:vfs``. Nova claims
    devices for each PCI request. A second call changes nothing.
    """
    pci.wrap_pci_requests(make_pci_requests)

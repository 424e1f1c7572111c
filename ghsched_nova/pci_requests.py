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


"""``ghsched:vfs`` -> Nova's own PCI requests.

Nova makes its PCI requests (``InstancePCIRequest``) in one function, out of
``pci_passthrough:alias``. The VFs of ``ghsched:vfs`` become further requests
of the same kind, one per alias and guest NUMA node, so that all that Nova does
with devices (request groups for Placement, claim, XML, clean-up, moves) holds
for them. Which guest node a request is for is written into its
``requester_id``, which Nova uses for ports alone and keeps with the instance.
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

from ghsched_nova.nova_seams import compute_claims
from ghsched_nova.nova_seams import pci
from ghsched_placement import keys
from ghsched_placement import policy as policies

_PREFERRED = fields.PCINUMAAffinityPolicy.PREFERRED
_REQUESTER = re.compile(r'ghsched-vfs-node(\d+)')


#: Suffix of Nova's request group for one device: request id and number.
_SUFFIX = re.compile(r'(.{36})-\d+')

#: Providers of the instance that this thread is about to claim, see
#: :func:`remember` and :func:`claiming_move`.
_claims = threading.local()


class BadFlavor(exception.PciInvalidAlias):
    """nova-api answers HTTP 400 with its message."""

    msg_fmt = '%(reason)s'


def guest_node_of(pci_request: Any) -> int | None:
    """Guest NUMA node that a PCI request is for; None when it is not ours."""
    match = _REQUESTER.fullmatch(pci_request.requester_id or '')
    return int(match[1]) if match else None


def of(requests: Iterable[Any] | None) -> list[Any]:
    """The PCI requests that stand for ``ghsched:vfs``, in their order."""
    return [request for request in requests or ()
            if guest_node_of(request) is not None]


def bound_to_nodes(requests: Any) -> bool:
    """Whether VFs of ours have to be where Nova's affinity policy says.

    :param requests: ``InstancePCIRequests`` of a server, or None.
    """
    return any(request.numa_policy != _PREFERRED
               for request in of(requests and requests.requests))


def told(requests: Iterable[Any]) -> tuple[policies.Vfs, ...]:
    """What PCI requests of ours ask for."""
    return tuple(policies.Vfs(node, request.alias_name, request.count)
                 for request in requests
                 if (node := guest_node_of(request)) is not None)


def nodes_of(instance: Any) -> list[tuple[int, int | None]]:
    """Guest NUMA node and host NUMA node of each VF that was claimed."""
    requests = instance.pci_requests
    guest_nodes = {request.request_id: node
                   for request in of(requests and requests.requests)
                   if (node := guest_node_of(request)) is not None}
    return [(guest_nodes[device.request_id], device.numa_node)
            for device in instance.pci_devices or ()
            if device.request_id in guest_nodes]


def with_vfs(original: Callable[..., Any], flavor: Any,
             affinity_policy: str | None = None) -> Any:
    """Nova's PCI requests of a flavor, and ours after them.

    :param original: ``nova.pci.request.get_pci_requests_from_flavor``.
    :param affinity_policy: ``hw:pci_numa_affinity_policy``, which means for
        our requests what it means for Nova's. Without it Nova is told to
        prefer near devices; the scheduler sees to ``ghsched:vfs_locality``.
    :raises nova.exception.PciInvalidAlias: when a key is wrong.
    :raises nova.exception.PciRequestAliasNotDefined: for an alias that is not
        in ``[pci]alias``.
    """
    found = original(flavor, affinity_policy=affinity_policy)
    extra_specs = (flavor['extra_specs'] if 'extra_specs' in flavor else {})
    for vfs in vfs_of(extra_specs):
        alias = {'pci_passthrough:alias': f'{vfs.alias}:{vfs.count}'}
        more = original({'extra_specs': alias},
                        affinity_policy=affinity_policy or _PREFERRED)
        for request in more.requests:
            request.requester_id = f'ghsched-vfs-node{vfs.guest_node}'
            found.requests.append(request)
    set_given_pfs(found.requests, getattr(_claims, 'mapping', None),
                  policies.wanted(extra_specs))
    return found


def vfs_of(extra_specs: Mapping[str, str]) -> tuple[policies.Vfs, ...]:
    """The VFs that a flavor asks for.

    :raises BadFlavor: for a flavor that is refused whatever the image is.
    """
    try:
        policies.check_topology(extra_specs)
        if not _asks(extra_specs):
            return ()
        # Nova has checked this key, or will. A locality alone needs none.
        return policies.parse_vfs(extra_specs,
                                  policies.node_count(extra_specs, 1))
    except policies.PolicyError as error:
        raise BadFlavor(reason=str(error)) from error


def remember(requests: Sequence[Any],
             mapping: Mapping[str, Sequence[str]]) -> None:
    """Note the providers that Placement gave to an instance, for its claim.

    Nova goes by the request id, and the ids of an instance that has been
    moved are not those of its RequestSpec: the resource tracker of the host
    that a guest moves to makes the requests again
    (``ResourceTracker._move_claim``).

    :param requests: those of the instance.
    :param mapping: providers by request group suffix.
    """
    _claims.given = requests, mapping


@contextlib.contextmanager
def claiming_move(instance: Any) -> Iterator[None]:
    """Within this context, new PCI requests of a flavor name given PFs.

    The resource tracker makes the requests of a move again, by
    :func:`with_vfs`, and Nova's own have no PFs then.
    """
    _claims.mapping = _given_to(instance)
    try:
        yield
    finally:
        _claims.mapping = None


@contextlib.contextmanager
def claiming_new(instance: Any) -> Iterator[None]:
    """Name the given PFs in the PCI requests that an instance has."""
    mapping = _given_to(instance)
    if mapping and instance.pci_requests:
        set_given_pfs(instance.pci_requests.requests, mapping,
                      policies.wanted(instance.flavor.extra_specs))
    yield


def _given_to(instance: Any) -> Mapping[str, Sequence[str]] | None:
    """Return the providers that were noted for an instance, once."""
    given, _claims.given = getattr(_claims, 'given', None), None
    own = instance.pci_requests and instance.pci_requests.requests
    return given[1] if given and given[0] is own else None


def set_given_pfs(requests: Sequence[Any],
                  mapping: Mapping[str, Sequence[str]] | None,
                  aliases: bool) -> None:
    """Write the PFs that Placement gave into PCI requests.

    Requests are in the same order wherever they were made, so the order says
    which groups are whose.

    :param aliases: whether those of ``pci_passthrough:alias`` are changed,
        beside those of ``ghsched:vfs``.
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
        return      # of another flavor
    for request, uuids in zip(asked, given, strict=True):
        if aliases or guest_node_of(request) is not None:
            for spec in request.spec:
                spec['rp_uuids'] = ','.join(uuids)


def _asks(extra_specs: Iterable[str]) -> bool:
    return any(key.startswith(keys.VFS.extra_spec) for key in extra_specs)


def register() -> None:
    """Have this process make our requests; harmless when done twice."""
    pci.extend_pci_requests(with_vfs)


def register_compute() -> None:
    """The same in nova-compute, where guests move to."""
    register()
    compute_claims.watch_provider_mapping(remember)
    compute_claims.around_claims(claiming_move, claiming_new)

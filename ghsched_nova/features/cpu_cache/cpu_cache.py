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

"""L3 caches of a host, as a part of nova-compute."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import itertools
import logging
from pathlib import Path
from typing import Any

from ghsched_nova.features.cpu_cache import shared_pins
from ghsched_nova.guest import document
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_nova.resctrl import sysfs
from ghsched_placement.features.cpu_cache import cache_part
from ghsched_placement.providers.host_description import HostDescription

LOG = logging.getLogger(__name__)

#: VIR_DOMAIN_AFFECT_LIVE.
_LIVE = 1
#: VIR_DOMAIN_JOB_NONE.
_NO_JOB = 0
_REPAIR = 'cache_pins'


class CpuCaches(compute_hooks.ComputeHooks):
    """Reporter of the host's L3 caches, and binder of shared vCPUs to them.

    :param root: mount point of sysfs.
    :param list_caches: function that returns the shared CPUs of each host NUMA
        node by L3 cache; empty for a node with one cache.
    :param get_cpu_ratio: function that returns the maximum number of vCPUs per
        shared CPU.
    :param list_running: function that returns all running domains.
    :param connect: function that returns a connection of libvirt.
    :param changing: lock that is held while vCPUs are pinned, also by moves
        between host NUMA nodes.
    """

    def __init__(self, root: Path, list_caches: Callable[
            [], Mapping[int, Sequence[frozenset[int]]]] = dict,
            get_cpu_ratio: Callable[[], float] = float,
            list_running: Callable[[], Sequence[desired.Running]] = tuple,
            connect: Callable[[], Any] = dict,
            changing: contextlib.AbstractContextManager[Any] | None = None
    ) -> None:
        self._root = root
        self._list_caches = list_caches
        self._get_cpu_ratio = get_cpu_ratio
        self._list_running = list_running
        self._connect = connect
        self._changing = changing or contextlib.nullcontext()

    def describe_host(self, found: HostDescription) -> HostDescription:
        """Return the description of the host with the capability of caches.

        It has none if the kernel does not say which CPUs share an L3.
        """
        caches = [cpus for _node, path in sysfs.iterate_numa_nodes(self._root)
                  for _number, cpus in sysfs.iterate_l3_caches(
                      self._root, sysfs.read_node_cpus(path))]
        if not caches or not all(caches):
            return found
        return dataclasses.replace(found, capabilities=found.capabilities
                                   | {cache_part.CAPABILITY})

    def render(self, xml: str, guest: compute_hooks.StartingGuest) -> str:
        """Write the flavor's ``ghsched:cpu_cache`` into a domain's metadata.
        """
        part = guest.policy.get_part(cache_part.CachePart)
        return (shared_pins.render_wish(xml, part.wish) if part.is_shared
                else xml)

    def reconcile_guest(self, running: desired.Running,
                        has_arrived: bool = False) -> None:
        """Bind the shared vCPUs of a guest to the CPUs of few L3 caches.

        A guest whose vCPUs cannot be pinned runs on the CPUs of its whole host
        NUMA node until the next periodic task.
        """
        if not shared_pins.read_wish(running.root):
            return
        # Two guests that start must not choose the same caches.
        with self._changing:
            try:
                for guest, pins in self._iterate_pins(
                        self._list_running(), {running.domain.uuid}):
                    _pin_vcpus(self._find_domain(guest), pins)
            except Exception as error:
                _log_failure(running, error)

    def reconcile_guests(self, running: Sequence[desired.Running]
                         ) -> Iterable[str]:
        """Bind the shared vCPUs of all guests to the CPUs of few L3 caches.

        A guest is bound again if few caches have room for its vCPUs now, or if
        other caches have less load.

        :returns: one word for each guest that was bound again.
        """
        bound = {one.domain.uuid for one in running
                 if one.is_readable and shared_pins.read_wish(one.root)}
        if not bound:
            return []
        return [_REPAIR for guest, pins in self._iterate_pins(running, bound)
                if self._pin_unchanged_guest(guest, pins)]

    def _pin_unchanged_guest(self, guest: desired.Running,
                             pins: Mapping[int, frozenset[int]]) -> bool:
        """Pin vCPUs of a running guest, unless it has changed meanwhile.

        A guest that libvirt migrates or saves is not pinned, because the call
        would wait, and neither is one that was moved to other host NUMA nodes.
        An error is logged, so that other guests are pinned.

        :param guest: guest with the live XML from which the pins were planned.
        :param pins: host CPUs by vCPU.
        :returns: whether the vCPUs were pinned.
        """
        try:
            with self._changing:
                domain = self._find_domain(guest)
                if (domain.jobInfo()[0] != _NO_JOB
                        or not shared_pins.has_same_pins(
                            guest.root, document.parse_document(
                                domain.XMLDesc()))):
                    return False
                _pin_vcpus(domain, pins)
        except Exception as error:
            _log_failure(guest, error)
            return False
        return True

    def _iterate_pins(
            self, running: Sequence[desired.Running], uuids: Collection[str]
    ) -> Iterator[tuple[desired.Running, Mapping[int, frozenset[int]]]]:
        """Yield running guests whose vCPUs are to be bound to other CPUs.

        Each comes with the CPUs of its vCPUs.

        :param running: all running domains.
        :param uuids: UUIDs of guests that may be bound to other CPUs.
        """
        guests = [one for one in running if one.is_readable]
        caches, ratio = self._list_caches(), self._get_cpu_ratio()
        load = shared_pins.count_vcpus_by_cpu(
            (one.root for one in guests),
            frozenset().union(*itertools.chain(*caches.values())))
        for one in guests:
            if one.domain.uuid in uuids and (
                    pins := shared_pins.plan_pins(one.root, load, caches,
                                                  ratio)):
                yield one, pins

    def _find_domain(self, guest: desired.Running) -> Any:
        return self._connect().lookupByUUIDString(guest.domain.uuid)


def _log_failure(guest: desired.Running, error: Exception) -> None:
    LOG.warning('ghsched: cannot bind the vCPUs of guest %(name)s to CPUs of '
                'few L3 caches; retrying in the next periodic task: '
                '%(error)r', {'name': guest.domain.name, 'error': error})


def _pin_vcpus(domain: Any, pins: Mapping[int, frozenset[int]]) -> None:
    """Pin vCPUs of a running domain; its persistent XML is not changed.

    :param domain: domain of libvirt.
    :param pins: host CPUs by vCPU.
    """
    for vcpu, cpus in pins.items():
        domain.pinVcpuFlags(vcpu, tuple(
            cpu in cpus for cpu in range(max(cpus) + 1)), _LIVE)


def make_compute_hooks(services: compute_hooks.ComputeServices) -> CpuCaches:
    """Return the part of L3 caches in nova-compute."""
    def list_caches() -> dict[int, Sequence[frozenset[int]]]:
        return {node: services.engine.list_caches(cpus)
                for node, cpus in services.list_shared_cpus().items()}
    return CpuCaches(Path(services.section.sysfs_path), list_caches,
                     services.get_cpu_ratio, services.list_running,
                     lambda: services.libvirt_host.get_connection(),
                     services.changing)

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

"""Temporary cap on a suspect's bandwidth, to prove that it slows a guest down.

The suspect's control group is written as if its policy had a lower cap;
nothing records that. Whatever happens meanwhile, the next reconciliation of
nova-compute therefore restores the group.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import dataclasses
import errno
import fcntl
import logging
import math
import os
from pathlib import Path
import threading
import time
from typing import Any

from ghsched_nova.features.blame import blame_session
from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.host import engine as engines
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import naming
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy

LOG = logging.getLogger(__name__)

#: Cap of a suspected guest in percent of a host NUMA node's bandwidth. A
#: higher guarantee is kept.
CAP_PERCENT = 10
#: Maximum duration of a cap in seconds, even if its trial has not ended.
CAP_LIMIT_S = 10.0

#: Seconds after an investigation with caps until another one may cap guests
#: of this host, and until the same guests may be capped again.
HOST_PAUSE_S = 300.0
GUEST_PAUSE_S = 900.0

NotCapped = blame_session.NotCapped
#: Exceptions if the control group of a guest cannot be changed.
_ERRORS = (*desired.POLICY_ERRORS, fs.GroupError)


@contextlib.contextmanager
def guest_cap_lock(root: Path) -> Iterator[None]:
    """Within this context, no other process of this host caps a guest.

    A guest is capped (its bandwidth limited) for a moment, to see whether
    another guest gets faster. The lock is on the directory info/ of resctrl.
    It does not prevent libvirt and nova-compute from changing control groups,
    for which they lock the mount point.

    :param root: mount point of resctrl.
    :raises NotCapped: if another process has the lock.
    """
    try:
        descriptor = os.open(root / 'info', os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NotCapped(f'resctrl cannot be read: {error}') from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise NotCapped('another server of this host is being investigated '
                        'with --prove') from error
    finally:
        os.close(descriptor)


@dataclasses.dataclass
class Pauses:
    """Pauses between investigations that cap guests of this host.

    Without pauses, repeated investigations could keep a guest capped about
    half of the time. Only the holder of :func:`guest_cap_lock` may use this
    object.

    :param clock: function that returns the time of a monotonic clock in
        seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _host_until: float = -math.inf
    _guests_until: dict[str, float] = dataclasses.field(default_factory=dict)
    _capped: set[str] = dataclasses.field(default_factory=set)

    @contextlib.contextmanager
    def investigation(self) -> Iterator[None]:
        """Within this context, one investigation may cap guests.

        :raises NotCapped: if the previous investigation ended too recently.
        """
        left = self._host_until - self.clock()
        if left > 0:
            raise NotCapped('guests of this host were capped a short time '
                            f'ago; try again in {math.ceil(left)} s')
        self._capped.clear()
        try:
            yield
        finally:
            now = self.clock()
            if self._capped:
                self._host_until = now + HOST_PAUSE_S
            self._guests_until = {
                uuid: until for uuid, until in self._guests_until.items()
                if until > now} | dict.fromkeys(self._capped,
                                                now + GUEST_PAUSE_S)

    def record_cap(self, uuid: str) -> None:
        """Record that an investigation caps a guest; refuse if too soon.

        :param uuid: UUID of the guest.
        :raises NotCapped: if an earlier investigation capped the guest too
            recently.
        """
        left = self._guests_until.get(uuid, -math.inf) - self.clock()
        if left > 0:
            raise NotCapped('it was capped a short time ago; it can be '
                            f'capped again in {math.ceil(left)} s')
        self._capped.add(uuid)


def make_capped_domain(running: desired.Running,
                       nodes: Collection[int]) -> desired.Running:
    """Return a copy of a running domain with a very low bandwidth cap.

    The guarantee of the domain is kept. On other host NUMA nodes its whole
    policy is kept.

    :param nodes: host NUMA nodes on which the domain is capped.
    :raises NotCapped: if the domain shares its control group, or if its cap
        cannot be lower.
    """
    try:
        found = running.policy
    except metadata.MetadataError as error:
        raise NotCapped(f'its policy cannot be read: {error}') from error
    if running.shared_group:
        raise NotCapped('it shares its control group with other guests')
    if found is None or not found.policy.needs_control_group:
        return _add_low_cap(running, nodes)
    if not all(one.nodes for one in found.policy.classes):
        raise NotCapped('some of its vCPU classes have no control group')

    def lower(policies: Iterable[NodePolicy]) -> tuple[NodePolicy, ...]:
        return tuple(
            _lower_node_cap(policy) if node in nodes else policy
            for policy, node in zip(policies, found.host_nodes, strict=True))

    capped = dataclasses.replace(
        found.policy, nodes=lower(found.policy.nodes),
        classes=tuple(dataclasses.replace(one, nodes=lower(one.nodes))
                      for one in found.policy.classes))
    if capped.groups == found.policy.groups:
        raise NotCapped('its cap there cannot be lower, because the guest '
                        'would lose its guarantee')
    return _replace_policy(running, dataclasses.replace(found, policy=capped))


def _add_low_cap(running: desired.Running,
                 nodes: Collection[int]) -> desired.Running:
    """Return a copy of an unlimited domain to which a very low cap is added.

    The cap limits the domain to :data:`CAP_PERCENT` percent of a host NUMA
    node's memory bandwidth.

    :param running: domain whose policy limits no bandwidth.
    :param nodes: host NUMA nodes on which the domain is capped.
    :raises NotCapped: if libvirt has created the domain's control group.
    """
    tune = running.root.find('cputune')
    if tune is not None and (tune.find('memorytune') is not None
                             or tune.find('cachetune') is not None):
        raise NotCapped('libvirt has created its control group, which '
                        'ghsched does not change')
    monitor = running.policy is not None and running.policy.policy.monitor
    places = tuple(sorted(nodes))
    return _replace_policy(running, metadata.DomainPolicy(
        GuestPolicy(nodes=tuple(NodePolicy(maximum=CAP_PERCENT)
                                for _node in places), monitor=monitor),
        places))


def _lower_node_cap(policy: NodePolicy) -> NodePolicy:
    """Return a guest NUMA node's bandwidth policy with a lowered cap.

    The new cap is :data:`CAP_PERCENT` percent of the host NUMA node's
    bandwidth, or the guarantee if that is higher. Bursts are removed.
    """
    return dataclasses.replace(policy, burst=0, maximum=min(
        policy.maximum, max(policy.minimum, CAP_PERCENT)))


def _replace_policy(running: desired.Running,
                    policy: metadata.DomainPolicy) -> desired.Running:
    """Return a copy of a running domain with another bandwidth policy.

    The policy is stored in the metadata of the domain XML.
    """
    return desired.Running(running.domain,
                           metadata.write_policy(running.xml, policy))


@dataclasses.dataclass
class Capper:
    """Sets a temporary bandwidth cap on one guest at a time; thread-safe.

    The guest is suspected of slowing down another one.

    :param engine: engine that enforces policies on this host.
    :param changing: lock that is held while the policy of a guest changes.
    :param find: function that returns a running domain, given its UUID; None
        if it has ended.
    :param report: function that logs and notifies that a cap begins or ends.
        It takes ``start`` or ``end``, and the UUID of the guest.
    :param pauses: pauses between investigations; None without pauses.
    """

    engine: engines.HostEngine
    changing: contextlib.AbstractContextManager[Any]
    find: Callable[[str], desired.Running | None]
    report: Callable[[str, str], None] = lambda _event, _uuid: None
    pauses: Pauses | None = None
    _timer: threading.Timer | None = None
    _capped: str = ''

    def cap(self, uuid: str, nodes: Collection[int]) -> None:
        """Limit a guest's bandwidth to a few percent, for a limited time.

        :param uuid: UUID of the guest.
        :param nodes: host NUMA nodes on which the bandwidth is limited.
        :raises NotCapped: if the guest cannot be capped; nothing is changed.
        """
        with self.changing:
            self.restore_limits()
            running = self.find(uuid)
            if running is None or not running.xml:
                raise NotCapped('it does not run')
            capped = make_capped_domain(running, nodes)
            if self.pauses is not None:
                self.pauses.record_cap(uuid)
            self._capped = uuid
            self._timer = threading.Timer(CAP_LIMIT_S, self.restore_limits)
            self._timer.daemon = True
            self._timer.start()
            self.report('start', uuid)
            try:
                self.engine.reconcile_guest(capped)
                return
            except _ERRORS as error:
                reason = str(error)
        self.restore_limits()
        raise NotCapped(reason)

    def restore_limits(self) -> None:
        """Restore the bandwidth limits of the capped guest; never raises."""
        with self.changing:
            uuid, self._capped = self._capped, ''
            timer, self._timer = self._timer, None
            if timer is not None:
                timer.cancel()
            if not uuid:
                return
            try:
                self._restore(uuid)
            except Exception as error:
                LOG.warning('ghsched: cannot restore the bandwidth limits of '
                            'guest %(uuid)s after a temporary cap; retrying '
                            'in the next periodic task: %(error)s',
                            {'uuid': uuid, 'error': error})
            self._report_end(uuid)

    def _restore(self, uuid: str) -> None:
        """Enforce the current bandwidth policy of a guest that was capped.

        If the guest has ended, its control group is removed.
        """
        running = self.find(uuid)
        if running is None or not running.xml:
            return
        engine = self.engine
        wanted, _problems = engine.make_wanted_state(
            [running], [naming.render_own_group_name(uuid)])
        if (wanted.cache is not None or engine.has_default_cap
                or running.shared_group):
            # Groups of other guests may be affected.
            engine.reconcile_groups()
        else:
            engine.run_reconcile(engine.root, engine.run_path, wanted)

    def _report_end(self, uuid: str) -> None:
        try:
            self.report('end', uuid)
        except Exception as error:
            LOG.warning('ghsched: the temporary bandwidth cap of guest '
                        '%(uuid)s has ended, but the notification cannot be '
                        'sent: %(error)s', {'uuid': uuid, 'error': error})

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

"""Hooks of nova-compute and ``ghsched-host``, by which features extend them.

The core knows no feature. It takes a list of features
(:mod:`ghsched_nova.features.declared_compute`), makes their hooks when
nova-compute starts, and calls these in the order of the list. No feature may
keep a host from reporting: what a hook raises then is logged and counted.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
import contextlib
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import logging
from pathlib import Path
import threading
from typing import Any
from typing import NamedTuple

from ghsched_nova.base import guest_changes
from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_nova.monitor import view
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import tree

LOG = logging.getLogger(__name__)

#: Maximum length of a report period in seconds. After a longer pause of
#: nova-compute, the earlier bandwidth is unknown.
PERIOD_MAX_S = 600.0
#: Seconds that a report waits until an earlier one has been observed.
OBSERVE_WAIT_S = 30.0
#: Maximum characters of a feature in the stats of a compute node, of which
#: Nova's database takes 65535.
MAX_STATS = 30000


@dataclass(frozen=True, kw_only=True)
class HostSnapshot:
    """State of a compute host at a periodic report of nova-compute.

    :param time: seconds since 1970.
    :param since: time of the previous report; None for the first report of
        the process, and for a report that a later one has overtaken.
    :param running: running domains.
    :param guests: all domains, running or not; None if they cannot be read.
    :param bandwidth: bandwidth since the previous report; None if unknown.
    :param not_held: reason by UUID of each guest whose bandwidth policy is not
        enforced.
    :param uncounted: reason by UUID of each guest whose guarantee Placement
        has not allocated.
    :param repairs: number of corrections of guests' settings since the
        previous report, by kind.
    :param offered: resource providers that were reported last, the compute
        node first; empty before the first report to Placement.
    :param numa_nodes: numbers of the host NUMA nodes.
    :param traits: traits of the compute node in Placement.
    :param resource_classes: classes of the compute node's inventories.
    :param results: results of the features that the observer needs, by name;
        without those that could not observe this snapshot.
    """

    time: float
    since: float | None = None
    running: Sequence[desired.Running] = ()
    guests: Sequence[desired.Running] | None = ()
    bandwidth: view.Snapshot | None = None
    not_held: Mapping[str, str] = field(default_factory=dict)
    uncounted: Mapping[str, str] = field(default_factory=dict)
    repairs: Mapping[str, int] = field(default_factory=dict)
    offered: Sequence[tree.WantedProvider] = ()
    numa_nodes: Sequence[int] = ()
    traits: frozenset[str] = frozenset()
    resource_classes: frozenset[str] = frozenset()
    results: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ComputeServices:
    """Functions and objects of nova-compute that features may use.

    :param section: the ``[ghsched]`` section of the configuration.
    :param state_path: Nova's directory for state files.
    :param host_name: name of the compute host.
    :param dedicated_cpus: CPUs of ``[compute]cpu_dedicated_set``.
    :param list_shared_cpus: function that returns the shared CPUs by host NUMA
        node.
    :param get_cpu_ratio: function that returns the maximum number of vCPUs per
        shared CPU, as last reported to Placement.
    :param engine: engine that enforces policies on this host.
    :param changing: lock that is held while the policy of a guest changes.
    :param list_running: function that returns all running domains.
    :param find_running: function that returns a running domain by its UUID.
    :param refresh_guest: function that shows all features a running guest
        whose policy or NUMA nodes were changed, given its UUID; never raises.
    :param notify: function that sends a notification, given its event type and
        payload.
    :param report_shared_groups: function that reports changed shared control
        groups to Placement, given a request context and an instance.
    :param virtapi: VirtAPI of Nova's driver.
    :param libvirt_host: ``nova.virt.libvirt.host.Host`` of Nova's driver.
    """

    section: Any
    state_path: Path
    host_name: str
    dedicated_cpus: frozenset[int]
    list_shared_cpus: Callable[[], Mapping[int, frozenset[int]]]
    get_cpu_ratio: Callable[[], float]
    engine: engine.HostEngine
    changing: contextlib.AbstractContextManager[Any]
    list_running: Callable[[], list[desired.Running]]
    find_running: Callable[[str], desired.Running | None]
    refresh_guest: Callable[[str], None]
    notify: Callable[[str, dict[str, Any]], None]
    report_shared_groups: Callable[[Any, Any], None]
    virtapi: Any
    libvirt_host: Any


@dataclass(frozen=True)
class StartingGuest:
    """Guest whose domain XML is rendered.

    :param host_nodes: host NUMA node of each guest NUMA node.
    :param libvirt_version: version of the host's libvirt.
    """

    policy: GuestPolicy
    host_nodes: Sequence[int]
    libvirt_version: tuple[int, ...]


class ComputeHooks:
    """Hooks by which a feature extends nova-compute; each does nothing here.
    """

    #: RPC endpoint that nova-compute serves; None for none.
    endpoint: Any = None

    def observe(self, snapshot: HostSnapshot) -> Any:
        """Note the state of the host at a periodic report of nova-compute.

        Snapshots come one at a time. Errors are logged by the caller.

        :returns: result for the features that observe the snapshot later.
        """

    def make_stats(self) -> Mapping[str, str]:
        """Return fields for the compute node's stats, after each snapshot."""
        return {}

    def make_diagnostics(self, guest: Any,
                         found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return fields for a guest's diagnostics.

        Errors are logged by the caller, who then omits the fields.

        :param guest: guest of nova.virt.libvirt.guest.
        :param found: diagnostics of the core and of earlier features.
        """
        return {}

    def describe_host(self, found: HostDescription) -> HostDescription:
        """Return the description of the host with what the feature offers.

        :param found: description by the core and by earlier features.
        """
        return found

    def render(self, xml: str, guest: StartingGuest) -> str:
        """Return a guest's domain XML with the settings of the feature.

        :raises PolicyError, DeviceNumaError: if this host cannot start the
            guest.
        """
        return xml

    def check_arrival(self, policy: GuestPolicy, emulator_policy: str | None,
                      has_shared_cpus: bool) -> None:
        """Refuse a live migration if a feature's policy cannot be kept here.

        :param emulator_policy: the guest's ``hw:emulator_threads_policy``.
        :param has_shared_cpus: whether ``[compute]cpu_shared_set`` is set.
        :raises PolicyError: with the reason.
        """

    def reconcile_guest(self, running: desired.Running,
                        has_arrived: bool = False) -> None:
        """Enforce the feature's part of a guest's policy on this host.

        This is called when the guest starts, arrives or is changed.

        :param has_arrived: whether a live migration has brought the guest.
        :raises PolicyError: if the host cannot enforce them.
        """

    def reconcile_guests(self, running: Sequence[desired.Running]
                         ) -> Iterable[str]:
        """Repair what the feature enforces of all guests' policies.

        This is called with each report of the host. Errors are logged by the
        caller.

        :returns: words for what was repaired, which are counted in a metric.
        """
        return ()


@dataclass(frozen=True, kw_only=True)
class ComputeFeature:
    """Feature that extends nova-compute.

    :param name: name of the folder in ``ghsched_nova.features``.
    :param hooks: function that makes the hooks of the feature.
    :param needs: names of earlier features whose results it observes.
    """

    name: str
    hooks: Callable[[ComputeServices], ComputeHooks]
    needs: tuple[str, ...] = ()


class HostGuests(NamedTuple):
    """Running guests of a host, with the configuration of nova-compute.

    :param section: the ``[ghsched]`` section.
    :param dedicated_cpus: CPUs of ``[compute]cpu_dedicated_set``.
    """

    section: Any
    dedicated_cpus: frozenset[int]
    running: Sequence[desired.Running]


class HostPart(NamedTuple):
    """Part of a host that ``ghsched-host`` keeps as policies of guests say.

    :param plan: function that returns the needed changes and makes none.
    :param apply: function that makes the changes, as root.
    """

    plan: Callable[[HostGuests], guest_changes.ChangeReport[Any]]
    apply: Callable[[HostGuests], guest_changes.ChangeReport[Any]]


class ComputeHookCaller:
    """Caller of the hooks of all features in nova-compute; thread-safe.

    :param features: features in the order of calls.
    """

    def __init__(self, features: Iterable[ComputeFeature],
                 services: ComputeServices) -> None:
        self._hooks = [(feature, feature.hooks(services))
                       for feature in features]
        self._observing = threading.Lock()
        self._last: float | None = None
        self._counting = threading.Lock()
        self._repairs: Counter[str] = Counter()
        #: Number of errors since nova-compute started, by feature and hook.
        self.failures: Counter[tuple[str, str]] = Counter()
        self._logged: dict[tuple[str, str], str] = {}

    @property
    def endpoints(self) -> list[Any]:
        """RPC endpoints of the features."""
        return [hooks.endpoint for _feature, hooks in self._hooks
                if hooks.endpoint is not None]

    def count_repairs(self, kinds: Iterable[str]) -> None:
        """Count corrections of guests' settings until the next snapshot.

        :param kinds: kind of each correction.
        """
        with self._counting:
            self._repairs.update(kinds)

    # -- reports --------------------------------------------------------------

    def observe(self,
                take: Callable[[], HostSnapshot]) -> None:
        """Show a snapshot of the host to all features; never raises.

        A report that would have to wait too long for an earlier one is not
        observed.

        :param take: function that takes the snapshot.
        """
        if not self._observing.acquire(timeout=OBSERVE_WAIT_S):
            LOG.warning('ghsched: features do not see this report of the '
                        'host, because they have been busy with an earlier '
                        'one for %d s; load and bursts have a gap',
                        OBSERVE_WAIT_S)
            return
        try:
            with self._logging_errors('core', 'take_snapshot'):
                self._observe_snapshot(take())
        finally:
            self._observing.release()

    def _observe_snapshot(self, snapshot: HostSnapshot) -> None:
        results: dict[str, Any] = {}
        snapshot = replace(
            snapshot, since=self._start_period(snapshot.time),
            repairs=self._take_repairs())
        for feature, hooks in self._hooks:
            with self._logging_errors(feature.name, 'observe'):
                results[feature.name] = hooks.observe(replace(
                    snapshot, results={name: results[name]
                                       for name in feature.needs
                                       if name in results}))

    def _start_period(self, now: float) -> float | None:
        """Return the start of the period that ends now.

        :param now: time of this report, in seconds since 1970.
        :returns: None if there is no period: for the first report, and for a
            report that is older than the last one.
        """
        last = self._last
        if last is not None and now <= last:
            return None
        self._last = now
        return last

    def _take_repairs(self) -> Mapping[str, int]:
        with self._counting:
            found, self._repairs = self._repairs, Counter()
        return found

    def add_stats(self, resources: dict[str, Any]) -> dict[str, Any]:
        """Add the stats of all features to a compute node's; never raises.

        :param resources: result of get_available_resource() of Nova's driver.
        :returns: the same ``resources``.
        """
        for feature, hooks in self._hooks:
            with self._logging_errors(feature.name, 'make_stats'):
                stats = hooks.make_stats()
                length = sum(len(key) + len(text)
                             for key, text in stats.items())
                if length > MAX_STATS:
                    raise ValueError(f'{length} characters for the stats of '
                                     f'the compute node (at most {MAX_STATS})')
                if stats:
                    resources['stats'] = {**(resources.get('stats') or {}),
                                          **stats}
        return resources

    def add_diagnostics(self, found: dict[str, Any],
                        guest: Any) -> dict[str, Any]:
        """Add the diagnostics of all features to a guest's; never raises.

        :param found: diagnostics of the core.
        :param guest: guest of nova.virt.libvirt.guest.
        """
        for feature, hooks in self._hooks:
            with self._logging_errors(feature.name, 'make_diagnostics'):
                found = {**found, **hooks.make_diagnostics(guest, found)}
        return found

    def describe_host(self, found: HostDescription) -> HostDescription:
        """Return the description of the host with what features offer.

        :param found: description by the core.
        """
        for _feature, hooks in self._hooks:
            found = hooks.describe_host(found)
        return found

    # -- guests ---------------------------------------------------------------

    def render(self, xml: str, guest: StartingGuest) -> str:
        """Return a guest's domain XML with the settings of all features.

        :raises PolicyError, DeviceNumaError: if this host cannot start the
            guest.
        """
        for _feature, hooks in self._hooks:
            xml = hooks.render(xml, guest)
        return xml

    def check_arrival(self, policy: GuestPolicy, emulator_policy: str | None,
                      has_shared_cpus: bool) -> None:
        """Refuse a live migration to this host that would harm the guest.

        :param emulator_policy: the guest's ``hw:emulator_threads_policy``.
        :param has_shared_cpus: whether ``[compute]cpu_shared_set`` is set.
        :raises PolicyError: with the reason.
        """
        for _feature, hooks in self._hooks:
            hooks.check_arrival(policy, emulator_policy, has_shared_cpus)

    def reconcile_guest(self, running: desired.Running,
                        has_arrived: bool = False) -> None:
        """Enforce all features' settings of a guest that starts or arrives.

        :param has_arrived: whether a live migration has brought the guest.
        :raises PolicyError: if the host cannot enforce one of them.
        """
        for _feature, hooks in self._hooks:
            hooks.reconcile_guest(running, has_arrived)

    def refresh_guest(self,
                      find: Callable[[], desired.Running | None]) -> None:
        """Show all features a running guest that was changed; never raises.

        :param find: function that returns the guest; None if it has stopped.
        """
        with self._logging_errors('core', 'refresh_guest'):
            if (running := find()) is None:
                return
            for feature, hooks in self._hooks:
                with self._logging_errors(feature.name, 'reconcile_guest'):
                    hooks.reconcile_guest(running)

    def reconcile_guests(self, running: Sequence[desired.Running]) -> None:
        """Enforce all features' settings of running domains; never raises."""
        for feature, hooks in self._hooks:
            with self._logging_errors(feature.name, 'reconcile_guests'):
                self.count_repairs(hooks.reconcile_guests(running))

    @contextlib.contextmanager
    def _logging_errors(self, feature: str, hook: str) -> Iterator[None]:
        """Log and count an error of a hook instead of raising it.

        An error that a hook raises each time is logged once.

        :param feature: name of the feature.
        """
        key = feature, hook
        try:
            yield
        except Exception as error:
            with self._counting:
                self.failures[key] += 1
                is_new = self._logged.get(key) != repr(error)
                self._logged[key] = repr(error)
            if is_new:
                LOG.warning(
                    'ghsched: cannot run hook %(hook)s of feature %(feature)s '
                    '(error %(count)d since nova-compute started); retrying '
                    'in the next periodic task: %(error)r',
                    {'hook': hook, 'feature': feature, 'error': error,
                     'count': self.failures[key]},
                    exc_info=not isinstance(error, OSError))
        else:
            self._logged.pop(key, None)

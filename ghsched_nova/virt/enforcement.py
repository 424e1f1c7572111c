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

"""Makes the host enforce the bandwidth policies of guests.

A policy is written into the guest's XML, and resctrl enforces it before the
guest's CPUs run: when the guest starts, when it has arrived by live migration,
and again with each periodic report.

After a reboot into another kernel a host may be unable to enforce policies
that it enforced before. ``[ghsched]unprotected_guests`` says whether guests
of the host then start. New guests and guests that arrive are refused in any
case: other hosts can take them.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import contextvars
from typing import Any

from nova.virt.libvirt import driver as libvirt_driver
from oslo_log import log as logging

from ghsched_nova.guest import memorytune
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_nova.nova_seams import shared
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import group_plan
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_nova.virt import libvirt_reader
from ghsched_nova.virt import refusal
from ghsched_placement.flavor import policy as policies

LOG = logging.getLogger(__name__)

#: Errors of a host that cannot enforce a policy that it enforced before.
UNPROTECTED_CAUSES = (
    resctrl_host.ResctrlUnavailable, resolve.PolicyRefused, fs.GroupError,
    desired.DomainError, memorytune.MemoryTuneError)

_arrives = contextvars.ContextVar('ghsched_guest_arrives', default=False)


@contextlib.contextmanager
def refusing_unprotected_guests() -> Iterator[None]:
    """Within this context, no guest may start without its bandwidth policy.

    :func:`may_start_unprotected` then returns False. This is also a decorator
        for methods that start guests which are new on this host.
    """
    token = _arrives.set(True)
    try:
        yield
    finally:
        _arrives.reset(token)


def may_start_unprotected(error: Exception, instance: Any) -> bool:
    """Return whether a guest may start without bandwidth limits.

    The option ``[ghsched]unprotected_guests`` decides. If the guest may start,
    an error is logged.

    :param error: reason why the guest's policy cannot be enforced.
    """
    if (_arrives.get() or not isinstance(error, UNPROTECTED_CAUSES)
            or shared.config().ghsched.unprotected_guests != 'start'):
        return False
    LOG.error('ghsched: cannot enforce the bandwidth policy of a guest; '
              'starting it unprotected because of '
              '[ghsched]unprotected_guests: %s',
              error, instance=instance)
    return True


class PolicyEnforcer:
    """Enforcement of the policies of this host's guests.

    :param host: engine that enforces policies on this host.
    :param hooks: caller of the hooks of all features.
    :param guests: reader of this host's guests.
    :param changing: lock that is held while the policy of a guest changes.
    """

    def __init__(self, host: engine.HostEngine,
                 hooks: compute_hooks.ComputeHookCaller,
                 guests: libvirt_reader.GuestReader,
                 changing: contextlib.AbstractContextManager[Any]) -> None:
        self._host = host
        self._hooks = hooks
        self._guests = guests
        self._changing = changing

    # -- all guests -----------------------------------------------------------

    def reconcile_all_guests(self) -> None:
        """Enforce the bandwidth policy of every running guest of this host.

        This is called at the start of nova-compute, and with each of its
        periodic reports to Placement. A guest whose policy cannot be enforced
        is logged and not stopped.
        """
        with self._changing:
            self._reconcile_resctrl()
        self._hooks.reconcile_guests(self._guests.running)

    def _reconcile_resctrl(self) -> None:
        try:
            problems = self._host.reconcile_groups(self._hooks.count_repairs)
        except Exception:
            # Whatever is wrong with resctrl, the host has to report.
            LOG.exception('ghsched: cannot enforce the bandwidth policies of '
                          'guests on this host; retrying in the next periodic '
                          'task')
            return
        if not problems:
            return
        guests = {guest.uuid: guest for guest
                  in self._guests.host.list_guests(only_running=True)}
        for problem in problems:
            guest = guests.get(problem.guest)
            # libvirt calls a guest running until its process has ended.
            if guest is None or problem.reason.endswith(
                    group_plan.NO_VCPU_THREADS):
                LOG.warning('ghsched: cannot enforce the bandwidth policy of '
                            'a guest; retrying in the next periodic task: %s',
                            problem)
            elif libvirt_reader.is_running(guest):
                LOG.error('ghsched: cannot enforce the bandwidth policy of '
                          'guest %(name)s; retrying in the next periodic '
                          'task: %(problem)s',
                          {'name': guest.name, 'problem': problem})

    # -- a guest starts -------------------------------------------------------

    def render_policy(self, xml: str, policy: policies.GuestPolicy,
                      nodes: Sequence[int], instance: Any) -> str:
        """Return a domain XML with a guest's policy and its bandwidth limits.

        If this host cannot enforce the limits, but may start the guest
        nevertheless, they are left out.

        :param nodes: host NUMA node of each guest NUMA node.
        """
        try:
            return self._host.domain_xml.render_policy(xml, policy, nodes)
        except UNPROTECTED_CAUSES as error:
            if not may_start_unprotected(error, instance):
                raise
            return self._host.domain_xml.render_policy_without_limits(
                xml, policy, nodes)

    def must_start_paused(self, xml: str) -> bool:
        """Return whether a guest must start paused until it is limited.

        A guest must not run before its bandwidth policy, or the default
        bandwidth cap of this host, is enforced.
        """
        return desired.may_have_policy(xml) or self._host.has_default_cap

    def launch(self, launch: Callable[..., Any], guest: Any, instance: Any,
               pause: bool = False) -> None:
        """Start a defined domain paused, limit its bandwidth, then resume it.

        Nova calls this after a soft reboot and after a cold snapshot.

        :param launch: Nova's ``Guest.launch``.
        :param pause: whether the domain is to stay paused.
        """
        if not self.must_start_paused(guest.get_xml_desc()):
            launch(pause=pause)
            return
        launch(pause=True)
        self.enforce_policy_or_stop(guest, instance)
        if not pause:
            guest.resume()

    def enforce_policy_or_stop(self, guest: Any, instance: Any) -> None:
        """Enforce a guest's bandwidth policy; stop the guest if that fails.

        A guest without a policy is not stopped, because it has no guarantee.

        :raises nova.exception.ComputeResourcesUnavailable: with the reason.
        """
        try:
            self._enforce_or_record_unprotected(guest, instance)
        except Exception as error:
            if not self._host.needs_group(desired.Running(
                    model.Domain(guest.uuid, guest.id, guest.name),
                    guest.get_xml_desc())):
                LOG.warning('ghsched: cannot apply the default bandwidth cap '
                            'to a guest without a bandwidth policy; the guest '
                            'runs uncapped: %s',
                            error, instance=instance)
                return
            _stop_guest(guest, instance)
            self._host.release_group(instance.uuid)
            if not isinstance(error, refusal.CANNOT_ENFORCE):
                raise
            raise refusal.log_refusal(error, instance) from error

    def _enforce_or_record_unprotected(self, guest: Any,
                                       instance: Any) -> None:
        """Enforce a bandwidth policy, or record that a guest is unprotected.

        If the guest must not start unprotected, an error is raised instead.
        Each periodic report of nova-compute retries the policies of recorded
        guests.
        """
        running = _parse_guest(guest)
        try:
            self._host.reconcile_guest(running)
        except UNPROTECTED_CAUSES as error:
            if not (self._host.needs_group(running)
                    and may_start_unprotected(error, instance)):
                raise
            self._host.not_held[instance.uuid] = str(error)
        self._hooks.reconcile_guest(running)

    # -- a guest has arrived --------------------------------------------------

    def enforce_after_migration(self, instance: Any) -> None:
        """Enforce a live-migrated guest's bandwidth policy; never raise.

        The guest already runs on this host. An error is therefore logged, and
        nova-compute's next periodic report retries. If libvirt creates the
        control group, the guest is capped from the start.
        """
        try:
            running = _parse_guest(
                self._guests.host.get_guest(instance))
            self._host.reconcile_guest(running)
            self._hooks.reconcile_guest(running, has_arrived=True)
        except Exception as error:
            self._host.not_held[instance.uuid] = str(error)
            LOG.error('ghsched: cannot enforce the bandwidth policy of guest '
                      '%(name)s after its live migration to this host; '
                      'retrying in the next periodic task: %(problem)s',
                      {'name': instance.name, 'problem': error},
                      instance=instance)
            # Features note it, and enforce what is theirs.
            with contextlib.suppress(Exception):
                self._hooks.reconcile_guest(_parse_guest(
                    self._guests.host.get_guest(instance)), has_arrived=True)


def _stop_guest(guest: Any, instance: Any) -> None:
    """Power off a guest that must not run.

    An error of libvirt is logged and not raised, because the caller raises the
    reason why the guest must not run.
    """
    try:
        guest.poweroff()
    except libvirt_driver.libvirt.libvirtError as error:
        LOG.warning('ghsched: cannot stop a guest whose bandwidth policy is '
                    'not enforced: %s', error, instance=instance)


def _parse_guest(guest: Any) -> desired.Running:
    """Return a running guest with its live XML, which is parsed.

    :param guest: guest of nova.virt.libvirt.guest.
    """
    return desired.parse_running_domain(guest.get_xml_desc(), guest.id)

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


"""Scheduling classes of guests' threads on this host, for the driver."""

from collections.abc import Callable
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oslo_log import log as logging

from ghsched_nova.guest import scheduling
from ghsched_nova.threads import engine
from ghsched_nova.threads import model
from ghsched_nova.threads import privileged
from ghsched_nova.virt import desired
from ghsched_placement import keys
from ghsched_placement.policy import GuestPolicy
from ghsched_placement.policy import PolicyError

LOG = logging.getLogger(__name__)

REALTIME = 'VCPU_REALTIME'


class ThreadKeeper:
    """Renders classes into the XML and keeps them true while guests run.

    :param section: ``conf.ghsched``.
    :param refused: why the kernel refuses a real-time class on this host;
        empty when it does not. Asked once.
    """

    def __init__(self, section: Any, refused: Callable[[], str] =
                 privileged.realtime_refused) -> None:
        self._section = section
        self._ask = refused
        self._refused: str | None = None

    def capabilities(self) -> frozenset[str]:
        """What of :data:`names.CAPABILITY_TRAITS` this host can hold."""
        return frozenset() if self._why_not() else frozenset({REALTIME})

    def render(self, xml: str, policy: GuestPolicy) -> str:
        """The domain XML with the classes that its flavor asks for.

        :raises PolicyError: when this host does not take them.
        """
        priority = policy.threads.highest_priority
        if priority > self._section.realtime_priority_max:
            raise PolicyError(
                _key_of(policy, priority).extra_spec,
                f'{priority} is above what this host allows '
                '([ghsched]realtime_priority_max)')
        return scheduling.render(xml, policy.threads)

    def reconcile(self, running: Iterable[desired.Running]) -> None:
        """Set what is not as the XML says, and log it; never raises."""
        try:
            report = engine.reconcile(wanted(running),
                                      Path(self._section.libvirt_run_path))
        except Exception:
            LOG.exception('ghsched: the scheduling classes of guests cannot '
                          'be checked')
            return
        for action in report.actions:
            LOG.warning('ghsched: guest %(uuid)s: %(what)s is set again: '
                        '%(reason)s', {'uuid': action.uuid,
                                       'what': action.what,
                                       'reason': action.reason})
        for problem in report.problems:
            LOG.error('ghsched: %s', problem)

    def _why_not(self) -> str:
        if not self._section.realtime_priority_max:
            return '[ghsched]realtime_priority_max is 0'
        if self._refused is None:
            try:
                self._refused = self._ask()
            except Exception as error:
                self._refused = f'it cannot be tried: {error}'
            if self._refused:
                LOG.info('ghsched: no real-time classes on this host: %s',
                         self._refused)
        return self._refused


def wanted(running: Iterable[desired.Running]) -> list[model.Guest]:
    """The guests whose threads have a class of their own."""
    return [guest for one in running if (guest := _guest(one)) is not None]


def _guest(running: desired.Running) -> model.Guest | None:
    # Few guests have a class, and to parse the XML of all costs.
    if 'sched ' not in running.xml:
        return None
    found = scheduling.read(running.root)
    roles = {model.Role('vcpu', number): one
             for number, one in found.vcpus.items()}
    roles |= {model.Role('iothread', number): one
              for number, one in found.iothreads.items()}
    if found.emulator is not None:
        roles[model.Role('emulator')] = found.emulator
    return model.Guest(running.domain.uuid, running.domain.name, roles)


def _key_of(policy: GuestPolicy, priority: int) -> keys.Key:
    """The key that asks for the highest priority."""
    threads = policy.threads
    for one, key in ((threads.vcpus, keys.VCPU_PRIORITY),
                     (threads.emulator, keys.EMULATOR_PRIORITY)):
        if one is not None and one.priority == priority:
            return key
    return keys.IOTHREAD_PRIORITY

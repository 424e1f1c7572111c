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

"""Checks of the scheduling classes of a guest's threads."""

import os
from typing import Any

from aio.lab import REPORT
from e2e_guest_room import GuestRoom

REALTIME = 'CUSTOM_GHSCHED_VCPU_REALTIME'


class Scheduling(GuestRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def prepare(self) -> None:
        self.lab.flavor('batch', hw__numa_nodes=1,
                        ghsched__vcpu_scheduler='batch')
        self.lab.flavor('rr10', hw__numa_nodes=1, hw__cpu_policy='dedicated',
                        hw__emulator_threads_policy='share',
                        ghsched__vcpu_scheduler='rr',
                        ghsched__vcpu_priority=10)
        self.lab.flavor('rr60', hw__numa_nodes=1, hw__cpu_policy='dedicated',
                        hw__emulator_threads_policy='share',
                        ghsched__vcpu_scheduler='rr',
                        ghsched__vcpu_priority=60)

    def test_scheduling_class(self) -> None:
        """A class of the flavor is in the XML, holds, and comes back."""
        server = self._active(self.lab.boot('batch', 'batch'))
        self.checks.equal('<vcpusched>', self._vcpusched(server), [
            {'vcpus': '0', 'scheduler': 'batch'}])
        thread, = self.lab.vcpu_threads(server)
        self.checks.equal('class of vCPU 0', os.sched_getscheduler(thread),
                          os.SCHED_BATCH)
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
        self.lab.until(
            lambda: os.sched_getscheduler(thread) == os.SCHED_BATCH, REPORT,
            'the class is not set again')

    def test_real_time(self) -> None:
        """rr on a dedicated CPU; not above what the host allows."""
        self.checks.holds('trait', REALTIME in self.lab.traits(
            self.lab.providers()[0]), REALTIME)
        with self._options(('compute', 'cpu_dedicated_set', '0'),
                           ('compute', 'cpu_shared_set', '1')):
            server = self._active(self.lab.boot('rr', 'rr10'))
            self.lab.console(server)    # until the guest is ready
            thread, = self.lab.vcpu_threads(server)
            self.checks.equal(
                'class and priority of vCPU 0',
                (os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK,
                 os.sched_getparam(thread).sched_priority),
                (os.SCHED_RR, 10))
            self.checks.equal('CPUs of vCPU 0',
                              os.sched_getaffinity(thread), {0})
            self.lab.until(
                lambda: os.sched_getscheduler(thread)
                & os.SCHED_RESET_ON_FORK, REPORT,
                'threads that vCPU 0 makes would be of its class')
            self.lab.delete(server)
            self._refused_by_host('rr60', 'is above what this host allows')
        with self._options(('compute', 'cpu_dedicated_set', '0-1')):
            self._refused_by_host('rr10', 'would have no host CPUs other than')

    def _refused_by_host(self, flavor: str, reason: str) -> None:
        with self.lab.log_of('nova-compute') as log:
            server = self.lab.boot('refused', flavor)
            self.checks.equal('status', server.status, 'ERROR')
            self.checks.holds('log of nova-compute', log.lines(reason),
                              reason)
        self.lab.delete(server)

    def _vcpusched(self, server: Any) -> list[dict[str, str]]:
        return [dict(one.attrib) for one
                in self.lab.domain_xml(server).iter('vcpusched')]

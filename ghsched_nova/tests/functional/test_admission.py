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


"""Deadline requests that flavors may make, tried on the kernel of this
machine.
"""

import errno
import os
from pathlib import Path
import random
import subprocess
import sys
import time


from ghsched_nova.features.real_time import deadline
from ghsched_placement.features.real_time.scheduling import DEADLINE_SHARE
from ghsched_placement.features.real_time.scheduling import Scheduling
from ghsched_placement.features.real_time.scheduling import ThreadPolicy
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base

FLAVOR = {'hw:cpu_policy': 'dedicated', 'hw:emulator_threads_policy': 'share',
          'ghsched:vcpu_scheduler': 'deadline'}
CALLS = 400

#: Others may have the budget of the machine for a moment, in seconds.
_PATIENCE = 60.0
#: The kernel keeps that of a thread that has ended for a period at most.
_LONGEST_PERIOD = 4.2


def deadline_threads() -> set[int]:
    """All threads under deadline (the policy in proc_pid_stat(5))."""
    found = set()
    for path in Path('/proc').glob('[0-9]*/task/*/stat'):
        try:
            fields = path.read_text(errors='replace').rpartition(')')[2]
        except OSError:
            continue
        if fields.split()[38] == str(deadline.NUMBER):
            found.add(int(path.parent.name))
    return found


class AdmissionTest(base.TestCase):
    """Threads under deadline, one for each CPU, as Placement counts them by
    PCPU.
    """

    def setUp(self):
        super().setUp()
        if not os.environ.get('GHSCHED_TEST_DEADLINE'):
            # Whoever else is under deadline on the machine takes part in it.
            self.skipTest('set GHSCHED_TEST_DEADLINE=1, on an idle machine')
        self.pids = [self.sleeper() for _cpu in range(os.cpu_count() or 1)]

    def sleeper(self):
        process = subprocess.Popen(
            [sys.executable, '-c', 'import sys; sys.stdin.read()'],
            stdin=subprocess.PIPE)
        self.addCleanup(process.communicate)
        return process.pid

    def admitted(self, pid, wanted):
        """The kernel's answer once nobody else is under deadline."""
        until = time.monotonic() + _PATIENCE
        alone = None
        while True:
            error = deadline.try_deadline_scheduling(pid, wanted)
            if error in (errno.EPERM, errno.ENOSYS):
                self.skipTest('the kernel refuses deadline here: '
                              + deadline.explain_scheduling_errno(error))
            others = deadline_threads() - {*self.pids, pid}
            now = time.monotonic()
            alone = None if others else alone or now
            if error != errno.EBUSY or (
                    alone and now - alone > 2 * _LONGEST_PERIOD):
                return error
            if now > until:
                self.skipTest('others hold the budget of this machine')
            time.sleep(0.1)

    def flavors(self, chance):
        """Times that a flavor may have, the longest among them."""
        period = chance.choice([100, 10000, 4194304,
                                chance.randint(100, 4194304)])
        runtime = chance.choice([period * DEADLINE_SHARE // 100,
                                 chance.randint(2, period)])
        times = {'ghsched:vcpu_runtime_us': str(runtime),
                 'ghsched:vcpu_deadline_us': str(
                     chance.randint(runtime, period)),
                 'ghsched:vcpu_period_us': str(period)}
        try:
            return policy.parse_policy(
                FLAVOR | times, 1).get_part(ThreadPolicy).vcpus
        except policy.PolicyError:
            return self.flavors(chance)

    def test_the_kernel_admits_what_flavors_may_ask_for(self):
        chance = random.Random(13)  # noqa: S311
        for call in range(CALLS):
            wanted = self.flavors(chance)
            pid = self.pids[call % len(self.pids)]
            self.assertEqual(0, self.admitted(pid, wanted), str(wanted))
            self.assertEqual(wanted, deadline.read_deadline_scheduling(pid))

    def test_the_kernel_refuses_a_guest_more_than_there_are_cpus(self):
        runtime = Path('/proc/sys/kernel/sched_rt_runtime_us').read_text()
        if runtime.strip() == '-1':
            self.skipTest('the kernel admits anything')
        most = Scheduling('deadline', None, 1000 * DEADLINE_SHARE, 100000,
                          100000)
        for pid in self.pids:
            self.assertEqual(0, self.admitted(pid, most))
        # What is left of all CPUs together may do for one more each 18 CPUs.
        more = [deadline.try_deadline_scheduling(self.sleeper(), most)
                for _number in range(1 + len(self.pids) // 18)]
        self.assertEqual(errno.EBUSY, more[-1])

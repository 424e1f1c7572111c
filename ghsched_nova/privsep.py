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


"""The privileged half of nova-compute that ghsched needs.

Files of resctrl belong to root and are writable for their owner (the kernel
makes them with mode 0644), and the lock on the mount point needs no more than
to open it. But the kernel makes the top directory and ``mon_groups`` below it
with mode 0555 (``kernfs_create_root`` of Linux), so not even their owner makes
a control group there without CAP_DAC_OVERRIDE. That is all that the daemon has
of root's capabilities; it needs none to read the names of QEMU's threads in
/proc. Files of /proc/irq are root's likewise (kernel/irq/proc.c makes them
with mode 0644).
"""

from oslo_privsep import capabilities
from oslo_privsep import priv_context

context = priv_context.PrivContext(
    'ghsched_nova',
    cfg_section='ghsched_privsep',
    pypath=f'{__name__}.context',
    capabilities=[capabilities.CAP_DAC_OVERRIDE],
)

#: Sets scheduling classes of QEMU's threads, which belong to another user
#: (sched_setscheduler(2)), and does nothing else.
threads = priv_context.PrivContext(
    'ghsched_nova',
    cfg_section='ghsched_threads_privsep',
    pypath=f'{__name__}.threads',
    capabilities=[capabilities.CAP_SYS_NICE],
)

#: Binds and moves the memory of QEMU, which belongs to another user
#: (move_pages(2), ptrace(2)), and writes ``cpuset.mems`` of its groups.
memory = priv_context.PrivContext(
    'ghsched_nova',
    cfg_section='ghsched_memory_privsep',
    pypath=f'{__name__}.memory',
    capabilities=[capabilities.CAP_DAC_OVERRIDE,
                  capabilities.CAP_SYS_NICE,
                  capabilities.CAP_SYS_PTRACE],
)

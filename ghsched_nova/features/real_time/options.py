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

"""Options of scheduling classes and interrupts of guests."""

from oslo_config import cfg
from oslo_config import types

OPTS: list[cfg.Opt] = [
    cfg.IntOpt(
        'realtime_priority_max', default=49, min=0, max=99,
        help='Maximum real-time priority of a guest '
             '(ghsched:vcpu_priority and the like). Threaded interrupt '
             'handlers of the host have 50: a guest above them can keep the '
             'host from serving its devices. With 0 the host takes no '
             'real-time guests. '
             'Used by nova-compute.'),
    cfg.BoolOpt(
        'deadline_guests', default=False,
        help='Whether guests may have the class deadline '
             '(ghsched:vcpu_scheduler). It runs before every priority, '
             'interrupt handlers included, for the runtime that the flavor '
             'specifies. The kernel accepts it only if each CPU of '
             '[compute]cpu_dedicated_set is an exclusive cpuset of its own, '
             'or if sched_rt_runtime_us is -1; nova-compute tests this. '
             'Used by nova-compute.'),
    cfg.IntOpt(
        'realtime_shared_percent', default=0, min=0, max=100,
        help='Percent of what the kernel leaves to real-time threads '
             '(sched_rt_runtime_us) that vCPUs may take of the CPUs which '
             'guests share on each NUMA node (ghsched:vcpu_scheduler with '
             'hw:cpu_policy=shared). Placement counts it as '
             'CUSTOM_RT_CPU_PERMILLE. Such a vCPU runs before all other '
             'guests on these CPUs. The kernel limits those of the class '
             'deadline to their runtime; it does not limit those of fifo and '
             'rr. Used by nova-compute.'),
    cfg.ListOpt(
        'irq_bypass', default=['auto'],
        item_type=types.String(choices=[
            ('auto', 'what nova-compute detects'),
            ('none', 'nothing, whatever is detected'),
            ('gicv4', 'GICv4: vLPI'), ('gicv4.1', 'GICv4.1: vLPI and vSGI'),
            ('posted', 'posted interrupts of Intel'),
            ('avic', 'AVIC of AMD')]),
        help='How interrupts of passthrough devices reach guests without '
             'the hypervisor on this host (ghsched:irq_bypass). Detected from '
             'the parameters of KVM and the IOMMUs (x86) and from the log of '
             'the kernel (Arm). Set it if the user of nova-compute may not '
             'read that log, or if it has been rotated. Used by '
             'nova-compute.'),
]

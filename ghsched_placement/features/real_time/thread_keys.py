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

"""Extra specs of the scheduling classes of a guest's threads.

``ghsched:vcpu_scheduler``, which other features read as well, and
``ghsched:lock_memory`` are in :mod:`ghsched_placement.flavor.keys`.
"""

from ghsched_placement.flavor import keys

#: Host CPUs that no guest has for itself, as a value of an extra spec.
HOUSEKEEPING = 'housekeeping'

VCPU_PRIORITY = keys.Key(
    name='vcpu_priority', title='vCPU real-time priority',
    kind='int', per_node=False, minimum=1, maximum=99,
    default_text='1',
    summary='Priority of the vCPU threads under fifo or rr; the higher value '
            'wins.',
    details='A host refuses priorities above its '
            '[ghsched]realtime_priority_max: threaded interrupt handlers of '
            'the host have 50, and a guest above them can starve the devices '
            'that it waits for.')

VCPU_RUNTIME_US = keys.Key(
    name='vcpu_runtime_us', title='vCPU runtime (microseconds)',
    kind='int', per_node=False, minimum=2,
    maximum=4194304, default_text='none; deadline needs it',
    summary='Microseconds that a vCPU under deadline may run in each period.',
    details='The kernel holds a vCPU to it. At most the share of the period '
            'that every kernel leaves to such threads by default, 90 %. With '
            'hw:cpu_policy=shared it is also for fifo and rr, which need it '
            'then: Placement counts it on the host NUMA node '
            '(CUSTOM_RT_CPU_PERMILLE), and the kernel does not hold the vCPU '
            'to it.')

VCPU_PERIOD_US = keys.Key(
    name='vcpu_period_us', title='vCPU period (microseconds)',
    kind='int', per_node=False, minimum=100,
    maximum=4194304, default_text='none; deadline needs it',
    summary='Period of a vCPU under deadline, in microseconds; on shared CPUs '
            'of one under fifo or rr, too.')

VCPU_DEADLINE_US = keys.Key(
    name='vcpu_deadline_us', title='vCPU deadline (microseconds)',
    kind='int', per_node=False, minimum=2,
    maximum=4194304, default_text='the period',
    summary='Microseconds from the beginning of a period in which a vCPU '
            'under deadline has had its runtime.')

VCPU_SCHEDULER_MASK = keys.Key(
    name='vcpu_scheduler_mask', title='vCPUs with the scheduling class',
    kind='vcpus', per_node=False,
    default_text='all vCPUs',
    summary='The vCPUs that ghsched:vcpu_scheduler is for, as 2-3, or as '
            '^0-1 for all others.')

EMULATOR_SCHEDULER = keys.Key(
    name='emulator_scheduler', title='Emulator scheduling class',
    kind='enum', per_node=False,
    default_text="the kernel's own, other", choices=keys.SCHEDULERS,
    summary="Scheduling class of QEMU's main thread on the host.",
    details='With fifo or rr it must not run on the CPUs of the vCPUs: set '
            'hw:emulator_threads_policy.')

EMULATOR_PRIORITY = keys.Key(
    name='emulator_priority', title='Emulator real-time priority',
    kind='int', per_node=False, minimum=1,
    maximum=99, default_text='1',
    summary="Priority of QEMU's main thread under fifo or rr.")

IOTHREAD_SCHEDULER = keys.Key(
    name='iothread_scheduler', title='I/O thread scheduling class',
    kind='enum', per_node=False,
    default_text="the kernel's own, other", choices=keys.SCHEDULERS,
    summary='Scheduling class of the I/O threads of the guest, where Nova '
            'gives it some.')

IOTHREAD_PRIORITY = keys.Key(
    name='iothread_priority', title='I/O thread real-time priority',
    kind='int', per_node=False, minimum=1,
    maximum=99, default_text='1',
    summary='Priority of the I/O threads under fifo or rr.')

IRQ_BYPASS = keys.Key(
    name='irq_bypass', title='Interrupt bypass',
    kind='enum', per_node=False,
    default_text='whatever the host does',
    choices=(keys.REQUIRED, keys.PREFERRED),
    summary='Whether interrupts of passthrough devices reach the guest '
            'without the hypervisor (GICv4, posted interrupts, AVIC).',
    details='With required only hosts are chosen whose KVM does that. With '
            'either, the vCPUs need CPUs of their own '
            '(hw:cpu_policy=dedicated), because a vCPU that moves costs its '
            'interrupts a detour, and QEMU needs others beside them '
            '(hw:emulator_threads_policy): its main thread and I/O threads '
            'are kept off the CPUs of the vCPUs. Where a host has none for '
            'them, required refuses the guest.')

IRQ_AFFINITY = keys.Key(
    name='irq_affinity', title='CPUs for interrupts',
    kind='enum', per_node=False,
    default_text='wherever the kernel sends them', choices=(HOUSEKEEPING,),
    summary='Which CPUs of the host handle interrupts of passthrough devices '
            'that do not bypass the hypervisor.',
    details='With housekeeping those of the NUMA node of the device that are '
            'neither in [compute]cpu_dedicated_set nor isolated, so that no '
            'vCPU with a CPU of its own is interrupted for another guest. '
            'nova-compute sets it with each report of resources, because the '
            'driver in the guest makes new interrupts when it likes.')

#: All keys that the feature reads, in the order of the reference.
KEYS: tuple[keys.Key, ...] = (
    keys.VCPU_SCHEDULER, VCPU_PRIORITY, VCPU_RUNTIME_US, VCPU_PERIOD_US,
    VCPU_DEADLINE_US, VCPU_SCHEDULER_MASK, EMULATOR_SCHEDULER,
    EMULATOR_PRIORITY, IOTHREAD_SCHEDULER, IOTHREAD_PRIORITY,
    keys.LOCK_MEMORY, IRQ_BYPASS, IRQ_AFFINITY)

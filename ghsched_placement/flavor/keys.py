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

"""Table of all ``ghsched:`` extra specs of flavors.

The parser (:mod:`ghsched_placement.flavor.policy`), Nova's API validators
(:mod:`ghsched_nova.api.extra_specs`) and the generated reference page all
read this one table.
"""

from dataclasses import dataclass
from typing import Literal

NAMESPACE = 'ghsched'

#: Nova's own key for the number of guest NUMA nodes.
NUMA_NODES = 'hw:numa_nodes'


@dataclass(frozen=True)
class Key:
    """Definition of a ghsched extra spec: name, type, range, default and help.

    :param name: name without the prefix ``ghsched:``.
    :param title: short title, shown by Horizon.
    :param kind: ``int``, ``bool``, ``enum``, ``name``, ``vcpus`` (a list of
        vCPUs, such as ``2-3`` or ``^0-1``), ``classes`` (vCPUs by name, such
        as ``NAME:0-3,NAME:4-7``) or ``devices`` (numbers of devices by PCI
        alias, such as ``ALIAS:COUNT,ALIAS:COUNT``).
    :param per_node: whether ``ghsched:<name>.N`` can set it for guest NUMA
        node N alone.
    :param summary: one sentence, shown by the API and in the reference.
    :param default_text: description of the default, if the key is absent.
    :param minimum: lowest value of an ``int`` key, inclusive.
    :param maximum: highest value of an ``int`` key, inclusive.
    :param choices: values of an ``enum`` key.
    :param details: facts that an admin needs before using it.
    :param per_class: whether ``ghsched:<name>.CLASS`` can set it for a class
        of :data:`VCPU_CLASSES` alone.
    """

    name: str
    title: str
    kind: Literal['int', 'bool', 'enum', 'name', 'vcpus', 'classes', 'devices']
    per_node: bool
    summary: str
    default_text: str
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    details: str = ''
    per_class: bool = False

    @property
    def extra_spec(self) -> str:
        """Full name of the extra spec, such as ``ghsched:mem_bw_min``."""
        return f'{NAMESPACE}:{self.name}'

    def get_node_extra_spec(self, node: int) -> str:
        """Return the extra spec's name for one guest NUMA node.

        The name is such as ``ghsched:mem_bw_min.1``.

        :param node: number of the guest NUMA node.
        """
        return f'{self.extra_spec}.{node}'


VCPU_CLASSES = Key(
    name='vcpu_classes', title='vCPU classes',
    kind='classes', per_node=False, default_text='none',
    summary='Sets of vCPUs with memory bandwidth of their own, as NAME:VCPUS '
            'with a list such as 0-3; several are separated by commas.',
    details='Each of the bandwidth keys takes the name of a class after a '
            'dot, as ghsched:mem_bw_min.latency=30; without one it is for '
            'the vCPUs that are not named, and for the other threads of QEMU. '
            'At most four names, of lower-case letters, digits and '
            'underscores. A class with a bandwidth key is a control group of '
            'its own, on each guest NUMA node where it has vCPUs, and '
            'Placement counts what the classes of a guest node are '
            'guaranteed together. Needs hw:numa_nodes; cannot be combined '
            'with ghsched:numa=auto, ghsched:mem_bw_burst or '
            'ghsched:l3_ways. Such a guest shares no control group with '
            'other guests.')

MEM_BW_MIN = Key(
    name='mem_bw_min', title='Memory bandwidth, minimum',
    kind='int', per_node=True, per_class=True, minimum=0, maximum=100,
    default_text='0, no guarantee',
    summary='Guaranteed memory bandwidth, in percent of what one host NUMA '
            'node can deliver in theory.',
    details='A reservation: Placement counts it on the host NUMA node that '
            'backs the guest node, and the host raises the priority of the '
            'guest while it gets less.')

MEM_BW_BURST = Key(
    name='mem_bw_burst', title='Memory bandwidth, burst',
    kind='int', per_node=True, minimum=0, maximum=100,
    default_text='0, no burst',
    summary='Memory bandwidth beyond ghsched:mem_bw_min that the guest gets '
            'in all but a small part of the time, in percent of what one '
            'host NUMA node can deliver in theory.',
    details='Counted on the host NUMA node like a guarantee, but '
            'oversubscribed: a host promises more of it in all than it has, '
            'by what its guests have really used; see "Bursts" in the manual. '
            'With ghsched:mem_bw_min it must not exceed ghsched:mem_bw_max. '
            'A running guest cannot be given another.')

MEM_BW_MAX = Key(
    name='mem_bw_max', title='Memory bandwidth, maximum',
    kind='int', per_node=True, per_class=True, minimum=1, maximum=100,
    default_text='100, no cap',
    summary='Cap on memory bandwidth, in percent of what one host NUMA node '
            'can deliver in theory.',
    details='Rounded up to the next step that the host can hold; '
            '"ghsched explain" shows both. Must not be below '
            'ghsched:mem_bw_min.')

MEM_BW_HARDLIMIT = Key(
    name='mem_bw_hardlimit', title='Memory bandwidth, hard limit',
    kind='bool', per_node=True, per_class=True,
    default_text='true',
    summary='Whether the cap holds even while the host NUMA node has '
            'bandwidth to spare.',
    details='With false the guest may exceed ghsched:mem_bw_max as long as '
            'nobody else wants the bandwidth; only hosts that can do that '
            'are chosen. It is always written to the host explicitly, '
            'because the defaults of the hardware differ.')

MEM_BW_PRIORITY = Key(
    name='mem_bw_priority', title='Memory bandwidth, priority',
    kind='int', per_node=True, per_class=True, minimum=0, maximum=7,
    default_text="the host's own default",
    summary='Priority of the guest when memory bandwidth is short; the '
            'higher value wins.')

L3_WAYS = Key(
    name='l3_ways', title='L3 cache ways',
    kind='int', per_node=True, minimum=1, maximum=64,
    default_text='none; the guest uses the ways that are left to all',
    summary='Ways of the L3 cache that the guest has to itself, in each L3 '
            'of the host NUMA node that backs the guest node.',
    details='A reservation: Placement counts the ways of each host NUMA node, '
            'and the kernel keeps all other guests, and the host itself, out '
            'of them (Intel CAT, AMD QoS, the cache portions of MPAM). Some '
            'ways are always left to all: [ghsched]l3_ways_shared, and those '
            'that devices write into. The guest takes a control group. A '
            'running guest cannot be given others.')

MONITOR = Key(
    name='monitor', title='Measure memory bandwidth',
    kind='bool', per_node=False, default_text='false',
    summary='Measure the memory bandwidth of the guest even when it has no '
            'limit.',
    details='Takes a monitoring group, which hosts have many of, and no '
            'control group.')

#: Values that require or prefer a property of the guest, or do neither.
REQUIRED = 'required'
PREFERRED = 'preferred'
NONE = 'none'

#: Host CPUs that no guest has for itself, as a value of an extra spec.
HOUSEKEEPING = 'housekeeping'

DEVICE_NUMA = Key(
    name='device_numa', title='NUMA node of devices',
    kind='enum', per_node=False, default_text='none',
    choices=(REQUIRED, PREFERRED, NONE),
    summary='Whether the guest sees the NUMA node of its passthrough '
            'devices.',
    details='With required every device must be on a host NUMA node that '
            'backs a guest NUMA node, and a guest for which that is not so is '
            'refused. With preferred such a device is left without a node. '
            'Needs a guest NUMA topology and the machine type q35 (x86) or '
            'virt (Arm).')

VFS = Key(
    name='vfs', title='SR-IOV VFs',
    kind='devices', per_node=True, default_text='none',
    summary='SR-IOV VFs from the host NUMA node that backs a guest NUMA node, '
            'as ALIAS:COUNT with a name of [pci]alias; several are separated '
            'by commas.',
    details='Without a guest NUMA node the VFs are spread evenly over the '
            'guest nodes that have no key of their own, the first of them '
            'get what is left over. The flavor must say hw:numa_nodes or '
            'ghsched:numa=auto when the guest has more than one node. With '
            'auto the numbers are for the whole guest. Placement gives the '
            'VFs, so [pci]report_in_placement and '
            '[filter_scheduler]pci_in_placement must be on.')

VFS_LOCALITY = Key(
    name='vfs_locality', title='Locality of VFs',
    kind='enum', per_node=False,
    default_text='node with ghsched:device_numa=required, else any',
    choices=('node', 'socket', 'any'),
    summary='How far a VF of ghsched:vfs may be from its guest NUMA node.',
    details='With node it is on the host NUMA node that backs its guest '
            'node; with socket it may be on another node of the same socket; '
            'with any, anywhere on the host. The nearest that a host can give '
            'is taken.')

#: Schedulers of libvirt's <vcpusched>, <emulatorsched> and <iothreadsched>,
#: and the default of the kernel (sched(7)).
SCHEDULERS = ('fifo', 'rr', 'batch', 'idle', 'other')

VCPU_SCHEDULER = Key(
    name='vcpu_scheduler', title='vCPU scheduling class',
    kind='enum', per_node=False,
    default_text="the kernel's own, other",
    choices=(*SCHEDULERS, 'deadline'),
    summary='Scheduling class of the vCPU threads on the host.',
    details='With fifo and rr a vCPU runs before every thread of another '
            'class, so they need CPUs of their own (hw:cpu_policy=dedicated) '
            'and something left for QEMU itself: hw:emulator_threads_policy, '
            'or vCPUs that ghsched:vcpu_scheduler_mask leaves out. With '
            'hw:cpu_policy=shared they need a time that can be counted, '
            'ghsched:vcpu_runtime_us of each ghsched:vcpu_period_us, and '
            'hw:numa_nodes. Cannot be combined with hw:cpu_realtime, which '
            'sets fifo with the one priority of the host. deadline needs the '
            'same, and a host that offers it; see ghsched:vcpu_runtime_us.')

VCPU_PRIORITY = Key(
    name='vcpu_priority', title='vCPU real-time priority',
    kind='int', per_node=False, minimum=1, maximum=99,
    default_text='1',
    summary='Priority of the vCPU threads under fifo or rr; the higher value '
            'wins.',
    details='A host refuses priorities above its '
            '[ghsched]realtime_priority_max: threaded interrupt handlers of '
            'the host have 50, and a guest above them can starve the devices '
            'that it waits for.')

VCPU_RUNTIME_US = Key(
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

VCPU_PERIOD_US = Key(
    name='vcpu_period_us', title='vCPU period (microseconds)',
    kind='int', per_node=False, minimum=100,
    maximum=4194304, default_text='none; deadline needs it',
    summary='Period of a vCPU under deadline, in microseconds; on shared CPUs '
            'of one under fifo or rr, too.')

VCPU_DEADLINE_US = Key(
    name='vcpu_deadline_us', title='vCPU deadline (microseconds)',
    kind='int', per_node=False, minimum=2,
    maximum=4194304, default_text='the period',
    summary='Microseconds from the beginning of a period in which a vCPU '
            'under deadline has had its runtime.')

VCPU_SCHEDULER_MASK = Key(
    name='vcpu_scheduler_mask', title='vCPUs with the scheduling class',
    kind='vcpus', per_node=False,
    default_text='all vCPUs',
    summary='The vCPUs that ghsched:vcpu_scheduler is for, as 2-3, or as '
            '^0-1 for all others.')

EMULATOR_SCHEDULER = Key(
    name='emulator_scheduler', title='Emulator scheduling class',
    kind='enum', per_node=False,
    default_text="the kernel's own, other", choices=SCHEDULERS,
    summary="Scheduling class of QEMU's main thread on the host.",
    details='With fifo or rr it must not run on the CPUs of the vCPUs: set '
            'hw:emulator_threads_policy.')

EMULATOR_PRIORITY = Key(
    name='emulator_priority', title='Emulator real-time priority',
    kind='int', per_node=False, minimum=1,
    maximum=99, default_text='1',
    summary="Priority of QEMU's main thread under fifo or rr.")

IOTHREAD_SCHEDULER = Key(
    name='iothread_scheduler', title='I/O thread scheduling class',
    kind='enum', per_node=False,
    default_text="the kernel's own, other", choices=SCHEDULERS,
    summary='Scheduling class of the I/O threads of the guest, where Nova '
            'gives it some.')

IOTHREAD_PRIORITY = Key(
    name='iothread_priority', title='I/O thread real-time priority',
    kind='int', per_node=False, minimum=1,
    maximum=99, default_text='1',
    summary='Priority of the I/O threads under fifo or rr.')

LOCK_MEMORY = Key(
    name='lock_memory', title='Lock memory',
    kind='bool', per_node=False, default_text='false',
    summary="Lock all of the guest's memory on the host (mlock), so that it "
            'is never swapped out or merged.',
    details='The whole of QEMU is locked, which is more than the memory of '
            'the flavor; keep some in reserved_host_memory_mb.')

IRQ_BYPASS = Key(
    name='irq_bypass', title='Interrupt bypass',
    kind='enum', per_node=False,
    default_text='whatever the host does', choices=(REQUIRED, PREFERRED),
    summary='Whether interrupts of passthrough devices reach the guest '
            'without the hypervisor (GICv4, posted interrupts, AVIC).',
    details='With required only hosts are chosen whose KVM does that. With '
            'either, the vCPUs need CPUs of their own '
            '(hw:cpu_policy=dedicated), because a vCPU that moves costs its '
            'interrupts a detour, and QEMU needs others beside them '
            '(hw:emulator_threads_policy): its main thread and I/O threads '
            'are kept off the CPUs of the vCPUs. Where a host has none for '
            'them, required refuses the guest.')

IRQ_AFFINITY = Key(
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

AFFINITY_GROUP = Key(
    name='affinity_group', title='Affinity group',
    kind='name', per_node=False,
    default_text='none; guests that talk to each other are still found by '
                 'what is measured',
    summary='Name of a group of guests of one project that should be on the '
            'same host NUMA node.',
    details='A wish, for the rebalancing of guests that run: it is followed '
            'as long as the node has room and is no bottleneck, and never '
            'against what Placement has allocated. Groups of different '
            'projects with the same name are different groups. 1 to 63 '
            'letters, digits, dots, hyphens and underscores.')

GUEST_TOPOLOGY = Key(
    name='guest_topology', title='Guest topology',
    kind='enum', per_node=False,
    default_text='what Nova gives it', choices=('host',),
    summary='Whether the guest sees the part of the host that backs it.',
    details='With host the guest sees the distances of its NUMA nodes, '
            'latency and bandwidth of their memory where the firmware of the '
            'host tells (bandwidth is what the guest is guaranteed, or else '
            'its cap; a latency that the firmware does not tell is that of '
            'the slowest known node, or else 100 ns), sockets, dies, '
            'clusters, cores and threads as its vCPUs are pinned, on x86 a '
            'CPU cache, and its own policy as an OEM string of SMBIOS. vCPUs '
            'that are not pinned to one CPU each are cores of one die for '
            'each guest NUMA node. Needs a guest NUMA topology, and cannot be '
            'combined with hw:cpu_sockets, hw:cpu_cores or hw:cpu_threads. '
            'A guest keeps what it saw at its start until it is started '
            'again, on whichever host it is.')

GUEST_CHANNEL = Key(
    name='guest_channel', title='Channel between guest and host',
    kind='enum', per_node=False, default_text=NONE,
    choices=(NONE, 'read', 'write'),
    summary='Whether the guest has a channel on which the host tells it its '
            'policy and what becomes of it.',
    details='A virtio-serial port, org.openstack.ghsched.0. With read the '
            'host writes one line of JSON when the guest starts, when its '
            'policy or what is enforced of it changes, and when it was moved. '
            'With write the guest may also tell how much it stalls, and move '
            'its vCPUs between its own classes (ghsched:vcpu_classes).')

PV_HINTS = Key(
    name='pv_hints', title='Paravirtual hints',
    kind='enum', per_node=False, default_text=NONE,
    choices=(NONE, 'dedicated'),
    summary='Whether KVM announces to the guest kernel that each vCPU has a '
            'host CPU of its own.',
    details='With dedicated KVM gives the guest hint-dedicated (spinlocks and '
            'TLB flushes as on bare metal, and an idle vCPU polls for a while '
            'before it halts) and poll-control (the host does not poll once '
            'more). Needs hw:cpu_policy=dedicated and '
            'hw:emulator_threads_policy, and an x86 host. Cannot be combined '
            'with ghsched:vcpu_scheduler=deadline, whose runtime an idle vCPU '
            'would use up, nor with hide_hypervisor_id, which hides the hints '
            'from the guest.')

CPU_CACHE = Key(
    name='cpu_cache', title='CPUs of few L3 caches',
    kind='enum', per_node=False, default_text=NONE,
    choices=(NONE, 'prefer', 'require'),
    summary='Whether the vCPUs of a guest NUMA node get CPUs that share as '
            'few L3 caches as possible.',
    details='With prefer those of one L3 where they suffice, else of two, and '
            'so on; with require never of more L3 than on an empty host. '
            'vCPUs that share their CPUs need a guest NUMA topology.')

#: Value of :data:`NUMA`.
AUTO = 'auto'

NUMA = Key(
    name='numa', title='NUMA nodes chosen by the scheduler',
    kind='enum', per_node=False,
    default_text='the number of NUMA nodes that the flavor or image sets',
    choices=(AUTO,),
    summary='Whether the scheduler chooses the number of guest NUMA nodes.',
    details='With auto the guest gets one NUMA node if any host has one with '
            'room for it, else the fewest nodes that a host has room for, up '
            'to ghsched:numa_max. CPUs and memory are split evenly, so only '
            'numbers are tried that divide both. Takes the place of '
            'hw:numa_nodes. Keys of guest NUMA nodes hold for each of them '
            'and take no number. The VFs of ghsched:vfs are spread over the '
            'chosen nodes. Cannot be combined with hw:numa_cpus.N or '
            'hw:numa_mem.N. A live migration keeps the number; a resize, cold '
            'migration, evacuation or unshelve chooses again. Servers of one '
            'request all get the same number.')

NUMA_MAX = Key(
    name='numa_max', title='NUMA nodes, most',
    kind='int', per_node=False, minimum=1, maximum=16,
    default_text='2',
    summary='Highest number of guest NUMA nodes that the scheduler may choose '
            'with ghsched:numa=auto.')

NUMA_KEEP = Key(
    name='numa_keep', title='Keep the number of NUMA nodes',
    kind='bool', per_node=False, default_text='false',
    summary='Whether a server with ghsched:numa=auto keeps its number of NUMA '
            'nodes when it is resized, migrated, evacuated or unshelved.')

KEYS: tuple[Key, ...] = (
    MEM_BW_MIN, MEM_BW_BURST, MEM_BW_MAX, MEM_BW_HARDLIMIT, MEM_BW_PRIORITY,
    L3_WAYS, VCPU_CLASSES, MONITOR, NUMA, NUMA_MAX, NUMA_KEEP, DEVICE_NUMA,
    VFS, VFS_LOCALITY, VCPU_SCHEDULER, VCPU_PRIORITY, VCPU_RUNTIME_US,
    VCPU_PERIOD_US, VCPU_DEADLINE_US, VCPU_SCHEDULER_MASK, EMULATOR_SCHEDULER,
    EMULATOR_PRIORITY, IOTHREAD_SCHEDULER, IOTHREAD_PRIORITY, LOCK_MEMORY,
    IRQ_BYPASS, IRQ_AFFINITY, AFFINITY_GROUP, GUEST_TOPOLOGY, GUEST_CHANNEL,
    PV_HINTS, CPU_CACHE)

BY_NAME: dict[str, Key] = {key.name: key for key in KEYS}

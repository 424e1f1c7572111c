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

"""``ghsched:`` extra specs of flavors that the core or several features read.

Those of one feature are in its folder;
:data:`ghsched_placement.flavor.key_names.KEYS` has all. The parser
(:mod:`ghsched_placement.flavor.policy`), Nova's API validators
(:mod:`ghsched_nova.api.extra_specs`) and the generated reference page read
that one table.
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

LOCK_MEMORY = Key(
    name='lock_memory', title='Lock memory',
    kind='bool', per_node=False, default_text='false',
    summary="Lock all of the guest's memory on the host (mlock), so that it "
            'is never swapped out or merged.',
    details='The whole of QEMU is locked, which is more than the memory of '
            'the flavor; keep some in reserved_host_memory_mb.')

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

#: Keys that the core reads, and keys of guest NUMA nodes that a feature
#: enforces. ``key_names.KEYS`` has those of the features, too.
CORE: tuple[Key, ...] = (
    MEM_BW_MIN, MEM_BW_BURST, MEM_BW_MAX, MEM_BW_HARDLIMIT, MEM_BW_PRIORITY,
    L3_WAYS, VCPU_CLASSES, MONITOR, NUMA, NUMA_MAX, NUMA_KEEP, DEVICE_NUMA,
    VFS, VFS_LOCALITY)

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

"""Options of the ``[ghsched]`` section.

The same file is read by nova-compute and nova-scheduler; the help of each
option says which of the two uses it. Imports nothing of Nova, so that the
sample file and the reference can be generated without it.
"""

import copy
from typing import Any

from oslo_config import cfg
from oslo_config import types

from ghsched_placement import bottleneck
from ghsched_placement import burst
from ghsched_placement import tree

GROUP = cfg.OptGroup(
    'ghsched', title='Memory bandwidth and NUMA-local resources',
    help='Guarantees and limits of memory bandwidth for guests.')

#: What ghsched_nova.privsep names as its section.
PRIVSEP_GROUP = cfg.OptGroup(
    'ghsched_privsep', title='The privileged helper of nova-compute',
    help='How nova-compute starts the helper that writes to resctrl.')

_percent = types.Integer(min=0, max=100)

THREADS_GROUP = cfg.OptGroup(
    'ghsched_threads_privsep',
    title='The helper of nova-compute that sets scheduling classes',
    help='Options of oslo.privsep for what sets the scheduling class of '
         'threads of guests. It needs CAP_SYS_NICE and no other capability.')

MEMORY_GROUP = cfg.OptGroup(
    'ghsched_memory_privsep',
    title='The helper of nova-compute that moves memory of guests',
    help='Options of oslo.privsep for what moves the memory of a running '
         'guest to another NUMA node. It needs CAP_SYS_NICE, CAP_SYS_PTRACE '
         'and CAP_DAC_OVERRIDE.')

CONNECTIONS_GROUP = cfg.OptGroup(
    'ghsched_connections_privsep',
    title='The helper of nova-compute that reads connections of guests',
    help='Options of oslo.privsep for what reads /proc/net/nf_conntrack, with '
         '[ghsched]affinity_source = conntrack. It runs as root and needs no '
         'capability.')

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'resctrl_path', default='/sys/fs/resctrl',
        help='Where the resctrl file system is mounted. libvirt uses '
             '/sys/fs/resctrl and nothing else, so another path is of use '
             'for tests only. Used by nova-compute.'),
    cfg.ListOpt(
        'resctrl_magic', item_type=types.Integer(), default=[0x7655821],
        help='Types of file system (f_type of statfs(2)) that the privileged '
             'helper takes for resctrl; 124082209 is the kernel\'s. A test '
             'host with ghsched-resctrl-emulator, which is FUSE, adds '
             '1702057286. Used by the helper of nova-compute.'),
    cfg.StrOpt(
        'sysfs_path', default='/sys',
        help='Where sysfs is mounted. Used by nova-compute, to learn which '
             'cache belongs to which NUMA node.'),
    cfg.Opt(
        'reserved_bandwidth', type=types.Dict(_percent),
        default={tree.ELSEWHERE: tree.UNDELIVERED},
        help='Percent of each NUMA node\'s theoretical memory bandwidth that '
             'is not guaranteed to guests, as NODE:PERCENT,NODE:PERCENT: the '
             'part that memory does not deliver and the part that the host '
             'itself uses. * stands for the nodes left out; 0 percent if * '
             'is left out too. Measured memory delivers about 80 percent of '
             'its theoretical bandwidth, less with many writes: ghsched-bench '
             'run loaded-latency measures it on a host. Nodes whose guests '
             'hold more reserve only the part that guests leave. Used by '
             'nova-compute.'),
    cfg.FloatOpt(
        'bandwidth_allocation_ratio', default=1.0, min=0.1, max=100.0,
        help='How many times over the bandwidth of a NUMA node may be '
             'guaranteed. With more than 1.0 a guarantee is no longer one '
             'when all guests are busy at once. Used by nova-compute.'),
    cfg.Opt(
        'bandwidth_bursts', type=types.Dict(_percent), default={},
        help='Percent of each NUMA node\'s memory bandwidth that is kept for '
             'bursts of guests (ghsched:mem_bw_burst) and promised more than '
             'once, by what they have really used, as '
             'NODE:PERCENT,NODE:PERCENT. Nodes left out take no guest with '
             'one, nor do hosts that cannot guarantee bandwidth: nothing '
             'would protect the guarantees of others. Used by nova-compute.'),
    cfg.IntOpt(
        'burst_window', default=24, min=2, max=24 * 35,
        help='Hours over which the use of bursts is measured. Before a node '
             'has been measured for twice as long nothing is promised twice '
             'there, and no more is promised than every hour of the window '
             'allows. '
             'A day has the hours in it that are busiest every day; take 168 '
             'where they differ from day to day of a week. Used by '
             'nova-compute.'),
    cfg.FloatOpt(
        'burst_percentile', default=99.0, min=50.0, max=99.999,
        help='Percent of the time in which what is kept for bursts has to '
             'suffice, of periods of [DEFAULT]update_resources_interval, a '
             'minute by default. What guests do within a period is not seen. '
             'With more the tail counts, which few periods show. Used by '
             'nova-compute.'),
    cfg.FloatOpt(
        'burst_correlation', default=0.3, min=0.0, max=1.0,
        help='How much guests are taken to be busy at the same time, at '
             'least: with 0 each by itself, with 1 all at once. What is '
             'measured counts where it is more. Guests that come are seldom '
             'strangers to those that are there: they serve the same users '
             'or the same clock. A day shows too few of the times when they '
             'are busy together to rely on less, unless guests are known '
             'to have nothing in common. With more than 0 the guests of one '
             'project count as replicas of one service, which may all be '
             'busy at once: a node whose guests are all of one project '
             'promises no more than what is kept for bursts. Used by '
             'nova-compute.'),
    cfg.FloatOpt(
        'burst_safety', default=1.2, min=1.0, max=10.0,
        help='How many times as busy as has been measured guests are taken '
             'to be, for those that come and for days to come. Used by '
             'nova-compute.'),
    cfg.FloatOpt(
        'burst_ratio_max', default=3.0, min=1.0, max=10.0,
        help='How many times what is kept for bursts is promised at most, '
             'whatever has been measured. The kernel holds this part of each '
             'burst in any case, as a guarantee, so that all of them '
             'together never take what other guests are guaranteed. Used by '
             'nova-compute and ghsched-host; must not be lowered while '
             'guests with bursts run.'),
    cfg.ListOpt(
        'nova_fixes', default=['auto'],
        help='Repairs of defects in Nova that are applied to servers whose '
             'flavor has a key of ghsched: "auto" is what the release of Nova '
             'lacks, "none" is nothing, names are those that "ghsched-status '
             'fixes" lists. Used by nova-api, nova-scheduler and '
             'nova-compute.'),
    cfg.StrOpt(
        'bandwidth_accounting', default='min',
        choices=[('min', 'count what is guaranteed (ghsched:mem_bw_min)'),
                 ('max', 'count the cap (ghsched:mem_bw_max), so that caps '
                         'never add up to more than a node has')],
        help='What a guest takes from the bandwidth of a NUMA node. Used by '
             'nova-scheduler and nova-compute; must be the same on all '
             'hosts.'),
    cfg.IntOpt(
        'reserved_control_groups', default=0, min=0,
        help='How many of the host\'s resctrl control groups are kept for '
             'other users than guests; the default group of the kernel is '
             'never counted. Used by nova-compute.'),
    cfg.IntOpt(
        'l3_ways_shared', default=2, min=1,
        help='How many ways of each L3 are left to all, at least: the host, '
             'and guests without ghsched:l3_ways. Ways that devices write '
             'into are never given to a guest. Used by nova-compute.'),
    cfg.BoolOpt(
        'group_sharing', default=False,
        help='Whether guests that ask for the same memory bandwidth on the '
             'same NUMA nodes of the host have one resctrl control group '
             'together. What is guaranteed to them, and what they are held '
             'to, then holds for all of them together: one may use what '
             'another leaves. A guest keeps the kind of group that it was '
             'started with. Used by nova-compute.'),
    cfg.IntOpt(
        'default_bandwidth_max', default=100, min=1, max=100,
        help='Percent of the bandwidth of each NUMA node that the guests '
             'without a ghsched:mem_bw_* key are held to, all together, so '
             'that they do not starve those with one; 100 is no cap. With '
             'less they have one control group, which is not offered to '
             'other guests then. Used by nova-compute and ghsched-host.'),
    cfg.Opt(
        'node_bandwidth', type=types.Dict(types.Integer(min=1)), default={},
        help='Theoretical memory bandwidth of each NUMA node in MB/s (10^6 '
             'bytes per second), as NODE:MB,NODE:MB. Used by nova-compute '
             'where a cap is a bandwidth and no percentage (AMD, and Intel '
             'with the mount option mba_MBps); what is left out is taken '
             'from the firmware\'s table (HMAT) if there is one.'),
    cfg.StrOpt(
        'bandwidth_cap',
        choices=[('hard', 'a cap holds while the node has bandwidth to '
                          'spare'),
                 ('soft', 'a guest may exceed its cap while nobody else '
                          'wants the bandwidth')],
        help='How the hardware holds a cap, where the kernel does not tell '
             '(MPAM of the mainline kernel, NVIDIA, openEuler 22.03). '
             'Without it such a host takes no guest with a cap. Used by '
             'nova-compute.'),
    cfg.StrOpt(
        'memorytune_attributes', default='auto',
        choices=[('auto', 'ask libvirt by defining a domain and reading it '
                          'back, and the kernel whether libvirt can read '
                          'what is there'),
                 ('extended', 'libvirt keeps min_bandwidth, hardlimit and '
                              'priority'),
                 ('basic', 'libvirt keeps bandwidth alone'),
                 ('none', 'libvirt cannot use the resctrl of this host')],
        help='Which attributes of <memorytune> the host\'s libvirt keeps. '
             'What libvirt does not keep, nova-compute writes to resctrl '
             'itself; with none it makes control groups and monitoring '
             'groups as well. '
             'Upstream libvirt cannot use a kernel that has more lines than '
             'MB and L3 in its schemata, as openEuler\'s has. Used by '
             'nova-compute.'),
    cfg.StrOpt(
        'device_numa_renderer', default='auto',
        choices=[('auto', 'ask libvirt by defining a domain and reading it '
                          'back'),
                 ('element', 'libvirt keeps <numa node="N"/> in a device'),
                 ('expander', 'put devices behind a pcie-expander-bus')],
        help='How a guest is told the NUMA node of a passthrough device '
             '(ghsched:device_numa). Used by nova-compute.'),
    cfg.BoolOpt(
        'device_numa_nearest', default=False,
        help='Under ghsched:device_numa=preferred, whether a device of a host '
             'NUMA node that backs no guest NUMA node is shown on the guest '
             'node that is nearest to it. Used by nova-compute.'),
    cfg.IntOpt(
        'device_numa_spare_ports', default=1, min=0, max=8,
        help='How many ports per guest NUMA node are kept free for '
             'passthrough ports that are attached to a running guest with '
             'ghsched:device_numa. Used by nova-compute, where libvirt would '
             'not take them for other devices.'),
    cfg.StrOpt(
        'libvirt_run_path', default='/run/libvirt/qemu',
        help='Where libvirt keeps the process numbers of its guests. Used by '
             'nova-compute, to find the threads of a guest.'),
    cfg.StrOpt(
        'control_threads', default='vcpus',
        choices=[('vcpus', 'the vCPU threads alone'),
                 ('all', 'its emulator, I/O and vhost threads as well')],
        help='Which threads of a guest are put into its control group and '
             'kept there. With all, what a guest\'s disks and network '
             'adapters cost counts as its own bandwidth. Used by '
             'nova-compute and ghsched-host.'),
    cfg.BoolOpt(
        'control_devices', default=False,
        help='Whether what the passthrough devices of a guest read and write '
             'in memory counts as its bandwidth, and its limits hold for it. '
             'Their IOMMU groups are put into its control group and kept '
             'there. Only openEuler\'s 6.6 kernel can do that; on others this '
             'does nothing. Used by nova-compute and ghsched-host.'),
    cfg.IntOpt(
        'realtime_priority_max', default=49, min=0, max=99,
        help='The highest real-time priority that a guest may have '
             '(ghsched:vcpu_priority and the like). Threaded interrupt '
             'handlers of the host have 50: a guest above them can keep the '
             'host from serving its devices. 0 takes no real-time guests. '
             'Used by nova-compute.'),
    cfg.BoolOpt(
        'deadline_guests', default=False,
        help='Whether guests may have the class deadline '
             '(ghsched:vcpu_scheduler). It runs before every priority, '
             'interrupt handlers included, for the runtime that the flavor '
             'says. The kernel takes it only where each CPU of '
             '[compute]cpu_dedicated_set is an exclusive cpuset of its own, '
             'or where sched_rt_runtime_us is -1; nova-compute tries that. '
             'Used by nova-compute.'),
    cfg.IntOpt(
        'realtime_shared_percent', default=0, min=0, max=100,
        help='Percent of what the kernel leaves to real-time threads '
             '(sched_rt_runtime_us) that vCPUs may take of the CPUs which '
             'guests share on each NUMA node (ghsched:vcpu_scheduler with '
             'hw:cpu_policy=shared). Placement counts it as '
             'CUSTOM_RT_CPU_PERMILLE. Such a vCPU runs before all other '
             'guests on these CPUs; the kernel holds those of the class '
             'deadline to their runtime, and those of fifo and rr to '
             'nothing. Used by nova-compute.'),
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
             'the kernel (Arm), which the user of nova-compute may not be '
             'allowed to read, or which has been rotated: say it here then. '
             'Used by nova-compute.'),
    cfg.IntOpt(
        'max_candidates_per_host', default=64, min=1,
        help='How many ways to give NUMA nodes of one host to those of the '
             'guest, among Placement\'s allocation candidates and with room '
             'for it, are tried before the host is passed over. Used by '
             'nova-scheduler.'),
    cfg.BoolOpt(
        'scheduler_index', default=True,
        help='Whether nova-scheduler proposes hosts by an index of what they '
             'have reported, and asks Placement about those alone. A request '
             'then costs the same in a cloud of any size. What the index '
             'finds nothing for, and what it is not for, is searched for in '
             'the whole cloud, so no request is refused by it. Used by '
             'nova-scheduler, when it is started as ghsched-nova-scheduler.'),
    cfg.IntOpt(
        'scheduler_index_hosts', default=100, min=0,
        help='How many hosts a cloud has at least for scheduler_index to have '
             'an effect. In a smaller one a whole search costs little, and '
             'weighs all hosts. Used by nova-scheduler.'),
    cfg.StrOpt(
        'scheduler_metrics_directory', default='',
        help='Where each nova-scheduler process writes a file of Prometheus '
             'metrics of the index, for the textfile collector of '
             'node_exporter. Empty for no files. Used by nova-scheduler with '
             'scheduler_index.'),
    cfg.FloatOpt(
        'fragmentation_weight_multiplier', default=1.0,
        help='How much GhschedFragmentationWeigher counts beside other '
             'weighers. More than 0 fills NUMA nodes that are in use and '
             'keeps whole ones, and VFs, for guests that need them; less '
             'than 0 spreads guests; 0 turns the weigher off. The same name '
             'in the metadata of an aggregate holds for its hosts. Used by '
             'nova-scheduler.'),
    cfg.FloatOpt(
        'gradient_weight_multiplier', default=1.0,
        help='How much GhschedGradientWeigher counts beside other weighers. '
             'More than 0 puts a guest where it leaves least that the guests '
             'which usually come cannot use; 0 turns the weigher off, for '
             'the choice of NUMA nodes within a host as well. The same name '
             'in the metadata of an aggregate holds for its hosts. Used by '
             'nova-scheduler.'),
    cfg.FloatOpt(
        'bandwidth_weight_multiplier', default=1.0,
        deprecated_for_removal=True,
        deprecated_reason='GhschedLoadWeigher counts memory bandwidth '
                          'together with CPUs and I/O.',
        help='How much GhschedBandwidthWeigher counts beside other weighers. '
             'More than 0 avoids hosts whose memory bandwidth is nearly used '
             'up; 0 turns the weigher off. The same name in the metadata of '
             'an aggregate holds for its hosts. Used by nova-scheduler.'),
    cfg.StrOpt(
        'affinity_source',
        help='What counts the bytes that guests of the host send to each '
             'other, for guests to be brought near each other: the name of '
             'an entry point of the group ghsched.affinity_sources. '
             'conntrack reads the kernel\'s table of connections, which '
             'counts with net.netfilter.nf_conntrack_acct=1. Nothing is '
             'counted without it, nor what VFs send. Used by nova-compute.'),
    cfg.FloatOpt(
        'affinity_half_life', default=300.0, min=1.0,
        help='Seconds in which what guests have said to each other counts '
             'half, when they are silent. Used by nova-compute.'),
    cfg.FloatOpt(
        'affinity_delay', default=900.0, min=0.0,
        help='Seconds for which guests that say less than 1 MB/s to each '
             'other still belong together. Used by nova-compute.'),
    cfg.IntOpt(
        'node_move_rate', default=1024, min=0,
        help='MiB of memory per second that are moved at most when a running '
             'guest is moved to another NUMA node of its host; 0 for no '
             'limit. Used by nova-compute.'),
    cfg.FloatOpt(
        'load_period', default=30.0, min=0.0,
        help='Seconds over which load and waiting of NUMA nodes are measured '
             'at least. They are measured when nova-compute reports its '
             'resources, [DEFAULT]update_resources_interval; a report that '
             'comes earlier repeats what was measured before. Used by '
             'nova-compute.'),
    cfg.FloatOpt(
        'load_smoothing', default=120.0, min=0.0,
        help='Seconds after which what was measured before counts for 37 '
             'percent (1/e) in a figure of load or waiting; 0 reports each '
             'measurement as it is. With less, a short burst makes a node a '
             'bottleneck. Used by nova-compute.'),
    cfg.Opt(
        'bottleneck_thresholds',
        type=types.Dict(types.Integer(min=0)), default={},
        help='Percent from which on a NUMA node is a bottleneck, as '
             'NAME:PERCENT,NAME:PERCENT, of cpu_load (90 by default), '
             'cpu_wait (10), memory_load (80), memory_wait (5), io_load (95) '
             'and io_wait (800: eight requests that wait at a device). With '
             '0 a figure makes no bottleneck. Used by nova-compute, and by '
             'nova-scheduler to compare nodes that are none.'),
    cfg.BoolOpt(
        'load_placement', default=True,
        help='Whether a guest gets, of the NUMA nodes of a host that have '
             'what it asks for, those with the least load and waiting that '
             'are no bottleneck. Where all are alike, they take turns, '
             'unless [compute]packing_host_numa_cells_allocation_strategy '
             'is on. Hosts that do not report their load give the nodes of '
             'the lowest numbers. Used by nova-scheduler.'),
    cfg.FloatOpt(
        'load_weight_multiplier', default=1.0,
        help='How much GhschedLoadWeigher counts beside other weighers. More '
             'than 0 avoids hosts whose NUMA nodes are busy or are waited '
             'for; 0 turns the weigher off. The same name in the metadata of '
             'an aggregate holds for its hosts. Used by nova-scheduler.'),
    cfg.IntOpt(
        'load_max_age', default=180, min=1,
        help='Seconds after which a measured load is not heard any more. '
             'Used by nova-scheduler.'),
    cfg.IntOpt(
        'bottleneck_hysteresis', default=20, min=0, max=99,
        help='Percent of a threshold by which a figure has to fall below it '
             'before the node is no bottleneck any more. Used by '
             'nova-compute.'),
]


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options of ``[ghsched]`` with a configuration; idempotent.
    """
    if GROUP.name in conf:
        return
    # Values that are set at run time are stored in the group, and ConfigOpts
    # makes only a shallow copy of it.
    conf.register_group(copy.deepcopy(GROUP))
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options of ghsched by group (entry point
    ``oslo.config.opts``).
    """
    return [(GROUP, OPTS),
            (PRIVSEP_GROUP, _privsep_opts(['CAP_DAC_OVERRIDE'])),
            (THREADS_GROUP, _privsep_opts(['CAP_SYS_NICE'])),
            (MEMORY_GROUP, _privsep_opts([
                'CAP_DAC_OVERRIDE', 'CAP_SYS_NICE', 'CAP_SYS_PTRACE'])),
            (CONNECTIONS_GROUP, _privsep_opts([]))]


def _privsep_opts(needed: list[str]) -> list[cfg.Opt]:
    """Return the options that oslo.privsep registers for one of ghsched's
    helpers.

    The import is local, because only nova-compute needs oslo.privsep
    otherwise.

    :param needed: default capabilities of the helper.
    """
    from oslo_privsep import priv_context
    opts: list[cfg.Opt] = copy.deepcopy(priv_context.OPTS)
    cfg.set_defaults(opts, capabilities=needed)
    return opts


def tree_config(section: Any) -> tree.Config:
    """Return the options that shape the provider tree.

    :param section: ``conf.ghsched``.
    :raises ValueError: if a key of ``reserved_bandwidth`` is not a NUMA node
        number.
    """
    return tree.Config(
        reserved_bandwidth=by_node(section, 'reserved_bandwidth'),
        reserved_elsewhere=section.reserved_bandwidth.get(tree.ELSEWHERE, 0),
        allocation_ratio=section.bandwidth_allocation_ratio,
        # If caps are counted, they include the bursts.
        bursts=by_node(section, 'bandwidth_bursts')
        if section.bandwidth_accounting == 'min' else {})


def burst_limits(section: Any) -> burst.Limits:
    """Return the options that limit how much burst bandwidth may be promised.
    """
    return burst.Limits(
        section.burst_window, section.burst_percentile,
        section.burst_correlation, section.burst_safety,
        section.burst_ratio_max)


def bottleneck_limits(section: Any) -> bottleneck.Limits:
    """Return the thresholds at which a NUMA node becomes a bottleneck.

    :raises ValueError: names the unknown figure.
    """
    try:
        return bottleneck.make_limits(section.bottleneck_thresholds,
                                      section.bottleneck_hysteresis)
    except ValueError as error:
        raise ValueError(
            f'[ghsched]bottleneck_thresholds: {error}') from error


def check(section: Any) -> None:
    """Parse all options of ``conf.ghsched`` once, so that errors appear at
    startup.

    oslo.config parses a value when it is first read. For some options that is
    the first report: nova-compute would run, but its host would be missing in
    Placement.

    :raises ValueError: names the invalid option.
    """
    for option in OPTS:
        try:
            section[option.dest]
        except ValueError as error:
            raise ValueError(f'[ghsched]{option.name}: {error}') from error
    for name in ('reserved_bandwidth', 'node_bandwidth',
                 'bandwidth_bursts'):
        by_node(section, name)
    bottleneck_limits(section)


def by_node(section: Any, option: str) -> dict[int, int]:
    """Return the values of an option by NUMA node number.

    The value for all other nodes (``*`` of ``reserved_bandwidth``) is left
    out.

    :raises ValueError: if a key is not a NUMA node number.
    """
    found = {}
    for node, number in section[option].items():
        if node == tree.ELSEWHERE and option == 'reserved_bandwidth':
            continue
        if not str(node).isdecimal():
            raise ValueError(
                f'[ghsched]{option}: {node!r} is no NUMA node number; write '
                'it as 0:10,1:10')
        found[int(node)] = int(number)
    return found

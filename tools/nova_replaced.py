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

"""Functions and tables of Nova that features of ghsched replace at run time.

The list needs no Nova, so the manual has it. Repairs are listed in
:data:`ghsched_nova.nova_fixes.rows.FIXES`.
"""

from dataclasses import dataclass

from ghsched_nova.nova_seams import registry


@dataclass(frozen=True)
class Replaced:
    """Function or table of Nova that a feature of ghsched replaces or extends.

    :param name: dotted name in Nova.
    :param processes: services in which it is replaced or extended.
    :param reason: the feature, and why Nova has no other way for it.
    """

    name: str
    processes: tuple[str, ...]
    reason: str


_API, _SCHEDULER, _COMPUTE = registry.PROCESSES

REPLACED = (
    Replaced('nova.compute.utils.update_pci_request_with_placement_'
             'allocations', (_COMPUTE,),
             'Notes the providers of a guest for its claim; Nova hands them '
             'to this function, and not to the claim.'),
    Replaced('nova.limit.placement._get_deltas', (_API,),
             'Limits of a project count bandwidth (Nova 34); Nova has no '
             'hook for the usage of a request.'),
    Replaced('nova.limit.placement._get_deltas_by_flavor', (_API,),
             'The same in Nova 31 to 33.'),
    Replaced('nova.objects.flavor.Flavor.save_extra_specs', (_API,),
             'The extra specs of a flavor are checked together; validators '
             'get one key at a time.'),
    Replaced('nova.objects.numa.NUMATopology.obj_from_db_obj', (_SCHEDULER,),
             'Speed, only with ``[ghsched]scheduler_index``.'),
    Replaced('nova.config.parse_args', (_COMPUTE,),
             '``ghsched-nova-compute`` refuses another driver before it waits '
             'for nova-conductor; Nova has no hook there.'),
    Replaced('nova.pci.request.get_pci_requests_from_flavor',
             registry.PROCESSES,
             '``ghsched:vfs`` becomes PCI requests; Nova makes them of its '
             'own key alone.'),
    Replaced('nova.scheduler.request_filter.ALL_REQUEST_FILTERS',
             (_SCHEDULER,), 'The request filter (the list gets one '
             'function); Nova has no option for request filters.'),
    Replaced('nova.service.SERVICE_MANAGERS', (_SCHEDULER, _COMPUTE),
             'The managers of ``ghsched-nova-scheduler`` and '
             '``ghsched-nova-compute`` (one entry of the table each); Nova '
             'has no option for its managers.'),
    Replaced('nova.virt.ghsched', (_COMPUTE,),
             'The name under which Nova imports the driver; Nova looks for '
             'drivers in no other package.'),
    Replaced('nova.virt.hardware.numa_fit_instance_to_host',
             (_SCHEDULER, _COMPUTE),
             'Guest nodes are fitted on host nodes in the order that was '
             'chosen, and on CPUs of few L3 caches; limits of Nova name '
             'neither.'),
    Replaced('nova.virt.libvirt.guest.Guest.launch', (_COMPUTE,),
             'A soft reboot starts a guest once its policy holds (of one '
             'object); Nova starts it inside a wait.'),
    Replaced('nova.virt.libvirt.host.Host.get_guest', (_COMPUTE,),
             'Gives such objects (of the one host object of the driver).'))


@dataclass(frozen=True)
class Private:
    """A private function or attribute of Nova that a feature relies on.

    :param name: dotted name in Nova.
    :param is_overridden: whether a subclass of ghsched overrides it.
    :param reason: reason why no public name of Nova does instead.
    """

    name: str
    is_overridden: bool
    reason: str


_POOLS = ('Lists the pools of devices that a claim chooses from; Nova has '
          'public functions only for whether a request fits.')

#: Private functions of Nova that ghsched uses. Those of LibvirtDriver, from
#: which the driver of ghsched is derived, are not listed.
PRIVATE = (
    Private('nova.compute.manager.ComputeManager._attach_interface', True,
            'Its error for a port that cannot be attached has no reason.'),
    Private('nova.compute.manager.ComputeVirtAPI._compute', False,
            'The only way from the driver to its manager.'),
    Private('nova.compute.resource_tracker.ResourceTracker._move_claim', True,
            'All moves claim by it, and it makes PCI requests again.'),
    Private('nova.compute.resource_tracker.ResourceTracker._update_usage',
            False, 'Counts a moving guest on its new nodes, under the lock '
            'of the resource tracker.'),
    Private('nova.compute.resource_tracker.ResourceTracker.'
            '_update_usage_from_instances', True,
            'Each report counts usage from the records again.'),
    Private('nova.limit.placement._get_deltas', False,
            'The usage of a request that limits are compared with.'),
    Private('nova.limit.placement._get_deltas_by_flavor', False,
            'The same in Nova 31 to 33.'),
    Private('nova.pci.stats.PciDeviceStats.'
            '_filter_pools_based_on_placement_allocation', False, _POOLS),
    Private('nova.pci.stats.PciDeviceStats._filter_pools_for_spec', False,
            _POOLS),
    Private('nova.pci.stats.PciDeviceStats.'
            '_filter_pools_for_unrequested_pfs', False, _POOLS),
    Private('nova.pci.stats.PciDeviceStats._get_rp_uuids_for_request', False,
            _POOLS),
    Private('nova.scheduler.host_manager.HostManager._get_host_states', False,
            'Makes states of some hosts; the public functions read the '
            'services of all hosts.'),
    Private('nova.scheduler.manager.SchedulerManager._get_all_host_states',
            True, 'Hands the index\'s hosts to Nova\'s search.'))

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

"""The manager of nova-compute, and its resource tracker.

``ghsched-nova-compute`` starts Nova's service with this manager.
"""

from typing import Any

from nova.compute import build_results
from nova.compute import manager
from nova.compute import resource_tracker
from nova import objects
from nova.objects import fields

from ghsched_nova.nova_fixes import servers
from ghsched_nova.nova_seams import compute
from ghsched_nova.nova_seams import compute_moves
from ghsched_nova.nova_seams import registry
from ghsched_nova.virt import attach
from ghsched_nova.virt import instance_claims

seam = registry.make_seam_decorator(registry.COMPUTE)

_TRACKER = 'nova.compute.resource_tracker.ResourceTracker'
_MANAGER = 'nova.compute.manager.ComputeManager'


class GhschedResourceTracker(resource_tracker.ResourceTracker):
    """Nova's resource tracker, extended for claims of ghsched's guests."""

    @seam(f'{_TRACKER}.instance_claim',
          ('self', 'context', 'instance', 'nodename', 'allocations',
           'limits'))
    def instance_claim(self, context: Any, instance: Any, *args: Any,
                       **kwargs: Any) -> Any:
        """Claim resources of this compute host for an instance.

        The claim takes the devices and the guest NUMA topology that
        nova-scheduler chose.
        """
        with instance_claims.claiming_instance(instance):
            return super().instance_claim(context, instance, *args, **kwargs)

    @seam(f'{_TRACKER}._move_claim',
          ('self', 'context', 'instance', 'new_flavor', 'nodename',
           'migration', 'allocations', 'move_type', 'image_meta', 'limits'),
          overridden='All moves claim by it, and it makes PCI requests again.')
    def _move_claim(self, context: Any, instance: Any, new_flavor: Any,
                    *args: Any, **kwargs: Any) -> Any:
        """Claim the resources that nova-scheduler chose for a server's move.

        Nova calls this method for the claim of a resize or migration, which
        builds the PCI requests of the new flavor.
        """
        image = kwargs.get('image_meta') or None
        if isinstance(image, dict):
            image = objects.ImageMeta.from_dict(image)
        with instance_claims.claiming_move(
                instance, new_flavor, image, kwargs.get('move_type')
                == fields.MigrationType.LIVE_MIGRATION):
            return super()._move_claim(context, instance, new_flavor, *args,
                                       **kwargs)

    @seam(f'{_TRACKER}._update_usage_from_instances',
          ('self', 'context', 'instances', 'nodename'),
          overridden='Each report counts usage from the records again.')
    def _update_usage_from_instances(self, context: Any, instances: Any,
                                     nodename: str) -> Any:
        """Count the resources that the guests of this host use.

        A guest that moves between NUMA nodes of the host is counted on its old
        and its new nodes until the move has ended.
        """
        found = super()._update_usage_from_instances(context, instances,
                                                     nodename)
        compute_moves.count_moving_guests_on_new_nodes(self, nodename)
        return found


class GhschedComputeManager(manager.ComputeManager):
    """Nova's compute manager with ghsched's resource tracker and RPC methods.
    """

    @seam(f'{_MANAGER}.rt')
    @seam(f'{_TRACKER}.__init__', ('self', 'host', 'driver', 'reportclient'))
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rt = GhschedResourceTracker(
            self.host, self.driver,
            reportclient=compute.AllocationKeepingClient(self.reportclient))

    @seam('nova.manager.Manager.additional_endpoints')
    def init_host(self, service_ref: Any) -> None:
        """Initialize nova-compute, and accept ghsched's RPC calls.

        The calls change bandwidth policies of guests and move guests between
        NUMA nodes. ``nova.service.Service`` serves the manager and its
        ``additional_endpoints`` afterwards.
        """
        super().init_host(service_ref)
        # [DEFAULT]compute_driver may name Nova's own driver.
        for endpoint in getattr(self.driver, 'rpc_endpoints', ()):
            if endpoint not in self.additional_endpoints:
                self.additional_endpoints.append(endpoint)

    @seam(f'{_MANAGER}._attach_interface',
          ('self', 'context', 'instance', 'network_id', 'port_id',
           'requested_ip', 'tag'),
          overridden='Its error for a port that cannot be attached has no '
                     'reason.')
    def _attach_interface(self, *args: Any, **kwargs: Any) -> Any:
        """Attach a port to a guest as Nova does, with a better error.

        If ghsched's driver refused the port, the error says why.
        """
        return attach.attach_with_reason(super()._attach_interface,
                                         *args, **kwargs)

    @seam(f'{_MANAGER}._do_build_and_run_instance',
          ('self', 'context', 'instance', 'image', 'request_spec',
           'filter_properties', 'admin_password', 'injected_files',
           'requested_networks', 'security_groups', 'block_device_mapping',
           'node', 'limits', 'host_list', 'accel_uuids'),
          overridden='The fault of a server that no host is left for has no '
                     'reason.')
    @seam(f'{_MANAGER}.reportclient')
    @seam('nova.scheduler.client.report.SchedulerReportClient.'
          'delete_allocation_for_instance',
          ('self', 'context', 'uuid', 'consumer_type', 'force'))
    def _do_build_and_run_instance(self, *args: Any) -> Any:
        """Build a server; on the last host, tell its user why that failed.

        As long as Nova counts the tries, nova-compute passes a failed build to
        nova-conductor, which says only that no other host is left. Servers
        with accelerators keep that, because only nova-conductor releases
        those.
        """
        context, instance, _, _, filter_properties, *_ = args
        host_list, accelerators = args[-2:]
        is_last = not (host_list or accelerators) and (
            servers.has_ghsched_flavor(instance))
        if is_last:
            filter_properties.pop('retry', None)
        result = super()._do_build_and_run_instance(*args)
        if is_last and result == build_results.FAILED_BY_POLICY:
            # Of these Nova leaves the allocation to nova-conductor, too.
            self.reportclient.delete_allocation_for_instance(
                context, instance.uuid, force=True)
        return result

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

"""The part of the compute driver that starts guests.

Puts a guest's policy into its XML, and makes resctrl hold it before the
guest's CPUs run.
"""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
from typing import Any

from nova import exception
from nova.virt.libvirt import driver as libvirt_driver
from oslo_log import log as logging
from oslo_utils import versionutils

from ghsched_nova.guest import device_numa
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_nova.nova_fixes import failed_live_migration
from ghsched_nova.nova_fixes import failed_resize_flavor
from ghsched_nova.nova_fixes import libvirtd_restart_deadlock
from ghsched_nova.nova_fixes import table as fixes
from ghsched_nova.nova_seams import compute
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import registry
from ghsched_nova import pci_requests
from ghsched_nova.resctrl import model
from ghsched_nova.virt import driver_base as base
from ghsched_nova.virt import refusal
from ghsched_nova.virt import unprotected
from ghsched_placement.flavor import policy as policies

LOG = logging.getLogger(__name__)

seam = registry.make_seam_decorator(registry.COMPUTE)


class StartingDriver(base.DriverBase):
    """Driver that checks claims, renders XML and starts guests protected."""

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        super().__init__(virtapi, read_only)
        compute.wrap_launch_of_existing_domains(self._host, self._launch)
        if 'libvirtd-restart-deadlock' in fixes.APPLIED:
            libvirtd_restart_deadlock.make_connection_lock_reentrant(
                self._host)

    @unprotected.refusing_unprotected_guests()
    def spawn(self, context: Any, instance: Any, image_meta: Any,
              injected_files: Any, admin_password: Any, allocations: Any,
              *args: Any, **kwargs: Any) -> Any:
        rest = (image_meta, injected_files, admin_password, allocations)
        if not compute.is_rebuilt_in_place(instance):
            self._check_claims(instance, allocations)
            with (failed_live_migration.saving_without_destination(instance)
                  if compute.is_being_evacuated_here(instance)
                  and fixes.is_fix_applied_to('failed-live-migration',
                                              instance)
                  else contextlib.nullcontext()):
                return super().spawn(context, instance, *rest, *args,
                                     **kwargs)
        # An instance rebuilt in place claims nothing that could be checked.
        try:
            return super().spawn(context, instance, *rest, *args, **kwargs)
        except exception.ComputeResourcesUnavailable as error:
            # Nova would handle it as a failed claim: remove the allocation
            # and set the instance, whose guest is gone, to ACTIVE.
            raise exception.InstanceDeployFailure(
                reason=str(error)) from error

    def _check_claims(self, instance: Any, allocations: Any) -> None:
        self._check_allocated_nodes(
            instance, instance.numa_topology, allocations,
            pci_requests.list_claimed_vf_nodes(instance))
        self._check_claimed_devices(instance, allocations)

    @unprotected.refusing_unprotected_guests()
    def finish_migration(self, context: Any, migration: Any, instance: Any,
                         disk_info: Any, network_info: Any, image_meta: Any,
                         resize_instance: Any, allocations: Any,
                         *args: Any, **kwargs: Any) -> Any:
        try:
            self._check_claims(instance, allocations)
            return super().finish_migration(
                context, migration, instance, disk_info, network_info,
                image_meta, resize_instance, allocations, *args, **kwargs)
        except Exception:
            if fixes.is_fix_applied_to('failed-resize-flavor', instance):
                failed_resize_flavor.keep_new_flavor(instance)
            raise

    @seam('nova.virt.libvirt.driver.LibvirtDriver._host')
    @seam('nova.virt.libvirt.driver.LibvirtDriver._get_guest_xml',
          ('self', 'context', 'instance', 'network_info', 'disk_info',
           'image_meta', 'rescue', 'block_device_info', 'mdevs', 'accel_info',
           'share_info', 'old_guest'),
          optional=frozenset({'old_guest'}))
    def _get_guest_xml(self, context: Any, instance: Any, *args: Any,
                       **kwargs: Any) -> str:
        xml = super()._get_guest_xml(context, instance, *args, **kwargs)
        try:
            policy = base.parse_policy(instance)
            if policy is None:
                return str(xml)
            nodes = numa.list_host_nodes(instance.numa_topology)
            domain_xml = self._ghsched.domain_xml
            xml = self._parts.render(
                self._render_policy_and_limits(xml, policy, nodes, instance),
                compute_hooks.StartingGuest(policy, nodes,
                                            self._get_libvirt_version()))
            # Last, because it counts the PCI ports that all devices need.
            return domain_xml.add_device_numa_nodes(
                xml, policy,
                [device_numa.Device(device.address, device.numa_node)
                 for device in base.list_claimed_devices(instance)], nodes)
        except refusal.NOT_HELD as error:
            raise refusal.log_refusal(error, instance) from error

    def _render_policy_and_limits(self, xml: str, policy: policies.GuestPolicy,
                                  nodes: Sequence[int], instance: Any) -> str:
        """Return a domain XML with a guest's policy and its bandwidth limits.

        If this host cannot enforce the limits, but may start the guest
        nevertheless, they are left out.

        :param nodes: host NUMA node of each guest NUMA node.
        """
        try:
            return self._ghsched.domain_xml.render_policy(xml, policy, nodes)
        except unprotected.CAUSES as error:
            if not unprotected.may_start_unprotected(error, instance):
                raise
            return self._ghsched.domain_xml.render_policy_without_limits(
                xml, policy, nodes)

    def _get_libvirt_version(self) -> tuple[int, ...]:
        text = versionutils.convert_version_to_str(
            self._host.get_connection().getLibVersion())
        return tuple(versionutils.convert_version_to_tuple(text))

    # -- a guest starts -------------------------------------------------------

    @seam('nova.virt.libvirt.driver.LibvirtDriver._create_guest',
          ('self', 'context', 'xml', 'instance', 'power_on', 'pause',
           'post_xml_callback'))
    def _create_guest(self, context: Any, xml: str, instance: Any,
                      power_on: bool = True, pause: bool = False,
                      post_xml_callback: Any = None) -> Any:
        """Start a guest paused, limit its bandwidth, then resume the guest.

        libvirt moves the vCPU threads into the control group while the guest
        is paused, so that no vCPU runs before the policy is enforced.
        """
        limited = (power_on or pause) and self._must_start_paused(xml)
        with refusal.naming_lock_memory(instance,
                                        libvirt_driver.libvirt.libvirtError):
            guest = super()._create_guest(
                context, xml, instance, power_on=power_on,
                pause=pause or limited, post_xml_callback=post_xml_callback)
        if not limited:
            return guest
        self._enforce_policy_or_stop(guest, instance)
        if not pause:
            guest.resume()
        self._report_shared_groups(context, instance)
        return guest

    def _must_start_paused(self, xml: str) -> bool:
        """Return whether a guest must start paused until it is limited.

        A guest must not run before its bandwidth policy, or the default
        bandwidth cap of this host, is enforced.
        """
        return desired.may_have_policy(xml) or self._ghsched.has_default_cap

    def _launch(self, launch: Callable[..., Any], guest: Any, instance: Any,
                pause: bool = False) -> None:
        """Start a defined domain paused, limit its bandwidth, then resume it.

        Nova calls this after a soft reboot and after a cold snapshot.

        :param launch: Nova's ``Guest.launch``.
        :param pause: whether the domain is to stay paused.
        """
        if not self._must_start_paused(guest.get_xml_desc()):
            launch(pause=pause)
            return
        launch(pause=True)
        self._enforce_policy_or_stop(guest, instance)
        if not pause:
            guest.resume()

    @seam('nova.virt.libvirt.driver.LibvirtDriver._soft_reboot',
          ('self', 'instance'))
    def _soft_reboot(self, instance: Any) -> Any:
        """Reboot a guest softly, then enforce its bandwidth policy again.

        The policy is enforced even if another process has started the guest
        while Nova waited for its shutdown.
        """
        done = super()._soft_reboot(instance)
        if done:
            self._enforce_policy_or_stop(self._host.get_guest(instance),
                                         instance)
        return done

    @seam('nova.virt.libvirt.driver.LibvirtDriver.'
          '_resume_guest_after_snapshot',
          ('self', 'context', 'live_snapshot', 'original_power_state',
           'instance', 'guest'))
    @seam('nova.virt.libvirt.driver.LibvirtDriver.'
          '_needs_suspend_resume_for_snapshot',
          ('self', 'live_snapshot', 'current_power_state'))
    def _resume_guest_after_snapshot(
            self, context: Any, live_snapshot: Any,
            original_power_state: Any, instance: Any, guest: Any) -> None:
        """Resume a guest after a snapshot, then enforce its policy again.

        Nova attaches the guest's passthrough devices again when it resumes the
        guest.
        """
        restarted = self._needs_suspend_resume_for_snapshot(
            live_snapshot, original_power_state)
        try:
            super()._resume_guest_after_snapshot(
                context, live_snapshot, original_power_state, instance,
                guest)
        finally:
            if restarted and guest.is_active():
                self._enforce_policy_or_stop(guest, instance)

    def _enforce_policy_or_stop(self, guest: Any, instance: Any) -> None:
        """Enforce a guest's bandwidth policy; stop the guest if that fails.

        A guest without a policy is not stopped, because it has no guarantee.

        :raises nova.exception.ComputeResourcesUnavailable: with the reason.
        """
        try:
            self._enforce_or_record_unprotected(guest, instance)
        except Exception as error:
            if not self._ghsched.needs_group(desired.Running(
                    model.Domain(guest.uuid, guest.id, guest.name),
                    guest.get_xml_desc())):
                LOG.warning('ghsched: cannot apply the default bandwidth cap '
                            'to a guest without a bandwidth policy; the guest '
                            'runs uncapped: %s',
                            error, instance=instance)
                return
            LOG.error('ghsched: cannot enforce the bandwidth policy of a '
                      'started guest; stopping the guest: %s',
                      error, instance=instance)
            _stop_guest(guest, instance)
            self._ghsched.release_group(instance.uuid)
            if not isinstance(error, refusal.NOT_HELD):
                raise
            raise refusal.log_refusal(error, instance) from error

    def _enforce_or_record_unprotected(self, guest: Any,
                                       instance: Any) -> None:
        """Enforce a bandwidth policy, or record that a guest is unprotected.

        If the guest must not start unprotected, an error is raised instead.
        Each periodic report of nova-compute retries the policies of recorded
        guests.
        """
        running = desired.parse_running_domain(guest.get_xml_desc(), guest.id)
        try:
            self._ghsched.reconcile_guest(running)
        except unprotected.CAUSES as error:
            if not (self._ghsched.needs_group(running)
                    and unprotected.may_start_unprotected(error, instance)):
                raise
            self._ghsched.not_held[instance.uuid] = str(error)
        self._parts.reconcile_guest(running)


def _stop_guest(guest: Any, instance: Any) -> None:
    """Power off a guest that must not run.

    An error of libvirt is logged and not raised, because the caller raises the
    reason why the guest must not run.
    """
    try:
        guest.poweroff()
    except libvirt_driver.libvirt.libvirtError as error:
        LOG.warning('ghsched: cannot stop a guest whose bandwidth policy is '
                    'not enforced: %s', error,
                    instance=instance)

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

"""``compute_driver = ghsched.GhschedLibvirtDriver``.

Nova's libvirt driver with three additions: it reports NUMA nodes with their
memory bandwidth to Placement, puts a guest's policy into its XML, and makes
resctrl enforce that policy before the guest's CPUs run. Each method hooks one
method of Nova's: it calls parts of this package and of
:mod:`ghsched_nova.host`, and Nova's own method, in the order in which they
stand here ("The order of hooks" in the manual's page on the design).
"""

import contextlib
import functools
from pathlib import Path
import threading
from typing import Any

from nova import exception
from nova.virt.libvirt import driver as libvirt_driver

from ghsched_nova.base import privsep
from ghsched_nova import conf
from ghsched_nova.features import declared_compute
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import device_xml
from ghsched_nova.host import engine
from ghsched_nova.host import guest_diagnostics
from ghsched_nova.host import readings
from ghsched_nova.nova_fixes import cut_off_live_migration
from ghsched_nova.nova_fixes import evacuated_live_migration
from ghsched_nova.nova_fixes import failed_live_migration
from ghsched_nova.nova_fixes import failed_resize_flavor
from ghsched_nova.nova_fixes import libvirtd_restart_deadlock
from ghsched_nova.nova_fixes import table as fixes
from ghsched_nova.nova_seams import compute
from ghsched_nova.nova_seams import messaging
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova.nova_seams import signatures
from ghsched_nova import pci_requests
from ghsched_nova.resctrl import privileged
from ghsched_nova.virt import attach
from ghsched_nova.virt import enforcement
from ghsched_nova.virt import host_report
from ghsched_nova.virt import instance_claims
from ghsched_nova.virt import libvirt_reader
from ghsched_nova.virt import migration_checks
from ghsched_nova.virt import providers
from ghsched_nova.virt import refusal

_DRIVER = 'nova.virt.libvirt.driver.LibvirtDriver'

seam = registry.make_seam_decorator(registry.COMPUTE)


@functools.cache
def prepare_nova() -> None:
    """Check the installed Nova and apply ghsched's changes of nova-compute.

    :raises ghsched_nova.nova_seams.registry.IncompatibleNova: if this Nova or
        the configured fixes do not suit.
    """
    fixes.require_known_fixes()
    signatures.require_seams(registry.COMPUTE, fixes.list_fix_only_functions())
    pci_requests.patch_nova_pci_requests()
    compute.call_before_claims(pci_requests.store_allocated_pfs)
    numa.patch_numa_fit()
    fixes.apply_fixes(registry.COMPUTE)


class GhschedLibvirtDriver(libvirt_driver.LibvirtDriver):
    """Nova's libvirt driver with memory bandwidth per host NUMA node."""

    @seam(f'{_DRIVER}._host')
    @seam(f'{_DRIVER}.vif_driver')
    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        prepare_nova()
        super().__init__(virtapi, read_only)
        section = shared.config().ghsched
        state_path = Path(shared.config().state_path)
        self._ghsched = engine.HostEngine(section, readings.RoundingCache(
            Path(section.resctrl_path), state_path / readings.FILE,
            privileged.measure_percentages))
        self._guests = libvirt_reader.GuestReader(self._host)
        self._ghsched.running = self._guests.list_running
        self._report = host_report.HostReport(self._ghsched, self._guests,
                                              virtapi)
        # Held while a policy is read and enforced, and while one is changed.
        changing = threading.RLock()
        self._hooks = compute_hooks.ComputeHookCaller(
            declared_compute.FEATURES, compute_hooks.ComputeServices(
                section=section, state_path=state_path,
                host_name=shared.config().host, libvirt_host=self._host,
                dedicated_cpus=frozenset(compute.get_dedicated_cpus()),
                list_shared_cpus=lambda: self._report.shared_cpus,
                get_cpu_ratio=lambda: self._report.cpu_ratio,
                engine=self._ghsched, changing=changing,
                list_running=self._guests.list_running,
                find_running=self._guests.find_running,
                refresh_guest=lambda uuid: self._hooks.refresh_guest(
                    lambda: self._guests.find_running(uuid)),
                report_shared_groups=self._report.report_sharing_change,
                notify=messaging.send_notification, virtapi=virtapi))
        self._enforcer = enforcement.PolicyEnforcer(
            self._ghsched, self._hooks, self._guests, changing)
        self._devices = attach.DeviceAttacher(self._ghsched, self._host)
        self.vif_driver = self._devices.vif_driver
        self._diagnostics = guest_diagnostics.GuestDiagnostics(self._ghsched)
        compute.wrap_launch_of_existing_domains(self._host,
                                                self._enforcer.launch)
        if 'libvirtd-restart-deadlock' in fixes.APPLIED:
            libvirtd_restart_deadlock.make_connection_lock_reentrant(
                self._host)

    @property
    def rpc_endpoints(self) -> list[Any]:
        """RPC endpoints of the features, which nova-compute serves."""
        return self._hooks.endpoints

    def init_host(self, host: str) -> None:
        try:
            conf.check_options(shared.config().ghsched)
        except ValueError as error:
            raise exception.InvalidConfiguration(
                f'nova.conf: {error}') from error
        super().init_host(host)
        self._ghsched.domain_xml.libvirt = libvirt_reader.detect_features(
            self._host)
        self._ghsched.describe_bandwidth_control()
        self._ghsched.warn_if_any_user_can_lock()
        self._enforcer.reconcile_all_guests()

    # -- the host reports -----------------------------------------------------

    def get_available_resource(self, nodename: str) -> Any:
        self._enforcer.reconcile_all_guests()
        self._report.is_periodic = True
        resources = super().get_available_resource(nodename)
        self._hooks.observe(lambda: self._report.take_snapshot(
            self.provider_tree, nodename))
        privsep.stop_idle_helpers()
        return self._hooks.add_stats(resources)

    @seam(f'{_DRIVER}._get_pci_passthrough_devices', ('self',))
    def _get_pci_passthrough_devices(self) -> str:
        """Return the host's PCI devices for Nova, and store them."""
        return self._report.store_pci_devices(
            super()._get_pci_passthrough_devices(),
            super()._get_host_numa_topology())

    @seam(f'{_DRIVER}._get_host_numa_topology', ('self',))
    def _get_host_numa_topology(self) -> Any:
        """Return the host's NUMA topology with a pseudo network per node."""
        return self._report.add_node_networks(
            super()._get_host_numa_topology())

    def update_provider_tree(self, provider_tree: Any, nodename: str,
                             allocations: Any = None) -> None:
        groups_before = providers.count_offered_control_groups(
            provider_tree, nodename)
        super().update_provider_tree(provider_tree, nodename,
                                     allocations=allocations)
        found = self._hooks.describe_host(self._report.describe_host())
        self._report.write_providers(provider_tree, nodename, found,
                                     groups_before)
        # Nova's driver stored a copy without the providers added above.
        self.provider_tree = provider_tree
        self._report.log_unallocated_guarantees(
            provider_tree.data(nodename).uuid, nodename)

    def get_diagnostics(self, instance: Any) -> Any:
        """Return a guest's diagnostics with bandwidth, load and traffic."""
        guest = self._host.get_guest(instance)
        found = self._diagnostics.add_to_diagnostics(
            super().get_diagnostics(instance), guest,
            functools.partial(instance_claims.describe_missing_devices,
                              instance))
        return self._hooks.add_diagnostics(
            found | self._report.describe_node_capacities(instance.node),
            guest)

    # -- a guest starts -------------------------------------------------------

    @enforcement.refusing_unprotected_guests()
    def spawn(self, context: Any, instance: Any, image_meta: Any,
              injected_files: Any, admin_password: Any, allocations: Any,
              *args: Any, **kwargs: Any) -> Any:
        spawn = functools.partial(
            super().spawn, context, instance, image_meta, injected_files,
            admin_password, allocations, *args, **kwargs)
        if not compute.is_rebuilt_in_place(instance):
            instance_claims.check_claims(self._ghsched, self._host, instance,
                                         allocations)
            with (failed_live_migration.saving_without_destination(instance)
                  if compute.is_being_evacuated_here(instance)
                  and fixes.is_fix_applied_to('failed-live-migration',
                                              instance)
                  else contextlib.nullcontext()):
                return spawn()
        # An instance rebuilt in place claims nothing that could be checked.
        try:
            return spawn()
        except exception.ComputeResourcesUnavailable as error:
            # Nova would handle it as a failed claim: remove the allocation
            # and set the instance, whose guest is gone, to ACTIVE.
            raise exception.InstanceDeployFailure(
                reason=str(error)) from error

    @enforcement.refusing_unprotected_guests()
    def finish_migration(self, context: Any, migration: Any, instance: Any,
                         disk_info: Any, network_info: Any, image_meta: Any,
                         resize_instance: Any, allocations: Any,
                         *args: Any, **kwargs: Any) -> Any:
        try:
            instance_claims.check_claims(self._ghsched, self._host, instance,
                                         allocations)
            return super().finish_migration(
                context, migration, instance, disk_info, network_info,
                image_meta, resize_instance, allocations, *args, **kwargs)
        except Exception:
            if fixes.is_fix_applied_to('failed-resize-flavor', instance):
                failed_resize_flavor.keep_new_flavor(instance)
            raise

    @seam(f'{_DRIVER}._get_guest_xml',
          ('self', 'context', 'instance', 'network_info', 'disk_info',
           'image_meta', 'rescue', 'block_device_info', 'mdevs', 'accel_info',
           'share_info', 'old_guest'),
          optional=frozenset({'old_guest'}))
    def _get_guest_xml(self, context: Any, instance: Any, *args: Any,
                       **kwargs: Any) -> str:
        xml = str(super()._get_guest_xml(context, instance, *args, **kwargs))
        with refusal.refusing_guest(instance, *refusal.CANNOT_ENFORCE):
            policy = instance_claims.parse_policy(instance)
            if policy is None:
                return xml
            nodes = numa.list_host_nodes(instance.numa_topology)
            xml = self._enforcer.render_policy(xml, policy, nodes, instance)
            xml = self._hooks.render(xml, compute_hooks.StartingGuest(
                policy, nodes, libvirt_reader.get_libvirt_version(self._host)))
            # Last, because it counts the PCI ports that all devices need.
            return device_xml.DeviceXml(
                self._ghsched, self._ghsched.domain_xml.libvirt
            ).add_device_numa_nodes(
                xml, policy, instance_claims.list_device_nodes(instance),
                nodes)

    @seam(f'{_DRIVER}._create_guest',
          ('self', 'context', 'xml', 'instance', 'power_on', 'pause',
           'post_xml_callback'))
    def _create_guest(self, context: Any, xml: str, instance: Any,
                      power_on: bool = True, pause: bool = False,
                      post_xml_callback: Any = None) -> Any:
        """Start a guest paused, limit its bandwidth, then resume the guest.

        libvirt moves the vCPU threads into the control group while the guest
        is paused, so that no vCPU runs before the policy is enforced.
        """
        limited = ((power_on or pause)
                   and self._enforcer.must_start_paused(xml))
        with refusal.naming_lock_memory(instance,
                                        libvirt_driver.libvirt.libvirtError):
            guest = super()._create_guest(
                context, xml, instance, power_on=power_on,
                pause=pause or limited, post_xml_callback=post_xml_callback)
        if limited:
            self._enforcer.enforce_policy_or_stop(guest, instance)
            if not pause:
                guest.resume()
            self._report.report_sharing_change(context, instance)
        return guest

    @seam(f'{_DRIVER}._soft_reboot', ('self', 'instance'))
    def _soft_reboot(self, instance: Any) -> Any:
        """Reboot a guest softly, then enforce its bandwidth policy again.

        The policy is enforced even if another process has started the guest
        while Nova waited for its shutdown.
        """
        done = super()._soft_reboot(instance)
        if done:
            self._enforcer.enforce_policy_or_stop(
                self._host.get_guest(instance), instance)
        return done

    @seam(f'{_DRIVER}._resume_guest_after_snapshot',
          ('self', 'context', 'live_snapshot', 'original_power_state',
           'instance', 'guest'))
    @seam(f'{_DRIVER}._needs_suspend_resume_for_snapshot',
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
                self._enforcer.enforce_policy_or_stop(guest, instance)

    # -- devices of a guest that runs -----------------------------------------

    def attach_interface(self, context: Any, instance: Any, image_meta: Any,
                         vif: Any) -> Any:
        return self._devices.attach_port(
            functools.partial(super().attach_interface, context, instance,
                              image_meta, vif),
            self._host.get_guest(instance), instance, vif)

    @seam(f'{_DRIVER}._attach_pci_devices', ('self', 'guest', 'pci_devs'))
    def _attach_pci_devices(self, guest: Any, pci_devs: Any) -> Any:
        """Attach a guest's PCI devices again after it was suspended.

        A cold snapshot suspends a guest, too. The guest sees the NUMA nodes of
        the devices as before if its policy asks for that.
        """
        return super()._attach_pci_devices(
            self._devices.wrap_guest(guest, pci_devs), pci_devs)

    @seam(f'{_DRIVER}._attach_direct_passthrough_ports',
          ('self', 'context', 'instance', 'guest', 'network_info'))
    def _attach_direct_passthrough_ports(
            self, context: Any, instance: Any, guest: Any,
            network_info: Any = None) -> Any:
        return super()._attach_direct_passthrough_ports(
            context, instance, self._devices.wrap_guest(
                guest, list(instance.get_pci_devices())), network_info)

    # -- live migration, at the destination -----------------------------------

    def check_source_migrate_data_at_dest(self, ctxt: Any, instance: Any,
                                          migrate_data: Any,
                                          migration: Any, limits: Any,
                                          allocs: Any) -> Any:
        migration_checks.check_domain_numbers(self._ghsched, instance)
        migration_checks.check_destination_nodes(
            self._ghsched, self._host, instance, allocs)
        migration_checks.check_arriving_guest(
            self._ghsched, self._hooks, instance)
        migration_checks.check_arriving_ports(
            instance, migrate_data, self._report.pci_devices)
        return super().check_source_migrate_data_at_dest(
            ctxt, instance, migrate_data, migration, limits, allocs)

    def pre_live_migration(self, context: Any, instance: Any, *args: Any,
                           **kwargs: Any) -> Any:
        """Prepare this host for a guest that is live-migrated to it.

        If this host cannot enforce the guest's bandwidth policy, Nova rolls
        the live migration back.
        """
        migration_checks.check_arriving_guest(
            self._ghsched, self._hooks, instance)
        return super().pre_live_migration(context, instance, *args, **kwargs)

    def post_live_migration_at_destination(self, context: Any,
                                           instance: Any, *args: Any,
                                           **kwargs: Any) -> Any:
        with self._devices.never_refusing_ports():
            try:
                return super().post_live_migration_at_destination(
                    context, instance, *args, **kwargs)
            finally:
                # The guest runs here even if Nova fails.
                self._enforcer.enforce_after_migration(instance)

    @seam(f'{_DRIVER}.rollback_live_migration_at_destination',
          ('self', 'context', 'instance', 'network_info', 'block_device_info',
           'destroy_disks', 'migrate_data'))
    def rollback_live_migration_at_destination(self, context: Any,
                                               instance: Any, *args: Any,
                                               **kwargs: Any) -> None:
        if (fixes.is_fix_applied_to('evacuated-live-migration', instance)
                and evacuated_live_migration.is_evacuated_here(context,
                                                               instance)):
            return
        with (failed_live_migration.saving_without_destination(instance)
              if fixes.is_fix_applied_to('failed-live-migration', instance)
              else contextlib.nullcontext()):
            super().rollback_live_migration_at_destination(
                context, instance, *args, **kwargs)

    # -- live migration, at the source ----------------------------------------

    def check_can_live_migrate_source(self, context: Any, instance: Any,
                                      *args: Any, **kwargs: Any) -> Any:
        migration_checks.check_domain_numbers(self._ghsched, instance)
        return super().check_can_live_migrate_source(
            context, instance, *args, **kwargs)

    @seam(f'{_DRIVER}.live_migration',
          ('self', 'context', 'instance', 'dest', 'post_method',
           'recover_method', 'block_migration', 'migrate_data'))
    def live_migration(self, context: Any, instance: Any, dest: str,
                       post_method: Any, recover_method: Any,
                       block_migration: bool = False,
                       migrate_data: Any = None) -> None:
        migrate: Any = super().live_migration
        if fixes.is_fix_applied_to('cut-off-live-migration', instance):
            migrate = functools.partial(
                cut_off_live_migration.live_migrate_and_verify, migrate,
                functools.partial(
                    cut_off_live_migration.wait_for_migration_job, self._host))
        migrate(context, instance, dest, post_method, recover_method,
                block_migration, migrate_data)

    @seam(f'{_DRIVER}._live_migration_operation',
          ('self', 'context', 'instance', 'dest', 'block_migration',
           'migrate_data', 'guest', 'device_names'))
    def _live_migration_operation(self, context: Any, instance: Any,
                                  dest: Any, block_migration: Any,
                                  migrate_data: Any, guest: Any,
                                  device_names: Any) -> Any:
        xml = guest.get_xml_desc()
        migration_checks.check_leaving_ports(
            self._ghsched, context, instance, dest, xml, migrate_data)
        guest = migration_checks.renumber_guest(
            self._ghsched, instance, guest, xml, migrate_data)
        return super()._live_migration_operation(
            context, instance, dest, block_migration, migrate_data, guest,
            device_names)

    def post_live_migration(self, context: Any, instance: Any, *args: Any,
                            **kwargs: Any) -> None:
        with migration_checks.continuing_after_copy(instance):
            super().post_live_migration(context, instance, *args, **kwargs)

    def post_live_migration_at_source(self, context: Any, instance: Any,
                                      network_info: Any) -> None:
        with migration_checks.continuing_after_copy(instance):
            super().post_live_migration_at_source(context, instance,
                                                  network_info)

    def rollback_live_migration_at_source(self, *args: Any,
                                          **kwargs: Any) -> Any:
        with self._devices.never_refusing_ports():
            return super().rollback_live_migration_at_source(*args, **kwargs)

    # -- a guest ends ---------------------------------------------------------

    def power_off(self, instance: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().power_off(instance, *args, **kwargs)
        self._ghsched.release_group(instance.uuid)
        return result

    def suspend(self, context: Any, instance: Any) -> None:
        super().suspend(context, instance)
        self._ghsched.release_group(instance.uuid)

    def cleanup(self, context: Any, instance: Any, *args: Any,
                **kwargs: Any) -> Any:
        """Clean up a guest that was deleted or moved away, as Nova does.

        The guest's resctrl control group is removed, too.
        """
        result = super().cleanup(context, instance, *args, **kwargs)
        self._ghsched.release_group(instance.uuid)
        return result

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
resctrl hold that policy before the guest's CPUs run. Each method hooks one
method of Nova's and leaves the work to the modules beside it.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import functools
import threading
import time
from typing import Any

from nova import exception
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import guest as libvirt_guest
from oslo_log import log as logging
from oslo_serialization import jsonutils
from oslo_utils import versionutils

from ghsched_nova import compat
from ghsched_nova import conf
from ghsched_nova.guest import device_numa
from ghsched_nova.guest import locked_memory
from ghsched_nova.guest import memorytune
from ghsched_nova.guest import metadata
from ghsched_nova.guest import pci_topology
from ghsched_nova import pci_requests
from ghsched_nova.placement_client import PlacementClient
from ghsched_nova.resctrl import apply
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import resolve
from ghsched_nova.virt import agreement
from ghsched_nova.virt import arrival
from ghsched_nova.virt import attach
from ghsched_nova.virt import bandwidth_use
from ghsched_nova.virt import counted
from ghsched_nova.virt import desired
from ghsched_nova.virt import engine
from ghsched_nova.virt import guest_diagnostics
from ghsched_nova.virt import guest_topology
from ghsched_nova.virt import left
from ghsched_nova.virt import live_claim
from ghsched_nova.virt import load_use
from ghsched_nova.virt import migration
from ghsched_nova.virt import pci_providers
from ghsched_nova.virt import providers
from ghsched_nova.virt import refusal
from ghsched_nova.virt import rpc
from ghsched_nova.virt import scheduling
from ghsched_nova.virt import traffic
from ghsched_placement import bottleneck
from ghsched_placement import headroom
from ghsched_placement.host import HostDescription
from ghsched_placement import names
from ghsched_placement import policy as policies
from ghsched_placement import tree

LOG = logging.getLogger(__name__)

pci_requests.register_compute()
compat.steer_fit()
compat.hold_live_claims(lambda driver, instance, host: live_claim.orders(
    instance, host, driver._ghsched.can_join))

#: What keeps a policy from being held, as our modules raise it.
NOT_HELD = (resctrl_host.ResctrlUnavailable, resolve.PolicyNotHeld,
            apply.EnforcementError, metadata.MetadataError,
            memorytune.MemoryTuneError, pci_topology.DeviceNumaError,
            desired.DomainError, policies.PolicyError)


class GhschedLibvirtDriver(libvirt_driver.LibvirtDriver):
    """Nova's libvirt driver with memory bandwidth per host NUMA node."""

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        super().__init__(virtapi, read_only)
        self._ghsched = engine.HostEngine(compat.config().ghsched)
        self._ghsched.running = self._all_running
        # Nova keeps its VIF driver here, see nova.virt.libvirt.driver.
        self.vif_driver = attach.PlacingVIFDriver(self._host)
        self._threads = scheduling.ThreadKeeper(
            compat.config().ghsched, dedicated=compat.dedicated_cpus())
        compat.around_launch(self._host, self._launch)
        self._pci_devices: list[dict[str, Any]] = []
        self._numa_nodes: tuple[int, ...] = ()
        self._offered: tuple[tree.Provider, ...] = ()
        self._last_running: list[desired.Running] = []
        # Whether the host is reporting; Placement is told with claims, too.
        self._reporting = False
        self._pci_placer = pci_providers.Placer(_placement)
        self._bandwidth_use = bandwidth_use.BandwidthUse(
            compat.config().ghsched)
        self._load_use = load_use.LoadUse(
            compat.config().ghsched, self._tell_of_bottleneck)
        self._diagnostics = guest_diagnostics.GuestDiagnostics(
            bandwidth_use.BandwidthUse(compat.config().ghsched),
            self._ghsched, lambda: self._load_use.load)
        self._traffic = traffic.GuestTraffic(compat.config().ghsched)
        # What was read of a policy must not be written when it has changed.
        self._changing = threading.RLock()
        self._policy_endpoint = rpc.PolicyEndpoint(
            self._ghsched, self._host, self._changing, self._tell_news)

    def init_host(self, host: str) -> None:
        try:
            conf.check(compat.config().ghsched)
        except ValueError as error:
            raise exception.InvalidConfiguration(
                f'nova.conf: {error}') from error
        super().init_host(host)
        self._ghsched.extended = self._libvirt_keeps_extended()
        self._ghsched.process_groups = self._libvirt_groups_processes()
        self._ghsched.numa_element = self._libvirt_keeps_numa_element()
        self._ghsched.describe()
        self._ghsched.warn_of_open_directory()
        compat.wrap_attach_interface(self.virtapi, functools.partial(
            attach.telling_why, nodes=_nodes_of_devices))
        self._reassert()
        compat.add_endpoint(self.virtapi, self._policy_endpoint)

    # -- what Placement is told -----------------------------------------------

    def update_provider_tree(self, provider_tree: Any, nodename: str,
                             allocations: Any = None) -> None:
        groups_before = providers.held_groups(provider_tree, nodename)
        client = _placement()
        super().update_provider_tree(provider_tree, nodename,
                                     allocations=allocations)
        self._offered = providers.update(
            provider_tree, nodename,
            self._description(),
            conf.tree_config(compat.config().ghsched), groups_before,
            client.usages, client.holders)
        if compat.config().pci.report_in_placement:
            self._pci_placer.update(
                provider_tree, nodename, pci_providers.wanted_nodes(
                    self._pci_devices, compat.device_tags(), nodename))
        # super() kept a copy from before our part.
        self.provider_tree = provider_tree
        self._look_for_uncounted(provider_tree.data(nodename).uuid)

    def _look_for_uncounted(self, root: str) -> None:
        if not self._reporting:
            return
        self._reporting = False
        try:
            here = {(guest.uuid, guest.id) for guest
                    in self._host.list_guests(only_running=True)}
            self._ghsched.uncounted = counted.look(
                [one for one in self._last_running
                 if (one.domain.uuid, one.domain.id) in here], root,
                compat.config().ghsched.bandwidth_accounting,
                _placement().holders)
        except Exception as error:
            LOG.warning('ghsched: whether Placement counts what guests are '
                        'promised is not known: %s', error)

    def _description(self) -> HostDescription:
        found = self._ghsched.describe(self._stopped())
        return dataclasses.replace(
            found, numa_nodes=self._numa_nodes,
            capabilities=found.capabilities | self._threads.capabilities())

    def _get_pci_passthrough_devices(self) -> str:
        """Keep what is reported just before the provider tree is asked for.
        """
        devices = str(super()._get_pci_passthrough_devices())
        self._pci_devices = jsonutils.loads(devices)
        return devices

    def _stopped(self) -> list[desired.Running]:
        """Guests that may start again, where they would share a group."""
        if not self._ghsched.shares:
            return []
        return [self._running(guest) for guest
                in self._host.list_guests(only_running=False)
                if not _is_active(guest)]

    def _get_host_numa_topology(self) -> Any:
        """Let the claim be steered to a host NUMA node, see compat."""
        topology = super()._get_host_numa_topology()
        cells = topology.cells if topology is not None else ()
        for cell in cells:
            compat.add_physnet(cell, names.node_physnet(cell.id))
        self._numa_nodes = tuple(sorted(cell.id for cell in cells))
        return topology

    def get_available_resource(self, nodename: str) -> Any:
        self._reassert()
        self._reporting = True
        running = self._last_running
        resources = self._bandwidth_use.added_to(
            super().get_available_resource(nodename),
            load_use.guests(running))
        return self._with_headroom(self._load_use.added_to(
            resources, running, self._bandwidth_use.last))

    def _tell_of_bottleneck(self, change: bottleneck.Change,
                            payload: dict[str, Any]) -> None:
        compat.notify('ghsched.numa_node.bottleneck.'
                      + ('start' if change.begins else 'end'),
                      {'host': compat.config().host, **payload})

    def _with_headroom(self, resources: Any) -> Any:
        """What is left, for the schedulers' index; it is only a hint."""
        try:
            running = self._last_running
            known = {guest.domain.uuid for guest in running}
            guests = [*running, *(
                self._running(guest) for guest
                in self._host.list_guests(only_running=False)
                if guest.uuid not in known)]
            xmls = [guest.xml for guest in guests]
            self._traffic.look(xmls)
            found = left.of(self._offered, self._numa_nodes, xmls,
                            compat.config().ghsched.bandwidth_accounting,
                            time.time())
            if found is not None:
                resources['stats'] = {**(resources.get('stats') or {}),
                                      **headroom.write(found)}
        except Exception as error:
            LOG.warning('ghsched: what is left is not reported: %r', error)
        return resources

    def get_diagnostics(self, instance: Any) -> Any:
        """With what the host has set for the guest."""
        guest = self._host.get_guest(instance)
        return self._traffic.added_to(self._diagnostics.added_to(
            super().get_diagnostics(instance), guest), guest)

    # -- before anything starts -----------------------------------------------

    def spawn(self, context: Any, instance: Any, image_meta: Any,
              injected_files: Any, admin_password: Any, allocations: Any,
              *args: Any, **kwargs: Any) -> Any:
        rest = (image_meta, injected_files, admin_password, allocations)
        if not compat.is_rebuilt_in_place(instance):
            self._check_agreement(instance, instance.numa_topology,
                                  allocations, pci_requests.nodes_of(instance))
            return super().spawn(context, instance, *rest, *args, **kwargs)
        # Nothing is claimed again, so there is nothing to agree with.
        try:
            return super().spawn(context, instance, *rest, *args, **kwargs)
        except exception.ComputeResourcesUnavailable as error:
            # Nova would take it for a failed claim, give the allocation up
            # and tell that the guest, which is gone, is ACTIVE.
            raise exception.InstanceDeployFailure(
                reason=str(error)) from error

    def finish_migration(self, context: Any, migration: Any, instance: Any,
                         disk_info: Any, network_info: Any, image_meta: Any,
                         resize_instance: Any, allocations: Any,
                         *args: Any, **kwargs: Any) -> Any:
        self._check_agreement(instance, instance.numa_topology, allocations,
                              pci_requests.nodes_of(instance))
        return super().finish_migration(
            context, migration, instance, disk_info, network_info,
            image_meta, resize_instance, allocations, *args, **kwargs)

    def _check_agreement(
            self, instance: Any, topology: Any, allocations: Any,
            vfs: Sequence[tuple[int, int | None]] = ()) -> None:
        """Refuse a guest whose claim and allocation name different nodes.

        :param vfs: guest and host NUMA node of each VF.
        :raises nova.exception.ComputeResourcesUnavailable: Nova then tries
            the next host.
        """
        try:
            policy = _policy(instance)
            if policy is None:
                return
            cells = compat.host_cells(topology)
            agreement.check(
                policy, compat.config().ghsched.bandwidth_accounting,
                cells, allocations or {}, self._host.get_node_uuid(), vfs,
                self._ghsched.can_join(policy, cells))
        except (policies.PolicyError, agreement.Disagreement) as error:
            raise refusal.of(error, instance) from error

    # -- guest XML ------------------------------------------------------------

    def _get_guest_xml(self, context: Any, instance: Any, *args: Any,
                       **kwargs: Any) -> str:
        xml = super()._get_guest_xml(context, instance, *args, **kwargs)
        try:
            policy = _policy(instance)
            if policy is None:
                return str(xml)
            nodes = compat.host_cells(instance.numa_topology)
            xml = self._ghsched.place_devices(
                self._threads.render(
                    self._ghsched.render(xml, policy, nodes), policy), policy,
                [device_numa.Device(device.address, device.numa_node)
                 for device in _claimed(instance)], nodes)
            version = self._libvirt_version()
            return locked_memory.render_locked_memory(guest_topology.show(
                compat.config().ghsched, xml, policy, nodes, version), version)
        except NOT_HELD as error:
            raise refusal.of(error, instance) from error

    def _libvirt_version(self) -> tuple[int, ...]:
        text = versionutils.convert_version_to_str(
            self._host.get_connection().getLibVersion())
        return tuple(versionutils.convert_version_to_tuple(text))

    def attach_interface(self, context: Any, instance: Any, image_meta: Any,
                         vif: Any) -> Any:
        """Attach a passthrough port where the guest sees its NUMA node.

        :raises PortRefused: under ``required``, when there is no such place.
        """
        guest = self._host.get_guest(instance)
        where = self._place_of(guest, _claimed(instance))
        if where is None or vif['vnic_type'] not in attach.PASSTHROUGH:
            return super().attach_interface(context, instance, image_meta,
                                            vif)
        try:
            with self.vif_driver.placing(where):
                return super().attach_interface(context, instance, image_meta,
                                                vif)
        except pci_topology.DeviceNumaError as error:
            LOG.error('ghsched: the port is not attached: %s', error,
                      instance=instance)
            self.vif_driver.unplug(instance, vif)
            raise attach.PortRefused from error

    def _attach_pci_devices(self, guest: Any, pci_devs: Any) -> Any:
        """Devices that come back after a suspension or a cold snapshot."""
        return super()._attach_pci_devices(self._placed(guest, pci_devs),
                                           pci_devs)

    def _attach_direct_passthrough_ports(
            self, context: Any, instance: Any, guest: Any,
            network_info: Any = None) -> Any:
        return super()._attach_direct_passthrough_ports(
            context, instance, self._placed(guest, _claimed(instance)),
            network_info)

    def _placed(self, guest: Any, pci_devices: Iterable[Any]) -> Any:
        """The guest, for devices that are attached to it."""
        where = self._place_of(guest, pci_devices)
        return guest if where is None else attach.PlacedGuest(guest, where)

    def _place_of(self, guest: Any, pci_devices: Iterable[Any]
                  ) -> attach.Place | None:
        """How devices are attached to a guest; None: as Nova does it."""
        domain = metadata.read(guest.get_xml_desc())
        if domain is None or domain.policy.device_numa == device_numa.NONE:
            return None
        mode = domain.policy.device_numa
        nodes = {device.address: device.numa_node for device in pci_devices}
        distances = self._ghsched.distances()

        def where(device_xml: str) -> str:
            # The guest's ports fill up with each device.
            return attach.place(device_xml, guest.get_xml_desc(), nodes, mode,
                                self._ghsched.numa_element, distances)
        return where

    # -- a guest starts -------------------------------------------------------

    def _create_guest(self, context: Any, xml: str, instance: Any,
                      power_on: bool = True, pause: bool = False,
                      post_xml_callback: Any = None) -> Any:
        """Start the guest paused, apply its policy, then let it run.

        libvirt moves the vCPU threads into the control group while the guest
        is paused, so nothing of it runs before its policy holds.
        """
        if not (power_on or pause) or not self._starts_paused(xml):
            return super()._create_guest(
                context, xml, instance, power_on=power_on, pause=pause,
                post_xml_callback=post_xml_callback)
        guest = super()._create_guest(
            context, xml, instance, power_on=power_on, pause=True,
            post_xml_callback=post_xml_callback)
        self._enforce_or_stop(guest, instance)
        if not pause:
            guest.resume()
        self._tell_news(context, instance)
        return guest

    def _starts_paused(self, xml: str) -> bool:
        """Whether there is something to do before a guest may run."""
        return desired.has_policy(xml) or self._ghsched.caps_all

    def _launch(self, launch: Callable[..., Any], guest: Any, instance: Any,
                pause: bool = False) -> None:
        """Start a domain that is defined already, as :meth:`_create_guest`.

        For a soft reboot and the end of a cold snapshot.
        """
        if not self._starts_paused(guest.get_xml_desc()):
            launch(pause=pause)
            return
        launch(pause=True)
        self._enforce_or_stop(guest, instance)
        if not pause:
            guest.resume()

    def _tell_news(self, context: Any, instance: Any) -> None:
        """Report a shared group while others may be looking for one."""
        if not self._ghsched.has_news:
            return
        try:
            compat.report_resources(self.virtapi, context, instance)
        except Exception as error:
            LOG.warning('ghsched: who shares control groups is told with the '
                        'next report of the host: %s', error,
                        instance=instance)

    def _soft_reboot(self, instance: Any) -> Any:
        """Somebody else may have started the guest while Nova waited."""
        done = super()._soft_reboot(instance)
        if done:
            self._enforce_or_stop(self._host.get_guest(instance), instance)
        return done

    def _resume_guest_after_snapshot(
            self, context: Any, live_snapshot: Any,
            original_power_state: Any, instance: Any, guest: Any) -> None:
        """Devices were attached since the guest was started."""
        restarted = self._needs_suspend_resume_for_snapshot(
            live_snapshot, original_power_state)
        try:
            super()._resume_guest_after_snapshot(
                context, live_snapshot, original_power_state, instance,
                guest)
        finally:
            if restarted and guest.is_active():
                self._enforce_or_stop(guest, instance)

    def _enforce_or_stop(self, guest: Any, instance: Any) -> None:
        """A guest whose policy cannot be held does not run.

        One without a policy does: it has been promised nothing.

        :raises nova.exception.ComputeResourcesUnavailable: with the reason.
        """
        try:
            self._enforce(guest)
        except Exception as error:
            if not self._ghsched.promises(
                    desired.of(guest.get_xml_desc())):
                LOG.warning('ghsched: the guest runs without the cap for '
                            'guests without a policy: %s', error,
                            instance=instance)
                return
            LOG.error('ghsched: the policy of the guest cannot be held, it '
                      'is stopped: %s', error, instance=instance)
            _stop(guest, instance)
            self._ghsched.forget(instance.uuid)
            if not isinstance(error, NOT_HELD):
                raise
            raise refusal.of(error, instance) from error

    def _enforce(self, guest: Any) -> None:
        xml = guest.get_xml_desc()
        self._ghsched.enforce(guest.id, xml)
        self._threads.settle(desired.of(xml, guest.id))

    def _reassert(self) -> None:
        """Make resctrl hold the policy of every guest that runs.

        After a restart of nova-compute, and with each report of resources. A
        guest that cannot be helped is told in the log and left running: it
        was protected when it started, and stopping it now would be worse.
        """
        with self._changing:
            self._reassert_all()
        self._threads.reconcile(self._last_running)

    def _reassert_all(self) -> None:
        try:
            problems = self._ghsched.reconcile()
        except Exception:
            # Whatever is wrong with resctrl, the host has to report.
            LOG.exception('ghsched: the policies of guests cannot be looked '
                          'after')
            return
        if not problems:
            return
        guests = {guest.uuid: guest for guest
                  in self._host.list_guests(only_running=True)}
        for problem in problems:
            guest = guests.get(problem.guest)
            if guest is None:
                LOG.warning('ghsched: %s', problem)
            elif _is_active(guest):
                LOG.error('ghsched: the policy of %(name)s does not hold: '
                          '%(problem)s',
                          {'name': guest.name, 'problem': problem})

    def _all_running(self) -> list[desired.Running]:
        guests = self._host.list_guests(only_running=True)
        self._last_running = [self._running(guest) for guest in guests]
        return self._last_running

    def _running(self, guest: Any) -> desired.Running:
        """A guest with its XML, where libvirt gives it."""
        domain = model.Domain(guest.uuid, guest.id, guest.name)
        try:
            xml = guest.get_xml_desc()
        except libvirt_driver.libvirt.libvirtError as error:
            if _is_active(guest):
                LOG.error('ghsched: libvirt does not give the XML of '
                          '%(name)s: %(error)s',
                          {'name': guest.name, 'error': error})
            return desired.Running(domain)
        return desired.Running(domain, xml)

    # -- a guest ends ---------------------------------------------------------

    def power_off(self, instance: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().power_off(instance, *args, **kwargs)
        self._ghsched.forget(instance.uuid)
        return result

    def cleanup(self, context: Any, instance: Any, *args: Any,
                **kwargs: Any) -> Any:
        """After delete, and on the host that a guest has left."""
        result = super().cleanup(context, instance, *args, **kwargs)
        self._ghsched.forget(instance.uuid)
        return result

    # -- live migration -------------------------------------------------------

    def check_source_migrate_data_at_dest(self, ctxt: Any, instance: Any,
                                          migrate_data: Any,
                                          migration: Any, limits: Any,
                                          allocs: Any) -> Any:
        topology = _topology_here(instance)
        self._check_domain_numbers(instance)
        try:
            if topology is not None:
                self._check_agreement(instance, topology, allocs)
        except exception.ComputeResourcesUnavailable as error:
            raise exception.MigrationPreCheckError(
                reason=str(error)) from error
        self._check_arrival(instance)
        return super().check_source_migrate_data_at_dest(
            ctxt, instance, migrate_data, migration, limits, allocs)

    def pre_live_migration(self, context: Any, instance: Any, *args: Any,
                           **kwargs: Any) -> Any:
        """The last word of the destination; Nova rolls a refusal back."""
        self._check_arrival(instance)
        return super().pre_live_migration(context, instance, *args, **kwargs)

    def _check_arrival(self, instance: Any) -> None:
        """Refuse a guest while it can still stay where it is.

        :raises nova.exception.MigrationPreCheckError: with the reason.
        """
        try:
            policy, topology = _policy(instance), _topology_here(instance)
            if policy is not None and topology is not None:
                arrival.check(self._ghsched, policy,
                              compat.host_cells(topology))
        except NOT_HELD as error:
            LOG.warning('ghsched: the guest cannot come here: %s', error,
                        instance=instance)
            raise exception.MigrationPreCheckError(
                reason=f'ghsched: {error}') from error

    def check_can_live_migrate_source(self, context: Any, instance: Any,
                                      *args: Any, **kwargs: Any) -> Any:
        self._check_domain_numbers(instance)
        return super().check_can_live_migrate_source(
            context, instance, *args, **kwargs)

    def _check_domain_numbers(self, instance: Any) -> None:
        """The source renumbers the XML without seeing the destination.

        :raises nova.exception.MigrationPreCheckError: when it could not.
        """
        try:
            policy = _policy(instance)
            if policy is not None and policy.controlled:
                migration.check_numbering(self._ghsched.host())
        except NOT_HELD as error:
            raise exception.MigrationPreCheckError(
                reason=f'ghsched: {error}') from error

    def _live_migration_operation(self, context: Any, instance: Any,
                                  dest: Any, block_migration: Any,
                                  migrate_data: Any, guest: Any,
                                  device_names: Any) -> Any:
        moves = migration.node_moves(guest.get_xml_desc(), migrate_data)
        if moves:
            guest = migration.MovedGuest(guest, moves, self._retuned)
        return super()._live_migration_operation(
            context, instance, dest, block_migration, migrate_data, guest,
            device_names)

    def _retuned(self, xml: str) -> str:
        """For a guest whose policy has changed since it was started."""
        try:
            return self._ghsched.retune(xml)
        except NOT_HELD as error:
            LOG.warning('ghsched: the guest is migrated with the caps that '
                        'it was started with: %s', error)
            return xml

    def post_live_migration_at_destination(self, context: Any,
                                           instance: Any, *args: Any,
                                           **kwargs: Any) -> Any:
        result = super().post_live_migration_at_destination(
            context, instance, *args, **kwargs)
        self._protect_arrived(instance)
        return result

    def _protect_arrived(self, instance: Any) -> None:
        """Enforce the policy of a guest that runs here already.

        Where libvirt makes the control group its cap holds from the start;
        all else holds from here on. The source is gone, so whatever goes
        wrong is told, and tried again with each report of resources.
        """
        try:
            guest = self._host.get_guest(instance)
            self._enforce(guest)
        except Exception as error:
            self._ghsched.not_held[instance.uuid] = str(error)
            LOG.error('ghsched: the policy of %(name)s does not hold: '
                      '%(problem)s; it has arrived by live migration and '
                      'runs on', {'name': instance.name, 'problem': error},
                      instance=instance)

    # -- what libvirt can -----------------------------------------------------

    def _libvirt_keeps_extended(self) -> bool:
        """Whether libvirt keeps min_bandwidth, hardlimit and priority."""
        choice = compat.config().ghsched.memorytune_attributes
        if choice != 'auto':
            return bool(choice == 'extended')
        return self._libvirt_keeps(memorytune.probe_xml(),
                                   memorytune.keeps_extended)

    def _libvirt_groups_processes(self) -> bool:
        """Whether libvirt makes a group for a whole QEMU, if that is wanted.
        """
        if compat.config().ghsched.control_threads != 'all':
            return False
        return self._libvirt_keeps(memorytune.process_probe_xml(),
                                   memorytune.keeps_process)

    def _libvirt_keeps_numa_element(self) -> bool:
        """Whether libvirt keeps ``<numa node='N'/>`` in a device."""
        choice = compat.config().ghsched.device_numa_renderer
        if choice != 'auto':
            return bool(choice == 'element')
        return self._libvirt_keeps(device_numa.probe_xml(),
                                   device_numa.keeps_numa_element)

    def _libvirt_keeps(self, xml: str, kept: Callable[[str], bool]) -> bool:
        """Define a domain that never starts, and read it back.

        Upstream libvirt drops what it does not know without a word. The
        probes are KVM guests, as memorytune has to be, so a host of other
        guests is not asked; Nova would log an error at each start.
        """
        if compat.config().libvirt.virt_type != 'kvm':
            return False
        try:
            probe = libvirt_guest.Guest.create(xml, self._host)
        except libvirt_driver.libvirt.libvirtError as error:
            LOG.info('ghsched: libvirt does not take a probe: %s', error)
            return False
        try:
            return kept(probe.get_xml_desc())
        finally:
            probe.delete_configuration()


def _placement() -> PlacementClient:
    return PlacementClient(compat.placement_client())


def _is_active(guest: Any) -> bool:
    """Whether a guest runs; one that has gone meanwhile does not."""
    try:
        return bool(guest.is_active())
    except libvirt_driver.libvirt.libvirtError:
        return False


def _stop(guest: Any, instance: Any) -> None:
    """Stop a guest; why that is done is more than that it cannot be."""
    try:
        guest.poweroff()
    except libvirt_driver.libvirt.libvirtError as error:
        LOG.warning('ghsched: libvirt does not stop the guest: %s', error,
                    instance=instance)


def _claimed(instance: Any) -> list[Any]:
    """The passthrough devices that an instance has claimed."""
    return list(instance.get_pci_devices())


def _nodes_of_devices(instance: Any) -> list[int]:
    """Host NUMA nodes on which all devices of an instance must be, if so."""
    policy = _policy(instance)
    if policy is None or policy.device_numa != device_numa.REQUIRED:
        return []
    return sorted(compat.host_cells(instance.numa_topology))


def _topology_here(instance: Any) -> Any:
    """The NUMA topology that a guest has claimed on its destination."""
    context = instance.migration_context
    return context.new_numa_topology if context else None


def _policy(instance: Any) -> policies.GuestPolicy | None:
    """What the flavor of an instance asks for.

    :raises PolicyError: when the flavor was made without our validators and
        the scheduler did not run (a forced host).
    """
    return policies.parse(instance.flavor.extra_specs,
                          len(compat.host_cells(instance.numa_topology)))

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

"""The part of the compute driver for live migration, on either side."""

from collections.abc import Iterator
import contextlib
import functools
from typing import Any

from nova import exception
from oslo_log import log as logging

from ghsched_nova.guest import device_numa
from ghsched_nova.guest import metadata
from ghsched_nova.guest import pci_topology
from ghsched_nova.host import arrival_check
from ghsched_nova.host import desired
from ghsched_nova.host import migration_xml
from ghsched_nova.nova_fixes import cut_off_live_migration
from ghsched_nova.nova_fixes import evacuated_live_migration
from ghsched_nova.nova_fixes import failed_live_migration
from ghsched_nova.nova_fixes import table as fixes
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova.virt import driver_base as base
from ghsched_nova.virt import moving_ports
from ghsched_nova.virt import refusal

LOG = logging.getLogger(__name__)

seam = registry.make_seam_decorator(registry.COMPUTE)


class MigratingDriver(base.DriverBase):
    """Driver that checks, renumbers and protects live migrated guests."""

    @seam('nova.virt.libvirt.driver.LibvirtDriver.live_migration',
          ('self', 'context', 'instance', 'dest', 'post_method',
           'recover_method', 'block_migration', 'migrate_data'))
    def live_migration(self, context: Any, instance: Any, dest: str,
                       post_method: Any, recover_method: Any,
                       block_migration: bool = False,
                       migrate_data: Any = None) -> None:
        migrate = super().live_migration
        if fixes.is_fix_applied_to('cut-off-live-migration', instance):
            migrate = functools.partial(
                cut_off_live_migration.live_migrate_and_verify, migrate,
                functools.partial(
                    cut_off_live_migration.wait_for_migration_job, self._host))
        migrate(context, instance, dest, post_method, recover_method,
                block_migration, migrate_data)

    def check_source_migrate_data_at_dest(self, ctxt: Any, instance: Any,
                                          migrate_data: Any,
                                          migration: Any, limits: Any,
                                          allocs: Any) -> Any:
        topology = base.get_destination_topology(instance)
        self._check_domain_numbers(instance)
        try:
            if topology is not None:
                self._check_allocated_nodes(instance, topology, allocs)
        except exception.ComputeResourcesUnavailable as error:
            raise exception.MigrationPreCheckError(
                reason=str(error)) from error
        self._check_arriving_guest(instance)
        self._check_arriving_ports(instance, migrate_data)
        return super().check_source_migrate_data_at_dest(
            ctxt, instance, migrate_data, migration, limits, allocs)

    def pre_live_migration(self, context: Any, instance: Any, *args: Any,
                           **kwargs: Any) -> Any:
        """Prepare this host for a guest that is live-migrated to it.

        If this host cannot enforce the guest's bandwidth policy, Nova rolls
        the live migration back.
        """
        self._check_arriving_guest(instance)
        return super().pre_live_migration(context, instance, *args, **kwargs)

    def _check_arriving_guest(self, instance: Any) -> None:
        """Refuse a live migration if this host cannot enforce the policy.

        The policy is the bandwidth policy of the arriving guest.

        :raises nova.exception.MigrationPreCheckError: with the reason.
        """
        try:
            policy = base.parse_policy(instance)
            topology = base.get_destination_topology(instance)
            if policy is not None and topology is not None:
                arrival_check.check_arrival(self._ghsched, policy,
                                            numa.list_host_nodes(topology))
                self._parts.check_arrival(
                    policy, topology.emulator_threads_policy
                    if 'emulator_threads_policy' in topology else None,
                    bool(shared.config().compute.cpu_shared_set))
        except refusal.NOT_HELD as error:
            LOG.warning('ghsched: refusing a live migration because this host '
                        'cannot enforce the bandwidth policy of the guest: '
                        '%s',
                        error, instance=instance)
            raise exception.MigrationPreCheckError(
                reason=f'ghsched: {error}') from error

    def _check_arriving_ports(self, instance: Any, migrate_data: Any) -> None:
        """Refuse a live migration if a port's device is on another NUMA node.

        Each device that this host has claimed for a port must be on a host
        NUMA node of the guest, if the flavor has
        ``ghsched:device_numa=required``.

        :raises nova.exception.MigrationPreCheckError: with the reason.
        """
        policy = base.parse_policy(instance)
        topology = base.get_destination_topology(instance)
        if (policy is None or topology is None
                or policy.device_numa != device_numa.REQUIRED):
            return
        nodes = {device['address']: device.get('numa_node')
                 for device in self._pci_devices}
        try:
            moving_ports.assign_ports(
                moving_ports.list_moving_ports(migrate_data), nodes,
                numa.list_host_nodes(topology))
        except pci_topology.DeviceNumaError as error:
            raise _make_port_refusal(error, instance) from error

    def check_can_live_migrate_source(self, context: Any, instance: Any,
                                      *args: Any, **kwargs: Any) -> Any:
        self._check_domain_numbers(instance)
        return super().check_can_live_migrate_source(
            context, instance, *args, **kwargs)

    def _check_domain_numbers(self, instance: Any) -> None:
        """Refuse a live migration if resctrl domains and NUMA nodes differ.

        The number of each resctrl domain must be that of its NUMA node. The
        source writes the destination's NUMA nodes into ``<memorytune>`` of the
        guest's XML, because it does not know the resctrl domains of the
        destination. A guest without bandwidth limits has no such element.

        :raises nova.exception.MigrationPreCheckError: with the reason.
        """
        try:
            policy = base.parse_policy(instance)
            if policy is not None and any(
                    node.requests_bandwidth for node in policy.nodes):
                migration_xml.check_domain_numbering(
                    self._ghsched.read_resctrl_host())
        except refusal.NOT_HELD as error:
            raise exception.MigrationPreCheckError(
                reason=f'ghsched: {error}') from error

    @seam('nova.virt.libvirt.driver.LibvirtDriver._live_migration_operation',
          ('self', 'context', 'instance', 'dest', 'block_migration',
           'migrate_data', 'guest', 'device_names'))
    def _live_migration_operation(self, context: Any, instance: Any,
                                  dest: Any, block_migration: Any,
                                  migrate_data: Any, guest: Any,
                                  device_names: Any) -> Any:
        xml = guest.get_xml_desc()
        self._check_leaving_ports(context, instance, dest, xml, migrate_data)
        return super()._live_migration_operation(
            context, instance, dest, block_migration, migrate_data,
            self._renumber_guest(instance, guest, xml, migrate_data),
            device_names)

    def _renumber_guest(self, instance: Any, guest: Any, xml: str,
                        migrate_data: Any) -> Any:
        """Return a guest whose XML has the destination's NUMA nodes.

        :param guest: Guest of nova.virt.libvirt.guest, which is returned if
            the domain has no policy.
        :param xml: live XML of the domain.
        :raises nova.exception.MigrationPreCheckError: if the domain cannot
            get these NUMA nodes. Nova rolls the live migration back.
        """
        try:
            if metadata.read_policy(xml) is None:
                return guest
            renumbered = migration_xml.MigratingGuest(
                guest, self._ghsched.domain_xml,
                migration_xml.list_destination_nodes(migrate_data))
            renumbered.render(xml)
        except (*refusal.NOT_HELD, migration_xml.NotRenumbered) as error:
            LOG.error('ghsched: refusing a live migration because the '
                      'bandwidth policy of the guest cannot be written for '
                      'the NUMA nodes of the destination: %s', error,
                      instance=instance)
            raise exception.MigrationPreCheckError(
                reason='ghsched: the bandwidth policy of the guest cannot be '
                'written for the NUMA nodes of the destination; hard reboot '
                'the server and try again') from error
        return renumbered

    def _check_leaving_ports(self, context: Any, instance: Any, dest: str,
                             xml: str, migrate_data: Any) -> None:
        """Refuse a live migration if a device has no PCI port on its node.

        The PCI buses of the guest's NUMA nodes must have enough free PCI ports
        for the devices of its passthrough ports. This is checked on the
        source, because only the source knows the PCI ports of the guest. It
        applies to ``ghsched:device_numa=required`` only.

        :param xml: live XML of the domain.
        :raises nova.exception.MigrationPreCheckError: with the reason. Nova
            rolls the live migration back.
        """
        ports = moving_ports.list_moving_ports(migrate_data)
        domain = metadata.read_policy(xml) if ports else None
        if (domain is None or domain.policy.device_numa != device_numa.REQUIRED
                or self._ghsched.domain_xml.libvirt.numa_element):
            return
        try:
            guest_node_of = moving_ports.assign_ports(
                ports, moving_ports.read_device_nodes(context, dest),
                migration_xml.list_destination_nodes(migrate_data))
            moving_ports.check_free_pci_ports(xml, ports, guest_node_of)
        except pci_topology.DeviceNumaError as error:
            raise _make_port_refusal(error, instance) from error

    @seam('nova.virt.libvirt.driver.LibvirtDriver.'
          'rollback_live_migration_at_destination',
          ('self', 'context', 'instance', 'network_info', 'block_device_info',
           'destroy_disks', 'migrate_data'))
    def rollback_live_migration_at_destination(self, context: Any,
                                               instance: Any, *args: Any,
                                               **kwargs: Any) -> None:
        if fixes.is_fix_applied_to(
                'evacuated-live-migration',
                instance) and (evacuated_live_migration.runs_or_arrives_here(
                    context, instance)):
            LOG.warning('ghsched: not rolling back a live migration at this '
                        'destination because the guest has been evacuated to '
                        'this host', instance=instance)
            return
        with (failed_live_migration.saving_without_destination(instance)
              if fixes.is_fix_applied_to('failed-live-migration', instance)
              else contextlib.nullcontext()):
            super().rollback_live_migration_at_destination(
                context, instance, *args, **kwargs)

    def post_live_migration(self, context: Any, instance: Any, *args: Any,
                            **kwargs: Any) -> None:
        with self._continuing_after_copy(instance):
            super().post_live_migration(context, instance, *args, **kwargs)

    def post_live_migration_at_source(self, context: Any, instance: Any,
                                      network_info: Any) -> None:
        with self._continuing_after_copy(instance):
            super().post_live_migration_at_source(context, instance,
                                                  network_info)

    @contextlib.contextmanager
    def _continuing_after_copy(self, instance: Any) -> Iterator[None]:
        """Within this context, log errors of this source host's cleanup.

        The guest already runs on the destination of the live migration. After
        an exception on the source, Nova would neither release the devices of
        the source nor allocate those of the destination. If the fix
        ``live-migrated-devices`` is not applied to the server, errors are
        raised as in Nova.
        """
        try:
            yield
        except Exception as error:
            if not fixes.is_fix_applied_to('live-migrated-devices', instance):
                raise
            LOG.exception('ghsched: cannot clean up this source host after a '
                          'live migration, completing the live migration '
                          'because the guest has been copied; check the '
                          "guest's ports and volumes on this host: %s", error,
                          instance=instance)

    def post_live_migration_at_destination(self, context: Any,
                                           instance: Any, *args: Any,
                                           **kwargs: Any) -> Any:
        try:
            return super().post_live_migration_at_destination(
                context, instance, *args, **kwargs)
        finally:
            # The guest runs here even if Nova fails.
            self._enforce_after_migration(instance)

    def _enforce_after_migration(self, instance: Any) -> None:
        """Enforce a live-migrated guest's bandwidth policy; never raise.

        The guest already runs on this host. An error is therefore logged, and
        nova-compute's next periodic report retries. If libvirt creates the
        control group, the guest is capped from the start.
        """
        try:
            guest = self._host.get_guest(instance)
            self._reconcile_arrived_guest(guest)
        except Exception as error:
            self._ghsched.not_held[instance.uuid] = str(error)
            LOG.error('ghsched: cannot enforce the bandwidth policy of guest '
                      '%(name)s after its live migration to this host; '
                      'retrying in the next periodic task: %(problem)s',
                      {'name': instance.name, 'problem': error},
                      instance=instance)
            # Features note it, and enforce what is theirs.
            with contextlib.suppress(Exception):
                guest = self._host.get_guest(instance)
                self._parts.reconcile_guest(desired.parse_running_domain(
                    guest.get_xml_desc(), guest.id), has_arrived=True)


def _make_port_refusal(error: pci_topology.DeviceNumaError,
                       instance: Any) -> exception.MigrationPreCheckError:
    """Log and return the refusal of a live migration for a passthrough port.

    :returns: the exception to raise.
    """
    LOG.warning('ghsched: refusing a live migration because the guest would '
                'not see the NUMA node of a passthrough port at the '
                'destination: %s', error, instance=instance)
    return exception.MigrationPreCheckError(
        reason=f'ghsched:device_numa=required: {error}')

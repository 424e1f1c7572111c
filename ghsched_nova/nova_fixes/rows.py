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

"""Table of the fixes of Nova bugs; the manual reads it without Nova."""

from dataclasses import dataclass
import importlib
from typing import Any

from ghsched_nova.nova_seams import registry


@dataclass(frozen=True)
class Fix:
    """A fix of one Nova bug, applied as a patch of Nova's functions.

    :param name: name of the page in ``doc/source/contributor/upstream`` and
        of the module in this package.
    :param processes: services that apply the fix.
    :param servers: servers on which the fix acts. ``ours`` are those whose
        flavor has extra specs of ghsched. ``none`` means that it acts on a
        connection of the process, not on servers.
    :param bug: number of the bug in Launchpad; None if it is not reported.
    :param fixed_in: releases of Nova that have the bug fixed, for people;
        empty for none.
    :param fixed_source: patch of ``tools/upstream/nova``, module and text of
        each piece of the source of a Nova that has the bug fixed. White space
        does not count. Such a Nova, of whatever release, does not get this
        fix.
    """

    name: str
    processes: tuple[str, ...]
    servers: str = 'ours'
    bug: int | None = None
    fixed_in: str = ''
    fixed_source: tuple[tuple[str, str, str], ...] = ()

    def import_module(self) -> Any:
        """Import and return the module that applies this fix of a Nova bug.

        A service imports only the modules of fixes that it applies.
        """
        name = self.name.replace('-', '_')
        return importlib.import_module(f'ghsched_nova.nova_fixes.{name}')

    def list_nova_functions(self, process: str | None = None
                            ) -> frozenset[str]:
        """Return the Nova functions that this fix of a Nova bug relies on.

        :param process: only those used in this service; None for all services.
        :returns: dotted names of the functions.
        """
        user = self.import_module().__name__
        return frozenset(
            seam.name for seam in registry.SEAMS.values()
            if user in seam.users
            and (process is None or process in seam.processes))


_API, _SCHEDULER, _COMPUTE = registry.PROCESSES

_MANAGER = 'nova.compute.manager'
_DRIVER = 'nova.virt.libvirt.driver'

FIXES = (
    Fix('cut-off-live-migration', (_COMPUTE,), fixed_source=(
        ('0008', _DRIVER, 'operation_ex = future.exception()'),
        ('0014', _MANAGER, 'def _get_cut_off_live_migration('),
        ('0015', _DRIVER, 'def _wait_for_migrating_guest('))),
    Fix('deleted-while-resized', (_API,), fixed_source=(
        ('0013', _MANAGER, '# Do not reset the task_state. It is None, or'),)),
    Fix('devices-of-far-pf', (_COMPUTE, _SCHEDULER), fixed_source=(
        ('0012', 'nova.pci.stats', 'def _get_usable_count('),)),
    Fix('evacuated-devices', (_COMPUTE,), fixed_source=(
        ('0004', 'nova.objects.instance',
         'if source is not None or request_id is None:'),)),
    Fix('evacuated-live-migration', (_API, _COMPUTE), fixed_source=(
        ('0009', 'nova.conductor.manager', 'def _end_live_migrations('),
        ('0023', _MANAGER, 'def _is_evacuated_here('))),
    Fix('failed-build', (_COMPUTE,), fixed_source=(
        ('0021', _MANAGER, 'def _destroy_unsaved_instance('),)),
    Fix('failed-live-migration', (_COMPUTE,), fixed_source=(
        ('0007', _DRIVER, 'if not has_migration_context or instance.host =='),
        ('0016', _MANAGER,
         'try: self._revert_allocation(context, instance, migration)'
         ' except Exception: # Do not re-raise because the guest'))),
    Fix('failed-post-live-migration', (_COMPUTE,), fixed_source=(
        ('0019', _MANAGER,
         'def _delete_allocation_of_failed_post_live_migration('),)),
    Fix('failed-rebuild', (_COMPUTE,), fixed_source=(
        ('0001', _MANAGER,
         'if evacuate: self.rt.delete_allocation_for_evacuated_instance('),)),
    Fix('failed-resize-flavor', (_COMPUTE,), fixed_source=(
        ('0006', _MANAGER,
         '# to create the guest. Neither do we reset the flavor'),)),
    Fix('libvirtd-restart-deadlock', (_COMPUTE,), servers='none',
        fixed_source=(('0002', 'nova.virt.libvirt.host',
                       'self._wrapped_conn_lock = threading.RLock()'),)),
    Fix('live-migrated-devices', (_COMPUTE,), fixed_source=(
        ('0018', 'nova.virt.libvirt.migration', 'def _get_hostdev_address('),
        ('0020', 'nova.pci.manager',
         "if not (mig.is_live_migration and mig.status == 'error')"),
        ('0022', _MANAGER, 'Ignoring exception while cleaning up the source'
         ))),
    # No release names limits to a host that an admin forces, and a conductor
    # of an older release names none to a host of 34 either.
    Fix('live-migration-limits', (_COMPUTE,), bug=2153425,
        fixed_in='34, but for a forced host'),
    Fix('placement-retries', (_API, _COMPUTE), fixed_source=(
        ('0003', 'nova.scheduler.client.report',
         'def _delete_allocation_by_generation('),)),
    Fix('rolled-back-resize', (_API,), fixed_source=(
        ('0005', 'nova.compute.api', 'def _get_request_spec_for_move('),)))

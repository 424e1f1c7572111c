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


"""The repairs of Nova, and which of them this process applies.

``[ghsched]nova_fixes`` chooses: ``auto`` applies what this release of Nova
lacks, ``none`` applies nothing, names apply those.
"""

from collections.abc import Collection
from collections.abc import Iterator
from dataclasses import dataclass

from oslo_log import log as logging

from ghsched_nova import compat
from ghsched_nova.nova_seams import signatures

LOG = logging.getLogger(__name__)

AUTO = 'auto'
NONE = 'none'

_TRACKER = 'nova.compute.resource_tracker.ResourceTracker.'
_MANAGER = 'nova.compute.manager.ComputeManager.'
_CLIENT = 'nova.scheduler.client.report.SchedulerReportClient.'
_HOST = 'nova.virt.libvirt.host.Host.'


@dataclass(frozen=True)
class Fix:
    """A repair of one defect of Nova.

    :param name: of the page in ``doc/source/contributor/upstream``.
    :param processes: where it is applied.
    :param names: functions of Nova that no feature relies on besides.
    :param servers: ``ours``: servers whose flavor has a key of ghsched;
        ``none``: it acts on no server, but on a connection of the process.
    :param bug: number at Launchpad.
    :param until: release of Nova that has the repair; None for none.
    """

    name: str
    processes: tuple[str, ...]
    names: tuple[str, ...]
    servers: str = 'ours'
    bug: int | None = None
    until: int | None = None


FIXES = (
    Fix('cut-off-live-migration', (signatures.COMPUTE,),
        (f'{_MANAGER}_reset_live_migration',)),
    Fix('deleted-while-resized', (signatures.API,),
        ('nova.compute.api.API._confirm_resize_on_deleting',)),
    Fix('devices-of-far-pf', (signatures.COMPUTE, signatures.SCHEDULER),
        ('nova.pci.stats.PciDeviceStats._filter_pools',)),
    Fix('evacuated-devices', (signatures.COMPUTE,),
        ('nova.objects.instance.Instance.get_pci_devices',)),
    Fix('evacuated-live-migration', (signatures.API, signatures.COMPUTE),
        ('nova.conductor.api.ComputeTaskAPI.rebuild_instance',
         f'{_MANAGER}live_migration')),
    Fix('failed-live-migration', (signatures.COMPUTE,),
        (f'{_MANAGER}_revert_allocation',)),
    Fix('failed-rebuild', (signatures.COMPUTE,),
        (f'{_TRACKER}delete_allocation_for_evacuated_instance',)),
    Fix('failed-resize-flavor', (signatures.COMPUTE,),
        (f'{_MANAGER}_set_instance_info',)),
    Fix('libvirtd-restart-deadlock', (signatures.COMPUTE,),
        (f'{_HOST}_get_connection', f'{_HOST}_test_connection',
         f'{_HOST}_connection_closed'), servers='none'),
    # A conductor of an older release names no limits to a host of 34 either.
    Fix('live-migration-limits', (signatures.COMPUTE,),
        (f'{_TRACKER}live_migration_claim',), bug=2153425),
    Fix('placement-retries', (signatures.API, signatures.COMPUTE),
        (f'{_CLIENT}delete_allocation_for_instance',)),
    Fix('rolled-back-resize', (signatures.API,),
        tuple(f'nova.compute.api.API.{name}' for name in compat.MOVES)))

_BY_NAME = {fix.name: fix for fix in FIXES}


@dataclass(frozen=True)
class State:
    """Whether a repair is applied, and why not.

    :param text: ``applied``, ``not needed``, ``off`` or what differs.
    """

    applied: bool
    text: str


def own_names() -> frozenset[str]:
    """Return names of Nova that repairs alone rely on."""
    return frozenset(name for fix in FIXES for name in fix.names)


def unknown(chosen: Collection[str]) -> Iterator[str]:
    """Yield words of ``[ghsched]nova_fixes`` that name no repair (pure)."""
    return (word for word in chosen
            if word not in _BY_NAME and word not in (AUTO, NONE))


def state(fix: Fix, chosen: Collection[str], release: int,
          differ: Collection[signatures.Mismatch]) -> State:
    """Return whether a repair is applied (pure).

    :param chosen: words of ``[ghsched]nova_fixes``.
    :param differ: functions of the repair that this Nova has otherwise.
    """
    if fix.name not in chosen and AUTO not in chosen:
        return State(False, 'off')
    if fix.until is not None and release >= fix.until and (
            fix.name not in chosen):
        return State(False, 'not needed')
    if differ:
        return State(False, 'not applied, ' + '; '.join(map(str, differ)))
    return State(True, 'applied')


def state_here(fix: Fix) -> State:
    """Return whether a repair is applied with this Nova and configuration."""
    return state(fix, compat.config().ghsched.nova_fixes,
                 signatures.release(), signatures.mismatches(fix.names))


def applies(name: str) -> bool:
    """Whether a repair is to be applied; log one that Nova does not fit."""
    found = state_here(_BY_NAME[name])
    if not found.applied and found.text.startswith('not applied'):
        LOG.warning('ghsched: cannot apply the repair %(name)s of Nova: '
                    '%(state)s', {'name': name, 'state': found.text})
    return found.applied


def require(process: str) -> None:
    """Refuse to start a process whose Nova, or configuration, does not fit.

    :raises ghsched_nova.nova_seams.signatures.SeamsDiffer: naming what
        differs, and a word of ``[ghsched]nova_fixes`` that names no repair.
    """
    wrong = sorted(unknown(compat.config().ghsched.nova_fixes))
    if wrong:
        raise signatures.SeamsDiffer(
            f'[ghsched]nova_fixes names no repair of Nova: '
            f'{", ".join(wrong)}; known: {", ".join(sorted(_BY_NAME))}')
    signatures.require(process, own_names())

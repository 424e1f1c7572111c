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

"""Fix: compare PCI requests only with devices that Placement has allocated.

``PciDeviceStats._filter_pools`` decides by the number of free devices in each
pool, also where Placement has chosen how many devices come from which
provider. A pool near the guest with enough free devices then hides a far one
that the allocation names: the claim takes fewer devices than were asked for,
or is refused although all that Placement gave is free. See
``doc/source/contributor/upstream/devices-of-far-pf.rst``.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
import contextlib
import contextvars
from typing import Any

from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_seams import registry
from ghsched_placement.flavor import policy as policies

patch_both = patches.make_patch_decorator(registry.COMPUTE, registry.SCHEDULER)
patch_compute = patches.make_patch_decorator(registry.COMPUTE)
patch_scheduler = patches.make_patch_decorator(registry.SCHEDULER)

_TRACKER = 'nova.compute.resource_tracker.ResourceTracker'

#: Whether the flavor of the server that this thread schedules or claims has
#: ghsched extra specs.
_is_ours = contextvars.ContextVar('ghsched_devices_of_far_pf', default=False)


@contextlib.contextmanager
def limited_to_allocated_devices(flavor: Any) -> Iterator[None]:
    """Within this context, hide devices that Placement has not allocated.

    Nova then sees only allocated devices in its PCI pools. The context has no
    effect for a flavor without ghsched extra specs.
    """
    token = _is_ours.set('extra_specs' in flavor
                         and policies.has_ghsched_keys(flavor.extra_specs))
    try:
        yield
    finally:
        _is_ours.reset(token)


@patch_scheduler('nova.scheduler.manager.SchedulerManager._schedule',
                 ('self', 'context', 'spec_obj', 'instance_uuids',
                  'alloc_reqs_by_rp_uuid', 'provider_summaries',
                  'allocation_request_version', 'return_alternates'))
def _schedule_request(original: Callable[...,
                                         Any], scheduler: Any, context: Any,
                      spec_obj: Any, *args: Any, **kwargs: Any) -> Any:
    with limited_to_allocated_devices(spec_obj.flavor):
        return original(scheduler, context, spec_obj, *args, **kwargs)


@patch_compute(f'{_TRACKER}.instance_claim',
               ('self', 'context', 'instance', 'nodename', 'allocations',
                'limits'))
def _instance_claim(original: Callable[..., Any], tracker: Any, context: Any,
                    instance: Any, *args: Any, **kwargs: Any) -> Any:
    with limited_to_allocated_devices(instance.flavor):
        return original(tracker, context, instance, *args, **kwargs)


@patch_compute(f'{_TRACKER}._move_claim',
               ('self', 'context', 'instance', 'new_flavor', 'nodename',
                'migration', 'allocations', 'move_type', 'image_meta',
                'limits'))
def _move_claim(original: Callable[..., Any], tracker: Any, context: Any,
                instance: Any, new_flavor: Any, *args: Any,
                **kwargs: Any) -> Any:
    with limited_to_allocated_devices(new_flavor):
        return original(tracker, context, instance, new_flavor, *args,
                        **kwargs)


@patch_both('nova.pci.stats.PciDeviceStats._filter_pools',
            ('self', 'pools', 'request', 'numa_cells', 'rp_uuids'))
def _filter_pools(original: Callable[..., Any], pci_stats: Any,
                  pools: Sequence[Any], request: Any, numa_cells: Any,
                  rp_uuids: Sequence[str]) -> Any:
    """Call Nova's filter of PCI pools with only the allocated devices.

    A PCI pool is Nova's record of equal free devices on a host. Each pool's
    count is reduced to the number of devices that Placement allocated from it.
    If ``rp_uuids`` has fewer entries than devices are requested, which is so
    before the claim, Nova's own counts are used.

    :param original: Nova's ``PciDeviceStats._filter_pools``.
    :param rp_uuids: UUID of the resource provider of each allocated device.
    :returns: the pools that Nova's function accepts, with their full count.
    """
    if len(rp_uuids or ()) < request.count or not _is_ours.get():
        return original(pci_stats, pools, request, numa_cells,
                        rp_uuids=rp_uuids)
    given = Counter(rp_uuids)
    shown = [(_limit_device_count(pool, given), pool) for pool in pools
             if pool.get('rp_uuid') in given]
    kept = original(pci_stats, [view for view, _pool in shown], request,
                    numa_cells, rp_uuids=rp_uuids)
    if not kept:
        return kept
    known = {id(view): pool for view, pool in shown}
    return [known[id(view)] for view in kept]


def _limit_device_count(pool: Mapping[str, Any],
                        allocated: Mapping[str, int]) -> dict[str, Any]:
    """Return a copy of a PCI pool that counts only allocated devices.

    :param pool: Nova's record of equal free devices on a host.
    :param allocated: number of devices that Placement allocated, by resource
        provider.
    """
    return {**pool, 'count': min(pool['count'], allocated[pool['rp_uuid']])}

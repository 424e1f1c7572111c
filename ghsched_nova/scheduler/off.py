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

"""Filter and manager of nova-scheduler that are used if ghsched is off.

They are Nova's, but refuse servers whose flavor has a key of ghsched: Nova
alone would place them without the guarantees of the flavor.
"""

from collections.abc import Iterable
from typing import Any

from nova import exception
from nova import objects
from nova.scheduler.filters import numa_topology_filter
from nova.scheduler import manager
import oslo_messaging as messaging

from ghsched_nova.nova_seams import parts
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import scheduler


def is_off() -> bool:
    """Check the installed Nova; return whether ghsched is off with it."""
    parts.switch_off_parts(registry.SCHEDULER)
    return parts.is_service_off(registry.SCHEDULER)


def refuse_ghsched_request(arguments: Iterable[Any]) -> None:
    """Refuse a request whose flavor has a key of ghsched.

    A rebuild is not refused: it changes neither the host nor a guarantee.

    :param arguments: arguments of a method of Nova, in any order.
    :raises nova.exception.NoValidHost: with the reason.
    """
    for spec in arguments:
        if isinstance(spec, objects.RequestSpec) and (
                'extra_specs' in spec.flavor):
            reason = parts.find_refusal(registry.SCHEDULER,
                                        spec.flavor.extra_specs)
            if reason and not scheduler.is_rebuild(spec):
                raise exception.NoValidHost(reason=reason)


class RefusingFilter(numa_topology_filter.NUMATopologyFilter):
    """Nova's NUMATopologyFilter that refuses ghsched's keys."""

    def filter_all(self, *args: Any, **kwargs: Any) -> Any:
        refuse_ghsched_request((*args, *kwargs.values()))
        return super().filter_all(*args, **kwargs)


class RefusingManager(manager.SchedulerManager):
    """Nova's scheduler manager that refuses ghsched's keys."""

    @messaging.expected_exceptions(exception.NoValidHost)
    def select_destinations(self, *args: Any, **kwargs: Any) -> Any:
        """Select hosts as Nova does; refuse requests with ghsched's keys."""
        refuse_ghsched_request((*args, *kwargs.values()))
        return super().select_destinations(*args, **kwargs)

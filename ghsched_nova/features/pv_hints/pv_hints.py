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

"""Hints of KVM to guests, as a part of nova-compute."""

import dataclasses
import platform

from ghsched_nova.features.pv_hints import hint_xml
from ghsched_nova.guest import document
from ghsched_nova.host import compute_hooks
from ghsched_placement.base.errors import PolicyError
from ghsched_placement.features.pv_hints import hints_part
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.providers.host_description import HostDescription


class ParavirtualHints(compute_hooks.ComputeHooks):
    """Renderer of KVM's hints in domain XML.

    :param machine: hardware name of the host (``uname -m``).
    """

    def __init__(self, machine: str) -> None:
        self._machine = machine

    def describe_host(self, found: HostDescription) -> HostDescription:
        """Add the capability of KVM's hints to the description of an x86 host.
        """
        if self._machine not in document.X86:
            return found
        return dataclasses.replace(found, capabilities=found.capabilities
                                   | {hints_part.CAPABILITY})

    def render(self, xml: str, guest: compute_hooks.StartingGuest) -> str:
        """Return a domain XML with the hints that the guest's policy requests.

        :raises PolicyError: if the guest cannot see hints, or if they would be
            untrue on this host.
        """
        if not guest.policy.get_part(hints_part.HintsPart).is_dedicated:
            return xml
        return hint_xml.render_hints(xml)

    def check_arrival(self, policy: GuestPolicy, emulator_policy: str | None,
                      has_shared_cpus: bool) -> None:
        """Refuse a live migration if QEMU would run on the CPUs of the vCPUs.

        :param emulator_policy: the guest's ``hw:emulator_threads_policy``.
        :param has_shared_cpus: whether ``[compute]cpu_shared_set`` is set.
        :raises PolicyError: if the hints would be untrue on this host.
        """
        if (policy.get_part(hints_part.HintsPart).is_dedicated
                and emulator_policy == 'share' and not has_shared_cpus):
            raise PolicyError(hints_part.PV_HINTS.extra_spec, hint_xml.NO_CPUS)


def make_compute_hooks(_services: compute_hooks.ComputeServices
                       ) -> ParavirtualHints:
    """Return nova-compute's renderer of KVM's hints."""
    return ParavirtualHints(platform.machine())

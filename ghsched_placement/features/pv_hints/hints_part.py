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

"""Part of a guest's policy with hints about its vCPUs (pure)."""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass

from ghsched_placement.base.errors import PolicyError
from ghsched_placement.flavor import dedicated_cpus
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.parts import Feature
from ghsched_placement.flavor.parts import FlavorValues
from ghsched_placement.flavor.parts import PolicyPart

PV_HINTS = keys.Key(
    name='pv_hints', title='Paravirtual hints',
    kind='enum', per_node=False, default_text=keys.NONE,
    choices=(keys.NONE, 'dedicated'),
    summary='Whether KVM announces to the guest kernel that each vCPU has a '
            'host CPU of its own.',
    details='With dedicated KVM gives the guest hint-dedicated (spinlocks and '
            'TLB flushes as on bare metal, and an idle vCPU polls for a while '
            'before it halts) and poll-control (the host does not poll once '
            'more). Needs hw:cpu_policy=dedicated and '
            'hw:emulator_threads_policy, and an x86 host. Cannot be combined '
            'with ghsched:vcpu_scheduler=deadline, whose runtime an idle vCPU '
            'would use up, nor with hide_hypervisor_id, which hides the hints '
            'from the guest.')

CAPABILITY = 'PV_HINTS'

DEDICATED = 'dedicated'

#: Extra specs by which Nova hides KVM, and thus the hints, from the guest.
_HIDING = ('hide_hypervisor_id', 'hw:hide_hypervisor_id')


@dataclass(frozen=True)
class HintsPart(PolicyPart):
    """Hints that KVM gives to the kernel of a guest.

    :param is_dedicated: whether KVM announces to the guest kernel that each
        vCPU has a host CPU of its own.
    """

    is_dedicated: bool = False

    def get_needed_capabilities(self) -> frozenset[str]:
        return frozenset({CAPABILITY} if self.is_dedicated else ())

    def find_flavor_warnings(self, extra_specs: Mapping[str, str]
                             ) -> Iterator[str]:
        """Yield a warning if only some hosts can run the guest's emulator."""
        text = self.is_dedicated and dedicated_cpus.warn_of_shared_emulator(
            PV_HINTS, DEDICATED, extra_specs)
        if text:
            yield text


def parse_hints_part(flavor: FlavorValues) -> HintsPart:
    """Parse from a flavor whether its guests get hints about their vCPUs.

    :raises PolicyError: if vCPUs have no host CPUs of their own, if the kernel
        of the host would throttle an idle vCPU, or if the guest could not see
        the hints.
    """
    if flavor.values.get(PV_HINTS.name) != DEDICATED:
        return HintsPart()
    specs = flavor.extra_specs
    dedicated_cpus.check_dedicated_cpus(PV_HINTS, specs)
    if specs.get(keys.VCPU_SCHEDULER.extra_spec) == 'deadline':
        raise PolicyError(
            PV_HINTS.extra_spec,
            f'{DEDICATED} cannot be combined with '
            f'{keys.VCPU_SCHEDULER.extra_spec}=deadline: an idle vCPU would '
            'poll until its runtime is used up, and then stall')
    # Slow to import; few flavors need it.
    from oslo_utils import strutils

    for hiding in _HIDING:
        if strutils.bool_from_string(specs.get(hiding, '')):
            raise PolicyError(
                PV_HINTS.extra_spec,
                f'{DEDICATED} cannot be combined with {hiding}, which hides '
                'the hints from the guest')
    return HintsPart(is_dedicated=True)


#: Declaration of the feature.
FEATURE = Feature('pv_hints', (PV_HINTS,), HintsPart, parse_hints_part,
                  are_keys_checked_together=True,
                  capabilities={CAPABILITY: PV_HINTS})

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

"""KVM's hints in domains with ``ghsched:pv_hints=dedicated`` (pure).

KVM has them for x86 only (Documentation/virt/kvm/x86/cpuid.rst of Linux). With
the first a guest polls before it goes idle (drivers/cpuidle/
cpuidle-haltpoll.c), with the second it keeps the host from polling once more.
libvirt has ``hint-dedicated`` since 5.7.0 and ``poll-control`` since 6.10.0;
QEMU 4.2 and newer have both.
"""

from collections.abc import Sequence

from lxml import etree

from ghsched_nova.guest import document
from ghsched_nova.guest import thread_pins
from ghsched_placement.base.errors import PolicyError
from ghsched_placement.features.pv_hints import hints_part
from ghsched_placement.flavor.policy import GuestPolicy

_HINTS = ('hint-dedicated', 'poll-control')

#: Reason to refuse a guest.
NO_CPUS = ('QEMU has no CPUs other than those of the vCPUs; set [compute]'
           'cpu_shared_set on the host, or hw:emulator_threads_policy=isolate '
           'in the flavor')


def render_hints(xml: str) -> str:
    """Return a domain XML with KVM's hints for vCPUs with dedicated host CPUs.

    Other threads of QEMU are kept off the host CPUs of the vCPUs.

    :raises PolicyError: if the domain is not x86, if it hides KVM from the
        guest, or if QEMU has no CPUs other than those of the vCPUs.
    """
    root = document.parse_document(xml)
    arch = document.read_arch(root)
    if arch and arch not in document.X86:
        raise PolicyError(hints_part.PV_HINTS.extra_spec,
                          f'KVM has these hints for x86 only, not for {arch}')
    hidden = root.find('features/kvm/hidden')
    if hidden is not None and hidden.get('state') == 'on':
        raise PolicyError(
            hints_part.PV_HINTS.extra_spec,
            'the guest could not see the hints: remove img_hide_hypervisor_id '
            'from the image')
    if not thread_pins.exclude_vcpu_cpus(root):
        raise PolicyError(hints_part.PV_HINTS.extra_spec, NO_CPUS)
    features = document.find_or_insert_child(root, 'features')
    kvm = document.find_or_insert_child(features, 'kvm')
    for name in _HINTS:
        document.find_or_insert_child(kvm, name).set('state', 'on')
    return document.render_document(root)


def make_hint_elements(policy: GuestPolicy) -> Sequence[str]:
    """Return the XML elements of a domain that give the guest KVM's hints.

    The result is empty if the policy requests no hints.
    """
    if not policy.get_part(hints_part.HintsPart).is_dedicated:
        return ()
    features = etree.Element('features')
    kvm = etree.SubElement(features, 'kvm')
    for name in _HINTS:
        etree.SubElement(kvm, name, state='on')
    return (etree.tostring(features, encoding='unicode'),)

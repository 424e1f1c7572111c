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

"""Detects whether passthrough interrupts bypass the host's hypervisor.

Facts are from the kernel: vgic_v3_probe of arch/arm64/kvm/vgic/vgic-v3.c for
what KVM logs of the GIC, kvm_x86_vendor_init of arch/x86/kvm/x86.c for what
KVM makes ``enable_device_posted_irqs`` of (since 6.16), cap_pi_support of
drivers/iommu/intel/iommu.h and FEATURE_GAM_VAPIC of
drivers/iommu/amd/amd_iommu_types.h for the bits of IOMMUs.
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
import logging
from pathlib import Path
import re
import subprocess

LOG = logging.getLogger(__name__)

#: The capability that a guest asks for; the others name the mechanism.
ANY = 'IRQ_BYPASS'
VLPI = 'IRQ_BYPASS_VLPI'
VSGI = 'IRQ_BYPASS_VSGI'
POSTED = 'IRQ_BYPASS_POSTED'
AVIC = 'IRQ_BYPASS_AVIC'

AUTO, NONE = 'auto', 'none'
#: Capabilities of each value of ``[ghsched]irq_bypass`` but auto and none.
KINDS = {'gicv4': frozenset({VLPI}), 'gicv4.1': frozenset({VLPI, VSGI}),
         'posted': frozenset({POSTED}), 'avic': frozenset({AVIC})}

_GIC = re.compile(r'\bGICv4(\.1)? support (enabled|disabled)\b')
#: Posted interrupts, in the capability register of a DMAR unit.
_DMAR_PI = 1 << 59
#: Guest virtual APIC, and its mode for guests, of an AMD IOMMU.
_AMD_GA, _AMD_GAM_VAPIC = 1 << 7, 1 << 21
#: Kernel parameters that turn interrupt bypass off, by vendor.
_INTEL_OFF = re.compile(r'\bintremap=\S*(nopost|off)\b')
_AMD_OFF = re.compile(r'\bamd_iommu_intr=legacy\b|\bintremap=\S*off\b')

#: Commands that print the kernel log, best first: the ring buffer wraps.
_LOGS = (('journalctl', '--dmesg', '--boot', '--quiet', '--no-pager',
          '--output=cat'), ('dmesg',))
_SECONDS = 20


@dataclass(frozen=True)
class BypassFacts:
    """Kernel and IOMMU settings of a host that determine interrupt bypass.

    :param parameters: values of kernel module parameters, by
        ``MODULE/PARAMETER``.
    :param dmars: capability registers of the Intel IOMMUs (DMAR units).
    :param ivhds: extended feature registers of the AMD IOMMUs.
    :param interrupts: text of ``/proc/interrupts``.
    :param command_line: kernel command line.
    :param log: kernel log since boot.
    """

    parameters: Mapping[str, str] = field(default_factory=dict)
    dmars: tuple[int, ...] = ()
    ivhds: tuple[int, ...] = ()
    interrupts: str = ''
    command_line: str = ''
    log: str = ''


def detect_interrupt_bypass(facts: BypassFacts) -> frozenset[str]:
    """Return which kinds of interrupt bypass a host has.

    With interrupt bypass, interrupts reach guests without the hypervisor. A
    kind such as GICv4 or AVIC counts only if the hardware supports it and no
    kernel parameter disables it.

    :param facts: contents of the host's sysfs and procfs files.
    :returns: names of the interrupt bypass capabilities of the host.
    """
    kinds = (_find_gicv4_bypass(facts.log), _detect_intel(facts),
             _detect_amd(facts))
    return frozenset().union(*kinds)


def select_interrupt_bypass(configured: Collection[str],
                            detected: frozenset[str]) -> frozenset[str]:
    """Return the interrupt bypass capabilities to report to Placement.

    With interrupt bypass, interrupts reach guests without the hypervisor.

    :param configured: value of ``[ghsched]irq_bypass``.
    :param detected: detected capabilities, used if the value is ``auto``.
    """
    kinds: frozenset[str] = frozenset()
    for word in configured:
        kinds |= detected if word == AUTO else KINDS.get(word, frozenset())
    return kinds | {ANY} if kinds else kinds


def read_interrupt_bypass(configured: Collection[str], sysfs: Path,
                          proc: Path = Path('/proc')) -> frozenset[str]:
    """Return the interrupt bypass capabilities of this host.

    :param configured: value of ``[ghsched]irq_bypass``.
    :param sysfs: mount point of sysfs.
    :param proc: mount point of procfs.
    """
    return select_interrupt_bypass(
        configured,
        detect_interrupt_bypass(read_interrupt_bypass_facts(sysfs, proc))
        if AUTO in configured
        else frozenset(),
    )


def read_interrupt_bypass_facts(sysfs: Path, proc: Path) -> BypassFacts:
    """Read the sysfs and procfs files that reveal interrupt bypass support.

    An unreadable file counts as empty.
    """
    interrupts = _read_text(proc / 'interrupts')
    return BypassFacts(
        {f'{module}/{name}': _read_text(
            sysfs / 'module' / module / 'parameters' / name).strip()
         for module in ('kvm_intel', 'kvm_amd')
         for name in ('enable_apicv', 'avic', 'enable_device_posted_irqs')},
        _read_registers(sysfs, 'dmar*/intel-iommu/cap'),
        _read_registers(sysfs, 'ivhd*/amd-iommu/features'),
        interrupts, _read_text(proc / 'cmdline'),
        # Only hosts with a GIC log this, and reading the log is slow.
        _read_kernel_log() if 'GICv3' in interrupts or 'GICv4' in interrupts
        else '')


def _find_gicv4_bypass(log: str) -> frozenset[str]:
    """Return the interrupt bypass capabilities in an Arm host's kernel log."""
    found = _GIC.findall(log)
    if not found or found[-1][1] == 'disabled':
        return frozenset()
    return KINDS['gicv4.1' if found[-1][0] else 'gicv4']


def _detect_intel(facts: BypassFacts) -> frozenset[str]:
    able = (_is_parameter_on(facts, 'kvm_intel/enable_apicv')
            and not _is_parameter_off(facts,
                                      'kvm_intel/enable_device_posted_irqs')
            and bool(facts.dmars)
            and all(dmar & _DMAR_PI for dmar in facts.dmars)
            and not _INTEL_OFF.search(facts.command_line)
            and _remaps_interrupts(facts))
    return KINDS['posted'] if able else frozenset()


def _detect_amd(facts: BypassFacts) -> frozenset[str]:
    needed = _AMD_GA | _AMD_GAM_VAPIC
    able = (_is_parameter_on(facts, 'kvm_amd/avic')
            and not _is_parameter_off(facts,
                                      'kvm_amd/enable_device_posted_irqs')
            and bool(facts.ivhds)
            and all(ivhd & needed == needed for ivhd in facts.ivhds)
            and not _AMD_OFF.search(facts.command_line)
            and _remaps_interrupts(facts))
    return KINDS['avic'] if able else frozenset()


def _is_parameter_on(facts: BypassFacts, parameter: str) -> bool:
    return facts.parameters.get(parameter, '') in ('Y', '1')


def _is_parameter_off(facts: BypassFacts, parameter: str) -> bool:
    """Whether a kernel module parameter exists and is set to off."""
    return facts.parameters.get(parameter, '') in ('N', '0')


def _remaps_interrupts(facts: BypassFacts) -> bool:
    """Whether the host's IOMMU remaps interrupts.

    This is visible in /proc/interrupts.
    """
    return ' IR-' in facts.interrupts


def _read_registers(sysfs: Path, pattern: str) -> tuple[int, ...]:
    """Read a hexadecimal capability register of each IOMMU of the host.

    A malformed register counts as 0.

    :param pattern: file name pattern below ``class/iommu``.
    """
    found = []
    for path in sorted((sysfs / 'class/iommu').glob(pattern)):
        try:
            # AMD's second register follows a colon.
            found.append(int(_read_text(path).strip().partition(':')[0], 16))
        except ValueError:
            found.append(0)
    return tuple(found)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors='replace')
    except OSError:
        return ''


def _read_kernel_log() -> str:
    """Return the kernel log of a host with an Arm GIC.

    The text is empty if the log does not mention the GIC or cannot be read.
    """
    for command in _LOGS:
        text = _read_command_output(command)
        if _GIC.search(text):
            return text
    LOG.info('ghsched: cannot detect GICv4 interrupt bypass because the '
             'kernel log does not mention the GIC; set [ghsched]irq_bypass')
    return ''


def _read_command_output(command: Sequence[str]) -> str:
    """Return a command's standard output, even if the command fails."""
    # Under eventlet, no handler catches subprocess.TimeoutExpired.
    try:
        done = subprocess.run(
            ('timeout', f'{_SECONDS}', *command), capture_output=True,
            text=True, errors='replace', check=False)
        text, reason = done.stdout, done.stderr.strip()
        failed = done.returncode != 0
    except OSError as error:
        text, reason, failed = '', str(error), True
    if failed:
        LOG.debug('ghsched: cannot read the kernel log with command %s to '
                  'detect GICv4 interrupt bypass: %s', command[0], reason)
    return text

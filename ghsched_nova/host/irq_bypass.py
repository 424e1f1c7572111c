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

"""Whether interrupts of passthrough devices reach guests without the host.

Facts are from the kernel: vgic_v3_probe of arch/arm64/kvm/vgic/vgic-v3.c for
what KVM logs of the GIC, kvm_x86_vendor_init of arch/x86/kvm/x86.c for what
KVM makes ``enable_device_posted_irqs`` of (since 6.16), cap_pi_support of
drivers/iommu/intel/iommu.h and FEATURE_GAM_VAPIC of
drivers/iommu/amd/amd_iommu_types.h for the bits of IOMMUs.
"""

from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
import logging
from pathlib import Path
import re
import subprocess

LOG = logging.getLogger(__name__)

#: The capability that a guest asks for; the others say how.
ANY = 'IRQ_BYPASS'
VLPI = 'IRQ_BYPASS_VLPI'
VSGI = 'IRQ_BYPASS_VSGI'
POSTED = 'IRQ_BYPASS_POSTED'
AVIC = 'IRQ_BYPASS_AVIC'

AUTO, NONE = 'auto', 'none'
#: Words of ``[ghsched]irq_bypass``, besides auto and none.
KINDS = {'gicv4': frozenset({VLPI}), 'gicv4.1': frozenset({VLPI, VSGI}),
         'posted': frozenset({POSTED}), 'avic': frozenset({AVIC})}

_GIC = re.compile(r'\bGICv4(\.1)? support (enabled|disabled)\b')
#: Posted interrupts, in the capability register of a DMAR unit.
_DMAR_PI = 1 << 59
#: Guest virtual APIC, and its mode for guests, of an AMD IOMMU.
_AMD_GA, _AMD_GAM_VAPIC = 1 << 7, 1 << 21
#: What turns it off, by vendor.
_INTEL_OFF = re.compile(r'\bintremap=\S*(nopost|off)\b')
_AMD_OFF = re.compile(r'\bamd_iommu_intr=legacy\b|\bintremap=\S*off\b')

#: What shows the kernel's log, best first: the ring buffer wraps.
_LOGS = (('journalctl', '--dmesg', '--boot', '--quiet', '--no-pager',
          '--output=cat'), ('dmesg',))
_SECONDS = 20


@dataclass(frozen=True)
class Facts:
    """What a host says.

    :param parameters: of kernel modules, by ``MODULE/PARAMETER``.
    :param dmars: capability register of each DMAR unit (Intel).
    :param ivhds: extended features of each AMD IOMMU.
    :param interrupts: text of ``/proc/interrupts``.
    :param command_line: of the kernel.
    :param log: of the kernel, since it was booted.
    """

    parameters: Mapping[str, str] = field(default_factory=dict)
    dmars: tuple[int, ...] = ()
    ivhds: tuple[int, ...] = ()
    interrupts: str = ''
    command_line: str = ''
    log: str = ''


def detect(facts: Facts) -> frozenset[str]:
    """Capabilities of a host; empty where nothing says that it has them.

    The command line alone is what was asked for, not what the hardware has.
    """
    kinds = (_gic(facts.log), _intel(facts), _amd(facts))
    return frozenset().union(*kinds)


def offered(words: Collection[str], found: frozenset[str]) -> frozenset[str]:
    """Capabilities to report.

    :param words: ``[ghsched]irq_bypass``.
    :param found: what was detected.
    """
    kinds: frozenset[str] = frozenset()
    for word in words:
        kinds |= found if word == AUTO else KINDS.get(word, frozenset())
    return kinds | {ANY} if kinds else kinds


def here(words: Collection[str], sysfs: Path,
         proc: Path = Path('/proc')) -> frozenset[str]:
    """Capabilities of this host; see :func:`offered`."""
    return offered(words, detect(read(sysfs, proc)) if AUTO in words
                   else frozenset())


def read(sysfs: Path, proc: Path) -> Facts:
    """Read the facts; what cannot be read is not there."""
    interrupts = _text(proc / 'interrupts')
    return Facts(
        {f'{module}/{name}': _text(
            sysfs / 'module' / module / 'parameters' / name).strip()
         for module in ('kvm_intel', 'kvm_amd')
         for name in ('enable_apicv', 'avic', 'enable_device_posted_irqs')},
        _registers(sysfs, 'dmar*/intel-iommu/cap'),
        _registers(sysfs, 'ivhd*/amd-iommu/features'),
        interrupts, _text(proc / 'cmdline'),
        # Nothing else has it in its log, which is long.
        _kernel_log() if 'GICv3' in interrupts or 'GICv4' in interrupts
        else '')


def _gic(log: str) -> frozenset[str]:
    found = _GIC.findall(log)
    if not found or found[-1][1] == 'disabled':
        return frozenset()
    return KINDS['gicv4.1' if found[-1][0] else 'gicv4']


def _intel(facts: Facts) -> frozenset[str]:
    able = (_on(facts, 'kvm_intel/enable_apicv')
            and not _off(facts, 'kvm_intel/enable_device_posted_irqs')
            and bool(facts.dmars)
            and all(dmar & _DMAR_PI for dmar in facts.dmars)
            and not _INTEL_OFF.search(facts.command_line)
            and _remapped(facts))
    return KINDS['posted'] if able else frozenset()


def _amd(facts: Facts) -> frozenset[str]:
    needed = _AMD_GA | _AMD_GAM_VAPIC
    able = (_on(facts, 'kvm_amd/avic')
            and not _off(facts, 'kvm_amd/enable_device_posted_irqs')
            and bool(facts.ivhds)
            and all(ivhd & needed == needed for ivhd in facts.ivhds)
            and not _AMD_OFF.search(facts.command_line)
            and _remapped(facts))
    return KINDS['avic'] if able else frozenset()


def _on(facts: Facts, parameter: str) -> bool:
    return facts.parameters.get(parameter, '') in ('Y', '1')


def _off(facts: Facts, parameter: str) -> bool:
    """Whether a parameter is there and off; older kernels have it not."""
    return facts.parameters.get(parameter, '') in ('N', '0')


def _remapped(facts: Facts) -> bool:
    """Whether interrupts go through the IOMMU: IR-PCI-MSI and the like."""
    return ' IR-' in facts.interrupts


def _registers(sysfs: Path, pattern: str) -> tuple[int, ...]:
    """Hexadecimal registers of IOMMUs; 0 for one that makes no sense."""
    found = []
    for path in sorted((sysfs / 'class/iommu').glob(pattern)):
        try:
            # AMD's second register follows a colon.
            found.append(int(_text(path).strip().partition(':')[0], 16))
        except ValueError:
            found.append(0)
    return tuple(found)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors='replace')
    except OSError:
        return ''


def _kernel_log() -> str:
    for command in _LOGS:
        try:
            text = subprocess.run(
                command, capture_output=True, text=True, errors='replace',
                timeout=_SECONDS, check=False).stdout
        except (OSError, subprocess.SubprocessError) as error:
            LOG.debug('ghsched: %s: %s', command[0], error)
            continue
        if _GIC.search(text):
            return text
    LOG.info('ghsched: whether the GIC gives interrupts to guests is not in '
             'the log of the kernel, as far as this user can read it; '
             '[ghsched]irq_bypass can say it')
    return ''

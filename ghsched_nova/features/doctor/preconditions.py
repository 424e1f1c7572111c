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


"""Preconditions of memory bandwidth control by resctrl (pure).

A host needs eight properties before resctrl controls memory bandwidth, and
the kernel does not report which of them is missing. The names of options are
those of fs/Kconfig, arch/x86/Kconfig, drivers/resctrl/Kconfig and
Documentation/admin-guide/kernel-parameters.txt of Linux 7.2; the boot options
of openEuler are those of its MPAM manuals.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Set
from dataclasses import dataclass
import re

from ghsched_nova.guest import document

_ARM = ('aarch64', 'arm64')
_DRIVERS = {**dict.fromkeys(document.X86, ('X86_CPU_RESCTRL',)),
            **dict.fromkeys(_ARM, ('ARM64_MPAM', 'ARM64_MPAM_DRIVER'))}
#: Flags in /proc/cpuinfo that the processor must have.
_FLAGS = ('rdt_a', 'mba')
#: Boot options without which openEuler's kernels leave MPAM off.
_OPENEULER = (('.oe22', 'mpam=acpi'), ('.oe24', 'arm64.mpam'))


@dataclass(frozen=True)
class Kernel:
    """Properties of a kernel and its host that resctrl depends on.

    :param machine: hardware name (``uname -m``).
    :param release: kernel release (``uname -r``).
    :param filesystems: text of /proc/filesystems.
    :param config: text of the kernel's configuration; None if it cannot be
        read.
    :param tables: names of the ACPI tables; None if they cannot be listed.
    :param cpuinfo: text of /proc/cpuinfo.
    :param cmdline: text of /proc/cmdline.
    :param mounted: whether resctrl is mounted at ``path``.
    :param path: required mount point of resctrl.
    :param info: names of the directories in resctrl's info/.
    """

    machine: str = ''
    release: str = ''
    filesystems: str = ''
    config: str | None = None
    tables: Set[str] | None = None
    cpuinfo: str = ''
    cmdline: str = ''
    mounted: bool = False
    path: str = '/sys/fs/resctrl'
    info: Set[str] = frozenset()


@dataclass(frozen=True)
class UnmetPrecondition:
    """Precondition of bandwidth control that a host does not meet.

    :param name: short fixed name of the precondition, e.g. ``mount``.
    :param text: description of the host's present state.
    :param remedy: action by which an admin meets the precondition.
    """

    name: str
    text: str
    remedy: str


def list_unmet_preconditions(kernel: Kernel) -> tuple[UnmetPrecondition, ...]:
    """Return the preconditions of bandwidth control that a host does not meet.

    These are properties of the kernel, its firmware and the mount of resctrl.
    """
    if 'MB' in kernel.info:
        return ()
    registered = 'resctrl' in kernel.filesystems.split()
    causes: list[UnmetPrecondition] = []
    if not registered and not kernel.mounted:
        causes += [
            *_check_kernel_option(kernel),
            *_check_kernel_driver(kernel),
            *_check_firmware(kernel),
        ]
    causes += [*_check_command_line(kernel), *_check_processor(kernel)]
    if kernel.mounted:
        return tuple(causes) or (_describe_missing_control(),)
    if registered:
        return (*causes, UnmetPrecondition(
            'mount', f'resctrl is not mounted at {kernel.path}',
            f'mount -t resctrl resctrl {kernel.path}'))
    return tuple(causes) or (UnmetPrecondition(
        'file system', 'the kernel has not registered resctrl, though '
        'nothing else is missing', 'look for "resctrl", "rdt" or "mpam" in '
        'the log of the kernel (dmesg)'),)


def _describe_missing_control() -> UnmetPrecondition:
    return UnmetPrecondition(
        'control', 'resctrl is mounted and has no info/MB: it controls no '
        'memory bandwidth', 'see whether the firmware setup of the machine '
        'switches the control off, and how resctrl is mounted')


def _is_option_built(config: str, option: str) -> bool | None:
    """Whether a kernel was built with an option.

    :param config: text of the kernel's configuration.
    :returns: None if the configuration does not mention the option.
    """
    if re.search(f'^CONFIG_{option}=[ym]$', config, re.M):
        return True
    off = re.search(f'^# CONFIG_{option} is not set$', config, re.M)
    return False if off else None


def _is_openeuler(kernel: Kernel) -> bool:
    return '.oe2' in kernel.release


def _check_kernel_option(kernel: Kernel) -> Iterator[UnmetPrecondition]:
    if kernel.config is None or _is_openeuler(kernel):
        return
    built = _is_option_built(kernel.config, 'RESCTRL_FS')
    # Before Linux 6.16 the file system was a part of the driver for x86.
    old = built is None and _is_option_built(kernel.config, 'X86_CPU_RESCTRL')
    if built is False or (
            not built and not old and kernel.machine not in document.X86):
        yield UnmetPrecondition(
            'kernel option', f'the kernel {kernel.release} is built without '
            'CONFIG_RESCTRL_FS', 'boot a kernel that is built with '
            'CONFIG_RESCTRL_FS=y')


def _check_kernel_driver(kernel: Kernel) -> Iterator[UnmetPrecondition]:
    if kernel.config is None or _is_openeuler(kernel):
        return
    lacking = [f'CONFIG_{option}' for option
               in _DRIVERS.get(kernel.machine, ())
               if not _is_option_built(kernel.config, option)]
    if lacking:
        yield UnmetPrecondition(
            'kernel driver', f'the kernel {kernel.release} is built without '
            + ' and '.join(lacking), 'boot a kernel that is built with '
            + ' and '.join(f'{option}=y' for option in lacking))


def _check_firmware(kernel: Kernel) -> Iterator[UnmetPrecondition]:
    if (kernel.machine in _ARM and kernel.tables is not None
            and 'MPAM' not in kernel.tables):
        yield UnmetPrecondition(
            'firmware', 'the firmware has no ACPI table MPAM',
            'switch MPAM on in the firmware setup, or update the firmware')


def _check_command_line(kernel: Kernel) -> Iterator[UnmetPrecondition]:
    words = kernel.cmdline.split()
    off = (
        'arm64.nompam'
        if 'arm64.nompam' in words
        else _find_disabling_parameter(words)
    )
    if off:
        yield UnmetPrecondition(
            'command line', f'the kernel was booted with {off}, which '
            'switches the control off', f'remove {off} from the command line '
            'of the kernel, and boot')
    for part, word in _OPENEULER:
        if (part in kernel.release and kernel.machine in _ARM
                and word not in words):
            yield UnmetPrecondition(
                'command line', f'the kernel was booted without {word}',
                f'add {word} to the command line of the kernel, and boot')


def _find_disabling_parameter(words: Iterable[str]) -> str:
    """Return the boot parameter that disables bandwidth control (Intel MBA).

    :param words: words of the kernel command line.
    :returns: an empty text if no parameter disables it.
    """
    found = ''
    for word in words:
        features = (word.removeprefix('rdt=').split(',')
                    if word.startswith('rdt=') else [])
        if '!mba' in features:
            found = word
        elif 'mba' in features:
            found = ''
    return found


def _check_processor(kernel: Kernel) -> Iterator[UnmetPrecondition]:
    lines = re.findall(r'^flags\s*:(.*)$', kernel.cpuinfo, re.M)
    if kernel.machine not in document.X86 or not lines:
        return
    lacking = [flag for flag in _FLAGS if flag not in lines[0].split()]
    if lacking:
        yield UnmetPrecondition(
            'processor', 'the processor, or the virtual machine that this '
            f'is, has not {" and ".join(lacking)} in /proc/cpuinfo',
            'switch RDT or QoS on in the firmware setup, if the processor '
            'has it')

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

"""Run a program on a processor of another make, as far as CPUID goes.

``python as_cpu.py LIBRARY DIRECTORY VENDOR COMMAND...``: a copy of the library
with each CPUID instruction replaced by an undefined one is put into DIRECTORY,
where the dynamic linker finds it first. The program is traced, and each such
instruction answered here, so that nothing comes from the machine's own
processor. CPUID itself cannot be refused by each processor (ARCH_SET_CPUID of
arch_prctl(2) fails on many).
"""

import ctypes
import errno
import os
import signal
import sys

CPUID = b'\x0f\xa2'
UNDEFINED = b'\x0f\x0b'
PTRACE_TRACEME, PTRACE_CONT, PTRACE_GETREGS, PTRACE_SETREGS = 0, 7, 12, 13
#: struct user_regs_struct of x86-64 (<sys/user.h>).
REGISTERS = (
    'r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip '
    'cs eflags rsp ss fs_base gs_base ds es fs gs').split()
VENDORS = {'intel': b'GenuineIntel', 'amd': b'AuthenticAMD'}
#: The leaf of each make that lists caches (Intel: Software Developer's
#: Manual, CPUID; AMD: APM volume 3, Fn8000_001D).
CACHE_LEAF = {'intel': 4, 'amd': 0x8000001D}
#: The leaf with the APIC id, here the number of the CPU; bits of the id below
#: the core and below the package, and what they stand for (1: thread,
#: 2: core).
TOPOLOGY_LEAF = 0xB
TOPOLOGY = ((0, 1), (8, 2))
#: eax, ebx, ecx of data, instruction, level 2 and level 3 cache: kind and
#: level; ways, partitions and line size; sets. Each of two threads of a core
#: share all but the last.
CACHES = (
    (0x4121, 11 << 22 | 63, 63), (0x4122, 7 << 22 | 63, 63),
    (0x4143, 15 << 22 | 63, 2047), (0xfc163, 19 << 22 | 63, 32767))

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [
    ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in REGISTERS]


def patched(code):
    """A library with another instruction for CPUID.

    :raises ValueError: not exactly one is there, so that the bytes may be
        part of something else.
    """
    if code.count(CPUID) != 1:
        raise ValueError('not exactly one CPUID instruction')
    return code.replace(CPUID, UNDEFINED)


def cpuid(vendor, leaf, part, cpu):
    """eax, ebx, ecx and edx of a processor with a make, ids and caches."""
    name = VENDORS[vendor]
    first, third, second = (
        int.from_bytes(name[at:at + 4], 'little') for at in (0, 8, 4))
    if leaf in (0, 0x80000000):
        return leaf | 0x20, first, third, second
    if leaf == TOPOLOGY_LEAF and part < len(TOPOLOGY):
        shift, kind = TOPOLOGY[part]
        return shift, 1, kind << 8 | part, cpu
    if leaf == CACHE_LEAF[vendor] and part < len(CACHES):
        return (*CACHES[part], 0)
    return 0, 0, 0, 0


def ptrace(request, pid, data=None):
    if _libc.ptrace(request, pid, None, data) < 0:
        raise OSError(ctypes.get_errno(), 'ptrace')


def running_on(pid):
    """The CPU that a stopped process is on (proc(5): field 39 of stat)."""
    with open(f'/proc/{pid}/stat', encoding='utf-8') as stream:
        return int(stream.read().rpartition(')')[2].split()[36])


def answer(pid, vendor):
    """Do what the CPUID instruction does at which a process has stopped."""
    regs = Registers()
    ptrace(PTRACE_GETREGS, pid, ctypes.byref(regs))
    mask = 0xffffffff
    regs.rax, regs.rbx, regs.rcx, regs.rdx = cpuid(
        vendor, regs.rax & mask, regs.rcx & mask, running_on(pid))
    regs.rip += len(UNDEFINED)
    ptrace(PTRACE_SETREGS, pid, ctypes.byref(regs))


def run(vendor, command):
    """Run a command to its end. Returns its exit code."""
    pid = os.fork()
    if not pid:
        try:
            ptrace(PTRACE_TRACEME, 0)
            os.execvp(command[0], command)  # noqa: S606
        finally:
            os._exit(errno.ENOEXEC)
    while True:
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        number = os.WSTOPSIG(status)
        if number == signal.SIGILL:
            answer(pid, vendor)
        elif number != signal.SIGTRAP:
            ptrace(PTRACE_CONT, pid, number)
            continue
        ptrace(PTRACE_CONT, pid)


def main(argv):
    library, directory, vendor, *command = argv[1:]
    with open(library, 'rb') as stream:
        code = patched(stream.read())
    with open(os.path.join(directory, os.path.basename(library)), 'wb') as out:
        out.write(code)
    os.environ['LD_LIBRARY_PATH'] = directory
    return run(vendor, command)


if __name__ == '__main__':
    sys.exit(main(sys.argv))

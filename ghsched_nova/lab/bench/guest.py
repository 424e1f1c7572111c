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

"""Small guests of plain QEMU, without a cloud, that run programs of the host.
"""

from collections.abc import Sequence
from pathlib import Path
import re
import shutil
import subprocess  # noqa: S404
import time

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.machine import Machine

#: Programs of the host without which no guest can be made.
PROGRAMS = ('qemu-system-x86_64', 'cpio', 'ldd')

#: First lines of a guest's first process, a shell script.
PROLOGUE = '''#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
exec > /dev/console 2>&1 < /dev/console
'''

_COMMANDS = PROLOGUE + '''stty -echo
ip link set lo up
echo GUEST-READY
while read -r line; do
    eval "$line"
    echo "GUEST-DONE $?"
done
'''
_DONE = re.compile(r'GUEST-DONE (\d+)')

_BOOT_TIMEOUT_S = 300.0


def make_ramdisk(machine: Machine, work: Path, script: str,
                 programs: Sequence[str]) -> Path:
    """Return the ramdisk of a guest with programs and their libraries.

    :param work: directory for the ramdisk and its parts.
    :param script: the first process of the guest.
    :param programs: paths of programs of this machine, besides busybox.
    """
    root = work / 'root'
    for name in ('bin', 'dev', 'proc', 'sys', 'tmp'):
        (root / name).mkdir(parents=True, exist_ok=True)
    libraries = {found for program in programs for found in re.findall(
        r'(/\S+) \(0x', machine.check(['ldd', program]))}
    for path in (*programs, '/bin/busybox'):
        shutil.copy(path, root / 'bin' / Path(path).name)
    for path in sorted(libraries):
        target = root / path.lstrip('/')
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (root / 'init').write_text(script)
    (root / 'init').chmod(0o755)
    target = work / 'initrd.img'
    machine.check(
        ['sh', '-c', f'find . | cpio -o -H newc --quiet > {target}'],
        directory=root)
    return target


def qemu_command(image: Path, ramdisk: Path, memory: int, cpus: int,
                 accelerator: str) -> list[str]:
    """Return the command line of a guest with its console on standard output.

    :param image: directory with the guest's kernel, vmlinuz.
    :param memory: MiB.
    :param accelerator: "kvm" or "tcg".
    """
    return ['qemu-system-x86_64', '-machine', f'q35,accel={accelerator}',
            '-cpu', 'host' if accelerator == 'kvm' else 'max',
            '-m', str(memory), '-smp', str(cpus), '-nodefaults',
            '-display', 'none', '-serial', 'stdio',
            '-kernel', str(image / 'vmlinuz'), '-initrd', str(ramdisk),
            # A busy host lets the kernel's check of its timer fail.
            '-append', 'console=ttyS0 quiet no_timer_check']


class ConsoleGuest:
    """A running guest that takes shell commands on its console.

    :param work: directory for its ramdisk and console.
    :param programs: paths of programs that the guest needs.
    :param memory: MiB.
    :param accelerator: "kvm" or "tcg".
    :raises BenchError: if the guest does not boot in time.
    """

    def __init__(self, machine: Machine, work: Path, image: Path,
                 programs: Sequence[str], memory: int, cpus: int,
                 accelerator: str) -> None:
        work.mkdir()
        ramdisk = make_ramdisk(machine, work, _COMMANDS, programs)
        self._console = work / 'console'
        with self._console.open('wb') as stream:
            self._process = subprocess.Popen(
                qemu_command(image, ramdisk, memory, cpus, accelerator),
                stdin=subprocess.PIPE, stdout=stream,
                stderr=subprocess.STDOUT)
        self._read = 0
        try:
            self._wait(re.compile('GUEST-READY'), _BOOT_TIMEOUT_S)
        except errors.BenchError:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Process ID of the guest's QEMU."""
        return self._process.pid

    def run(self, command: str, timeout: float) -> str:
        """Return the output of a shell command in the guest.

        :param timeout: seconds.
        :raises BenchError: if the command fails or takes too long.
        """
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.write(command.encode() + b'\n')
        self._process.stdin.flush()
        text, status = self._wait(_DONE, timeout)
        if status != '0':
            raise errors.BenchError(f'{command} ended with {status} in a '
                                    f'guest: {text[-300:].strip()}')
        return text

    def stop(self) -> None:
        """End the guest."""
        self._process.kill()
        self._process.wait()

    def _wait(self, pattern: re.Pattern[str], timeout: float
              ) -> tuple[str, str]:
        """Return the console's new text up to a pattern, and its group."""
        end = time.monotonic() + timeout
        while time.monotonic() < end and self._process.poll() is None:
            text = self._console.read_text(errors='replace')[self._read:]
            found = pattern.search(text)
            if found:
                self._read += found.end()
                return text[:found.start()], (found.groups() or ('',))[0]
            time.sleep(0.1)
        raise errors.BenchError(
            'a guest does not answer: '
            + self._console.read_text(errors='replace')[-300:].strip())

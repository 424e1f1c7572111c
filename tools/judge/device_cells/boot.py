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

"""Boot a guest by a command line of libvirt and print what its kernel shows.

usage: boot.py ROOT ARCHITECTURE NAME

ROOT is a directory with Debian's QEMU; its folder ``judge`` has NAME.argv,
which ``virsh domxml-to-native`` has printed, and ARCHITECTURE.vmlinuz and
.img of tools/guest-image.sh. Emulated devices take the place of passthrough
ones. The exit code is 0 if the devices are on the guest nodes that
:mod:`render` expects.
"""

from collections.abc import Iterator
import json
from pathlib import Path
import re
import shlex
import subprocess
import sys
import threading

#: Seconds until a guest is ended; it is emulated.
TIMEOUT_S = 900
#: An emulated guest on a busy machine may end before its first process runs.
BOOTS = 3
#: Options of libvirt that need its running daemon; those with a value.
DROPPED = {'-S', '-no-shutdown', '-mon', '-chardev', '-sandbox', '-msg',
           '-display'}
CONSOLES = {'x86_64': 'ttyS0', 'aarch64': 'ttyAMA0'}
#: Guest nodes of the two devices, with and without initiators.
EXPECTED = {'with': {'0', '2'}, 'without': {'0', '1'}}
#: A virtio random number generator.
DEVICE = '0x1af4:0x1044'


def list_options(text: str) -> Iterator[tuple[str, ...]]:
    words = shlex.split(text)
    place = next(number for number, word in enumerate(words)
                 if word.endswith(('x86_64', 'aarch64'))) + 1
    while place < len(words):
        has_value = (place + 1 < len(words)
                     and not words[place + 1].startswith('-'))
        yield tuple(words[place:place + 1 + has_value])
        place += 1 + has_value


def emulate(option: tuple[str, ...]) -> tuple[str, ...]:
    """Return an option without what only libvirt has; empty to leave it out.
    """
    if option[0] in DROPPED or 'qom-type":"secret' in option[-1] or (
            'monitor-qmp' in option[-1]):
        return ()
    if 'vfio-pci' not in option[-1]:
        return option
    values = json.loads(option[1])
    del values['host']
    return '-device', json.dumps({**values, 'driver': 'virtio-rng-pci'})


def read_guest(command: list[str]) -> Iterator[str]:
    """Yield the lines that the guest's first process prints."""
    guest = subprocess.Popen(command, stdin=subprocess.PIPE, text=True,
                             stdout=subprocess.PIPE, errors='replace')
    timer = threading.Timer(TIMEOUT_S, guest.kill)
    timer.start()
    for line in guest.stdout or ():
        if 'GUEST-READY' in line:
            break
        yield line.rstrip()
    timer.cancel()
    guest.kill()


def main(root: str, architecture: str, name: str) -> int:
    judge = Path(root, 'judge')
    options = [word for option in list_options(
        (judge / f'{name}.argv').read_text()) for word in emulate(option)]
    command = [
        'chroot', root, f'/usr/bin/qemu-system-{architecture}', *options,
        '-display', 'none', '-serial', 'stdio', '-no-reboot',
        '-kernel', f'/judge/{architecture}.vmlinuz', '-initrd',
        f'/judge/{architecture}.img', '-append',
        f'console={CONSOLES[architecture]} quiet panic=-1']
    found = set[str]()
    for _boot in range(BOOTS):
        for line in read_guest(command):
            if 'GUEST-' in line or 'panic' in line:
                print(line, flush=True)
            if DEVICE in line:
                found.add(re.sub('.*numa_node=', '', line))
        if found:
            break
    expected = EXPECTED[name.rpartition('-')[2]]
    print(f'{"PASS" if found == expected else "FAIL"} {name}: devices on '
          f'guest nodes {sorted(found)}, expected {sorted(expected)}')
    return int(found != expected)


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))

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
:mod:`render` expects, and their large windows have addresses.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import itertools
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
#: Console of each architecture. Linux panics if an emulated timer of x86 is
#: late, which it is on a busy machine.
KERNEL_OPTIONS = {'x86_64': 'console=ttyS0 no_timer_check',
                  'aarch64': 'console=ttyAMA0'}
#: Guest nodes of the two devices.
EXPECTED = {'with': {'0', '2'}, 'without': {'0', '1'}, 'large': {'0', '1'}}
#: A virtio random number generator, and a device with a window of any size.
DEVICES = {'virtio-rng-pci': '0x1af4:0x1044', 'pci-testdev': '0x1b36:0x0005'}
WINDOW_BYTES = 1 << 37


def list_options(text: str) -> Iterator[tuple[str, ...]]:
    words = shlex.split(text)
    place = next(number for number, word in enumerate(words)
                 if word.endswith(('x86_64', 'aarch64'))) + 1
    while place < len(words):
        has_value = (place + 1 < len(words)
                     and not words[place + 1].startswith('-'))
        yield tuple(words[place:place + 1 + has_value])
        place += 1 + has_value


def emulate(option: tuple[str, ...], driver: str) -> tuple[str, ...]:
    """Return an option without what only libvirt has; empty to leave it out.

    :param driver: emulated device in the place of passthrough devices.
    """
    if option[0] in DROPPED or 'qom-type":"secret' in option[-1] or (
            'monitor-qmp' in option[-1]):
        return ()
    if 'vfio-pci' not in option[-1]:
        return option
    values = json.loads(option[1])
    del values['host']
    if driver == 'pci-testdev':
        values['membar'] = WINDOW_BYTES
    return '-device', json.dumps({**values, 'driver': driver})


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


def parse_devices(lines: Iterable[str], device: str) -> dict[str, str]:
    """Return the guest node of each device of a kind by its PCI address."""
    return {found[1]: found[2] for line in lines if (found := re.search(
        rf'GUEST-PCI (\S+) {device} numa_node=(\S+)', line))}


def has_windows(lines: Iterable[str], addresses: Iterable[str]) -> bool:
    """Return whether each device has its large window, where no other is."""
    starts = {found[1]: int(found[2], 16) for line in lines
              if (found := re.search(r'GUEST-WINDOW (\S+) (0x\w+)-', line))}
    places = sorted(starts.get(one, 0) for one in addresses)
    return places[0] > 0 and all(second - first >= WINDOW_BYTES for
                                 first, second in itertools.pairwise(places))


def main(root: str, architecture: str, name: str) -> int:
    judge, how = Path(root, 'judge'), name.rpartition('-')[2]
    driver = 'pci-testdev' if how == 'large' else 'virtio-rng-pci'
    options = [word for option in list_options(
        (judge / f'{name}.argv').read_text())
        for word in emulate(option, driver)]
    command = [
        'chroot', root, f'/usr/bin/qemu-system-{architecture}', *options,
        '-display', 'none', '-serial', 'stdio', '-no-reboot',
        '-kernel', f'/judge/{architecture}.vmlinuz', '-initrd',
        f'/judge/{architecture}.img', '-append',
        f'{KERNEL_OPTIONS[architecture]} quiet panic=-1']
    found, lines = dict[str, str](), list[str]()
    for _boot in range(BOOTS):
        lines = []
        for line in read_guest(command):
            lines.append(line)
            if 'GUEST-' in line or 'panic' in line:
                print(line, flush=True)
        found = parse_devices(lines, DEVICES[driver])
        if found:
            break
    expected, nodes = EXPECTED[how], set(found.values())
    passed = nodes == expected and (how != 'large'
                                    or has_windows(lines, found))
    print(f'{"PASS" if passed else "FAIL"} {name}: devices on guest nodes '
          f'{sorted(nodes)}, expected {sorted(expected)}')
    return int(not passed)


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))

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


"""The inside of a test host: its files, and the mounts of its namespace.

Run as a program in a new mount namespace, it makes the mounts and then stays
as the process that keeps the namespace alive; see
:mod:`ghsched_nova.lab.emulator.testhost`.
"""

import argparse
from collections.abc import Iterable
import contextlib
import filecmp
import glob
import os
import re
import shutil
import signal
import socket
import stat
import subprocess  # noqa: S404
import sys

from ghsched_nova.lab.emulator import cpusets
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import qemu_tcg_as_kvm
from ghsched_nova.lab.emulator import topology

#: Directory of libvirt -> where below the state directory it is kept.
PRIVATE = {
    '/etc/libvirt': 'etc/libvirt',
    '/var/lib/libvirt': 'var/lib/libvirt',
    '/var/cache/libvirt': 'var/cache/libvirt',
    '/var/log/libvirt': 'log/libvirt',
    '/run/libvirt': 'run/libvirt',
    # libvirtd locks the devices of open channels there, by names that guests
    # of two hosts share.
    '/run/lock': 'run/lock',
}

_LIBVIRTD_CONF = """\
auth_unix_rw = "none"
auth_unix_ro = "none"
unix_sock_rw_perms = "0700"
host_uuid = "{uuid}"
log_filters = "1:util.resctrl 1:util.virresctrl 2:qemu.qemu_process"
log_outputs = "1:file:{state}/log/libvirtd.log"
"""

#: Guests run as root with nothing between them and the namespace: no
#: confinement, no cgroups, no mount namespace of their own, no virtlogd.
_QEMU_CONF = """\
user = "root"
group = "root"
security_driver = "none"
stdio_handler = "file"
cgroup_controllers = [ ]
namespaces = [ ]
"""

_MIGRATION_CONF = """\
migration_address = "{address}"
migration_host = "{address}"
migration_port_min = {first}
migration_port_max = {last}
"""


# Files, written before there is a namespace ------------------------------


def emulators() -> list[str]:
    """Return the names of the system emulators that are installed."""
    found = glob.glob(f'{qemu_tcg_as_kvm.REAL_DIR}/qemu-system-*')
    return sorted(
        os.path.basename(path) for path in found if os.access(path, os.X_OK)
    )


def write_emulators(state: str) -> None:
    """The wrapper under the name of every emulator, in ``STATE/bin``.

    One that is right stays as it is: libvirt keeps what it learnt of an
    emulator, which takes it seconds, as long as the file is unchanged.
    """
    source = qemu_tcg_as_kvm.__file__
    for name in emulators():
        target = f'{state}/bin/{name}'
        if os.path.exists(target) and filecmp.cmp(source, target, False):
            continue
        shutil.copyfile(source, target)
        os.chmod(target, 0o755)  # noqa: S103


def migration_conf(where: str) -> str:
    """Return the settings of qemu.conf for guests that migrate to the host.

    :param where: ``ADDRESS:FIRST-LAST``.
    """
    address, _, ports = where.rpartition(':')
    first, _, last = ports.partition('-')
    return _MIGRATION_CONF.format(
        address=address, first=int(first), last=int(last))


def write_config(state: str, uuid: str, migration: str | None = None
                 ) -> None:
    """libvirtd.conf and qemu.conf.

    :param migration: see :func:`migration_conf`.
    """
    etc = f'{state}/{PRIVATE["/etc/libvirt"]}'
    with open(f'{etc}/libvirtd.conf', 'w') as stream:
        stream.write(_LIBVIRTD_CONF.format(uuid=uuid, state=state))
    with open(f'{etc}/qemu.conf', 'w') as stream:
        stream.write(_QEMU_CONF)
        if migration:
            stream.write(migration_conf(migration))


def write_topology(machine: machines.Machine, state: str,
                   gigantic_pages: int | None = None) -> None:
    """Write the tree that is mounted over the nodes and CPUs of /sys to
    ``STATE/sys``.

    :param gigantic_pages: see :func:`topology.write_nodes`.
    """
    topology.clear(f'{state}/sys')
    topology.write_nodes(machine, f'{state}/sys/node', gigantic_pages)
    for cpu in machine.cpus:
        topology.write_cpu(machine, cpu, f'{state}/sys/cpu{cpu}')


def write_proc(machine: machines.Machine, state: str) -> None:
    """Write /proc/filesystems and /proc/cpuinfo of a kernel with resctrl to
    ``STATE/proc``.

    The file system, and the features of the processor that are behind it.
    """
    with open('/proc/filesystems') as stream:
        systems = f'{stream.read()}nodev\tresctrl\n'
    with open('/proc/cpuinfo') as stream:
        cpus = re.sub(r'(?m)^flags\t.*', ' '.join(
            (r'\g<0>', *machine.cpu_flags)), stream.read())
    os.makedirs(f'{state}/proc', exist_ok=True)
    for name, text in (('filesystems', systems), ('cpuinfo', cpus)):
        with open(f'{state}/proc/{name}', 'w') as stream:
            stream.write(text)


# Mounts, made inside the namespace ---------------------------------------


def _mount(*args: str) -> None:
    done = subprocess.run(
        ['mount', *args], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise OSError(f'mount {" ".join(args)}: {done.stderr.strip()}')


def mount_topology(state: str, cpus: frozenset[int]) -> None:
    """Mount the emulated nodes and CPUs over those of /sys."""
    for cpu in sorted(cpus):
        _mount('--bind', f'{state}/sys/cpu{cpu}',
               f'{topology.CPU_DIR}/cpu{cpu}')
    _mount('--bind', f'{state}/sys/node', topology.NODE_DIR)


def mount_proc(state: str) -> None:
    """Mount the files of :func:`write_proc` over those of /proc."""
    for name in os.listdir(f'{state}/proc'):
        _mount('--bind', f'{state}/proc/{name}', f'/proc/{name}')


def mount_private(state: str, binds: Iterable[str] = ()) -> None:
    """libvirt's directories, and others.

    :param binds: the others, each ``SOURCE:TARGET``.
    """
    for target, source in PRIVATE.items():
        os.makedirs(target, exist_ok=True)
        _mount('--bind', f'{state}/{source}', target)
    for bind in binds:
        _mount('--bind', *bind.split(':'))


def mount_gigantic_pages(state: str) -> None:
    """Mount the file system of pages of 1 GB that libvirt asks for.

    The machine needs none of these pages, as guests have other memory
    (:mod:`qemu_tcg_as_kvm`). If its CPUs know no such pages, libvirt refuses
    guests with them.
    """
    target = f'{state}/{qemu_tcg_as_kvm.GIGANTIC_PAGES}'
    os.makedirs(target, exist_ok=True)
    with contextlib.suppress(OSError):
        _mount('-t', 'hugetlbfs', '-o', 'pagesize=1G', 'hugetlbfs', target)


def mount_sysfs(state: str) -> None:
    """Mount a /sys/fs that has a directory ``resctrl``.

    sysfs takes no mkdir, so a tmpfs with the former content bound into it
    covers it.
    """
    _cover('/sys/fs', f'{state}/covered')
    os.makedirs('/sys/fs/resctrl', exist_ok=True)


def mount_kvm(state: str) -> None:
    """Provide a /dev/kvm if the machine has none; libvirt never opens it.

    A node made in /dev would be seen by the whole machine: devtmpfs is one
    file system. So a tmpfs with the same nodes covers it.
    """
    if os.path.exists('/dev/kvm'):
        return
    _cover('/dev', f'{state}/covered')
    os.mknod('/dev/kvm', stat.S_IFCHR | 0o666, os.stat('/dev/null').st_rdev)
    os.chmod('/dev/kvm', 0o666)  # noqa: S103


def _cover(target: str, covered: str) -> None:
    """Cover a directory with a tmpfs that has the same entries."""
    os.makedirs(covered, exist_ok=True)
    _mount('--rbind', target, covered)
    _mount('-t', 'tmpfs', '-o', 'mode=755', 'tmpfs', target)
    for entry in os.scandir(covered):
        where = f'{target}/{entry.name}'
        status = entry.stat(follow_symlinks=False)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), where)
        elif entry.is_dir():
            os.mkdir(where)
            _mount('--rbind', entry.path, where)
        elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            os.mknod(where, status.st_mode, status.st_rdev)
            os.chmod(where, stat.S_IMODE(status.st_mode))
            os.chown(where, status.st_uid, status.st_gid)
    # Lazily: an open file of /sys/fs keeps the former mount busy.
    subprocess.run(['umount', '--lazy', covered], check=True)


def main(argv: list[str]) -> int:
    """Make the mounts, then wait for a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument('state')
    parser.add_argument('cpus', type=cpusets.parse_list)
    parser.add_argument('--hostname')
    parser.add_argument('--gigantic-pages', action='store_true')
    parser.add_argument('--bind', action='append', default=[])
    given = parser.parse_args(argv[1:])
    state, cpus = given.state, given.cpus
    try:
        if given.hostname:
            socket.sethostname(given.hostname)
        mount_private(state, given.bind)
        if given.gigantic_pages:
            mount_gigantic_pages(state)
        mount_kvm(state)
        mount_sysfs(state)
        mount_topology(state, cpus)
        mount_proc(state)
    except OSError as exc:
        print(exc, file=sys.stderr)
        return 1
    with open(f'{state}/log/holder.ready', 'w') as stream:
        stream.write(os.readlink('/proc/self/ns/mnt') + '\n')
    signal.pause()
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv))

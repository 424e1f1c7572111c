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


"""A host with faked NUMA nodes and resctrl for an unmodified libvirtd.

In a mount namespace of its own: the machine's CPUs split over N nodes, the
resctrl emulator on ``/sys/fs/resctrl``, a private ``/etc/libvirt``,
``/var/{lib,cache,log}/libvirt`` and ``/run/libvirt``, and libvirtd with
:mod:`~ghsched_nova.lab.emulator.qemu_tcg_as_kvm` for an emulator. The
machine's own libvirtd and sockets are neither used nor touched. Run as root::

    ghsched-testhost up --state /srv/host1
    ghsched-testhost exec --state /srv/host1 -- \\
        virsh capabilities
    ghsched-testhost down --state /srv/host1

Logs and pid files are in ``DIR/log``. ``down`` ends every process in the
namespace, guests included, and with the last one its mounts are gone.
"""

import argparse
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
from dataclasses import dataclass
import fcntl
import json
import os
from pathlib import Path
import shutil
import subprocess  # noqa: S404
import sys
from typing import Any
import uuid

from ghsched_nova.lab.emulator import cpusets
from ghsched_nova.lab.emulator import daemons
from ghsched_nova.lab.emulator.daemons import HostError
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import namespace
from ghsched_nova.lab.emulator import qemu_probes
from ghsched_nova.lab.emulator import resctrl

_ANSWER_TIMEOUT_S = 20.0
#: Exit status of timeout(1) when the command took longer.
_TIMED_OUT = 124

#: Programs that a test host needs, and the Debian packages they are in.
PROGRAMS = {
    'libvirtd': 'libvirt-daemon-system',
    'virsh': 'libvirt-clients',
    'nsenter': 'util-linux',
    'unshare': 'util-linux',
}
RESCTRL = '/sys/fs/resctrl'


@dataclass(frozen=True)
class Settings:
    """Settings of a test host.

    :param nodes: NUMA nodes to split the CPUs over.
    :param dialect: a key of :data:`machines.DIALECTS`.
    :param closids: control groups, the default group included.
    :param rmids: monitoring ids.
    :param without: schemata lines that this machine does not have.
    :param faults: fault file of the resctrl emulator.
    :param load: its load file.
    :param log_fs: log each operation on resctrl to ``log/resctrl.log``.
    :param hostname: what libvirt calls the host; the machine's name if left
        out. Two hosts of one cloud need names of their own.
    :param migration: ``ADDRESS:FIRST-LAST``, where guests that migrate to
        this host are received; two hosts of one machine need ports of their
        own.
    :param gigantic_pages: pages of 1 GB that the host shows on all its nodes
        together, in whose place guests have ordinary memory; None for those
        of the machine.
    :param binds: more directories of its own, each ``SOURCE:TARGET``.
    """

    nodes: int = 2
    dialect: str = 'openeuler66'
    closids: int | None = None
    rmids: int | None = None
    without: Sequence[str] = ()
    faults: str | None = None
    load: str | None = None
    log_fs: bool = False
    hostname: str | None = None
    migration: str | None = None
    gigantic_pages: int | None = None
    binds: Sequence[str] = ()

    def machine(self) -> machines.Machine:
        """Return the machine, on the CPUs that are online here.

        :raises HostError: it has too few CPUs, or a setting is wrong.
        """
        with open('/sys/devices/system/cpu/online') as stream:
            cpus = cpusets.parse_list(stream.read())
        try:
            nodes = machines.evenly(sorted(cpus), self.nodes)
            return machines.build(
                self.dialect, nodes, self.closids, self.rmids,
                without=self.without,
            )
        except machines.BadMachine as exc:
            raise HostError(str(exc)) from exc


class TestHost:
    """The test host in a state directory, up or not."""

    def __init__(self, state: str):
        self.state = os.path.abspath(state)
        self.log = os.path.join(self.state, 'log')
        self._daemons = daemons.Daemons(self.log)

    # What there is -------------------------------------------------------

    def pid(self, name: str) -> int:
        """Return the pid of a part that runs, else 0.

        :param name: ``holder``, ``resctrl`` or ``libvirtd``.
        """
        return self._daemons.pid(name)

    def is_up(self) -> bool:
        """Whether the namespace is there."""
        return bool(self.pid('holder'))

    def status(self) -> dict[str, Any]:
        """Return the state of the host and its processes; pid 0 is a process
        that is not running.
        """
        pids = {x: self.pid(x) for x in ('holder', 'resctrl', 'libvirtd')}
        return {
            'up': all(pids.values()) and self.mounted(),
            'pids': pids,
            'resctrl_mounted': self.mounted(),
            'settings': self._saved(),
            'log': self.log,
            'uri': 'qemu+unix:///system?socket='
                   f'{self.state}/run/libvirt/libvirt-sock',
        }

    def mounted(self) -> bool:
        """Whether resctrl is mounted on the host and answers."""
        holder = self.pid('holder')
        if not holder:
            return False
        with open(f'/proc/{holder}/mountinfo') as stream:
            if f' {RESCTRL} ' not in stream.read():
                return False
        return self.run(['test', '-e', f'{RESCTRL}/tasks']).returncode == 0

    # Up and down ---------------------------------------------------------

    def up(self, settings: Settings) -> None:
        """Start the daemons that do not run; leave the others unchanged.

        :raises HostError: something is missing or does not start.
        """
        _check_requirements()
        machine = settings.machine()
        with self._locked():
            if self.is_up():
                self._check_same(settings)
            else:
                self._prepare(settings, machine)
            try:
                self._start(settings, machine)
            except HostError:
                self._end_all()
                raise

    def down(self) -> None:
        """End every process in the namespace; nothing is left mounted.

        :raises HostError: a process does not end.
        """
        if not os.path.isdir(self.state):
            return
        with self._locked():
            self._end_all()

    def _prepare(
        self, settings: Settings, machine: machines.Machine
    ) -> None:
        # As after a reboot: what ran before does not run now.
        shutil.rmtree(os.path.join(self.state, 'run'), ignore_errors=True)
        for name in ('log', 'bin', *namespace.PRIVATE.values()):
            os.makedirs(os.path.join(self.state, name), exist_ok=True)
        with open(os.path.join(self.state, 'settings.json'), 'w') as stream:
            json.dump(dataclasses.asdict(settings), stream)
        namespace.write_topology(machine, self.state,
                                 settings.gigantic_pages)
        namespace.write_proc(machine, self.state)
        namespace.write_emulators(self.state)
        namespace.write_config(
            self.state, self._host_uuid(), settings.migration)

    def _start(self, settings: Settings, machine: machines.Machine) -> None:
        if not self.pid('holder'):
            self._daemons.start('holder', [
                'unshare', '--mount', '--uts', '--propagation', 'private',
                sys.executable, '-m', 'ghsched_nova.lab.emulator.namespace',
                self.state, cpusets.format_list(machine.cpus),
                *_holder_options(settings),
            ])
            ready = os.path.join(self.log, 'holder.ready')
            self._daemons.wait('holder', lambda: os.path.exists(ready))
        if not self.mounted():
            self._mount(settings, machine)
        if not self.pid('libvirtd'):
            self._start_libvirtd()

    def _end_all(self) -> None:
        holder = self.pid('holder')
        if holder:
            # Open until all have ended: the kernel gives the number of a
            # namespace that is gone to the next one, of another host perhaps.
            with open(f'/proc/{holder}/ns/mnt') as stream:
                self._end_inside(os.readlink(
                    f'/proc/self/fd/{stream.fileno()}'))
        for name in ('holder', 'resctrl', 'libvirtd'):
            daemons.remove(self._daemons.pid_file(name))
        daemons.remove(os.path.join(self.log, 'holder.ready'))
        topology = os.path.join(self.state, 'sys')
        shutil.rmtree(topology, ignore_errors=True)

    def _end_inside(self, inside: str) -> None:
        if inside == resctrl.namespace_of(os.getpid()):
            raise HostError('the host cannot be taken down from within')
        # libvirtd first, or it would mourn its guests; the file system last,
        # so that nobody hangs on it.
        libvirtd, resctrl_pid = self.pid('libvirtd'), self.pid('resctrl')
        holder = self.pid('holder')
        daemons.end([libvirtd])
        others = set(daemons.processes(inside)) - {resctrl_pid, holder}
        daemons.end(others)
        daemons.end([resctrl_pid])
        # More than once: a command may have been on its way into the host.
        for _attempt in range(3):
            left = daemons.processes(inside)
            if not left:
                return
            daemons.end(left)
        left = daemons.processes(inside)
        if left:
            raise HostError(f'processes that do not end: {left}')

    def _check_same(self, settings: Settings) -> None:
        running = self._saved()
        wanted = json.loads(json.dumps(dataclasses.asdict(settings)))
        if running != wanted:
            raise HostError(
                f'{self.state}: a host with other settings is up ({running});'
                ' take it down first'
            )

    # resctrl and libvirtd ------------------------------------------------

    def mount_resctrl(self) -> None:
        """Mount resctrl again; groups of before are gone.

        :raises HostError: the host is not up, or it does not mount.
        """
        settings = self._settings()
        with self._locked():
            if not self.mounted():
                self._mount(settings, settings.machine())

    def umount_resctrl(self, crash: bool = False) -> None:
        """Unmount resctrl while it is in use.

        :param crash: kill the emulator instead, so that the mount stays and
            answers ENOTCONN.
        :raises HostError: the host is not up.
        """
        self._settings()
        with self._locked():
            daemons.end([self.pid('resctrl')], hard=crash)
            if not crash:
                self.run(['umount', '--lazy', RESCTRL])

    def _mount(self, settings: Settings, machine: machines.Machine) -> None:
        daemons.end([self.pid('resctrl')])
        self.run(['umount', '--lazy', RESCTRL])  # a dead one may be there
        command = [
            sys.executable, '-m', 'ghsched_nova.lab.emulator.resctrl',
            '--dialect', settings.dialect, '--nodes', ';'.join(
                f'{node.id}={cpusets.format_list(node.cpus)}'
                for node in machine.nodes
            ),
            # What else this machine does is no load of the host.
            '--own-namespace',
        ]
        for option, value in (
            ('--closids', settings.closids), ('--rmids', settings.rmids),
            ('--faults', settings.faults and os.path.abspath(settings.faults)),
            ('--load', settings.load and os.path.abspath(settings.load)),
            ('--log', settings.log_fs and f'{self.log}/resctrl.log'),
        ):
            if value:
                command += [option, str(value)]
        for line in settings.without:
            command += ['--without', line]
        self._daemons.start('resctrl', self.command([*command, RESCTRL]))
        self._daemons.wait('resctrl', self.mounted)

    def restart_libvirtd(self, kill: bool = False) -> None:
        """Restart libvirtd; guests go on.

        :param kill: by SIGKILL, as a crash.
        :raises HostError: the host is not up, or libvirtd does not start.
        """
        self._settings()
        with self._locked():
            daemons.end([self.pid('libvirtd')], hard=kill)
            self._start_libvirtd()

    def _start_libvirtd(self) -> None:
        daemons.remove(f'{self.log}/libvirtd.lock')
        self._daemons.start('libvirtd', self.command([
            'libvirtd', '-p', f'{self.log}/libvirtd.lock',
            '-f', '/etc/libvirt/libvirtd.conf',
        ]), {
            'PATH': f'{self.state}/bin:{daemons.search_path()}',
            # The machine's systemd must not hear of these guests.
            'DBUS_SYSTEM_BUS_ADDRESS': 'unix:path=/nonexistent',
        })
        self._daemons.wait('libvirtd', self._answers)

    def _answers(self) -> bool:
        """Whether libvirtd answers; it asks all emulators before it does."""
        # Under eventlet, no handler catches subprocess.TimeoutExpired.
        done = self.run(['timeout', f'{_ANSWER_TIMEOUT_S}', 'virsh', '-c',
                         'qemu:///system', 'version'])
        if done.returncode == _TIMED_OUT:
            qemu_probes.unblock_probes(Path(
                self.state, namespace.PRIVATE['/var/lib/libvirt'], 'qemu'))
        return done.returncode == 0

    # Commands ------------------------------------------------------------

    def command(self, command: Sequence[str]) -> list[str]:
        """The command that runs ``command`` on the host, in this directory.

        :raises HostError: the host is not up.
        """
        holder = self.pid('holder')
        if not holder:
            raise HostError(f'{self.state}: no test host is up there')
        return [
            'nsenter', '--target', str(holder), '--mount', '--uts', '--',
            'sh', '-c', 'cd "$0" && exec "$@"', os.getcwd(), *command,
        ]

    def run(
        self, command: Sequence[str], **more: Any
    ) -> 'subprocess.CompletedProcess[str]':
        """Run a command on the host and keep its output.

        :raises HostError: the host is not up.
        """
        return subprocess.run(
            self.command(command), check=False, capture_output=True,
            text=True, **more,
        )

    # State ---------------------------------------------------------------

    def _saved(self) -> dict[str, Any]:
        try:
            with open(f'{self.state}/settings.json') as stream:
                saved: dict[str, Any] = json.load(stream)
        except (OSError, ValueError):
            return {}
        return saved

    def _settings(self) -> Settings:
        if not self.is_up():
            raise HostError(f'{self.state}: no test host is up there')
        return Settings(**self._saved())

    def _host_uuid(self) -> str:
        """Return the UUID of the host of this directory, the same at each
        start.
        """
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f'file://{self.state}'))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        os.makedirs(self.log, exist_ok=True)
        with open(f'{self.state}/lock', 'w') as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


def _holder_options(settings: Settings) -> list[str]:
    options = [f'--bind={bind}' for bind in settings.binds]
    if settings.hostname:
        options.append(f'--hostname={settings.hostname}')
    if settings.gigantic_pages is not None:
        options.append('--gigantic-pages')
    return options


def missing() -> str:
    """Return the reason why this machine can run no test host; empty if it
    can.
    """
    if os.geteuid() != 0:
        return 'root is needed for a mount namespace'
    if not os.path.exists('/dev/fuse'):
        return 'there is no /dev/fuse'
    for program, package in PROGRAMS.items():
        if shutil.which(program, path=daemons.search_path()) is None:
            return f'there is no {program} (Debian package {package})'
    if not namespace.emulators():
        return 'there is no QEMU (Debian package qemu-system-x86)'
    if not os.path.isdir('/sys/devices/system/node/node0'):
        return 'this kernel shows no NUMA nodes (CONFIG_NUMA)'
    return ''


def _check_requirements() -> None:
    reason = missing()
    if reason:
        raise HostError(reason)


# Command line ------------------------------------------------------------


def _up(host: TestHost, args: argparse.Namespace) -> int:
    names = [field.name for field in dataclasses.fields(Settings)]
    host.up(Settings(**{name: getattr(args, name) for name in names}))
    return 0


def _down(host: TestHost, args: argparse.Namespace) -> int:
    host.down()
    return 0


def _restart_libvirtd(host: TestHost, args: argparse.Namespace) -> int:
    host.restart_libvirtd(args.kill)
    return 0


def _mount_resctrl(host: TestHost, args: argparse.Namespace) -> int:
    host.mount_resctrl()
    return 0


def _umount_resctrl(host: TestHost, args: argparse.Namespace) -> int:
    host.umount_resctrl(args.crash)
    return 0


def _status(host: TestHost, args: argparse.Namespace) -> int:
    status = host.status()
    print(json.dumps(status, indent=2))
    return 0 if status['up'] else 1


def _exec(host: TestHost, args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ['--'] else args.command
    if not command:
        raise HostError('exec: give a command after --')
    inside = host.command(command)
    os.execvp(inside[0], inside)  # noqa: S606


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='ghsched-testhost',
        description='A host with faked NUMA nodes and resctrl for libvirtd.',
    )
    commands = parser.add_subparsers(required=True)

    def add(
        name: str, run: Callable[[TestHost, argparse.Namespace], int],
        text: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            '--state', required=True, metavar='DIR',
            help='directory of the host, its logs and its pid files',
        )
        command.set_defaults(run=run)
        return command

    up = add('up', _up, 'start the host; what runs stays as it is')
    _add_settings(up)
    add('down', _down, 'end the host')
    add('status', _status, 'print what runs, as JSON')
    run = add('exec', _exec, 'run a command on the host')
    run.add_argument('command', nargs=argparse.REMAINDER)
    restart = add(
        'restart-libvirtd', _restart_libvirtd,
        'restart libvirtd; guests go on',
    )
    restart.add_argument('--kill', action='store_true', help='as a crash')
    add('mount-resctrl', _mount_resctrl, 'mount resctrl again, empty')
    umount = add('umount-resctrl', _umount_resctrl, 'take resctrl away')
    umount.add_argument(
        '--crash', action='store_true',
        help='leave a dead mount that answers ENOTCONN',
    )
    return parser


def _add_settings(up: argparse.ArgumentParser) -> None:
    """Options for each of :class:`Settings`."""
    up.add_argument(
        '--nodes', type=int, default=2, metavar='N',
        help='NUMA nodes to split the CPUs over (default: %(default)s)',
    )
    resctrl.add_machine_options(up)
    up.add_argument(
        '--log-fs', action='store_true', help='log operations on resctrl',
    )
    up.add_argument(
        '--hostname', metavar='NAME',
        help="name of the host (default: the machine's)",
    )
    up.add_argument(
        '--migration', metavar='ADDRESS:FIRST-LAST',
        help='where guests that migrate to this host are received',
    )
    up.add_argument(
        '--gigantic-pages', type=int, metavar='N',
        help='pages of 1 GB that the host shows on its nodes; guests have '
             "ordinary memory in their place (default: the machine's)",
    )
    up.add_argument(
        '--bind', action='append', default=[], dest='binds',
        metavar='SOURCE:TARGET', help='one more directory of its own',
    )


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        status: int = args.run(TestHost(args.state), args)
    except (HostError, OSError) as exc:
        print(f'testhost: {exc}', file=sys.stderr)
        return 1
    return status


if __name__ == '__main__':
    sys.exit(main())

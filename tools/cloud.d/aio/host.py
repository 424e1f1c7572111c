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


"""A simulated compute host, in a mount namespace of its own.

All of it is :mod:`ghsched_nova.lab.emulator.testhost`: NUMA nodes, an
emulated resctrl file system, and Debian's unmodified libvirtd and QEMU. Which
host is meant is part of the settings.
"""

from collections.abc import Mapping, Sequence
import json
import os
from pathlib import Path
import subprocess

from aio.settings import CloudError
from aio.settings import ComputeHost
from aio.settings import Settings
from aio import ssh
from ghsched_nova.lab.emulator import testhost
from ghsched_nova.lab.emulator import traffic

DIALECT = ComputeHost.dialect
#: Pages of 1 GB of a host: of two nodes, the second has one less.
GIGANTIC_PAGES = 3


def node_bandwidth(cpus: int | None = None,
                   nodes: int = ComputeHost.nodes) -> str:
    """``[ghsched]node_bandwidth``: all CPUs of a node busy (simulated).

    :param cpus: how many CPUs the nodes have in all; those of this machine
        by default.
    :param nodes: how many nodes there are.
    """
    total = cpus or os.cpu_count() or nodes
    of_one = int(traffic.FULL_RATE / 10 ** 6)
    bounds = [total * node // nodes for node in range(nodes + 1)]
    return ','.join(f'{node}:{of_one * (bounds[node + 1] - bounds[node])}'
                    for node in range(nodes))


def _testhost(settings: Settings, command: str, *arguments: str
              ) -> tuple[str, ...]:
    return (f'{settings.venv}/bin/python', '-m',
            'ghsched_nova.lab.emulator.testhost', command,
            '--state', str(settings.host_state), *arguments)


def inside(settings: Settings, command: Sequence[str]) -> tuple[str, ...]:
    """The command line that runs a command on the host."""
    return _testhost(settings, 'exec', '--', *command)


def control(settings: Settings, command: str, *arguments: str) -> str:
    """Run one of the host's own commands and return what it printed.

    :raises CloudError: when it fails, with what it printed.
    """
    result = subprocess.run(_testhost(settings, command, *arguments),
                            stdin=subprocess.DEVNULL, capture_output=True,
                            text=True, check=False)
    if result.returncode:
        raise CloudError(f'the simulated host\'s "{command}" failed:\n'
                         + result.stdout + result.stderr)
    return result.stdout


def up(settings: Settings, dialect: str = '') -> None:
    """Start the host.

    :param dialect: of its emulated resctrl, if it is another one for a while.
    """
    host = settings.host
    for directory in (settings.host_state, settings.own_instances,
                      settings.host_link.parent):
        directory.mkdir(parents=True, exist_ok=True)
    if not settings.host_link.is_symlink():
        settings.host_link.symlink_to(settings.host_state)
    set_faults(settings, {})
    control(settings, 'up', '--dialect', dialect or host.dialect,
            '--nodes', str(host.nodes),
            '--closids', str(settings.control_groups),
            '--gigantic-pages', str(GIGANTIC_PAGES),
            '--faults', str(settings.faults),
            '--migration', settings.migration,
            '--hostname', host.name,
            '--bind', f'{ssh.configure(settings)}:/etc/ssh',
            # Where the commands on a compute host look for nova.conf.
            '--bind', f'{_nova_directory(settings)}:/etc/nova',
            # The instances of the first host are where they are seen.
            *(('--bind', f'{settings.own_instances}:{settings.instances}')
              if host.suffix else ()))
    run(settings, ('chmod', '0700', '/sys/fs/resctrl'))


def _nova_directory(settings: Settings) -> Path:
    """Make and return the directory with nova.conf of a host."""
    directory = settings.etc / f'nova{settings.host.suffix}'
    directory.mkdir(parents=True, exist_ok=True)
    Path('/etc/nova').mkdir(mode=0o755, exist_ok=True)
    # Commands on the host read the options of "tools/cloud set-option" from
    # the file of ghsched-nova-compute that packages add.
    link = directory / 'ghsched-compute.conf'
    if not link.is_symlink():
        link.symlink_to(settings.local_conf)
    return directory


def small_disk(settings: Settings, size: str) -> None:
    """Give the instances a disk of their own, which :func:`fill` can fill.

    The host must be down: it sees the disks that there are when it comes up.

    :param size: as tmpfs(5) takes it.
    """
    settings.own_instances.mkdir(parents=True, exist_ok=True)
    if not settings.own_instances.is_mount():
        _mount('mount', '-t', 'tmpfs', '-o', f'size={size}', 'instances',
               str(settings.own_instances))


def no_small_disk(settings: Settings) -> None:
    """Give it back, with all that is on it; the host must be down."""
    while settings.own_instances.is_mount():
        _mount('umount', str(settings.own_instances))


def _mount(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, check=False)
    if done.returncode:
        raise CloudError(f'{" ".join(command)}: {done.stderr.strip()}')


def fill(settings: Settings) -> None:
    """Leave nothing free on the disk of the instances."""
    with _filler(settings).open('wb') as out:
        free = os.statvfs(settings.own_instances)
        os.posix_fallocate(out.fileno(), 0, free.f_bavail * free.f_bsize)


def unfill(settings: Settings) -> None:
    _filler(settings).unlink(missing_ok=True)


def _filler(settings: Settings) -> Path:
    if not settings.own_instances.is_mount():
        raise CloudError(f'{settings.own_instances} is not a disk of its own')
    return settings.own_instances / 'filler'


def set_faults(settings: Settings, faults: Mapping[str, object]) -> None:
    """Set the faults that resctrl has from now on; see emulator.faults."""
    new = settings.faults.with_suffix('.new')
    new.write_text(json.dumps(faults))
    new.replace(settings.faults)


def is_up(settings: Settings) -> bool:
    try:
        return bool(testhost.TestHost(str(settings.host_state)).status()['up'])
    except (OSError, testhost.HostError):    # it is going down
        return False


def down(settings: Settings) -> None:
    control(settings, 'down')


def run(settings: Settings, command: Sequence[str]) -> str:
    """Run a command on the host and return its output.

    :raises CloudError: when it fails, or the host is not up.
    """
    try:
        result = testhost.TestHost(str(settings.host_state)).run(
            command, stdin=subprocess.DEVNULL)
    except testhost.HostError as error:
        raise CloudError(str(error)) from error
    if result.returncode:
        raise CloudError(f'on the simulated host, {" ".join(command)}: '
                         + (result.stderr or result.stdout).strip())
    return result.stdout

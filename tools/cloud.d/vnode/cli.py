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


"""The commands of tools/vnode, after the build."""

import argparse
import functools
import hashlib
import os
from pathlib import Path
import subprocess
import sys
from typing import Any

from aio import catalog
from aio.cli import step
from aio import database
from aio import process
from aio.settings import CloudError
from aio.settings import read
from aio.settings import Settings
from openstack import exceptions
from vnode import interrupts
from vnode import machine
from vnode import node_config
from vnode import ports

#: The image that boots in a nested guest.
IMAGE = 'ghsched-nested'
#: One CPU does all: QEMU before 8.1 may read a NULL memory region, and end,
#: where one emulated CPU maps a device's memory while another one accesses
#: some ("softmmu: Use async_run_on_cpu in tcg_commit" of its history).
_COMMAND_LINE = ('console=ttyS0 quiet nokaslr mitigations=off tsc=reliable '
                 'no_timer_check maxcpus=1')

#: The image of a nested guest whose kernel has a bond, and options of it: one
#: card works, the bond has its MAC address, and says so to others twice.
BOND_IMAGE = 'ghsched-nested-bond'
_BOND = ('bonding.mode=active-backup bonding.miimon=100 '
         'bonding.fail_over_mac=active bonding.num_grat_arp=2')

#: Seconds that a busy machine may need for a step.
_PATIENCE = 600

#: Seconds until the node must have its devices; it takes some fifteen, and
#: a minute on a busy machine.
_BOOT = 200

#: An emulated machine may stop in its first seconds: its kernel panics as it
#: sees no interrupt of the timer, or the timer of one of its CPUs falls
#: silent, and the others wait for that one for ever.
_BOOTS = 3


def files(settings: Settings) -> machine.Files:
    cache = settings.cache / 'vnode'
    return machine.Files(
        emulator=cache / 'qemu', root=cache / 'root',
        environment=cache / 'environment' / 'image',
        parcel=machine.state(settings) / 'parcel.tar')


# -- up -----------------------------------------------------------------------

def up(settings: Settings) -> None:
    """Start the node if it is not up, and wait until Nova can use it."""
    node = _node(settings)
    if node.pid is not None and not node.is_current:
        print('The virtual node is of an older build or configuration.')
        down(settings)
    if node.pid is None:
        step('its kernel and its VFs', lambda: _boot(settings, node))
    step('emulated resctrl, libvirtd', lambda: _await_word(
        settings, node, 'libvirtd', _PATIENCE))
    cloud = catalog.connect(settings)
    step('nova-compute in the node', lambda: process.wait_until(
        lambda: _service(cloud, 'up'), _PATIENCE,
        'nova-compute does not report; see: tools/vnode exec cat '
        '/var/log/vnode/nova-compute.log', node))
    step('Placement has its VFs', lambda: _await_inventory(cloud, node))
    step('Nova\'s cell has the host', lambda: _map_host(settings))
    step('Neutron has a network for VFs',
         lambda: ports.prepare(settings, cloud))
    step('image of the nested guest', lambda: upload_image(settings, cloud))
    print(f'The virtual compute node {machine.NAME} is up.')


def _boot(settings: Settings, node: process.Process) -> None:
    """Start the machine, once more if it stops in its first seconds."""
    for left in reversed(range(_BOOTS)):
        _start(settings, node)
        try:
            _await_word(settings, node, 'devices', _BOOT)
        except CloudError as error:
            process.stop([node])
            if not left:
                raise
            print(f'\n  started again: {error}')
        else:
            return


def _start(settings: Settings, node: process.Process) -> None:
    forget(settings)
    console = machine.console(settings)
    console.unlink(missing_ok=True)
    node_config.write_parcel(_parcel(settings), files(settings).parcel)
    node.start()


def _node(settings: Settings) -> process.Process:
    cache = settings.cache / 'vnode'
    parts: list[object] = [
        path.read_text() for name in ('qemu', 'root', 'environment')
        if (path := cache / name / 'revision').exists()]
    parts.append(_parcel(settings))
    return machine.process(
        settings, files(settings),
        hashlib.sha256(repr(parts).encode()).hexdigest())


def _parcel(settings: Settings) -> dict[str, tuple[str, int]]:
    return node_config.parcel(
        settings, _key(settings).with_suffix('.pub').read_text())


def _key(settings: Settings) -> Path:
    """The private key of who may log in, made when first asked for."""
    path = machine.state(settings) / 'key'
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        database.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '',
                      '-C', 'ghsched', '-f', str(path)])
    return path


def _await_word(settings: Settings, node: process.Process, word: str,
                seconds: float) -> None:
    """Wait until the node says on its console that it has come so far."""
    console = machine.console(settings)

    def said() -> bool:
        text = '\n' + console.read_text(errors='replace').replace(
            '\r', '') if console.exists() else ''
        if '---[ end Kernel panic' in text:
            raise CloudError('the node\'s kernel has stopped')
        return f'\nVNODE {word} ' in text
    try:
        process.wait_until(said, seconds, f'the node does not say "{word}"',
                           node)
    except CloudError as error:
        tail = console.read_text(errors='replace').splitlines()[-15:] \
            if console.exists() else []
        raise CloudError('\n    '.join(
            (f'{error}\n{console}:', *tail))) from error


def _service(cloud: Any, state: str) -> Any:
    for one in cloud.compute.services(host=machine.NAME):
        if one.state == state:
            return one
    return None


def _await_inventory(cloud: Any, node: process.Process) -> None:
    wanted = machine.NODES * machine.VFS_PER_PF
    name = '_'.join(('CUSTOM_PCI', *machine.VF_ID)).upper()

    def seen() -> int:
        return sum(entry.get(name, {}).get('total', 0)
                   for entry in _inventories(cloud))
    process.wait_until(lambda: seen() == wanted, _PATIENCE,
                       f'Placement has no {wanted} {name}', node)


def _inventories(cloud: Any) -> list[dict[str, Any]]:
    def get(path: str) -> dict[str, Any]:
        return dict(cloud.placement.get(path, microversion='1.39').json())
    roots = get(f'/resource_providers?name={machine.NAME}')
    found = []
    for root in roots['resource_providers']:
        tree = get(f'/resource_providers?in_tree={root["uuid"]}')
        found += [get(f'/resource_providers/{one["uuid"]}/inventories')
                  .get('inventories', {})
                  for one in tree['resource_providers']]
    return found


def _map_host(settings: Settings) -> None:
    mapped = database.query(
        settings, 'select count(*) from nova_api.host_mappings '  # noqa: S608
        f"where host = '{machine.NAME}'")
    if mapped.strip() == '0':
        database.run([*database.nova_manage(settings), 'cell_v2',
                      'discover_hosts'])


def upload_image(settings: Settings, cloud: Any, name: str = IMAGE) -> None:
    """Put the nested guest's kernel and ramdisk into Glance.

    :param name: :data:`IMAGE` or :data:`BOND_IMAGE`.
    """
    cache = settings.cache / 'vnode'
    kernel, ramdisk = cache / 'guest-kernel', cache / 'guest-ramdisk'
    line = _COMMAND_LINE
    if name == BOND_IMAGE:
        kernel = cache / 'guest-kernel-network'
        line = f'{line} {_BOND}'
    catalog.upload_guest(
        cloud, name, catalog.GuestFiles(
            kernel / 'image', ramdisk / 'image', ramdisk / 'disk'),
        line, ' '.join([*((path / 'revision').read_text().strip()
                          for path in (kernel, ramdisk)), line]))


# -- the other commands -------------------------------------------------------

def down(settings: Settings) -> None:
    """End the node and let Nova forget it."""
    node = _node(settings)
    forget(settings)
    subprocess.run([*_ssh(settings), '-O', 'exit'], check=False,
                   capture_output=True)
    step(f'stop the virtual compute node {machine.NAME}',
         lambda: process.stop([node]))
    node.pidfile.unlink(missing_ok=True)


def forget(settings: Settings) -> None:
    """Delete the node's guests and its service, if there is a cloud."""
    try:
        cloud = catalog.connect(settings)
        services = list(cloud.compute.services(host=machine.NAME))
    except Exception:
        return  # no cloud, so nothing that knows the node
    if services and _node(settings).pid is None:
        # Then Nova deletes the guests without asking the node.
        for service in services:
            cloud.compute.update_service_forced_down(service, forced=True)
    for server in cloud.compute.servers(all_projects=True,
                                        compute_host=machine.NAME):
        cloud.compute.delete_server(server)
        cloud.compute.wait_for_delete(server)
    for service in services:
        process.wait_until(functools.partial(_is_deleted, cloud, service), 60,
                           'Nova still finds guests on the node')


def _is_deleted(cloud: Any, service: Any) -> bool:
    """Delete a service; not yet, if Nova is not done with its last guest.

    A server that the API calls deleted is still in the database for a moment.
    """
    try:
        cloud.compute.delete_service(service)
    except exceptions.ConflictException:
        return False
    return True


def status(settings: Settings) -> int:
    """Print how far the node is; 0 when Nova can use it."""
    node = _node(settings)
    console = machine.console(settings)
    lines = console.read_text(errors='replace').splitlines() \
        if console.exists() and node.pid else []
    said = [line for line in lines if line.startswith('VNODE ')]
    try:
        reports = bool(_service(catalog.connect(settings), 'up'))
    except Exception:
        reports = False
    print(f'machine       {node.pid or "down"}')
    print(f'console       {said[-1] if said else "-"}')
    print(f'nova-compute  {"up" if reports else "down"}')
    print(f'ssh           127.0.0.1 port {machine.ssh_port(settings)}')
    print(f'log           {console}')
    return 0 if node.pid and reports else 1


def _ssh(settings: Settings) -> list[str]:
    """Return the ssh command line, which reuses one connection."""
    options = {
        'BatchMode': 'yes', 'LogLevel': 'ERROR', 'ControlMaster': 'auto',
        'ControlPath': f'{machine.state(settings)}/ssh',
        'ControlPersist': '60', 'ConnectTimeout': '60',
        'StrictHostKeyChecking': 'no', 'UserKnownHostsFile': '/dev/null',
    }
    return ['ssh', '-i', str(_key(settings)),
            '-p', str(machine.ssh_port(settings)),
            *(f'-o{name}={value}' for name, value in options.items()),
            'root@127.0.0.1']


def shell_line(words: list[str]) -> str:
    """A command as the node's shell reads it."""
    quoted = ["'" + word.replace("'", "'\\''") + "'" for word in words]
    return f'. /etc/vnode; PATH=$VENV/bin:$PATH {" ".join(quoted)}'


def run(settings: Settings, words: list[str]) -> str:
    """Run a command in the node and return its output."""
    result = subprocess.run(
        [*_ssh(settings), shell_line(words)], capture_output=True,
        stdin=subprocess.DEVNULL, text=True, check=False)
    if result.returncode:
        raise CloudError(f'in the virtual node, {" ".join(words)}: '
                         + (result.stderr or result.stdout).strip())
    return result.stdout


def _execute(settings: Settings, words: list[str]) -> None:
    words = words[1:] if words[:1] == ['--'] else words
    line = [shell_line(words)] if words else []
    os.execvp('ssh', [*_ssh(settings), *line])  # noqa: S606


def _interrupts(settings: Settings) -> int:
    if _node(settings).pid is not None:
        raise CloudError('the node is up; take it down first')
    return interrupts.show(settings, files(settings),
                           Path(__file__).parents[3])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='tools/vnode',
        description='A virtual compute node with two NUMA nodes, an IOMMU '
                    'and an SR-IOV network card on each node, joined to the '
                    'cloud of tools/cloud.')
    commands = parser.add_subparsers(dest='command', required=True)
    for name, text in (
            ('build', 'make what the node and its guests boot from'),
            ('build-bond', 'make also a kernel of guests that has a bond'),
            ('up', 'build what is missing and start the node'),
            ('down', 'end the node and let Nova forget it'),
            ('status', 'say how far the node is'),
            ('interrupts', 'boot it without a cloud, and look at where '
                           'interrupts of a VF go'),
            ('ssh', 'log in')):
        commands.add_parser(name, help=text)
    one = commands.add_parser('exec', help='run a command in the node')
    one.add_argument('words', nargs=argparse.REMAINDER)
    return parser


def main() -> int:
    given = _parser().parse_args()
    settings = read()
    try:
        if given.command == 'up':
            up(settings)
        elif given.command == 'down':
            down(settings)
        elif given.command == 'status':
            return status(settings)
        elif given.command == 'interrupts':
            return _interrupts(settings)
        elif given.command in ('ssh', 'exec'):
            _execute(settings, getattr(given, 'words', []))
    except CloudError as error:
        print(f'tools/vnode: {error}', file=sys.stderr)
        return 1
    return 0

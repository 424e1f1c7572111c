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


"""Configuration files of the virtual compute node."""

from collections.abc import Iterable
import io
import json
from pathlib import Path
import tarfile

from aio import config
from aio.config import Config
from aio.config import Section
from aio.config import Value
from aio import host
from aio.settings import Settings
from vnode import machine

#: A directory of the node.
_STATE = '/var/lib/nova'
_CONF = '/etc/nova/nova-compute.conf'


def nova_compute(settings: Settings) -> Config:
    """nova-compute's options: those of the simulated host, with real VFs."""
    sections = {name: _seen_from_node(settings, section)
                for name, section in config.compute(settings).items()}
    cpus = range(machine.NODES * machine.CPUS_PER_NODE)
    shared = [machine.shared_cpu(node) for node in range(machine.NODES)]
    changes: dict[str, Section] = {
        'DEFAULT': {'host': machine.NAME, 'my_ip': machine.NODE_ADDRESS,
                    'state_path': _STATE,
                    'instances_path': f'{_STATE}/instances',
                    'reserved_host_memory_mb': 256},
        'oslo_concurrency': {'lock_path': f'{_STATE}/lock'},
        'compute': {
            'cpu_shared_set': _list(shared),
            'cpu_dedicated_set': _list(set(cpus) - set(shared))},
        'ghsched': {'node_bandwidth': host.node_bandwidth(len(cpus)),
                    # A figure is of its own period alone.
                    'load_smoothing': 0},
        # Nova asks again after 20 seconds, which QEMU refuses while the guest,
        # emulated twice, is busy with the first request; the detach then
        # fails ("guest is busy (power indicator blinking)").
        'libvirt': {'device_detach_timeout': 180},
        'pci': {
            'device_spec': _device_spec(),
            'alias': config.PCI_ALIAS, 'report_in_placement': True},
    }
    for name in ('placement', 'neutron'):
        changes[name] = {'endpoint_override': settings.url(name).replace(
            '127.0.0.1', machine.HOST_ADDRESS)}
    for name, change in changes.items():
        sections[name] = {**sections.get(name, {}), **change}
    return sections


def _device_spec() -> tuple[str, ...]:
    """The VFs of ports come first: Nova takes the first entry that fits."""
    ports: list[dict[str, str]] = [
        {'address': address, 'physical_network': machine.NETWORK}
        for address in machine.port_vfs()]
    other = dict(zip(('vendor_id', 'product_id'), machine.VF_ID, strict=True))
    return tuple(map(json.dumps, (*ports, other)))


def _list(cpus: Iterable[int]) -> str:
    return ','.join(map(str, sorted(cpus)))


def _seen_from_node(settings: Settings, section: Section) -> Section:
    return {name: _value(settings, value) for name, value in section.items()}


def _value(settings: Settings, value: Value) -> Value:
    """Addresses and paths of this machine, as they are in the node."""
    if not isinstance(value, str):
        return value
    for here, there in (
            ('127.0.0.1', machine.HOST_ADDRESS),
            (f'{settings.etc}/nova/nova-compute.conf', _CONF),
            (f' --config-file {settings.local_conf}', '')):
        value = value.replace(here, there)
    return value


def _resctrl_nodes() -> str:
    per_node = machine.CPUS_PER_NODE
    return ';'.join(
        f'{node}={node * per_node}-{(node + 1) * per_node - 1}'
        for node in range(machine.NODES))


def _variables(settings: Settings) -> str:
    """/etc/vnode, read by the node's scripts."""
    return '\n'.join((
        f'VENV={settings.venv}',
        f'VFS={machine.VFS_PER_PF + machine.PORT_VFS}',
        f'DIALECT={host.DIALECT}',
        f"RESCTRL_NODES='{_resctrl_nodes()}'",
        f'CLOSIDS={settings.control_groups}', ''))


def parcel(settings: Settings, key: str) -> dict[str, tuple[str, int]]:
    """Return the files that node-init unpacks: text and mode by path.

    :param key: the public SSH key of who may log in.
    """
    here = Path(__file__).parent
    return {
        'etc/vnode': (_variables(settings), 0o644),
        'etc/nova/nova-compute.conf':
            (config.render(nova_compute(settings)), 0o600),
        'root/.ssh/authorized_keys': (key, 0o600),
        'usr/local/sbin/vnode-service':
            ((here / 'node-service').read_text(), 0o755),
        'usr/local/sbin/vnode-emulators':
            ((here / 'node_emulators.py').read_text(), 0o755),
    }


def write_parcel(files: dict[str, tuple[str, int]], path: Path) -> None:
    """Write them as a tar archive; it holds the cloud's password."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    with tarfile.open(path, 'w') as archive:
        for name, (text, mode) in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))

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

"""A cloud of any size for the benchmarks of the scheduler, in databases.

Hosts of four NUMA nodes, as their nova-compute and our driver would report
them to Nova and to Placement. About half of the CPUs are taken. The rows are
written as they are, because 10,000 hosts would take hours through the APIs;
everything that reads them is the real thing.
"""

import collections
import contextlib
from dataclasses import dataclass
from dataclasses import field
import datetime
import functools
import json
import os
from pathlib import Path
import random
import time
from typing import Any
import uuid

from nova.db.api import models as api_models
from nova.db.main import models as main_models
from nova import objects
from nova.objects import pci_device_pool
from nova.objects import service as service_object
import os_traits
from placement.db.sqlalchemy import migration
import sqlalchemy as sa

from ghsched_placement.features.index import headroom
from ghsched_placement.features.load import load
from ghsched_placement.providers import names

CPUS = 32            # of a NUMA node
CACHE_CPUS = 16      # of an L3 cache
MEMORY = 131072      # MiB of a NUMA node
SLOTS = 4            # places for guests of a NUMA node
GUEST_CPUS = 8
GUEST_MEMORY = 16384
GUEST_DISK = 20
RESERVED = 5         # percent of the bandwidth of a NUMA node
GROUPS = 30
VFS = 64             # of a PF
VENDOR, PRODUCT = '15b3', '101e'
VF_CLASS = f'CUSTOM_PCI_{VENDOR}_{PRODUCT}'.upper()
CAPABILITIES = ('MEM_BW_MIN', 'MEM_BW_MAX', 'MEM_BW_HARDLIMIT',
                'MEM_BW_PRIORITY', 'MEM_BW_MONITOR', 'DEVICE_NUMA',
                'NUMA_AUTO', 'CPU_CACHE')
PROJECT, USER = 'p', 'u'

_ROOT_CLASSES = ('PCPU', 'MEMORY_MB', 'DISK_GB', names.RESCTRL_GROUP)

_NOW = datetime.datetime(2026, 11, 1)
_STEP = 5000


@dataclass
class Node:
    """A NUMA node of a host.

    :param memory: MiB that guests have.
    :param used: bandwidth that guests have, in percent.
    :param vfs: free VFs of its PF; None without one.
    """

    number: int
    provider: int = 0
    pf: str = ''
    pf_provider: int = 0
    pinned: set[int] = field(default_factory=set)
    memory: int = 0
    used: int = 0
    vfs: int | None = None


@dataclass
class Host:
    """A compute node.

    :param groups: free control groups.
    """

    name: str
    uuid: str
    root: int
    nodes: list[Node]
    guests: int = 0
    groups: int = GROUPS


def databases(engine: str, place: str) -> dict[str, str]:
    """URLs of the databases of Placement, of the API and of a cell.

    :param place: a directory for sqlite, a socket for MariaDB.
    """
    if engine == 'sqlite':
        return {name: f'sqlite:///{place}/{name}.db'
                for name in ('placement', 'api', 'cell')}
    return {name: f'mysql+pymysql://root@localhost/{name}?unix_socket={place}'
                  '&charset=utf8mb3' for name in ('placement', 'api', 'cell')}


class Cloud:
    """Fills the databases; see :func:`build`."""

    def __init__(self, seed: int, nodes: int, fill: float) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._nodes, self._fill = nodes, fill
        self._classes: dict[str, int] = {}
        self._traits: dict[str, int] = {}
        self.rows: dict[str, list[dict[str, Any]]] = (
            collections.defaultdict(list))
        self.hosts: list[Host] = []

    def learn(self, engine: sa.Engine) -> None:
        """Make the resource classes and traits of a host."""
        tables = _tables(engine)
        with engine.begin() as connection:
            for table, ours, standard in (
                    ('traits', _our_traits(), os_traits.get_traits()),
                    ('resource_classes', _our_classes(), _std_classes())):
                known = connection.execute(sa.select(tables[table].c.name))
                missing = {*ours, *standard} - {row[0] for row in known}
                if missing:
                    connection.execute(tables[table].insert(), [
                        {'name': name, 'created_at': _NOW}
                        for name in sorted(missing)])
            for table, found in (('traits', self._traits),
                                 ('resource_classes', self._classes)):
                one = tables[table]
                found.update((row.name, row.id) for row in connection.execute(
                    sa.select(one.c.name, one.c.id)))

    def add_host(self) -> None:
        name, host_uuid = f'h{len(self.hosts):05d}', self._uuid()
        root = self._provider(host_uuid, name, None, None)
        cores = CPUS * self._nodes
        for resource, total in zip(
                _ROOT_CLASSES, (cores, MEMORY * self._nodes, 4000, GROUPS),
                strict=True):
            self._inventory(root, resource, total)
        self._has(root, *_root_traits())
        host = Host(name, host_uuid, root, [])
        with_pfs = self._random.random() < .5
        for number in range(self._nodes):
            host.nodes.append(self._node(host, number,
                                         with_pfs and number % 2 == 0))
        taken = min(1., max(0., self._random.gauss(self._fill, .2)))
        for node in host.nodes:
            for slot in range(SLOTS):
                if self._random.random() < taken:
                    self._guest(host, node, slot)
        self.hosts.append(host)

    def _node(self, host: Host, number: int, with_pf: bool) -> Node:
        node = Node(number, vfs=VFS if with_pf else None)
        node.provider = self._provider(
            names.make_numa_provider_uuid(host.uuid, number),
            names.make_numa_provider_name(host.name, number), host.root,
            host.root)
        self._inventory(node.provider, names.MEM_BW_PCT, 100, RESERVED)
        self._has(node.provider, names.NUMA_NODE_TRAIT,
                  names.NUMA_ROOT_TRAIT, names.OWNER_TRAIT)
        if with_pf:
            node.pf = self._uuid()
            node.pf_provider = self._provider(
                node.pf, f'{host.name}_0000:{number:02X}:00.0', host.root,
                node.provider)
            self._inventory(node.pf_provider, VF_CLASS, VFS)
            self._has(node.pf_provider, 'COMPUTE_MANAGED_PCI_DEVICE',
                      names.OWNER_TRAIT)
        return node

    def _guest(self, host: Host, node: Node, slot: int) -> None:
        consumer = self._uuid()
        self.rows['consumers'].append({
            'id': len(self.rows['consumers']) + 1, 'uuid': consumer,
            'project_id': 1, 'user_id': 1, 'generation': 1,
            'created_at': _NOW})
        first = node.number * CPUS + slot * GUEST_CPUS
        node.pinned |= set(range(first, first + GUEST_CPUS))
        node.memory += GUEST_MEMORY
        host.guests += 1
        host.groups -= 1
        share = self._random.choice((15, 20, 20, 25))
        share = min(share, 100 - RESERVED - node.used)
        node.used += share
        for resource, amount in (
                ('PCPU', GUEST_CPUS), ('MEMORY_MB', GUEST_MEMORY),
                ('DISK_GB', GUEST_DISK), (names.RESCTRL_GROUP, 1)):
            self._takes(consumer, host.root, resource, amount)
        self._takes(consumer, node.provider, names.MEM_BW_PCT, share)
        if node.vfs and self._random.random() < .6:
            count = min(node.vfs, self._random.choice((4, 8, 16)))
            node.vfs -= count
            self._takes(consumer, node.pf_provider, VF_CLASS, count)

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _provider(self, provider: str, name: str, root: int | None,
                  parent: int | None) -> int:
        number = len(self.rows['resource_providers']) + 1
        self.rows['resource_providers'].append({
            'id': number, 'uuid': provider, 'name': name, 'generation': 0,
            'root_provider_id': root or number, 'parent_provider_id': parent,
            'created_at': _NOW})
        return number

    def _inventory(self, provider: int, resource: str, total: int,
                   reserved: int = 0) -> None:
        self.rows['inventories'].append({
            'resource_provider_id': provider,
            'resource_class_id': self._classes[resource], 'total': total,
            'reserved': reserved, 'min_unit': 1, 'max_unit': total,
            'step_size': 1, 'allocation_ratio': 1.0, 'created_at': _NOW})

    def _has(self, provider: int, *traits: str) -> None:
        self.rows['resource_provider_traits'].extend(
            {'resource_provider_id': provider,
             'trait_id': self._traits[trait], 'created_at': _NOW}
            for trait in traits)

    def _takes(self, consumer: str, provider: int, resource: str,
               used: int) -> None:
        self.rows['allocations'].append({
            'resource_provider_id': provider, 'consumer_id': consumer,
            'resource_class_id': self._classes[resource], 'used': used,
            'created_at': _NOW})


def _our_traits() -> list[str]:
    return [names.NUMA_NODE_TRAIT,
            *(names.CAPABILITY_TRAITS[name] for name in CAPABILITIES)]


def _our_classes() -> list[str]:
    return [VF_CLASS, names.MEM_BW_PCT, names.RESCTRL_GROUP]


def _std_classes() -> tuple[str, ...]:
    return ('PCPU', 'VCPU', 'MEMORY_MB', 'DISK_GB')


@functools.cache
def _root_traits() -> list[str]:
    """Return as many traits as a compute host has."""
    standard = [trait for trait in os_traits.get_traits()
                if trait.startswith(('COMPUTE_', 'HW_CPU_AARCH64'))
                and trait not in ('COMPUTE_STATUS_DISABLED',
                                  'COMPUTE_MANAGED_PCI_DEVICE')][:60]
    return [*standard, *_our_traits()[1:], names.OWNER_TRAIT]


# -- what nova-compute reports to Nova ----------------------------------------


def topology(host: Host) -> Any:
    return objects.NUMATopology(cells=[_cell(node) for node in host.nodes])


def _cell(node: Node) -> Any:
    cpus = set(range(node.number * CPUS, (node.number + 1) * CPUS))
    pages = [objects.NUMAPagesTopology(size_kb=size, total=total, used=0,
                                       reserved=0)
             for size, total in ((4, MEMORY * 256), (2048, 0), (1048576, 0))]
    return objects.NUMACell(
        id=node.number, cpuset=set(), pcpuset=cpus, memory=MEMORY,
        cpu_usage=0, memory_usage=node.memory,
        pinned_cpus=node.pinned, siblings=[{cpu} for cpu in sorted(cpus)],
        mempages=pages, socket=node.number // 2,
        network_metadata=objects.NetworkMetadata(
            physnets={names.make_node_physnet(node.number), *(
                names.make_cache_physnet(frozenset(range(
                    first, first + CACHE_CPUS)))
                for first in range(min(cpus), max(cpus), CACHE_CPUS))},
            tunneled=False))


def pools(host: Host) -> str:
    found = pci_device_pool.from_pci_stats([
        {'vendor_id': VENDOR, 'product_id': PRODUCT,
         'numa_node': node.number, 'count': node.vfs, 'dev_type': 'type-VF',
         'rp_uuid': node.pf, 'address': f'0000:{node.number:02x}:00.0',
         'parent_ifname': f'eth{node.number}'}
        for node in host.nodes if node.vfs])
    return json.dumps(found.obj_to_primitive())


def _load(host: Host) -> load.HostLoad:
    """Return the load of nodes that are neither alike nor bottlenecks."""
    chance = random.Random(host.uuid)  # noqa: S311

    def some() -> float:
        return chance.uniform(0, .7)
    return load.HostLoad(time.time(), 10, tuple(load.HostNodeLoad(
        node.number, cpus=CPUS, vcpus=len(node.pinned), memory=MEMORY,
        memory_free=MEMORY - node.memory, cpu_load=some(),
        cpu_wait=some() / 10, bandwidth=1e10, capacity=2e10,
        memory_load=some(), memory_wait=0., io_load=some(), io_wait=some(),
        bottlenecks=()) for node in host.nodes))


def stats(host: Host) -> dict[str, str]:
    guests = str(host.guests)
    left = headroom.Headroom(
        0, host.guests, host.groups,
        {node.number: 100 - RESERVED - node.used for node in host.nodes},
        headroom.hash_provider(_root_traits(), _ROOT_CLASSES),
        {node.number: 100 - RESERVED for node in host.nodes})
    return {**headroom.make_headroom_stats(left),
            **load.make_load_stats(_load(host)),
            'num_instances': guests, 'io_workload': '0',
            'failed_builds': '0', 'num_vm_active': guests,
            f'num_proj_{PROJECT}': guests, 'num_task_None': guests,
            'num_os_type_None': guests}


def _compute_node(host: Host) -> dict[str, Any]:
    nodes, guests = len(host.nodes), host.guests
    info = {'arch': 'aarch64', 'model': 'Kunpeng-920', 'vendor': 'HiSilicon',
            'features': [f'f{number}' for number in range(40)],
            'topology': {'cells': nodes, 'sockets': 1, 'cores': CPUS,
                         'threads': 1}}
    memory, disk = MEMORY * nodes, 4000
    free = memory - sum(node.memory for node in host.nodes)
    return {
        'host': host.name, 'hypervisor_hostname': host.name,
        'uuid': host.uuid, 'deleted': 0, 'created_at': _NOW,
        'updated_at': _NOW + datetime.timedelta(
            seconds=int(host.uuid[:8], 16) % 60),
        'vcpus': CPUS * nodes, 'memory_mb': memory, 'local_gb': disk,
        'vcpus_used': sum(len(node.pinned) for node in host.nodes),
        'memory_mb_used': memory - free,
        'local_gb_used': guests * GUEST_DISK, 'hypervisor_type': 'QEMU',
        'hypervisor_version': 8000000, 'cpu_info': json.dumps(info),
        'free_ram_mb': free,
        'free_disk_gb': disk - guests * GUEST_DISK,
        'disk_available_least': disk - guests * GUEST_DISK,
        'running_vms': guests, 'current_workload': 0,
        'pci_stats': pools(host), 'metrics': '[]',
        'supported_instances': json.dumps([['aarch64', 'kvm', 'hvm']]),
        'stats': json.dumps(stats(host)),
        'numa_topology': topology(host)._to_json(),
        'cpu_allocation_ratio': 1.0, 'ram_allocation_ratio': 1.0,
        'disk_allocation_ratio': 1.0, 'mapped': 1, 'host_ip': '127.0.0.1'}


def _service(host: Host) -> dict[str, Any]:
    return {'host': host.name, 'binary': 'nova-compute', 'topic': 'compute',
            'report_count': 1, 'disabled': False, 'deleted': 0,
            'version': service_object.SERVICE_VERSION, 'last_seen_up': _NOW,
            'updated_at': _NOW, 'created_at': _NOW, 'forced_down': False,
            'uuid': str(uuid.uuid5(uuid.NAMESPACE_DNS, host.name))}


# -- into the databases -------------------------------------------------------

_ORDER = ('projects', 'users', 'resource_providers', 'inventories',
          'resource_provider_traits', 'consumers', 'allocations')


def build(urls: dict[str, str], hosts: int, seed: int = 7, nodes: int = 4,
          fill: float = .5) -> Cloud:
    """Make the databases of a cloud; what was there is gone.

    :param nodes: NUMA nodes of a host.
    :param fill: mean part of the CPUs that guests have.
    """
    engines = {name: _empty(url) for name, url in urls.items()}
    migration.create_schema(engines['placement'])
    api_models.BASE.metadata.create_all(engines['api'])
    _shorten_longest_index()
    main_models.BASE.metadata.create_all(engines['cell'])
    cloud = Cloud(seed, nodes, fill)
    cloud.learn(engines['placement'])
    for _number in range(hosts):
        cloud.add_host()
    cloud.rows['projects'] = [{'id': 1, 'external_id': PROJECT}]
    cloud.rows['users'] = [{'id': 1, 'external_id': USER}]
    _insert(engines['placement'],
            {name: cloud.rows[name] for name in _ORDER})
    _insert(engines['api'], {
        'cell_mappings': _cells(urls), 'host_mappings': [
            {'host': host.name, 'cell_id': 2} for host in cloud.hosts]})
    _insert(engines['cell'], {
        'services': list(map(_service, cloud.hosts)),
        'compute_nodes': list(map(_compute_node, cloud.hosts))})
    for engine in engines.values():
        _analyze(engine)
        engine.dispose()
    return cloud


def _cells(urls: dict[str, str]) -> list[dict[str, Any]]:
    return [{'id': number, 'uuid': cell, 'name': f'cell{number - 1}',
             'transport_url': 'fake:///', 'disabled': False,
             'database_connection': urls['cell']}
            for number, cell in ((1, objects.CellMapping.CELL0_UUID),
                                 (2, str(uuid.uuid5(uuid.NAMESPACE_DNS,
                                                    'cell1'))))]


def _empty(url: str) -> sa.Engine:
    parsed = sa.engine.make_url(url)
    if parsed.drivername == 'sqlite':
        with contextlib.suppress(FileNotFoundError):
            os.unlink(Path(str(parsed.database)))
    else:
        server = sa.create_engine(parsed.set(database=''))
        name = parsed.database
        with server.begin() as connection:
            connection.exec_driver_sql(f'drop database if exists {name}')
            connection.exec_driver_sql(
                f'create database {name} character set utf8mb3')
        server.dispose()
    return sa.create_engine(url)


def _shorten_longest_index() -> None:
    """Give an index of Nova's the lengths that its migrations give it.

    Its models name none, and MariaDB's limit is 3072 bytes.
    """
    columns = ('source_compute', 'dest_compute', 'source_node', 'dest_node')
    for index in main_models.Migration.__table__.indexes:
        if index.name == 'migrations_by_host_nodes_and_status_idx':
            index.dialect_options['mysql']['length'] = dict.fromkeys(
                columns, 100)


def _tables(engine: sa.Engine) -> Any:
    metadata = sa.MetaData()
    metadata.reflect(bind=engine)
    return metadata.tables


def _insert(engine: sa.Engine, rows: dict[str, list[dict[str, Any]]]) -> None:
    tables = _tables(engine)
    with engine.begin() as connection:
        for name, found in rows.items():
            for first in range(0, len(found), _STEP):
                connection.execute(tables[name].insert(),
                                   found[first:first + _STEP])


def _analyze(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        if engine.name == 'sqlite':
            connection.exec_driver_sql('analyze')
            return
        for name in _tables(engine):
            connection.exec_driver_sql(f'analyze table {name}')

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

"""Reports of compute hosts, for the index of nova-scheduler."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import datetime
import functools
from typing import Any
from typing import NamedTuple

import nova.conf
from nova import context as nova_context
from nova.db.main import api as main_db
from nova.db.main import models as main_models
from nova import objects
from nova.objects import numa as numa_object
from oslo_serialization import jsonutils
from oslo_utils import timeutils
import sqlalchemy as sa

from ghsched_nova.nova_seams import parts
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova.nova_seams.shared import RequestSpec

seam = registry.make_seam_decorator(registry.SCHEDULER, part=registry.INDEX)

#: Columns of a compute node's record that the index uses.
_REPORTED = ('uuid', 'host', 'updated_at', 'numa_topology', 'pci_stats',
             'stats', 'cpu_allocation_ratio', 'ram_allocation_ratio', 'vcpus',
             'vcpus_used', 'memory_mb', 'memory_mb_used')

#: Columns that the digest of a report covers as a whole.
_DIGESTED = ('numa_topology', 'pci_stats', 'cpu_allocation_ratio',
             'ram_allocation_ratio', 'vcpus', 'vcpus_used', 'memory_mb',
             'memory_mb_used')

#: Maximum number of compute nodes that one query reads.
_AT_A_TIME = 500

#: SQL functions that make a JSON object of many rows, by dialect; the one of
#: MySQL and MariaDB is not subject to ``group_concat_max_len``.
_JSON_AGGREGATES = {'sqlite': 'json_group_object',
                    'postgresql': 'json_object_agg'}

#: SQL expression of the digest of a report whose digest is not computed.
_NO_DIGEST = sa.cast(sa.null(), sa.Text)


def is_index_enabled() -> bool:
    """Return whether nova.conf and the installed Nova allow the index."""
    return bool(shared.config().ghsched.scheduler_index
                and (registry.SCHEDULER, registry.INDEX) not in parts.OFF)


class ComputeNodes(NamedTuple):
    """Compute nodes of a cell with the same ``updated_at`` and ``deleted``.

    :param updated: time of the last update of these compute nodes.
    :param deleted: 0, or another number for deleted compute nodes.
    :param digests: digest of each compute node's report by UUID; None if
        unknown.
    """

    updated: datetime.datetime | None
    deleted: int
    digests: Mapping[str, str | None]


@seam('nova.context.CELL_TIMEOUT')
@seam('nova.context.scatter_gather_cells',
      ('context', 'cell_mappings', 'timeout', 'fn', 'args', 'kwargs'))
def call_in_cells(context: Any, cells: Sequence[Any],
                  function: Callable[[Any], Any]) -> list[Any]:
    """Call a function for each cell and return the results.

    The result is None for a cell that fails.
    ``HostManager._get_computes_for_cells`` queries cells in the same way.

    :param function: takes the context of a cell.
    """
    found = nova_context.scatter_gather_cells(
        context, cells, nova_context.CELL_TIMEOUT, function)
    return [None if nova_context.is_cell_failure_sentinel(answer) else answer
            for answer in found.values()]


@seam('nova.db.main.api.get_engine', ('use_slave', 'context'))
def connect_to_database(context: Any) -> sa.Connection:
    """Return a connection to a cell's database; a context manager closes it.

    :param context: context of the cell.
    """
    connection: sa.Connection = main_db.get_engine(context=context).connect()
    return connection


def count_updates_by_second(
    connection: sa.Connection, since: datetime.datetime,
) -> dict[datetime.datetime | None, tuple[int, int]]:
    """Count the compute nodes of a cell by the time of their last update.

    :param connection: connection to the cell's database.
    :param since: earliest time.
    :returns: number of compute nodes and sum of their IDs, by update time;
        for None those that were deleted since then or never updated.
    """
    node = main_models.ComputeNode
    is_other = _is_deleted_or_never_updated(since)
    updated = sa.type_coerce(sa.case((is_other, sa.null()),
                                     else_=node.updated_at), sa.DateTime())
    query = sa.select(
        updated.label('updated'), sa.func.count(), sa.func.sum(node.id)).where(
            sa.or_(node.updated_at >= since, is_other)).group_by('updated')
    return {second: (int(count), int(ids))
            for second, count, ids in connection.execute(query)}


def _is_deleted_or_never_updated(since: datetime.datetime) -> Any:
    """Return the SQL condition of changes that no update time shows."""
    node = main_models.ComputeNode
    return sa.or_(node.deleted_at >= since,
                  sa.and_(node.updated_at.is_(None), node.deleted == 0))


def list_compute_nodes(
        connection: sa.Connection, since: datetime.datetime | None = None,
        omitted: Collection[datetime.datetime] = (),
        keys: Iterable[str] = ()) -> list[ComputeNodes]:
    """Return the compute nodes of a cell, or those changed since a time.

    ``nova.objects.ComputeNodeList`` has no such query. The database returns
    one JSON object for each update time, because the client takes much more
    processor time for a row than for a member of an object.

    :param connection: connection to the cell's database.
    :param since: the time; None for all compute nodes, without digests.
    :param omitted: update times of compute nodes to omit.
    :param keys: keys of the stats that the digests cover.
    """
    node = main_models.ComputeNode
    dialect = connection.dialect.name
    aggregate = getattr(sa.func, _JSON_AGGREGATES.get(
        dialect, 'json_objectagg'))
    digest = _NO_DIGEST if since is None else _make_digest_expression(
        dialect, tuple(keys))
    query = sa.select(
        node.updated_at, node.deleted,
        aggregate(node.uuid, digest, type_=sa.JSON)).where(
            node.uuid.is_not(None)).group_by(node.updated_at, node.deleted)
    if since is None:
        query = query.where(node.deleted == 0)
    else:
        query = query.where(sa.or_(
            sa.and_(node.updated_at >= since,
                    node.updated_at.not_in(list(omitted))),
            _is_deleted_or_never_updated(since)))
    return [ComputeNodes(*row) for row in connection.execute(query)]


def get_database_time(connection: sa.Connection) -> datetime.datetime:
    """Return the current time of a cell's database.

    The time is in UTC, without a time zone.
    """
    clock = {'mysql': sa.func.utc_timestamp(6),
             'postgresql': sa.func.timezone('UTC', sa.func.now())}.get(
                 connection.dialect.name, sa.func.current_timestamp())
    found = connection.execute(sa.select(
        sa.type_coerce(clock, sa.DateTime()))).scalar_one()
    return datetime.datetime.fromisoformat(str(found))


def read_compute_node_reports(
        connection: sa.Connection, uuids: Sequence[str],
        keys: Iterable[str]) -> list[Mapping[str, Any]]:
    """Read the resource reports of a cell's compute nodes from the database.

    :param connection: connection to the cell's database.
    :param keys: keys of the stats that the digests cover.
    :returns: for each compute node the columns that the scheduler's index of
        hosts uses, and the digest, by name.
    """
    node = main_models.ComputeNode
    columns = [getattr(node, name) for name in _REPORTED]
    columns.append(_make_digest_expression(
        connection.dialect.name, tuple(keys)).label('digest'))
    found: list[Mapping[str, Any]] = []
    for first in range(0, len(uuids), _AT_A_TIME):
        rows: Any = connection.execute(sa.select(*columns).where(
            node.deleted == 0,
            node.uuid.in_(uuids[first:first + _AT_A_TIME])))
        found += (row._mapping for row in rows)
    return found


@functools.cache
def _make_digest_expression(dialect: str, keys: tuple[str, ...]) -> Any:
    """Return an SQL expression that computes the digest of a host's report.

    A report whose digest is unchanged need not be read again. The digest
    covers NUMA topology, PCI devices, allocation ratios and some stats. The
    database computes it, because a report is a hundred times as long.

    SQLite has no digest function, so there the expression is the text of the
    report. The digest is NULL if the stats of the host are malformed, because
    one such host must not make the query fail. It is always NULL in databases
    other than MySQL, MariaDB and SQLite.

    :param dialect: SQLAlchemy's name of the database, such as ``mysql``.
    :param keys: keys of the stats (``ComputeNode.stats``) that the digest
        covers.
    """
    if dialect not in ('mysql', 'mariadb', 'sqlite'):
        return _NO_DIGEST
    node = main_models.ComputeNode
    parts: list[Any] = [getattr(node, name) for name in _DIGESTED]
    parts += [sa.func.json_extract(node.stats, f'$.{key}') for key in keys]
    if dialect == 'sqlite':
        digest: Any = sa.literal('')
        for part in parts:
            digest += sa.func.coalesce(sa.cast(part, sa.Text), '') + '|'
    else:
        digest = sa.func.sha2(sa.func.concat_ws(
            '|', *(sa.func.coalesce(part, '') for part in parts)), 256)
    return sa.case((sa.func.json_valid(node.stats) == 1, digest))


def list_unavailable_hosts(connection: sa.Connection) -> set[str]:
    """Return the hosts of a cell whose nova-compute is disabled or down.

    A service is down by the same rule as in ``nova.servicegroup.drivers.db``.

    :param connection: connection to the cell's database.
    """
    service = main_models.Service
    last_seen = sa.func.coalesce(service.last_seen_up, service.updated_at,
                                 service.created_at)
    oldest = timeutils.utcnow() - datetime.timedelta(
        seconds=nova.conf.CONF.service_down_time)
    query = sa.select(service.host).where(
        service.deleted == 0, service.binary == 'nova-compute',
        sa.or_(service.disabled == sa.true(),
               service.forced_down == sa.true(), last_seen < oldest))
    return {row.host for row in connection.execute(query)}


class _HostTopology(numa_object.NUMATopology):
    """NUMA topology of a host that is parsed when its nodes are first read.

    For most hosts of a request the nodes are never read.

    :param read: function that returns the parsed topology.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        super().__init__()
        self._read = read

    @classmethod
    def obj_name(cls) -> str:
        return 'NUMATopology'

    def obj_attr_is_set(self, attrname: str) -> bool:
        """Return True, because reading an attribute that is not set loads it.
        """
        return attrname in self.fields

    def obj_load_attr(self, attrname: str) -> None:
        setattr(self, attrname, getattr(self._read(), attrname))
        self.obj_reset_changes([attrname])

    def __deepcopy__(self, memo: Any) -> '_HostTopology':
        """Return a topology with the same nodes, which are never changed.

        Nova copies the free devices of a host, and the host's topology with
        them, for each allocation candidate that its filters look at
        (``nova.pci.stats.PciDeviceStats.support_requests``).
        """
        return _HostTopology(self._read)


@seam('nova.objects.numa.NUMATopology.obj_from_db_obj', ('db_obj',),
      replaced='Speed, only with ``[ghsched]scheduler_index``.')
def cache_host_topologies(size: int) -> None:
    """Make nova-scheduler parse a host's NUMA topology only after a change.

    Nova parses the topology with each request. The cached object is shared
    safely, because Nova makes a new topology when it subtracts guests
    (``nova.virt.hardware.numa_usage_from_instance_numa``).

    :param size: number of topologies in the cache.
    """
    @functools.lru_cache(maxsize=size)
    def parse(document: str) -> Any:
        return objects.NUMATopology.obj_from_primitive(
            jsonutils.loads(document))

    registry.replace_function(
        'nova.objects.numa.NUMATopology.obj_from_db_obj',
        lambda _original, document: _HostTopology(
            functools.partial(parse, document)))


@seam('nova.scheduler.host_manager.HostManager.enabled_cells')
@seam('nova.scheduler.host_manager.HostManager.aggs_by_id')
@seam('nova.scheduler.host_manager.HostManager.host_aggregates_map')
@seam('nova.scheduler.host_manager.HostManager._get_host_states',
      ('self', 'context', 'compute_nodes', 'services'),
      called='Makes states of some hosts; the public functions read the '
             'services of all hosts.')
def get_host_states(manager: Any, context: Any, uuids: Sequence[str],
                    spec: RequestSpec) -> list[Any]:
    """Return nova-scheduler's states of some hosts, as its filters need them.

    Only the service records of these hosts are read.
    ``HostManager.get_host_states_by_uuids`` reads those of all hosts.

    :param manager: ``nova.scheduler.host_manager.HostManager``.
    :param uuids: UUIDs of the compute nodes.
    """
    wanted = get_required_cell(spec)
    cells = [cell for cell in manager.enabled_cells
             if wanted in (None, cell.uuid)]

    def read_nodes_of_cell(in_cell: Any) -> Any:
        nodes = objects.ComputeNodeList.get_all_by_uuids(in_cell, uuids)
        hosts = {node.host for node in nodes}
        return in_cell.cell_uuid, list(nodes), _read_services(in_cell, hosts)

    nodes: dict[str, list[Any]] = {}
    services: dict[str, Mapping[str, Any]] = {}
    for answer in call_in_cells(context, cells, read_nodes_of_cell):
        if answer is not None:
            cell, of_cell, its_services = answer
            nodes[cell] = of_cell
            services.update((one['host'], one) for one in its_services)
    return list(manager._get_host_states(context, nodes, services))


def _read_services(context: Any,
                   hosts: Iterable[str]) -> list[Mapping[str, Any]]:
    """Read the nova-compute services of some hosts of a cell in one query.

    :returns: services as dictionaries of their fields, as in Nova's host
        states.
    """
    service = main_models.Service
    query = sa.select(*service.__table__.c).where(
        service.deleted == 0, service.binary == 'nova-compute',
        service.host.in_(sorted(hosts)))
    with connect_to_database(context) as connection:
        return [{name: _add_utc_time_zone(value)
                 for name, value in row._mapping.items()}
                for row in connection.execute(query)]


def _add_utc_time_zone(value: Any) -> Any:
    """Return a time of the database with the time zone UTC.

    Any other value is returned unchanged.
    """
    return (value.replace(tzinfo=datetime.UTC)
            if isinstance(value, datetime.datetime) else value)


def get_required_cell(spec: RequestSpec) -> str | None:
    """Return the UUID of the cell to which a request is restricted, or None.
    """
    wanted = (spec.requested_destination
              if 'requested_destination' in spec else None)
    if (wanted and 'cell' in wanted and wanted.cell
            and not wanted.allow_cross_cell_move):
        return str(wanted.cell.uuid)
    return None


@seam('nova.scheduler.utils.ResourceRequest.get_request_group',
      ('self', 'ident'))
@seam('nova.scheduler.utils.ResourceRequest.to_querystring', ('self',))
def get_required_and_forbidden_aggregates(
        resources: Any) -> tuple[list[set[str]], set[str]]:
    """Return the host aggregates that a request requires and forbids.

    :param resources: ``nova.scheduler.utils.ResourceRequest``; its unnumbered
        group has the aggregates of availability zone, project and isolation.
    """
    group = resources.get_request_group(None)
    return ([set(one) for one in group.aggregates],
            set(group.forbidden_aggregates))

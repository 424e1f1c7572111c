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

"""Scheduler process of the benchmarks: a real manager, a real Placement.

Placement is the WSGI application, in the same process, so that its processor
time counts. There is no HTTP and no message bus.
"""

from nova import monkey_patch
monkey_patch.patch(backend='threading')

# Everything else of Nova has to come after it.
import collections  # noqa: E402
from collections.abc import Iterator  # noqa: E402
import contextlib  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from dataclasses import field  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402
import resource  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402
import uuid  # noqa: E402

from nova import config  # noqa: E402
from nova import context as nova_context  # noqa: E402
from nova import objects  # noqa: E402
from nova.pci import request as pci_request  # noqa: E402
from nova.scheduler.client import report  # noqa: E402
from nova.scheduler import host_manager  # noqa: E402
from nova.scheduler import manager as nova_manager  # noqa: E402
from nova.virt import hardware  # noqa: E402
from oslo_config import cfg  # noqa: E402
import oslo_messaging as messaging  # noqa: E402
from oslo_policy import opts as policy_opts  # noqa: E402
from placement import conf as placement_conf  # noqa: E402
from placement import db_api  # noqa: E402
from placement import deploy  # noqa: E402
import requests  # noqa: E402
from sqlalchemy.engine import cursor as sa_cursor  # noqa: E402
import webob  # noqa: E402

from ghsched_nova.features.index import derived_candidates  # noqa: E402
from ghsched_nova.nova_seams import shared  # noqa: E402
import scheduler_cloud as clouds  # noqa: E402

MODES = ('stock', 'whole', 'index')
#: A weigher of ours beside those of Nova, with the whole search or, as in
#: ``gradient+index``, with the index.
WEIGHERS = {'gradient': 'gradient_weigher.GhschedGradientWeigher'}
#: The index, which asks Placement about each host that it proposes.
INDEX_EACH = 'index+each'
#: The index, without the refusals that it remembers.
INDEX_FIRST = 'index+first'
#: Stock Nova with flavors that have as large a part of a node's CPUs as of its
#: bandwidth, so that nobody has to count bandwidth.
STATIC = 'static'
#: Ways by stock Nova; ``stock@32`` is with 32 max_placement_results.
_OF_NOVA = ('stock', STATIC)
#: Seconds for which Nova waits for a cell. The first look at all hosts takes
#: longer than Nova's 60 seconds of wall time on a busy machine.
_CELL_TIMEOUT = 3600
#: Seconds after a request in which the index has to have been updated.
_CURRENT = 10
_OURS = 'ghsched_nova.scheduler.filters.GhschedNUMATopologyFilter'
_FILTERS = ('ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,'
            'ServerGroupAntiAffinityFilter,ServerGroupAffinityFilter,'
            'PciPassthroughFilter,')
_GROUP = {'resources:CUSTOM_RESCTRL_GROUP': '1'}
_ALIAS = {'name': 'nic', 'vendor_id': clouds.VENDOR,
          'product_id': clouds.PRODUCT, 'device_type': 'type-VF'}


@dataclass(frozen=True)
class Kind:
    """A request.

    :param nodes: NUMA nodes of the guest; 0 if the scheduler chooses.
    :param ours: extra specs for our scheduler.
    :param stock: those with which stock Nova asks Placement for as much.
    :param servers: servers in one request.
    """

    nodes: int
    vcpus: int
    ours: dict[str, str] = field(default_factory=dict)
    stock: dict[str, str] = field(default_factory=dict)
    servers: int = 1

    @property
    def static_vcpus(self) -> int:
        """vCPUs of which each node has as many as its share of bandwidth."""
        share = int(self.ours.get('ghsched:mem_bw_min', 0))
        return max(self.vcpus, -(-clouds.CPUS * share // 100) * self.nodes)


def _two(share: int) -> dict[str, str]:
    return {'resources_BW0:CUSTOM_MEM_BW_PCT': str(share),
            'resources_BW1:CUSTOM_MEM_BW_PCT': str(share),
            'group_policy': 'none', **_GROUP}


_AUTO = {'ghsched:numa': 'auto'}
_BW1 = ({'ghsched:mem_bw_min': '30'},
        {'resources_BW0:CUSTOM_MEM_BW_PCT': '30', **_GROUP})

KINDS = {
    'plain': Kind(1, 8),
    # Two guests of other flavors have as many CPUs, of one L3 or of two.
    'plain12': Kind(1, 12),
    'cache12': Kind(1, 12, {'ghsched:cpu_cache': 'require'}),
    # Fits on one node of many hosts.
    'auto': Kind(0, 8, _AUTO),
    # Two nodes, since no single node has enough CPUs.
    'plain2': Kind(2, 48),
    'auto2': Kind(0, 48, _AUTO),
    'bw1': Kind(1, 8, *_BW1),
    'bw1x4': Kind(1, 8, *_BW1, servers=4),
    'bw2': Kind(2, 16, {'ghsched:mem_bw_min': '30'}, _two(30)),
    'bw2vf': Kind(2, 16, {'ghsched:mem_bw_min': '30', 'ghsched:vfs': 'nic:4',
                          'ghsched:vfs_locality': 'node'},
                  {**_two(30), 'pci_passthrough:alias': 'nic:4'}),
    # No node has that much, which Placement knows.
    'no_bw': Kind(2, 16, {'ghsched:mem_bw_min': '98'}, _two(98)),
    # Placement has candidates everywhere, no node has the CPUs.
    'no_cpu': Kind(1, clouds.CPUS + 8, {'ghsched:mem_bw_min': '5'},
                   {'resources_BW0:CUSTOM_MEM_BW_PCT': '5', **_GROUP}),
}


@dataclass
class Counts:
    """Counts of the calls that one request caused.

    :ivar requests: to Placement, by method.
    :ivar answers: refused claims and the like, by method and status.
    :ivar rows: that came from a database.
    """

    requests: collections.Counter[str] = field(
        default_factory=collections.Counter)
    answers: collections.Counter[str] = field(
        default_factory=collections.Counter)
    rows: int = 0


class Placement:
    """The application, with the interface of a keystoneauth adapter."""

    additional_headers: dict[str, str] = {}

    def __init__(self, url: str) -> None:
        conf = cfg.ConfigOpts()
        placement_conf.register_opts(conf)
        policy_opts.set_defaults(conf, enforce_new_defaults=False)
        conf.set_override('connection', url, 'placement_database')
        conf.set_override('auth_strategy', 'noauth2', 'api')
        conf([], default_config_files=[])
        db_api.configure(conf)
        self.conf = conf
        self._app = deploy.loadapp(conf)
        self.counts = Counts()

    def call(self, method: str, url: str, body: Any = None,
             version: str | None = None) -> requests.Response:
        request = webob.Request.blank(url, method=method, headers={
            'X-Auth-Token': 'admin',
            'OpenStack-API-Version': f'placement {version or "1.0"}'})
        if body is not None:
            request.content_type = 'application/json'
            request.body = json.dumps(body).encode()
        answer = request.get_response(self._app)
        self.counts.requests[method] += 1
        self.counts.answers[f'{method} {answer.status_int}'] += 1
        found = requests.Response()
        found.status_code, found.encoding = answer.status_int, 'utf-8'
        found._content = answer.body
        found.headers.update(answer.headers)
        return found

    def get(self, url: str, microversion: str | None = None,
            **_kwargs: Any) -> requests.Response:
        return self.call('GET', url, None, microversion)

    def delete(self, url: str, microversion: str | None = None,
               **_kwargs: Any) -> requests.Response:
        return self.call('DELETE', url, None, microversion)

    def put(self, url: str, json: Any = None, microversion: str | None = None,
            **_kwargs: Any) -> requests.Response:
        return self.call('PUT', url, json, microversion)

    def post(self, url: str, json: Any = None,
             microversion: str | None = None,
             **_kwargs: Any) -> requests.Response:
        return self.call('POST', url, json, microversion)


def _settings(urls: dict[str, str], mode: str,
              directory: str) -> dict[str, dict[str, str]]:
    way, _, limit = mode.partition('@')
    ours, parts = way not in _OF_NOVA, way.split('+')
    return {
        'DEFAULT': {'transport_url': 'fake:/', 'host': 'scheduler',
                    'service_down_time': '999999999',
                    'log_file': f'{directory}/nova.log'},
        'database': {'connection': urls['cell']},
        'api_database': {'connection': urls['api']},
        'oslo_messaging_notifications': {'driver': 'noop'},
        'scheduler': {'discover_hosts_in_cells_interval': '-1',
                      **({'max_placement_results': limit} if limit else {})},
        'filter_scheduler': {
            'available_filters': 'nova.scheduler.filters.all_filters'
            + (f'\navailable_filters = {_OURS}' if ours else ''),
            'enabled_filters': _FILTERS + (
                'GhschedNUMATopologyFilter' if ours
                else 'NUMATopologyFilter'),
            'weight_classes': ','.join([
                'nova.scheduler.weights.all_weighers',
                *(f'ghsched_nova.features.packing.{name}' for of, name
                  in WEIGHERS.items() if of in parts)]),
            'pci_in_placement': 'True'},
        'ghsched': {'scheduler_index': str('index' in parts),
                    # Hosts have reported their load once and for all.
                    'load_max_age': '999999999'},
        'pci': {'alias': json.dumps(_ALIAS)},
        'placement': {'auth_type': 'none', 'endpoint_override': 'http://x'},
        'oslo_concurrency': {'lock_path': directory}}


def _configure(urls: dict[str, str], mode: str) -> None:
    if mode.partition('@')[0] not in _OF_NOVA:
        shared.config()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / 'nova.conf'
        path.write_text('\n'.join(
            '\n'.join([f'[{section}]', *(f'{name} = {value}' for name, value
                                         in options.items())])
            for section, options in _settings(urls, mode,
                                              directory).items()))
        config.parse_args(['scheduler', '--config-file', str(path)])
    logging.disable(logging.WARNING)
    objects.register_all()


class Lab:
    """A scheduler on a cloud of :mod:`scheduler_cloud`."""

    def __init__(self, urls: dict[str, str], mode: str) -> None:
        _configure(urls, mode)
        self.mode = mode.partition('@')[0]
        if mode == INDEX_EACH:
            derived_candidates.MAX_COMBINATIONS = -1
        self.placement = Placement(urls['placement'])
        nova_context.CELL_TIMEOUT = _CELL_TIMEOUT
        report.PLACEMENTCLIENT = report.SchedulerReportClient(
            adapter=self.placement)
        # Which guests are where comes in the background, and is asked for
        # host by host until it is there.
        init = host_manager.HostManager._init_instance_info
        host_manager.HostManager._init_instance_info = (
            lambda _manager, *_args: None)
        self.manager = _manager(self.mode)
        host_manager.HostManager._init_instance_info = init
        self.context = nova_context.RequestContext(
            clouds.USER, clouds.PROJECT, is_admin=True)
        self._know_instances()
        objects.Service.enable_min_version_cache()
        count_rows(self)

    def _know_instances(self) -> None:
        (cell,) = self.manager.host_manager.enabled_cells
        with nova_context.target_cell(self.context, cell) as context:
            for service in objects.ServiceList.get_by_binary(
                    context, 'nova-compute'):
                self.manager.host_manager._instance_info[service.host] = {
                    'instances': {}, 'updated': True}

    def spec(self, kind: Kind) -> Any:
        specs = {'hw:cpu_policy': 'dedicated', **self._list_specs(kind)}
        if kind.nodes:
            specs['hw:numa_nodes'] = str(kind.nodes)
        flavor = objects.Flavor(
            id=1, name='bench',
            memory_mb=max(1, kind.nodes) * clouds.GUEST_MEMORY,
            vcpus=(kind.static_vcpus if self.mode == STATIC
                   else kind.vcpus), root_gb=clouds.GUEST_DISK, ephemeral_gb=0,
            swap=0, flavorid='1', rxtx_factor=1.0, vcpu_weight=0,
            disabled=False, is_public=True, extra_specs=specs)
        image = objects.ImageMeta(
            id=str(uuid.uuid4()), properties=objects.ImageMetaProps(),
            min_ram=0, min_disk=0)
        spec = objects.RequestSpec.from_components(
            self.context, str(uuid.uuid4()), image, flavor,
            hardware.numa_get_constraints(flavor, image),
            pci_request.get_pci_requests_from_flavor(flavor), {}, None, None,
            project_id=clouds.PROJECT, user_id=clouds.USER,
            port_resource_requests=None, request_level_params=None)
        spec.is_bfv, spec.num_instances = False, kind.servers
        if not kind.nodes:
            # nova-api has made it, and the scheduler reads it.
            objects.InstanceMapping(
                self.context, instance_uuid=spec.instance_uuid,
                project_id=clouds.PROJECT, cell_mapping=None).create()
        return spec

    def _list_specs(self, kind: Kind) -> dict[str, str]:
        """Extra specs of a kind for this scheduler."""
        if self.mode == STATIC:
            return {name: value for name, value in kind.stock.items()
                    if 'resources' not in name and name != 'group_policy'}
        return kind.stock if self.mode in _OF_NOVA else kind.ours

    def _check_index(self, wall: float) -> None:
        """Check that the index reads what hosts report.

        :param wall: seconds since the request began.
        :raises RuntimeError: if it has not read it since.
        """
        indexed = getattr(self.manager, '_indexed', None)
        if indexed is not None and indexed.feed.age > wall + _CURRENT:
            raise RuntimeError('the index cannot read the reports of hosts: '
                               f'last read {indexed.feed.age} s ago')

    def select(self, spec: Any, servers: list[str]) -> tuple[Any, str]:
        """Selections, or None and why there are none."""
        try:
            return self.manager.select_destinations(
                self.context, spec_obj=spec, return_objects=True,
                instance_uuids=servers, return_alternates=True), ''
        except messaging.ExpectedException as expected:
            return None, str(expected.exc_info[1])

    def forget(self, servers: list[str]) -> None:
        """Take the allocations of guests away again."""
        for server in servers:
            answer = self.placement.delete(f'/allocations/{server}')
            assert answer.status_code == 204, answer.text  # noqa: S101
            indexed = getattr(self.manager, '_indexed', None)
            if indexed is not None:
                # No host reports in this cloud.
                indexed.index.drop_claim(server)

    def once(self, kind: str, keep: bool = False) -> dict[str, Any]:
        """Schedule one guest; it is gone again unless it is to be kept."""
        spec = self.spec(KINDS[kind])
        servers = [spec.instance_uuid, *(
            str(uuid.uuid4()) for _ in range(1, KINDS[kind].servers))]
        if self.mode == INDEX_FIRST:
            self.manager._indexed.drop_cached_refusals()
        self.placement.counts = counts = Counts()
        begin, wall = time.process_time(), time.perf_counter()
        found, reason = self.select(spec, servers)
        cpu, wall = time.process_time() - begin, time.perf_counter() - wall
        self.placement.counts = Counts()
        self._check_index(wall)
        if found and not keep:
            self.forget(servers)
        return {
            'cpu': cpu, 'wall': wall, 'found': bool(found), 'reason': reason,
            'instance': servers[0], 'rows': counts.rows,
            'host': found[0][0].service_host if found else None,
            'alternates': len(found[0]) - 1 if found else 0,
            'requests': dict(counts.requests),
            'conflicts': counts.answers['PUT 409'],
            'rss': resource.getrusage(
                resource.RUSAGE_SELF).ru_maxrss // 1024}


def _manager(mode: str) -> Any:
    if mode in _OF_NOVA:
        return nova_manager.SchedulerManager()
    from ghsched_nova.features import declared_scheduler
    from ghsched_nova.features.index import indexed
    indexed.MIN_HOSTS = 0   # The lab measures small clouds, too.
    return declared_scheduler.GhschedSchedulerManager()


def count_rows(lab: Lab) -> None:
    """Count what is fetched from any database, Placement's and Nova's."""
    fetching = sa_cursor.CursorFetchStrategy

    def count(name: str, size: Any) -> None:
        fetch = getattr(fetching, name)

        def count_rows_and_fetch(*args: Any, **kwargs: Any) -> Any:
            found = fetch(*args, **kwargs)
            lab.placement.counts.rows += size(found)
            return found
        setattr(fetching, name, count_rows_and_fetch)
    count('fetchone', lambda row: int(row is not None))
    count('fetchmany', len)
    count('fetchall', len)


@contextlib.contextmanager
def make_database_directory(engine: str) -> Iterator[str]:
    """Return the directory of sqlite's files: in memory, if there is one."""
    memory = '/dev/shm'  # noqa: S108
    with tempfile.TemporaryDirectory(
            prefix=f'ghsched-{engine}-',
            dir=memory if os.path.isdir(memory) else None) as directory:
        yield directory

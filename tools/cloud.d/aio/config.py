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


"""The services' configuration files."""

from collections.abc import Mapping
from pathlib import Path

from aio import host
from aio.settings import REGION
from aio.settings import Settings

#: An option's value; several values make a repeated option (MultiOpt).
Value = str | int | bool | tuple[str, ...]
Section = Mapping[str, Value]
Config = Mapping[str, Section]

#: The stock list without NUMATopologyFilter, whose place ours takes, last.
_FILTERS = ('ComputeFilter', 'ComputeCapabilitiesFilter',
            'ImagePropertiesFilter', 'ServerGroupAntiAffinityFilter',
            'ServerGroupAffinityFilter', 'PciPassthroughFilter')

#: How a flavor names the VFs of the virtual compute node (tools/vnode): those
#: of the Intel 82576.
PCI_ALIAS = ('{"name": "vf", "vendor_id": "8086", "product_id": "10ca", '
             '"device_type": "type-VF"}')

#: The privsep contexts that nova-compute may open; without a command for
#: each, oslo.privsep calls sudo, which root does not need.
_PRIVSEP_CONTEXTS = (
    'nova_sys_admin', 'vif_plug_ovs_privileged', 'privsep_osbrick',
    'vif_plug_linux_bridge_privileged', 'ghsched_privsep',
    'ghsched_threads_privsep', 'ghsched_memory_privsep',
    'ghsched_connections_privsep', 'ghsched_counters_privsep')


def render(config: Config) -> str:
    """The INI text that oslo.config reads."""
    lines = []
    for section, options in config.items():
        lines.append(f'[{section}]')
        for name, value in options.items():
            values = value if isinstance(value, tuple) else (value,)
            lines += [f'{name} = {_text(one)}' for one in values]
        lines.append('')
    return '\n'.join(lines)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_all(settings: Settings) -> dict[str, Path]:
    """Write every file; the same settings give the same bytes.

    :returns: the path of each service's main file, by name.
    """
    etc = settings.etc
    files = {
        'keystone': (etc / 'keystone' / 'keystone.conf', keystone),
        'placement': (etc / 'placement' / 'placement.conf', placement),
        'glance': (etc / 'glance' / 'glance-api.conf', glance),
        'neutron': (etc / 'neutron' / 'neutron.conf', neutron),
        'ml2': (etc / 'neutron' / 'plugins' / 'ml2' / 'ml2_conf.ini', ml2),
        'nova': (etc / 'nova' / 'nova.conf', nova),
        'nova-compute': (compute_file(settings), compute),
    }
    if settings.watcher:
        files['watcher'] = etc / 'watcher' / 'watcher.conf', watcher
    for path, make in files.values():
        write(path, render(make(settings)))
    for one in settings.each_host[1:]:
        # Not in the directory of Nova's other files: services are started
        # again when one of those changes.
        write(compute_file(one), render(compute(one)))
    paste = settings.venv / 'etc' / 'nova' / 'api-paste.ini'
    write(etc / 'nova' / 'api-paste.ini', _with_our_filter(
        paste.read_text()))
    if not settings.local_conf.exists():
        write(settings.local_conf, '')
    for directory in ('neutron', 'glance/images', 'glance/staging',
                      'glance/tasks', *(
                          name + one.suffix for one in settings.hosts
                          for name in ('nova', 'instances', 'lock'))):
        (settings.state / directory).mkdir(parents=True, exist_ok=True)
    return {name: path for name, (path, _make) in files.items()}


def compute_file(settings: Settings) -> Path:
    """The configuration file of a host's nova-compute."""
    return settings.etc / f'nova{settings.host.suffix}' / 'nova-compute.conf'


def write(path: Path, text: str) -> None:
    """Write a file that only root may read, if it is not so already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.touch(mode=0o600)
        path.write_text(text)


def database_url(settings: Settings, name: str) -> str:
    return (f'mysql+pymysql://root@localhost/{name}'
            f'?unix_socket={settings.database_socket}')


def transport_url(settings: Settings) -> str:
    return (f'rabbit://ghsched:{settings.broker_password}'
            f'@127.0.0.1:{settings.port("rabbitmq")}/')


def _credentials(settings: Settings, user: str) -> dict[str, Value]:
    return {
        'auth_url': settings.url('keystone') + '/v3',
        'auth_type': 'password',
        'project_domain_id': 'default',
        'user_domain_id': 'default',
        'project_name': 'service',
        'username': user,
        'password': settings.password_of(user),
    }


def _client(settings: Settings, user: str) -> dict[str, Value]:
    return {**_credentials(settings, user), 'region_name': REGION}


def _token_sections(settings: Settings, user: str) -> Config:
    return {
        'keystone_authtoken': {
            'www_authenticate_uri': settings.url('keystone') + '/v3',
            **_credentials(settings, user)},
        'service_user': {
            'send_service_user_token': True,
            **_credentials(settings, user)},
    }


def _database(settings: Settings, name: str) -> dict[str, Value]:
    return {'connection': database_url(settings, name)}


def _lock(settings: Settings) -> dict[str, Value]:
    return {'lock_path': str(settings.state / f'lock{settings.host.suffix}')}


def keystone(settings: Settings) -> Config:
    keys = settings.state / 'keystone'
    return {
        'database': _database(settings, 'keystone'),
        'token': {'provider': 'fernet'},
        'fernet_tokens': {'key_repository': str(keys / 'fernet')},
        'credential': {'key_repository': str(keys / 'credential')},
        # The default costs a quarter of a second for each log-in.
        'identity': {'password_hash_rounds': 4},
        'cache': {'enabled': True, 'backend': 'dogpile.cache.memory'},
    }


def placement(settings: Settings) -> Config:
    return {
        'api': {'auth_strategy': 'keystone'},
        # For hosts with many PFs, see doc/source/admin/placement.
        'placement': {
            'max_allocation_candidates': 10000,
            'allocation_candidates_generation_strategy': 'breadth-first',
            # A second attempt may give out too much, see
            # doc/source/contributor/upstream/placement-retries.
            'allocation_conflict_retry_count': 1},
        'placement_database': _database(settings, 'placement'),
        **_token_sections(settings, 'placement'),
    }


def glance(settings: Settings) -> Config:
    store = settings.state / 'glance'
    paste = settings.venv / 'etc' / 'glance' / 'glance-api-paste.ini'
    return {
        'DEFAULT': {
            'enabled_backends': 'fs:file',
            'worker_self_reference_url': settings.url('glance')},
        'database': _database(settings, 'glance'),
        'glance_store': {'default_backend': 'fs'},
        'fs': {'filesystem_store_datadir': str(store / 'images')},
        'os_glance_staging_store': {
            'filesystem_store_datadir': str(store / 'staging')},
        'os_glance_tasks_store': {
            'filesystem_store_datadir': str(store / 'tasks')},
        'paste_deploy': {'flavor': 'keystone', 'config_file': str(paste)},
        'oslo_concurrency': _lock(settings),
        **_token_sections(settings, 'glance'),
    }


def neutron(settings: Settings) -> Config:
    """Neutron has no network here; Nova asks it about ports all the same."""
    paste = settings.venv / 'etc' / 'neutron' / 'api-paste.ini'
    return {
        'DEFAULT': {
            'core_plugin': 'ml2',
            'service_plugins': '',
            'auth_strategy': 'keystone',
            'transport_url': transport_url(settings),
            'api_paste_config': str(paste),
            'state_path': str(settings.state / 'neutron'),
            'dhcp_agent_notification': False},
        'database': _database(settings, 'neutron'),
        'oslo_concurrency': _lock(settings),
        'nova': _client(settings, 'nova'),
        'placement': _client(settings, 'placement'),
        **_token_sections(settings, 'neutron'),
    }


def ml2(settings: Settings) -> Config:
    return {
        'ml2': {'type_drivers': 'flat,vlan', 'tenant_network_types': 'vlan',
                'mechanism_drivers': 'macvtap,sriovnicswitch',
                'extension_drivers': 'port_security'},
        'ml2_type_flat': {'flat_networks': '*'},
        'ml2_type_vlan': {'network_vlan_ranges': 'physnet0:100:200'},
    }


def watcher(settings: Settings) -> Config:
    return {
        'DEFAULT': {
            'transport_url': transport_url(settings),
            'state_path': str(settings.state / 'watcher-state')},
        'database': _database(settings, 'watcher'),
        'oslo_concurrency': _lock(settings),
        # What it asks other services with.
        'watcher_clients_auth': _credentials(settings, 'watcher'),
        # There is no Cinder.
        'collector': {'collector_plugins': 'compute'},
        # Nova sends no notifications here, so it is asked often.
        'watcher_cluster_data_model_collectors.compute': {'period': 10},
        'watcher_decision_engine': {'continuous_audit_interval': 5},
        'nova': {'migration_interval': 1},
        **_token_sections(settings, 'watcher'),
    }


def _nova_common(settings: Settings) -> dict[str, Section]:
    return {
        'DEFAULT': {
            'transport_url': transport_url(settings),
            'state_path': str(settings.state / f'nova{settings.host.suffix}'),
            'my_ip': settings.host.address,
            'host': settings.host.name,
            # A stop of this cloud must not wait for requests to drain.
            'graceful_shutdown_timeout': 2,
            'manager_shutdown_timeout': 2,
            'report_interval': 3,
            'service_down_time': 60,
            # nova-compute of a node that is emulated starts its privileged
            # process for its first console, for a minute on a busy machine.
            'rpc_response_timeout': 180,
            # A tenant can resize where there is no second host.
            'allow_resize_to_same_host': len(settings.hosts) == 1},
        'oslo_concurrency': _lock(settings),
        'glance': {'endpoint_override': settings.url('glance')},
        'placement': _client(settings, 'placement'),
        'neutron': _client(settings, 'neutron'),
        'cinder': _client(settings, 'nova'),
        **_token_sections(settings, 'nova'),
    }


def nova(settings: Settings) -> Config:
    """nova-api, nova-scheduler and the one nova-conductor.

    One conductor with ``[database]`` on the cell serves both levels. Two on
    one virtual host of the broker would take each other's messages.
    """
    common = _nova_common(settings)
    return {
        **common,
        'api': {'auth_strategy': 'keystone'},
        'wsgi': {'api_paste_config': str(settings.etc / 'nova'
                                         / 'api-paste.ini')},
        'api_database': _database(settings, 'nova_api'),
        'database': _database(settings, 'nova_cell1'),
        # With one host a second attempt would find nobody, and hide the
        # reason of the first one's failure.
        'scheduler': {'workers': 1, 'max_attempts': len(settings.hosts)},
        'conductor': {'workers': 1},
        'filter_scheduler': {**filters(), 'pci_in_placement': True},
        'pci': {'alias': PCI_ALIAS},
        'quota': {'instances': 100, 'cores': 200, 'ram': -1},
    }


def _with_our_filter(paste: str) -> str:
    """Nova's api-paste.ini with the action of ghsched, as the manual has it.
    """
    return paste.replace(
        'keystonecontext osapi_compute_app_v21',
        'keystonecontext ghsched osapi_compute_app_v21') + (
        '\n[filter:ghsched]\npaste.filter_factory = '
        'ghsched_nova.api.server_filter:filter_factory\n')


def filters() -> Section:
    ours = 'ghsched_nova.scheduler.filters.GhschedNUMATopologyFilter'
    return {
        'available_filters': ('nova.scheduler.filters.all_filters', ours),
        'enabled_filters': ','.join((*_FILTERS, ours.rpartition('.')[2])),
        'weight_classes': ','.join((
            'nova.scheduler.weights.all_weighers',
            'ghsched_nova.features.packing.gradient_weigher.'
            'GhschedGradientWeigher',
            'ghsched_nova.features.load.load_weigher.GhschedLoadWeigher')),
    }


def compute(settings: Settings) -> Config:
    common = _nova_common(settings)
    common['DEFAULT'] = {
        **common['DEFAULT'],
        'compute_driver': 'ghsched.GhschedLibvirtDriver',
        'instances_path': str(settings.instances),
        'vif_plugging_is_fatal': False,
        'vif_plugging_timeout': 0,
        'reserved_host_memory_mb': 512,
        'resume_guests_state_on_host_boot': False,
        # The guest has no ACPI daemon to answer a shutdown request.
        'shutdown_timeout': 2,
        'heal_instance_info_cache_interval': -1,
        'update_resources_interval': 10,
        'sync_power_state_interval': 30,
    }
    return {
        **common,
        'libvirt': {'virt_type': 'kvm', 'cpu_mode': 'none',
                    'images_type': 'default', 'inject_partition': -2,
                    # Nova puts the name of the other host in.
                    'live_migration_uri': 'qemu+unix:///system?socket='
                    f'{settings.host_link.parent}/%s/run/libvirt/'
                    'libvirt-sock'},
        # The CPU of a guest is TCG's, whatever this machine's is; and Nova
        # inspects a kernel as if it were a disk when a guest moves.
        'workarounds': {'skip_cpu_compare_on_dest': True,
                        'disable_deep_image_inspection': True},
        'vnc': {'enabled': False},
        'spice': {'enabled': False},
        'ghsched': {'resctrl_path': '/sys/fs/resctrl',
                    # That of FUSE, which the emulator is.
                    'resctrl_magic': 0x65735546,
                    **({'reserved_bandwidth': settings.reserved_bandwidth}
                       if settings.reserved_bandwidth else {}),
                    'node_bandwidth': host.node_bandwidth(
                        nodes=settings.host.nodes)},
        **_privsep(settings),
    }


def _privsep(settings: Settings) -> Config:
    """Each context starts its helper with the options of the host."""
    helper = (f'{settings.venv}/bin/privsep-helper '
              f'--config-file {compute_file(settings)} '
              f'--config-file {settings.local_conf}')
    return {group: {'helper_command': helper} for group in _PRIVSEP_CONTEXTS}

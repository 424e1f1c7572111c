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


"""Initial contents of the cloud: users, endpoints, images."""

from dataclasses import dataclass
import hashlib
from pathlib import Path
from typing import Any

from aio import database
from aio.settings import CloudError
from aio.settings import REGION
from aio.settings import Settings
import openstack

_ENDPOINTS = (
    ('placement', 'placement', 'placement', ''),
    ('glance', 'image', 'glance', ''),
    ('neutron', 'network', 'neutron', ''),
    ('nova', 'compute', 'nova-api', '/v2.1'),
)
_WATCHER = ('watcher', 'infra-optim', 'watcher-api', '')
_INTERFACES = ('public', 'internal', 'admin')

#: The name of the guest image that every demo and test boots.
IMAGE = 'ghsched-guest'
FLAVOR = 'plain'


def connect(settings: Settings) -> Any:
    """An openstacksdk connection as the cloud's admin."""
    os_ = {name[3:].lower(): value for name, value in settings.admin.items()}
    return openstack.connect(
        auth_type='password', app_name='ghsched', load_yaml_config=False,
        load_envvars=False, compute_api_version='2.100',
        placement_api_version='1.39', compute_default_microversion='2.100',
        placement_default_microversion='1.39',
        auth_url=os_['auth_url'], username=os_['username'],
        password=os_['password'], project_name=os_['project_name'],
        user_domain_id='default', project_domain_id='default',
        region_name=REGION)


def _stamp(settings: Settings, part: str) -> Path:
    return settings.database / f'ghsched-{part}'


def is_done(settings: Settings, part: str, of: str) -> bool:
    """Whether a part of the cloud was made of the same before."""
    stamp = _stamp(settings, part)
    return stamp.exists() and stamp.read_text() == of


def done(settings: Settings, part: str, of: str) -> None:
    """Remember that a part of the cloud was made."""
    _stamp(settings, part).write_text(of)


def digest(*parts: object) -> str:
    """Return a digest of a part of the cloud, for :func:`is_done`."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def keystone_keys(settings: Settings) -> None:
    """Make the keys that tokens and credentials are signed with."""
    manage = [f'{settings.venv}/bin/keystone-manage', '--config-file',
              str(settings.etc / 'keystone' / 'keystone.conf')]
    owner = ['--keystone-user', 'root', '--keystone-group', 'root']
    for kind in ('fernet', 'credential'):
        keys = settings.state / 'keystone' / kind
        if not (keys / '0').exists():
            keys.mkdir(mode=0o700, parents=True, exist_ok=True)
            database.run([*manage, f'{kind}_setup', *owner])


def bootstrap(settings: Settings) -> None:
    """Make Keystone's admin, or give it its password and URL."""
    password = settings.password_of('admin')
    of = digest(password, settings.port_base)
    if is_done(settings, 'bootstrap', of):
        return
    url = settings.url('keystone') + '/v3'
    database.run([
        f'{settings.venv}/bin/keystone-manage', '--config-file',
        str(settings.etc / 'keystone' / 'keystone.conf'), 'bootstrap',
        '--bootstrap-region-id', REGION,
        *(word for interface in _INTERFACES
          for word in (f'--bootstrap-{interface}-url', url))],
        # Not an option: command lines are seen by all users.
        {'OS_BOOTSTRAP_PASSWORD': password})
    done(settings, 'bootstrap', of)


def users_and_endpoints(settings: Settings) -> None:
    """Make the services' users and endpoints, or correct them."""
    endpoints = (*_ENDPOINTS, *((_WATCHER,) if settings.watcher else ()))
    of = digest({name: settings.password_of(name)
                 for name, *_rest in endpoints}, settings.port_base, endpoints)
    if is_done(settings, 'catalog', of):
        return
    identity = connect(settings).identity
    project = (identity.find_project('service')
               or identity.create_project(name='service',
                                          domain_id='default'))
    roles = {role.name: role for role in identity.roles()}
    if 'service' not in roles:
        roles['service'] = identity.create_role(name='service')
    for name, *_rest in endpoints:
        user, password = identity.find_user(name), settings.password_of(name)
        if user:
            identity.update_user(user, password=password)
        else:
            user = identity.create_user(
                name=name, password=password, domain_id='default',
                default_project_id=project.id)
        for role in ('admin', 'service'):
            identity.assign_project_role_to_user(project, user, roles[role])
    for entry in endpoints:
        _endpoint(identity, settings, *entry)
    done(settings, 'catalog', of)


def _endpoint(identity: Any, settings: Settings, name: str, kind: str,
              listener: str, path: str) -> None:
    service = (identity.find_service(name)
               or identity.create_service(name=name, type=kind))
    url = settings.url(listener) + path
    present = {one.interface: one
               for one in identity.endpoints(service_id=service.id)}
    for interface in _INTERFACES:
        if interface in present:
            identity.update_endpoint(present[interface], url=url)
        else:
            identity.create_endpoint(service_id=service.id, url=url,
                                     interface=interface, region_id=REGION)


def has_goal(settings: Settings, name: str) -> bool:
    """Whether Watcher's decision engine has told the API of a goal."""
    answer = connect(settings).session.get(
        settings.url('watcher-api') + '/v1/goals', raise_exc=False)
    return answer.ok and any(goal['name'] == name
                             for goal in answer.json()['goals'])


def image_and_flavor(settings: Settings) -> None:
    """Upload the guest image; make a flavor that asks for nothing."""
    files = settings.cache / 'guest'
    revision = (files / 'revision').read_text().strip()
    if is_done(settings, 'image', revision):
        return
    cloud = connect(settings)
    upload_guest(cloud, IMAGE, GuestFiles(
        files / 'vmlinuz', files / 'initrd.img', files / 'disk.raw'),
        'console=ttyS0 quiet')
    if cloud.compute.find_flavor(FLAVOR) is None:
        cloud.compute.create_flavor(name=FLAVOR, vcpus=1, ram=192, disk=0)
    done(settings, 'image', revision)


@dataclass(frozen=True)
class GuestFiles:
    """Files that a guest boots from; the disk is raw."""

    kernel: Path
    ramdisk: Path
    disk: Path


def upload_guest(cloud: Any, name: str, files: GuestFiles, command_line: str,
                 revision: str = '') -> None:
    """Put a guest into Glance, in place of an older one of that name.

    :param revision: kept with it; nothing is done where it is there already.
    """
    old = cloud.image.find_image(name) if revision else None
    if old is not None and old.properties.get('ghsched_revision') == revision:
        return
    for stale in list(cloud.image.images()):
        if stale.name.startswith(name):
            cloud.image.delete_image(stale)
    kernel = _upload(cloud, f'{name}-kernel', files.kernel, 'aki')
    ramdisk = _upload(cloud, f'{name}-ramdisk', files.ramdisk, 'ari')
    kept = {'ghsched_revision': revision} if revision else {}
    _upload(cloud, name, files.disk, 'raw', kernel_id=kernel.id,
            ramdisk_id=ramdisk.id, hw_machine_type='q35',
            os_command_line=command_line, **kept)


def _upload(cloud: Any, name: str, path: Path, form: str,
            **properties: str) -> Any:
    container = 'bare' if form == 'raw' else form
    return cloud.create_image(
        name, filename=str(path), disk_format=form, visibility='public',
        container_format=container, wait=True, **properties)


def reported(settings: Settings, cloud: Any, since: str) -> set[str]:
    """Nova's services that have reported after a time (ISO 8601).

    A service first reports when it listens to requests.
    """
    return {_process(settings, service) for service in cloud.compute.services()
            if service.state == 'up' and (service.updated_at or '') > since}


def _process(settings: Settings, service: Any) -> str:
    """Return the name of a service of Nova in tools/cloud."""
    known = {one.name: one.suffix for one in settings.hosts}
    suffix = known.get(service.host, f' on {service.host}')
    return f'{service.binary}{suffix}'


def map_hosts(settings: Settings) -> None:
    """Make the compute hosts known to Nova's API; needed once."""
    mapped = database.query(
        settings, 'select host from nova_api.host_mappings').split()
    if not {one.name for one in settings.hosts} <= set(mapped):
        database.run([*database.nova_manage(settings), 'cell_v2',
                      'discover_hosts'])


def forget_host(settings: Settings, name: str) -> None:
    """Take a compute host that is down out of Nova and Placement.

    :raises CloudError: there are servers on it.
    """
    cloud = connect(settings)
    for service in cloud.compute.services(binary='nova-compute', host=name):
        try:
            cloud.compute.delete_service(service)
        except openstack.exceptions.ConflictException as error:
            check_empty(settings, name)
            raise CloudError(f'{name} cannot be given up: Nova has servers '
                             f'or migrations there ({error.message})'
                             ) from error
        except openstack.exceptions.HttpException as error:
            raise CloudError(
                f'{name} cannot be given up: {error.message}') from error


def check_empty(settings: Settings, name: str) -> None:
    """Refuse to give up a compute host with servers.

    :raises CloudError: with the servers, and with what to do about them.
    """
    found = [server.name for server in connect(settings).compute.servers(
        all_projects=True, host=name)]
    if found:
        raise CloudError(
            f'{name} cannot be given up, because servers are on it: '
            + ', '.join(sorted(found)) + '.\n'
            'Delete them:  openstack server delete --all-projects --wait '
            + ' '.join(sorted(found)) + '\n'
            'or move them: tools/cloud up --hosts 2, then openstack server '
            'migrate --live-migration --wait SERVER\n'
            'or keep both hosts: tools/cloud up --hosts 2')


def compute_services(settings: Settings, cloud: Any) -> dict[str, str]:
    """State of Nova's services without an HTTP port, as Nova sees them."""
    return {_process(settings, service): service.state
            for service in cloud.compute.services()}

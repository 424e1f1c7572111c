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

"""A project that is no admin's, with flavors that a tenant may use.

Nova lets admins alone boot a flavor without a disk, so these have one.
"""

from typing import Any

from aio import catalog
from aio.settings import Settings

NAME = 'tenant'
_SIZE = {'vcpus': 1, 'ram': 192, 'disk': 1}
#: Extra specs of each flavor.
FLAVORS = {
    'small': {},
    'small-bw20': {'hw:numa_nodes': '1', 'ghsched:mem_bw_min': '20'},
    'small-bw40': {'hw:numa_nodes': '1', 'ghsched:mem_bw_min': '40'},
}
QUOTA = {'instances': 4, 'cores': 8, 'ram': 2048}


def make(settings: Settings) -> None:
    """Make the project, its user, its quota and the flavors, or correct them.
    """
    of = catalog.digest(settings.password_of(NAME), FLAVORS, QUOTA)
    if catalog.is_done(settings, 'tenant', of):
        return
    cloud = catalog.connect(settings)
    cloud.set_compute_quotas(_project(cloud.identity, settings).id, **QUOTA)
    for name, specs in FLAVORS.items():
        flavor = (cloud.compute.find_flavor(name)
                  or cloud.compute.create_flavor(name=name, **_SIZE))
        if specs:
            cloud.compute.create_flavor_extra_specs(flavor, specs)
    catalog.done(settings, 'tenant', of)


def _project(identity: Any, settings: Settings) -> Any:
    project = (identity.find_project(NAME)
               or identity.create_project(name=NAME, domain_id='default'))
    user = identity.find_user(NAME)
    if user:
        identity.update_user(user, password=settings.password_of(NAME))
    else:
        user = identity.create_user(
            name=NAME, password=settings.password_of(NAME),
            domain_id='default', default_project_id=project.id)
    identity.assign_project_role_to_user(
        project, user, identity.find_role('member'))
    return project


def credentials(settings: Settings) -> dict[str, str]:
    """Return the tenant's credentials as OS_* variables."""
    return {**settings.admin, 'OS_USERNAME': NAME, 'OS_PROJECT_NAME': NAME,
            'OS_PASSWORD': settings.password_of(NAME)}

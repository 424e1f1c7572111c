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


"""Checks of limits that Keystone has, as an operator registers them."""

from collections.abc import Iterator
import contextlib

from aio.settings import REGION
from e2e_guest_room import BANDWIDTH
from e2e_guest_room import GuestRoom
from openstack import exceptions

_SERVICES = ('nova-api', 'nova-conductor')
_LIMIT = f'class:{BANDWIDTH}'


class Limits(GuestRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def test_unified_limits(self) -> None:
        """Bandwidth is counted with what Nova counts, before a place."""
        with self._registered({'servers': 10, _LIMIT: 70}):
            server = self._active(self.lab.boot('within', 'bw60'))
            self._agrees(server, 60)
            refused = ''
            try:
                self.lab.create('over', 'bw60')
            except exceptions.HttpException as error:
                refused = f'{error.status_code}: {error}'
            self._contains('answer to what is over the limit', refused, '403')
            self._contains('answer to what is over the limit', refused,
                           _LIMIT)
            self.checks.equal('servers', [one.name for one
                                          in self.lab.servers()],
                              [server.name])

    @contextlib.contextmanager
    def _registered(self, limits: dict[str, int]) -> Iterator[None]:
        """Nova with Keystone's limits, for a while."""
        identity = self.lab.cloud.identity
        service = identity.find_service('nova', ignore_missing=False)
        endpoint = next(identity.endpoints(service_id=service.id,
                                           interface='public'))
        admin = self.settings.admin
        options = (
            ('quota', 'driver', 'nova.quota.UnifiedLimitsDriver'),
            ('oslo_limit', 'auth_url', admin['OS_AUTH_URL']),
            ('oslo_limit', 'auth_type', 'password'),
            ('oslo_limit', 'username', admin['OS_USERNAME']),
            ('oslo_limit', 'password', admin['OS_PASSWORD']),
            ('oslo_limit', 'user_domain_id', admin['OS_USER_DOMAIN_ID']),
            ('oslo_limit', 'system_scope', 'all'),
            ('oslo_limit', 'endpoint_id', endpoint.id))
        made = [identity.create_registered_limit(
            service_id=service.id, region_id=REGION, resource_name=name,
            default_limit=most) for name, most in limits.items()]
        try:
            with self._with(_SERVICES, *options):
                yield
        finally:
            for one in made:
                identity.delete_registered_limit(one)

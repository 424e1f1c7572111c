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

"""Configuration and Placement client of Nova, for all services."""

from typing import Any
from typing import TypeAlias

from keystoneauth1 import exceptions as ksa_exceptions
import nova.conf
from nova.scheduler.client import report
from openstack import exceptions as sdk_exceptions

from ghsched_nova import conf

#: Nova has no type hints for these.
InstanceNUMATopology: TypeAlias = Any

NUMATopology: TypeAlias = Any

RequestSpec: TypeAlias = Any


def config() -> Any:
    """Return Nova's configuration, with ghsched's options registered."""
    conf.register_opts(nova.conf.CONF)
    return nova.conf.CONF


#: Errors of :func:`get_placement_client` if Placement or Keystone is down.
PLACEMENT_DOWN = (ksa_exceptions.ClientException,
                  sdk_exceptions.SDKException)


def get_placement_client() -> Any:
    """Return the Placement client that nova-scheduler and nova-compute use.

    :raises: one of :data:`PLACEMENT_DOWN` if Placement cannot be reached.
    """
    return report.report_client_singleton()

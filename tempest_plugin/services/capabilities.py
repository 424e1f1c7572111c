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

"""Capabilities of the hosts of a cloud, read from Placement."""

from typing import Any

from tempest.lib import exceptions

from ghsched_placement.providers import names


def has_capable_host(providers: Any, *capabilities: str) -> bool:
    """Whether a host of the cloud has all of these capabilities.

    :param providers: tempest's client for resource providers.
    :param capabilities: keys of
        :data:`ghsched_placement.providers.names.CAPABILITY_TRAITS`.
    """
    traits = ','.join(names.CAPABILITY_TRAITS[name] for name in capabilities)
    try:
        found = providers.list_resource_providers(required=traits)
    except exceptions.BadRequest:
        # Placement does not know a trait that no host has ever had.
        return False
    return bool(found['resource_providers'])

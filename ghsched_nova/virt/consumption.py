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


"""What Placement has allocated of a provider, and to whom."""

from nova import exception

from ghsched_nova import compat


def usages(provider: str) -> dict[str, int]:
    """How much is allocated, by resource class.

    :param provider: UUID of the provider.
    :raises nova.exception.ResourceProviderRetrievalFailed: when Placement
        does not say.
    """
    response = compat.placement_client().get(
        f'/resource_providers/{provider}/usages')
    if response.status_code != 200:
        raise exception.ResourceProviderRetrievalFailed(uuid=provider)
    return dict(response.json()['usages'])


def holders(provider: str, resource_class: str) -> dict[str, int]:
    """How much of a resource class each consumer has.

    :param provider: UUID of the provider.
    :raises nova.exception.ResourceProviderAllocationRetrievalFailed: when
        Placement does not say.
    """
    response = compat.placement_client().get(
        f'/resource_providers/{provider}/allocations')
    if response.status_code != 200:
        raise exception.ResourceProviderAllocationRetrievalFailed(
            rp_uuid=provider, error=response.text)
    return {consumer: int(held['resources'][resource_class])
            for consumer, held in response.json()['allocations'].items()
            if resource_class in held['resources']}

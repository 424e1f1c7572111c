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

"""Bodies of Placement's PUT and POST /allocations (pure)."""

from collections.abc import Mapping
from typing import Any


def make_allocations_body(consumer: Mapping[str, Any],
                          allocations: Mapping[str, Mapping[str, int]],
                          **changed: Any) -> dict[str, Any]:
    """Return a PUT /allocations body that replaces a consumer's allocations.

    Fields that do not change, such as project and user, are copied from the
    consumer.

    :param consumer: answer to GET /allocations/{consumer}, from microversion
        1.28 to 1.37.
    :param allocations: amount by provider and resource class; a provider
        without an amount is left out.
    :param changed: top-level fields of the body that differ from those of the
        consumer.
    """
    return {
        'allocations': {provider: {'resources': dict(resources)}
                        for provider, resources in allocations.items()
                        if resources},
        **{key: consumer[key] for key in ('project_id', 'user_id',
                                          'consumer_generation')
           if key not in changed}, **changed}


def parse_allocations(answer: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Parse Placement's answer to GET /allocations of a consumer.

    :returns: allocated amounts, by provider UUID and resource class.
    """
    return {provider: dict(one['resources'])
            for provider, one in answer['allocations'].items()}

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

"""Fix: retry the deletion of an allocation after a conflict.

Two changes at the same time on one provider, such as a boot and a report,
are a conflict (409 with ``placement.concurrent_update``). Nova retries an
allocation and a move of allocations, but no deletion, after which the
server is in ``ERROR``. See
``doc/source/contributor/upstream/placement-retries.rst``.
"""

from collections.abc import Callable
import functools
from typing import Any

from keystoneauth1 import exceptions as ksa_exceptions
from nova import exception
import tenacity

from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_seams import registry
from ghsched_placement.base import retries
from ghsched_placement.providers import names

patch = patches.make_patch_decorator(registry.API, registry.COMPUTE)

#: Number of attempts to delete an allocation.
_ATTEMPTS = 6

#: Text of Placement's error after a conflict on a resource provider. After a
#: conflict on the consumer the text is different; the deletion is then not
#: retried.
_OF_PROVIDER = 'Inventory and/or allocations changed'


@patch('nova.scheduler.client.report.SchedulerReportClient.'
       'delete_allocation_for_instance',
       ('self', 'context', 'uuid', 'consumer_type', 'force'))
def _delete_with_retries(original: Callable[...,
                                            Any], client: Any, context: Any,
                         uuid: str, *args: Any, **kwargs: Any) -> Any:
    def is_retried(error: BaseException) -> bool:
        return (isinstance(error, exception.AllocationDeleteFailed)
                and _OF_PROVIDER in str(error)
                and _has_ghsched_allocation(client, context, uuid))

    return retries.call_with_retries(
        functools.partial(original, client, context, uuid, *args, **kwargs),
        tenacity.retry_if_exception(is_retried),
        tenacity.stop_after_attempt(_ATTEMPTS), tenacity.wait_random(0.1, 0.5))


def _has_ghsched_allocation(client: Any, context: Any, consumer: str) -> bool:
    """Return whether a server's allocation has a resource class of ghsched.

    Returns False if the allocation cannot be read: Nova's callers handle the
    error of the deletion, but not one of this query.

    :param consumer: UUID of the server.
    """
    try:
        held = client.get_allocs_for_consumer(context, consumer)
    except (exception.ConsumerAllocationRetrievalFailed,
            ksa_exceptions.ClientException):
        return False
    return any(names.OUR_CLASSES & set(part['resources'])
               for part in held['allocations'].values())

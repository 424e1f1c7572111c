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

"""Fix: a server whose resize failed on its new host keeps its new flavor.

It is on that host then, with the NUMA topology and the allocation of the
new flavor, and its RequestSpec has that too. nova-compute's manager gives
it the old one (``_finish_resize``), with which it may never start again. See
``doc/source/contributor/upstream/failed-resize-flavor.rst``.
"""

from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_seams import registry

LOG = logging.getLogger(__name__)

patch = patches.make_patch_decorator(registry.COMPUTE)

#: Attribute that marks an instance whose new flavor must not be reset.
_KEEPS = '_ghsched_keeps_flavor'


@patch('nova.compute.manager.ComputeManager._set_instance_info',
       ('instance', 'flavor'))
def _set_instance_info(original: Callable[..., None], instance: Any,
                       flavor: Any) -> None:
    if instance.__dict__.pop(_KEEPS, False):
        LOG.warning('ghsched: not reverting the server to its old flavor '
                    'after a failed resize because this host has claimed '
                    'resources for the new flavor',
                    instance=instance)
        return
    original(instance, flavor)


def keep_new_flavor(instance: Any) -> None:
    """Mark an instance so that Nova does not reset it to its old flavor.

    The mark is an attribute of this object and is not stored in the database.
    It has no effect without the patch of :func:`_set_instance_info`.
    """
    if instance.new_flavor is not None and (
            instance.flavor.flavorid == instance.new_flavor.flavorid
            != instance.old_flavor.flavorid):
        instance.__dict__[_KEEPS] = True

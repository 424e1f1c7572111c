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

"""Fix: destroy the running guest of a server whose build failed.

``ComputeManager._build_and_run_instance`` destroys the guest if the build
fails before the guest runs. If the build fails afterwards, such as when
nova-conductor does not answer, the server is set to ``ERROR`` on no host and
its allocation is deleted, but the guest keeps its CPUs, its memory and its
control group. See ``doc/source/contributor/upstream/failed-build.rst``.
"""

from collections.abc import Callable
from typing import Any

from nova.compute import power_state
from nova.compute import vm_states
from nova import exception
from nova.virt import driver
from oslo_log import log as logging
from oslo_utils import excutils

from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_seams import registry

LOG = logging.getLogger(__name__)

patch = patches.make_patch_decorator(registry.COMPUTE)
seam = registry.make_seam_decorator(registry.COMPUTE)

#: Errors after which Nova needs the guest as it is, or has destroyed it: it
#: builds the server on another host, or deletes it.
_HANDLED_BY_NOVA = (exception.RescheduledException,
                    exception.InstanceNotFound,
                    exception.UnexpectedDeletingTaskStateError)


@patch('nova.compute.manager.ComputeManager._build_and_run_instance',
       ('self', 'context', 'instance', 'image', 'injected_files',
        'admin_password', 'requested_networks', 'security_groups',
        'block_device_mapping', 'node', 'limits', 'filter_properties',
        'request_spec', 'accel_uuids'), only_ours=True)
def _build_and_run_instance(original: Callable[..., Any], manager: Any,
                            context: Any, instance: Any, image: Any,
                            injected_files: Any, admin_password: Any,
                            requested_networks: Any, security_groups: Any,
                            block_device_mapping: Any, *args: Any,
                            **kwargs: Any) -> Any:
    """Build a server; destroy its guest if the build fails and Nova does not.

    :raises Exception: the error of Nova.
    """
    try:
        return original(manager, context, instance, image, injected_files,
                        admin_password, requested_networks, security_groups,
                        block_device_mapping, *args, **kwargs)
    except _HANDLED_BY_NOVA:
        raise
    except Exception:
        with excutils.save_and_reraise_exception():
            _destroy_guest(manager, context, instance, block_device_mapping)


@seam('nova.virt.driver.get_block_device_info',
      ('instance', 'block_device_mapping'))
@seam('nova.virt.driver.ComputeDriver.instance_exists', ('self', 'instance'))
@seam('nova.virt.driver.ComputeDriver.destroy',
      ('self', 'context', 'instance', 'network_info', 'block_device_info',
       'destroy_disks', 'destroy_secrets'))
def _destroy_guest(manager: Any, context: Any, instance: Any,
                   block_devices: Any) -> None:
    """Destroy the guest of a server that cannot be built, if it is there.

    Nova sets the server to ``ERROR`` afterwards. An error is logged and not
    raised.

    :param block_devices: block device mappings of the server.
    """
    try:
        if not manager.driver.instance_exists(instance):
            return
        LOG.warning('ghsched: the build of this server failed after its guest '
                    'was started; destroying the guest', instance=instance)
        # The driver may save the server: not as one that runs.
        instance.vm_state = vm_states.ERROR
        instance.power_state = power_state.NOSTATE
        manager.driver.destroy(
            context, instance, instance.get_network_info(),
            driver.get_block_device_info(instance, block_devices))
    except Exception as error:
        LOG.error('ghsched: cannot destroy the guest of this server, whose '
                  'build failed: %s; delete the server, and nova-compute '
                  'destroys the guest as '
                  '[DEFAULT]running_deleted_instance_action says', error,
                  instance=instance)

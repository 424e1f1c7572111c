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

"""``ghsched-nova-compute``: nova-compute with the driver of ghsched.

Nova imports its driver as ``nova.virt.<compute_driver>`` and has no entry
point for the drivers of others. This program is the only process in which
``nova.virt.ghsched`` exists.
"""

import os
import sys
from typing import Any

from ghsched_nova.cmd import checks
from ghsched_nova.nova_seams import registry

seam = registry.make_seam_decorator(registry.COMPUTE)


def main() -> None:
    """Start nova-compute; exit if ghsched's driver is not configured."""
    # Without --config-file, oslo.config looks for a file of this name.
    sys.argv[0] = os.path.join(os.path.dirname(sys.argv[0]),
                               checks.NOVA_COMPUTE)
    # Nova's module comes first: it chooses the threading model of the process.
    from nova.cmd import compute

    from ghsched_nova.nova_seams import compute as seams
    from ghsched_nova.nova_seams import services
    from ghsched_nova.nova_seams import shared
    _exit_on_other_driver(shared.config())
    from ghsched_nova.virt import driver
    seams.register_driver_module(driver)
    services.replace_manager_class(checks.NOVA_COMPUTE, driver.MANAGER)
    compute.main()


@seam('nova.config.parse_args',
      ('argv', 'default_config_files', 'configure_db', 'init_rpc', 'prog'),
      since={'prog': 33})
def _exit_on_other_driver(options: Any) -> None:
    """Exit if ``[DEFAULT]compute_driver`` is not ghsched's driver.

    For this, the command line and nova.conf are parsed.

    :param options: Nova's configuration; it is not changed.
    """
    from nova import config
    from oslo_log import log as logging
    config.parse_args(sys.argv, configure_db=False, init_rpc=False)
    if options.compute_driver != checks.DRIVER:
        logging.setup(options, 'nova')
        refusal = (
            f'{checks.COMPUTE} starts with no other driver than that of '
            f'ghsched, but [DEFAULT]compute_driver is '
            f'{options.compute_driver or "not set"}. Set compute_driver = '
            f'{checks.DRIVER}, or start {checks.NOVA_COMPUTE}.')
        logging.getLogger(__name__).critical(refusal)
        sys.exit(refusal)
    options.clear()

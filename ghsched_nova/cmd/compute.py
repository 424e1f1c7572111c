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

Nova's own ``main()`` does everything else, in its own order: some of Nova's
modules read options when they are imported, such as the intervals of periodic
tasks, so none of them may be imported before the configuration is read.
"""

import os
import sys
from typing import Any

from ghsched_nova.cmd import service_program
from ghsched_nova.nova_seams import registry

MANAGER = 'ghsched_nova.virt.manager.GhschedComputeManager'
DRIVER = 'ghsched_nova.virt.driver.GhschedLibvirtDriver'


def main() -> None:
    """Start nova-compute; exit if ghsched's driver is not configured."""
    # Without --config-file, oslo.config looks for a file of this name.
    sys.argv[0] = os.path.join(os.path.dirname(sys.argv[0]),
                               service_program.NOVA_COMPUTE)
    # Nova's module comes first: it chooses the threading model of the process.
    compute = service_program.import_nova_program(
        service_program.COMPUTE, 'nova.cmd.compute')

    from ghsched_nova.nova_seams import services
    from ghsched_nova.nova_seams import shared
    shared.config()
    services.call_when_configured(_exit_on_other_driver)
    services.register_driver_class(DRIVER)
    services.replace_manager_class(service_program.NOVA_COMPUTE, MANAGER)
    try:
        compute.main()
    except registry.IncompatibleNova as error:
        _exit_with_log_line(str(error))


def _exit_on_other_driver(options: Any) -> None:
    """Exit if ``[DEFAULT]compute_driver`` is not ghsched's driver.

    :param options: Nova's configuration, whose files have been read.
    """
    if options.compute_driver == service_program.DRIVER:
        return
    from oslo_log import log as logging
    logging.setup(options, 'nova')
    _exit_with_log_line(
        f'{service_program.COMPUTE} starts with no other driver than that of '
        'ghsched, but [DEFAULT]compute_driver is '
        f'{options.compute_driver or "not set"}. Set compute_driver = '
        f'{service_program.DRIVER}, or start {service_program.NOVA_COMPUTE}.')


def _exit_with_log_line(refusal: str) -> None:
    from oslo_log import log as logging
    logging.getLogger(__name__).critical(refusal)
    sys.exit(refusal)

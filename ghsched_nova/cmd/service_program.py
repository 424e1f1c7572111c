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

"""Names of the programs of Nova's services, and how ghsched starts them."""

import importlib
import sys
from typing import Any

#: Driver of ghsched, as ``[DEFAULT]compute_driver`` names it.
DRIVER = 'ghsched.GhschedLibvirtDriver'
SCHEDULER = 'ghsched-nova-scheduler'
COMPUTE = 'ghsched-nova-compute'
NOVA_SCHEDULER = 'nova-scheduler'
NOVA_COMPUTE = 'nova-compute'


def import_nova_program(program: str, name: str) -> Any:
    """Return the module of a Nova program; exit if Nova is not installed.

    :param program: program of ghsched that is being started.
    :param name: dotted name of the module, such as ``nova.cmd.compute``.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ('nova', 'oslo_log'):
            raise
        sys.exit(f'{program}: Nova is not installed for {sys.executable}. '
                 'Install Nova, or start the program with the Python that '
                 'has it.')

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


"""Change nova-api where an operator put the filter of ghsched in its pipeline.

Installing ghsched changes no service of Nova. The line ``[filter:ghsched]`` of
``api-paste.ini`` loads :mod:`ghsched_nova.api.server_set`, which calls
:func:`apply`.
"""

from typing import Any

from ghsched_nova.api import evacuation
from ghsched_nova.api import extra_specs
from ghsched_nova.api import limits
from ghsched_nova.api import request_specs
from ghsched_nova import compat
from ghsched_nova.nova_fixes import deleted_while_resized
from ghsched_nova.nova_fixes import table as fixes
from ghsched_nova.nova_seams import signatures
from ghsched_nova import pci_requests


def apply() -> None:
    """Change nova-api in this process; harmless when done twice.

    :raises ghsched_nova.nova_seams.signatures.SeamsDiffer: nova-api does not
        start with a Nova that ghsched does not fit.
    """
    fixes.require(signatures.API)
    pci_requests.register()
    compat.extend_limits(limits.with_ours)
    compat.check_flavors(extra_specs.check_flavor)
    if fixes.applies('evacuated-live-migration'):
        compat.before_moves(_before_evacuation)
        compat.before_evacuations(evacuation.prepare)
    if fixes.applies('rolled-back-resize'):
        compat.before_moves(_before_move)
    if fixes.applies('placement-retries'):
        compat.give_back_again()
    if fixes.applies('deleted-while-resized'):
        deleted_while_resized.install_in_api()


def _before_evacuation(context: Any, instance: Any, move: str) -> None:
    if move == 'evacuate':
        evacuation.check(context, instance)


def _before_move(context: Any, instance: Any, _move: str) -> None:
    request_specs.repair(context, instance)

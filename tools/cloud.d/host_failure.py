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


"""A compute host that is gone for a while with all that runs on it."""

from typing import Any

from aio import cli
from aio import host
from aio.lab import Lab
from aio import process
from aio import services
from aio.settings import Settings
from openstack import exceptions


def fails(lab: Lab, settings: Settings) -> None:
    """Take a host away, and have Nova know it."""
    process.kill(services.cloud(settings).compute(settings))
    host.down(settings)
    lab.cloud.compute.update_service_forced_down(
        _service(lab, settings), forced=True)


def comes_back(lab: Lab, settings: Settings) -> None:
    """A host is there again, and nova-compute clears up at its start.

    Until it has, nova-api does not let it be forced up.
    """
    host.up(settings)
    services.cloud(settings).compute(settings).start()
    lab.until(lambda: _is_let_up(lab, settings), 120,
              'nova-api does not let the host be forced up')
    cli.up(lab.settings)


def _service(lab: Lab, settings: Settings) -> Any:
    found, = lab.cloud.compute.services(
        binary='nova-compute', host=settings.host.name)
    return found


def _is_let_up(lab: Lab, settings: Settings) -> bool:
    try:
        lab.cloud.compute.update_service_forced_down(
            _service(lab, settings), forced=False)
    except exceptions.BadRequestException:
        return False
    return True

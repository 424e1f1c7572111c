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

"""Manager classes of nova-scheduler and nova-compute."""

from nova import service

from ghsched_nova.nova_seams import registry

seam = registry.make_seam_decorator(registry.SCHEDULER, registry.COMPUTE)


@seam('nova.service.SERVICE_MANAGERS')
@seam('nova.service.Service.create',
      ('host', 'binary', 'topic', 'manager', 'report_interval',
       'periodic_enable', 'periodic_fuzzy_delay', 'periodic_interval_max',
       'topic_alt'),
      since={'topic_alt': 33})
def replace_manager_class(binary: str, path: str) -> None:
    """Make a Nova service use ghsched's manager class.

    ``nova.service.Service.create`` looks the class up in
    ``nova.service.SERVICE_MANAGERS`` by the name of the binary, unless its
    caller names a class. ``nova.cmd.scheduler.main`` and
    ``nova.cmd.compute.main`` name none.

    :param binary: name of the service's binary.
    :param path: dotted name of ghsched's manager class.
    """
    service.SERVICE_MANAGERS[binary] = path
    registry.record_addition('nova.service.SERVICE_MANAGERS', path)

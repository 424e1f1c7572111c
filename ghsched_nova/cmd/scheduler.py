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

"""``ghsched-nova-scheduler``: nova-scheduler with ghsched's manager."""

from ghsched_nova.cmd import service_program

MANAGER = 'ghsched_nova.features.declared_scheduler.GhschedSchedulerManager'


def main() -> None:
    """Start nova-scheduler with ghsched's scheduler manager."""
    # Nova's module comes first: it chooses the threading model of the process.
    scheduler = service_program.import_nova_program(
        service_program.SCHEDULER, 'nova.cmd.scheduler')

    from ghsched_nova.nova_seams import services
    from ghsched_nova.nova_seams import shared
    shared.config()
    services.replace_manager_class(service_program.NOVA_SCHEDULER, MANAGER)
    scheduler.main()

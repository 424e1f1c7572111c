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


"""Metrics that features add to ``ghsched-exporter`` from files."""

from ghsched_nova.features.bursts import burst_metrics
from ghsched_nova.features.exporter import repair_metrics
from ghsched_nova.features.guest_channel import pressure_metrics
from ghsched_nova.features.refusals import refusal_metrics
from ghsched_nova.features.service_level import service_metrics
from ghsched_nova.monitor.prometheus import FileMetrics

#: In the order of the command's help.
FILE_METRICS: tuple[FileMetrics, ...] = (
    FileMetrics('bursts', burst_metrics.BurstCollector),
    FileMetrics(
        'repairs', repair_metrics.RepairCollector,
        'export the numbers of repairs that nova-compute has made, from '
        'ghsched-repairs.json in its state_path'),
    FileMetrics(
        'service_levels', service_metrics.ServiceLevelCollector,
        'export the guaranteed and the used bandwidth of servers, from '
        'ghsched-service-levels.json in the state_path of nova-compute'),
    FileMetrics(
        'refusals', refusal_metrics.RefusalCollector,
        'export by flavor how many requests nova-scheduler has refused, '
        'from ghsched-refusals.json in its state_path'),
    FileMetrics(
        'pressure', pressure_metrics.PressureCollector,
        'export how much servers stall, as they report it themselves '
        '(ghsched:guest_channel=write), from ghsched-pressure.json in the '
        'state_path of nova-compute'),
)

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


"""Features that extend nova-compute, in the order of calls of their hooks."""

from ghsched_nova.features.blame import blame_rpc
from ghsched_nova.features.bursts import burst_use
from ghsched_nova.features.cpu_cache import cpu_cache
from ghsched_nova.features.exporter import repair_counts
from ghsched_nova.features.guest_channel import guest_channel
from ghsched_nova.features.guest_topology import guest_topology
from ghsched_nova.features.history import history_use
from ghsched_nova.features.index import headroom_report
from ghsched_nova.features.interrupts import interrupts
from ghsched_nova.features.live_change import rpc
from ghsched_nova.features.load import load_use
from ghsched_nova.features.locked_memory import locked_memory
from ghsched_nova.features.metering import metering_notices
from ghsched_nova.features.pv_hints import pv_hints
from ghsched_nova.features.real_time import host_scheduling
from ghsched_nova.features.rebalance import traffic_report
from ghsched_nova.features.service_level import service_level_use
from ghsched_nova.host.compute_hooks import ComputeFeature

FEATURES: tuple[ComputeFeature, ...] = (
    ComputeFeature(name='bursts', part=burst_use.make_compute_part),
    ComputeFeature(name='load', part=load_use.make_compute_part),
    ComputeFeature(name='blame', part=blame_rpc.make_compute_part,
                   needs=('load',)),
    ComputeFeature(name='service_level',
                   part=service_level_use.make_compute_part,
                   needs=('load',)),
    ComputeFeature(name='metering', part=metering_notices.BandwidthNotifier,
                   needs=('service_level',)),
    ComputeFeature(name='history', part=history_use.make_compute_part),
    ComputeFeature(name='rebalance', part=traffic_report.make_compute_part),
    ComputeFeature(name='index', part=headroom_report.make_compute_part),
    ComputeFeature(name='exporter', part=repair_counts.make_compute_part),
    ComputeFeature(name='real_time', part=host_scheduling.make_compute_part),
    ComputeFeature(name='interrupts', part=interrupts.make_compute_part),
    ComputeFeature(name='guest_topology',
                   part=guest_topology.make_compute_part),
    ComputeFeature(name='guest_channel', part=guest_channel.make_compute_part),
    ComputeFeature(name='pv_hints', part=pv_hints.make_compute_part),
    ComputeFeature(name='cpu_cache', part=cpu_cache.make_compute_part),
    ComputeFeature(name='locked_memory', part=locked_memory.make_compute_part),
    # With moves between NUMA nodes.
    ComputeFeature(name='live_change', part=rpc.LiveChangePart),
)

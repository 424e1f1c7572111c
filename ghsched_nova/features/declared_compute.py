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
    ComputeFeature(name='bursts', hooks=burst_use.make_compute_hooks),
    ComputeFeature(name='load', hooks=load_use.make_compute_hooks),
    ComputeFeature(name='blame', hooks=blame_rpc.make_compute_hooks,
                   needs=('load',)),
    ComputeFeature(name='service_level',
                   hooks=service_level_use.make_compute_hooks,
                   needs=('load',)),
    ComputeFeature(name='metering', hooks=metering_notices.BandwidthNotifier,
                   needs=('service_level',)),
    ComputeFeature(name='history', hooks=history_use.make_compute_hooks),
    ComputeFeature(name='rebalance', hooks=traffic_report.make_compute_hooks),
    ComputeFeature(name='index', hooks=headroom_report.make_compute_hooks),
    ComputeFeature(name='exporter', hooks=repair_counts.make_compute_hooks),
    ComputeFeature(name='real_time', hooks=host_scheduling.make_compute_hooks),
    ComputeFeature(name='interrupts', hooks=interrupts.make_compute_hooks),
    ComputeFeature(name='guest_topology',
                   hooks=guest_topology.make_compute_hooks),
    ComputeFeature(name='guest_channel',
                   hooks=guest_channel.make_compute_hooks),
    ComputeFeature(name='pv_hints', hooks=pv_hints.make_compute_hooks),
    ComputeFeature(name='cpu_cache', hooks=cpu_cache.make_compute_hooks),
    ComputeFeature(name='locked_memory',
                   hooks=locked_memory.make_compute_hooks),
    # With moves between NUMA nodes.
    ComputeFeature(name='live_change', hooks=rpc.LiveChangePart),
)

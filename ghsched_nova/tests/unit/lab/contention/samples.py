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

"""Machines for the tests of the contention model."""

from ghsched_nova.lab.contention.machine import Machine


def figure(value, basis='specified'):
    return {'value': value, 'basis': basis, 'source': 'a test'}


def mapping(**changes):
    """Two sockets of two nodes with a NIC on node 0, as plain data."""
    return {
        'name': 'host',
        'nodes': [{'id': number, 'threads': 80, 'memory_mb': 131072,
                   'socket': number // 2} for number in range(4)],
        'nics': [0],
        'capacity_mb': figure(100000), 'near_mb': figure(100000),
        'far_mb': figure(36000), 'near_latency': figure(1.3),
        'far_latency': figure(1.45, 'fitted'),
        'demand_mb': figure(340, 'fitted'), 'dma_mb': figure(78.125),
    } | changes


def machine(**changes):
    return Machine.from_mapping(mapping(**changes))

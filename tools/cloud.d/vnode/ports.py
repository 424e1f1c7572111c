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


"""What Neutron must know to give a guest a VF of the virtual node."""

import json
from typing import Any

from aio import database
from aio.settings import Settings
from vnode import machine

#: Neutron's name, and the network's that ports with VFs are made in.
NETWORK = 'vfs'
_SUBNET = '192.0.2.0/24'


def prepare(settings: Settings, cloud: Any) -> None:
    """Make the network and its agent, if they are not there."""
    _register_agent(settings)
    network = cloud.network.find_network(NETWORK)
    if network is None:
        network = cloud.network.create_network(
            name=NETWORK, is_shared=True, provider_network_type='flat',
            provider_physical_network=machine.NETWORK)
    if not network.subnet_ids:
        cloud.network.create_subnet(
            name=NETWORK, network_id=network.id, ip_version=4, cidr=_SUBNET,
            is_dhcp_enabled=False, gateway_ip=None)


def _register_agent(settings: Settings) -> None:
    """Let Neutron believe that the agent of SR-IOV cards runs on the node.

    Neutron binds no port with a VF on a host without it. The agent itself
    would watch the link of VFs, which nobody uses here.
    """
    values = {
        'agent_type': 'NIC Switch agent', 'host': machine.NAME,
        'binary': 'neutron-sriov-nic-agent', 'topic': 'N/A',
        'created_at': '2000-01-01', 'started_at': '2000-01-01',
        # Alive for longer than any cloud of this kind.
        'heartbeat_timestamp': '2100-01-01',
        'configurations': json.dumps({'device_mappings': {
            machine.NETWORK: []}}),
    }
    names = ', '.join(f'`{name}`' for name in values)
    texts = ', '.join(f"'{value}'" for value in values.values())
    database.query(
        settings, f'replace into neutron.agents (id, {names}) '  # noqa: S608
        f'values (uuid(), {texts})')

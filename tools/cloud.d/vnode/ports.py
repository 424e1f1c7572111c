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


"""Records of Neutron for ports with a VF of the virtual node."""

from typing import Any

from aio import network
from aio.settings import Settings
from vnode import machine

#: Neutron's name, and the network's that ports with VFs are made in.
NETWORK = 'vfs'
_SUBNET = '192.0.2.0/24'


def prepare(settings: Settings, cloud: Any) -> None:
    """Make the network and its agent, if they are not there."""
    network.register_agent(settings, network.SR_IOV, machine.NAME,
                           {machine.NETWORK: []})
    network.make_flat(cloud, NETWORK, machine.NETWORK, _SUBNET)

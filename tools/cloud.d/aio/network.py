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


"""Networks of Neutron, which has no agents here."""

import json
from pathlib import Path
from typing import Any

from aio import database
from aio.settings import Settings

SR_IOV = ('NIC Switch agent', 'neutron-sriov-nic-agent', 'device_mappings')
MACVTAP = ('Macvtap agent', 'neutron-macvtap-agent', 'interface_mappings')

#: The network of :func:`connect_guests`, and how Neutron calls its device.
GUESTS = 'guests'


def register_agent(settings: Settings, kind: tuple[str, str, str], host: str,
                   mappings: dict[str, Any]) -> None:
    """Register an agent on a host in Neutron, without running it.

    Neutron binds no port on a host without it. The agents themselves would
    watch the link of devices, which nobody uses here.

    :param kind: :data:`SR_IOV` or :data:`MACVTAP`.
    :param mappings: devices by physical network.
    """
    name, binary, key = kind
    values = {
        'agent_type': name, 'host': host, 'binary': binary, 'topic': 'N/A',
        'created_at': '2000-01-01', 'started_at': '2000-01-01',
        # Alive for longer than any cloud of this kind.
        'heartbeat_timestamp': '2100-01-01',
        'configurations': json.dumps({key: mappings})}
    names = ', '.join(f'`{name}`' for name in values)
    texts = ', '.join(f"'{value}'" for value in values.values())
    database.query(
        settings, f'replace into neutron.agents (id, {names}) '  # noqa: S608
        f'values (uuid(), {texts})')


def make_flat(cloud: Any, name: str, physical: str, cidr: str,
              gateway: str | None = None) -> None:
    """A shared network without DHCP and its subnet, if they are not there.

    :param physical: name of the physical network.
    """
    network = cloud.network.find_network(name)
    if network is None:
        network = cloud.network.create_network(
            name=name, is_shared=True, provider_network_type='flat',
            provider_physical_network=physical)
    if not network.subnet_ids:
        cloud.network.create_subnet(
            name=name, network_id=network.id, ip_version=4, cidr=cidr,
            is_dhcp_enabled=False, gateway_ip=gateway)


def connect_guests(settings: Settings, cloud: Any) -> str:
    """A network that this machine and guests of all hosts are on.

    Guests have macvtap devices of one end of a veth pair for each host; the
    other ends are in a bridge with this machine. Networks of a cloud go with
    it, bridge and pairs with :func:`disconnect_guests`.

    :returns: the address of this machine.
    """
    cidr, address = _guests(settings)
    bridge = _bridge(settings)
    if not Path(f'/sys/class/net/{bridge}').exists():
        database.run(['ip', 'link', 'add', bridge, 'type', 'bridge'])
        database.run(['ip', 'address', 'add', address + '/24', 'dev', bridge])
    for one in settings.each_host:
        ours, theirs = _pair(one)
        if not Path(f'/sys/class/net/{ours}').exists():
            database.run(['ip', 'link', 'add', ours, 'type', 'veth', 'peer',
                          'name', theirs])
            database.run(['ip', 'link', 'set', ours, 'master', bridge])
        for end in (bridge, ours, theirs):
            database.run(['ip', 'link', 'set', end, 'up'])
        register_agent(settings, MACVTAP, one.host.name, {GUESTS: theirs})
    make_flat(cloud, GUESTS, GUESTS, cidr, gateway=address)
    return address


def disconnect_guests(settings: Settings) -> None:
    """Take the bridge and the pairs away, if they are there."""
    for link in (_bridge(settings),
                 *(_pair(one)[0] for one in settings.each_host)):
        if Path(f'/sys/class/net/{link}').exists():
            database.run(['ip', 'link', 'delete', link])


def _guests(settings: Settings) -> tuple[str, str]:
    """Return a network for guests, from those for benchmarks (RFC 2544)."""
    start = f'198.18.{settings.port_base // 100 % 256}'
    return f'{start}.0/24', f'{start}.1'


def _bridge(settings: Settings) -> str:
    return f'ghs{settings.port_base}'


def _pair(settings: Settings) -> tuple[str, str]:
    name = f'{_bridge(settings)}n{settings.host.number}'
    return f'{name}a', f'{name}b'

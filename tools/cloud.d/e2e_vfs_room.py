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


"""Base of the checks of guests on the virtual compute node."""

from typing import Any

from aio.settings import CloudError
from e2e_room import Room
from openstack import exceptions
from vnode.lab import VirtualLab


class VfsRoom(Room):
    """Flavors, and what is known of a guest from every side."""

    lab: VirtualLab

    def _flavor(self, name: str, vcpus: int = 2, **specs: Any) -> None:
        self.lab.flavor(name, vcpus=vcpus, ram=256, **specs)

    def _ready(self, server: Any) -> None:
        """Wait for a guest, which is started once more if it says nothing.

        In a node that is emulated itself, QEMU has ended before its guest
        printed anything, and a guest has hung, each once in a dozen runs.
        """
        try:
            self.lab.console(server, 240)
        except (CloudError, exceptions.NotFoundException) as error:
            print(f'        {error}', self.lab.on_host(
                'tail', '-n', '20', '/var/log/libvirt/qemu/'
                f'{self.lab.domain_name(server)}.log'), sep='\n')
        else:
            return
        self.lab.cloud.compute.reboot_server(server, 'HARD')
        self._active(self.lab.wait(server, 'ACTIVE'))
        self.lab.console(server)

    def _is_on_node(self, server: Any, node: int, share: int) -> None:
        """Check that its memory is on a host node and all records agree."""
        self.checks.equal('pages by policy and node', {
            policy: set(pages) for policy, pages
            in self.lab.memory(server).items()}, {f'bind:{node}': {node}})
        self.checks.equal('node that is allocated',
                          self.lab.allocated_nodes(server), [node])
        self.checks.equal(
            'node in instance.numa_topology',
            [cell['host_node'] for cell in self.lab.topology(server)], [node])
        self.checks.equal(
            'node in the policy of its XML',
            self.lab.policy_nodes(self.lab.domain_xml(server)), [node])
        minimum = self.lab.group(server).schemata['MBMIN']
        self.checks.equal(
            'MBMIN', {one: int(value) for one, value in minimum.items()},
            {node: share, 1 - node: 0})
        self.checks.equal('audit', self.lab.openstack('audit'), [])

    def read_evidence(self) -> str:
        return self.lab.on_host('sh', '-c', 'cat /proc/loadavg; tail -n 40 '
                                '/var/log/vnode/nova-compute.log')

    def nothing_left(self) -> None:
        self.checks.equal('domains', self.lab.domains(), [])
        self.checks.equal('control groups', self.lab.groups(), [])
        used = {one.name: amounts for one in self.lab.providers()
                if any((amounts := self.lab.usage(one)).values())}
        self.checks.equal('in use', used, {})
        bound = self.lab.on_host(
            'sh', '-c', 'ls /sys/bus/pci/drivers/vfio-pci | grep : || true')
        self.checks.equal('VFs with the driver vfio-pci', bound.split(), [])

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


"""The demonstration; called by tools/demo.sh when the cloud is up."""

import sys
import time
from typing import Any
from xml.etree import ElementTree

from aio.lab import Group
from aio.lab import Lab
from aio.lab import POLICY_NAMESPACE
from aio.placement import Provider
from aio.settings import read
from demonstration import claim
from demonstration import command
from demonstration import Demonstration
from demonstration import heading
from demonstration import main
from demonstration import say
from demonstration import show


def _xml_lines(element: ElementTree.Element) -> list[str]:
    """An element as text, without the declarations of namespaces."""
    name = element.tag.replace('{' + POLICY_NAMESPACE + '}', 'ghsched:')
    words = ' '.join((name, *(f"{key}='{value}'"
                              for key, value in element.items())))
    inside = [f'  {line}' for child in element for line in _xml_lines(child)]
    return ([f'<{words}>', *inside, f'</{name}>'] if inside
            else [f'<{words}/>'])


class Demo(Demonstration):
    """Memory bandwidth, on the simulated host."""

    def steps(self) -> None:
        self.host()
        self.flavors()
        first, second = self.two_guests()
        for server in (first, second):
            self.one_guest(server)
        self.refusal()
        self.all_keys()

    # -- 1 --------------------------------------------------------------------

    def host(self) -> None:
        heading('1. The compute host (simulated) in Placement')
        say('The host is simulated: its two NUMA nodes and the '
            'memory-bandwidth control of openEuler on Arm (MPAM) are '
            'emulated, and QEMU runs without hardware virtualisation. '
            'libvirt and all of OpenStack are the real thing, unmodified.')
        command('openstack resource provider list')
        root, *_rest = tree = self.lab.providers()
        for one in tree:
            show(f'{one.uuid}  {"  " if one.parent else ""}{one.name}')
        self._inventory(root, 'CUSTOM_RESCTRL_GROUP')
        for node in (0, 1):
            self._inventory(self.lab.node_provider(node),
                            'CUSTOM_MEM_BW_PCT')
        command(f'openstack resource provider trait list {root.uuid}')
        traits = [one for one in self.lab.traits(root) if 'GHSCHED' in one]
        show(*traits)
        claim('the host can hold a guaranteed bandwidth',
              'CUSTOM_GHSCHED_MEM_BW_MIN' in traits, traits)

    def _inventory(self, provider: Provider, resource: str) -> None:
        command(f'openstack resource provider inventory list '
                f'{provider.uuid}    # {provider.name}')
        record = self.lab.inventory(provider).get(resource)
        claim(f'{provider.name} has {resource}', record,
              self.lab.inventory(provider))
        show('{}: total {total}, reserved {reserved}'.format(
            resource, **(record or {})))

    # -- 2 --------------------------------------------------------------------

    def flavors(self) -> None:
        heading('2. Flavors that ask for memory bandwidth')
        self.flavor('bw60', hw__numa_nodes=1, ghsched__mem_bw_min=60)
        self.flavor('bw-all', hw__numa_nodes=1, ghsched__mem_bw_min=20,
                    ghsched__mem_bw_max=50, ghsched__mem_bw_hardlimit='true',
                    ghsched__mem_bw_priority=5)

    # -- 3 --------------------------------------------------------------------

    def two_guests(self) -> tuple[Any, Any]:
        heading('3. Two guests with 60 % each')
        begin = time.monotonic()
        servers = [self.active(self.create(name, 'bw60'))
                   for name in ('1', '2')]
        show(f'both ACTIVE after {time.monotonic() - begin:.1f} s')
        nodes = [self.lab.allocated_nodes(one) for one in servers]
        for server in servers:
            command(f'openstack resource provider allocation show {server.id}')
            for name, resources in self.lab.allocations(server).items():
                show(f'{name}: ' + ', '.join(
                    f'{key} {value}'
                    for key, value in sorted(resources.items())))
        claim('one guest is on each host NUMA node',
              sorted(nodes) == [[0], [1]], nodes)
        return servers[0], servers[1]

    # -- 4 --------------------------------------------------------------------

    def one_guest(self, server: Any) -> None:
        node, = self.lab.allocated_nodes(server)
        heading(f'4. {server.name} on host NUMA node {node}, from every side')
        self._xml(server, node)
        group = self._group(server)
        minimum = group.schemata.get('MBMIN', {})
        claim(f'60 % of node {node} are guaranteed, nothing elsewhere',
              {key: int(value) for key, value in minimum.items()}
              == {node: 60, 1 - node: 0}, group.lines())
        command(f'openstack console log show {server.name}')
        lines = self.lab.console(server)
        show(*(line for line in lines if 'PCI' not in line))
        claim('the guest runs and sees its one NUMA node',
              'GUEST-NUMA online=0' in lines, lines)

    def _xml(self, server: Any, node: int) -> None:
        name = self.lab.domain_name(server)
        command(f'tools/cloud exec virsh dumpxml --inactive {name}')
        xml = self.lab.domain_xml(server)
        for part in ('metadata/{*}policy', 'cputune/memorytune',
                     'numatune/memnode'):
            for element in xml.iterfind(part):
                show(*_xml_lines(element))
        if xml.find('cputune/memorytune') is None:
            say('There is no <memorytune>: upstream libvirt cannot read the '
                'schemata of this kernel, so nova-compute makes the control '
                'group itself.')
        claim(f'the domain\'s policy is for host NUMA node {node}',
              self.lab.policy_nodes(xml) == [node], self.lab.policy_nodes(xml))
        claim(f'the guest\'s memory is bound to host NUMA node {node}',
              [one.get('nodeset') for one in xml.iter('memnode')]
              == [str(node)])

    def _group(self, server: Any) -> Group:
        group = self.lab.group(server)
        command('tools/cloud exec sh -c \\\n      \'cd /sys/fs/resctrl/'
                f'{group.name} && cat schemata tasks\'    # simulated')
        show(*group.lines())
        for thread, name in sorted(group.threads.items()):
            show(f'{thread}    # thread "{name}"')
        claim('the group holds the guest\'s vCPU threads',
              set(self.lab.vcpu_threads(server)) <= set(group.threads),
              group.threads)
        return group

    # -- 5 --------------------------------------------------------------------

    def refusal(self) -> None:
        heading('5. A third guest of 60 % has no place')
        with self.lab.log_of('nova-scheduler') as log:
            server = self.lab.wait(self.create('3', 'bw60'))
            fault = self.lab.fault(server)
            command(f'openstack server show {server.name} -c status -c fault')
            show(server.status, fault)
            claim('it is refused', server.status == 'ERROR', server.status)
            claim('with "No valid host"', 'No valid host' in fault, fault)
            told = log.lines('60 %', 'left')
        command('tools/cloud logs nova-scheduler')
        show(*(line.partition('] ')[2] or line for line in told))
        claim('the scheduler\'s log says that no node has 60 % left', told)
        self.lab.delete(server)

    # -- 6 --------------------------------------------------------------------

    def all_keys(self) -> None:
        heading('6. A guest with all four keys')
        server = self.active(self.create('4', 'bw-all'))
        node, = self.lab.allocated_nodes(server)
        group = self._group(server)
        for line, value, meaning in (
                ('MB', 50, 'a cap of 50 %'),
                ('MBMIN', 20, 'a guarantee of 20 %'),
                ('MBHDL', 1, 'a hard limit'),
                ('MBPRI', 5, 'priority 5')):
            seen = group.schemata.get(line, {}).get(node, '-1')
            claim(f'{line} of node {node} reads back {value}: {meaning}',
                  int(seen) == value, group.lines())

    # -- 7 --------------------------------------------------------------------

    def nothing_left(self) -> None:
        left = [one.name for one in self.lab.groups()]
        claim('no control group is left on the host', not left, left)
        for node in (0, 1):
            used = self.lab.usage(self.lab.node_provider(node))
            claim(f'no bandwidth of node {node} is in use',
                  used.get('CUSTOM_MEM_BW_PCT') == 0, used)


if __name__ == '__main__':
    settings = read()
    sys.exit(main(
        Demo, lambda: Lab(settings, 'demo'), str(settings.log),
        ('tools/cloud status',
         f'. {settings.home}/openrc     # then: openstack server create ...',
         'tools/cloud exec virsh list --all',
         'tools/cloud down')))

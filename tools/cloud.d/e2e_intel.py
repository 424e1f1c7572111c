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

"""Checks on a host whose control groups libvirt makes (simulated)."""

from collections.abc import Iterator
import contextlib

from e2e_guest_room import GuestRoom
from e2e_load import Load


class Intel(GuestRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        with self._dialect('intel'):
            yield

    def test_libvirt_makes_the_group(self) -> None:
        """XML carries the cap on a kernel that libvirt can read."""
        server = self._active(self.lab.boot('intel', 'cap45'))
        node, = self._topology_nodes(server)

        def caps() -> list[tuple[str | None, str | None]]:
            return [(one.get('id'), one.get('bandwidth')) for one in
                    self.lab.domain_xml(server).findall(
                        'cputune/memorytune/node')]

        self.checks.equal(
            'node and cap in <memorytune>, rounded up to the next step',
            caps(), [(str(node), '50')])
        group = self.lab.group(server)
        self.checks.holds('group made by libvirt',
                          group.name.startswith('qemu-') and group.name,
                          'qemu-...')
        self.checks.equal('MB of its group', self._values(server, 'MB'),
                          {node: 50, 1 - node: 100})
        self._set(server, 0, 'Done.', '--mem-bw-max', '73')
        self.checks.equal('MB of its group after a live change',
                          self._values(server, 'MB'),
                          {node: 80, 1 - node: 100})
        self.checks.equal('node and cap in the stored <memorytune>', caps(),
                          [(str(node), '80')])
        self._set(server, 1, 'ghsched:mem_bw_min', '--mem-bw-min', '20')
        self._refused('bw10', 'no host can hold ghsched:mem_bw_min')

    def test_libvirt_makes_the_groups_of_classes(self) -> None:
        """XML has a cap for each vCPU class, and libvirt a group."""
        self.lab.flavor('capped', 2, hw__numa_nodes=2,
                        ghsched__vcpu_classes='a:0,b:1',
                        ghsched__mem_bw_max__at__a=60,
                        ghsched__mem_bw_max__at__b=40)
        server = self._active(self.lab.boot('capped', 'capped'))
        first, second = map(str, self._topology_nodes(server))
        self.checks.equal(
            'vCPUs and caps in <memorytune>',
            [(one.get('vcpus'), {cap.get('id'): cap.get('bandwidth')
                                 for cap in one.findall('node')})
             for one in self.lab.domain_xml(server).findall(
                'cputune/memorytune')],
            [('0', {first: '60'}), ('1', {second: '40'})])
        names = self.lab.vcpu_threads(server)
        self.checks.equal(
            'caps and vCPUs by group of libvirt',
            {group.name.partition('-vcpus_')[2]: (
                sorted(group.schemata['MB'].values()),
                [names[tid].split()[1][0] for tid in group.threads
                 if tid in names])
             for group in self.lab.groups()},
            {'0': (['100', '60'], ['0']), '1': (['100', '40'], ['1'])})

    def test_busy_guest_counted(self) -> None:
        """Busy guests are counted if the kernel has counters (simulated)."""
        server = self._active(self.lab.boot('busy', 'cap45'))
        node, = self._topology_nodes(server)
        load = Load(self.lab)
        self.lab.tell(server, 'busy')
        self.checks.note(*load.only_on(
            'the guest in ghsched-top',
            load.of_guest(load.busy_frame(server), server), node))
        with load.exporter() as address:
            metric = 'ghsched_memory_bytes_total'
            before = load.scrape(address, metric, server)
            load.frame()    # a second or more
            after = load.scrape(address, metric, server)
        self.checks.note(*load.only_on(
            'counter in ghsched-exporter, increase',
            {one: after[one] - count for one, count in before.items()},
            node))

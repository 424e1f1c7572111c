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


"""Checks of where guests are put, and with what values."""

from aio import host
from e2e_guest_room import BANDWIDTH
from e2e_guest_room import GuestRoom
from e2e_guest_room import words
from openstack import exceptions


class Placing(GuestRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def test_two_guests(self) -> None:
        """Two guests of 60 % take one node each; a third has no place."""
        servers = [self._active(self.lab.boot(name, 'bw60'))
                   for name in '12']
        nodes = sorted(self.lab.allocated_nodes(one)[0] for one in servers)
        self.checks.equal('host NUMA nodes of the two', nodes, [0, 1])
        for server in servers:
            self._agrees(server, 60)
        for node in (0, 1):
            self.checks.equal(f'{BANDWIDTH} used on node {node}',
                              self._used(node), 60)
        self._refused('bw60', 'no host NUMA node has 60 % of its memory '
                              'bandwidth left')
        for server in servers:
            self.checks.equal(
                f'{server.name} sees NUMA nodes',
                words(self.lab.console(server), 'GUEST-NUMA'), ['online=0'])

    def test_multi_create(self) -> None:
        """A request for two guests is spread like two requests."""
        self.lab.create_many('many', 'bw60', 2)
        servers = [self._active(self.lab.wait(one))
                   for one in self.lab.servers()]
        self.checks.equal('servers', len(servers), 2)
        nodes = sorted(node for one in servers
                       for node in self.lab.allocated_nodes(one))
        self.checks.equal('host NUMA nodes of the two', nodes, [0, 1])
        for server in servers:
            self._agrees(server, 60)

    def test_two_nodes(self) -> None:
        """Each guest node gets its share on its own host node."""
        server = self._active(self.lab.boot('wide', 'two-nodes'))
        cells = [cell['host_node'] for cell in self.lab.topology(server)]
        self.checks.equal('host nodes of the guest nodes', sorted(cells),
                          [0, 1])
        seen = self._values(server, 'MBMIN')
        self.checks.equal('MBMIN', seen, {cells[0]: 20, cells[1]: 30})
        self.checks.equal(
            'bandwidth used, node by node',
            {node: self._used(node) for node in (0, 1)}, seen)
        self.checks.equal(
            'NUMA nodes that the guest sees',
            words(self.lab.console(server), 'GUEST-NUMA'), ['online=0-1'])

    def test_all_keys(self) -> None:
        """All four keys reach the group that holds the vCPU threads."""
        server = self._active(self.lab.boot('all', 'bw-all'))
        node, = self.lab.allocated_nodes(server)
        for line, value, elsewhere in (
                ('MB', 50, 100), ('MBMIN', 30, 0), ('MBHDL', 1, None),
                ('MBPRI', 5, None)):
            seen = self._values(server, line)
            self.checks.equal(f'{line} of node {node}', seen.get(node),
                              value)
            if elsewhere is not None:
                self.checks.equal(f'{line} of node {1 - node}',
                                  seen.get(1 - node), elsewhere)
        threads = self.lab.vcpu_threads(server)
        self.checks.equal('vCPU threads in the group', sorted(
            set(threads) & set(self.lab.group(server).threads)),
            sorted(threads))

    def test_placement_decides(self) -> None:
        """Guests get the node that Placement chose, not the one Nova would."""
        plain = self._active(self.lab.boot('plain', 'numa1'))
        node, = self._topology_nodes(plain)
        self.lab.delete(plain)
        with self._options(('ghsched', 'reserved_bandwidth', f'{node}:60')):
            self.checks.equal(
                f'reserved on node {node}, Nova\'s own choice',
                self.lab.inventory(self.lab.node_provider(node))[
                    BANDWIDTH]['reserved'], 60)
            server = self._active(self.lab.boot('steered', 'bw60'))
            self.checks.equal('node of the allocation',
                              self.lab.allocated_nodes(server), [1 - node])
            self._agrees(server, 60)

    def test_pages_of_1_gb(self) -> None:
        """Guests take pages of 1 GB by node, and a refusal counts them."""
        self.lab.flavor('gigantic', ram=1024, hw__numa_nodes=1,
                        hw__mem_page_size='1GB', ghsched__mem_bw_min=10)
        # A host tells its pages by node once it has a guest.
        servers = [self._active(self.lab.boot('pages-0', 'gigantic'))]
        self._check_gigantic(host.GIGANTIC_PAGES - 1, '')
        servers += [self._active(self.lab.boot(f'pages-{number}', 'gigantic'))
                    for number in range(1, host.GIGANTIC_PAGES)]
        self.checks.equal('host NUMA nodes of the guests', sorted(
            self.lab.allocated_nodes(one)[0] for one in servers), [0, 0, 1])
        self.checks.equal('KiB of the pages of each guest in its XML', [
            [page.get('size') for page in self.lab.domain_xml(one).iterfind(
                'memoryBacking/hugepages/page')] for one in servers],
            [['1048576']] * len(servers))
        self._check_gigantic(0, 'NUMA node 1 cannot take guest NUMA node 0: '
                             '0 of 1 pages of 1 GB free, 1 needed')
        self._refused('gigantic', '0 of 2 free on NUMA node 0, '
                      '0 of 1 free on NUMA node 1')

    def _check_gigantic(self, guests: int, reason: str) -> None:
        row, = self.lab.openstack('flavor', 'check', 'gigantic',
                                  status=0 if guests else 1)
        self.checks.equal('flavor check: guests that fit',
                          row['Guests That Fit'], guests)
        self._contains('flavor check: reasons', str(row['Reasons']), reason)

    def test_bad_keys(self) -> None:
        """The API refuses bad keys, and keys that contradict each other."""
        for specs in ({'ghsched:mem_bw_min': '101'},
                      {'ghsched:mem_bw_min': 'much'},
                      {'ghsched:mem_bw_mni': '10'},
                      {'ghsched:mem_bw_hardlimit': 'maybe'},
                      {'ghsched:mem_bw_min': '10'},
                      {'hw:numa_nodes': '1', 'ghsched:mem_bw_min': '60',
                       'ghsched:mem_bw_max': '50'},
                      {'hw:numa_nodes': '1', 'ghsched:mem_bw_min.1': '5'}):
            flavor = self.lab.flavor('bad')
            try:
                self.lab.cloud.compute.create_flavor_extra_specs(
                    flavor, specs)
                code = 200
            except exceptions.HttpException as error:
                code = error.response.status_code
            self.checks.equal(f'HTTP status of {specs}', code, 400)

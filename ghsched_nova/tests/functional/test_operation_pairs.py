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

"""Every sequence of two operations that change a guest's place or policy.

After each operation, Nova's claim, Placement, both definitions of the domain
and what was written to resctrl have the same share on the host NUMA node of
each guest NUMA node. The guest has two NUMA nodes with unequal shares, and the
hosts have room on different nodes.

GHSCHED_OPERATION_PAIRS is the number of pairs to run, or ``all``; the commit
chooses which.
"""

import hashlib
import itertools
import os
import subprocess

import ddt
from lxml import etree
from testtools import content

from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.live_change import records
from ghsched_nova.features.live_change import servers
from ghsched_nova.guest import metadata
from ghsched_nova.tests.fixtures import guest_memory
from ghsched_nova.tests.functional import test_moves
from ghsched_placement.providers import names

OPERATIONS = ('move_inside', 'live_migrate', 'cold_migrate', 'resize',
              'revert', 'shelve', 'rebuild', 'change', 'evacuate', 'reboot')
PAIRS = tuple(itertools.product(OPERATIONS, repeat=2))
#: Operations that leave the definition with which the domain was started:
#: libvirt cannot change <memorytune> of a running domain.
_LIVE = ('move_inside', 'change')

#: Guarantee and cap in percent by guest NUMA node, and those of a second
#: flavor and after the first and the second live change. These fit wherever
#: the flavors do.
FIRST, SECOND, CHANGED, AGAIN = (
    ((60, 90), (20, 70)), ((20, 80), (50, 60)), ((15, 75), (10, 65)),
    ((12, 85), (18, 55)))

#: Percent of bandwidth that is taken by others, by host and NUMA node.
TAKEN = {('host_a', 0): 70, ('host_b', 1): 90, ('host_c', 2): 70,
         ('host_c', 3): 45}
_OTHERS = 'c0ffee00-35f5-4c4b-9f38-1c6f2f3f8d55'


def choose_pairs(amount, commit):
    """Return the pairs to run.

    :param amount: number of pairs, or ``all``.
    :param commit: text that chooses which.
    """
    def rank(pair):
        return hashlib.sha256(' '.join((commit, *pair)).encode()).digest()
    return PAIRS if amount == 'all' else sorted(PAIRS, key=rank)[:int(amount)]


def read_commit():
    """Return the commit of the source; empty if that is no repository."""
    found = subprocess.run(
        ['git', 'rev-parse', 'HEAD'], capture_output=True, check=False,
        cwd=os.path.dirname(__file__))
    return found.stdout.decode().strip()


def make_keys(policy):
    """Return the flavor keys of guarantees and caps by guest NUMA node."""
    return {f'mem_bw_{name}__{cell}': share
            for cell, shares in enumerate(policy)
            for name, share in zip(('min', 'max'), shares, strict=True)}


def make_part(number, parts):
    """Return the pairs of one of several tests, which run beside each other.
    """
    return choose_pairs(os.environ.get('GHSCHED_OPERATION_PAIRS', '5'),
                        read_commit())[number::parts]


@ddt.ddt
class OperationPairTest(test_moves.MovesTestCase):

    NODES = 4

    def setUp(self):
        super().setUp()
        # No guest of Nova's fixture shuts down when it is asked to. A busy
        # machine takes longer for a move than Nova waits for an answer.
        self.flags(shutdown_timeout=0, rpc_response_timeout=1200,
                   long_rpc_timeout=1200)
        self.useFixture(guest_memory.FakeMemory())
        held = [{'resources': {names.MEM_BW_PCT: percent}}
                for percent in TAKEN.values()]
        answer = self.placement.put(f'/allocations/{_OTHERS}', {
            'allocations': dict(zip(
                itertools.starmap(self.provider, TAKEN), held, strict=True)),
            'project_id': 'p', 'user_id': 'u', 'consumer_generation': None},
            version='1.28')
        self.assertEqual(204, answer.status)
        self.flavors = {policy: self.flavor(nodes=2, **make_keys(policy))
                        for policy in (FIRST, SECOND)}
        self.down = []

    def start_hosts(self):
        self.flags(cpu_dedicated_set='0-11', group='compute')
        for name in ('host_a', 'host_b', 'host_c'):
            self.start_host(name, nodes=self.NODES, cores=3)

    def _migrate_stub(self, domain, destination, params, flags):
        """Copy a domain as libvirt does: it is persistent there."""
        self.dest, = (compute for name, compute in self.computes.items()
                      if name in destination)
        super()._migrate_stub(domain, destination, params, flags)
        connection = self.dest.driver._host.get_connection()
        connection.lookupByUUIDString(self.server['id'])._transient = False

    # -- operations -----------------------------------------------------------

    def move_inside(self):
        with records.open_cell_context(self.server['id']) as context:
            servers.move_server(context, self.server['id'],
                                self.choose_nodes(context), False)

    def choose_nodes(self, context):
        """Other nodes, some of which another guest node had, if possible."""
        now = self.host_nodes(self.server)
        places = sorted(
            (nodes for nodes in itertools.permutations(range(self.NODES), 2)
             if list(nodes) != now),
            key=lambda nodes: (nodes[1] != now[0], nodes[0] != now[1], nodes))
        for nodes in places:
            try:
                servers.move_server(context, self.server['id'],
                                    dict(enumerate(nodes)), True)
            except errors.Refused:
                continue
            return dict(enumerate(nodes))
        raise AssertionError('no other nodes have room')

    def live_migrate(self):
        self.src = self.computes[self.host()]
        self._live_migrate(self.server, 'completed')

    def cold_migrate(self):
        self._migrate_server(self.server)
        self._confirm_resize(self.server)

    def resize(self):
        self.chosen = self.policy = self.other_flavor()
        self._resize_server(self.server, self.flavors[self.chosen])
        self._confirm_resize(self.server)

    def revert(self):
        self._resize_server(self.server, self.flavors[self.other_flavor()])
        self._revert_resize(self.server)

    def other_flavor(self):
        """Policy of the flavor that the server does not have."""
        return SECOND if self.chosen == FIRST else FIRST

    def shelve(self):
        self._shelve_server(self.server)
        self._unshelve_server(self.server)

    def rebuild(self):
        self._rebuild_server(self.server, test_moves.IMAGE)

    def change(self):
        self.policy = AGAIN if self.policy == CHANGED else CHANGED
        with records.open_cell_context(self.server['id']) as context:
            servers.change_server_policy(context, self.server['id'], {
                f'ghsched:{key.replace("__", ".")}': str(value)
                for key, value in make_keys(self.policy).items()}, False)

    def evacuate(self):
        self.down.append(self.host())
        self.stop_host(self.down[-1])
        self._evacuate_server(self.server, expected_state='SHUTOFF',
                              expected_migration_status='done')
        self._start_server(self.server)

    def reboot(self):
        self._reboot_server(self.server, hard=True)

    # -- checks ---------------------------------------------------------------

    def collect(self):
        """Return what each record has, by host NUMA node of the guest."""
        host, nodes = self.host(), self.host_nodes(self.server)
        connection = self.computes[host].driver._host.get_connection()
        domain = connection.lookupByUUIDString(self.server['id'])
        held = self.bandwidth(self.server['id'])
        found = {'Placement': {
            node: held[self.provider(host, node)]
            for node in range(self.NODES)
            if self.provider(host, node) in held}}
        for name, xml in (('live', domain.XMLDesc(0)),
                          ('stored', domain.XMLDesc(2))):
            policy = metadata.read_policy(xml)
            found[name] = dict(zip(policy.host_nodes, (
                (node.minimum, node.maximum) for node in policy.policy.nodes),
                strict=True))
            found[f'{name} memorytune'] = {
                int(node.get('id')): int(node.get('bandwidth'))
                for node in etree.fromstring(xml).findall(
                    'cputune/memorytune/node')}
        lines = self.kernel.enforced[-1][2] if self.kernel.enforced else {}
        found['schemata'] = {
            line: {node: value for node, value in lines.get(line, {}).items()
                   if node in nodes} for line in ('MBMIN', 'MB')}
        return nodes, found

    def check(self, operation):
        self.server = self.api.get_server(self.server['id'])
        self.assertEqual('ACTIVE', self.server['status'])
        nodes, found = self.collect()
        pairs = dict(zip(nodes, self.policy, strict=True))
        shares = {node: pair[0] for node, pair in pairs.items()}
        caps = {node: pair[1] for node, pair in pairs.items()}
        if operation in _LIVE:
            del found['live memorytune']
        self.assertEqual({
            'Placement': shares, 'live': pairs, 'stored': pairs,
            **{name: caps for name in found if 'memorytune' in name},
            'schemata': {'MBMIN': shares, 'MB': caps}}, found)

    def run_pair(self, pair):
        self.chosen = self.policy = FIRST
        self.server = self.boot(self.flavors[FIRST], host='host_a')
        for operation in ('boot', *pair):
            self.kernel.enforced.clear()
            if operation == 'boot':
                self._reboot_server(self.server, hard=True)
            else:
                getattr(self, operation)()
            self.check(operation)
        self._delete_server(self.server)
        while self.down:
            name = self.down.pop()
            self.restart_compute_service(name)
            self.api.put_service_force_down(
                self.computes[name].service_ref.uuid, False)
        self.wait_until(lambda: not self.domains())
        # Nova corrects what trackers keep of moved guests with each report.
        self._run_periodics()
        others = {}
        for (host, _node), percent in TAKEN.items():
            others[host] = others.get(host, 0) + percent
        self.assertEqual(others, self.sum_usages())

    @ddt.data(*range(5))
    def test_pair_of_operations_leaves_all_records_equal(self, number):
        failed = []
        for pair in make_part(number, 5):
            try:
                self.run_pair(pair)
            except Exception as error:
                failed.append((pair, str(error)))
                self.addDetail(f'{pair}', content.text_content(str(error)))
                break    # the hosts are not as before any more
        self.assertEqual([], failed)

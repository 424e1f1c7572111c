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


"""End-to-end checks on the all-in-one cloud; called by tools/e2e.sh.

Each check prints what was seen beside what was expected. A failed check does
not end a test; an error does, and counts as one failure.
"""

from collections.abc import Callable, Iterator
import contextlib
import hashlib
import io
from pathlib import Path
import subprocess
import sys
import time
import traceback
from typing import Any
from xml.etree import ElementTree

from aio import cli
from aio import database
from aio import host
from aio.lab import Group
from aio.lab import Lab
from aio import process
from aio import services
from aio.settings import CloudError
from aio.settings import ComputeHost
from aio.settings import read
from aio.settings import Settings
from e2e_load import BUSY
from e2e_load import Load
from openstack import exceptions

BANDWIDTH = 'CUSTOM_MEM_BW_PCT'
CONTROL_GROUP = 'CUSTOM_RESCTRL_GROUP'

_COMPUTE = 'nova-compute'
_SCHEDULER = 'nova-scheduler'

#: Traits of a host that Nova gives nothing to, and of one that can hold
#: ghsched:mem_bw_min.
_DISABLED = 'COMPUTE_STATUS_DISABLED'
_GUARANTEE = 'CUSTOM_GHSCHED_MEM_BW_MIN'


class Checks:
    """Counts what holds and what does not."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def equal(self, text: str, seen: object, expected: object) -> bool:
        """Compare two values; both are printed."""
        return self.note(seen == expected,
                         f'{text}: {seen!r}, expected {expected!r}')

    def holds(self, text: str, seen: object, expected: str) -> bool:
        """A condition; ``seen`` is true when it holds."""
        return self.note(bool(seen),
                         f'{text}: {seen!r}, expected {expected}')

    def error(self, text: str) -> None:
        self.note(False, text)

    def note(self, good: bool, line: str) -> bool:
        self.passed += good
        self.failed += not good
        print(f'  {"pass" if good else "FAIL"}  {line}', flush=True)
        return good


class EndToEnd:
    """The tests; a method's name without ``test_`` is the test's name."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lab = Lab(settings, 'e2e')
        self.checks = Checks()
        self.services = services.cloud(settings)

    def prepare(self) -> None:
        self.lab.clean()
        self.lab.flavor('bw60', hw__numa_nodes=1, ghsched__mem_bw_min=60)
        self.lab.flavor('bw10', hw__numa_nodes=1, ghsched__mem_bw_min=10)
        self.lab.flavor('numa1', hw__numa_nodes=1)
        self.lab.flavor('cap45', hw__numa_nodes=1, ghsched__mem_bw_max=45)
        self.lab.flavor('bw-all', hw__numa_nodes=1, ghsched__mem_bw_min=30,
                        ghsched__mem_bw_max=50,
                        ghsched__mem_bw_hardlimit='true',
                        ghsched__mem_bw_priority=5)
        self.lab.flavor('two-nodes', vcpus=2, ram=256, hw__numa_nodes=2,
                        ghsched__mem_bw_min__at__0=20,
                        ghsched__mem_bw_min__at__1=30)

    # -- tests ----------------------------------------------------------------

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
                _words(self.lab.console(server), 'GUEST-NUMA'), ['online=0'])

    def test_at_once(self) -> None:
        """Two requests at the same time do not spoil each other."""
        asked = [self.lab.create(name, 'bw60') for name in '12']
        servers = [self._active(self.lab.wait(one)) for one in asked]
        nodes = sorted(node for one in servers
                       for node in self.lab.allocated_nodes(one))
        self.checks.equal('host NUMA nodes of the two', nodes, [0, 1])

    def test_multi_create(self) -> None:
        """One request for two guests is spread like two requests."""
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
            _words(self.lab.console(server), 'GUEST-NUMA'), ['online=0-1'])

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

    def test_libvirt_makes_the_group(self) -> None:
        """On a kernel that libvirt can read, the XML carries the cap."""
        with self._dialect('intel'):
            server = self._active(self.lab.boot('intel', 'cap45'))
            node, = self._topology_nodes(server)
            self.checks.equal(
                'node and cap in <memorytune>, rounded up to the next step',
                [(one.get('id'), one.get('bandwidth')) for one in
                 self.lab.domain_xml(server).findall(
                     'cputune/memorytune/node')],
                [(str(node), '50')])
            group = self.lab.group(server)
            self.checks.holds('group made by libvirt',
                              group.name.startswith('qemu-') and group.name,
                              'qemu-...')
            self.checks.equal('MB of its group', self._values(server, 'MB'),
                              {node: 50, 1 - node: 100})
            self._refused('bw10', 'no host can hold ghsched:mem_bw_min')
            self.lab.delete(server)
            self._nothing_left()

    def test_placement_decides(self) -> None:
        """Where stock Nova would take node 0, Placement's node 1 is taken."""
        with self._options(('ghsched', 'reserved_bandwidth', '0:60')):
            plain = self._active(self.lab.boot('plain', 'numa1'))
            self.checks.equal(
                'node of a guest without bandwidth (Nova\'s own choice)',
                self._topology_nodes(plain), [0])
            self.lab.delete(plain)
            provider = self.lab.node_provider(0)
            self.checks.equal(
                'reserved on node 0',
                self.lab.inventory(provider)[BANDWIDTH]['reserved'], 60)
            server = self._active(self.lab.boot('steered', 'bw60'))
            self.checks.equal('node of the allocation',
                              self.lab.allocated_nodes(server), [1])
            self._agrees(server, 60)

    def test_hard_reboot(self) -> None:
        """A hard reboot makes the same XML and the same group again."""
        server = self._active(self.lab.boot('reboot', 'bw-all'))
        before = self.lab.group(server)
        xml = _parts(self.lab.domain_xml(server))
        self.lab.cloud.compute.reboot_server(server, 'HARD')
        self.lab.until(lambda: self._has_new_threads(server, before), 90,
                       'the guest does not run again')
        after = self.lab.group(server)
        self.checks.equal('schemata', after.lines(), before.lines())
        self.checks.equal('XML', _parts(self.lab.domain_xml(server)), xml)
        self.checks.equal('groups', len(self.lab.groups()), 1)

    def test_live_change(self) -> None:
        """A running guest gets other values, and keeps them."""
        server = self._active(self.lab.boot('live', 'bw-all'))
        node, = self.lab.allocated_nodes(server)
        before = self.lab.group(server)
        self._set(server, 0, 'Done.', '--mem-bw-min', '20', '--mem-bw-max',
                  '0=70', '--mem-bw-priority', '6')
        wanted = {'MB': 70, 'MBMIN': 20, 'MBHDL': 1, 'MBPRI': 6}
        self._holds(server, wanted)
        self.checks.equal('share allocated', self._used(node), 20)
        self.checks.equal('threads in the group',
                          self.lab.group(server).threads, before.threads)
        after = self._all_of(server)
        self._set(server, 0, 'Nothing to change.', '--mem-bw-min', '20')
        self.checks.equal('the same once more', self._all_of(server), after)
        self.lab.cloud.compute.reboot_server(server, 'HARD')
        self.lab.until(lambda: self._has_new_threads(server, before), 90,
                       'the guest does not run again')
        self._holds(server, wanted)
        self.lab.cloud.compute.stop_server(server)
        self.lab.wait(server, 'SHUTOFF')
        self._set(server, 0, 'when the server starts', '--mem-bw-min', '0')
        self.lab.cloud.compute.start_server(server)
        self._active(self.lab.wait(server, 'ACTIVE'))
        self._holds(server, {**wanted, 'MBMIN': 0})
        self.checks.equal('share allocated', self._used(node), 0)

    def test_live_change_refused(self) -> None:
        """Placement, the host or a key refuses: all is as it was."""
        server = self._active(self.lab.boot('live', 'bw-all'))
        others = [self._active(self.lab.boot(name, 'bw60')) for name in '12']
        before = self._all_of(server)
        self._set(server, 2, 'has 40 % of its memory bandwidth left',
                  '--mem-bw-min', '45')
        self.checks.equal('after Placement refused', self._all_of(server),
                          before)
        self.lab.delete(*others)
        for fault in ('EINVAL', 'ENOSPC'):
            with self._faults({'schemata:MBMIN': {'error': fault,
                                                  'times': 1}}):
                self._set(server, 2, fault, '--mem-bw-min', '45',
                          '--mem-bw-max', '90', '--mem-bw-priority', '1')
            self.checks.equal('after the host refused',
                              self._all_of(server), before)
        self._set(server, 2, 'ghsched:mem_bw_min: 60 is more than',
                  '--mem-bw-min', '60')
        self.checks.equal('after a key was refused', self._all_of(server),
                          before)
        hasty = self.settings.state / 'hasty.conf'
        hasty.write_text('[DEFAULT]\nrpc_response_timeout = 5\n')
        process.stop([self.services[_COMPUTE]])
        try:
            self._set(server, 2, 'did not answer in time', '--mem-bw-min',
                      '45', *self._nova_files(), '--config-file', str(hasty))
        finally:
            self._restart_compute()
        self.checks.equal('after nobody answered', self._all_of(server),
                          before)

    def test_live_change_by_libvirt(self) -> None:
        """In a group of libvirt's; a start of the XML has the new cap."""
        with self._dialect('intel'):
            server = self._active(self.lab.boot('intel', 'cap45'))
            node, = self._topology_nodes(server)
            self._set(server, 0, 'Done.', '--mem-bw-max', '73')
            self.checks.equal('MB of its group', self._values(server, 'MB'),
                              {node: 80, 1 - node: 100})
            self.checks.equal(
                'node and cap in the stored <memorytune>',
                [(one.get('id'), one.get('bandwidth')) for one in
                 self.lab.domain_xml(server).findall(
                     'cputune/memorytune/node')],
                [(str(node), '80')])
            self._set(server, 2, 'ghsched:mem_bw_min', '--mem-bw-min', '20')
            self.lab.delete(server)
            self._nothing_left()

    def test_reassert(self) -> None:
        """What somebody changed is put right when nova-compute starts."""
        server = self._active(self.lab.boot('tampered', 'bw-all'))
        node, = self.lab.allocated_nodes(server)
        group = self.lab.group(server)
        self.lab.on_host('sh', '-c', f'echo "MBMIN:{node}=1" > '
                                     f'/sys/fs/resctrl/{group.name}/schemata')
        self._restart_compute()
        self.lab.until(
            lambda: self._values(server, 'MBMIN').get(node) == 30, 30,
            'MBMIN is not put right')
        self.checks.equal('schemata', self.lab.group(server).lines(),
                          group.lines())

    def test_kill_early(self) -> None:
        """nova-compute is killed when a spawn has just begun."""
        self._kill_compute(lambda server: self.lab.server(server).task_state
                           in ('spawning', 'block_device_mapping'))

    def test_kill_late(self) -> None:
        """nova-compute is killed while it writes the policy of a guest."""
        with self._faults({'schemata:MBPRI': {
                'delay': 3, 'match': '?*', 'times': 1}}):
            self._kill_compute(self._is_being_written)

    def test_libvirtd_restart(self) -> None:
        """Guests and their groups outlive libvirtd; then all goes on."""
        server = self._active(self.lab.boot('lasting', 'bw-all'))
        before = self.lab.group(server)
        host.control(self.settings, 'restart-libvirtd')
        self.checks.equal('group', self.lab.group(server), before)
        self._compute_reports()
        other = self._active(self.lab.boot('after', 'bw60'))
        self._agrees(other, 60)
        self.lab.delete(other)
        self.checks.equal('group', self.lab.group(server), before)
        self.lab.delete(server)
        self._nothing_left()

    def test_groups_counted(self) -> None:
        """Placement refuses a guest for which no control group is left."""
        usable = self.settings.control_groups - 1
        with self._options(('ghsched', 'reserved_control_groups',
                            str(usable - 1))):
            first = self._active(self.lab.boot('first', 'bw10'))
            root = self.lab.providers()[0]
            self.checks.equal(f'{CONTROL_GROUP} used',
                              self.lab.usage(root).get(CONTROL_GROUP), 1)
            self._refused('bw10',
                          'no host has a resctrl control group left')
            self.lab.delete(first)
            again = self._active(self.lab.boot('again', 'bw10'))
            self._agrees(again, 10)

    def test_groups_taken(self) -> None:
        """Groups that others have are not offered to guests, until freed."""
        taken = self._take_groups()
        try:
            self._offered(0)
            self._refused('bw60',
                          'no host has a resctrl control group left')
            self._nothing_left(but=taken)
        finally:
            self._give_groups_back(taken)
        self._offered(len(taken))
        self._active(self.lab.boot('then', 'bw60'))

    def test_group_shared(self) -> None:
        """More equal guests than control groups, and one without a policy."""
        usable = self.settings.control_groups - 1
        with self._options(
                ('ghsched', 'reserved_control_groups', str(usable - 2)),
                ('ghsched', 'group_sharing', 'on'),
                ('ghsched', 'default_bandwidth_max', '40')):
            self._offered(1)
            servers = [self._active(self.lab.boot('1', 'bw10'))]
            node, = self.lab.allocated_nodes(servers[0])
            self.lab.until(
                lambda: any(trait.startswith('CUSTOM_GHSCHED_SHARES_')
                            for trait in self.lab.traits(
                                self.lab.node_provider(node))),
                60, 'Placement is not told of the group')
            servers += [self._active(self.lab.boot(name, 'bw10'))
                        for name in '23']
            self.checks.equal(f'{CONTROL_GROUP} used', self.lab.usage(
                self.lab.providers()[0]).get(CONTROL_GROUP), 1)
            self.checks.equal(
                'nodes of the three',
                [self.lab.allocated_nodes(one) for one in servers],
                [[node]] * 3)
            self.checks.equal(
                'groups of the three',
                len({self.lab.group(one).name for one in servers}), 1)
            self.checks.equal('MBMIN of their group',
                              self._values(servers[0], 'MBMIN'),
                              {node: 30, 1 - node: 0})
            plain = self._active(self.lab.boot('plain', 'numa1'))
            self.checks.equal('group of a guest without a policy',
                              self.lab.group(plain).name, 'ghsched-default')
            self.checks.equal('its cap', self._values(plain, 'MB'),
                              {0: 40, 1: 40})
        self._nothing_left()

    def test_group_snatched(self) -> None:
        """Somebody took the last group just now: ERROR, no leak."""
        with self._faults({'mkdir': {
                'error': 'ENOSPC', 'status': 'Out of CLOSIDs'}}):
            self._fails('bw60', 'No space left on device')
        self._active(self.lab.boot('then', 'bw60'))

    def test_write_refused(self) -> None:
        """The kernel refuses a value: ERROR with its words, no leak."""
        with self._faults({'schemata:MBPRI': {
                'error': 'EINVAL', 'match': '?*',
                'status': 'priority not today'}}):
            self._fails('bw-all', 'priority not today')
        self._active(self.lab.boot('then', 'bw-all'))

    def test_write_ignored(self) -> None:
        """A value that does not read back as written is an error, too."""
        with self._faults({'schemata:MBMIN': {
                'ignore': True, 'match': '?*'}}):
            self._fails('bw-all', 'MBMIN of domain 0 is 00000, wanted is 30')
        self._active(self.lab.boot('then', 'bw-all'))

    def test_resctrl_vanishes(self) -> None:
        """Without resctrl no guest starts unprotected; it comes back."""
        old = self._active(self.lab.boot('before', 'bw10'))
        with self._without_resctrl():
            server = self.lab.boot('without', 'bw10')
            self.checks.equal('status', server.status, 'ERROR')
            self._names_resctrl(server)
            self.checks.equal('domains', self.lab.domains(),
                              [self.lab.domain_name(old)])
            self.checks.equal('allocations', self.lab.allocations(server),
                              {})
            self.lab.delete(server, old)
            self.checks.equal('domains', self.lab.domains(), [])
        new = self._active(self.lab.boot('back', 'bw10'))
        self._agrees(new, 10)

    def test_resctrl_vanishes_midway(self) -> None:
        """resctrl vanishes while the policy of a guest is written."""
        with self._faults({'schemata:MBPRI': {
                'delay': 6, 'match': '?*'}}):
            server = self.lab.create('midway', 'bw-all')
            self.lab.until(lambda: self._is_being_written(server), 60,
                           'the policy is never written')
            with self._without_resctrl():
                server = self.lab.wait(server)
                self.checks.equal('status', server.status, 'ERROR')
                self._names_resctrl(server)
                self.checks.equal('domains', self.lab.domains(), [])
                self.lab.delete(server)
        self._nothing_left()
        self._active(self.lab.boot('back', 'bw-all'))

    def test_bad_keys(self) -> None:
        """The API, or else the scheduler, says which key is wrong."""
        for specs in ({'ghsched:mem_bw_min': '101'},
                      {'ghsched:mem_bw_min': 'much'},
                      {'ghsched:mem_bw_mni': '10'},
                      {'ghsched:mem_bw_hardlimit': 'maybe'}):
            flavor = self.lab.flavor('bad')
            try:
                self.lab.cloud.compute.create_flavor_extra_specs(
                    flavor, specs)
                code = 200
            except exceptions.HttpException as error:
                code = error.response.status_code
            self.checks.equal(f'HTTP status of {specs}', code, 400)
        self.lab.flavor('bad', hw__numa_nodes=1, ghsched__mem_bw_min=60,
                        ghsched__mem_bw_max=50)
        self._refused('bad', 'ghsched:mem_bw_min')
        self.lab.flavor('bad', hw__numa_nodes=1, ghsched__mem_bw_min__at__1=5)
        self._refused('bad', 'ghsched:mem_bw_min.1')

    def test_busy_guest(self) -> None:
        """ghsched-top, the exporter and Nova show a busy guest (simulated)."""
        server = self._active(self.lab.boot('busy', 'bw10'))
        node, = self.lab.allocated_nodes(server)
        load = Load(self.lab)
        self.lab.tell(server, 'busy')
        frame = load.busy_frame(server)
        print(load.top('--batch').rstrip())
        self._only_on('the guest in ghsched-top',
                      load.of_guest(frame, server), node)
        self._only_on('all guests in ghsched-top', load.of_guests(frame),
                      node)
        with load.exporter() as address:
            self._only_on('rate in ghsched-exporter', load.scrape(
                address, 'ghsched_memory_bytes_per_second', server), node)
        age, used = self.lab.until(
            lambda: self._reported_busy(load, node), 60,
            'the stats of the compute node do not show the load')
        self.checks.note(0 <= age <= 30, f'age of the stats with {used}: '
                         f'{age:.1f} s, expected from 0 to 30')
        self.lab.tell(server, 'idle')
        self.checks.holds(
            'the guest in ghsched-top, idle again',
            load.of_guest(load.idle_frame(server), server),
            f'less than {BUSY:.0f} bytes/s')

    def test_busy_guest_counted(self) -> None:
        """So they do where the kernel has counters (simulated)."""
        with self._dialect('intel'):
            server = self._active(self.lab.boot('busy', 'cap45'))
            node, = self._topology_nodes(server)
            load = Load(self.lab)
            self.lab.tell(server, 'busy')
            self._only_on('the guest in ghsched-top', load.of_guest(
                load.busy_frame(server), server), node)
            with load.exporter() as address:
                metric = 'ghsched_memory_bytes_total'
                before = load.scrape(address, metric, server)
                load.frame()    # a second or more
                after = load.scrape(address, metric, server)
            self._only_on(
                'counter in ghsched-exporter, increase',
                {one: after[one] - count for one, count in before.items()},
                node)

    def test_busy_host(self) -> None:
        """The scheduler takes the host that has bandwidth left (simulated)."""
        server = self._active(self.lab.boot('busy', 'bw10'))
        self.lab.tell(server, 'busy')
        load, node = Load(self.lab), self.lab.allocated_nodes(server)[0]
        with self._two_hosts(), self._scheduler(
                ('DEFAULT', 'debug', 'true'),
                # Nova's own weigher wants the busy host.
                ('filter_scheduler', 'ram_weight_multiplier', '-1'),
                ('ghsched', 'bandwidth_weight_threshold', '5'),
                ('ghsched', 'bandwidth_weight_multiplier', '20')):
            self.lab.until(lambda: self._reported_busy(load, node), 60,
                           'the stats of the compute node do not show it')
            with self.lab.log_of(_SCHEDULER) as log:
                other = self.lab.boot('other', 'two-nodes')
                for words in (('RAMWeigher: normalized',),
                              ('ghsched: ', 'for bandwidth')):
                    for line in log.lines(*words):
                        print('        ' + line.partition(' - ')[2][-200:])
            self._active(other)
            self.checks.equal('host of the new guest', other.compute_host,
                              ComputeHost(2).name)
            self.lab.clean()

    def test_openstack_commands(self) -> None:
        """What "openstack ghsched ..." tells is what is so."""
        server = self._active(self.lab.boot('asked', 'bw-all'))
        node, = self.lab.allocated_nodes(server)
        host_name = self.lab.providers()[0].name
        self.checks.equal(
            'capacity show: used and largest guarantee of each node',
            [(row['BW Used (%)'], row['Largest Guarantee (%)'])
             for row in self.lab.openstack('capacity', 'show', host_name)],
            [(30, 70) if one == node else (0, 100) for one in (0, 1)])
        self.checks.equal(
            'host list: state, guests and drift of each host',
            [(row['Host'], row['State'], row['Guests'], row['Drift'])
             for row in self.lab.openstack('host', 'list')],
            [(host_name, 'up', 1, 0)])
        shown = self.lab.openstack('host', 'show', host_name)
        self.checks.equal('host show: drift', shown['drift'], [])
        self.checks.equal('host show: set on the host', [
            one['effective_percent'] for one in shown['numa_nodes']],
            [30 if one == node else 0 for one in (0, 1)])
        row, = self.lab.openstack('server', 'bandwidth', 'show', server.id)
        self.checks.equal(
            'server bandwidth show: node, asked, allocated, effective',
            [row[name] for name in (
                'Host Node', 'Min (%)', 'Allocated (%)', 'Effective Min (%)',
                'Effective Max (%)', 'Effective Priority')],
            [node, 30, 30, 30, 50, 5])
        row, = self.lab.openstack('flavor', 'check', 'bw60')
        self.checks.equal('flavor check: guests of 60 % that fit',
                          (row['Fits'], row['Guests That Fit']), (True, 2))
        row, = self.lab.openstack('density', 'plan', '--flavor', 'bw60')
        self.checks.equal('density plan: guests of 60 % that fit',
                          row['Guests'], 2)
        self.lab.delete(server)

    # -- parts of tests -------------------------------------------------------

    def _only_on(self, text: str, seen: dict[int, float], node: int) -> None:
        """Bandwidth is seen on one node, and on no other."""
        self.checks.note(
            seen.get(node, 0) >= BUSY
            and not any(rate for one, rate in seen.items() if one != node),
            f'{text}, bytes/s by node: {seen}, expected node {node} alone')

    def _reported_busy(self, load: Load, node: int
                       ) -> tuple[float, dict[int, float]] | None:
        age, used = load.reported()
        return (age, used) if used.get(node, 0) >= BUSY else None

    def _active(self, server: Any) -> Any:
        """The server, which must be ACTIVE for the test to go on."""
        if server.status != 'ACTIVE':
            raise CloudError(f'{server.name} is {server.status}: '
                             + self.lab.fault(server))
        return server

    def _used(self, node: int) -> int | None:
        return self.lab.usage(self.lab.node_provider(node)).get(BANDWIDTH)

    def _values(self, server: Any, line: str) -> dict[int, int]:
        return {domain: int(value) for domain, value in
                self.lab.group(server).schemata.get(line, {}).items()}

    def _topology_nodes(self, server: Any) -> list[int]:
        return [cell['host_node'] for cell in self.lab.topology(server)]

    def _agrees(self, server: Any, share: int) -> None:
        """Placement, Nova, libvirt and resctrl name the same node."""
        node, = self.lab.allocated_nodes(server)
        name = server.name
        self.checks.equal(
            f'{name}: share allocated',
            self.lab.allocations(server)[
                self.lab.node_provider(node).name].get(BANDWIDTH), share)
        self.checks.equal(f'{name}: node in instance.numa_topology',
                          self._topology_nodes(server), [node])
        xml = self.lab.domain_xml(server)
        self.checks.equal(
            f'{name}: node in <numatune>',
            [one.get('nodeset') for one in xml.iter('memnode')],
            [str(node)])
        self.checks.equal(f'{name}: node in the policy of its XML',
                          self.lab.policy_nodes(xml), [node])
        self.checks.equal(f'{name}: MBMIN of its group',
                          self._values(server, 'MBMIN'),
                          {node: share, 1 - node: 0})

    def _set(self, server: Any, status: int, words: str,
             *arguments: str) -> None:
        """Run "ghsched server set", and look at how it ends."""
        files = [] if '--config-file' in arguments else self._nova_files()
        done = subprocess.run(
            [f'{self.settings.venv}/bin/ghsched', 'server', 'set',
             server.id, *arguments, *files], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=150)
        text = (done.stderr + done.stdout).strip()
        self.checks.equal(f'status of {" ".join(arguments)}',
                          done.returncode, status)
        self._contains('its last line', text.splitlines()[-1], words)

    def _nova_files(self) -> list[str]:
        """Options that name the configuration of nova-manage."""
        return database.nova_manage(self.settings)[1:]

    def _holds(self, server: Any, values: dict[str, int]) -> None:
        """The group and the policy in both XMLs have these on one node."""
        node, = self._topology_nodes(server)
        self.checks.equal(
            f'values of node {node}', {
                line: self._values(server, line).get(node)
                for line in values}, values)
        name = self.lab.domain_name(server)
        for which in ([], ['--inactive']):
            policy = ElementTree.fromstring(  # noqa: S314 - libvirt's own
                self.lab.on_host('virsh', 'dumpxml', *which, name)).find(
                    'metadata/{*}policy/{*}node')
            seen = {} if policy is None else dict(policy.attrib)
            self.checks.equal(
                f'policy in the XML {" ".join(which)}', seen,
                {'host': str(node), 'min': str(values['MBMIN']),
                 'max': str(values['MB']), 'priority': str(values['MBPRI']),
                 'hardlimit': 'true' if values['MBHDL'] else 'false'})

    def _all_of(self, server: Any) -> dict[str, object]:
        """All that a change of the policy would change."""
        name = self.lab.domain_name(server)
        found = self.lab.server(server)
        return {
            'state': (found.status, found.task_state),
            'specs': dict(found.flavor.extra_specs),
            'allocations': self.lab.allocations(server),
            'schemata': self.lab.group(server).lines(),
            'xml': [hashlib.sha256(self.lab.on_host(
                'virsh', 'dumpxml', *which, name).encode()).hexdigest()[:12]
                for which in ([], ['--inactive'])]}

    def _refused(self, flavor: str, reason: str) -> None:
        """A server of a flavor finds no host, and the log says why."""
        with self.lab.log_of('nova-scheduler') as log:
            server = self.lab.boot('refused', flavor)
            fault = self.lab.fault(server)
            self.checks.equal('status', server.status, 'ERROR')
            self._contains('fault', fault, 'No valid host')
            self.checks.holds('scheduler\'s log', [
                line.partition('ghsched: ')[2] for line in log.lines(reason)],
                reason)
        self.checks.equal('allocations', self.lab.allocations(server), {})
        self.lab.delete(server)

    def _nothing_left(self, but: tuple[str, ...] = ()) -> None:
        """No group, no domain and nothing allocated is left."""
        self.checks.equal('left on the host and in Placement', {
            'control groups': [one.name for one in self.lab.groups()
                               if one.name not in but],
            'domains': self.lab.domains(),
            BANDWIDTH: [self._used(node) for node in (0, 1)],
            CONTROL_GROUP: self.lab.usage(
                self.lab.providers()[0]).get(CONTROL_GROUP, 0),
        }, {'control groups': [], 'domains': [], BANDWIDTH: [0, 0],
            CONTROL_GROUP: 0})

    def _fails(self, flavor: str, reason: str,
               foreign: tuple[str, ...] = ()) -> None:
        """A server ends in ERROR for a reason and leaves nothing behind.

        :param foreign: control groups that are not ours.
        """
        server = self.lab.boot('failing', flavor)
        self.checks.equal('status', server.status, 'ERROR')
        fault = self.lab.fault(server)
        self._contains('fault', fault, reason)
        self.checks.equal('allocations', self.lab.allocations(server), {})
        self._nothing_left(but=foreign)
        self.lab.delete(server)

    def _names_resctrl(self, server: Any) -> None:
        """The fault tells an admin what is missing.

        Either the host says it, or it was reported to Placement in time and
        the scheduler says which key no host can hold.
        """
        self._contains('fault', self.lab.fault(server), 'resctrl',
                       'no host can hold ghsched:mem_bw_min')

    def _contains(self, text: str, seen: str, *words: str) -> bool:
        """One of the words is in a text, which is shown in any case."""
        return self.checks.note(
            any(word in seen for word in words),
            f'{text}: {seen!r}, expected {" or ".join(words)}')

    @contextlib.contextmanager
    def _faults(self, faults: dict[str, object]) -> Iterator[None]:
        """A resctrl that does something wrong, for a while."""
        host.set_faults(self.settings, faults)
        try:
            yield
        finally:
            host.set_faults(self.settings, {})

    @contextlib.contextmanager
    def _without_resctrl(self) -> Iterator[None]:
        """A host without resctrl, until an admin has mounted it again."""
        host.control(self.settings, 'umount-resctrl')
        try:
            yield
        finally:
            host.control(self.settings, 'mount-resctrl')
            self._restart_compute(_GUARANTEE)

    @contextlib.contextmanager
    def _dialect(self, dialect: str) -> Iterator[None]:
        """A host with another kernel, for a while."""
        self._boot_host(dialect)
        try:
            yield
        finally:
            self.lab.clean()
            self._boot_host(host.DIALECT)

    @contextlib.contextmanager
    def _two_hosts(self) -> Iterator[None]:
        """A second host, for a while."""
        cli.up_with(self.settings, (ComputeHost(), ComputeHost(2)))
        try:
            yield
        finally:
            self.lab.clean()
            cli.up_with(self.settings, (ComputeHost(),))

    def _boot_host(self, dialect: str) -> None:
        host.down(self.settings)
        host.up(self.settings, dialect)
        self._restart_compute(
            *([_GUARANTEE] if dialect == host.DIALECT else []))

    def _has_new_threads(self, server: Any, before: Group) -> bool:
        now = self.lab.server(server)
        if now.status != 'ACTIVE' or now.task_state:
            return False
        return not set(self.lab.vcpu_threads(server)) & set(before.threads)

    def _restart(self, service: str) -> None:
        """Restart a service; what it says is shown if that fails."""
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                cli.restart(self.settings, [service])
        except CloudError:
            print(said.getvalue())
            raise

    def _restart_compute(self, *traits: str) -> None:
        """Restart nova-compute.

        It reports to Nova just before it updates Placement. Where something
        changed meanwhile, the update is waited for: when libvirt was away,
        Placement has the host as disabled until then.

        :param traits: of the host, once it is updated.
        """
        self._restart(_COMPUTE)
        self.lab.until(lambda: self._host_has(traits), 60,
                       'Placement does not have the host as it is now')

    def _host_has(self, traits: tuple[str, ...]) -> bool:
        seen = set(self.lab.traits(self.lab.providers()[0]))
        return _DISABLED not in seen and seen.issuperset(traits)

    @contextlib.contextmanager
    def _options(self, *options: tuple[str, str, str]) -> Iterator[None]:
        """Nova's services with other options, for a while."""
        for section, key, value in options:
            cli.set_option(self.settings, section, key, value)
        try:
            self._restart_compute()
            yield
        finally:
            self.lab.clean()
            for section, key, _value in options:
                cli.set_option(self.settings, section, key, None)
            self._restart_compute()

    @contextlib.contextmanager
    def _scheduler(self, *options: tuple[str, str, str]) -> Iterator[None]:
        """nova-scheduler alone with other options, for a while."""
        for section, key, value in options:
            cli.set_option(self.settings, section, key, value)
        try:
            self._restart(_SCHEDULER)
            yield
        finally:
            for section, key, _value in options:
                cli.set_option(self.settings, section, key, None)
            self._restart(_SCHEDULER)

    def _compute_reports(self) -> None:
        """Wait until nova-compute has libvirt again.

        Nova connects again when a periodic task next asks libvirt something,
        which may be half a minute later.
        """
        self.lab.until(
            lambda: all(one.state == 'up' and one.status == 'enabled'
                        for one in self.lab.cloud.compute.services(
                            binary=_COMPUTE)) and self._host_has(()), 180,
            'nova-compute does not come back')

    # -- killing nova-compute -------------------------------------------------

    def _kill_compute(self, moment: Callable[[Any], object]) -> None:
        server = self.lab.create('killed', 'bw-all')
        self.lab.until(lambda: moment(server), 60,
                       'the moment to kill nova-compute never came')
        process.kill(self.services[_COMPUTE])
        print(f'        killed; the server is {self.lab.server(server).status}'
              f' ({self.lab.server(server).task_state}), '
              f'groups {[one.name for one in self.lab.groups()]}')
        self._restart_compute()
        server = self.lab.wait(server)
        self.checks.holds('status after the restart', server.status,
                          'ERROR or ACTIVE')
        if server.status == 'ACTIVE':
            self.checks.equal('groups', len(self.lab.groups()), 1)
        self.lab.delete(server)
        self._nothing_left()
        self._active(self.lab.boot('next', 'bw-all'))

    def _is_being_written(self, server: Any) -> bool:
        """Whether a write for a guest is delayed just now.

        The emulator answers nobody while it delays one.
        """
        root = Path(f'/proc/{self.services[_COMPUTE].pid}/root')
        name = self.lab.domain_name(server)
        if not (root / f'run/libvirt/qemu/{name}.pid').exists():
            return False
        read = subprocess.run(
            ['timeout', '0.5', 'cat', str(root / 'sys/fs/resctrl/schemata')],
            stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return read.returncode == 124  # timeout's own, see timeout(1)

    # -- control groups of others ---------------------------------------------

    def _take_groups(self) -> tuple[str, ...]:
        """Make groups until the host has none left."""
        script = ('cd /sys/fs/resctrl; n=0; '
                  'while mkdir "foreign$n" 2>&-; do n=$((n+1)); done; echo $n')
        count = int(self.lab.on_host('sh', '-c', script))
        self.checks.equal('groups taken by others', count,
                          self.settings.control_groups - 1)
        return tuple(f'foreign{number}' for number in range(count))

    def _offered(self, count: int) -> None:
        """Wait until the host has told Placement of so many groups."""
        root = self.lab.providers()[0]

        def offered() -> int:
            record = self.lab.inventory(root).get(CONTROL_GROUP)
            return record['total'] - record['reserved'] if record else 0

        self.lab.until(
            lambda: offered() == count, 60,
            lambda: f'the host offers {offered()} control groups and not '
                    f'{count}')
        self.checks.equal('groups offered to guests', offered(), count)

    def _give_groups_back(self, taken: tuple[str, ...]) -> None:
        self.lab.on_host('sh', '-c', 'cd /sys/fs/resctrl && rmdir '
                         + ' '.join(taken))


def _words(lines: list[str], first: str) -> list[str]:
    """The other words of the first line that begins with a word."""
    for line in lines:
        head, *rest = line.split()
        if head == first:
            return rest
    return []


def _parts(xml: ElementTree.Element) -> list[tuple[str, dict[str, str]]]:
    """What a domain's XML says of bandwidth and NUMA nodes."""
    found = [xml.find('metadata'), xml.find('cputune'), xml.find('numatune')]
    return [(one.tag, dict(one.attrib)) for part in found if part is not None
            for one in part.iter() if 'nova' not in one.tag]


def run(tests: EndToEnd, names: list[str]) -> None:
    tests.prepare()
    for name in names:
        test = getattr(tests, f'test_{name}')
        begin = time.monotonic()
        print(f'\n== {name}: {test.__doc__} ==', flush=True)
        try:
            test()
            tests.lab.clean()
            tests._nothing_left()
        except Exception as error:
            if not isinstance(error, CloudError):
                traceback.print_exc()
            tests.checks.error(f'{name}: {error}')
            _tidy(tests)
        print(f'     {time.monotonic() - begin:.1f} s', flush=True)


def _tidy(tests: EndToEnd) -> None:
    """Give the next test a chance."""
    try:
        cli.up(tests.settings)
        tests.lab.clean()
    except Exception as error:
        print(f'        could not tidy up: {error}')


def main(kind: Any, runner: Callable[[Any, list[str]], None],
         names: list[str]) -> int:
    """Run a class of tests, all of them or some by name.

    :param kind: the class; a method's name without ``test_`` is a test's.
    :param runner: runs the tests of these names.
    :param names: tools/e2e.sh knows that there are such tests.
    """
    every = [name[5:] for name in vars(kind) if name.startswith('test_')]
    tests = kind(read())
    runner(tests, names or every)
    print(f'\n{tests.checks.passed} passed, {tests.checks.failed} failed')
    return 1 if tests.checks.failed else 0


if __name__ == '__main__':
    sys.exit(main(EndToEnd, run, sys.argv[1:]))

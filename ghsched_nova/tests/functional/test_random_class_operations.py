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

"""Random operations on servers with vCPU classes and a channel.

Real Placement and Nova, a fake libvirt and a kernel that notes what is
enforced. After each operation Placement's allocation, Nova's claim, the
domain's metadata and the control groups are compared class by class, with what
the flavor and the changes say. GHSCHED_CLASS_OPERATIONS=N takes N operations,
with the seed GHSCHED_CLASS_OPERATIONS_SEED.
"""

import contextlib
import os
import random
from typing import Any

import fixtures
from lxml import etree
from testtools import content

from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.guest_channel import class_moves
from ghsched_nova.features.live_change import records
from ghsched_nova.features.live_change import servers
from ghsched_nova.tests.fixtures import guest_memory
from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import test_lifecycle
from ghsched_nova.tests.functional import test_moves
from ghsched_placement.tests.fixtures import spaces

OPERATIONS = int(os.environ.get('GHSCHED_CLASS_OPERATIONS',
                                spaces.count(96)))
SEED = os.environ.get('GHSCHED_CLASS_OPERATIONS_SEED',
                      f'classes {spaces.number()}')

#: vCPUs of each guest NUMA node, vCPUs and guarantee of each class, and caps.
SHAPES: tuple[Any, ...] = (
    ([{0, 1}], {'latency': ({0}, 20), 'default': ({1}, 10)}, {}),
    ([{0, 1}], {'batch': ({1}, 0), 'default': ({0}, 15)}, {'batch': 40}),
    ([{0, 1}, {2, 3}],
     {'latency': ({0, 2}, 10), 'batch': ({3}, 5), 'default': ({1}, 5)}, {}))


class Server:
    """A server as it should be.

    :ivar minimums: guarantee of each class, which live changes change.
    :ivar members: vCPUs of each class, which the guest moves.
    """

    def __init__(self, uuid, shape):
        self.uuid = uuid
        self.nodes, self.classes, self.caps = shape
        self.minimums = {name: share for name, (_vcpus, share)
                         in self.classes.items()}
        self.restart()

    def restart(self):
        """Restore the classes of the flavor, as each start does."""
        self.members = {name: set(vcpus) for name, (vcpus, _share)
                        in self.classes.items()}

    def expected(self, name, node):
        """Return guarantee and cap of a class on a guest node."""
        if not self.classes[name][0] & self.nodes[node]:
            return 0, 100
        return self.minimums[name], self.caps.get(name, 100)


def read_list(text):
    """Return the numbers of a list such as 0-2,5."""
    found = set()
    for part in filter(None, text.split(',')):
        first, _dash, last = part.partition('-')
        found |= set(range(int(first), int(last or first) + 1))
    return found


class RandomClassOperationsTest(nova_base.GhschedTestCase):

    def setUp(self):
        super().setUp()
        self.flags(shelved_offload_time=0, shutdown_timeout=0,
                   rpc_response_timeout=1200, long_rpc_timeout=1200)
        self.useFixture(guest_memory.FakeMemory())
        self.useFixture(fixtures.MonkeyPatch(test_lifecycle.MOVE_DISK,
                                             test_moves.move_disk))
        self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.driver.LibvirtDriver.snapshot'))
        self.start_host('host_a')
        self.start_host('host_b')
        self.groups, self.guests = {}, {}
        self.chance = random.Random(SEED)  # noqa: S311
        enforce = self.kernel._enforce

        def note(domain, guest):
            enforce(domain, guest)
            self.groups[guest.domain.uuid, guest.vcpu_class] = (
                set(guest.vcpus),
                {line: dict(values) for line, values
                 in guest.desired.items()})

        self.kernel._enforce = note

    # -- operations -----------------------------------------------------------

    def boot_server(self):
        shape = self.chance.choice(SHAPES)
        nodes, classes, caps = shape
        keys = {'guest_channel': 'write', 'vcpu_classes': ','.join(
            f'{name}:{",".join(map(str, sorted(vcpus)))}'
            for name, (vcpus, _share) in classes.items()
            if name != 'default')}
        for name, (_vcpus, share) in classes.items():
            suffix = '' if name == 'default' else f'__{name}'
            keys[f'mem_bw_min{suffix}'] = share
        for name, cap in caps.items():
            keys[f'mem_bw_max__{name}'] = cap
        server = self.boot(self.flavor(
            vcpus=sum(map(len, nodes)), nodes=len(nodes), **keys))
        self.guests[server['id']] = Server(server['id'], shape)

    def change(self, server, guest):
        name = self.chance.choice(list(guest.minimums))
        share = self.chance.choice((5, 10, 15, 25))
        key = 'ghsched:mem_bw_min' + (
            '' if name == 'default' else f'.{name}')
        with contextlib.suppress(errors.Refused), (
                records.open_cell_context(guest.uuid)) as context:
            servers.change_server_policy(context, guest.uuid,
                                         {key: str(share)}, False)
            guest.minimums[name] = share

    def move_inside(self, server, guest):
        host_nodes = self.host_nodes(server)
        if len(host_nodes) == 1:
            with contextlib.suppress(errors.Refused), (
                    records.open_cell_context(guest.uuid)) as context:
                servers.move_server(context, guest.uuid,
                                    {0: 1 - host_nodes[0]}, False)

    def move_vcpus(self, server, guest):
        name = self.chance.choice(sorted(guest.classes.keys() - {'default'}))
        every = sorted(set().union(*guest.nodes))
        wanted = set(self.chance.sample(
            every, self.chance.randint(0, len(every))))
        driver = self.computes[self.host(server)].driver
        try:
            channels = next(part for feature, part in driver._hooks._hooks
                            if feature.name == 'guest_channel')
            channels._set_classes(
                guest.uuid, {name: ','.join(map(str, sorted(wanted)))})
        except class_moves.NotMovedError:
            return
        before = set(guest.members[name])
        for vcpus in guest.members.values():
            vcpus -= wanted
        rest = before - wanted
        guest.members[name] = wanted
        guest.members['default'] |= rest

    def reboot(self, server, guest):
        self._reboot_server(server, hard=True)
        guest.restart()

    def stop_and_start(self, server, guest):
        self._stop_server(server)
        self._start_server(server)
        guest.restart()

    def shelve(self, server, guest):
        self._shelve_server(server)
        self.assertEqual({}, self.resources(guest.uuid))
        self._unshelve_server(server)
        guest.restart()

    def live_migrate(self, server, guest):
        here = self.host(server)
        self.server, self.src = server, self.computes[here]
        self.dest, = (compute for name, compute in self.computes.items()
                      if name != here)
        self._live_migrate(server)
        # Until then Nova counts the server twice, or where it was deleted.
        self._run_periodics()

    def migrate(self, server, guest):
        self._migrate_server(server)
        self.chance.choice((self._confirm_resize, self._revert_resize))(
            server)
        guest.restart()

    def delete(self, server, guest):
        self._delete_server(server)
        del self.guests[guest.uuid]

    # -- the judge ------------------------------------------------------------

    def host(self, server):
        return self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']

    def allocated(self, guest):
        """Return percent by host node, and control groups, in Placement."""
        percent, groups = {}, 0
        for uuid, amounts in self.resources(guest.uuid).items():
            name = self.placement.get(
                f'/resource_providers/{uuid}').body['name']
            if 'CUSTOM_MEM_BW_PCT' in amounts:
                percent[int(name.rpartition('_NUMA')[2])] = (
                    amounts['CUSTOM_MEM_BW_PCT'])
            groups += amounts.get('CUSTOM_RESCTRL_GROUP', 0)
        return percent, groups

    def check(self, guest):
        server = self.api.get_server(guest.uuid)
        claimed = [cell.id for cell
                   in self.instance(server).numa_topology.cells]
        totals = {
            host: sum(guest.expected(name, node)[0] for name in guest.classes)
            for node, host in enumerate(claimed)}
        self.assertEqual(
            ({node: share for node, share in totals.items() if share},
             len(guest.classes)), self.allocated(guest))
        root = etree.fromstring(self.domain(self.host(server), server))
        shown = {}
        for one in root.iterfind('metadata/{*}policy/{*}class'):
            shown[one.get('name')] = (
                read_list(one.get('moved', one.get('vcpus'))),
                [int(node.get('min', 0)) for node in one.iterfind('{*}node')])
        self.assertEqual({name: (guest.members[name], [
            guest.expected(name, node)[0]
            for node in range(len(guest.nodes))])
            for name in guest.classes}, shown)
        for name in guest.classes:
            vcpus, values = self.groups[guest.uuid, name]
            self.assertEqual(guest.members[name], vcpus, name)
            for node, host in enumerate(claimed):
                self.assertEqual(
                    guest.expected(name, node),
                    (values['MBMIN'][host], values['MB'][host]), name)
        for host, total in totals.items():
            self.assertLessEqual(sum(
                self.groups[guest.uuid, name][1]['MBMIN'][host]
                for name in guest.classes), total)

    def take_operation(self):
        operations = (self.change, self.move_inside, self.move_vcpus,
                      self.move_vcpus, self.reboot, self.stop_and_start,
                      self.shelve, self.live_migrate, self.migrate,
                      self.delete)
        if len(self.guests) < self.chance.randint(1, 2):
            self.boot_server()
            return 'boot'
        guest = self.guests[self.chance.choice(sorted(self.guests))]
        operation = self.chance.choice(operations)
        operation(self.api.get_server(guest.uuid), guest)
        return f'{operation.__name__} {guest.uuid}'

    def test_all_records_agree_by_class_after_each_operation(self):
        done = []
        self.addDetail('operations', content.Content(
            content.UTF8_TEXT, lambda: ['\n'.join(done).encode()]))
        for _ in range(OPERATIONS):
            done.append(self.take_operation())
            for guest in self.guests.values():
                self.check(guest)
        self._run_periodics()
        for guest in self.guests.values():
            self.check(guest)

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

"""``flavor check`` and boots of random flavors in random clouds agree.

Real Placement, and Nova's scheduler, fit and claim. GHSCHED_CHECK_CLOUDS=N
draws N clouds, from the seed GHSCHED_CHECK_SEED on.

Nova refuses some guests of several NUMA nodes that fit, because it remembers
wrongly which host nodes it has tried (``tools/upstream/nova/0010``). For a
flavor without a key of ghsched the check then disagrees with the boot, if
Nova's own fit finds room when it is asked for each order of nodes afresh.
"""

from dataclasses import dataclass
import itertools
import json
import os
import random

import fixtures
from nova import context as nova_context
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt import hardware
from testtools import content

from ghsched_nova.tests.fixtures import guest_memory
from ghsched_nova.tests.fixtures import realtime
from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import openstack_base
from ghsched_nova.tests.functional import test_vfs
from ghsched_placement.features.flavor_check import flavor_check as flavor

CLOUDS = int(os.environ.get('GHSCHED_CHECK_CLOUDS', '2'))

SEED = int(os.environ.get('GHSCHED_CHECK_SEED', '271'))

#: Flavors that are checked and booted in a cloud.
STEPS = 6

#: CPUs of a host NUMA node, as the stand-in of the kernel has them.
CORES = 4

#: MiB of a host NUMA node.
MEMORY = 8192


@dataclass(frozen=True)
class Cloud:
    """Hosts with equal CPUs, and huge pages and PFs of their own.

    :param shared: CPUs of each node for guests that share them.
    :param pages: huge pages of each node by host, (2 MiB, 1 GiB).
    :param pfs: (node, VFs) of each PF by host.
    :param reserved: percent of each node's bandwidth that no guest gets.
    """

    shared: tuple[int, ...]
    cpu_ratio: float
    pages: tuple[tuple[tuple[int, int], ...], ...]
    pfs: tuple[tuple[tuple[int, int], ...], ...]
    reserved: tuple[int, ...]

    @property
    def nodes(self):
        return len(self.shared)

    def cpus(self, is_shared):
        """Return the text of CPUs for shared or dedicated use, or None."""
        return ','.join(
            str(CORES * node + cpu) for node, shared in enumerate(self.shared)
            for cpu in range(CORES) if (cpu < shared) == is_shared) or None


def draw_cloud(chance):
    """Return a random cloud of one or two hosts."""
    nodes, hosts = chance.choice((1, 2, 2, 3)), chance.choice((1, 2))
    each = range(nodes)
    return Cloud(
        tuple(chance.choice((0, 1, 2, 2, 3, 4)) for _node in each),
        chance.choice((1.0, 1.0, 1.5, 4.0)),
        tuple(tuple((chance.choice((0, 0, 256, 1024)),
                     chance.choice((0, 0, 1, 2))) for _node in each)
              for _host in range(hosts)),
        tuple(tuple((node, chance.choice((1, 2, 3))) for node in each
                    if chance.random() < .5)
              for _host in range(hosts)),
        tuple(chance.choice((0, 0, 20, 60)) for _node in each))


def draw_flavor(chance):
    """Return the arguments of GhschedTestCase.flavor for a random flavor."""
    nodes = chance.choice((0, 0, 1, 1, 2, 2, 3))
    vcpus = chance.choice((1, 2, 2, 3, 4, 6))
    if nodes:
        vcpus = nodes * max(1, vcpus // nodes)
    policy = chance.choice(('shared', 'dedicated', 'dedicated', 'mixed'))
    extra, keys = draw_cpus(chance, policy, vcpus), {}
    if not nodes and chance.random() < .8:
        keys['numa'] = 'auto'
        if chance.random() < .4:
            keys['numa_max'] = chance.choice((1, 2, 3, 4))
    if chance.random() < .3:
        extra['hw:mem_page_size'] = chance.choice(
            ('small', 'large', 'any', '2048', '1GB'))
    if nodes or keys:
        keys |= draw_keys(chance, nodes, policy)
    return {'vcpus': vcpus, 'nodes': nodes, 'policy': policy,
            'ram': (nodes or 1) * chance.choice(
                (64, 512, 1024, 1024, 2048, 3000, 6000)),
            'extra': extra, **keys}


def draw_cpus(chance, policy, vcpus):
    """Return extra specs of Nova on CPUs that suit a policy."""
    extra = {}
    if policy == 'mixed':
        extra['hw:cpu_dedicated_mask'] = chance.choice(
            ('0', f'^{vcpus - 1}'))
    if policy != 'shared' and chance.random() < .2:
        extra['hw:emulator_threads_policy'] = 'isolate'
    return extra


def draw_keys(chance, nodes, policy):
    """Return keys of ghsched for a flavor with guest NUMA nodes."""
    keys = {}
    if chance.random() < .5:
        keys['mem_bw_min'] = chance.choice((10, 30, 60, 90))
        if nodes > 1 and chance.random() < .3:
            keys['mem_bw_min__1'] = chance.choice((10, 50, 100))
    if chance.random() < .1:
        keys['mem_bw_burst'] = chance.choice((10, 30))
    if chance.random() < .2:
        keys['l3_ways'] = chance.choice((2, 8, 14))
    if chance.random() < .3:
        keys['vfs'] = (f'nic:{nodes * chance.choice((1, 1, 2))}' if nodes
                       else f'nic:{chance.choice((1, 2, 3, 4, 6))}')
        keys['vfs_locality'] = chance.choice(('node', 'node', 'socket', 'any'))
    if chance.random() < .25 and policy == 'shared':
        keys |= {'vcpu_scheduler': 'rr', 'vcpu_priority': 10,
                 'vcpu_runtime_us': chance.choice((2000, 4000, 8000)),
                 'vcpu_period_us': 10000}
    return keys


class RandomCloudsTest(openstack_base.CommandTestCase, test_vfs.VfsTestCase):

    def setUp(self):
        super().setUp()
        self.flags(ram_allocation_ratio=1.0, reserved_host_memory_mb=0)
        self.flags(realtime_shared_percent=50,
                   node_bandwidth={str(node): 10000 for node in range(4)},
                   bandwidth_bursts={'0': 40, '1': 40}, group='ghsched')
        self.useFixture(realtime.PermittedRealtime())
        self.useFixture(guest_memory.FakeMemory())
        self.kernel.divides_l3 = True
        self.servers = []

    def start_cloud(self, cloud):
        """Start the hosts, each with a small server, which reports them."""
        self.flags(cpu_shared_set=cloud.cpus(True),
                   cpu_dedicated_set=cloud.cpus(False), group='compute')
        self.flags(cpu_allocation_ratio=cloud.cpu_ratio)
        self.kernel.nodes = cloud.nodes
        self.kernel.write()
        for number, (pages, pfs) in enumerate(
                zip(cloud.pages, cloud.pfs, strict=True)):
            name = f'host_{number}'
            self.start_compute(
                name, pci_info=test_vfs.devices(*pfs),
                host_info=fakelibvirt.HostInfo(
                    cpu_nodes=cloud.nodes, cpu_sockets=1, cpu_cores=CORES,
                    cpu_threads=1, kB_mem=MEMORY * 1024 * cloud.nodes,
                    mempages=[fakelibvirt.create_mempages([
                        (4, (MEMORY - 2 * small - 1024 * large) * 256),
                        (2048, small), (1048576, large)])
                        for small, large in pages]))
        self.reserve(**{f'n{node}': percent for node, percent
                        in enumerate(cloud.reserved)})
        reporting = self.flavor(
            vcpus=1, ram=64, policy='shared' if sum(cloud.shared)
            else 'dedicated')
        for name in self.computes:
            self.boot(reporting, host=name)

    def check(self, wanted, host):
        """Return what flavor check says, by host; empty for a wrong flavor.
        """
        with fixtures.FakeLogger():
            _status, text = self.command(
                flavor.CheckFlavor, '-f', 'json', wanted,
                *(('--host', host) if host else ()))
        return {row['Host']: row for row in json.loads(text or '[]')}

    def try_boot(self, wanted, host):
        """Return a server that was started or refused; None if nova-api
        refuses it.
        """
        try:
            made = self.api.post_server({'server': self._build_server(
                flavor_id=wanted, networks='none', host=host)})
        except nova_base.ApiException as error:
            self.assertEqual(400, error.response.status_code)
            return None
        self.wait_until(lambda: self.api.get_server(
            made['id'])['status'] in ('ACTIVE', 'ERROR'))
        return self.api.get_server(made['id'])

    def is_refused_wrongly(self, asked, wanted, rows):
        """Return whether Nova's own fit finds room where Nova refused a guest.

        Only flavors without a key of ghsched can be refused so. Nova tries the
        orders of host nodes one after the other and forgets for which guest
        node it has tried one; here each order is tried alone.

        :param asked: arguments of the flavor.
        :param wanted: ID of the flavor.
        :param rows: what flavor check says, by host.
        """
        if set(asked) != {'vcpus', 'nodes', 'policy', 'ram', 'extra'}:
            return False
        context = nova_context.get_admin_context()
        guest = hardware.numa_get_constraints(
            objects.Flavor.get_by_flavor_id(context, wanted),
            objects.ImageMeta.from_dict({}))
        hosts = [objects.ComputeNode.get_first_node_by_host_for_old_compat(
            context, name) for name, row in rows.items() if row['Fits']]
        return len(guest or ()) > 1 and all(
            any(self.fits_in_order(cells, guest, objects.NUMATopologyLimits(
                cpu_allocation_ratio=host.cpu_allocation_ratio,
                ram_allocation_ratio=host.ram_allocation_ratio))
                for cells in itertools.permutations(
                    objects.NUMATopology.obj_from_db_obj(
                        host.numa_topology).cells, len(guest)))
            for host in hosts)

    def fits_in_order(self, cells, guest, limits):
        """Return whether each guest node fits on the host node of its place.

        Each pair is a host and a guest of one node, which have one order.
        """
        return all(hardware.numa_fit_instance_to_host(
            objects.NUMATopology(cells=[cell]), objects.InstanceNUMATopology(
                cells=[part.obj_clone()],
                emulator_threads_policy=guest.emulator_threads_policy
                if not number else None), {}, limits)
            for number, (cell, part) in enumerate(
                zip(cells, guest.cells, strict=True)))

    def compare(self, chance, asked):
        """Check a flavor and boot it, anywhere or on one host.

        :returns: whether it fits; None for a flavor that nova-api refuses.
        """
        host = chance.choice((None, *self.computes))
        try:
            wanted = self.flavor(**asked)
        except nova_base.ApiException as error:
            self.assertEqual(400, error.response.status_code)
            return None
        rows = self.check(wanted, host)
        fits = any(row['Fits'] for row in rows.values())
        server = self.try_boot(wanted, host)
        state = server and server['status']
        if fits and state == 'ERROR' and self.is_refused_wrongly(
                asked, wanted, rows):
            self._delete_server(server)
            return None
        self.assertEqual(fits, state == 'ACTIVE',
                         (asked, rows, server and server.get('fault')))
        if fits:
            self.assertTrue(
                rows[server['OS-EXT-SRV-ATTR:host']]['Fits'], (asked, rows))
            self.servers.append(server)
        elif server:
            self._delete_server(server)
        return fits if server else None

    def compare_in_cloud(self, seed, steps=STEPS):
        """Compare checks and boots in one cloud; return the answers."""
        chance, answers = random.Random(seed), []  # noqa: S311
        cloud = draw_cloud(chance)
        self.addDetail('cloud', content.text_content(f'seed {seed}: {cloud}'))
        self.start_cloud(cloud)
        while len(answers) < steps:
            answer = self.compare(chance, draw_flavor(chance))
            if answer is not None:
                answers.append(answer)
            if self.servers and chance.random() < .3:
                self._delete_server(self.servers.pop(
                    chance.randrange(len(self.servers))))
        return answers


def _make_test(seed):
    def test(self):
        self.compare_in_cloud(seed)
    return test


for _number in range(CLOUDS):
    setattr(RandomCloudsTest, 'test_check_of_random_flavors_agrees_with_boots'
            f'_in_cloud_{SEED + _number}', _make_test(SEED + _number))

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

"""The planner against a real Placement, and against one that is a cloud."""

import contextlib
import dataclasses
from http import server
import io
import itertools
import json
import logging
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import threading
import types
from unittest import mock

import fixtures
from keystoneauth1 import noauth
from keystoneauth1 import session
from openstack import connection

from ghsched_nova.cmd import main
from ghsched_nova.features.planner import density_command
from ghsched_nova.features.planner import hostfile
from ghsched_nova.features.planner import planner_hosts
from ghsched_nova.features.planner import planner_inputs
from ghsched_placement.features.planner import client
from ghsched_placement.features.planner import cloud
from ghsched_placement.features.planner import density
from ghsched_placement.features.planner import fill
from ghsched_placement.features.planner import flavors
from ghsched_placement.features.planner import need as needs
from ghsched_placement.features.planner.offer import Offers
from ghsched_placement.features.planner import plan
from ghsched_placement.features.planner.state import FilledHost
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.providers import tree
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures.placement_offers import PlacementOffers
from ghsched_placement.tests.fixtures import private_placement
from ghsched_placement.tests.fixtures import spaces

HOSTS = pathlib.Path(__file__).parents[3] / 'etc/ghsched/hosts'
ALIASES = {'nic': 'CUSTOM_PCI_15B3_1018'}
SETTINGS = plan.PlanSettings(aliases=ALIASES)
ONE_NODE = 'vcpus=2,ram=1024,hw:numa_nodes=1'


def host(name='kunpeng920', number=0, **changes):
    """Return a host of a file, with whole nodes of bandwidth."""
    file = hostfile.load_host_file(str(HOSTS / f'{name}.yaml'))
    return planner_hosts.make_planner_host(
        dataclasses.replace(file, **{'tree_config': tree.Config(), **changes}),
        f'host{number}')


def flavor(text, name='f'):
    return flavors.parse_flavor_argument(f'{name}:{text}')


def used(one, amounts):
    """A host with guests: amount by provider's place and class."""
    providers = list(one.providers)
    for (place, name), amount in amounts.items():
        before = providers[place]
        providers[place] = dataclasses.replace(
            before, used={**before.used, name: amount})
    return dataclasses.replace(one, providers=tuple(providers))


def place_of(one, node):
    return next(place for place, number in one.node_by_provider.items()
                if number == node)


class PlacementTestCase(base.TestCase):
    """Tests that share one Placement; each loads its own hosts."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.placement = cls.enterClassContext(
            private_placement.PrivatePlacement())

    def plan_host_capacity(self, *args, **kwargs):
        return plan.plan_host_capacity(
            *args, offers=PlacementOffers(self.placement), **kwargs)


#: A program that starts the private Placement, prints the PID of its process,
#: and sends a request whose answer takes minutes: 8! assignments of 8 request
#: groups to 8 providers for each of 3 hosts.
_KILLED = """
from ghsched_placement.tests.fixtures import private_placement
import uuid
AMOUNT = dict(total=9, reserved=0, min_unit=1, max_unit=9, step_size=1,
              allocation_ratio=1.0)
with private_placement.PrivatePlacement() as placement:
    roots = [str(uuid.uuid4()) for host in range(3)]
    placement.replace_providers([
        dict(uuid=uid, name=uid, parent=parent, used={}, traits=[],
             inventories={'VCPU': AMOUNT} if parent else {})
        for root in roots for uid, parent in [(root, None)] + [
            (str(uuid.uuid4()), root) for node in range(8)]])
    print(placement._process.pid, flush=True)
    placement.get('/allocation_candidates?group_policy=isolate&' + '&'.join(
        f'resources{group}=VCPU:1' for group in range(8)),
        microversion='1.39')
"""


class OrphanTest(base.TestCase):

    def test_private_placement_busy_ends_with_its_killed_parent(self):
        parent = subprocess.Popen([sys.executable, '-W', 'ignore', '-c',
                                   _KILLED], stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, 'PYTHONPATH':
                                       os.pathsep.join(sys.path)})
        self.addCleanup(parent.stdout.close)
        child = os.pidfd_open(int(parent.stdout.readline()))
        self.addCleanup(os.close, child)
        self.assertEqual(([], [], []), select.select([child], [], [], 2))
        parent.kill()
        parent.wait()
        ended, _, _ = select.select([child], [], [], 60)
        if not ended:
            signal.pidfd_send_signal(child, signal.SIGKILL)
        self.assertEqual([child], ended)


def draw_usage(chance, one):
    """Return a host of which some of each resource is used."""
    return dataclasses.replace(one, providers=tuple(
        dataclasses.replace(provider, used={
            name: int(record['total'] * chance.choice((0, 0, .2, .5, .9)))
            // int(record['step_size']) * int(record['step_size'])
            for name, record in provider.inventories.items()})
        for provider in one.providers))


def draw_flavor(chance):
    """Return a flavor with keys of ghsched and Nova at random."""
    nodes = chance.choice((1, 1, 2, 2, 3, 4))
    asked = {'hw:numa_nodes': str(nodes)}
    for key, values, share in (
            ('ghsched:mem_bw_min', (5, 10, 20, 45), .6),
            ('ghsched:vfs.0', ('nic:1', 'nic:2', 'nic:8', 'nic:40'), .3),
            ('hw:cpu_policy', ('dedicated',), .2),
            ('ghsched:mem_bw_burst', (10,), .1),
            ('trait:COMPUTE_NODE', ('required', 'forbidden'), .1),
            ('resources1:CUSTOM_MEM_BW_PCT', (5,), .1)):
        if chance.random() < share:
            asked[key] = str(chance.choice(values))
    if 'ghsched:vfs.0' in asked:
        asked['ghsched:vfs_locality'] = chance.choice(
            ('node', 'socket', 'any'))
    elif chance.random() < .1:
        asked = {'ghsched:numa': 'auto', 'ghsched:mem_bw_min': '10'}
    return flavors.Flavor('drawn', chance.choice((1, 4, 16)) * nodes,
                          chance.choice((512, 8192)) * nodes,
                          extra_specs=asked)


@spaces.run_sample
class ExactTest(PlacementTestCase):
    """The shortcuts against Placement asked for each guest by itself."""

    FLAVORS = (
        'vcpus=3,ram=3072,hw:numa_nodes=1,ghsched:mem_bw_min=13',
        'vcpus=8,ram=16384,hw:numa_nodes=2,ghsched:mem_bw_min.0=22,'
        'ghsched:mem_bw_min.1=31',
        'vcpus=4,ram=4096,hw:numa_nodes=1,ghsched:vfs=nic:7,'
        'ghsched:vfs_locality=socket,ghsched:mem_bw_max=80',
        'vcpus=6,ram=8192,hw:numa_nodes=2,ghsched:vfs=nic:5',
    )

    def one_by_one(self, need, state):
        """Claim guest after guest, with all that Placement offers then."""
        offers = PlacementOffers(self.placement)
        while True:
            offers.set_hosts([state])
            offered = (
                (way, state.find_host_nodes(need, way))
                for locality, sizes in need.yield_vf_request_variants(
                    lambda: offers.list_pfs_for_flavor(need))
                for way in offers.list_placements(need, locality, sizes)[0])
            found = next(((way, nodes) for way, nodes in offered
                          if nodes is not None), None)
            if found is None:
                return state.guests
            state.place_guest(need, *found)

    def test_the_count_is_the_same(self):
        chance = random.Random(5)  # noqa: S311
        one = host('kunpeng920-2nic')
        for text, _ in itertools.product(self.FLAVORS, range(2)):
            busy = used(one, {
                **{(place, 'CUSTOM_MEM_BW_PCT'): chance.randrange(60)
                   for place in one.node_by_provider},
                **{(place, ALIASES['nic']): chance.randrange(60)
                   for place in one.node_by_device_provider},
                (0, 'MEMORY_MB'): chance.randrange(400000)})
            need = needs.build_flavor_need(flavor(text), aliases=ALIASES)
            state = FilledHost(busy)
            fill.fill_each_host_with_flavor(
                PlacementOffers(self.placement), need, [state])
            self.assertEqual(self.one_by_one(need, FilledHost(busy)),
                             state.guests, text)
            self.assertGreater(state.guests, 0)

    def test_the_planner_offers_what_placement_offers(self):
        paths = sorted(HOSTS.glob('*.yaml'))
        placed = 0
        for number in spaces.choose(range(500)):
            chance = random.Random(number)  # noqa: S311
            one = draw_usage(chance, planner_hosts.make_planner_host(
                hostfile.load_host_file(str(chance.choice(paths))), 'h'))
            need = needs.build_flavor_need(
                draw_flavor(chance), aliases={'nic': chance.choice(
                    [name for provider in one.providers
                     for name in provider.inventories
                     if name.startswith('CUSTOM_PCI')] or ['CUSTOM_PCI_X'])})
            counts = []
            for offers in (Offers(), PlacementOffers(self.placement)):
                state = FilledHost(one)
                fill.fill_each_host_with_flavor(offers, need, [state])
                counts.append(state.guests)
            self.assertEqual(counts[1], counts[0], (number, need.flavor))
            placed += counts[0] > 0
        self.assertGreater(placed, len(spaces.choose(range(500))) // 5)

    def test_placement_refuses_the_next(self):
        need = needs.build_flavor_need(flavor(self.FLAVORS[0]))
        state = FilledHost(host())
        offers = PlacementOffers(self.placement)
        fill.fill_each_host_with_flavor(offers, need, [state])
        offers.set_hosts([state])
        self.assertEqual([[]], offers.list_placements(need, 'any', {}))

    def test_one_more_buys_what_a_larger_host_has(self):
        one = hostfile.load_host_file(str(HOSTS / 'kunpeng920.yaml'))
        (pf,) = one.pfs
        text = f'{ONE_NODE},ghsched:vfs=nic:9,ghsched:vfs_locality=node'
        counts = [self.plan_host_capacity(
            [host(pfs=(dataclasses.replace(pf, vfs=vfs),))], [flavor(text)],
            settings=SETTINGS).flavors[0] for vfs in (80, 81)]
        (more,) = counts[0].hosts[0].more
        self.assertEqual(counts[1].guests - counts[0].guests, more.guests)


class LoadTest(PlacementTestCase):
    """Providers written to Placement's tables, as its API returns them."""

    def test_hosts_are_read_as_they_were_loaded(self):
        one = host('kunpeng920-2nic')
        one = used(one, {(0, 'VCPU'): 7,
                         (place_of(one, 3), 'CUSTOM_MEM_BW_PCT'): 20})
        load(self.placement, [one])
        (found,) = cloud.read_compute_hosts(self.placement, workers=1)
        self.assertEqual(
            one.make_comparison_key()[1], found.make_comparison_key()[1])
        self.assertEqual(one.node_by_provider, found.node_by_provider)

    def test_more_than_one_guest_may_have_is_claimed_in_parts(self):
        # 320 CPUs, four times over: no consumer may have more than 320.
        need = needs.build_flavor_need(flavor('vcpus=300,ram=1024'))
        state = FilledHost(host())
        fill.fill_each_host_with_flavor(
            PlacementOffers(self.placement), need, [state])
        self.assertEqual(4, state.guests)


def load(placement, hosts):
    """Load a Placement with the providers of these hosts."""
    placement.replace_providers([
        {'uuid': one.uuid, 'name': one.name, 'parent': one.parent,
         'inventories': one.inventories, 'used': one.used,
         'traits': sorted(one.traits)}
        for each in hosts for one in each.providers])


class ReadOnly:
    """A cloud's client as openstacksdk's, which must not be written to."""

    def __init__(self, placement):
        self._placement = placement
        self.asked = []

    def get(self, url, *, microversion):
        self.asked.append(url)
        return self._placement.get(url, microversion=microversion)

    def _refused(self, *args, **kwargs):
        raise AssertionError(f'the cloud was written to: {args}')

    put = post = delete = patch = _refused


class CloudTest(PlacementTestCase):

    def setUp(self):
        super().setUp()
        one = host(number=0)
        self.hosts = [one, used(host(number=1), {
            (place_of(one, 0), 'CUSTOM_MEM_BW_PCT'): 50})]
        load(self.placement, self.hosts)
        self.client = ReadOnly(self.placement)

    def test_a_cloud_is_only_read_and_its_use_counts(self):
        found = plan.plan_cloud_capacity(self.client, [flavor(
            f'{ONE_NODE},ghsched:mem_bw_min=60')], {'f': 1})
        self.assertEqual(7, found.flavors[0].guests)
        self.assertEqual({'f': 7}, found.mix.guests)
        self.assertIn(plan.NO_CELLS.format('host0, host1'), found.notes)
        before = [one.make_comparison_key()[1] for one in self.hosts]
        self.assertEqual(before, [
            one.make_comparison_key()[1]
            for one in cloud.read_compute_hosts(self.placement, workers=1)])

    def test_cpus_of_numa_nodes_bind_where_the_cloud_reports_them(self):
        rooms = {host.root.uuid: (
            NodeCapacity(0, cpus=2, memory=65536), *(
                NodeCapacity(node, cpus=2, vcpus_used=1, memory=65536)
                for node in (1, 2, 3))) for host in self.hosts}
        found = plan.plan_cloud_capacity(self.client, [flavor(
            f'{ONE_NODE},ghsched:mem_bw_min=10')], rooms=rooms)
        self.assertEqual([1, 1], [one.guests * len(one.hosts)
                                  for one in found.flavors[0].hosts])
        self.assertIn('CPUs', {one.resource for one in
                               found.flavors[0].hosts[0].lacks})

    def test_a_host_that_takes_no_guest_does_not_count(self):
        one, other = (host.root.uuid for host in self.hosts)
        wanted = [flavor(f'{ONE_NODE},ghsched:mem_bw_min=60')]
        found = plan.plan_cloud_capacity(self.client, wanted, unavailable={
            one: 'nova-compute is down'})
        self.assertEqual(1, found.hosts)
        self.assertEqual('host0 does not count: nova-compute is down',
                         found.notes[0])
        self.assertIn('no host is left', str(self.assertRaises(
            client.PlannerError, plan.plan_cloud_capacity, self.client, wanted,
            unavailable={one: 'down', other: 'down'})))

    def test_only_compute_hosts_are_filled(self):
        load(self.placement, self.hosts)
        agent = dataclasses.replace(
            self.hosts[0].root, name='agent', inventories={},
            uuid='6e7c0d1e-65d5-5b55-9f0c-2a9f5f1f9d12',
            traits=frozenset())
        load(self.placement, [*self.hosts, dataclasses.replace(
            self.hosts[0], name='agent', providers=(agent,))])
        self.assertEqual(['host0', 'host1'], [
            one.name
            for one in cloud.read_compute_hosts(self.placement, workers=1)])

    def test_shared_disks_are_reported_and_not_asked_for(self):
        def without_disk(one):
            inventories = {name: record for name, record
                           in one.root.inventories.items()
                           if name != 'DISK_GB'}
            return dataclasses.replace(one, providers=(
                dataclasses.replace(one.root, inventories=inventories),
                *one.providers[1:]))
        pool = dataclasses.replace(
            self.hosts[0].root, name='pool',
            uuid='6e7c0d1e-65d5-5b55-9f0c-2a9f5f1f9d12',
            inventories={'DISK_GB':
                         self.hosts[0].root.inventories['DISK_GB']},
            traits=frozenset({'MISC_SHARES_VIA_AGGREGATE'}))
        load(self.placement, [
            *map(without_disk, self.hosts),
            dataclasses.replace(self.hosts[0], providers=(pool,))])
        found = plan.plan_cloud_capacity(self.client, [flavor(
            f'{ONE_NODE},disk=10,ghsched:mem_bw_min=60')])
        self.assertEqual(7, found.flavors[0].guests)
        self.assertIn('DISK_GB', found.notes[1])

    def test_a_provider_that_goes_meanwhile_is_not_there(self):
        lost = self.hosts[1].providers[-1].uuid
        read = self.client.get

        def get(url, *, microversion):
            # Placement answers 404 for what it does not know.
            return read(url.replace(f'{lost}/usages', f'{one}/usages'),
                        microversion=microversion)
        one = '6e7c0d1e-65d5-5b55-9f0c-2a9f5f1f9d13'
        self.client.get = get
        found = cloud.read_compute_hosts(self.client, workers=1)
        self.assertEqual([len(self.hosts[0].providers),
                          len(self.hosts[1].providers) - 1],
                         [len(each.providers) for each in found])

    def test_an_error_of_the_cloud_is_reported(self):
        error = self.assertRaises(client.PlannerError, client.get_json,
                                  self.client, '/nowhere')
        self.assertIn('GET /nowhere: 404', str(error))


class Service(fixtures.Fixture):
    """A Placement that is spoken to by HTTP.

    :ivar asked: method and path of each request.
    """

    def __init__(self, placement):
        super().__init__()
        self._placement, self.asked = placement, []

    def _setUp(self):
        ours = self

        class Handler(server.BaseHTTPRequestHandler):
            protocol_version = 'HTTP/1.1'

            def do_GET(self):
                ours.asked.append((self.command, self.path))
                version = self.headers.get('OpenStack-API-Version',
                                           'placement 1.0').split()[1]
                answer = ours._placement.get(self.path, microversion=version)
                body = answer.text.encode()
                self.send_response(answer.status_code)
                self.send_header('Content-Type', 'application/json')
                self.send_header('Content-Length', str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_PUT(self):
                ours.asked.append((self.command, self.path))
                self.send_error(403)

            do_POST = do_DELETE = do_PUT

            def log_message(self, *args):
                pass

        self._server = server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self._server.daemon_threads = True
        self.url = f'http://127.0.0.1:{self._server.server_port}'
        thread = threading.Thread(target=self._server.serve_forever,
                                  kwargs={'poll_interval': 0.01})
        thread.start()
        self.addCleanup(self._server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(self._server.shutdown)


class SdkTest(PlacementTestCase):
    """A cloud through openstacksdk, with its own sessions and threads."""

    def setUp(self):
        super().setUp()
        load(self.placement, [host(number=number) for number in range(3)])
        self.service = self.useFixture(Service(self.placement))
        self.connection = connection.Connection(session=session.Session(
            auth=noauth.NoAuth(endpoint=self.service.url)))
        self.addCleanup(self.connection.close)

    def run_plan(self, *arguments):
        out = io.StringIO()
        with mock.patch.object(planner_inputs, 'connect_cloud',
                               return_value=self.connection), (
                contextlib.redirect_stdout(out)):
            status = main.main(['plan', '--cloud', 'lab', '--flavor',
                                'bw60:vcpus=2,ram=8192,hw:numa_nodes=1,'
                                'ghsched:mem_bw_min=60', *arguments])
        return status, out.getvalue()

    def test_a_cloud_is_read_and_not_written_to(self):
        status, text = self.run_plan('--format', 'json')
        document = json.loads(text)
        self.assertEqual((0, 12), (status, document['flavors'][0]['guests']))
        self.assertEqual([plan.NO_CELLS.format('host0, host1, host2')],
                         document['notes'])
        self.assertEqual({'GET'}, {method for method, _ in
                                   self.service.asked})

    def test_densities_of_a_machine_that_is_named(self):
        _, text = self.run_plan('--machine', str(HOSTS / 'kunpeng920.yaml'))
        self.assertIn('Density of published test on kunpeng920 (simulated)',
                      text)

    def test_the_command_of_openstack_predicts_the_same(self):
        file = str(HOSTS / 'kunpeng920.yaml')
        _, text = self.run_plan('--machine', file, '--format', 'json')
        expected = [one['curves'] for one in json.loads(text)['densities']]
        asked = types.SimpleNamespace(
            placement=self.connection.placement,
            list_unavailable_nodes=lambda nodes: {},
            list_compute_nodes=dict, list_hosts=tuple, map_in_parallel=map,
            get_flavor=lambda name: types.SimpleNamespace(
                name=name, vcpus=2, ram=8192, disk=0, ephemeral=0, swap=0,
                extra_specs={'hw:numa_nodes': '1',
                             'ghsched:mem_bw_min': '60'}))
        out = io.StringIO()
        command = density_command.PlanDensity(types.SimpleNamespace(
            stdout=out, client_manager=types.SimpleNamespace(
                ghsched=asked)), None)
        told = self.useFixture(fixtures.FakeLogger(level=logging.WARNING))
        command.run(command.get_parser('plan').parse_args(
            ['--flavor', 'bw60', '--machine', file, '-f', 'json']))
        of_cloud, *found = json.loads(out.getvalue())
        self.assertEqual((12, []), (of_cloud['Guests'],
                                    of_cloud['Density (Simulated)']))
        self.assertEqual(['published test', 'bw60'],
                         [one['Flavor'] for one in found])
        for one, curves in zip(found, expected, strict=True):
            self.assertEqual(
                [(curve['density'], curve['first_failing'], curve['binds'])
                 for curve in curves],
                [(curve['density'], curve['first_failing'], curve['binds'])
                 for curve in one['Density (Simulated)']])
        self.assertIn('figures that were fitted', told.output)

    def test_a_cloud_that_does_not_answer(self):
        self.service._server.shutdown()
        self.service._server.server_close()
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            status, text = self.run_plan()
        self.assertEqual((2, ''), (status, text))
        self.assertIn('ghsched plan: Placement does not answer',
                      err.getvalue())


class CommandTest(base.TestCase):

    FLAVORS = ['--flavor', 'bw60:vcpus=2,ram=8192,hw:numa_nodes=1,'
               'ghsched:mem_bw_min=60',
               '--flavor', 'ref:vcpus=160,ram=245760,hw:numa_nodes=2,'
               'ghsched:vfs.0=nic:40,ghsched:mem_bw_min=50,'
               'ghsched:device_numa=preferred']

    def run_plan(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main.main(['plan', *arguments])
        return status, out.getvalue(), err.getvalue()

    def test_all_of_it(self):
        # However fast this machine is.
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_placement.features.planner.progress.DELAY', 0.0))
        picture = pathlib.Path(self.useFixture(fixtures.TempDir()).path,
                               'plan.svg')
        status, text, err = self.run_plan(
            '--hosts', f'{HOSTS}/kunpeng920.yaml*3', *self.FLAVORS,
            '--mix', 'bw60=2,ref=1', '--against',
            str(HOSTS / 'amd-epyc9755.yaml'), '--search', '--format', 'json',
            '--picture', str(picture), '--progress')
        document = json.loads(text)
        self.assertEqual(0, status)
        self.assertEqual([12, 6], [flavor['guests'] for flavor
                                   in document['flavors']])
        self.assertEqual({'bw60': 6, 'ref': 3}, document['mix']['guests'])
        published, plain, reference = document['densities']
        self.assertEqual('published test', published['subject'])
        self.assertEqual(28, published['curves'][0]['first_failing'])
        self.assertEqual(2, reference['search']['guests'])
        self.assertIn('(simulated)', picture.read_text())
        self.assertIn('density on kunpeng920, ref', err)
        self.assertIn('100 % done', err)
        self.assertEqual([density.NO_VFS], plain['notes'])
        self.assertEqual([64, 64, 4], [len(curve['points'])
                                       for curve in plain['curves']])

    def test_a_machine_that_is_named_is_filled_for_itself(self):
        _status, text, _err = self.run_plan(
            '--hosts', f'{HOSTS}/intel-2s.yaml', '--machine',
            str(HOSTS / 'kunpeng920.yaml'), '--flavor',
            'bw35:vcpus=4,ram=8192,hw:numa_nodes=1,ghsched:mem_bw_min=35',
            '--flavor', 'tiny:vcpus=1,ram=64,hw:numa_nodes=1',
            '--format', 'json', '--no-more')
        document = json.loads(text)
        self.assertEqual(0, document['flavors'][0]['guests'])
        self.assertEqual([64, 64, 8], [
            len(curve['points'])
            for curve in document['densities'][1]['curves']])
        self.assertRegex(document['notes'][-1],
                         'density of tiny on kunpeng920: not predicted')

    def test_a_machine_is_not_compared_with_itself(self):
        file = f'{HOSTS}/kunpeng920.yaml'
        asked = ('--hosts', file, *self.FLAVORS[:2], '--no-more', '--against')
        status, text, _err = self.run_plan(*asked, file)
        self.assertEqual(0, status)
        # A row and a heading, for the flavor alone.
        self.assertEqual(2, text.count('| kunpeng920, none '))
        other = pathlib.Path(self.useFixture(fixtures.TempDir()).path, 'x')
        other.write_text(pathlib.Path(file).read_text().replace(
            'value: 573.2', 'value: 574.2'))
        status, _text, err = self.run_plan(*asked, str(other))
        self.assertEqual(2, status)
        self.assertIn('two machines are called kunpeng920', err)

    def test_guests_lost_to_a_guarantee_are_shown(self):
        _status, text, _err = self.run_plan(
            '--hosts', f'{HOSTS}/kunpeng920.yaml', '--flavor',
            'g:vcpus=40,ram=65536,hw:numa_nodes=1,ghsched:vfs=nic:8,'
            'ghsched:vfs_locality=any,ghsched:mem_bw_min=80',
            '--format', 'json', '--no-more', '--search')
        found = json.loads(text)['densities'][1]
        self.assertEqual([64, 64, 32], [len(curve['points'])
                                        for curve in found['curves']])
        self.assertEqual(8, found['search']['guests'])
        self.assertGreater(found['search']['density'], 32)

    def test_no_density_is_predicted_unless_it_is_asked_for(self):
        asked = ('--hosts', f'{HOSTS}/kunpeng920.yaml', *self.FLAVORS[:2],
                 '--no-more', '--format', 'json')
        for option, count in ((), 0), (('--density',), 2):
            _status, text, _err = self.run_plan(*asked, *option)
            self.assertEqual(count, len(json.loads(text)['densities']))

    def test_hosts_whose_alias_is_another(self):
        status, text, err = self.run_plan(
            '--hosts', f'{HOSTS}/kunpeng920.yaml',
            f'{HOSTS}/amd-epyc9755.yaml', '--flavor', 'a:vcpus=4,ram=8192',
            '--format', 'json', '--no-more')
        self.assertEqual((0, ''), (status, err))
        self.assertEqual(64 + 128, json.loads(text)['flavors'][0]['guests'])

    def test_status_1_when_nothing_fits(self):
        status, text, _ = self.run_plan(
            '--hosts', str(HOSTS / 'intel-2s.yaml'), *self.FLAVORS[:2],
            '--no-more')
        self.assertEqual(1, status)
        self.assertIn('Flavor bw60: 0 more guests', text)
        self.assertIn('trait CUSTOM_GHSCHED_MEM_BW_MIN', text)

    def test_a_picture_on_standard_output(self):
        _, text, err = self.run_plan(
            '--hosts', f'{HOSTS}/kunpeng920.yaml', *self.FLAVORS[:2],
            '--format', 'svg')
        self.assertTrue(text.startswith('<?xml '))
        self.assertEqual('', err)

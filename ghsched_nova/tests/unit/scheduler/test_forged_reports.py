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

"""Forged reports of one compute host: requests get the other hosts.

Each field of each record is forged in turn (tests/fixtures/forged.py). The
index of hosts has a test of this kind in test_index_feed.py.
"""

import json

import fixtures
from nova import objects
from nova.scheduler import weights

from ghsched_nova.features.load import load_weigher
from ghsched_nova.features.packing import fragments
from ghsched_nova.features.packing import gradient_weigher
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import filters
from ghsched_nova.scheduler import unread_reports
from ghsched_nova.tests.fixtures import states
from ghsched_placement.features.index import headroom
from ghsched_placement.features.load import load
from ghsched_placement.features.packing import gradient
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import forged

UUIDS = {'good': '11111111-1111-1111-1111-111111111111',
         'evil': '22222222-2222-2222-2222-222222222222'}
_NODE = {'cpus': 4, 'vcpus': 0, 'memory': 1000, 'memory_free': 500,
         'cpu_load': .5, 'cpu_wait': .1, 'bandwidth': 1e9, 'capacity': 2e9,
         'memory_load': .5, 'memory_wait': .1, 'reclaim': 1., 'refaults': 1.,
         'remote': .1, 'io_load': .5, 'io_wait': .5,
         'bottlenecks': ['cpu_load']}
#: Records of an honest host in its stats, by key.
STATS = {
    load.KEY: {'version': 1, 'time': states.NOW, 'period': 60.0,
               'nodes': [{'node': node, **_NODE} for node in range(2)],
               'guests': []},
    headroom.KEY: {'version': 1, 'time': states.NOW, 'guests': 0, 'groups': 8,
                   'bandwidth': {'0': 100, '1': 50}, 'shape': 'x'}}
WEIGHERS = (load_weigher.GhschedLoadWeigher,
            gradient_weigher.GhschedGradientWeigher)
#: Extra specs of a guest with bandwidth, and of one with a topology only.
FLAVORS: tuple[dict[str, str], ...] = ({'ghsched:mem_bw_min': '30'}, {})
#: Calls that one request to two hosts takes at most, by forged records too.
MOST_CALLS = 60000


def make_host(name, stats=None, physnets=(), **cell):
    """Return a host whose nodes each have a candidate with bandwidth."""
    pages = objects.NUMAPagesTopology(size_kb=4, total=1024 * 256, used=0,
                                      reserved=0)
    state = states.host([states.cell(
        node, shared=0, pages=[pages],
        physnets={names.make_node_physnet(node), *physnets})
        for node in range(2)], name=name, uuid=UUIDS[name], stats={
            **{key: json.dumps(one) for key, one in STATS.items()},
            **(stats or {})}, limits={})
    for field, value in cell.items():
        # Fields that Nova's objects do not let be changed, too.
        setattr(state.numa_topology.cells[0], f'_obj_{field}', value)
    suffix = names.make_bandwidth_suffix(0)
    state.allocation_candidates = [{
        'allocations': {provider: {'resources': {names.MEM_BW_PCT: 30}}},
        'mappings': {suffix: [provider]}} for provider in (
            names.make_numa_provider_uuid(state.uuid, node)
            for node in range(2))]
    return state


def make_request(specs):
    spec = states.spec()
    spec.image = objects.ImageMeta(properties=objects.ImageMetaProps())
    spec.instance_uuid = UUIDS['good']
    spec.scheduler_hints, spec.requested_resources = {}, []
    spec.flavor.extra_specs = {'hw:numa_nodes': '1', **specs}
    return spec


def schedule(hosts, specs):
    """Return what a request gets of each host, and the hosts' order."""
    spec = make_request(specs)
    found = list(filters.GhschedNUMATopologyFilter().filter_all(hosts, spec))
    got = {one.host: (str(one.limits.get('numa_topology')),
                      one.allocation_candidates) for one in found}
    scores = {}
    for weigher in WEIGHERS:
        for one in weigher().weigh_objects(
                [weights.WeighedHost(host, 0.0) for host in found], spec):
            assert one == one, f'{weigher} gives no number'
    for one in found:
        if one.host == 'good':
            scores = [weigher()._weigh_object(one, spec)
                      for weigher in WEIGHERS]
    return got.get('good'), scores


def add_request_to_mix(test):
    conf = shared.config()
    conf.set_override('gradient_weight_multiplier', 1.0, group='ghsched')
    test.addCleanup(conf.clear_override, 'gradient_weight_multiplier',
                    group='ghsched')
    test.useFixture(fixtures.MonkeyPatch(
        'ghsched_nova.features.packing.fragments.MIX', gradient.Mix()))
    fragments.MIX.add_request(fragments.get_guest_demand(
        make_request(FLAVORS[0])))


#: Functions that put features into the state that they have in a cloud.
PREPARATIONS = (add_request_to_mix,)


class ForgedReportTest(base.TestCase):

    def setUp(self):
        super().setUp()
        states.stop_clock(self)
        self.log = self.useFixture(fixtures.FakeLogger())
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.scheduler.unread_reports.WARNINGS',
            unread_reports.Warnings()))
        for prepare in PREPARATIONS:
            prepare(self)
        self.honest = [schedule([make_host('good'), make_host('evil')], specs)
                       for specs in FLAVORS]

    def check(self, what, specs, evil):
        """Check that the good host is as if the other were honest."""
        found, calls = forged.count_calls(
            lambda: schedule([evil, make_host('good')], specs))
        self.assertEqual(self.honest[FLAVORS.index(specs)], found, what)
        self.assertLess(calls, MOST_CALLS, what)

    def test_honest_hosts_both_fit(self):
        for got, scores in self.honest:
            self.assertIsNotNone(got)
            self.assertEqual(len(WEIGHERS), len(scores))

    def test_forged_stats_cost_their_own_host_only(self):
        for key, record in STATS.items():
            for number, (what, text) in enumerate(forged.forge(record, 60)):
                self.check(f'{key}: {what}', FLAVORS[number % 2],
                           make_host('evil', {key: text}))

    def test_stats_that_are_no_records_cost_their_own_host_only(self):
        for key in STATS:
            for value in (*forged.VALUES[:10], '[' * 100000, ' ' * 2 ** 20,
                          '{"version": 1}', '9' * 5000):
                self.check(f'{key}: {value!r:.20}', FLAVORS[0],
                           make_host('evil', {key: value}))

    def test_forged_networks_cost_their_own_host_only(self):
        for name in ('ghsched-devices-of-', 'ghsched-order-',
                     'ghsched-nodes-', 'ghsched-numa'):
            for number in ('9' * 5000, '-1', '1e9', '\u00b2', '4' * 20, ''):
                for specs in FLAVORS:
                    self.check(name, specs, make_host(
                        'evil', physnets={name + number}))

    def test_forged_cells_cost_their_own_host_only(self):
        for field in ('memory', 'memory_usage', 'cpu_usage', 'id'):
            for value in (0, 10 ** 400, 2 ** 63, 10 ** 20):
                for specs in FLAVORS:
                    self.check(field, specs,
                               make_host('evil', **{field: value}))

    def test_host_that_raises_an_error_is_refused_with_a_warning(self):
        self.patch(filters.declared_filter, 'NODE_COSTS', (
            filters.declared_filter.NodeCost(rank_nodes=self._raise),))
        filter_ = filters.GhschedNUMATopologyFilter()
        for _time in range(3):
            found = list(filter_.filter_all(
                [make_host('evil'), make_host('good')],
                make_request(FLAVORS[0])))
            self.assertEqual(['good'], [one.host for one in found])
        self.assertEqual(1, self.log.output.count(
            'host evil: cannot read its report; refusing the host'))
        self.assertIn('its report cannot be read', self.log.output)

    @staticmethod
    def _raise(state):
        if state.host == 'evil':
            raise ZeroDivisionError('forged')
        return {}

    def test_host_that_raises_an_error_in_nova_does_not_pass(self):
        evil = make_host('evil')
        evil.numa_topology = 'forged'
        found = list(filters.GhschedNUMATopologyFilter().filter_all(
            [evil, make_host('good')], make_request(FLAVORS[1])))
        self.assertEqual(['good'], [one.host for one in found])
        self.assertIn('host evil: cannot read its report', self.log.output)


class WarningTest(base.TestCase):

    def test_there_is_one_warning_for_each_host_and_hour(self):
        log = self.useFixture(fixtures.FakeLogger())
        now = iter((0.0, 1.0, 2.0, 3601.0, 3602.0))
        warnings = unread_reports.Warnings(lambda: next(now))
        for host in ('a', 'b', 'a', 'a', 'a'):
            warnings.warn_once(host, ValueError('x'))
        self.assertEqual((2, 1), (log.output.count('host a:'),
                                  log.output.count('host b:')))

    def test_number_of_remembered_hosts_is_limited(self):
        self.useFixture(fixtures.FakeLogger())
        self.patch(unread_reports, '_MAX_HOSTS', 2)
        warnings = unread_reports.Warnings(lambda: 0.0)
        for host in 'abc':
            warnings.warn_once(host, ValueError('x'))
        self.assertEqual(['b', 'c'], list(warnings._warned))

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

import copy
import dataclasses
import types

import fixtures

from ghsched_nova.features.index import derived_candidates
from ghsched_nova.features.index.host_capacity import PfCapacity
from ghsched_nova.features.index.host_capacity import ReportedHost
from ghsched_nova.features.index.host_capacity import ReportedNode
from ghsched_nova.features.index.host_capacity import RequestNeed
from ghsched_nova.features.index.host_capacity import RequestNodeNeed
from ghsched_nova.features.index import host_index
from ghsched_nova.features.index import index_search
from ghsched_placement.features.index import headroom
from ghsched_placement.providers import names
from ghsched_placement.tests import base

TRAITS, CLASSES = ('T', 'OWNER_NOVA'), ('PCPU', 'CUSTOM_RESCTRL_GROUP')
SHAPE = headroom.hash_provider(TRAITS, CLASSES)
ROOT = {'PCPU': 4, 'CUSTOM_RESCTRL_GROUP': 1}

#: UUIDs of hosts.
FIRST, SECOND, THIRD = (f'{number}1111111-2222-4333-8444-555555555555'
                        for number in (1, 2, 3))

PARAMETERS = (('limit', '5'), ('resources', 'PCPU:4'),
              ('resources_x', 'CUSTOM_MEM_BW_PCT:30'))


def report(uuid, free=(50, 50), shape=SHAPE):
    return ReportedHost(
        uuid, uuid[:1], 'c', 1, tuple(
            ReportedNode(number, 8, 0, {0: 4096})
            for number in range(len(free))), has_driver=True,
        placement_headroom=headroom.Headroom(
            1., 0, 9, dict(enumerate(free)), shape))


def view(*args, **kwargs):
    return host_index.IndexedHost(report(*args, **kwargs)).view


def candidate(uuid, *nodes, share=30):
    """Return Placement's candidate for guest nodes on given host nodes."""
    allocations, mappings = {uuid: {'resources': ROOT}}, {'': [uuid]}
    for suffix, node in zip(('_x', '_y'), nodes, strict=False):
        provider = names.make_numa_provider_uuid(uuid, node)
        mappings[suffix] = [provider]
        taken = allocations.setdefault(provider, {'resources': {}})
        taken['resources'] = {names.MEM_BW_PCT: share + taken[
            'resources'].get(names.MEM_BW_PCT, 0)}
    return {'allocations': allocations, 'mappings': mappings}


def summaries(uuid, traits=TRAITS):
    return {uuid: {'traits': list(traits),
                   'resources': {name: {'capacity': 9, 'used': 0}
                                 for name in CLASSES}}}


def template(parameters=PARAMETERS, found=None):
    return derived_candidates.make_candidate_template(
        parameters, [found or candidate(FIRST, 1)], summaries(FIRST),
        report(FIRST))


class DeriveTest(base.TestCase):

    def test_candidates_of_a_host_of_the_same_shape_are_derived(self):
        self.assertEqual(
            [candidate(SECOND, 0), candidate(SECOND, 1)],
            derived_candidates.derive_candidates(template(), view(SECOND)))

    def test_nodes_without_the_bandwidth_are_left_out(self):
        self.assertEqual([candidate(SECOND, 1)],
                         derived_candidates.derive_candidates(
                             template(), view(SECOND, (29, 30))))

    def test_groups_of_two_nodes_have_a_node_each(self):
        two = (*PARAMETERS, ('resources_y', 'CUSTOM_MEM_BW_PCT:30'))
        first, expected = candidate(FIRST, 0, 1), [(0, 1), (1, 0)]
        for policy in ('none', 'isolate'):
            made = template((*two, ('group_policy', policy)), first)
            self.assertEqual(
                [candidate(SECOND, *nodes) for nodes in expected],
                derived_candidates.derive_candidates(
                    made, view(SECOND, (60, 59))))

    def test_nothing_is_derived_for_another_or_an_unknown_shape(self):
        for shape in (None, headroom.hash_provider(TRAITS[:1], CLASSES),
                      headroom.hash_provider(TRAITS, CLASSES[:1])):
            self.assertEqual([], derived_candidates.derive_candidates(
                template(), view(SECOND, shape=shape)))

    def test_too_many_combinations_are_not_derived(self):
        self.patch(derived_candidates, 'MAX_COMBINATIONS', 1)
        self.assertEqual([], derived_candidates.derive_candidates(
            template(), view(SECOND)))

    def test_no_template_if_a_provider_or_a_parameter_is_unknown(self):
        pf = candidate(FIRST, 1)
        pf['allocations']['pf'] = {'resources': {'VF': 1}}
        pf['mappings']['_vf'] = ['pf']
        shared = candidate(FIRST, 1)
        shared['allocations']['storage'] = {'resources': {'DISK_GB': 1}}
        shared['mappings'][''].append('storage')
        for parameters, found in (
                (PARAMETERS, pf), (PARAMETERS, shared),
                ((*PARAMETERS, ('same_subtree', '_x,_y')), None),
                ((*PARAMETERS, ('required_z', 'T')), None),
                ((('limit', '5'), ('resources_x', 'CUSTOM_L3_WAYS:3')), None)):
            self.assertIsNone(template(parameters, found))

    def test_a_guest_without_bandwidth_has_the_compute_node_only(self):
        found = candidate(FIRST)
        self.assertEqual(
            [candidate(SECOND)], derived_candidates.derive_candidates(
                template(PARAMETERS[:2], found), view(SECOND)))


VF, VF_CLASS = ('15b3', '101e'), 'CUSTOM_PCI_15B3_101E'
VF_PARAMETERS = (*PARAMETERS, ('resources_y', 'CUSTOM_MEM_BW_PCT:30'),
                 ('resources_vx', f'{VF_CLASS}:2'),
                 ('resources_vy', f'{VF_CLASS}:3'),
                 ('same_subtree', '_vx,_x'), ('same_subtree', '_y,_vy'))


def pf_report(uuid, *free, **kwargs):
    """Return the report of a host with a PF on each NUMA node."""
    row = report(uuid, **kwargs)
    return dataclasses.replace(
        row, nodes=tuple(
            dataclasses.replace(node, devices={VF: count})
            for node, count in zip(row.nodes, free, strict=True)),
        pfs=tuple(PfCapacity(f'{uuid[:1]}-pf{node}', node, VF, count)
                  for node, count in enumerate(free)))


def vf_candidate(uuid, *nodes):
    found = candidate(uuid, *nodes)
    for suffix, node, count in zip(('_vx', '_vy'), nodes, (2, 3),
                                   strict=True):
        pf = f'{uuid[:1]}-pf{node}'
        found['mappings'][suffix] = [pf]
        taken = found['allocations'].setdefault(pf, {'resources': {}})
        taken['resources'][VF_CLASS] = count + taken['resources'].get(
            VF_CLASS, 0)
    return found


def vf_summaries(uuid):
    return {**summaries(uuid), **{
        f'{uuid[:1]}-pf{node}': {
            'traits': list(derived_candidates.PF_TRAITS),
            'resources': {VF_CLASS: {'capacity': 8, 'used': 0}},
            'parent_provider_uuid': names.make_numa_provider_uuid(uuid, node)}
        for node in (0, 1)}}


class DeriveVfsTest(base.TestCase):
    """Guests of two NUMA nodes that need 2 and 3 VFs."""

    def template(self, parameters=VF_PARAMETERS, found=None, row=None,
                 answer=None):
        return derived_candidates.make_candidate_template(
            parameters, [found or vf_candidate(FIRST, 0, 1)],
            answer or vf_summaries(FIRST), row or pf_report(FIRST, 8, 8))

    def derive(self, row, need=None):
        host = host_index.IndexedHost(row)
        if need is not None:
            host.add_claim('guest', need, 0.)
        return derived_candidates.derive_candidates(self.template(), host.view)

    def test_derive_names_the_pfs_of_the_other_host(self):
        self.assertEqual(
            [vf_candidate(SECOND, 0, 1), vf_candidate(SECOND, 1, 0)],
            self.derive(pf_report(SECOND, 8, 8)))

    def test_derive_omits_pfs_without_enough_vfs(self):
        self.assertEqual([vf_candidate(SECOND, 0, 1)],
                         self.derive(pf_report(SECOND, 2, 3)))
        self.assertEqual([], self.derive(pf_report(SECOND, 2, 2)))

    def test_derive_omits_pfs_of_another_class_or_node(self):
        row = pf_report(SECOND, 8, 8)
        for values in ({'device': ('15b3', '1018')}, {'node': 7}):
            self.assertEqual([], self.derive(dataclasses.replace(
                row, pfs=(row.pfs[0],
                          dataclasses.replace(row.pfs[1], **values)))))

    def test_derive_with_isolated_groups_uses_a_pf_once(self):
        parameters = (*VF_PARAMETERS[:3], ('resources_vx', f'{VF_CLASS}:1'),
                      ('resources_vy', f'{VF_CLASS}:1'),
                      ('same_subtree', '_vx,_vy,_x'))
        found = candidate(FIRST, 0)
        found['mappings'].update(_vx=['1-pf0'], _vy=['1-pf0'])
        found['allocations']['1-pf0'] = {'resources': {VF_CLASS: 2}}
        host = host_index.IndexedHost(pf_report(SECOND, 8, 8)).view
        for policy, count in (('none', 2), ('isolate', 0)):
            made = self.template((*parameters, ('group_policy', policy)),
                                 found)
            self.assertEqual(count, len(
                derived_candidates.derive_candidates(made, host)))

    def test_derive_subtracts_vfs_of_guests_placed_since_the_report(self):
        need = RequestNeed((RequestNodeNeed(pinned=1, devices=((VF, 6),)),))
        row = pf_report(SECOND, 8, 4)
        # The guest is on the first node, which has 2 VFs left.
        self.assertEqual([vf_candidate(SECOND, 0, 1)], self.derive(row, need))

    def test_derive_with_too_many_combinations_of_pfs_returns_none(self):
        row = pf_report(SECOND, 8, 8)
        more = tuple(dataclasses.replace(row.pfs[0], provider=f'more{number}')
                     for number in range(20))
        self.assertEqual([], self.derive(
            dataclasses.replace(row, pfs=row.pfs + more)))

    def test_template_of_pfs_that_differ_in_placement_is_none(self):
        self.assertIsNotNone(self.template())
        for key, value in (('traits', [names.OWNER_TRAIT]),
                           ('parent_provider_uuid', FIRST),
                           ('resources', {'CUSTOM_FAST': {}})):
            answer = copy.deepcopy(vf_summaries(FIRST))
            answer['1-pf1'][key] = value
            self.assertIsNone(self.template(answer=answer))
        answer = vf_summaries(FIRST)
        del answer['1-pf1']
        self.assertIsNone(self.template(answer=answer))

    def test_template_of_unknown_pfs_or_groups_is_none(self):
        row = pf_report(FIRST, 8, 8)
        self.assertIsNone(self.template(
            row=dataclasses.replace(row, pfs=row.pfs[:1])))
        for parameters in (
                VF_PARAMETERS[:-1],
                (*VF_PARAMETERS, ('same_subtree', '_x,_y')),
                (*VF_PARAMETERS, ('resources_z', 'CUSTOM_FAST:1'))):
            self.assertIsNone(self.template(parameters))


class AnsweringClient:
    """Placement that has the same candidate on each host; counts queries."""

    def __init__(self, hosts=(FIRST, SECOND, THIRD)):
        self.hosts = {uuid: candidate(uuid, 1) for uuid in hosts}
        self.asked, self.summaries = [], summaries

    def get(self, url, **_kwargs):
        (uuid,) = (one for one in (FIRST, SECOND, THIRD) if one in url)
        self.asked.append(uuid)
        found = [self.hosts[uuid]] if uuid in self.hosts else []
        body = {'allocation_requests': found,
                'provider_summaries': self.summaries(uuid)}
        return types.SimpleNamespace(status_code=200, json=lambda: body)


class CollectTest(base.TestCase):
    """Number of queries to Placement for a request."""

    def setUp(self):
        super().setUp()
        self.views = [view(uuid) for uuid in (FIRST, SECOND, THIRD)]
        self.index = host_index.Index()
        self.client = AnsweringClient()
        self.search = index_search.Search(
            None, RequestNeed((RequestNodeNeed(pinned=1),)))
        self.templates = derived_candidates.make_template_cache()

        def propose(*_args):
            views = [one for one in self.views
                     if one.row.uuid not in self.search.tried]
            self.search.attempts += len(views)
            self.search.states = {one.row.uuid: 1 for one in views}
            self.search.tried.update(self.search.states)
            return views
        self.patch(index_search, '_propose_hosts', propose)
        self.context = types.SimpleNamespace(global_id='g')

    def collect(self, traits='', parameters=PARAMETERS):
        query = '&'.join(f'{name}={value}' for name, value in parameters)
        resources = types.SimpleNamespace(
            to_querystring=lambda: f'{query}&root_required=T{traits}')
        self.index.update_hosts([one.row for one in self.views], (), 0.)
        found, hosts, _version = index_search.get_allocation_candidates(
            self.search, self.index, self.client, None, self.context,
            resources, self.templates)
        self.search.asked = False
        return found, set(hosts)

    def test_one_query_finds_candidates_of_three_hosts(self):
        found, hosts = self.collect()
        self.assertEqual([FIRST], self.client.asked)
        self.assertLessEqual({FIRST, SECOND, THIRD}, hosts)
        self.assertIn(candidate(THIRD, 0), found)

    def collect_with_vfs(self, trait=names.OWNER_TRAIT):
        hosts = (FIRST, SECOND, THIRD)
        self.views[:] = [host_index.IndexedHost(pf_report(uuid, 8, 8)).view
                         for uuid in hosts]
        self.client.hosts = {uuid: vf_candidate(uuid, 0, 1) for uuid in hosts}
        self.patch(self.client, 'summaries', lambda uuid: {
            **vf_summaries(uuid), **{
                f'{uuid[:1]}-pf{node}': {
                    **vf_summaries(uuid)[f'{uuid[:1]}-pf{node}'],
                    'traits': [*derived_candidates.PF_TRAITS, 'CUSTOM_FAST']}
                for node in (0, 1)}})
        return self.collect(f'&required_vx={trait}&required_vy={trait}',
                            VF_PARAMETERS)

    def test_one_query_finds_candidates_with_vfs_of_three_hosts(self):
        found, _hosts = self.collect_with_vfs()
        self.assertEqual([FIRST], self.client.asked)
        self.assertIn(vf_candidate(THIRD, 1, 0), found)

    def test_hosts_are_asked_about_if_pfs_need_a_trait_of_an_alias(self):
        self.collect_with_vfs('CUSTOM_FAST')
        self.assertEqual([FIRST, SECOND, THIRD], self.client.asked)

    def test_hosts_that_report_no_shape_are_asked_about(self):
        self.views[1:] = [view(SECOND, shape=None), view(THIRD, shape='x')]
        self.collect()
        self.assertEqual([FIRST, SECOND, THIRD], self.client.asked)

    def test_one_host_is_asked_about_if_no_alternate_is_wanted(self):
        self.views[1:] = [view(SECOND, shape=None), view(THIRD, shape=None)]
        self.search.wanted = 1
        self.collect()
        self.assertEqual([FIRST], self.client.asked)
        # The others are proposed again if the first is refused.
        self.assertEqual(({FIRST}, {FIRST}, 1), (
            set(self.search.states), self.search.tried, self.search.attempts))

    def test_the_next_host_is_asked_about_if_the_first_has_no_candidate(self):
        del self.client.hosts[FIRST]
        _found, hosts = self.collect()
        self.assertEqual([FIRST, SECOND], self.client.asked)
        self.assertLessEqual({SECOND, THIRD}, hosts)

    def test_required_traits_of_granular_groups_are_asked_for(self):
        for uuid in self.client.hosts:
            provider = names.make_numa_provider_uuid(uuid, 1)
            self.client.hosts[uuid]['mappings']['_x'] = [provider]
        self.patch(index_search, 'filter_by_traits',
                   lambda _query, answer, _uuid: answer['allocation_requests'])
        self.collect('&required_x=CUSTOM_T')
        self.assertEqual([FIRST, SECOND, THIRD], self.client.asked)

    def search_again(self):
        """Search for an equal request, without the hosts of the last one."""
        self.client.asked.clear()
        self.search = index_search.Search(None, self.search.need)
        return self.collect()

    def test_later_requests_ask_about_no_host_until_the_template_is_old(self):
        self.collect()
        found, hosts = self.search_again()
        self.assertEqual([], self.client.asked)
        self.assertIn(candidate(FIRST, 0), found)
        self.assertLessEqual({FIRST, SECOND, THIRD}, hosts)
        self.useFixture(fixtures.MonkeyPatch(
            'time.monotonic', lambda: derived_candidates.TEMPLATE_AGE * 1e9))
        self.search_again()
        self.assertEqual([FIRST], self.client.asked)

    def test_later_requests_of_another_kind_ask_again(self):
        self.collect()
        self.search = index_search.Search(None, self.search.need)
        self.collect(parameters=(*PARAMETERS[:2],
                                 ('resources_x', 'CUSTOM_MEM_BW_PCT:20')))
        self.assertEqual([FIRST, FIRST], self.client.asked)

    def test_summaries_of_derived_hosts_have_all_that_is_counted(self):
        row = pf_report(SECOND, 8, 3)
        found = index_search._summarize_free_amounts(
            host_index.IndexedHost(row).view)
        self.assertEqual(
            {SECOND: 9, '2-pf0': 8, '2-pf1': 3,
             names.make_numa_provider_uuid(SECOND, 0): 50,
             names.make_numa_provider_uuid(SECOND, 1): 50},
            {uuid: next(iter(summary['resources'].values()))['capacity']
             for uuid, summary in found.items() if summary})


class ServersTest(base.TestCase):
    """Hosts for several servers of one request."""

    def count(self, servers, policy=None, free=(50, 50)):
        spec = Spec(instance_group=types.SimpleNamespace(
            policy=policy)) if policy else Spec()
        search = index_search.Search(
            spec, RequestNeed((RequestNodeNeed(pinned=3, bandwidth=20),)),
            servers=servers)
        return search.count_servers(view(SECOND, free))

    def test_host_holds_as_many_servers_as_fit(self):
        # Two of 3 CPUs and 20 % on each node.
        self.assertEqual([1, 3, 4, 4], [
            self.count(servers) for servers in (1, 3, 4, 9)])
        self.assertEqual(3, self.count(9, free=(50, 39)))

    def test_host_holds_one_server_of_a_group_with_anti_affinity(self):
        self.assertEqual(1, self.count(4, 'anti-affinity'))
        self.assertEqual(4, self.count(4, 'soft-anti-affinity'))

    def test_more_hosts_are_proposed_for_more_servers(self):
        self.assertEqual([3, 6, host_index.POOL], [
            index_search.Search(None, RequestNeed(()), servers=servers).batch
            for servers in (1, 4, 99)])


class Spec(dict):
    """Request with fields as attributes, which may be missing."""

    __getattr__ = dict.__getitem__

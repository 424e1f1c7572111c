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

"""Resources that a guest needs and no host of the cloud has."""

from unittest import mock

from ghsched_placement.fit import cloud_lack
from ghsched_placement.flavor.policy import parse_policy
from ghsched_placement.query.vfs import Pf
from ghsched_placement.tests import base


class Cloud:
    """Answers like Placement for one kind of host."""

    def __init__(self, most=40, groups=1, traits=(), where_shared=0, step=1):
        self.step = step
        self.most, self.groups, self.traits = most, groups, traits
        self.where_shared, self.asked = where_shared, 0

    def __call__(self, query):
        self.asked += 1
        query = dict(query)
        trait = query.get('root_required')
        if trait is not None:
            return trait in self.traits
        name, _, amount = query['resources'].partition(':')
        shared = 'SHARES' in query.get('required', '')
        have = {'CUSTOM_MEM_BW_BURST_PCT': 12, 'MEMORY_MB': 1,
                'CUSTOM_MEM_BW_PCT': self.where_shared if shared
                else self.most,
                'CUSTOM_RT_CPU_PERMILLE': 10 * self.most,
                'CUSTOM_RESCTRL_GROUP': self.groups}[name]
        step = self.step if name == 'CUSTOM_MEM_BW_PCT' else 1
        return have >= int(amount) and int(amount) % step == 0


MIN = 'CUSTOM_GHSCHED_MEM_BW_MIN'


class FindTest(base.TestCase):

    def find_by(self, ask, **keys):
        cloud = mock.Mock(side_effect=ask, most=40)
        return self.find(cloud, **keys)

    def find(self, cloud, nodes=(), joins=False, **keys):
        policy = parse_policy({f'ghsched:{key}': str(value)
                               for key, value in keys.items()}, 2)
        queries = cloud_lack.CloudQueries(
            cloud, joins=joins,
            nodes=lambda: nodes or [Pf('a', 'a', cloud.most)] * 2)
        return cloud_lack.find_refusal_reasons(policy, 'min', queries)

    def test_a_full_cloud_is_reported_with_the_share_and_the_most_left(self):
        (found,) = self.find(Cloud(traits={MIN}), mem_bw_min=60)
        self.assertEqual('no host NUMA node has 60 % of its memory bandwidth '
                         'free (ghsched:mem_bw_min)', found.reason)
        self.assertIn('most free on one node is 40 %', str(found))

    def test_trait_of_hosts_without_free_memory_is_not_missing(self):
        def ask(query):
            name, _, amount = dict(query)['resources'].partition(':')
            return name != 'MEMORY_MB' and int(amount) <= 50
        found, *_others = self.find_by(ask, mem_bw_min=60)
        self.assertIn('no host NUMA node has 60 %', found.reason)
        found, *_others = self.find_by(lambda _query: False, mem_bw_min=60)
        self.assertIn('no host NUMA node has 60 %', found.reason)
        (found,) = self.find_by(
            lambda query: 'VCPU:1' in dict(query)['resources']
            and 'root_required' not in dict(query), mem_bw_min=60)
        self.assertEqual('no host can hold ghsched:mem_bw_min', found.reason)

    def test_a_share_between_two_steps_is_reported_with_the_next_one(self):
        (found,) = self.find(Cloud(traits={MIN}, step=4), mem_bw_min=25)
        self.assertEqual(
            'no host NUMA node with 25 % of its memory bandwidth free can '
            'hold that share exactly (ghsched:mem_bw_min)', found.reason)
        self.assertIn('; one can hold 28 %', str(found))

    def test_real_time_that_no_node_has_left_is_reported_with_its_key(self):
        policy = parse_policy({
            'hw:numa_nodes': '1', 'hw:cpu_policy': 'shared',
            'ghsched:vcpu_scheduler': 'rr', 'ghsched:vcpu_runtime_us': '500',
            'ghsched:vcpu_period_us': '1000'}, 1, 2)
        for most, cure in ((99, ''), (0, '[ghsched]realtime_shared_percent')):
            (found,) = cloud_lack.find_refusal_reasons(
                policy, 'min', cloud_lack.CloudQueries(Cloud(
                    most=most, traits={'CUSTOM_GHSCHED_VCPU_REALTIME'})))
            self.assertEqual(
                'no host NUMA node has 1000 thousandths of a shared CPU for '
                'real-time vCPUs free (ghsched:vcpu_runtime_us)',
                found.reason)
            self.assertIn(f'node is {10 * most}', found.detail)
            self.assertIn(cure, found.cure)

    @base.needs_features('bursts')
    def test_bursts_that_no_node_has_left(self):
        (found,) = self.find(Cloud(traits={MIN}), mem_bw_burst=30)
        self.assertEqual('no host NUMA node has 30 % of its memory bandwidth '
                         'for bursts free (ghsched:mem_bw_burst)',
                         found.reason)
        self.assertIn('most free on one node is 12', str(found))
        (found,) = self.find(Cloud(), mem_bw_burst=30)
        self.assertIn('no host can hold ghsched:mem_bw_burst', found.reason)

    def test_figures_of_the_cloud_stay_out_of_the_reason(self):
        (found,) = self.find(Cloud(traits={MIN}), mem_bw_min=60)
        self.assertNotIn('40', found.reason)

    def test_the_most_left_is_exact(self):
        for most in range(60):
            (found,) = self.find(Cloud(most=most, traits={MIN}),
                                 mem_bw_min=60)
            self.assertIn(f'node is {most} %', found.detail)

    def test_a_missing_capability_comes_before_everything_else(self):
        (found,) = self.find(Cloud(most=0, groups=0), mem_bw_min=60)
        self.assertEqual('no host can hold ghsched:mem_bw_min', found.reason)
        self.assertIn('is resctrl mounted', found.cure)

    def test_resctrl_is_no_cure_for_what_needs_none(self):
        (found,) = self.find(Cloud(most=100, groups=1),
                             guest_channel='read')
        self.assertEqual('no host can hold ghsched:guest_channel; none has '
                         'the trait CUSTOM_GHSCHED_GUEST_CHANNEL', str(found))

    def test_control_groups_that_ran_out(self):
        (found,) = self.find(Cloud(most=100, groups=0, traits={MIN}),
                             mem_bw_min=60)
        self.assertIn('control group', found.reason)

    def test_a_group_to_share_is_not_what_is_missing(self):
        for there, words in (
                (59, 'one that the guest could share has 60 % of its memory '
                     'bandwidth free (ghsched:mem_bw_min)'),
                (60, 'lack something else that it needs: CPUs, memory')):
            (found,) = self.find(
                Cloud(most=60, groups=0, traits={MIN}, where_shared=there),
                joins=True, mem_bw_min=60)
            self.assertIn(words, found.reason)
            # Nova shows no more of a fault.
            self.assertLess(len('No valid host was found. ' + found.reason),
                            255)
        (found,) = self.find(Cloud(most=60, traits={MIN}), joins=True,
                             mem_bw_min=60)
        self.assertNotIn('control group', found.reason)

    def test_bandwidth_that_no_node_has_is_the_reason_alone(self):
        (found,) = self.find(Cloud(most=59, groups=0, traits={MIN}),
                             joins=True, mem_bw_min=60)
        self.assertNotIn('control group', found.reason)

    def test_needs_that_can_be_met_one_by_one_are_reported_to_be_so(self):
        (found,) = self.find(Cloud(most=60, traits={MIN}), mem_bw_min=60)
        self.assertEqual(
            'no host has all that the flavor needs on the right NUMA nodes, '
            'though each of its ghsched keys alone can be met', found.reason)

    def test_no_host_has_as_many_nodes_with_the_bandwidth(self):
        cloud = Cloud(most=100, traits={MIN})
        nodes = [Pf('a', 'a', free) for free in (50, 50, 50, 100)]
        (found,) = self.find(cloud, nodes, mem_bw_min=60)
        self.assertEqual(
            'no host has 2 NUMA nodes with enough of their memory bandwidth '
            'free, 60 % and 60 % for the guest NUMA nodes 0 and 1 '
            '(ghsched:mem_bw_min)', found.reason)
        for keys in ({'mem_bw_min': 50}, {'mem_bw_min.1': 60},
                     {'mem_bw_min.0': 50, 'mem_bw_min.1': 100}):
            (found,) = self.find(cloud, nodes, **keys)
            self.assertIn('each of its ghsched keys alone', found.reason)

    def test_nodes_of_different_hosts_do_not_count_together(self):
        nodes = [Pf('a', 'a', 60), Pf('a', 'a', 20), Pf('b', 'b', 60)]
        (found,) = self.find(Cloud(most=60, traits={MIN}), nodes,
                             **{'mem_bw_min.0': 20, 'mem_bw_min.1': 60})
        self.assertIn('each of its ghsched keys alone', found.reason)
        (found,) = self.find(Cloud(most=60, traits={MIN}), nodes,
                             **{'mem_bw_min.0': 21, 'mem_bw_min.1': 60})
        self.assertIn('21 % and 60 % for the guest NUMA nodes 0 and 1',
                      found.reason)

    def test_it_asks_a_bounded_number_of_times(self):
        cloud = Cloud(most=0, traits={MIN})
        self.find(cloud, mem_bw_min=100)
        self.assertLess(cloud.asked, 12)


class VfsTest(base.TestCase):

    traits = frozenset({'CUSTOM_GHSCHED_DEVICE_NUMA'})

    def find(self, pfs, nodes=2, **keys):
        policy = parse_policy({f'ghsched:{key}': value
                               for key, value in keys.items()}, nodes)
        return [str(item) for item in cloud_lack.find_refusal_reasons(
            policy, 'min', cloud_lack.CloudQueries(
                Cloud(traits=self.traits), {'nic': pfs}))]

    def test_no_node_has_as_many(self):
        (found,) = self.find([Pf('a', 'a0', 3), Pf('a', 'a1', 4)],
                             vfs='nic:10', vfs_locality='node')
        self.assertEqual(
            'no host NUMA node has 5 VFs of nic free, which guest NUMA node 0 '
            'needs (ghsched:vfs); the most free on one node is 4; '
            'allow ghsched:vfs_locality=socket or any', found)

    def test_pfs_of_a_node_count_together(self):
        (found,) = self.find([Pf('a', 'a0', 3), Pf('a', 'a0', 2)], nodes=1,
                             vfs='nic:5', vfs_locality='node')
        self.assertIn('each of its ghsched keys alone', found)

    def test_no_host_has_as_many_nodes_with_enough(self):
        (found,) = self.find([Pf('a', 'a0', 80), Pf('b', 'b0', 80)],
                             vfs='nic:40', vfs_locality='node')
        self.assertEqual(
            'no host has 2 NUMA nodes with VFs of nic free, 20 and 20 for the '
            'guest NUMA nodes 0 and 1 (ghsched:vfs with '
            'ghsched:vfs_locality=node); allow ghsched:vfs_locality=socket or '
            'any', found)

    def test_counts_are_reported_in_the_order_of_the_guest_nodes(self):
        (found,) = self.find([Pf('a', 'a0', 80)], vfs_locality='node',
                             **{'vfs.0': 'nic:2', 'vfs.1': 'nic:30'})
        self.assertIn('2 and 30 for the guest NUMA nodes 0 and 1', found)

    def test_far_vfs_are_counted_by_host(self):
        (found,) = self.find([Pf('a', 'a0', 30), Pf('b', 'b0', 30)],
                             vfs='nic:40')
        self.assertEqual('no host has 40 VFs of nic free (ghsched:vfs); the '
                         'most free on one host is 30', found)

    def test_hosts_without_our_driver_cannot_give_any(self):
        self.traits = frozenset()
        (found,) = self.find([Pf('a', 'a', 30)], vfs='nic:2')
        self.assertIn('no host can hold ghsched:vfs; none has the trait',
                      found)

    def test_no_pf_at_all(self):
        self.assertIn('no host has 40 VFs of nic free',
                      self.find([], vfs='nic:40')[0])


ASKED = [('resources', 'MEMORY_MB:1000000,VCPU:2'),
         ('required', '!COMPUTE_STATUS_DISABLED'),
         ('root_required', f'{MIN},HW_X'), ('in_tree', 'a-host'),
         ('resourcesghsched_bw0', 'CUSTOM_MEM_BW_PCT:60'),
         ('requiredghsched_bw0', 'X'), ('resourcesport', 'NET:1'),
         ('same_subtree', 'ghsched_bw0,ghsched_n0'),
         ('group_policy', 'none'), ('limit', '1000')]


class NotOursTest(base.TestCase):

    def find(self, *refused):
        """Return the lacks found when Placement refuses queries with a word.
        """
        def ask(query):
            text = str(query)
            self.assertIn("('in_tree', 'a-host')", text)
            return not any(word in text for word in refused)
        found = cloud_lack.find_refusal_reasons(
            parse_policy({'ghsched:mem_bw_min': '60'}, 1), 'min',
            cloud_lack.CloudQueries(ask),
            cloud_lack.strip_ghsched_requests(ASKED, ('ghsched_',)))
        where = ' where the request may go'
        self.assertTrue(all(where in one.reason for one in found))
        return [one.reason.removesuffix(where) for one in found]

    def test_entries_of_ghsched_are_removed(self):
        self.assertEqual(
            [('resources', 'MEMORY_MB:1000000,VCPU:2'),
             ('required', '!COMPUTE_STATUS_DISABLED'),
             ('root_required', 'HW_X'), ('in_tree', 'a-host'),
             ('resourcesport', 'NET:1'), ('group_policy', 'none')],
            cloud_lack.strip_ghsched_requests(ASKED, ('ghsched_',)))

    def test_a_class_that_is_not_ours_is_named_alone(self):
        self.assertEqual(['no host has 1000000 MB of memory free'],
                         self.find('MEMORY_MB:1000000'))

    def test_disabled_hosts(self):
        self.assertEqual(['the compute service of every host is disabled'],
                         self.find('COMPUTE_STATUS_DISABLED'))

    def test_a_trait_of_the_image(self):
        self.assertEqual(['no host has the trait HW_X'], self.find('HW_X'))

    def test_ports_and_the_like_are_not_taken_for_ours(self):
        (found,) = self.find('NET:1')
        self.assertIn('beside the ghsched keys', found)

    def test_ours_goes_first_as_it_is_asked_alone(self):
        self.assertEqual(
            ['no host NUMA node has 60 % of its memory bandwidth free '
             '(ghsched:mem_bw_min)'],
            self.find('CUSTOM_MEM_BW_PCT', 'MEMORY_MB:1000000'))

    def test_each_alone_is_there(self):
        (found,) = self.find()
        self.assertIn('can be met, and so can all else', found)

    def test_where_the_request_may_go(self):
        (found,) = self.find('MEMORY_MB', 'VCPU', 'PCPU', 'DISK_GB')
        self.assertIn('where the request may go (availability zone', found)

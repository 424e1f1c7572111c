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

"""Reads of the index from a cell's database, and their times."""

import copy
import datetime
import functools
import itertools
import json
import tracemalloc
import types

import fixtures
from nova.db.main import models
from oslo_utils import timeutils
import sqlalchemy as sa
from sqlalchemy import pool

from ghsched_nova.features.index.host_capacity import RequestNeed
from ghsched_nova.features.index.host_capacity import RequestNodeNeed
from ghsched_nova.features.index import host_index
from ghsched_nova.features.index import index_feed
from ghsched_nova.features.index import nova_seams
from ghsched_placement.features.index import headroom
from ghsched_placement.tests import base

_TIME = datetime.datetime(2026, 11, 1)


class FeedTestCase(base.TestCase):
    """A feed from a database with the records of hosts."""

    def setUp(self):
        super().setUp()
        self.engine = sa.create_engine(
            'sqlite://', poolclass=pool.StaticPool,
            connect_args={'check_same_thread': False})
        self.nodes = models.ComputeNode.__table__
        models.BASE.metadata.create_all(self.engine)
        self.log = self.useFixture(fixtures.FakeLogger(level=30))
        self.now = 1000.0
        self.database_time = _TIME + datetime.timedelta(minutes=5)
        for name, value in (
                ('ghsched_nova.features.index.nova_seams.main_db.get_engine',
                 lambda context: self.engine),
                ('ghsched_nova.features.index.nova_seams.call_in_cells',
                 lambda context, cells, look: [look(cell) for cell in cells]),
                ('ghsched_nova.features.index.nova_seams.get_database_time',
                 lambda context: self.database_time),
                (f'{index_feed.__name__}.time.monotonic', lambda: self.now)):
            self.useFixture(fixtures.MonkeyPatch(name, value))
        self.index = host_index.Index()
        self.feed = index_feed.Feed(self.index)
        self.cell = types.SimpleNamespace(cell_uuid='c')

    def add(self, name, updated):
        with self.engine.begin() as connection:
            connection.execute(self.nodes.insert().values(
                uuid=name, host=name, hypervisor_hostname=name, deleted=0,
                updated_at=updated, stats='{}', vcpus=0, memory_mb=0,
                local_gb=0, vcpus_used=0, memory_mb_used=0, local_gb_used=0,
                hypervisor_type='', hypervisor_version=0, cpu_info=''))

    def change(self, name, seconds, **values):
        with self.engine.begin() as connection:
            connection.execute(
                self.nodes.update().where(self.nodes.c.uuid == name).values(
                    updated_at=_TIME + datetime.timedelta(seconds=seconds),
                    **values))

    def refresh_and_count(self, later=2.0):
        """Return the number of guests of each host after a look."""
        self.now += later
        self.feed.refresh(None, [self.cell], lambda _cell: set())
        return {view.row.name: view.row.guests
                for view in self.index.list_views()}


class LookTest(FeedTestCase):

    def test_refresh_connects_to_each_database_once(self):
        connections = []
        sa.event.listen(self.engine, 'engine_connect', connections.append)
        for _time in range(2):
            self.add(f'host{_time}', _TIME)
            connections.clear()
            self.refresh_and_count()
            self.assertEqual(1, len(connections))

    def test_refresh_of_a_cloud_at_rest_reads_compute_nodes_once(self):
        self.add('a', _TIME)
        self.refresh_and_count()
        self.refresh_and_count()
        statements = []
        sa.event.listen(
            self.engine, 'before_cursor_execute',
            lambda *args: statements.append(args[2]))
        self.refresh_and_count()
        self.assertEqual(1, sum('FROM compute_nodes' in statement
                                for statement in statements), statements)

    def test_refresh_reads_all_hosts_and_then_those_that_changed(self):
        self.add('a', _TIME)
        self.add('b', _TIME)
        self.assertEqual({'a': 0, 'b': 0}, self.refresh_and_count())
        self.change('b', 10, stats='{"num_instances": "3"}')
        self.assertEqual({'a': 0, 'b': 3}, self.refresh_and_count())
        self.assertEqual(1, self.feed.rebuilt)

    def test_refresh_reads_a_report_that_is_written_late(self):
        self.add('a', _TIME)
        self.add('b', _TIME)
        self.refresh_and_count()
        self.change('b', 10)
        self.refresh_and_count()
        self.change('a', 9, stats='{"num_instances": "1"}')
        self.assertEqual({'a': 1, 'b': 0}, self.refresh_and_count())

    def test_refresh_drops_a_host_that_was_deleted(self):
        self.add('a', _TIME)
        self.refresh_and_count()
        self.change('a', 0, deleted=1,
                    deleted_at=_TIME + datetime.timedelta(seconds=5))
        self.assertEqual({}, self.refresh_and_count())

    def test_refresh_drops_a_host_without_a_record_at_the_next_full_look(
            self):
        self.add('a', _TIME)
        self.add('b', _TIME)
        self.refresh_and_count()
        with self.engine.begin() as connection:
            connection.execute(self.nodes.delete().where(
                self.nodes.c.uuid == 'a'))
        self.assertEqual({'a': 0, 'b': 0}, self.refresh_and_count())
        self.assertEqual({'b': 0}, self.refresh_and_count(index_feed.FULL))

    def test_refresh_keeps_hosts_of_a_cell_that_does_not_answer(self):
        self.add('a', _TIME)
        self.refresh_and_count()
        self.assertTrue(self.feed.is_current)
        with self.no_cell_answers():
            self.assertEqual({'a': 0}, self.refresh_and_count())
        self.assertFalse(self.feed.is_current)

    def test_age_without_a_complete_look_grows(self):
        self.assertEqual(float('inf'), self.feed.age)
        self.refresh_and_count()
        self.assertEqual(0, self.feed.age)
        with self.no_cell_answers():
            for age in (2, 4, 6):
                self.refresh_and_count()
                self.assertEqual(age, self.feed.age)
        self.refresh_and_count()
        self.assertEqual(0, self.feed.age)

    def test_refresh_drops_hosts_of_a_cell_that_is_silent_for_a_minute(self):
        self.add('a', _TIME)
        self.add('b', _TIME + datetime.timedelta(hours=1))
        self.refresh_and_count()
        with self.no_cell_answers():
            self.assertEqual({}, self.refresh_and_count(index_feed.SILENT))
            self.assertEqual({}, self.refresh_and_count())
        self.assertEqual(1, self.log.output.count(
            'could not read the database of cell c for 60 s'))
        self.assertEqual({'a': 0, 'b': 0}, self.refresh_and_count())

    def no_cell_answers(self):
        return fixtures.MonkeyPatch(
            'ghsched_nova.features.index.nova_seams.call_in_cells',
            lambda *_args: [None])

    def test_refresh_reads_a_report_of_a_late_clock_at_the_next_full_look(
            self):
        self.add('a', _TIME)
        self.refresh_and_count()
        self.change('a', -60, stats='{"num_instances": "1"}')
        self.assertEqual({'a': 0}, self.refresh_and_count())
        self.assertEqual({'a': 1}, self.refresh_and_count(index_feed.FULL))

    def test_refresh_with_a_clock_ahead_reads_reports_of_other_hosts(self):
        self.add('a', _TIME)
        self.add('b', _TIME)
        self.refresh_and_count()
        self.change('b', 3600, stats='{"num_instances": "1"}')
        self.assertEqual({'a': 0, 'b': 1}, self.refresh_and_count())
        for guests in range(3):
            self.change('a', 10 + guests,
                        stats=f'{{"num_instances": "{guests}"}}')
            self.assertEqual({'a': guests, 'b': 1}, self.refresh_and_count())
        self.assertEqual(1, self.feed.hosts_with_future_reports)
        self.assertEqual(1, self.log.output.count('synchronize the clocks'))
        self.database_time += datetime.timedelta(hours=2)
        self.refresh_and_count()
        self.assertEqual(0, self.feed.hosts_with_future_reports)

    def test_refresh_drops_a_host_with_a_malformed_report(self):
        self.add('a', _TIME)
        self.add('b', _TIME)
        self.refresh_and_count()
        for seconds in (10, 11):
            self.change('a', seconds, numa_topology='{}')
            self.assertEqual({'b': 0}, self.refresh_and_count())
        self.assertEqual(1, self.feed.unreadable_hosts)
        self.assertEqual(1, self.log.output.count(
            'cannot parse the compute node record of host a'))
        self.change('a', 12, numa_topology=None)
        self.assertEqual({'a': 0, 'b': 0}, self.refresh_and_count())
        self.assertEqual(0, self.feed.unreadable_hosts)

    def test_refresh_in_another_thread_is_not_waited_for(self):
        self.add('a', _TIME)
        self.refresh_and_count()
        self.add('b', _TIME + datetime.timedelta(seconds=9))
        with self.feed._lock:
            self.assertEqual({'a': 0}, self.refresh_and_count())
        self.assertEqual({'a': 0, 'b': 0}, self.refresh_and_count())


class ChangedReportTest(FeedTestCase):
    """Reports that are read, and those that are not because nothing changed.
    """

    def count_whole_reads(self):
        """Return a list to which the hosts are added that are read whole."""
        found, read = [], nova_seams.read_compute_node_reports

        def count(context, names, keys):
            found.extend(names)
            return read(context, names, keys)
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.index.nova_seams.'
            'read_compute_node_reports', count))
        return found

    def stats(self, busy='0', **values):
        left = headroom.Headroom(**{
            'time': 1., 'guests': 0, 'groups': 5, 'bandwidth': {0: 50},
            **values})
        return json.dumps({'ghsched_load': busy, 'num_task_None': busy,
                           **headroom.make_headroom_stats(left)})

    def test_refresh_reads_only_reports_that_differ_in_what_the_index_uses(
            self):
        self.add('a', _TIME)
        self.change('a', 10, stats=self.stats())
        self.refresh_and_count()
        whole = self.count_whole_reads()
        for number, values in enumerate((
                {'stats': self.stats('1')}, {'local_gb_used': 3},
                {'running_vms': 1}, {})):
            self.change('a', 20 + number, **values)
            self.refresh_and_count()
            self.assertEqual([], whole, values)
        for number, values in enumerate((
                {'stats': self.stats(bandwidth={0: 40})},
                {'stats': self.stats(shape='x')},
                # Written by the release before with each report.
                {'stats': self.stats(shape='x', time=2.)},
                {'stats': '{"num_instances": "1"}'},
                {'ram_allocation_ratio': 2.0}, {'cpu_allocation_ratio': 2.0},
                {'vcpus_used': 3}, {'memory_mb_used': 3},
                {'pci_stats': 'null'}, {'pci_stats': ' null'},
                {'pci_stats': None}, {'numa_topology': ' '})):
            self.change('a', 30 + number, **values)
            self.refresh_and_count()
            self.assertEqual(['a'] * (number + 1), whole, values)

    def test_refresh_reads_a_second_report_of_the_same_second(self):
        self.database_time = _TIME + datetime.timedelta(seconds=10.3)
        self.add('a', _TIME)
        self.change('a', 10, stats='{"num_instances": "1"}')
        self.assertEqual({'a': 1}, self.refresh_and_count())
        self.change('a', 10, stats='{"num_instances": "2"}')
        self.database_time += datetime.timedelta(seconds=1)
        self.assertEqual({'a': 2}, self.refresh_and_count())

    def test_refresh_reads_a_report_that_changes_while_it_is_read(self):
        self.add('a', _TIME)
        self.refresh_and_count()
        for full, (number, name) in itertools.product(
                (0, index_feed.FULL), enumerate((
                    'count_updates_by_second', 'list_compute_nodes',
                    'read_compute_node_reports'))):
            second = 10 * number + full
            self.change('a', second,
                        stats=f'{{"num_instances": "{number + 5}"}}')
            read = getattr(nova_seams, name)

            def change_after(*args, read=read, number=number, second=second):
                found = read(*args)
                self.change('a', second + 1,
                            stats=f'{{"num_instances": "{number}"}}')
                return found
            with fixtures.MonkeyPatch(
                    f'ghsched_nova.features.index.nova_seams.{name}',
                    change_after):
                self.refresh_and_count(full or 2.0)
            self.assertEqual({'a': number}, self.refresh_and_count())

    def test_refresh_reads_each_of_many_hosts_that_changed_in_one_second(self):
        names = [f'h{number}' for number in range(1200)]
        for name in names:
            self.add(name, _TIME)
        self.refresh_and_count()
        changed = {'h0': 1, 'h600': 2, 'h1199': 3}
        for name in names:
            self.change(name, 10, stats=json.dumps(
                {'num_instances': changed.get(name, 0)}))
        whole = self.count_whole_reads()
        self.assertEqual(dict.fromkeys(names, 0) | changed,
                         self.refresh_and_count())
        whole.clear()
        self.change('h601', 10, stats='{"num_instances": 4}')
        self.change('h7', 11, stats='{"num_instances": 0}')
        self.assertEqual(dict.fromkeys(names, 0) | changed | {'h601': 4},
                         self.refresh_and_count())
        self.assertEqual(['h601'], whole)

    def test_refresh_refuses_a_truncated_list_of_hosts(self):
        class Truncated:
            def __init__(self):
                self.found = {}

            def step(self, uuid, digest):
                self.found[uuid] = digest

            def finalize(self):
                return json.dumps(self.found)[:-9]
        with self.engine.connect() as connection:
            connection.connection.create_aggregate('truncated', 2, Truncated)
        self.add('a', _TIME)
        self.add('b', _TIME)
        self.refresh_and_count()
        self.patch(nova_seams, '_JSON_AGGREGATES',
                   {'sqlite': 'truncated'})
        self.assertRaises(ValueError, self.refresh_and_count)

    def list_hosts_by_look(self, *changes):
        """Return the hosts that are listed at each look, once a second.

        :param changes: the second of the update, by host, before each look.
        """
        found: list[set[str]] = []
        read = nova_seams.list_compute_nodes

        def record(*args):
            nodes = read(*args)
            found[-1].update(*(one.digests for one in nodes))
            return nodes
        for name in 'abc':
            self.add(name, _TIME)
        with fixtures.MonkeyPatch(
                'ghsched_nova.features.index.nova_seams.'
                'list_compute_nodes', record):
            for number, updates in enumerate(changes):
                self.database_time = _TIME + datetime.timedelta(
                    seconds=10.3 + number)
                for name, second in updates.items():
                    self.change(name, second)
                found.append(set())
                self.refresh_and_count()
        return found

    def test_refresh_lists_hosts_of_a_second_until_it_has_passed(self):
        self.assertEqual(
            [set('abc'), {'a'}, {'b'}, {'b'}, set()],
            self.list_hosts_by_look({'a': 10}, {}, {'b': 12}, {}, {}))

    def test_refresh_lists_hosts_of_a_second_in_which_others_were_updated(
            self):
        for late in ({'c': 10}, {'a': 13, 'c': 10},
                     {'a': 13, 'b': 13, 'c': 10}):
            with self.engine.begin() as connection:
                connection.execute(self.nodes.delete())
            self.feed = index_feed.Feed(self.index)
            found = self.list_hosts_by_look(
                {'a': 10, 'b': 10}, {}, {}, late, {})
            self.assertEqual(set(), found[2])
            self.assertLessEqual(set(late), found[3], late)

    def test_refresh_reads_no_digests_of_reports_that_did_not_change(self):
        self.add('a', _TIME)
        self.add('b', _TIME)
        self.change('b', 3600)
        for _look in range(2):
            self.refresh_and_count()
        found, read = [], nova_seams.list_compute_nodes

        def record(*args):
            nodes = read(*args)
            found.extend(digest for one in nodes
                         for digest in one.digests.values())
            return nodes
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.index.nova_seams.list_compute_nodes',
            record))
        self.refresh_and_count()
        self.assertEqual([], found)
        self.refresh_and_count(index_feed.FULL)
        self.assertEqual([None] * 2, found)
        self.assertEqual(1, self.feed.hosts_with_future_reports)

    def test_refresh_reads_an_unchanged_report_of_a_host_that_was_dropped(
            self):
        self.add('a', _TIME)
        self.refresh_and_count()
        self.index.update_hosts((), ['a'], self.now)
        self.change('a', 10)
        self.assertEqual({'a': 0}, self.refresh_and_count())

    def test_refresh_with_malformed_stats_drops_only_their_host(self):
        self.add('a', _TIME)
        self.add('b', _TIME)
        self.change('a', 10, stats='{')
        self.assertEqual({'b': 0}, self.refresh_and_count())
        self.change('a', 11, stats=None)
        self.assertEqual({'a': 0, 'b': 0}, self.refresh_and_count())

    def test_refresh_of_another_database_reads_each_report(self):
        self.patch(self.engine.dialect, 'name', 'postgresql')
        self.patch(nova_seams, '_JSON_AGGREGATES',
                   {'postgresql': 'json_group_object'})
        self.add('a', _TIME)
        self.refresh_and_count()
        whole = self.count_whole_reads()
        self.change('a', 20)
        self.refresh_and_count()
        self.assertEqual(['a'], whole)

    def test_refresh_after_a_cell_failed_reads_the_changed_report(self):
        self.add('a', _TIME)
        self.refresh_and_count()
        self.change('a', 10)
        self.refresh_and_count()
        self.change('a', 20, stats='{"num_instances": "3"}')
        with fixtures.MonkeyPatch(
                'ghsched_nova.features.index.nova_seams.call_in_cells',
                lambda context, cells, look: [look(cells[0]) and None]):
            self.refresh_and_count()
        self.assertEqual({'a': 3}, self.refresh_and_count(index_feed.FULL))

    def test_full_look_drops_old_claims_of_a_host_that_repeats_itself(self):
        self.add('a', _TIME)
        self.refresh_and_count()
        need = RequestNeed((), groups=1)
        self.index.set_free_amounts('a', {}, 3, self.now, self.now)
        self.index.add_claim('a', 'guest', need, self.now)
        (view,) = self.index.list_views()
        self.assertEqual(2, view.groups)
        self.refresh_and_count(host_index.CLAIM_AGE)
        (view,) = self.index.list_views()
        self.assertEqual(3, view.groups)


class DatabaseTimeTest(base.TestCase):

    def test_database_time_of_sqlite_is_utc(self):
        before = timeutils.utcnow().replace(microsecond=0)
        with sa.create_engine('sqlite://').connect() as connection:
            found = nova_seams.get_database_time(connection)
        self.assertTrue(before <= found <= timeutils.utcnow(), found)


#: A report as Nova writes it, by column.
_REPORT = {
    'stats': {'num_instances': '0', **headroom.make_headroom_stats(
        headroom.Headroom(1., 1, 5, {0: 50, 1: 50}))},
    'numa_topology': {'nova_object.data': {'cells': [{
        'nova_object.data': {
            'id': number, 'cpuset': [0, 1], 'pcpuset': [2, 3],
            'cpu_usage': 0, 'memory': 1000, 'memory_usage': 0,
            'pinned_cpus': [], 'siblings': [], 'mempages': [{
                'nova_object.data': {'size_kb': 4, 'total': 256000,
                                     'used': 0, 'reserved': 0}}],
            'network_metadata': {'nova_object.data': {
                'physnets': ['x'], 'tunneled': False}}}}
        for number in range(2)]}},
    'pci_stats': {'nova_object.data': {'objects': [{'nova_object.data': {
        'numa_node': 0, 'vendor_id': 'a', 'product_id': 'b',
        'count': 2, 'tags': {
            'dev_type': 'type-VF',
            'rp_uuid': '11111111-2222-4333-8444-555555555555'}}}]}}}


def _paths(document, path=()):
    """Yield the path of each value in a document."""
    found = (document.items() if isinstance(document, dict)
             else enumerate(document) if isinstance(document, list) else ())
    for name, value in found:
        yield (*path, name)
        yield from _paths(value, (*path, name))


class ForgedReportTest(base.TestCase):
    """A compromised compute host writes what it likes into its report."""

    VALUES: tuple[object, ...] = (
        None, -1, 0, 1e308, float('inf'), float('nan'), 'x', '', [], [1], {},
        {'a': 1}, True, 2 ** 53 + 1, 10 ** 40, 3 * 10 ** 9, '9' * 4000,
        [[[]]], ['x' * 99], '1')

    NEEDS = (RequestNeed((RequestNodeNeed(pinned=1, memory=10, page=4,
                                          devices=((('a', 'b'), 1),)),)),
             RequestNeed((RequestNodeNeed(shared=1, memory=10),
                          RequestNodeNeed(shared=1)),
                         groups=1, needs_driver=True))

    def setUp(self):
        super().setUp()
        self.rows = [index_feed.parse_compute_node('c', self.report(name, 0))
                     for name in ('good', 'evil')]

    def report(self, name, updated=1, **columns):
        return {'uuid': name, 'host': name, 'updated_at': updated,
                'ram_allocation_ratio': 1.0, 'cpu_allocation_ratio': 1.0,
                'vcpus': 4, 'vcpus_used': 1, 'memory_mb': 4096,
                'memory_mb_used': 512,
                **{column: json.dumps(columns.get(column, document))
                   for column, document in _REPORT.items()}}

    def use(self, report):
        """Go through all of the index with a host that has sent a report."""
        index = host_index.Index()
        index.update_hosts(self.rows, (), 0.0)
        index.add_claim('evil', 'x', self.NEEDS[1], 0.0)
        try:
            index.update_hosts([index_feed.parse_compute_node('c', report)],
                               (), 1.0)
        except Exception:
            return
        for need in self.NEEDS:
            found = index.propose_hosts(need, lambda _row: True, (), 1.0)
            index.has_cpus_and_memory_for(need)
            index.add_claim('evil', 'y', need, 1.0)
            # MiB of 2 ** 53 pages of as many KiB.
            self.assertTrue(all(
                abs(left) < 2 ** 97 for view in found
                for node in view.amounts.nodes for left in node.free))

    def test_read_of_any_value_in_any_place_is_refused_or_bounded(self):
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        for column, document in _REPORT.items():
            for path, value in itertools.product(_paths(document),
                                                 self.VALUES):
                forged = copy.deepcopy(document)
                place = functools.reduce(lambda found, name: found[name],
                                         path[:-1], forged)
                place[path[-1]] = value
                self.use(self.report('evil', **{column: forged}))
        self.assertLess(tracemalloc.get_traced_memory()[1], 2 ** 25)

    def test_read_of_forged_pages_takes_no_memory(self):
        forged = copy.deepcopy(_REPORT['numa_topology'])
        cell = forged['nova_object.data']['cells'][0]['nova_object.data']
        cell['mempages'][0]['nova_object.data'].update(size_kb='x',
                                                       total=3 * 10 ** 9)
        self.assertRaises(TypeError, index_feed.parse_compute_node, 'c',
                          self.report('evil', numa_topology=forged))

    def test_read_of_an_oversized_column_is_refused(self):
        for column in _REPORT:
            self.assertRaisesRegex(
                ValueError, f'{column} has', index_feed.parse_compute_node,
                'c', {**self.report('evil'),
                      column: ' ' * (index_feed.MAX_TEXT + 1)})

    def test_read_of_too_many_nodes_is_refused(self):
        cells = _REPORT['numa_topology']['nova_object.data']['cells'] * 129
        self.assertRaisesRegex(
            ValueError, '258 NUMA nodes', index_feed.parse_compute_node, 'c',
            self.report('evil', numa_topology={
                'nova_object.data': {'cells': cells}}))

    def test_read_of_a_forged_ratio_is_refused(self):
        for ratio in (float('inf'), float('nan'), -1.0, 'x', 2.0 ** 60):
            for name in ('ram', 'cpu'):
                self.assertRaises(
                    ValueError, index_feed.parse_compute_node, 'c', {
                        **self.report('evil'),
                        f'{name}_allocation_ratio': ratio})

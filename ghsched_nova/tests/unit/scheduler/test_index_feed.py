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

"""What the index reads of a cell's database, and when."""

import datetime
import types

import fixtures
from nova.db.main import models
import sqlalchemy as sa
from sqlalchemy import pool

from ghsched_nova.scheduler import host_index
from ghsched_nova.scheduler import index_feed
from ghsched_placement.tests import base

_TIME = datetime.datetime(2026, 11, 1)


class LookTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.engine = sa.create_engine(
            'sqlite://', poolclass=pool.StaticPool,
            connect_args={'check_same_thread': False})
        self.nodes = models.ComputeNode.__table__
        models.BASE.metadata.create_all(self.engine)
        self.seen = []
        self.now = 1000.0
        for name, value in (
                ('ghsched_nova.compat.main_db.get_engine',
                 lambda context: self.engine),
                ('ghsched_nova.compat.in_cells',
                 lambda context, cells, look: [look(cell) for cell in cells]),
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

    def look(self, later=2.0):
        self.now += later
        self.feed.refresh(None, [self.cell], lambda _cell: set())
        return {host.row.name: host.row.guests
                for host in self.index.hosts.values()}

    def test_all_hosts_at_first_and_then_those_that_changed(self):
        self.add('a', _TIME)
        self.add('b', _TIME)
        self.assertEqual({'a': 0, 'b': 0}, self.look())
        self.change('b', 10, stats='{"num_instances": "3"}')
        self.assertEqual({'a': 0, 'b': 3}, self.look())
        self.assertEqual(1, self.feed.rebuilt)

    def test_a_report_that_is_written_late_is_seen(self):
        self.add('a', _TIME)
        self.add('b', _TIME)
        self.look()
        self.change('b', 10)
        self.look()
        self.change('a', 9, stats='{"num_instances": "1"}')
        self.assertEqual({'a': 1, 'b': 0}, self.look())

    def test_a_host_that_was_deleted_is_forgotten(self):
        self.add('a', _TIME)
        self.look()
        self.change('a', 0, deleted=1,
                    deleted_at=_TIME + datetime.timedelta(seconds=5))
        self.assertEqual({}, self.look())

    def test_the_number_of_hosts_says_that_one_was_missed(self):
        self.add('a', _TIME)
        self.add('b', _TIME)
        self.look()
        with self.engine.begin() as connection:
            connection.execute(self.nodes.delete().where(
                self.nodes.c.uuid == 'a'))
        self.assertEqual({'a': 0, 'b': 0}, self.look())
        self.assertEqual({'b': 0}, self.look(index_feed.COUNT))
        self.look(index_feed.COUNT)
        self.assertEqual(2, self.feed.rebuilt)

    def test_a_report_that_is_later_still_is_seen_at_last(self):
        self.add('a', _TIME)
        self.look()
        self.change('a', -60, stats='{"num_instances": "1"}')
        self.assertEqual({'a': 0}, self.look(index_feed.COUNT))
        self.assertEqual({'a': 1}, self.look(index_feed.FULL))

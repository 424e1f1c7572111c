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

"""The index of hosts after random histories of hosts and schedulers."""

import datetime
import json
import types

import fixtures
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from nova.db.main import models
import sqlalchemy as sa
from sqlalchemy import pool

from ghsched_nova.features.index import host_index
from ghsched_nova.features.index import index_feed
from ghsched_placement.features.index import headroom
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

_START = datetime.datetime(2026, 11, 1)

_HOSTS = ('a', 'b', 'c')

#: Events of a cloud: what happens, to which host, seconds until then.
EVENTS = st.lists(st.tuples(
    st.sampled_from(('report',) * 4 + ('load', 'twice', 'delete', 'look',
                                       'look', 'failure', 'restart', 'late',
                                       'early', 'drop')),
    st.sampled_from(_HOSTS),
    st.sampled_from((0., .2, .4, 1., 2.5, 61.))), max_size=40)


class Cloud:
    """Hosts in a database, the clocks of their conductors, and a feed.

    :ivar now: seconds since the start.
    """

    def __init__(self):
        self.now, self.count, self.load = 0., 0, 0
        self.failed = False
        self.engine = sa.create_engine(
            'sqlite://', poolclass=pool.StaticPool,
            connect_args={'check_same_thread': False})
        self.nodes = models.ComputeNode.__table__
        models.BASE.metadata.create_all(self.engine, tables=[self.nodes])
        self.offsets = dict.fromkeys(_HOSTS, 0.)
        self.restart()

    def restart(self):
        self.feed = index_feed.Feed(host_index.Index())

    def get_time(self, _context=None):
        return _START + datetime.timedelta(seconds=self.now)

    def read_cells(self, _context, cells, read):
        return [None if self.failed else read(cell) for cell in cells]

    def write(self, name, **values):
        """Write a host's record, with a time of whole seconds, as Nova does.
        """
        at = _START + datetime.timedelta(
            seconds=self.now + self.offsets[name])
        values['updated_at'] = at.replace(microsecond=0)
        with self.engine.begin() as connection:
            known = connection.execute(sa.select(self.nodes.c.stats).where(
                self.nodes.c.uuid == name,
                self.nodes.c.deleted == 0)).scalar()
            stats = json.loads(known or '{}') | values.pop('stats')
            values['stats'] = json.dumps(stats)
            if known is not None:
                connection.execute(self.nodes.update().where(
                    self.nodes.c.uuid == name).values(**values))
                return
            connection.execute(self.nodes.delete().where(
                self.nodes.c.uuid == name))
            connection.execute(self.nodes.insert().values(
                uuid=name, host=name, hypervisor_hostname=name, deleted=0,
                vcpus=0, memory_mb=0, local_gb=0, vcpus_used=0,
                memory_mb_used=0, local_gb_used=0, hypervisor_type='',
                hypervisor_version=0, cpu_info='', **values))

    def report(self, name):
        """Write a report of another number of guests and bandwidth."""
        self.count = (self.count + 1) % 7
        self.write(name, stats={
            'num_instances': str(self.count % 3),
            **headroom.make_headroom_stats(headroom.Headroom(
                0., 1, 9, {0: self.count // 2}))})

    def happen(self, event, name):
        if event == 'load':
            self.load += 1
            self.write(name, stats={'ghsched_load': str(self.load)})
        elif event == 'delete':
            with self.engine.begin() as connection:
                connection.execute(self.nodes.update().where(
                    self.nodes.c.uuid == name).values(
                        deleted=1, deleted_at=self.get_time()))
        elif event in ('late', 'early'):
            self.offsets[name] += -70. if event == 'late' else 70.
        elif event == 'restart':
            self.restart()
        elif event == 'drop':
            self.feed.index.update_hosts((), [name], self.now)
        elif event in ('look', 'failure'):
            self.refresh_feed(event == 'failure')
        else:
            for _time in range(2 if event == 'twice' else 1):
                self.report(name)

    def refresh_feed(self, failed=False):
        self.failed = failed
        self.feed.refresh(None, [types.SimpleNamespace(cell_uuid='x')],
                          lambda _cell: set())
        self.failed = False

    def list_known(self):
        """Return guests and bandwidth by host, as the index has them."""
        return {view.row.name: (view.row.guests, view.row.placement_headroom
                                and view.row.placement_headroom.bandwidth)
                for view in self.feed.index.list_views()}

    def list_written(self):
        """Return guests and bandwidth by host, as the database has them."""
        with self.engine.connect() as connection:
            rows = connection.execute(sa.select(
                self.nodes.c.uuid, self.nodes.c.stats).where(
                    self.nodes.c.deleted == 0)).all()
        found = {}
        for uuid, text in rows:
            stats = json.loads(text)
            left = json.loads(stats.get('ghsched_headroom', 'null'))
            found[uuid] = (int(stats.get('num_instances', 0)), left and {
                int(node): free for node, free in left['bandwidth'].items()})
        return found


class FeedHistoryTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.FakeLogger(level=50))

    def make_cloud(self):
        cloud = Cloud()
        self.addCleanup(cloud.engine.dispose)
        for name, value in (
                ('main_db.get_engine', lambda context: cloud.engine),
                ('call_in_cells', cloud.read_cells),
                ('get_database_time', cloud.get_time)):
            self.useFixture(fixtures.MonkeyPatch(
                f'ghsched_nova.features.index.nova_seams.{name}', value))
        self.useFixture(fixtures.MonkeyPatch(
            f'{index_feed.__name__}.time.monotonic',
            lambda: 1000. + cloud.now))
        return cloud

    @settings(max_examples=150)
    @given(EVENTS)
    def test_index_after_the_next_report_of_each_host_equals_the_database(
            self, events):
        cloud = self.make_cloud()
        for event, name, seconds in events:
            cloud.now += seconds
            cloud.happen(event, name)
        # Each host renews its load within some minutes.
        for name in cloud.list_written():
            cloud.now += 1
            cloud.happen('load', name)
        cloud.now += index_feed.FULL
        cloud.refresh_feed()
        self.assertEqual(cloud.list_written(), cloud.list_known())
        self.assertEqual(set(cloud.list_written()), set(cloud.feed._digests))

    @settings(max_examples=spaces.count(300))
    @given(st.lists(st.tuples(
        st.sampled_from(('report', 'report', 'look', 'look', 'load', 'failure',
                         'restart', 'delete')),
        st.sampled_from(_HOSTS[:2]), st.sampled_from((0., .2, .4, 1.))),
        max_size=40))
    def test_index_equals_the_database_at_the_next_look_if_clocks_are_right(
            self, events):
        cloud = self.make_cloud()
        for event, name, seconds in events:
            cloud.now += seconds
            cloud.happen(event, name)
        cloud.now += index_feed.REFRESH
        cloud.refresh_feed()
        self.assertEqual(cloud.list_written(), cloud.list_known())

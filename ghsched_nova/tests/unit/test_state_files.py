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

"""State files in whose place something else stands do not stop a reader.

Whoever may write to nova's state_path can put anything there. A reader that
opened a FIFO would wait for ever.
"""

import contextlib
import io
import os
from pathlib import Path
import tempfile
import types
from unittest import mock

from fixtures import FakeLogger

from ghsched_nova.features.blame import blame_periods
from ghsched_nova.features.blame import blame_record
from ghsched_nova.features.bursts import burst_metrics
from ghsched_nova.features.bursts import burst_use
from ghsched_nova.features.exporter import repair_counts
from ghsched_nova.features.exporter import repair_metrics
from ghsched_nova.features.guest_channel import guest_channel
from ghsched_nova.features.guest_channel import pressure_metrics
from ghsched_nova.features.history import history_use
from ghsched_nova.features.refusals import refusal_log
from ghsched_nova.features.refusals import refusal_metrics
from ghsched_nova.features.service_level import service_level_use
from ghsched_nova.features.service_level import service_metrics
from ghsched_nova.features.top import top
from ghsched_nova.host import readings
from ghsched_nova.tests.fixtures import observing
from ghsched_nova.tests.fixtures import state_files
from ghsched_placement.base import wire
from ghsched_placement.features.bursts import burst_record
from ghsched_placement.features.history import usage_history
from ghsched_placement.features.load import pressure
from ghsched_placement.features.refusals import refusal_record
from ghsched_placement.features.service_level import service_level
from ghsched_placement.tests import base


def _count_repairs(path):
    reports = observing.Reports(repair_counts.RepairCounts(path))
    reports.host.count_repairs(['write line'])
    reports.report(1.0)


def _count_refusal(path):
    refusal_log.RefusalLog(path.parent).count_refusal(types.SimpleNamespace(
        flavor=types.SimpleNamespace(flavorid='1', name='f')))


def _read_history(path):
    with (contextlib.redirect_stdout(io.StringIO()),
          contextlib.redirect_stderr(io.StringIO())):
        top.main(['--since', '1h', '--history', str(path)])


#: Readers of state files: what nova-compute, nova-scheduler, the exporter and
#: the programs for the administrator do with them.
READERS = (
    (burst_record.FORMAT.name,
     lambda path: burst_use.BurstRecorder(None, path)),
    (burst_record.FORMAT.name,
     lambda path: list(burst_metrics.BurstCollector(path).collect())),
    (service_level.FORMAT.name, service_level_use.ServiceLevelRecorder),
    (service_level.FORMAT.name,
     lambda path: list(service_metrics.ServiceLevelCollector(path).collect())),
    (repair_metrics.FORMAT.name,
     lambda path: list(repair_metrics.RepairCollector(path).collect())),
    (repair_metrics.FORMAT.name, _count_repairs),
    (refusal_record.FORMAT.name,
     lambda path: list(refusal_metrics.RefusalCollector(path).collect())),
    (refusal_record.FORMAT.name,
     lambda path: refusal_log.RefusalLog(path.parent).read_refusals()),
    (refusal_record.FORMAT.name, _count_refusal),
    (usage_history.FILE_FORMAT.name, history_use.HistoryRecorder),
    (usage_history.FILE_FORMAT.name, _read_history),
    (blame_periods.FORMAT.name, blame_record.BlameRecord),
    (blame_periods.FORMAT.name, blame_periods.FORMAT.read),
    (pressure.FILE, lambda path: pressure.read_pressures(path, 0.0)),
    (pressure.FILE,
     lambda path: list(pressure_metrics.PressureCollector(path).collect())),
    (pressure.FILE, lambda path: guest_channel.GuestChannels(
        mock.Mock(), dict, mock.Mock(), mock.Mock(), mock.Mock(), path)),
    (readings.FILE, lambda path: readings.RoundingCache(
        path.parent, path).get_measured_rounding()),
)
NAMES = {name for name, _read in READERS}


class StateFileTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(FakeLogger())
        self.top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.top / 'info').mkdir()     # resctrl is mounted, for readings

    def test_each_state_file_of_the_tree_has_readers_here(self):
        self.assertEqual(state_files.list_names(), NAMES)

    def _each_reader(self, put):
        """Read what a function puts in place of a file, by each reader."""
        for name, read in READERS:
            path = self.top / name
            put(path)
            read(path)
            path.unlink(missing_ok=True)

    def test_fifo_in_place_of_a_state_file_does_not_stop_a_reader(self):
        self._each_reader(os.mkfifo)

    def test_link_in_place_of_a_state_file_is_not_followed(self):
        secret = self.top / 'secret'
        for name in NAMES:
            secret.write_text('{}')
            secret.chmod(0)
            link = self.top / name
            link.symlink_to(secret)
            self.assertRaises(OSError, wire.read_record_file, link)
            self.assertEqual('', wire.read_file_or_empty(link))
            link.unlink()
        self._each_reader(lambda path: path.symlink_to('/dev/zero'))

    def test_endless_state_file_is_read_in_part_only(self):
        def put(path):
            with path.open('wb') as stream:
                os.truncate(stream.fileno(), 2 ** 40)

        self._each_reader(put)

    def test_state_file_that_is_no_text_does_not_stop_a_reader(self):
        for content in (b'\xff\xfe', b'\0' * 100, b'[' * 100000, b'7' * 5000,
                        b'"\\ud800"', b'{}', b'{"version": 1}'):
            self._each_reader(lambda path, content=content: path.write_bytes(
                content))

    def test_only_a_regular_file_of_bounded_length_is_read(self):
        path = self.top / 'record'
        path.write_text('text')
        self.assertEqual('text', wire.read_record_file(path, 4))
        self.assertRaises(OSError, wire.read_record_file, path, 3)
        for other in (self.top, self.top / 'none', Path('/dev/null')):
            self.assertRaises(OSError, wire.read_record_file, other)

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

"""The record of refusals of a host with nova-scheduler."""

import fcntl
import json
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import fixtures
from nova import exception
import oslo_messaging
import prometheus_client

from ghsched_nova.features.refusals import refusal_log
from ghsched_nova.features.refusals import refusal_metrics
from ghsched_nova.features.refusals import refusals
from ghsched_placement.features.refusals import refusal_record
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import threads


def spec(flavor='1', name='small'):
    return SimpleNamespace(flavor=SimpleNamespace(flavorid=flavor, name=name))


class RefusalLogTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.log = refusal_log.RefusalLog(self.directory)
        self.lines = self.useFixture(fixtures.FakeLogger())

    def counts(self):
        return {one.flavor: one.count for one in self.log.read_refusals()}

    def test_refusals_of_two_processes_are_in_one_file(self):
        self.log.count_refusal(spec())
        refusal_log.RefusalLog(self.directory).count_refusal(spec())
        self.log.count_refusal(spec('2', 'large'))
        self.assertEqual({'1': 2, '2': 1}, self.counts())
        self.assertEqual(self.log.read_refusals(), refusal_record.FORMAT.parse(
            refusal_log.RefusalEndpoint(self.log).list_refusals(None)))

    def test_refusals_of_many_threads_are_all_counted(self):
        self.patch(refusal_log, '_LOCK_TIMEOUT_S', base.GIVE_UP_S)
        self.assertEqual([], threads.stress(
            [lambda _chance: self.log.count_refusal(spec())] * 4, 5,
            fine=False))
        self.assertEqual({'1': 20}, self.counts())

    def test_malformed_file_begins_again(self):
        (self.directory / refusal_record.FORMAT.name).write_text('[')
        self.assertEqual({}, self.counts())
        self.log.count_refusal(spec())
        self.assertEqual({'1': 1}, self.counts())

    def test_file_that_cannot_be_written_stops_no_refusal(self):
        refusal_log.RefusalLog(Path('/nowhere')).count_refusal(spec())
        self.assertIn('cannot record a refused scheduling request',
                      self.lines.output)

    def test_lock_of_another_process_is_awaited_for_a_limited_time(self):
        self.patch(refusal_log, '_LOCK_TIMEOUT_S', 0.02)
        with (self.directory / 'ghsched-refusals.lock').open('a') as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.log.count_refusal(spec())
        self.assertEqual({}, self.counts())
        self.assertIn('is locked', self.lines.output)

    def test_metrics_have_a_sample_for_each_flavor(self):
        found = prometheus_client.CollectorRegistry()
        found.register(refusal_metrics.RefusalCollector(
            self.directory / refusal_record.FORMAT.name))
        labels = {'flavor': '1', 'name': 'small'}
        self.assertIsNone(found.get_sample_value('ghsched_refusals_total',
                                                 labels))
        self.log.count_refusal(spec())
        self.assertEqual(1, found.get_sample_value('ghsched_refusals_total',
                                                   labels))
        self.assertEqual(
            self.log.read_refusals()[0].last, found.get_sample_value(
                'ghsched_last_refusal_timestamp_seconds', labels))


class CollectTest(base.TestCase):
    """The records of several hosts, as nova-api collects them."""

    def collect(self, answers, bus=True):
        def call(_context, method):
            self.assertEqual('list_refusals', method)
            answer = answers[client.prepare.call_args.kwargs['server']]
            if isinstance(answer, Exception):
                raise answer
            return answer
        client = mock.Mock()
        client.prepare.return_value.call = call
        with mock.patch.multiple(
                refusals.messaging, make_rpc_client=lambda *_args: client,
                is_bus_reachable=lambda _context: bus), mock.patch.object(
                refusals.nova_seams, 'list_scheduler_hosts',
                return_value=set(answers)):
            return refusals.collect_refusals(mock.sentinel.context)

    def test_records_of_all_hosts_are_summed(self):
        one = refusal_record.FORMAT.render(
            [refusal_record.RefusalCount('1', 'small', 2, 5.0)])
        found = self.collect({
            'a': one, 'b': one, 'c': oslo_messaging.MessagingTimeout(),
            'd': oslo_messaging.RemoteError('UnsupportedVersion')})
        self.assertEqual({'refusals': [{
            'flavor': '1', 'name': 'small', 'count': 4, 'last': 5.0}],
            'silent': ['c', 'd']}, json.loads(json.dumps(found)))

    def test_no_host_is_asked_without_a_message_bus(self):
        self.assertEqual({'refusals': [], 'silent': ['a']},
                         self.collect({'a': AssertionError()}, bus=False))

    def test_user_needs_the_policy_rule(self):
        context = mock.sentinel.context
        with mock.patch.object(refusals.policies, 'authorize',
                               side_effect=exception.Forbidden) as authorize:
            self.assertRaises(exception.Forbidden, refusals.list_refusals,
                              context)
        authorize.assert_called_once_with(
            context, 'os_compute_api:ghsched:list-refusals', {})

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

"""``ghsched server set``: what is asked for, and what is printed."""

import contextlib
import io
import json
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.base import action_errors as errors
from ghsched_nova.cmd import main
from ghsched_nova.features.live_change import servers
from ghsched_nova.features.live_change import set_command
from ghsched_nova.tests.fixtures import plans
from ghsched_placement.features.live_change import change as changes
from ghsched_placement.features.live_change import change_arguments
from ghsched_placement.flavor import policy as policies
from ghsched_placement.tests import base


class CommandTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.answer = mock.Mock(return_value=plans.plan())
        self.enterContext(mock.patch.object(set_command, 'load_nova_api_conf'))
        context = mock.MagicMock()
        self.enterContext(
            mock.patch('ghsched_nova.features.live_change.records.'
                       'open_cell_context',
                       return_value=context)
        )
        self.enterContext(mock.patch(
            'ghsched_nova.features.live_change.records.record_action'))
        self.enterContext(mock.patch.object(
            servers, 'make_policy_changer', return_value=mock.Mock(
                change_policy=self.answer)))

    def call(self, *arguments, server=plans.UUID):
        out, err = io.StringIO(), io.StringIO()
        with (contextlib.redirect_stdout(out),
              contextlib.redirect_stderr(err)):
            try:
                status = main.main(['server', 'set', server, *arguments])
            except SystemExit as end:
                status = end.code
        return status, out.getvalue(), err.getvalue()

    def test_options_become_extra_specs(self):
        self.call('--mem-bw-max', '40', '--mem-bw-max', '1=60',
                  '--mem-bw-min=0=10', '--mem-bw-hardlimit', 'false',
                  '--mem-bw-priority', '5', '--unset', 'mem_bw_min.1')
        self.answer.assert_called_once_with({
            'ghsched:mem_bw_max': '40', 'ghsched:mem_bw_max.1': '60',
            'ghsched:mem_bw_min.0': '10', 'ghsched:mem_bw_hardlimit': 'false',
            'ghsched:mem_bw_priority': '5', 'ghsched:mem_bw_min.1': None},
            False)

    def test_invalid_input_is_refused_by_name(self):
        for words, arguments in (
                ('ghsched:mem_bw_max: ', ['--mem-bw-max', '0']),
                ('ghsched:mem_bw_max.X: ', ['--mem-bw-max', 'X=9']),
                ('ghsched:mem_bw_max: is given twice',
                 ['--mem-bw-max', '40', '--unset', 'mem_bw_max']),
                ('ghsched:vfs: ', ['--unset', 'vfs']),
                ('no change is given', [])):
            status, _out, err = self.call(*arguments)
            self.assertEqual(1, status)
            self.assertIn(words, err)
        self.answer.assert_not_called()

    def test_a_name_is_no_uuid(self):
        status, _out, err = self.call('--mem-bw-max', '40', server='web')
        self.assertEqual(1, status)
        self.assertIn("'web' is not the UUID", err)

    def test_wrong_usage(self):
        self.assertEqual(2, self.call('--mem-bw-much', '4')[0])

    def test_the_table_shows_what_the_host_makes_of_it(self):
        status, out, _err = self.call('--mem-bw-min', '20')
        self.assertEqual(0, status)
        self.assertIn('| 0          | 3         | mem_bw_max       | 100     '
                      '| 100     | 45.5, 46', out)
        self.assertIn('| 1          | 1         | mem_bw_min       | 10      '
                      '| 20      | 20', out)
        self.assertIn('| default | default | 3', out)
        self.assertIn('| true    | true    | - ', out)
        self.assertTrue(out.endswith('Done.\n'))

    def test_the_last_line_says_what_was_done(self):
        for words, arguments, answer in (
                ('Nothing to change.', (), plans.plan(needed=False)),
                ('Nothing was changed.', ['--dry-run'], plans.plan()),
                ('when the server starts', (), plans.plan(running=False)),
                ('Done. The host holds these values for 3 servers together',
                 (), plans.plan(guests=3))):
            self.answer.return_value = answer
            self.assertIn(words, self.call('--mem-bw-min', '20',
                                           *arguments)[1])

    def test_json(self):
        status, out, _err = self.call('--mem-bw-min', '20', '--format',
                                      'json')
        document = json.loads(out)
        self.assertEqual(0, status)
        self.assertEqual((plans.UUID, True, False, True, 1), (
            document['server']['uuid'], document['changed'],
            document['dry_run'], document['running'], document['guests']))
        first, second = document['nodes']
        self.assertEqual((10, 20), (first['before']['min'],
                                    first['after']['min']))
        self.assertEqual([6, 7], [one['domain']
                                  for one in first['effective']])
        self.assertEqual((1, 1, 50), (
            second['guest_node'], second['host_node'],
            second['after']['max']))

    def test_how_it_ends_is_the_exit_status(self):
        for status, words, error in (
                (1, 'refused: full', errors.Refused('full')),
                (1, 'refused: ghsched:mem_bw_min: much',
                 policies.PolicyError('ghsched:mem_bw_min', 'much')),
                (2, '- reboot it',
                 errors.RollbackIncomplete('full', ['reboot it'])),
                (2, 'not here', set_command.NotHere('not here'))):
            self.answer.side_effect = error
            found, out, err = self.call('--mem-bw-min', '20')
            self.assertEqual((status, ''), (found, out))
            self.assertIn(words, err)

    @given(values=st.lists(st.text(max_size=6).filter(
        lambda text: not text.startswith('-')), min_size=1, max_size=3))
    def test_any_value_is_a_wish_or_refused(self, values):
        arguments = [part for value in values
                     for part in ('--mem-bw-max', value)]
        parsed = main.make_parser().parse_args(['server', 'set', plans.UUID,
                                                *arguments])
        try:
            wish = change_arguments.parse_change_arguments(parsed)
        except policies.PolicyError as error:
            self.assertTrue(error.key.startswith('ghsched:mem_bw_max'))
            return
        self.assertEqual(len(values), len(wish))
        changes.merge_requested_changes({}, wish)


class ConfigurationTest(base.TestCase):

    def test_a_host_without_novas_api_database_is_refused(self):
        from nova import config
        options = mock.Mock()
        options.api_database.connection = None
        with (mock.patch.object(config, 'parse_args'),
              mock.patch('nova.conf.CONF', options)):
            error = self.assertRaises(set_command.NotHere,
                                      set_command.load_nova_api_conf, None)
        self.assertIn('--config-file', str(error))

    def test_a_configuration_that_can_not_be_read(self):
        from nova import config
        with mock.patch.object(config, 'parse_args',
                               side_effect=ValueError('bad url')):
            error = self.assertRaises(set_command.NotHere,
                                      set_command.load_nova_api_conf, ['x'])
        self.assertIn('bad url', str(error))

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

"""Privileged helpers end when nothing calls them."""

import socket
import threading
from unittest import mock

from oslo_privsep import comm

from ghsched_nova.base import privsep
from ghsched_placement.tests import base


class IdleHelperTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.owner = privsep.Context(
            'ghsched_nova', cfg_section='ghsched_threads_privsep',
            pypath='ghsched_nova.base.privsep.threads', capabilities=[])
        self.channel = self.owner.channel = mock.Mock()

    def is_running_after_check(self):
        self.owner.stop_if_idle()
        self.assertEqual(int(self.owner.channel is None),
                         self.channel.close.call_count)
        return self.owner.channel is not None

    def test_helper_without_a_call_is_stopped_once(self):
        self.assertFalse(self.is_running_after_check())
        self.assertFalse(self.is_running_after_check())

    def test_helper_that_was_called_is_stopped_at_the_second_check(self):
        with self.owner.call_in_progress():
            pass
        self.assertTrue(self.is_running_after_check())
        self.assertFalse(self.is_running_after_check())

    def test_helper_with_a_call_in_progress_is_not_stopped(self):
        with self.owner.call_in_progress():
            for _number in range(3):
                self.assertTrue(self.is_running_after_check())
        self.assertFalse(self.is_running_after_check())

    def test_call_that_failed_is_not_in_progress(self):
        with (self.assertRaises(OSError),
              self.owner.call_in_progress()):
            raise OSError
        self.is_running_after_check()
        self.assertFalse(self.is_running_after_check())

    def test_last_words_of_a_helper_that_is_stopped_are_read(self):
        ours, its = socket.socketpair()
        self.owner.channel = channel = comm.ClientChannel(ours)
        self.addCleanup(ours.close)
        heard = []
        channel.out_of_band = heard.append

        def helper():
            with its:
                its.recv(1)
                comm.Serializer(its).send((None, 'the end'))

        thread = threading.Thread(target=helper)
        thread.start()
        self.owner.stop_if_idle()
        thread.join()
        self.assertEqual(['the end'], heard)
        self.assertIsNone(self.owner.channel)

    def test_check_stops_all_but_the_helper_of_resctrl(self):
        stopped = {name: self.enterContext(mock.patch.object(
            getattr(privsep, name), 'stop_if_idle', side_effect=OSError))
            for name in ('context', 'threads', 'memory', 'connections',
                         'counters')}
        privsep.stop_idle_helpers()
        self.assertEqual({'context'}, {
            name for name, one in stopped.items() if not one.call_count})

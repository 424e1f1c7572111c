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

"""System calls by their names in the tables of Linux."""

import ctypes
import errno
from unittest import mock

from ghsched_nova.base import system_calls
from ghsched_placement.tests import base


class SystemCallTest(base.TestCase):

    def test_error_is_that_of_the_kernel(self):
        attr = ctypes.create_string_buffer(48)
        self.assertEqual(0, system_calls.make_system_call(
            'sched_getattr', 0, attr, 48, 0))
        # PID_MAX_LIMIT of include/linux/threads.h.
        self.assertRaises(ProcessLookupError, system_calls.make_system_call,
                          'sched_getattr', 2 ** 22, attr, 48, 0)

    def test_unknown_machine_has_no_system_calls(self):
        with mock.patch('platform.machine', return_value='riscv64'):
            error = self.assertRaises(OSError, system_calls.make_system_call,
                                      'move_pages', 0)
        self.assertEqual(errno.ENOSYS, error.errno)

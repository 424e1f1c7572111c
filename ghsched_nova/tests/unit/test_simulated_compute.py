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


"""Memory of guests of a simulated host, as recorded by its nova-compute."""

import inspect

from ghsched_nova.features.live_change import page_move
from ghsched_nova.tests.fixtures import cloud_tools


class RecordedMemoryTest(cloud_tools.CloudToolsTestCase):

    def setUp(self):
        super().setUp()
        import simulated_compute
        self.kind = simulated_compute.RecordedMemory
        self.memory = self.kind(self.home, 0)

    def start(self, pid):
        (self.home / 'guest.pid').write_text(f'{pid}\n')

    def test_memory_is_on_the_nodes_that_it_was_moved_to(self):
        self.start(7)
        self.assertEqual('', self.memory.explain_unmovable_memory('guest'))
        self.assertIsNone(self.memory.read_allowed_nodes('guest'))
        self.memory.move_guest_memory('guest', {0: 1}, [0])
        self.assertEqual({1}, self.memory.read_allowed_nodes('guest'))
        # As nova-compute reads it that is started again.
        self.assertEqual({1}, self.kind(
            self.home, 0).read_allowed_nodes('guest'))

    def test_guest_that_was_started_again_is_where_its_xml_has_it(self):
        self.start(7)
        self.memory.move_guest_memory('guest', {0: 1}, [0])
        self.start(8)
        self.assertIsNone(self.memory.read_allowed_nodes('guest'))

    def test_guest_that_does_not_run_cannot_move(self):
        self.assertTrue(self.memory.explain_unmovable_memory('guest'))
        self.assertIsNone(self.memory.read_allowed_nodes('guest'))

    def test_all_functions_of_the_mover_are_replaced(self):
        for name, function in vars(page_move.MemoryMover).items():
            if not name.startswith('_'):
                self.assertEqual(
                    [*inspect.signature(function).parameters],
                    [*inspect.signature(getattr(
                        self.kind, name)).parameters], name)

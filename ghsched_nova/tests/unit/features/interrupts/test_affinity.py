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

"""The affinity of an interrupt, as the kernel writes it."""

from pathlib import Path
import tempfile

from ghsched_nova.features.interrupts import engine
from ghsched_placement.tests import base

#: More digits than int() takes.
LONG = '9' * 5000


class AffinityTest(base.TestCase):

    def test_interrupt_on_a_node_with_a_long_number_has_no_node(self):
        top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (top / 'smp_affinity_list').write_text('0-1\n')
        for text in (LONG, '-1', '²', ''):
            (top / 'node').write_text(text)
            self.assertIsNone(engine.read_interrupt_affinity(top).node)

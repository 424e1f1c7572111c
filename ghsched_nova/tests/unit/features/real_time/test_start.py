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

"""The start of a guest, for resctrl and for the scheduling of its threads."""

from unittest import mock

from lxml import etree

from ghsched_nova.features.real_time import host_scheduling as keeper
from ghsched_nova.features.real_time import scheduling
from ghsched_nova.tests.fixtures import engine_base
from ghsched_nova.virt import enforcement


class StartTest(engine_base.EngineTestCase):

    def test_a_start_parses_the_xml_once_for_resctrl_and_threads(self):
        xml = engine_base.running().xml + f'<!-- {scheduling.NAMESPACE} -->'
        guest = mock.Mock(id=1, get_xml_desc=lambda: xml)
        enforcer = enforcement.PolicyEnforcer(
            self.engine, keeper.ThreadScheduler(self.options.ghsched),
            mock.Mock(**{'host.get_guest.return_value': guest}), mock.Mock())
        with mock.patch.object(
                etree, 'fromstring', wraps=etree.fromstring) as parse, (
                mock.patch.object(
                    keeper.engine, 'reconcile_threads')) as threads:
            threads.return_value.problems = ()
            enforcer.enforce_after_migration(mock.Mock())
        self.call.assert_called_once()
        threads.assert_called_once()
        self.assertEqual(1, parse.call_count)

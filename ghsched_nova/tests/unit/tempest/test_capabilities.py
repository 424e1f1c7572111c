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

from unittest import mock

from tempest.lib import exceptions

from ghsched_placement.tests import base
from tempest_plugin.services import capabilities


class CapabilitiesTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.client = mock.Mock()

    def _answer(self, *providers):
        self.client.list_resource_providers.return_value = {
            'resource_providers': list(providers)}

    def test_all_are_asked_of_one_host(self):
        self._answer({'uuid': 'a'})
        self.assertTrue(
            capabilities.has_capable_host(
                self.client, 'MEM_BW_MIN', 'MEM_BW_MAX')
        )
        self.client.list_resource_providers.assert_called_once_with(
            required='CUSTOM_GHSCHED_MEM_BW_MIN,CUSTOM_GHSCHED_MEM_BW_MAX')

    def test_no_host_has_the_trait(self):
        self._answer()
        self.assertFalse(
            capabilities.has_capable_host(self.client, 'MEM_BW_MIN')
        )

    def test_trait_that_placement_does_not_know(self):
        self.client.list_resource_providers.side_effect = (
            exceptions.BadRequest)
        self.assertFalse(
            capabilities.has_capable_host(self.client, 'MEM_BW_MIN'))

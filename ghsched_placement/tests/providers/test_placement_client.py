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

import types

from keystoneauth1 import exceptions

from ghsched_placement.providers import placement_client
from ghsched_placement.tests import base


def answer(code, **document):
    return types.SimpleNamespace(status_code=code, json=lambda: document)


def refusal(code, detail, name=''):
    return answer(code, errors=[{'detail': detail, 'code': name}])


class ErrorsTest(base.TestCase):
    """Placement's answers as its API reference has them."""

    def client(self, response):
        def get(url, version):
            if isinstance(response, Exception):
                raise response
            return response
        return placement_client.PlacementClient(types.SimpleNamespace(
            get=get, put=lambda url, body, version: get(url, version)))

    def error(self, response, method='get_usages', *args):
        return self.assertRaises(
            placement_client.PlacementError,
            getattr(self.client(response), method), *(args or ('a',)))

    def test_answer_of_placement_is_in_the_error(self):
        error = self.error(refusal(404, 'No resource provider'))
        self.assertEqual('Placement: HTTP 404; No resource provider',
                         str(error))
        self.assertEqual((404, False), (error.code, error.concurrent))

    def test_a_write_that_met_another(self):
        for name, met in (('placement.concurrent_update', True),
                          ('placement.undefined_code', False)):
            error = self.error(refusal(409, '', name), 'put', '/', {})
            self.assertEqual(met, error.concurrent)

    def test_no_answer_and_one_that_is_no_json(self):
        error = self.error(exceptions.ConnectFailure('refused'))
        self.assertEqual((0, 'Placement does not answer'),
                         (error.code, str(error)))
        self.assertEqual('Placement: HTTP 503',
                         str(self.error(answer(503))))

    def test_a_name_that_no_host_has_ever_had_is_nowhere(self):
        for text in ('No such trait(s): X.', 'Invalid resource class in '
                     'resources parameter: No such resource class Y.'):
            client = self.client(refusal(400, text))
            self.assertEqual([], client.get_allocation_candidates([], 1)[
                'allocation_requests'])
            self.assertEqual(0, client.count_providers_with_trait('X'))
        self.error(refusal(400, 'Invalid query'), 'get_allocation_candidates',
                   [], 1)

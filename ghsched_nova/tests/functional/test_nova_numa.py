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

"""Nova's own NUMA tests, on our driver, filter and scheduler manager."""

from nova.tests.functional.libvirt import test_numa_servers

from ghsched_nova.tests.functional import nova_base
from ghsched_placement.providers import names
from ghsched_placement.tests.fixtures import spaces


class WithoutOurUsage:
    """A Placement client that leaves out an unused resource class of ours.

    Nova's tests compare the whole usage of the compute node, and a host with
    resctrl has one class more.
    """

    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)

    def get(self, url, *args, **kwargs):
        response = self._client.get(url, *args, **kwargs)
        if url.endswith('/usages'):
            usages = dict(response.body['usages'])
            if usages.get(names.RESCTRL_GROUP) == 0:
                del usages[names.RESCTRL_GROUP]
            return Usages({'usages': usages})
        return response


class Usages:
    def __init__(self, body):
        self.body = body


@spaces.run_sample
class NUMAServersTest(nova_base.NovaTestCase,
                      test_numa_servers.NUMAServersTest):
    """A guest without ``ghsched:`` keys gets exactly what Nova gives it."""

    def setUp(self):
        super().setUp()
        self.placement = WithoutOurUsage(self.placement)

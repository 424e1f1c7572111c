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

"""Nova's own tests of real-time guests, with the parts of ghsched."""

import fixtures
from nova.tests.functional.libvirt import test_rt_servers
from nova.tests.unit.virt.libvirt import test_driver

from ghsched_nova.tests.functional import nova_base
from ghsched_nova.virt import driver
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces


@spaces.run_sample
class RealTimeServersTest(nova_base.NovaTestCase,
                          test_rt_servers.RealTimeServersTest):
    """Guests with ``hw:cpu_realtime``, from the API to the host."""


@spaces.run_sample
class RealTimeConfigTest(base.TestCase, test_driver.LibvirtConnTestCase):
    """The driver's configuration of guests with ``hw:cpu_realtime``."""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.driver.LibvirtDriver',
            driver.GhschedLibvirtDriver))


# Of some 800 tests of the class those that are meant.
for _name in dir(RealTimeConfigTest):
    if _name.startswith('test_') and 'realtime' not in _name:
        setattr(RealTimeConfigTest, _name, None)

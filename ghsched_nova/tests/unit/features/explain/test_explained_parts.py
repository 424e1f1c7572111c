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

import sys

from ghsched_nova.features import declared_compute
from ghsched_nova.host import compute_hooks
from ghsched_placement.features.declared_needs import NEEDS
from ghsched_placement.tests import base

#: Features whose XML ``ghsched explain`` leaves out.
LEFT_OUT = {
    'cpu_cache',    # metadata only; the CPUs depend on running guests
    'guest_channel',    # its path is libvirt's
    'locked_memory',    # depends on the devices that a guest has
}


class ExplainedPartsTest(base.TestCase):

    def test_explain_shows_the_xml_of_each_feature(self):
        rendering = {
            feature.name for feature in declared_compute.FEATURES
            for one in vars(sys.modules[feature.hooks.__module__]).values()
            if isinstance(one, type)
            and issubclass(one, compute_hooks.ComputeHooks)
            and 'render' in vars(one)
            and one is not compute_hooks.ComputeHooks}
        self.assertEqual(set(), rendering - {*NEEDS['explain'], *LEFT_OUT})
        self.assertIn('real_time', rendering)

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

"""Burst values in the kernel, on each kernel that guarantees bandwidth."""

import functools
from unittest import mock

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_nova.tests.unit.resctrl import test_emulated
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base


@functools.cache
def guaranteeing():
    """The emulated hosts with a guarantee."""
    hosts = map(test_emulated.read, test_emulated.SPEAKS)
    return [host for host in hosts if host.dialect.find_knob('minimum')]


class HeldBurstsTest(base.TestCase):

    def resolve_minimum(self, host, minimum, burst):
        setting, = resolve.resolve_settings(host, GuestPolicy(
            (NodePolicy(minimum, burst=burst),)), (0,))
        return setting.minimum

    def test_there_are_kernels_to_show_it_on(self):
        self.assertGreater(len(guaranteeing()), 1)

    @settings(deadline=None)
    @given(st.data(), st.integers(0, 90), st.floats(1, 6))
    def test_guarantees_are_never_more_than_what_is_counted(
            self, data, pool, ratio):
        host = data.draw(st.sampled_from(guaranteeing()))
        self.enterContext(mock.patch.object(
            resctrl_host, 'BURST_RATIO', ratio))
        hard, bursts, total = 100 - pool, int(pool * ratio), 0
        for _ in range(data.draw(st.integers(1, 8))):
            # As Placement counts: multiples of the step of the host.
            minimum = data.draw(st.integers(0, 40))
            minimum -= minimum % host.make_description().guarantee_step
            burst = data.draw(st.integers(0, 100 - minimum))
            minimum = minimum and resolve.resolve_settings(host, GuestPolicy(
                (NodePolicy(minimum),)), (0,))[0].minimum
            if minimum > hard or burst > bursts or minimum + burst > 100:
                continue
            hard, bursts = hard - minimum, bursts - burst
            held = self.resolve_minimum(host, minimum, burst)
            self.assertGreaterEqual(held, minimum)
            self.assertLessEqual(held, minimum + burst / ratio)
            total += held
        self.assertLessEqual(total, 100)

    def test_a_third_of_a_burst_with_the_guarantee(self):
        host = test_emulated.read('openeuler66')
        self.assertEqual(16, self.resolve_minimum(host, 10, 20))
        self.assertEqual(10, self.resolve_minimum(host, 10, 0))

    def test_guests_that_share_a_group_have_all_of_theirs(self):
        host = test_emulated.read('openeuler66')
        both = resolve.multiply_policy_by_guests(host, GuestPolicy(
            (NodePolicy(10, burst=20),)), 2)
        setting, = resolve.resolve_settings(host, both, (0,))
        self.assertEqual(33, setting.minimum)

    def test_a_kernel_without_guarantees_refuses(self):
        error = self.assertRaises(
            resolve.PolicyRefused, self.resolve_minimum,
            test_emulated.read('intel'), 0, 20)
        self.assertIn('ghsched:mem_bw_burst=20 cannot be enforced', str(error))

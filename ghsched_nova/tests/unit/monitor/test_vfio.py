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

"""Interrupts of VFIO."""

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from ghsched_nova.monitor import vfio

INTERRUPTS = '''\
            CPU0       CPU1
  24:          5          9  IR-PCI-MSI 524288-edge      nvme0q0
 152:         10          2  IR-PCI-MSI 5-edge  vfio-msix[0](0000:18:00.2)
 153:          0          1  IR-PCI-MSI 6-edge  vfio-msix[1](0000:18:00.2)
 154:          0          0  ITS-MSI 12582912 Edge  vfio-msi[0](0000:7d:01.1)
 155:          3          0  GICv3 78 Level  vfio-intx(0001:00:00.0), usb1
 NMI:          1          1  Non-maskable interrupts
'''


class InterruptsTest(base.BaseTestCase):

    def test_all_vectors_of_a_device_are_summed_up(self):
        self.assertEqual({'0000:18:00.2': 13, '0000:7d:01.1': 0,
                          '0001:00:00.0': 3}, vfio.interrupts(INTERRUPTS))

    @given(st.lists(st.lists(st.integers(0, 2 ** 32), min_size=2,
                             max_size=2), max_size=5))
    def test_what_the_kernel_writes_is_read(self, vectors):
        text = INTERRUPTS + ''.join(
            f'{number}: {a:10} {b:10} IR-PCI-MSI 1-edge '
            f'vfio-msix[{number}](0000:01:00.0)\n'
            for number, (a, b) in enumerate(vectors))
        self.assertEqual(sum(map(sum, vectors)),
                         vfio.interrupts(text).get('0000:01:00.0', 0))

    @given(st.text())
    def test_any_text_is_read(self, text):
        self.assertEqual({}, vfio.interrupts(text.replace('vfio', '')))

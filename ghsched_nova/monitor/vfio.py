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

"""Interrupts of passthrough devices that the host has handled (pure).

VFIO names them by the PCI address of the device, as in
``vfio-msix[0](0000:18:00.2)`` (drivers/vfio/pci/vfio_pci_intrs.c). One that
reaches the guest without the hypervisor is not counted.
"""

import collections
from collections.abc import Mapping
import itertools
import re

_DEVICE = re.compile(r'\bvfio-\w+(?:\[\d+\])?\('
                     r'([0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\)')


def interrupts(text: str) -> Mapping[str, int]:
    """Interrupts on all CPUs, by the address of the device.

    :param text: of ``/proc/interrupts``.
    """
    found = collections.Counter[str]()
    for line in text.splitlines():
        devices = set(_DEVICE.findall(line))
        if not devices:
            continue
        counts = itertools.takewhile(
            lambda word: word.isascii() and word.isdigit(),
            line.partition(':')[2].split())
        number = sum(map(int, counts))
        for device in devices:
            found[device] += number
    return found

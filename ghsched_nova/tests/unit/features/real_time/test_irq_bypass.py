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

"""Signs of a host whose interrupts bypass its hypervisor.

The lines of logs are those that kernels of such machines print, and the
registers of IOMMUs those of real ones: 0x22294ade and 0x22254ade of AMD, whose
kernels say GA_vAPIC of them. That of a DMAR unit is made of its bits.
"""

from dataclasses import replace
import os
import pathlib
import shutil
import stat
import tempfile

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.features.real_time import irq_bypass as bypass
from ghsched_placement.tests import base

REMAPPED = ' 24:  5  9  IR-PCI-MSI 524288-edge  nvme0q0\n'
KERNEL = ('GICv3: CPU0: found redistributor 80000 region 0\n'
          'kvm [1]: vgic interrupt IRQ9\n'
          'kvm [1]: {}\n'
          'kvm [1]: VHE mode initialized successfully\n')
#: Of Debian's 6.1 kernel on the GICv4 of QEMU 7.2 (``-machine
#: virt,gic-version=4,virtualization=on``), with kvm-arm.vgic_v4_enable=1.
BOOTED = '''\
[    0.000000] GICv3: GICv3 features: 16 PPIs
[    0.000000] GICv3: GICv4 features:\x20
[    0.000000] ITS@0x0000000008080000: Single VMOVP capable
[    0.000000] ITS: Allocated DevID ffff as GICv4 proxy device (2 slots)
[    0.000000] ITS: Enabling GICv4 support
[    4.326527] kvm [1]: IPA Size Limit: 44 bits
[    4.413515] kvm [1]: GICv4 support enabled
[    4.413760] kvm [1]: GICv3: no GICV resource entry
[    4.463498] kvm [1]: vgic interrupt IRQ9
[    4.464237] kvm [1]: Hyp mode initialized successfully
'''
GUIDE = 'kvm [1]: GICv4.1 support enabled'

#: 39-bit tables, fault reporting and the like, with and without bit 59.
DMAR_PI, DMAR_OLD = 0x8D2078C106F0466, 0x0D2078C106F0466
INTEL = bypass.BypassFacts({'kvm_intel/enable_apicv': 'Y'},
                           dmars=(DMAR_PI,) * 2,
                           interrupts=REMAPPED)
AMD = bypass.BypassFacts({'kvm_amd/avic': 'Y'},
                         ivhds=(0x58F77EF22294ADE, 0x206D73EF22254ADE),
                         interrupts=REMAPPED)


class DetectTest(base.TestCase):

    def assertFound(self, wanted, facts):
        self.assertEqual(set(wanted), bypass.detect_interrupt_bypass(facts))

    def assertEachNeeded(self, facts, **changes):
        for name, values in changes.items():
            for value in values:
                self.assertFound((), replace(facts, **{name: value}))

    def test_the_log_of_the_kernel_says_what_the_gic_does(self):
        for line, wanted in (
                ('GICv4 support enabled', {bypass.VLPI}),
                ('GICv4.1 support enabled', {bypass.VLPI, bypass.VSGI}),
                ('GICv4 support disabled', ()),
                ('GICv4.1 support disabled', ())):
            log = KERNEL.format(line)
            self.assertFound(wanted, bypass.BypassFacts(log=log))
            self.assertFound(wanted, bypass.BypassFacts(
                log=log.replace('kvm', '[    1.234567] kvm')))

    def test_a_kernel_that_was_booted_on_a_gicv4(self):
        self.assertFound({bypass.VLPI}, bypass.BypassFacts(log=BOOTED))
        # What the ITS can do is not what KVM does with it.
        self.assertFound((), bypass.BypassFacts(log=BOOTED.replace(
            'kvm [1]: GICv4 support enabled\n', '')))

    def test_requested_and_present_state_differ(self):
        self.assertFound((), bypass.BypassFacts(
            command_line='kvm-arm.vgic_v4_enable=1',
            log='Kernel command line: kvm-arm.vgic_v4_enable=1\n'))

    def test_intel_needs_apicv_and_posting_of_every_unit(self):
        self.assertFound({bypass.POSTED}, INTEL)
        self.assertEachNeeded(
            INTEL, parameters=[{}, {'kvm_intel/enable_apicv': 'N'}],
            dmars=[(), (DMAR_PI, DMAR_OLD)], interrupts=['', '24: 1 PCI-MSI'],
            command_line=['intremap=nopost', 'quiet intremap=on,nopost',
                          'intremap=off'])

    def test_amd_needs_avic_and_the_mode_for_guests(self):
        self.assertFound({bypass.AVIC}, AMD)
        self.assertEachNeeded(
            AMD, parameters=[{}, {'kvm_amd/avic': 'N'}],
            ivhds=[(), (0x58F77EF22294ADE, 0xF77EF22094ADE)],
            interrupts=[''], command_line=['amd_iommu_intr=legacy'])

    def test_newer_kernels_can_have_it_turned_off(self):
        for facts, module in ((INTEL, 'kvm_intel'), (AMD, 'kvm_amd')):
            name = f'{module}/enable_device_posted_irqs'
            for value, there in (('Y', True), ('N', False)):
                self.assertEqual(
                    there,
                    bool(
                        bypass.detect_interrupt_bypass(
                            replace(
                                facts,
                                parameters={**facts.parameters, name: value},
                            )
                        )
                    ),
                )

    @given(st.text(), st.text(), st.dictionaries(
        st.sampled_from(['kvm_intel/enable_apicv', 'kvm_amd/avic']),
        st.text()))
    def test_any_text_is_something_or_nothing(self, log, interrupts,
                                              parameters):
        found = bypass.detect_interrupt_bypass(bypass.BypassFacts(
            parameters, (1,), (2,), interrupts, '', log))
        self.assertLessEqual(found, {bypass.VLPI, bypass.VSGI})


class OfferedTest(base.TestCase):

    def test_an_operator_has_the_last_word(self):
        found = frozenset({bypass.POSTED})
        for words, wanted in (
                (['auto'], {bypass.ANY, bypass.POSTED}), (['none'], set()),
                ([], set()),
                (['gicv4.1'], {bypass.ANY, bypass.VLPI, bypass.VSGI}),
                (['auto', 'avic'],
                 {bypass.ANY, bypass.POSTED, bypass.AVIC})):
            self.assertEqual(wanted,
                             bypass.select_interrupt_bypass(words, found))
        self.assertEqual(
            set(), bypass.select_interrupt_bypass(['auto'], frozenset()))


class ReadTest(base.TestCase):

    def setUp(self):
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.top = pathlib.Path(directory.name)

    def read(self, **files):
        for name, text in files.items():
            path = self.top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return bypass.detect_interrupt_bypass(
            bypass.read_interrupt_bypass_facts(self.top / 'sys',
                                               self.top / 'proc'))

    def test_a_host_without_anything(self):
        self.assertEqual(frozenset(), self.read())

    def test_intel(self):
        self.assertEqual({bypass.POSTED}, self.read(**{
            'sys/module/kvm_intel/parameters/enable_apicv': 'Y\n',
            'sys/class/iommu/dmar0/intel-iommu/cap': f'{DMAR_PI:x}\n',
            'proc/interrupts': REMAPPED}))

    def test_amd(self):
        files = {'sys/module/kvm_amd/parameters/avic': '1\n',
                 'sys/class/iommu/ivhd0/amd-iommu/features':
                 '206d73ef22254ade:0\n', 'proc/interrupts': REMAPPED}
        self.assertEqual({bypass.AVIC}, self.read(**files))
        self.assertEqual(frozenset(), self.read(**{
            'sys/class/iommu/ivhd1/amd-iommu/features': 'x\n'}))

    def test_arm_asks_the_journal_and_then_the_ring_buffer(self):
        path = os.environ['PATH']
        self.addCleanup(os.environ.update, PATH=path)
        (self.top / 'timeout').symlink_to(shutil.which('timeout'))
        os.environ['PATH'] = str(self.top)
        interrupts = {'proc/interrupts': ' 9: 0 GICv3 25 Level vgic\n'}
        self.assertEqual(frozenset(), self.read(**interrupts))
        self.command('journalctl', 'No journal files were opened', 1)
        self.command('dmesg', GUIDE)
        self.assertEqual({bypass.VLPI, bypass.VSGI},
                         self.read(**interrupts))
        self.command('journalctl', GUIDE.replace('.1', ''), 1)
        self.assertEqual({bypass.VLPI}, self.read(**interrupts))
        self.command('journalctl', GUIDE.replace('.1', ''))
        self.assertEqual({bypass.VLPI}, self.read(**interrupts))

    def command(self, name, says, code=0):
        path = self.top / name
        path.write_text(f'#!/bin/sh\necho "{says}"\nexit {code}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

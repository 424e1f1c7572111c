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


"""Each precondition of resctrl that is missing is named.

The configurations are excerpts of those of Debian's kernels 7.2.13-1 (sid).
"""

import dataclasses
import gzip
from pathlib import Path
import tempfile

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.features.doctor import node
from ghsched_nova.features.doctor import preconditions
from ghsched_placement.tests import base

DEBIAN_ARM64 = ('CONFIG_ARM64_MPAM=y\nCONFIG_ARM64_MPAM_DRIVER=y\n'
                'CONFIG_ACPI_MPAM=y\n# CONFIG_RESCTRL_FS is not set\n')
DEBIAN_AMD64 = 'CONFIG_X86_CPU_RESCTRL=y\nCONFIG_RESCTRL_FS=y\n'
ON = DEBIAN_ARM64.replace('# CONFIG_RESCTRL_FS is not set',
                          'CONFIG_RESCTRL_FS=y')

#: Hosts that lack nothing but the mount.
X86 = preconditions.Kernel(
    machine='x86_64', release='7.2.13-amd64',
    filesystems='nodev\tsysfs\nnodev\tresctrl\n', config=DEBIAN_AMD64,
    tables=frozenset({'DSDT'}), cmdline='BOOT_IMAGE=/vmlinuz ro',
    cpuinfo='processor\t: 0\nflags\t\t: fpu rdt_a cqm mba\n')
ARM = dataclasses.replace(
    X86, machine='aarch64', config=ON, tables=frozenset({'DSDT', 'MPAM'}),
    cpuinfo='Features\t: fp asimd\n')
OLK_510 = dataclasses.replace(ARM, release='5.10.0-60.18.0.50.oe2203.aarch64',
                              config='', cmdline='mpam=acpi')
OLK_66 = dataclasses.replace(ARM, release='6.6.0-28.0.0.34.oe2403.aarch64',
                             config=None, cmdline='ro arm64.mpam')

#: Change of a host, and its preconditions that are named then; three of each.
NOT_THERE = {'filesystems': 'nodev\tsysfs\n'}
FAULTS: tuple[tuple[preconditions.Kernel, dict, str], ...] = (
    (ARM, NOT_THERE | {'config': DEBIAN_ARM64}, 'kernel option'),
    (ARM, NOT_THERE | {'config': DEBIAN_ARM64.replace(
        '# CONFIG_RESCTRL_FS is not set\n', '')}, 'kernel option'),
    (X86, NOT_THERE | {'config': DEBIAN_AMD64.replace(
        'CONFIG_RESCTRL_FS=y', '# CONFIG_RESCTRL_FS is not set')},
     'kernel option'),
    (X86, NOT_THERE | {'config': '# CONFIG_X86_CPU_RESCTRL is not set\n'},
     'kernel driver'),
    (ARM, NOT_THERE | {'config': ON.replace(
        'CONFIG_ARM64_MPAM_DRIVER=y', '# CONFIG_ARM64_MPAM_DRIVER is not set')
    }, 'kernel driver'),
    (ARM, NOT_THERE | {'config': 'CONFIG_RESCTRL_FS=y\n'}, 'kernel driver'),
    (ARM, NOT_THERE | {'tables': frozenset({'DSDT'})}, 'firmware'),
    (ARM, NOT_THERE | {'tables': frozenset()}, 'firmware'),
    (OLK_66, NOT_THERE | {'tables': frozenset({'PPTT'})}, 'firmware'),
    (X86, {'cmdline': 'ro rdt=cmt,!mba quiet', 'mounted': True,
           'info': frozenset({'L3'})}, 'command line'),
    (ARM, NOT_THERE | {'cmdline': 'ro arm64.nompam'}, 'command line'),
    (OLK_66, NOT_THERE | {'cmdline': 'ro mpam=acpi'}, 'command line'),
    (OLK_510, NOT_THERE | {'cmdline': 'ro'}, 'command line'),
    (X86, NOT_THERE | {'cpuinfo': 'flags\t\t: fpu rdt_x mbazoo\n'},
     'processor'),
    (X86, NOT_THERE | {'cpuinfo': 'flags\t\t: fpu rdt_a cqm\n'}, 'processor'),
    (X86, {'cpuinfo': 'flags\t\t: fpu rdt_a cat_l3\n', 'mounted': True,
           'info': frozenset({'L3', 'L3_MON'})}, 'processor'),
    (X86, NOT_THERE, 'file system'),
    (ARM, NOT_THERE | {'config': None}, 'file system'),
    (OLK_510, {'filesystems': ''}, 'file system'),
    (X86, {}, 'mount'), (ARM, {}, 'mount'), (OLK_66, {}, 'mount'),
    (X86, {'mounted': True, 'info': frozenset({'L3'})}, 'control'),
    (ARM, {'mounted': True, 'info': frozenset()}, 'control'),
    (OLK_510, {'mounted': True, 'info': frozenset({'L3', 'L3_MON'})},
     'control'),
)
NAMES = {'kernel option', 'kernel driver', 'firmware', 'command line',
         'processor', 'file system', 'mount', 'control'}


class MissingTest(base.TestCase):

    def test_each_precondition_that_is_missing_is_named(self):
        seen = []
        for host, change, name in FAULTS:
            found = preconditions.list_unmet_preconditions(
                dataclasses.replace(host, **change)
            )
            self.assertEqual([name], [one.name for one in found],
                             (host.release, change))
            for one in found:
                self.assertTrue(one.text and one.remedy)
            seen.append(name)
        self.assertEqual(NAMES, set(seen))
        for name in NAMES:
            self.assertGreaterEqual(seen.count(name), 3, name)

    def test_all_that_is_missing_is_named_in_order(self):
        found = preconditions.list_unmet_preconditions(dataclasses.replace(
            ARM, filesystems='', config='', tables=frozenset(),
            cmdline='arm64.nompam'))
        self.assertEqual(
            ['kernel option', 'kernel driver', 'firmware', 'command line'],
            [one.name for one in found])

    def test_debian_on_arm_is_refused_with_the_missing_kernel_option(self):
        (found,) = preconditions.list_unmet_preconditions(dataclasses.replace(
            ARM, release='7.2.13-arm64', filesystems='nodev\tproc',
            config=DEBIAN_ARM64))
        self.assertEqual('the kernel 7.2.13-arm64 is built without '
                         'CONFIG_RESCTRL_FS', found.text)

    def test_an_old_kernel_of_x86_needs_no_option_of_its_own(self):
        self.assertEqual(
            (),
            preconditions.list_unmet_preconditions(
                dataclasses.replace(X86, info=frozenset({'MB'}))
            ),
        )
        (found,) = preconditions.list_unmet_preconditions(dataclasses.replace(
            X86, filesystems='', config='CONFIG_X86_CPU_RESCTRL=y\n'))
        self.assertEqual('file system', found.name)

    def test_the_last_word_on_the_command_line_counts(self):
        for words, off in (('rdt=!mba', True), ('rdt=!mba rdt=mba', False),
                           ('rdt=mba rdt=!mba', True), ('rdt=cmt', False)):
            names = [
                one.name
                for one in preconditions.list_unmet_preconditions(
                    dataclasses.replace(X86, cmdline=words)
                )
            ]
            self.assertEqual(off, 'command line' in names, words)

    @given(st.builds(
        preconditions.Kernel, st.sampled_from(
            ('x86_64', 'aarch64', 'riscv64', '')), st.text(), st.text(),
        st.none() | st.text(), st.none() | st.frozensets(st.text()),
        st.text(), st.text(), st.booleans(), info=st.frozensets(
            st.sampled_from(('MB', 'L3')))))
    def test_a_host_with_the_control_lacks_nothing_and_others_something(
            self, kernel):
        found = preconditions.list_unmet_preconditions(kernel)
        self.assertEqual('MB' not in kernel.info, bool(found))
        self.assertLessEqual({one.name for one in found}, NAMES)


class ReadTest(base.TestCase):

    def test_the_files_of_a_host_are_read(self):
        top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        proc, sysfs, root = (top / name for name in ('proc', 'sys', 'root'))
        for path in (proc, sysfs / 'firmware/acpi/tables', root / 'info/L3'):
            path.mkdir(parents=True)
        (sysfs / 'firmware/acpi/tables/MPAM').write_text('')
        (proc / 'config.gz').write_bytes(gzip.compress(ON.encode()))
        for name in ('filesystems', 'cpuinfo', 'cmdline'):
            (proc / name).write_text(name)
        (root / 'schemata').write_text('L3:0=f\n')
        found = node._read_kernel_properties(root, sysfs, proc)
        self.assertEqual(
            (ON, {'MPAM'}, 'filesystems', 'cpuinfo', 'cmdline', True, {'L3'}),
            (found.config, found.tables, found.filesystems, found.cpuinfo,
             found.cmdline, found.mounted, found.info))

    def test_a_host_that_shows_nothing_is_read(self):
        top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (top / 'config.gz').write_text('no archive')
        found = node._read_kernel_properties(top / 'none', top, top)
        self.assertEqual((None, '', False), (
            found.tables, found.cmdline, found.mounted))

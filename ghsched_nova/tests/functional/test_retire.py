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


"""Back to the stock driver."""

import contextlib
import io
import os

import fixtures

from ghsched_nova.cmd import host
from ghsched_nova.features.doctor import retire
from ghsched_nova.host import desired
from ghsched_nova.nova_seams import shared
from ghsched_nova.resctrl import naming
from ghsched_nova.tests.functional import test_pci_providers
from ghsched_placement.providers import names

STOCK = 'libvirt.LibvirtDriver'


class RetireTest(test_pci_providers.PciProviderTestCase):
    """A host with two NUMA nodes, and a PF on each."""

    def setUp(self):
        super().setUp()
        self.start()
        self.useFixture(fixtures.MockPatchObject(
            retire, 'load_retire_configuration', self.configured))
        self.useFixture(fixtures.MockPatchObject(
            retire.domains, 'get_libvirt_host_name', lambda uri: 'host_a'))
        self.useFixture(fixtures.MockPatchObject(
            retire.domains, 'list_all_domains', lambda uri: self.domains()))

    def configured(self, files, dry_run):
        return shared.get_placement_client(), shared.config().ghsched

    def domains(self):
        driver = self.computes['host_a'].driver
        if not hasattr(driver, '_guests'):
            return []       # the stock driver
        return [desired.Running(found.domain, found.xml) for found in map(
            driver._guests.read_guest,
            driver._host.list_guests(only_running=False))]

    def retire(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with (contextlib.redirect_stdout(out),
              contextlib.redirect_stderr(err)):
            status = host.main(['retire', *arguments])
        return status, out.getvalue(), err.getvalue()

    def ours(self):
        """Return resource classes and traits in Placement that the stock
        driver does not make.
        """
        found = []
        for provider in self.providers():
            uuid = provider['uuid']
            found += [name for name in self._get_provider_inventory(uuid)
                      if name in (names.MEM_BW_PCT, names.RESCTRL_GROUP)]
            found += [trait for trait in self._get_provider_traits(uuid)
                      if 'GHSCHED' in trait]
        return found

    def use_stock_driver(self):
        self.flags(compute_driver=STOCK)
        self.restart_compute_service('host_a')
        self._run_periodics()

    def test_remaining_parts_without_it(self):
        self.use_stock_driver()
        self.assertIn(names.CAPABILITY_TRAITS['DEVICE_NUMA'], self.ours())

    def test_the_stock_driver_starts_and_reports_as_it_would_alone(self):
        os.mkdir(os.path.join(self.kernel.path, naming.DEFAULT))
        server = self.boot(self.flavor(mem_bw_min=60))
        self._delete_server(server)
        dry = self.retire('--dry-run')
        self.assertEqual(0, dry[0])
        self.assertTrue(self.ours())
        self.assertEqual(dry, self.retire())
        self.assertEqual([], self.ours())
        self.assertEqual([], self.kernel.own_groups())
        self.use_stock_driver()
        self.assertEqual([], self.ours())
        self.assertEqual(
            {'host_a': None, **dict.fromkeys(self.pfs(), 'host_a')},
            self.parents())
        self.assertEqual((0, '', ''), self.retire())
        self.boot(self.vf_flavor())
        self.boot(self.flavor(mem_bw_min=60), state='ERROR')
        self.boot(self.flavor(device_numa='required'), state='ERROR')

    def test_a_guest_that_is_there_is_named_whether_it_runs_or_not(self):
        server = self.boot(self.flavor(mem_bw_min=60))
        before = self.ours()
        for stop in (False, True):
            if stop:
                self._stop_server(server)
            status, out, err = self.retire()
            self.assertEqual((1, ''), (status, out))
            self.assertIn(f'({server["id"]}) has a policy', err)
            self.assertIn(f'guest {server["name"]} (', err)
            self.assertEqual(1, err.count(server['id']), err)
        self.assertEqual(before, self.ours())

    def test_a_guest_with_a_policy_that_placement_does_not_count(self):
        server = self.boot(self.flavor(device_numa='preferred'))
        status, _out, err = self.retire()
        self.assertEqual(1, status)
        self.assertIn(server['id'], err)
        self.assertNotIn('holds', err)

    def test_a_host_that_placement_does_not_know(self):
        status, _out, err = self.retire('--node', 'host_z')
        self.assertEqual(1, status)
        self.assertIn('no compute node host_z', err)

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

"""ghsched-status install --check names what is missing."""

import contextlib
import io
import os
import pathlib
from unittest import mock

import fixtures

from ghsched_nova.features.doctor import install
from ghsched_nova.features.doctor import status
from ghsched_placement.tests import base

STOCK = ('[composite:openstack_compute_api_v21]\n'
         'keystone = cors authtoken keystonecontext osapi_compute_app_v21\n')
FILTERED = STOCK.replace('osapi_', 'ghsched osapi_')


class InstallCheckTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.directory = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)
        program = self.directory / 'nova-api-wsgi'
        program.touch(mode=0o755)

    def with_nova_api(self):
        return mock.patch.dict(os.environ, PATH=str(self.directory))

    def test_stock_pipeline_lacks_the_filter(self):
        found, = install.check_api_pipeline(STOCK)
        self.assertEqual('error', found.status)
        self.assertIn('ghsched-api', found.remedy)

    def test_pipeline_with_filter_is_complete(self):
        found, = install.check_api_pipeline(FILTERED)
        self.assertEqual('ok', found.status)

    def test_section_without_pipeline_lacks_the_filter(self):
        (found,) = install.check_api_pipeline(
            STOCK + '[filter:ghsched]\npaste.filter_factory = ghsched_nova:x\n'
        )
        self.assertEqual('error', found.status)

    def test_node_without_nova_api_is_skipped(self):
        with mock.patch.dict(os.environ, PATH='/nonexistent'):
            self.assertIsNone(install.read_api_paste([self.directory]))
        found, = install.check_api_pipeline(None)
        self.assertEqual('skipped', found.status)

    def test_copy_of_the_unit_is_read_first(self):
        for name, text in (('run', FILTERED), ('etc', STOCK)):
            (self.directory / name).mkdir()
            (self.directory / name / 'api-paste.ini').write_text(text)
        places = [self.directory / 'run', self.directory / 'etc']
        with self.with_nova_api():
            self.assertEqual(FILTERED, install.read_api_paste(places))
            self.assertEqual(STOCK, install.read_api_paste(places[1:]))

    def test_compute_host_without_exporter_gets_the_package_name(self):
        found, = install.check_exporter_installed(True, None)
        self.assertEqual('warning', found.status)
        self.assertIn('ghsched-exporter', found.remedy)

    def test_exporter_is_not_asked_of_other_nodes(self):
        self.assertEqual(
            [], list(install.check_exporter_installed(False, None))
        )
        self.assertEqual(
            [], list(install.check_exporter_installed(True, '/usr/bin/x'))
        )

    def test_help_has_the_usage_that_works(self):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.assertRaises(SystemExit, status.main, ['install', '--help'])
        self.assertIn('usage: ghsched-status install [-h] --check',
                      printed.getvalue())

    def test_help_lists_every_command(self):
        for option in ('--help', '-h'):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                self.assertRaises(SystemExit, status.main, [option])
            for name in ('doctor', 'upgrade check', 'install --check',
                         'seams', 'fixes'):
                self.assertIn(name, printed.getvalue())

    def test_stock_compute_host_gets_the_driver_name(self):
        nova_conf = self.directory / 'nova.conf'
        nova_conf.write_text(
            '[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver\n')
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            result = status.main(['install', '--check', '--config-file',
                                  str(nova_conf)])
        self.assertEqual(1, result)
        self.assertIn('ghsched.GhschedLibvirtDriver', printed.getvalue())

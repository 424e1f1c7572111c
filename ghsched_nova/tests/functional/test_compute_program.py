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

"""nova-compute and ghsched-nova-compute, each in a process of its own.

Both run until Nova has created its service, manager and driver. nova-conductor
and Placement, which Nova asks before that, are missing.
"""

import json
import os
from pathlib import Path
import subprocess
import sys

import fixtures

from ghsched_placement.tests import base

TOP = Path(__file__).parents[3]

OURS = 'ghsched.GhschedLibvirtDriver'
STOCK = 'libvirt.LibvirtDriver'

#: argv: a file for the report, the module with the program's main(), the
#: program, its arguments.
PROBE = '''
import importlib.machinery, importlib.util, json, os, pathlib, sys
_, report, entry, *sys.argv = sys.argv

class Finder:
    """Changes nova.cmd.compute when the program has imported it."""
    def find_spec(self, name, path=None, target=None):
        if name == 'nova.cmd.compute':
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            spec.loader = Loader(name, spec.origin)
            return spec

class Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        from nova.scheduler.client import report as placement
        placement.SchedulerReportClient._create_client = lambda _client: None
        module.service.conductor.API.wait_until_ready = lambda *_more: None
        module.service.utils.raise_if_old_compute = lambda: None
        module.service.serve = serve

def serve(server, **_arguments):
    threading = sys.modules['threading']
    options = sys.modules['nova.conf'].CONF
    from nova import privsep
    kind = type(server.manager.driver)
    pathlib.Path(report).write_text(json.dumps({
        'driver': kind.__module__ + '.' + kind.__name__,
        'manager': server.manager_class_name,
        'tracker': type(server.manager.rt).__name__,
        'service': [server.binary, server.topic, server.host],
        'files': [os.path.basename(one) for one in options.config_file],
        'debug': options.debug,
        'helper': privsep.sys_admin_pctxt.helper_command('/tmp/socket'),
        'first': [name for name in sys.modules if '.' in name and
                  name.partition('.')[0] in ('nova', 'eventlet')][:3],
        'patched': 'eventlet' in threading.current_thread.__module__,
        'section': 'ghsched' in options}))
    os._exit(0)

sys.meta_path.insert(0, Finder())
# A console script does this.
importlib.import_module(entry).main()
'''


class ComputeProgramTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.home = Path(self.useFixture(fixtures.TempDir()).path)
        (self.home / '.nova').mkdir()
        self.report = self.home / 'report.json'

    def configure(self, driver, name='nova.conf'):
        """Write a file where both programs look when they are given none."""
        path = self.home / '.nova' / name
        path.write_text(f'[DEFAULT]\ntransport_url = fake:/\nhost = here\n'
                        'rpc_response_timeout = 1\n'
                        f'compute_driver = {driver}\n')
        return path

    def start(self, entry, program, *arguments, **environment):
        return subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', PROBE, self.report, entry,
             f'/usr/bin/{program}', *arguments],
            env={**os.environ, 'HOME': str(self.home), 'PYTHONPATH': str(TOP),
                 **environment},
            capture_output=True, text=True, check=False,
            timeout=base.GIVE_UP_S)

    def novas(self, *arguments, **environment):
        return self.start('nova.cmd.compute', 'nova-compute', *arguments,
                          **environment)

    def ours(self, *arguments, **environment):
        return self.start('ghsched_nova.cmd.compute', 'ghsched-nova-compute',
                          *arguments, **environment)

    def created(self, done):
        """Report of the probe about a program that came so far."""
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return json.loads(self.report.read_text())

    def _assert_same_service(self, *arguments, **environment):
        """Start both, each with its own driver, and compare the rest."""
        path = self.configure(STOCK)
        differ = ('driver', 'section', 'manager', 'tracker')
        novas = self.created(self.novas(*arguments, **environment))
        path.write_text(path.read_text().replace(STOCK, OURS))
        ours = self.created(self.ours(*arguments, **environment))
        self.assertEqual(
            ('nova.virt.libvirt.driver.LibvirtDriver', False,
             'nova.compute.manager.ComputeManager', 'ResourceTracker'),
            tuple(map(novas.pop, differ)))
        self.assertEqual(
            ('ghsched_nova.virt.driver.GhschedLibvirtDriver', True,
             'ghsched_nova.virt.manager.GhschedComputeManager',
             'GhschedResourceTracker'),
            tuple(map(ours.pop, differ)))
        self.assertEqual(novas, ours)
        return ours

    def test_service_and_its_files_are_those_of_nova_but_for_the_driver(self):
        (self.home / '.nova' / 'nova-compute.conf').write_text(
            '[DEFAULT]\ndebug = true\n')
        found = self._assert_same_service(
            OS_NOVA_DISABLE_EVENTLET_PATCHING='false')
        self.assertEqual(['nova-compute', 'compute', 'here'],
                         found['service'])
        self.assertEqual(['nova.conf', 'nova-compute.conf'], found['files'])
        self.assertIn(str(self.home / '.nova' / 'nova-compute.conf'),
                      found['helper'])
        self.assertTrue(found['debug'])
        self.assertTrue(found['patched'])

    def test_arguments_and_threading_model_are_those_of_nova(self):
        other = self.home / 'other.conf'
        other.write_text('[DEFAULT]\n')
        found = self._assert_same_service(
            '--config-file', str(self.home / '.nova' / 'nova.conf'),
            f'--config-file={other}', '--debug',
            OS_NOVA_DISABLE_EVENTLET_PATCHING='true')
        self.assertEqual(['nova.conf', 'other.conf'], found['files'])
        self.assertTrue(found['debug'])
        self.assertFalse(found['patched'])

    def test_help_is_that_of_nova_compute(self):
        self.configure(OURS)
        novas, ours = self.novas('--help'), self.ours('--help')
        self.assertEqual((0, 0), (novas.returncode, ours.returncode))
        self.assertIn('usage: nova-compute ', novas.stdout)
        self.assertEqual(novas.stdout, ours.stdout)

    def test_novas_program_with_our_driver_ends_with_its_import_error(self):
        self.configure(OURS)
        done = self.novas()
        self.assertEqual(1, done.returncode)
        self.assertIn("No module named 'nova.virt.ghsched'", done.stdout)

    def test_our_program_with_another_driver_is_refused_at_once(self):
        log = self.home / 'nova.log'
        for driver in (STOCK, ''):
            self.configure(driver)
            done = self.ours('--log-file', str(log))
            self.assertEqual(1, done.returncode)
            self.assertIn(f'Set compute_driver = {OURS}, or start '
                          'nova-compute.', done.stderr)
            self.assertIn(f'compute_driver is {driver or "not set"}.',
                          log.read_text())
            self.assertNotIn('Traceback', done.stdout + done.stderr)

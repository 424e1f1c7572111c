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

"""Programs as the machine sees them: what they load, and their titles."""

import base64
import importlib.util
import pathlib
import subprocess
import sys

from oslo_privsep import capabilities
from oslo_utils import importutils

from ghsched_nova.base import privsep
from ghsched_nova.features.doctor import node
from ghsched_placement.tests import base

TOP = pathlib.Path(__file__).parents[3]

#: Modules of Nova and ours that the seams of other services belong to.
FOREIGN = ('nova.compute.api', 'nova.limit', 'nova.api',
           'ghsched_nova.nova_seams.api')

#: Prints what a module of ours loads in a service of Nova.
SERVICE = r"""
import importlib, sys
for name in sys.argv[1].split(','):
    importlib.import_module(name)
before = set(sys.modules)
importlib.import_module(sys.argv[2])
print(*set(sys.modules) - before)
"""

#: Prints what the command ghsched loads, and capabilities of our helper.
COMMANDS = r"""
import sys
import ghsched_nova.cmd.main
print(*sys.modules)
from ghsched_nova.base import privsep
print(*privsep.context.conf.capabilities)
"""

#: Prints the command lines of a launcher and its worker, and ends both.
LAUNCHED = """
import base64, os, signal
from oslo_service import backend
backend.init_backend(backend.BackendType.THREADING)
from oslo_config import cfg
from oslo_service import service

class Service(service.Service):
    def start(self):
        for process in (os.getppid(), 'self'):
            with open(f'/proc/{process}/cmdline', 'rb') as stream:
                print(base64.b64encode(stream.read()).decode(), flush=True)
        os.kill(os.getppid(), signal.SIGTERM)

    def stop(self, graceful=False):
        pass

import sys
sys.argv = sys.argv[1:]
options = cfg.ConfigOpts()
options([], project='x', default_config_files=[])
service.launch(options, Service(), workers=1).wait()
"""


def run_python(*arguments):
    """Return what a fresh interpreter prints; this one has loaded far more.
    """
    done = subprocess.run([sys.executable, '-c', *arguments], cwd=TOP,
                          check=True, capture_output=True, text=True,
                          timeout=base.GIVE_UP_S)
    return done.stdout, done.stderr


class ServiceLoadsTest(base.TestCase):

    def loaded(self, nova, module):
        loaded = set(run_python(SERVICE, ','.join(nova), module)[0].split())
        self.assertIn(module, loaded)
        return loaded

    def assert_none_of(self, parts, loaded):
        self.assertEqual([], [
            name for name in loaded for part in parts
            if name == part or name.startswith(part + '.')])

    def test_scheduler_loads_no_seams_of_another_service(self):
        self.assert_none_of(
            ('nova.compute.manager', 'nova.compute.resource_tracker',
             'nova.virt.libvirt', 'ghsched_nova.nova_seams.compute',
             'ghsched_nova.virt', *FOREIGN),
            self.loaded(('nova.cmd.scheduler', 'nova.scheduler.manager'),
                        'ghsched_nova.scheduler.filters'))

    def test_compute_loads_no_seams_of_another_service(self):
        self.assert_none_of(
            ('nova.conductor.api', 'nova.db', 'nova.scheduler.manager',
             'nova.scheduler.host_manager', 'nova.scheduler.request_filter',
             'ghsched_nova.nova_seams.scheduler', 'ghsched_nova.api',
             'ghsched_nova.scheduler', *FOREIGN),
            self.loaded(('nova.cmd.compute', 'nova.compute.manager',
                         'nova.virt.libvirt.driver'),
                        'ghsched_nova.virt.driver'))


class CommandsTest(base.TestCase):

    def test_ghsched_loads_no_nova_and_helper_has_one_capability(self):
        printed, warnings = run_python(COMMANDS)
        loaded, kept = map(str.split, printed.splitlines())
        self.assertEqual('', warnings)
        self.assertEqual(set(), {'nova', 'libvirt', 'eventlet',
                                 'oslo_config'} & {*loaded})
        # A test that resets the options of its process drops the default.
        self.assertEqual([str(capabilities.CAP_DAC_OVERRIDE)], kept)
        self.assertIs(privsep.context,
                      importutils.import_class(privsep.context.pypath))


class TitlesTest(base.TestCase):

    def test_scheduler_started_by_oslo_service_is_found(self):
        """The launcher of native threads itself gives the titles."""
        if not importlib.util.find_spec('oslo_service.backend._threading'):
            self.skipTest('this oslo.service has no native threads')
        for name in ('nova-scheduler', 'ghsched-nova-scheduler'):
            printed = subprocess.run(
                [sys.executable, '-c', LAUNCHED, f'/usr/bin/{name}',
                 '--config-file', '/etc/nova/nova.conf'],
                check=True, capture_output=True, timeout=base.GIVE_UP_S).stdout
            titles = [base64.b64decode(line) for line in printed.split()]
            self.assertEqual(
                [name] * 2, list(map(node.identify_program, titles)), titles
            )

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

"""Base class and helpers of the tests of the host engine."""

import os
from unittest import mock

import fixtures
from oslo_config import cfg

from ghsched_nova import conf
from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import reconcile
from ghsched_nova.tests.fixtures import captured
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base


UUID = '3f0c6a51-16d5-4d5e-8a0c-1f5b2b0d7c1{}'
PRIVILEGED = 'ghsched_nova.resctrl.privileged.'


def running(number=1, policy=True, minimum=20, domain_id=None,
            shared=False):
    domain = model.Domain(UUID.format(number), number
                          if domain_id is None else domain_id, f'g{number}')
    xml = (f'<domain><name>{domain.name}</name><uuid>{domain.uuid}</uuid>'
           '<vcpu>2</vcpu></domain>')
    if policy:
        xml = metadata.write_policy(xml, metadata.DomainPolicy(
            GuestPolicy(nodes=(NodePolicy(minimum=minimum),)), (0,), shared))
    return desired.Running(domain, xml)


class EngineTestCase(base.TestCase):
    """Tests with an engine on an empty directory, without a kernel."""

    def setUp(self):
        super().setUp()
        self.root = self.useFixture(fixtures.TempDir()).path
        self.log = self.useFixture(fixtures.FakeLogger(
            level=20, format='%(levelname)s %(message)s'))
        options = cfg.ConfigOpts()
        options([], project='nova', default_config_files=[],
                default_config_dirs=[])
        conf.register_opts(options)
        self.options = options
        # The section, and what is set in it, is one for all ConfigOpts.
        for option in conf.OPTS + conf.DEPRECATED_OPTS:
            self.addCleanup(options.clear_override, option.name, 'ghsched')
        self.option('resctrl_path', self.root)
        self.engine = engine.HostEngine(options.ghsched)
        self.hosts = self.useFixture(fixtures.MockPatchObject(
            engine.HostEngine, 'read_resctrl_host',
            return_value=captured.openeuler())).mock
        self.call = self.useFixture(fixtures.MockPatch(
            PRIVILEGED + 'reconcile_groups',
            return_value=reconcile.ReconcileReport())).mock

    def option(self, name, value):
        self.options.set_override(name, value, 'ghsched')

    def reconcile(self, domains, groups=()):
        self.engine.running = lambda: domains
        with mock.patch.object(self.engine, 'list_resctrl_groups',
                               return_value=frozenset(groups)):
            return self.engine.reconcile_groups()

    def group(self, name):
        os.mkdir(os.path.join(self.root, name))
        with open(os.path.join(self.root, name, 'tasks'), 'w'):
            pass

    def devices(self, *numbers):
        """Return a guest whose passthrough devices are in IOMMU groups."""
        top = os.path.join(self.root, 'bus', 'pci', 'devices')
        os.makedirs(top)
        self.options.set_override('sysfs_path', self.root, 'ghsched')
        hostdevs = ''
        for slot, number in enumerate(numbers):
            device = os.path.join(top, f'0000:81:{slot:02x}.0')
            os.mkdir(device)
            if number is not None:
                os.symlink(f'../../../../kernel/iommu_groups/{number}',
                           os.path.join(device, 'iommu_group'))
            hostdevs += (
                "<hostdev mode='subsystem' type='pci'><source><address "
                f"domain='0x0000' bus='0x81' slot='0x{slot:02x}' "
                "function='0x0'/></source></hostdev>")
        guest = running()
        return desired.Running(guest.domain, guest.xml.replace(
            '</domain>', f'<devices>{hostdevs}</devices></domain>'))

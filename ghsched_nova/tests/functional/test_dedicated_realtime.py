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

"""Real-time vCPUs on CPUs of their own, and the CPUs of QEMU beside them."""

import fixtures
from lxml import etree

from ghsched_nova.features.real_time import scheduling
from ghsched_nova.tests.functional import nova_base


class DedicatedRealTimeTest(nova_base.GhschedTestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.real_time.host_scheduling.'
            '_probe_realtime', str))

    def boot_realtime(self, dedicated, shared, emulator, **more):
        self.flags(cpu_dedicated_set=dedicated, cpu_shared_set=shared,
                   group='compute')
        self.start_host()
        return self.boot(self.flavor(
            policy='dedicated', vcpus=2, vcpu_scheduler='rr',
            vcpu_priority=10,
            extra={'hw:emulator_threads_policy': emulator}), **more)

    def pins(self):
        domain, = self.domains('host_a')
        return scheduling.read_domain_threads(
            etree.fromstring(domain.XMLDesc(0))).pins

    def assert_vcpus_have_their_cpus_alone(self):
        pins = self.pins()
        vcpus = pins['vcpu', 0] | pins['vcpu', 1]
        others = [cpus for (kind, _number), cpus in pins.items()
                  if kind != 'vcpu']
        self.assertTrue(others)
        for cpus in others:
            self.assertTrue(cpus)
            self.assertFalse(cpus & vcpus)

    def test_qemu_runs_on_the_shared_cpus(self):
        self.boot_realtime('0-2,4-6', '3,7', 'share')
        self.assert_vcpus_have_their_cpus_alone()

    def test_qemu_runs_on_a_cpu_of_its_own(self):
        self.boot_realtime('0-7', None, 'isolate')
        self.assert_vcpus_have_their_cpus_alone()

    def test_host_without_shared_cpus_refuses_with_what_to_set(self):
        self.boot_realtime('0-7', None, 'share', state='ERROR')
        log = self.stdlog.logger.output
        self.assertIn('ghsched:vcpu_scheduler: the emulator and iothread '
                      'threads of QEMU would have no host CPUs other than',
                      log)
        self.assertIn('the host has no [compute]cpu_shared_set', log)
        # nova-api has said so when the flavor was made.
        self.assertIn('hosts without [compute]cpu_shared_set refuse', log)
        self.assertEqual([], list(self.domains('host_a')))

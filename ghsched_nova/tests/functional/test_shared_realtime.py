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

"""Real-time vCPUs on shared CPUs, counted by Placement."""

import os
from pathlib import Path
import tempfile

import fixtures
from lxml import etree

from ghsched_nova.features.live_change import records
from ghsched_nova.features.live_change import servers
from ghsched_nova.features.real_time import model
from ghsched_nova.features.real_time import privileged
from ghsched_nova.features.real_time import scheduling
from ghsched_nova.features.real_time import survey
from ghsched_nova.tests.fixtures import fake_qemu
from ghsched_nova.tests.functional import nova_base
from ghsched_placement.features.real_time.scheduling import Scheduling
from ghsched_placement.providers import names

RR = Scheduling('rr', 10)


class SharedRealTimeTestCase(nova_base.GhschedTestCase):

    def setUp(self):
        super().setUp()
        self.flags(cpu_dedicated_set=None, cpu_shared_set='0-7',
                   group='compute')
        self.flags(realtime_shared_percent=50, group='ghsched')
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.real_time.host_scheduling.'
            '_probe_realtime', str))
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.real_time.host_scheduling._read_sysctl',
            lambda _name, default: default))
        self.start_host()

    def rr(self, runtime=4000, **more):
        return self.flavor(policy='shared', vcpu_scheduler='rr',
                           vcpu_priority=10, vcpu_runtime_us=runtime,
                           vcpu_period_us=10000, **more)

    def offered(self, node):
        record = self._get_provider_inventory(
            self.provider('host_a', node))[names.RT_CPU_PERMILLE]
        return record['total'] - record['reserved']

    def allocated_realtime(self, server):
        return self.amounts(server['id'], names.RT_CPU_PERMILLE)


class SharedRealTimeTest(SharedRealTimeTestCase):

    def test_no_more_than_a_node_offers_and_on_that_node(self):
        # 4 CPUs, of each of which the kernel leaves 90 %, and half of that.
        self.assertEqual([1800, 1800], list(map(self.offered, (0, 1))))
        servers = [self.boot(self.rr()) for _number in range(4)]
        nodes = [self.host_nodes(server)[0] for server in servers]
        self.assertEqual([0, 0, 1, 1], sorted(nodes))
        for server, node in zip(servers, nodes, strict=True):
            self.assertEqual({self.provider('host_a', node): 800},
                             self.allocated_realtime(server))
        refused = self.boot(self.rr(), state='ERROR')
        self.assertIn('no host NUMA node has 800 thousandths of a shared CPU '
                      'for real-time vCPUs left (ghsched:vcpu_runtime_us)',
                      self.fault(refused))
        self.assertEqual({}, self.allocated_realtime(refused))
        # One of another class needs none of it.
        self.boot(self.flavor(policy='shared', vcpu_scheduler='batch'))
        # What is held is not taken away, and nobody gets more.
        self.flags(realtime_shared_percent=0, group='ghsched')
        self.reserve()
        self.assertEqual([0, 0], list(map(self.offered, (0, 1))))
        self._delete_server(servers[0])
        self.boot(self.rr(), state='ERROR')

    def test_bandwidth_of_the_same_node(self):
        self.reserve(n0=60)
        server = self.boot(self.rr(mem_bw_min=60))
        self.assertEqual([1], self.host_nodes(server))
        self.assert_agreement(server, 'host_a', [60])
        self.assertEqual({self.provider('host_a', 1): 800},
                         self.allocated_realtime(server))


class LiveChangeTest(SharedRealTimeTestCase):
    """Another bandwidth for a guest of a real-time class, while it runs."""

    def setUp(self):
        super().setUp()
        if privileged._try_here():
            self.skipTest('the kernel refuses real-time classes here')
        self.run_path = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.flags(libvirt_run_path=str(self.run_path), group='ghsched')
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.real_time.privileged.apply_thread_change',
            privileged.apply_thread_change_as_root))

    def test_class_and_share_stay(self):
        server = self.boot(self.rr(mem_bw_min=20))
        name, = (one.name() for one in self.domains('host_a'))
        process = self.useFixture(fake_qemu.Qemu(
            self.run_path, name, 'CPU 0/KVM', 'CPU 1/KVM')).process
        self.reserve()    # a report, which sets what libvirt would
        self.assertEqual([RR, RR], self.classes(process))
        node, = self.host_nodes(server)
        with records.open_cell_context(server['id']) as context:
            self.assertTrue(servers.change_server_policy(
                context, server['id'], {'ghsched:mem_bw_min': '40'},
                False).needed)
        self.assert_agreement(server, 'host_a', [40])
        self.assertEqual({self.provider('host_a', node): 800},
                         self.allocated_realtime(server))
        self.assertEqual([{0: RR, 1: RR}] * 2, self.rendered(server))
        specs = self.instance(server).flavor.extra_specs
        self.assertEqual(('rr', '10', '40'), tuple(
            specs[f'ghsched:{key}'] for key in (
                'vcpu_scheduler', 'vcpu_priority', 'mem_bw_min')))
        self.assertEqual([RR, RR], self.classes(process))
        thread = survey.read_qemu_threads(process.pid)[
            model.Role('vcpu', 0)].tid
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
        self.reserve()
        self.assertEqual([RR, RR], self.classes(process))

    def classes(self, process):
        """Return the scheduling of the vCPUs' threads, read from the kernel.
        """
        return [one.scheduling for role, one in sorted(
            survey.read_qemu_threads(process.pid).items(), key=str)
            if role.kind == 'vcpu']

    def rendered(self, server):
        """Return the scheduling of the vCPUs in the live XML and in the stored
        one.
        """
        connection = self.computes['host_a'].driver._host.get_connection()
        domain = connection.lookupByUUIDString(server['id'])
        roots = [etree.fromstring(domain.XMLDesc(flags)) for flags in (0, 2)]
        return [scheduling.read_domain_threads(root).vcpus for root in roots]

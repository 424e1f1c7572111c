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


from pathlib import Path
import shutil
import tempfile
import types

import fixtures
from nova.virt.libvirt import config as nova_config

from ghsched_nova.features.load import load_use
from ghsched_nova.features.load import options
from ghsched_nova.guest import metadata
from ghsched_nova.host import bandwidth_use
from ghsched_nova.host import desired
from ghsched_nova.resctrl import model
from ghsched_nova.tests.fixtures import observing
from ghsched_placement.features.load import load
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

XML = '<domain><memory>1024</memory><vcpu>2</vcpu></domain>'


class LoadUseTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(level=10))
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        node = top / 'devices/system/node/node0'
        node.mkdir(parents=True)
        (node / 'cpulist').write_text('0-255\n')
        self.told = []
        self.section = types.SimpleNamespace(
            sysfs_path=str(top), libvirt_run_path=str(top), load_period=1e-9,
            load_smoothing=0.0, load_max_age=180,
            bottleneck_thresholds={'cpu_load': 0})
        self.use = load_use.LoadReporter(
            self.section, lambda *change: self.told.append(change))
        self.reports = observing.Reports(self.use)

    def report(self, resources=(), running=()):
        """Return the stats of a compute node after a report."""
        self.reports.report(1.0, running=running)
        return self.reports.host.add_stats(dict(resources))

    def test_a_host_reports_from_the_second_time_on(self):
        found = self.report({'stats': {'x': 'y'}})
        self.assertEqual({'x': 'y'}, found['stats'])
        found = self.report({'stats': {'x': 'y'}})
        self.assertEqual({'x', load.KEY}, set(found['stats']))
        self.assertEqual(
            [0], list(load.parse_load_stats(
                found['stats']).get_nodes_by_number()))

    def test_load_that_changes_little_is_reported_once(self):
        texts = []
        for number, busy in enumerate((.2, .24, .26, .23)):
            self.use._meter = types.SimpleNamespace(
                load=load.HostLoad(100. + number, 60., (
                    load.HostNodeLoad(0, cpu_load=busy),)),
                measure_host_load=lambda *_args: ())
            found = self.report({'stats': {}})
            texts.append(found['stats'][load.KEY])
        self.assertEqual([.2, .2, .26, .26], [
            load.parse_load_stats({load.KEY: text}).nodes[0].cpu_load
            for text in texts])
        self.assertEqual(2, len(set(texts)))
        self.assertEqual(.23, self.use.load.nodes[0].cpu_load)

    def test_guests_are_not_in_the_stats(self):
        guest = desired.Running(model.Domain('a', 1, 'guest'), XML)
        self.report(running=[guest])
        found = self.report(running=[guest])
        self.assertEqual((), load.parse_load_stats(found['stats']).guests)
        self.assertEqual(['a'], [one.guest for one in self.use.load.guests])

    def test_a_guest_without_sense_is_left_out(self):
        found = load_use.list_measurable_guests([
            desired.Running(model.Domain('a', 1, 'a'), XML),
            desired.Running(model.Domain('b', 2, 'b'), ''),
            desired.Running(model.Domain('c', -1, 'c'), XML),
            desired.Running(model.Domain('d', 3, 'd'),
                            '<domain><vcpu>many</vcpu></domain>')])
        self.assertEqual(['a'], [one.uuid for one in found])

    def test_a_bottleneck_is_reported_and_logged(self):
        before = load.HostLoad(0.0, 1.0, (load.HostNodeLoad(
            0, cpu_load=1.0, bottlenecks=('cpu_load',)),))
        self.report()
        self.use._meter.load = before
        self.report()
        (change, payload), = self.told
        self.assertFalse(change.begins)
        self.assertEqual((0, 'cpu_load'),
                         (payload['node'], payload['resource']))
        self.assertIn('host NUMA node 0 is no bottleneck any more: '
                      'cpu_load', self.log.output)

    def test_each_measure_of_load_can_have_a_threshold(self):
        self.assertEqual(load.RESOURCES, options.LOADS)

    def test_an_error_keeps_no_host_from_reporting(self):
        self.section.bottleneck_thresholds = {'nothing': 1}
        self.assertEqual({'vcpus': 4}, self.report({'vcpus': 4}))
        self.assertIn('cannot run hook observe', self.log.output)


def with_policy(xml):
    """The XML of a domain with a policy of ours."""
    return metadata.write_policy(xml, metadata.DomainPolicy(
        GuestPolicy((NodePolicy(10, burst=20),)), (0,)))


def of_nova(project, name='demo'):
    """The XML of a domain with the metadata that Nova writes."""
    owner = nova_config.LibvirtConfigGuestMetaNovaOwner()
    owner.userid, owner.username = 'user', 'somebody'
    owner.projectid, owner.projectname = project, name
    instance = nova_config.LibvirtConfigGuestMetaNovaInstance()
    instance.owner = owner
    instance.creationTime, instance.package = 1e9, '34.0.0'
    guest = nova_config.LibvirtConfigGuest()
    guest.virt_type = 'kvm'
    guest.metadata = [instance]
    return guest.to_xml()


class GuestsTest(base.TestCase):

    def projects(self, *xmls):
        found = bandwidth_use.list_guests_and_policies(
            desired.Running(model.Domain('a', 1, 'guest'), xml)
            for xml in xmls)
        return [guest.project for guest in found]

    def test_project_of_nova_is_known(self):
        self.assertEqual(['p-1', 'p-2'], self.projects(
            with_policy(of_nova('p-1')), with_policy(of_nova('p-2'))))

    def test_domain_without_project_has_none(self):
        self.assertEqual(['', '', '', ''], self.projects(
            with_policy(XML), with_policy(of_nova(None, None)), '', '<x'))

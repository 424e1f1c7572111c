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

"""Another policy for a running guest, on the emulated kernel.

With a domain that keeps what libvirt keeps: live and stored XML, metadata
with the namespace that libvirt puts in.
"""

import dataclasses
from pathlib import Path
import shutil
import tempfile

import ddt
import fixtures
from lxml import etree
from oslo_config import cfg

from ghsched_nova import conf
from ghsched_nova.features.live_change import messages
from ghsched_nova.features.live_change import policy_change
from ghsched_nova.guest import memorytune
from ghsched_nova.guest import metadata
from ghsched_nova.host import engine
from ghsched_nova.lab.emulator import faults
from ghsched_nova.resctrl import reconcile
from ghsched_nova.resctrl import resolve
from ghsched_nova.tests.fixtures import world
from ghsched_placement.flavor import policy as policies
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

MAKERS = ('ghsched', 'libvirt', 'libvirt-process')
NUMBER = 7
PLAIN = """<domain type='kvm'>
  <name>{0.name}</name>
  <uuid>{0.uuid}</uuid>
  <vcpu>2</vcpu>
</domain>"""


class Guest:
    """Fake of nova.virt.libvirt.guest.Guest, and of the domain below it."""

    def __init__(self, xml, number, name):
        self.id, self.name = number, name
        self.live = self.stored = xml
        self._domain = self
        self.calls, self.error = [], None

    def get_xml_desc(self, dump_inactive=False, dump_sensitive=False):
        return self.stored if dump_inactive else self.live

    def setMetadata(self, kind, text, key, uri, flags):  # noqa: N802
        self.calls.append('metadata')
        if self.error:
            raise self.error
        assert kind == 2
        if flags & 1:
            self.live = self._with(self.live, text, key, uri)
        if flags & 2:
            self.stored = self._with(self.stored, text, key, uri)

    def _with(self, xml, text, key, uri):
        root, plain = etree.fromstring(xml), etree.fromstring(text)
        assert not plain.nsmap   # libvirt refuses a prefix that is there
        parent = root.find('metadata')
        for old in parent.findall(f'{{{uri}}}policy'):
            parent.remove(old)
        element = etree.SubElement(parent, f'{{{uri}}}{plain.tag}',
                                   plain.attrib, nsmap={key: uri})
        element.extend(plain)
        for child in element.iterdescendants():
            child.tag = f'{{{uri}}}{child.tag}'
        return etree.tostring(root, encoding='unicode')

    def define(self, xml):
        self.calls.append('define')
        self.stored = xml


@ddt.ddt
class LiveTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.FakeLogger())

    def use(self, dialect='openeuler66', maker='ghsched'):
        top = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, top)
        self.world = world.World(Path(top), dialect, (maker,))
        self.world.reconcile()
        self.host = self.world.host
        options = cfg.ConfigOpts()
        options([], project='nova', default_config_files=[],
                default_config_dirs=[])
        conf.register_opts(options)
        self.engine = engine.HostEngine(options.ghsched)
        self.useFixture(fixtures.MockPatchObject(
            engine.HostEngine, 'read_resctrl_host', return_value=self.host))
        self.useFixture(fixtures.MockPatch(
            'ghsched_nova.resctrl.privileged.reconcile_groups',
            lambda _root, _run, wanted: reconcile.reconcile_groups(
                self.world.place, wanted, self.world.files)))
        self.guest = self.make_guest(maker)
        self.domain = policy_change.LiveDomain(self.guest, self.guest.define)
        self.world.files.operations.clear()

    def make_guest(self, maker):
        guest, = self.world.guests
        xml = metadata.write_policy(PLAIN.format(guest.domain),
                                    metadata.DomainPolicy(self.world.policy(),
                                                          (0,)))
        if maker != 'ghsched':
            cap = next(
                iter(
                    resolve.resolve_settings(
                        self.host, self.world.policy(), (0,)
                    )
                )
            ).maximum
            xml = memorytune.replace_memorytunes(xml, [memorytune.MemoryTune(
                frozenset({0, 1}), tuple(
                    memorytune.NodeTune(one, cap)
                    for one in self.host.domains_by_node[0]))], False)
        if maker == 'libvirt-process':
            xml = xml.replace(' vcpus="0-1"', '')
        return Guest(xml, guest.domain.id, guest.domain.name)

    def fault(self, fault):
        told = faults.parse(fault)
        self.world.model._injector._faults = lambda: told

    def packed(self, **values):
        node, = self.world.policy().nodes
        return messages.pack_policy(GuestPolicy((NodePolicy(**{
            'minimum': node.minimum, 'maximum': node.maximum,
            'hardlimit': node.hardlimit, 'priority': node.priority,
            **values}),)), (0,))

    def change(self, **values):
        policy_change.change_policy(
            self.engine, self.domain, self.packed(**values))

    def state(self):
        group, = self.world.groups()
        return (self.guest.live, self.guest.stored,
                self.world.schemata(group), self.world.tasks(group))

    def read_caps(self):
        """Caps of the node's domains, in the group and as stored."""
        group, = self.world.groups()
        knob = self.host.dialect.find_knob('maximum')
        values = self.world.schemata(group).values(knob.line)
        tune = [int(one.get('bandwidth')) for one in etree.fromstring(
            self.guest.stored).findall('cputune/memorytune/node')]
        return ([values[one] for one in self.host.domains_by_node[0]], tune)

    def wanted(self, **values):
        asked, hosts = messages.unpack_policy(self.packed(**values))
        return [one.maximum for one in resolve.resolve_settings(
            self.host, asked, hosts)]

    @ddt.data(*((dialect, maker) for dialect in (
        'openeuler66', 'openeuler510', 'intel', 'amd', 'mpam')
        for maker in MAKERS))
    @ddt.unpack
    def test_group_metadata_and_definition_follow(self, dialect, maker):
        self.use(dialect, maker)
        self.change(maximum=73)
        wanted = self.wanted(maximum=73)
        self.assertEqual((wanted, [] if maker == 'ghsched' else wanted),
                         self.read_caps())
        for xml in (self.guest.live, self.guest.stored):
            self.assertEqual(self.packed(maximum=73),
                             policy_change.read_packed_policy(xml))
        # The live XML cannot be changed, and nothing is read from it.
        self.assertTrue(
            policy_change.domain_has_policy(
                self.engine, self.domain, self.packed(maximum=73)
            )
        )

    @ddt.data(*MAKERS)
    def test_the_same_once_more_writes_nothing(self, maker):
        self.use(maker=maker)
        self.change(maximum=73, minimum=30)
        self.guest.calls.clear()
        self.world.files.operations.clear()
        self.change(maximum=73, minimum=30)
        self.assertEqual(([], []), (self.guest.calls,
                                    self.world.files.operations))

    def test_moved_vcpus_are_changed_live_and_not_at_the_next_start(self):
        self.use()
        guest, = self.world.guests
        classes = policies.parse_policy({
            'ghsched:vcpu_classes': 'a:0', 'ghsched:mem_bw_min.a': '30',
            'ghsched:mem_bw_min': '10'}, 1, 2)
        moved = dataclasses.replace(classes, classes=tuple(
            dataclasses.replace(one, moved=frozenset({0, 1})
                                if one.name == 'a' else frozenset())
            for one in classes.classes))
        self.guest.live = metadata.write_policy(
            PLAIN.format(guest.domain), metadata.DomainPolicy(moved, (0,)))
        self.guest.stored = metadata.write_policy(
            PLAIN.format(guest.domain), metadata.DomainPolicy(classes, (0,)))
        asked = dataclasses.replace(classes, classes=tuple(
            dataclasses.replace(one, nodes=(NodePolicy(20),))
            for one in classes.classes))
        self.useFixture(fixtures.MockPatchObject(engine.HostEngine,
                                                 'reconcile_guest'))
        policy_change.change_policy(self.engine, self.domain,
                                    messages.pack_policy(asked, (0,)))
        for xml, vcpus in ((self.guest.live, [{0, 1}, set()]),
                           (self.guest.stored, [{0}, {1}])):
            found = metadata.read_policy(xml).policy.classes
            self.assertEqual(vcpus, [one.current for one in found])
            self.assertEqual([20, 20], [one.nodes[0].minimum
                                        for one in found])
        self.guest.calls.clear()
        policy_change.change_policy(self.engine, self.domain,
                                    messages.pack_policy(asked, (0,)))
        self.assertEqual([], self.guest.calls)

    @ddt.data(*MAKERS)
    def test_a_refusal_of_the_kernel_leaves_all_as_it_was(self, maker):
        for line in ('MB', 'MBMIN', 'MBHDL', 'MBPRI'):
            for error in ('EINVAL', 'ENOSPC'):
                self.use(maker=maker)
                before = self.state()
                self.fault({f'schemata:{line}': {'error': error,
                                                 'times': 1}})
                refused = self.assertRaises(
                    policy_change.NotChanged, self.change, minimum=20,
                    maximum=80, hardlimit=False, priority=6)
                self.assertIn(error, str(refused))
                self.assertNotIn('restored', str(refused))
                self.assertEqual(before, self.state())

    def test_failed_restores_are_reported(self):
        self.use()
        self.fault({'schemata:MBMIN': 'EINVAL'})
        original = self.guest.setMetadata

        def once(*args):
            original(*args)
            self.guest.error = RuntimeError('libvirt is gone')

        self.guest.setMetadata = once
        refused = self.assertRaises(
            policy_change.NotChanged, self.change, minimum=20)
        for words in ('EINVAL', 'the metadata of the domain could not be '
                      'restored: libvirt is gone',
                      'its control group could not'):
            self.assertIn(words, str(refused))

    def test_libvirt_refuses(self):
        self.use(maker='libvirt')
        before = self.state()
        self.guest.define = self.fail_once(self.guest.define)
        self.domain = policy_change.LiveDomain(self.guest, self.guest.define)
        self.assertIn('libvirt is busy', str(self.assertRaises(
            policy_change.NotChanged, self.change, maximum=73)))
        self.assertEqual(before, self.state())

    def fail_once(self, function):
        errors = [RuntimeError('libvirt is busy')]

        def failing(*args):
            if errors:
                raise errors.pop()
            return function(*args)
        return failing

    def test_unenforceable_changes_are_not_begun(self):
        self.use('intel')
        self.assertRaises(resolve.PolicyRefused, self.change, minimum=20)
        self.assertEqual([], self.guest.calls)

    def test_a_guest_that_has_moved_or_has_no_policy(self):
        self.use()
        packed = [{**self.packed()[0], 'host_node': 1}]
        refused = self.assertRaises(
            policy_change.NotChanged, policy_change.change_policy, self.engine,
            self.domain, packed)
        self.assertIn('runs on the host NUMA nodes (0,)', str(refused))
        self.guest.live = PLAIN.format(self.world.guests[0].domain)
        self.assertIn('no policy', str(self.assertRaises(
            policy_change.NotChanged, self.change)))
        self.assertRaises(messages.MessageError, policy_change.change_policy,
                          self.engine, self.domain, [{'host_node': 0}])

    def test_effective_policy_is_reported_in_percent(self):
        self.use('amd')
        for one in policy_change.compute_enforced_limits(
                self.engine, self.packed(maximum=41)):
            self.assertTrue(41 <= one['max'] < 45, one)
            self.assertEqual((0, None), (one['host_node'], one['min']))

    @ddt.data(('openeuler66', 60, 100), ('intel', None, 60),
              ('mpam', None, 100))
    @ddt.unpack
    def test_limits_of_a_shared_group_are_reported(self, dialect, least, most):
        self.use(dialect)
        asked = self.packed(minimum=20 if least else 0, maximum=60)
        for one in policy_change.compute_enforced_limits(
            self.engine, asked, 3
        ):
            self.assertEqual((least, most), (one['min'], one['max']))

    def test_values_impossible_for_one_guest_are_impossible_for_many(self):
        """Together they may have no cap, which any host can hold."""
        self.use('intel')
        self.assertRaises(
            resolve.PolicyRefused,
            policy_change.compute_enforced_limits,
            self.engine,
            self.packed(maximum=60, hardlimit=False),
            2,
        )

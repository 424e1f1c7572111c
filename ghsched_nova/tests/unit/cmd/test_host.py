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

"""``ghsched-host`` on an emulated kernel, with a libvirt that is none."""

import contextlib
import io
import json
from pathlib import Path
import shutil
import tempfile
from unittest import mock


from ghsched_nova.cmd import configured
from ghsched_nova.cmd import domains
from ghsched_nova.cmd import host
from ghsched_nova.cmd import host_output
from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import reconcile
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_placement.tests import base

XML = ('<domain><name>{0.name}</name><uuid>{0.uuid}</uuid><vcpu>2</vcpu>'
       '</domain>')


class HostCommandTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.top)
        self.world = world.World(self.top / 'world', makers=['ghsched'] * 2)
        # What the kernel shows stands there as files as well.
        emulated.write_tree(self.world.model, self.top / 'shown')
        self.config = self.top / 'nova.conf'
        self.config.write_text(
            '[ghsched]\n'
            f'resctrl_path = {self.top}/shown/resctrl\n'
            f'sysfs_path = {self.top}/shown/sysfs\n'
            f'libvirt_run_path = {self.world.run}\n')
        self.domains = [self.running(guest) for guest in self.world.guests]
        self.enterContext(mock.patch.object(
            host.domains, 'list_running_domains', lambda uri: self.domains))
        for name in ('preview_reconciliation', 'reconcile_groups'):
            self.enterContext(mock.patch.object(
                host.reconcile, name, self.on_model(name)))
        self.enterContext(mock.patch.object(
            host.engine.HostEngine, 'list_resctrl_groups',
            lambda _: frozenset(self.world.groups())))

    def on_model(self, name):
        work = getattr(reconcile, name)
        return lambda _place, wanted: work(self.world.place, wanted,
                                           self.world.files)

    def running(self, guest):
        xml = metadata.write_policy(
            XML.format(guest.domain), metadata.DomainPolicy(
                self.world.policy(), (0,)))
        return desired.Running(guest.domain, xml)

    def call(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with (contextlib.redirect_stdout(out),
              contextlib.redirect_stderr(err)):
            try:
                status = host.main([*arguments, '--config-file',
                                    str(self.config)])
            except SystemExit as end:
                status = end.code
        return status, out.getvalue(), err.getvalue()

    def document(self, *arguments):
        status, out, _err = self.call(*arguments, '--format', 'json')
        return status, json.loads(out)

    def test_the_same_problem_of_many_guests_is_one_row(self):
        self.assertEqual(
            [('a, b', '', 'not mounted'), ('c', 'x', 'not mounted')],
            host_output._merge_rows_of_same_problem([
                ('a', '', 'not mounted'),
                ('b', '', 'not mounted'),
                ('c', 'x', 'not mounted'),
            ]),
        )

    def test_plan_changes_nothing_and_says_so_by_its_status(self):
        status, document = self.document('plan')
        self.assertEqual(1, status)
        self.assertEqual([], self.world.files.operations)
        self.assertEqual(2, [action['kind'] for action in document['actions']]
                         .count('make group'))
        self.assertEqual({'kind': 'write line',
                          'group': self.world.guests[0].group,
                          'guest': self.world.guests[0].domain.uuid,
                          'line': 'MB:0=41', 'threads': [],
                          'devices': [],
                          'reason': 'the group is new'},
                         document['actions'][1])
        self.assertEqual('openeuler-6.6', document['host']['dialect'])

    def test_reconcile_does_it_and_then_there_is_nothing_to_do(self):
        self.assertEqual(0, self.call('reconcile')[0])
        self.assertEqual([], self.world.wrong(without=(1,)))
        status, document = self.document('plan')
        self.assertEqual((0, [], []), (status, document['actions'],
                                       document['problems']))
        self.assertEqual(
            [guest.domain.name for guest in self.world.guests],
            [guest['name'] for guest in document['guests']])

    def test_table(self):
        status, out, _err = self.call('plan')
        self.assertEqual(1, status)
        self.assertIn('| make group', out)
        self.assertIn('1001, 1002', out)
        self.assertIn('guests with a policy: 2', out)
        self.call('reconcile')
        status, out, _err = self.call('plan')
        self.assertEqual('Nothing to do: the control groups are as the '
                         'policies of the guests say.\n'
                         'guests with a policy: 2, actions: 0, problems: 0, '
                         'control groups of others: 0\n', out)

    def test_overlap_of_l3_ways_is_shown_and_is_no_drift(self):
        self.call('reconcile')
        guest = self.world.guests[0]
        overlap = model.PolicyProblem(guest.domain.uuid, guest.group,
                                      'control group pqos has 3 ways of L3 0')
        self.enterContext(
            mock.patch.object(
                host.reconcile,
                'preview_reconciliation',
                lambda _place,
                _wanted: reconcile.ReconcileReport(overlaps=(overlap,)),
            )
        )
        status, document = self.document('plan')
        self.assertEqual(0, status)
        self.assertEqual([{'guest': guest.domain.uuid, 'group': guest.group,
                           'reason': overlap.reason}], document['overlaps'])
        _status, out, _err = self.call('plan')
        self.assertIn('| Ways of the L3', out)
        self.assertIn(overlap.reason, out)

    def test_guests_that_are_capped_without_a_policy_are_counted_apart(self):
        self.config.write_text(self.config.read_text()
                               + 'default_bandwidth_max = 40\n')
        self.domains[1] = desired.Running(
            self.domains[1].domain, XML.format(self.domains[1].domain))
        self.assertIn('guests with a policy: 1, capped without one: 1, ',
                      self.call('plan')[1])
        _status, document = self.document('plan')
        self.assertEqual('ghsched-default', document['guests'][1]['group'])

    def test_a_guest_that_can_not_be_helped_is_an_error(self):
        self.call('reconcile')
        self.world.model.rmdir('/' + self.world.guests[0].group)
        self.world.end(0)
        for command in ('plan', 'reconcile'):
            status, document = self.document(command)
            self.assertEqual(1, status)
            self.assertIn('is not there', document['problems'][0]['reason'])
        self.assertIn('instance-00000000', self.call('plan')[1])

    def test_a_host_without_resctrl(self):
        shutil.rmtree(self.top / 'shown')
        status, document = self.document('plan')
        self.assertEqual(1, status)
        self.assertIn('is resctrl mounted?',
                      document['problems'][0]['reason'])
        self.domains.clear()
        self.assertEqual(0, self.call('plan')[0])

    def test_errors_are_reported_in_one_line(self):
        def locked(*_args):
            raise fs.GroupError('another process has the lock')

        self.enterContext(mock.patch.object(
            host.reconcile, 'preview_reconciliation', locked))
        status, out, err = self.call('plan')
        self.assertEqual((2, ''), (status, out))
        self.assertEqual('ghsched-host: another process has the lock\n', err)

    def test_a_configuration_that_is_not_there_or_wrong_is_reported(self):
        self.config.write_text('[ghsched]\ncontrol_threads = some\n')
        status, _out, err = self.call('plan')
        self.assertEqual(2, status)
        self.assertIn('control_threads', err)
        self.config.unlink()
        status, _out, err = self.call('plan')
        self.assertEqual(2, status)
        self.assertIn(str(self.config), err)

    def test_without_one_it_is_that_of_nova_compute(self):
        self.assertEqual('/sys/fs/resctrl',
                         configured.read_ghsched_options().resctrl_path)

    def test_wrong_usage_is_no_drift(self):
        self.assertEqual(2, self.call('plan', '--nonsense')[0])
        self.assertEqual(2, host_status([]))


class LibvirtTest(base.TestCase):

    def test_a_libvirt_that_does_not_answer_is_reported(self):
        try:
            import libvirt  # noqa: F401
        except ImportError:
            self.skipTest('there is no binding of libvirt')
        error = self.assertRaises(
            domains.HostError,
            domains.list_running_domains,
            'qemu+unix:///system?socket=/nowhere',
        )
        self.assertIn('/nowhere', str(error))


def host_status(arguments):
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            return host.main(arguments)
        except SystemExit as end:
            return end.code

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

"""Guests whose policies the booted kernel cannot enforce."""

import contextlib
import io
import json
from pathlib import Path
import tempfile
from unittest import mock

from ghsched_nova.cmd import domains
from ghsched_nova.features.doctor import status
from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.resctrl import model
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

#: Policies of the guests, running and stopped ones in turn.
POLICIES = {
    'capped': GuestPolicy(nodes=(NodePolicy(maximum=41),)),
    'guaranteed': GuestPolicy(nodes=(NodePolicy(minimum=11),)),
    'plain': None,
    'measured': GuestPolicy(nodes=(NodePolicy(),), monitor=True),
}


def _domain(number, name, policy):
    uuid = world.UUID.format(number)
    xml = (f'<domain><name>{name}</name><uuid>{uuid}</uuid><vcpu>2</vcpu>'
           '</domain>')
    if policy is not None:
        xml = metadata.write_policy(
            xml, metadata.DomainPolicy(policy, (0,)))
    return desired.Running(
        model.Domain(uuid, number + 1 if number % 2 else -1, name), xml)


class KernelGuestsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.defined = [_domain(number, *item) for number, item
                        in enumerate(POLICIES.items())]
        self.enterContext(mock.patch.object(
            domains, 'list_all_domains', lambda uri: self.defined))

    def boot(self, dialect, options=''):
        """Return exit status and checks by guest after a boot of a kernel."""
        top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        if dialect:
            emulated.write_tree(emulated.model(dialect), top, 200000)
        (top / 'nova.conf').write_text(
            f'[DEFAULT]\nstate_path = {top}\n[ghsched]\n'
            f'resctrl_path = {top}/resctrl\nsysfs_path = {top}/sysfs\n'
            + options)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            ended = status.main(['doctor', '--kernel', '--format', 'json',
                                 '--config-file', str(top / 'nova.conf')])
        return ended, {check['name'].partition(' ')[0]: check
                       for check in json.loads(out.getvalue())}

    def test_kernel_with_every_control_is_fit(self):
        ended, found = self.boot('openeuler66')
        self.assertEqual(
            (0, {'resctrl', 'capped', 'guaranteed', 'measured'}, {'ok'}),
            (ended, set(found), {one['status'] for one in found.values()}))

    def test_kernel_without_guarantees_names_the_guest_that_has_one(self):
        # On MPAM, [ghsched]bandwidth_cap has to say how a cap is held.
        for dialect, refused in (('intel', ['guaranteed']),
                                 ('mpam', ['capped', 'guaranteed']),
                                 ('amd', ['guaranteed'])):
            ended, found = self.boot(dialect)
            self.assertEqual(1, ended)
            self.assertEqual(refused, [
                name for name, one in found.items()
                if one['status'] == 'error'], dialect)
            self.assertIn('mem_bw_min', found['guaranteed']['text'])
            self.assertIn('cold migration', found['guaranteed']['remedy'])

    def test_kernel_without_resctrl_names_all_and_what_is_missing(self):
        ended, found = self.boot('')
        self.assertEqual(1, ended)
        self.assertEqual({'error'}, {one['status']
                                     for one in found.values()})
        self.assertEqual({'resctrl', 'capped', 'guaranteed', 'measured'},
                         set(found))
        self.assertTrue(found['resctrl']['remedy'])

    def test_rule_of_the_operator_says_whether_the_guest_starts(self):
        for rule, words in (('', 'does not start it'),
                            ('refuse', 'does not start it'),
                            ('start', 'starts it without protection')):
            options = f'unprotected_guests = {rule}\n' if rule else ''
            for dialect in ('amd', ''):
                _ended, found = self.boot(dialect, options)
                self.assertIn('nova-compute ' + words,
                              found['guaranteed']['text'])

    def test_policy_that_cannot_be_read_is_named(self):
        broken = self.defined[0]
        self.defined[0] = desired.Running(
            broken.domain, broken.xml.replace('host="0"', 'host="x"'))
        ended, found = self.boot('openeuler66')
        self.assertEqual((1, 'error'), (ended, found['capped']['status']))
        self.assertIn('hard reboot', found['capped']['remedy'])

    def test_libvirt_that_does_not_answer_is_exit_status_2(self):
        errors = io.StringIO()
        with (mock.patch.object(domains, 'list_all_domains',
                                side_effect=domains.HostError('no libvirt')),
              contextlib.redirect_stderr(errors)):
            self.assertEqual(2, status.main([
                'doctor', '--kernel', '--config-file', '/dev/null']))
        self.assertIn('no libvirt', errors.getvalue())

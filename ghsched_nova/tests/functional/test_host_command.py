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


"""``ghsched-host`` beside an unmodified libvirtd, on an emulated resctrl."""

import json
import os
import re
import signal
import sys
import time
import uuid

from ghsched_nova.guest import metadata
from ghsched_nova.lab.emulator import testhost
from ghsched_nova.resctrl import naming
from ghsched_nova.tests.fixtures import libvirt_host
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

POLICY = metadata.DomainPolicy(
    GuestPolicy(nodes=(NodePolicy(maximum=60),)), (1,))


class CommandTestCase(libvirt_host.HostTestCase):

    policy = POLICY

    def ghsched_host(self, command, *options, warning=''):
        """The exit status, and what is printed."""
        config = os.path.join(self.host.state, 'nova.conf')
        with open(config, 'w') as stream:
            stream.write('[ghsched]\n' + '\n'.join(options) + '\n')
        done = self.host.run(
            [sys.executable, '-m', 'ghsched_nova.cmd.host',
             command, '--format', 'json', '--config-file', config])
        self.assertEqual(bool(warning), bool(done.stderr), done.stderr)
        self.assertIn(warning, done.stderr)
        return done.returncode, json.loads(done.stdout)

    def start(self, name, tune=libvirt_host.NODE_1, policy=True):
        """Start a guest with its policy; returns its UUID."""
        cpus = self.resctrl('cat', '/sys/devices/system/node/node1/cpulist')
        xml = libvirt_host.DOMAIN.format(name=name, tune=tune,
                                         cpus=cpus.strip())
        if not tune:
            xml = xml.replace("<memorytune vcpus='0-1'></memorytune>", '')
        if policy:
            xml = self.rendered(xml)
        number = str(uuid.uuid4())
        xml = xml.replace('<name>', f'<uuid>{number}</uuid><name>', 1)
        path = os.path.join(self.host.state, f'{name}.xml')
        with open(path, 'w') as stream:
            stream.write(xml)
        done = self.virsh('create', path)
        self.assertEqual('', done.stderr)
        self.addCleanup(self.host.run, [
            'sh', '-c', 'rmdir /sys/fs/resctrl/ghsched-* '
                        '/sys/fs/resctrl/pqos-1'])
        return number

    def rendered(self, xml):
        return metadata.write_policy(xml, self.policy)

    def in_order(self):
        self.assertEqual((0, []), self.kinds('plan'))

    def kinds(self, command, *options):
        status, document = self.ghsched_host(command, *options)
        self.assertEqual([], document['problems'])
        return status, [(action['kind'], action['group'])
                        for action in document['actions']]


#: Writes the XML of a guest with a monitor alone, as nova-compute makes it.
_RENDER = """
import sys
from oslo_config import cfg
from ghsched_nova import conf
from ghsched_nova.host import engine
from ghsched_placement.flavor.policy import GuestPolicy
options = cfg.ConfigOpts()
conf.register_opts(options)
options([], default_config_files=[], default_config_dirs=[])
print(engine.HostEngine(options.ghsched).domain_xml.render_policy(
    sys.stdin.read(), GuestPolicy(monitor=True), ()))
"""


class MeasuredTest(CommandTestCase):
    """Guests with ghsched:monitor alone, where libvirt has no resctrl."""

    settings = testhost.Settings(dialect='openeuler510', closids=4, rmids=4)
    policy = metadata.DomainPolicy(GuestPolicy(monitor=True), ())

    def rendered(self, xml):
        done = self.host.run([sys.executable, '-W', 'ignore', '-c', _RENDER],
                             input=xml)
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        return done.stdout

    def test_a_guest_starts_and_is_measured_until_it_ends(self):
        guest = self.start('a', '')
        name = naming.render_monitor_path(guest)
        self.assertEqual((0, [('make group', name), ('move threads', name)]),
                         self.kinds('reconcile'))
        self.assertEqual(['CPU 0/TCG', 'CPU 1/TCG'],
                         self.threads(self.read(f'{name}/tasks')))
        self.assertIn('mon_MB_01', self.resctrl(
            'ls', f'/sys/fs/resctrl/{name}/mon_data'))
        self.in_order()
        self.virsh('destroy', 'a')
        self.assertEqual((0, [('remove group', name)]),
                         self.kinds('reconcile'))
        self.in_order()

    def test_without_a_monitoring_id_left_the_guest_is_named(self):
        for number in range(3):
            group = f'/sys/fs/resctrl/mon_groups/other-{number}'
            self.resctrl('mkdir', group)
            self.addCleanup(self.resctrl, 'rmdir', group)
        guest = self.start('a', '')
        status, document = self.ghsched_host(
            'reconcile',
            warning='no control group is free for the measurement')
        problem, = document['problems']
        self.assertEqual((1, guest, naming.render_monitor_path(guest)),
                         (status, problem['guest'], problem['group']))
        self.assertIn('there is no monitoring group left', problem['reason'])


class HostCommandTest(CommandTestCase):
    settings = testhost.Settings(dialect='intel', closids=4)

    def test_groups_of_libvirt_are_correct(self):
        self.start('a')
        self.start('b', '', policy=False)
        self.in_order()

    def test_drift_of_libvirts_group_is_repaired(self):
        self.start('a')
        group, = self.groups()
        self.write(f'{group}/schemata', 'MB:1=10')
        self.assertEqual((1, [('write line', group)]), self.kinds('plan'))
        self.assertEqual((0, [('write line', group)]),
                         self.kinds('reconcile'))
        tid = self.read(f'{group}/tasks').split()[0]
        self.write('tasks', tid)
        self.assertEqual((0, [('move threads', group)]),
                         self.kinds('reconcile'))
        self.in_order()
        self.resctrl('rmdir', f'/sys/fs/resctrl/{group}')
        self.assertEqual('make group', self.kinds('reconcile')[1][0][0])
        self.in_order()
        # libvirt finds what was made in its name.
        self.virsh('destroy', 'a')
        self.assertEqual([], self.groups())

    def test_a_group_is_made_where_libvirt_makes_none(self):
        name = 'ghsched-' + self.start('a', '')
        self.write_foreign()
        self.assertEqual(('make group', name), self.kinds('reconcile')[1][0])
        self.assertEqual(['CPU 0/TCG', 'CPU 1/TCG'],
                         self.threads(self.read(f'{name}/tasks')))
        self.assertIn('MB:0=100;1=60', self.read(f'{name}/schemata'))
        self.in_order()
        self.assertEqual((0, [('move threads', name)]), self.kinds(
            'reconcile', 'control_threads = all'))
        self.assertIn('qemu-system-x86', ' '.join(
            self.threads(self.read(f'{name}/tasks'))))
        self.virsh('destroy', 'a')
        self.assertEqual((0, [('remove group', name)]),
                         self.kinds('reconcile'))
        self.assertEqual(['pqos-1'],
                         self.ghsched_host('plan')[1]['host']['foreign'])

    def write_foreign(self):
        self.resctrl('mkdir', '/sys/fs/resctrl/pqos-1')

    def test_leaks_of_libvirt_are_removed(self):
        self.start('a')
        leaked, = self.groups()
        qemu = int(self.resctrl('cat', '/run/libvirt/qemu/a.pid'))
        self.kill(self.host.pid('libvirtd'))
        self.kill(qemu)
        self.host.restart_libvirtd()
        self.start('b')
        self.assertIn(leaked, self.groups())
        self.assertEqual((0, [('remove group', leaked)]),
                         self.kinds('reconcile'))
        self.assertEqual(1, len(self.groups()))
        self.in_order()

    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + base.GIVE_UP_S
        while time.monotonic() < deadline:
            try:
                with open(f'/proc/{pid}/stat') as stream:
                    if stream.read().rpartition(')')[2].split()[0] == 'Z':
                        return
            except OSError:
                return
            time.sleep(0.02)
        self.fail(f'process {pid} does not end')

    def test_unmounted_and_mounted_again(self):
        self.start('a')
        group, = self.groups()
        self.host.umount_resctrl()
        self.addCleanup(self._mount)
        status, document = self.ghsched_host('reconcile')
        self.assertEqual(1, status)
        self.assertIn('is resctrl mounted?',
                      document['problems'][0]['reason'])
        self._mount()
        self.assertEqual(
            (0, [('make group', group), ('write line', group),
                 ('move threads', group)]), self.kinds('reconcile'))
        self.in_order()

    def _mount(self):
        if not self.host.mounted():
            self.host.mount_resctrl()


class SharingTest(CommandTestCase):
    """Three guests, and two control groups beside the kernel's."""

    settings = testhost.Settings(dialect='openeuler66', closids=3, rmids=16)
    policy = metadata.DomainPolicy(
        GuestPolicy(nodes=(NodePolicy(minimum=20, maximum=30),)), (1,),
        shared=True)

    def group(self):
        group, = (name for name in self.resctrl(
            'ls', '/sys/fs/resctrl').split()
            if naming.parse_group_name(name).is_shared)
        return group

    def test_more_guests_than_groups(self):
        uuids = [self.start(name, '') for name in 'abc']
        self.assertEqual(0, self.kinds('reconcile')[0])
        group = self.group()
        self.assertEqual(['CPU 0/TCG'] * 3 + ['CPU 1/TCG'] * 3,
                         self.threads(self.read(f'{group}/tasks')))
        self.assertIn('MBMIN:0=0;1=60', self.compact(group))
        self.assertIn('MB:0=100;1=90', self.compact(group))
        for uuid_ in uuids:
            tasks = self.read(f'{group}/mon_groups/ghsched-{uuid_}/tasks')
            self.assertEqual(['CPU 0/TCG', 'CPU 1/TCG'],
                             self.threads(tasks))
        self.in_order()
        self.virsh('destroy', 'b')
        self.kinds('reconcile')
        self.assertIn('MBMIN:0=0;1=40', self.compact(group))
        self.in_order()
        self.virsh('destroy', 'a')
        self.virsh('destroy', 'c')
        self.assertEqual((0, [('remove group', group)]),
                         self.kinds('reconcile'))

    def compact(self, group):
        """Values without the zeros that the kernel writes before them."""
        return re.sub(r'=0+(?=[0-9])', '=', self.read(f'{group}/schemata'))


class DefaultClassTest(CommandTestCase):
    """A cap for guests without a policy."""

    settings = testhost.Settings(dialect='openeuler66', closids=4, rmids=16)
    option = 'default_bandwidth_max = 40'

    def test_a_guest_without_a_policy_is_held(self):
        promised = 'ghsched-' + self.start('a', '')
        plain = self.start('b', '', policy=False)
        self.assertEqual(0, self.kinds('reconcile', self.option)[0])
        schemata = self.read('ghsched-default/schemata')
        self.assertIn('MB:0=0000040;1=0000040', schemata)
        self.assertEqual(['CPU 0/TCG', 'CPU 1/TCG'],
                         self.threads(self.read('ghsched-default/tasks')))
        self.assertEqual(['CPU 0/TCG', 'CPU 1/TCG'], self.threads(self.read(
            f'ghsched-default/mon_groups/ghsched-{plain}/tasks')))
        self.assertEqual(['CPU 0/TCG', 'CPU 1/TCG'],
                         self.threads(self.read(f'{promised}/tasks')))
        self.assertEqual((0, []), self.kinds('plan', self.option))
        self.assertEqual((0, [('remove group', 'ghsched-default')]),
                         self.kinds('reconcile'))
        self.in_order()

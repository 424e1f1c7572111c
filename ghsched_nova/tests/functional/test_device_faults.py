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

"""VFs and ports of guests after failures elsewhere."""

import contextlib
from pathlib import Path

import fixtures
from keystoneauth1 import exceptions as keystone
from nova.tests.fixtures import libvirt as fakelibvirt

from ghsched_nova.resctrl import fs
from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import test_ports
from ghsched_nova.tests.functional import test_vfs

CONNECTION_LOST = 'client socket is closed'
CLIENT = 'nova.scheduler.client.report.SchedulerReportClient.'


def libvirt_fails(function, text,
                  code=fakelibvirt.VIR_ERR_INTERNAL_ERROR):
    """Return a fixture that makes a function of a domain raise an error."""
    def fail(*args, **kwargs):
        raise fakelibvirt.make_libvirtError(
            fakelibvirt.libvirtError, text, error_code=code)
    return fixtures.MonkeyPatch(
        f'nova.tests.fixtures.libvirt.Domain.{function}', fail)


@contextlib.contextmanager
def placement_is_away():
    def refuse(*args, **kwargs):
        raise keystone.ConnectFailure('Placement is away')

    with contextlib.ExitStack() as stack:
        for verb in ('get', 'put', 'post', 'delete'):
            stack.enter_context(fixtures.MonkeyPatch(CLIENT + verb, refuse))
        yield


class PortTest(test_ports.PortsTestCase):
    """A port takes no control group, so that no fault of resctrl stops it."""

    def setUp(self):
        super().setUp()
        self.flags(device_numa_spare_ports=1, group='ghsched')
        self.start((0, 4, test_ports.PORT_VF), (1, 4, test_ports.PORT_VF),
                   nodes=2, sockets=1)
        self.server = self.boot(self.flavor(
            vcpus=2, device_numa='required', mem_bw_min=60,
            extra=test_ports.FAR_IS_ALLOWED))
        self.node = self.host_nodes(self.server)

    def test_port_is_attached_or_refused_whatever_fails_on_its_host(self):
        self.take_steps(
            self.the_privileged_helper_dies,
            self.resctrl_is_unmounted,
            self.no_control_group_is_left,
            self.placement_is_away,
            self.libvirtd_ends_meanwhile,
            self.qemu_dies_meanwhile,
            self.the_host_reboots)

    def assert_it_comes_and_goes(self):
        port = self.port()
        self.attach(self.server, port)
        self.assertEqual(self.node, self.seen_nodes(self.server))
        self.assertEqual(7, self.free_vfs())
        self.api.detach_interface(self.server['id'], port)
        self.notifier.wait_for_versioned_notifications(
            'instance.interface_detach.end')
        self.notifier.reset()
        self.assert_without_a_port()

    def assert_without_a_port(self):
        self.assertEqual([], self.seen_nodes(self.server))
        self.assertEqual(8, self.free_vfs())
        self.assert_agreement(self.server, 'host_a', [60])

    def assert_libvirt_refuses(self):
        port = self.port()
        self.assertRaises(nova_base.ApiException, self.attach, self.server,
                          port)
        self.assertFalse(self.neutron._ports[port].get('binding:host_id'))
        self.assert_without_a_port()

    def the_privileged_helper_dies(self):
        self.kernel.unable = fs.GroupError('privsep is gone')
        self.assert_it_comes_and_goes()

    def resctrl_is_unmounted(self):
        self.kernel.vanish()
        self.assert_it_comes_and_goes()
        self.kernel.write()

    def no_control_group_is_left(self):
        self.kernel.take_groups(self.kernel.closids)
        self.assert_it_comes_and_goes()
        for group in Path(self.kernel.path).glob('pqos-*'):
            group.rmdir()

    def placement_is_away(self):
        with placement_is_away():
            self.assert_it_comes_and_goes()

    def libvirtd_ends_meanwhile(self):
        with libvirt_fails('attachDeviceFlags', CONNECTION_LOST):
            self.assert_libvirt_refuses()
        self.assert_it_comes_and_goes()

    def qemu_dies_meanwhile(self):
        with libvirt_fails('attachDeviceFlags', 'domain is not running',
                           fakelibvirt.VIR_ERR_OPERATION_INVALID):
            self.assert_libvirt_refuses()

    def the_host_reboots(self):
        port = self.port()
        self.attach(self.server, port)
        connection = self.computes['host_a'].driver._host.get_connection()
        connection.lookupByUUIDString(self.server['id']).destroy()
        self.flags(resume_guests_state_on_host_boot=True)
        self.restart_compute_service('host_a')
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.assertEqual(self.node, self.seen_nodes(self.server))
        self.assertEqual(7, self.free_vfs())
        self.assert_agreement(self.server, 'host_a', [60])


class MoveTest(test_vfs.MovesTestCase):
    """Cold migrations of a guest with VFs, and a fault on the other host."""

    def setUp(self):
        super().setUp()
        self.start_two()
        self.move_disk()

    def test_server_stays_or_restarts_whatever_fails_on_the_other_host(self):
        self.server = self.boot(self.big())
        self.tidy_up()
        self.take_steps(
            self.no_control_group_is_left,
            self.placement_is_away,
            self.the_privileged_helper_dies,
            self.resctrl_is_unmounted,
            self.libvirtd_ends_meanwhile,
            self.qemu_dies_meanwhile)

    def tidy_up(self):
        """Report the hosts, and find out where the next move leads."""
        self._run_periodics()
        self.here = self.api.get_server(self.server['id'])[
            'OS-EXT-SRV-ATTR:host']
        self.there = self.other(self.here)

    def assert_refused(self):
        """The error reaches the API because this test runs casts as calls."""
        self.assertRaises(nova_base.ApiException,
                          self.api.post_server_action, self.server['id'],
                          {'migrate': None})

    def assert_it_stays(self):
        self.assert_refused()
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.assert_placed(self.server, self.here)
        self.assertEqual({}, self.taken(self.there))

    def assert_a_hard_reboot_helps(self):
        """Nova leaves a guest that did not start there, in ERROR."""
        self._wait_for_state_change(self.server, 'ERROR')
        self.assertEqual(self.shared(self.there),
                         self.allocated(self.server))
        self._reboot_server(self.server, hard=True)
        self._run_periodics()
        self.assert_placed(self.server, self.there)

    def no_control_group_is_left(self):
        self.flags(reserved_control_groups=self.kernel.closids - 1,
                   group='ghsched')
        self._run_periodics()
        self.assert_it_stays()

    def placement_is_away(self):
        with placement_is_away():
            self.assert_refused()
        self._run_periodics()
        self.assert_placed(self.server, self.here)
        self.assertEqual({}, self.taken(self.there))

    def the_privileged_helper_dies(self):
        self.kernel.unable = fs.GroupError('privsep is gone')
        self.assert_refused()
        self.kernel.unable = None
        self.assert_a_hard_reboot_helps()

    def resctrl_is_unmounted(self):
        self.kernel.vanish()
        self.assert_refused()
        self.kernel.write()
        self.assert_a_hard_reboot_helps()

    def libvirtd_ends_meanwhile(self):
        with libvirt_fails('createWithFlags', CONNECTION_LOST):
            self.assert_refused()
        self.assert_a_hard_reboot_helps()

    def qemu_dies_meanwhile(self):
        with libvirt_fails('createWithFlags',
                           'process exited while connecting to monitor'):
            self.assert_refused()
        self.assert_a_hard_reboot_helps()

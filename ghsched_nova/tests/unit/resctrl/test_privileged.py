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


import errno
from pathlib import Path
from unittest import mock

import msgpack
from oslo_config import cfg
from oslo_utils import importutils

from ghsched_nova.base import kernel_files
from ghsched_nova.base import privsep
from ghsched_nova import conf
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import privileged
from ghsched_nova.resctrl import reconcile
from ghsched_placement.tests import base

UUID = '3f0c6a51-16d5-4d5e-8a0c-1f5b2b0d7c11'
ROOT = Path('/sys/fs/resctrl')
DESIRED = {'MBPRI': {1: 5, 0: 4}, 'MB': {1: 60}}


def _over_the_wire(thing):
    return msgpack.unpackb(msgpack.packb(thing), use_list=False,
                           strict_map_key=False)


def _remote_call(name, args, kwargs, timeout):
    """Call a function as oslo.privsep does, without a second process."""
    function = importutils.import_class(name).__wrapped__.__wrapped__
    try:
        result = function(*_over_the_wire(args), **_over_the_wire(kwargs))
    except fs.GroupError as exc:
        raise type(exc)(*_over_the_wire(exc.args)) from None
    return _over_the_wire(result)


class PrivilegedTest(base.TestCase):

    def setUp(self):
        super().setUp()
        conf.register_opts(cfg.CONF)
        channel = mock.Mock(running=True, remote_call=_remote_call)
        patch = mock.patch.object(privsep.context, 'channel', channel)
        patch.start()
        self.addCleanup(patch.stop)
        self.type = self.enterContext(mock.patch.object(
            kernel_files, 'get_file_system_type', return_value=0x7655821))

    def test_only_a_resctrl_where_it_should_be_is_worked_on(self):
        run = Path('/run/libvirt/qemu')
        for root, run_path, kind, words in (
                (Path('/tmp/evil'), run, 0x7655821, 'resctrl_path is /sys'),
                (ROOT, Path('/tmp'), 0x7655821, 'libvirt_run_path is /run'),
                (ROOT, run, 0xef53, '(type 0xef53)')):
            self.type.return_value = kind
            with (mock.patch.object(reconcile, 'reconcile_groups') as call,
                  mock.patch.object(fs, 'remove_group') as remove):
                error = self.assertRaises(
                    fs.GroupError, privileged.reconcile_groups, root,
                    run_path, self._wanted())
                self.assertIn(words, str(error))
                if run_path == run:
                    self.assertRaises(fs.GroupError,
                                      privileged.remove_own_group, root, UUID)
            call.assert_not_called()
            remove.assert_not_called()

    def test_a_path_may_be_written_with_a_slash_at_its_end(self):
        for option, path in (('resctrl_path', ROOT),
                             ('libvirt_run_path', Path('/run/libvirt/qemu'))):
            cfg.CONF.set_override(option, f'{path}/', 'ghsched')
            self.addCleanup(cfg.CONF.clear_override, option, 'ghsched')
        with mock.patch.object(
                reconcile, 'reconcile_groups',
                return_value=reconcile.ReconcileReport()) as call:
            privileged.reconcile_groups(ROOT, Path('/run/libvirt/qemu'),
                                        self._wanted())
        call.assert_called_once()

    def _wanted(self, **more):
        domain = model.Domain(UUID, 3, 'x')
        guest = model.ResctrlGuest(domain, frozenset({0, 1}), 1, DESIRED,
                                   'libvirt',
                                   frozenset({7}))
        return model.Wanted((guest,), (domain,), frozenset({'qemu-1-y'}),
                            {'MB': 100}, **more)

    def test_reconcile_crosses_whole(self):
        report = reconcile.ReconcileReport(
            (model.Action('move threads', 'g', 'why', 'u', threads=(1, 2)),
             model.Action('write line', 'g', 'why', 'u', 'MB:0=1\n'),
             model.Action('move devices', 'g', 'why', 'u', devices=(7,))),
            (model.PolicyProblem('u', 'g', 'no'),), ('pqos',))
        wanted = self._wanted(all_threads=True, devices=True,
                              tolerance={'MB': 4, 'MBMIN': 4})
        with mock.patch.object(reconcile, 'reconcile_groups',
                               return_value=report) as call:
            self.assertEqual(report, privileged.reconcile_groups(
                ROOT, Path('/run/libvirt/qemu'), wanted))
        place, got = call.call_args.args
        self.assertEqual((ROOT, Path('/run/libvirt/qemu')),
                         (place.root, place.run_path))
        self.assertEqual(wanted.domains, got.domains)
        self.assertEqual(wanted.removable, got.removable)
        self.assertTrue(got.all_threads)
        self.assertTrue(got.devices)
        self.assertEqual(wanted.tolerance, got.tolerance)
        self.assertEqual(frozenset({7}), got.guests[0].devices)
        self.assertEqual(['MBPRI', 'MB'], list(got.guests[0].desired))
        self.assertEqual(frozenset({0, 1}), got.guests[0].vcpus)

    def test_invalid_arguments_do_not_reach_root(self):
        wanted = self._wanted()
        bad = model.Domain(wanted.domains[0].uuid, 3, '../../etc/x')
        with mock.patch.object(reconcile, 'reconcile_groups') as call:
            self.assertRaises(
                ValueError, privileged.reconcile_groups, ROOT,
                Path('/run/libvirt/qemu'),
                model.Wanted(wanted.guests, (bad,)))
        call.assert_not_called()

    def test_only_the_group_of_a_guest_is_removed(self):
        with mock.patch.object(fs, 'remove_group', return_value=True) as call:
            for name in ('x/../../pqos', '', 'default', f'{UUID}/..'):
                self.assertRaises(
                    ValueError, privileged.remove_own_group, ROOT, name
                )
            call.assert_not_called()
            self.assertTrue(privileged.remove_own_group(ROOT, UUID))
        call.assert_called_once_with(ROOT, UUID)

    def test_errors_cross_with_all_they_say(self):
        sent = fs.GroupError('no', '/p', 'MB:0=1', errno.EINVAL, 'x')
        with mock.patch.object(reconcile, 'reconcile_groups',
                               side_effect=sent):
            got = self.assertRaises(
                fs.GroupError, privileged.reconcile_groups, ROOT,
                Path('/run/libvirt/qemu'), self._wanted())
        self.assertIsNot(sent, got)
        self.assertEqual(str(sent), str(got))
        self.assertEqual(vars(sent), vars(got))

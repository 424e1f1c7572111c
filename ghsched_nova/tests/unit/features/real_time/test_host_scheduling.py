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

"""Resources of a host for threads of real-time classes."""

import types
from unittest import mock

from ghsched_nova.features.real_time import host_scheduling
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base


class OfferTest(base.TestCase):

    def keeper(self, percent=100, deadline=True, refused='',
               deadline_refused=lambda places: ''):
        section = types.SimpleNamespace(
            realtime_shared_percent=percent, deadline_guests=deadline,
            realtime_priority_max=49, irq_bypass=['none'],
            sysfs_path='/nonexistent')
        keeper = host_scheduling.ThreadScheduler(
            section, lambda: refused,
            lambda places: deadline_refused(list(places)), [0, 1],
            lambda: {0: frozenset({2, 3}), 1: frozenset()})
        return keeper

    def test_room_on_shared_cpus_is_what_an_operator_gives(self):
        with mock.patch.object(host_scheduling, '_read_sysctl',
                               lambda _name, default: default):
            self.assertEqual({0: 1800},
                             self.keeper().compute_realtime_capacity())
            self.assertEqual({0: 900},
                             self.keeper(50).compute_realtime_capacity())
            self.assertEqual({}, self.keeper(0).compute_realtime_capacity())
            self.assertEqual(
                {}, self.keeper(refused='EPERM').compute_realtime_capacity())

    def test_deadline_on_shared_cpus_is_tried_on_those_of_each_node(self):
        tried = []
        keeper = self.keeper(deadline_refused=lambda places: (
            tried.append(sorted(map(sorted, places))) or ''))
        self.assertEqual({'VCPU_REALTIME', 'VCPU_DEADLINE',
                          'VCPU_DEADLINE_SHARED'}, keeper.capabilities())
        self.assertEqual([[[0], [1]], [[2, 3]]], tried)
        keeper.capabilities()
        self.assertEqual(2, len(tried))

    def test_arrival_without_shared_cpus_for_qemu_is_refused(self):
        policies = {scheduler: policy.parse_policy({
            'hw:cpu_policy': 'dedicated', 'hw:emulator_threads_policy':
            'share', 'ghsched:vcpu_scheduler': scheduler}, 1)
            for scheduler in ('rr', 'batch')}
        for scheduler, emulator, has_shared, is_refused in (
                ('rr', 'share', False, True), ('rr', 'share', True, False),
                ('rr', 'isolate', False, False), ('rr', None, False, False),
                ('batch', 'share', False, False)):
            arguments = policies[scheduler], emulator, has_shared
            if is_refused:
                self.assertRaisesRegex(policy.PolicyError, 'cpu_shared_set',
                                       self.keeper().check_arrival,
                                       *arguments)
            else:
                self.keeper().check_arrival(*arguments)

    def test_disabled_ways_are_not_tried(self):
        for keeper in (self.keeper(0), self.keeper(
                deadline_refused=lambda places: (
                    'EPERM' if [frozenset({2, 3})] == places else ''))):
            self.assertEqual({'VCPU_REALTIME', 'VCPU_DEADLINE'},
                             keeper.capabilities())
        self.assertEqual({'VCPU_REALTIME'},
                         self.keeper(deadline=False).capabilities())

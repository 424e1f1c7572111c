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

"""Bursts that are promised more than once, with a real Placement."""

import copy
from pathlib import Path
import types

import fixtures
from nova.api import auth
from nova import context as nova_context

from ghsched_nova.features.index import indexed
from ghsched_nova.nova_seams import shared
from ghsched_nova.resctrl import naming
from ghsched_nova.tests.functional import nova_base
from ghsched_placement.features.bursts import burst_record
from ghsched_placement.providers import names

#: MB/s of a node.
CAPACITY = 10000
HOUR = 3600.0


class BurstsTest(nova_base.GhschedTestCase):
    """Each node keeps 40 % for bursts; guests are promised 10 + 20 %.

    nova-scheduler has an index of hosts, which knows nothing of bursts.
    """

    def setUp(self):
        self.flags(node_bandwidth={'0': CAPACITY, '1': CAPACITY},
                   bandwidth_bursts={'0': 40, '1': 40}, burst_window=2,
                   scheduler_index=True, group='ghsched')
        self.useFixture(fixtures.MonkeyPatch(
            f'{indexed.__name__}.MIN_HOSTS', 0))
        super().setUp()
        self.now = 0.0
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.virt.host_report.time',
            types.SimpleNamespace(time=lambda: self.now)))
        self.start_measured_host('host_a', CAPACITY, 0, 0)
        self.name_owners()
        self.wanted = self.flavor(vcpus=1, mem_bw_min=10, mem_bw_burst=20)

    def name_owners(self):
        """Give API requests the names that Keystone gives them.

        Nova writes no project into the XML of a guest without them.
        """
        without = auth.NovaKeystoneContext._create_context

        def named(*args, **kwargs):
            context = without(*args, **kwargs)
            context.user_name, context.project_name = 'somebody', 'a project'
            return context
        self.useFixture(fixtures.MonkeyPatch(
            'nova.api.auth.NovaKeystoneContext._create_context', named))

    def hour(self, **percents):
        """An hour with guests that use so much, by their UUID."""
        for uuid, percent in percents.items():
            for node in (0, 1):
                path = Path(
                    self.kernel.path,
                    naming.render_own_group_name(uuid),
                    'mon_data',
                    f'mon_MB_{node:02}',
                )
                path.mkdir(parents=True, exist_ok=True)
                (path / 'mbm_total_bytes').write_text(
                    f'{CAPACITY * percent // 100}\n')
        self.now += HOUR
        self.computes['host_a'].manager.update_available_resource(
            nova_context.get_admin_context())

    def records(self, name):
        return [self.placement.get(
            f'/resource_providers/{self.provider("host_a", node)}'
            '/inventories').body['inventories'][name] for node in (0, 1)]

    def offered(self):
        return [int(record['total'] * record['allocation_ratio'])
                for record in self.records(names.MEM_BW_BURST_PCT)]

    def test_guests_of_one_project_are_promised_what_is_kept_alone(self):
        guests = [self.boot(self.wanted)['id'] for _ in range(4)]
        for _ in range(5):
            self.hour(**dict.fromkeys(guests, 5))
        self.assertEqual([40, 40], self.offered())

    def test_guests_of_two_projects_are_promised_more(self):
        other = copy.copy(self.api)
        other.project_id = 'f1e2d3c4b5a697887766554433221100'
        guests = [self.boot(self.wanted, api=api)['id']
                  for _node in range(2) for api in (self.api, other)]
        for _ in range(6):
            self.hour(**dict.fromkeys(guests, 5))
        self.assertGreater(min(self.offered()), 50)

    def test_as_many_as_are_seldom_busy_and_never_fewer_than_there_are(self):
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_placement.features.bursts.burst._RISKS',
            {'medium': (0.0, 1.2)}))
        self.assertEqual([40, 40], self.offered())
        self.assertEqual([40, 40], [record['reserved'] for record
                                    in self.records(names.MEM_BW_PCT)])
        guests = [self.boot(self.wanted)['id'] for _ in range(4)]
        refused = self.boot(self.wanted, state='ERROR')
        self.assertIn('No valid host', self.fault(refused))
        self.assertEqual({16}, {desired['MBMIN'][node]
                                for _domain, _vcpus, desired
                                in self.kernel.enforced
                                for node in desired['MBMIN']})
        for _ in range(4):
            self.hour(**dict.fromkeys(guests, 5))
        self.assertEqual([60, 60], self.offered())
        guests += [self.boot(self.wanted)['id'] for _ in range(2)]
        self.boot(self.wanted, state='ERROR')
        self.assertTrue(Path(shared.config().state_path,
                             burst_record.FORMAT.name).exists())
        for _ in range(3):
            self.hour(**dict.fromkeys(guests, 30))
        self.assertEqual([60, 60], self.offered())
        self.boot(self.wanted, state='ERROR')
        self.api.delete_server(guests[0])
        self._wait_until_deleted({'id': guests[0]})
        self.hour()
        self.assertEqual(40, min(self.offered()))

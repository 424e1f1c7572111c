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


"""Casts of nova-compute that end claims of the index of hosts."""

from unittest import mock

import fixtures
from nova import objects
from oslo_utils.fixture import uuidsentinel as uuids

from ghsched_nova.features.index.host_capacity import ReportedHost
from ghsched_nova.features.index.host_capacity import ReportedNode
from ghsched_nova.features.index.host_capacity import RequestNeed
from ghsched_nova.features.index.host_capacity import RequestNodeNeed
from ghsched_nova.features.index import index_search
from ghsched_nova.features.index import indexed
from ghsched_nova.features.index import indexed_manager
from ghsched_nova.features.index import nova_seams
from ghsched_nova.scheduler import manager
from ghsched_nova.scheduler import off
from ghsched_nova.scheduler.select_call import SelectCall
from ghsched_placement.tests import base

objects.register_all()


class IndexedTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.index.nova_seams.'
            'cache_host_topologies', lambda _number: None))
        self.useFixture(fixtures.MockPatchObject(
            manager.CoreSchedulerManager, '__init__', return_value=None))
        self.patch(off, 'is_off', lambda: False)
        self.patch(nova_seams, 'is_index_enabled', lambda: False)
        self.manager = indexed_manager.IndexedManager()
        self.manager.host_manager = mock.Mock()
        self.manager._indexed = indexed.IndexedScheduler(None)
        self.index = self.manager._indexed.index
        self.index.update_hosts([ReportedHost(
            'u', 'host', 'c', 1, (ReportedNode(0, 8, 0, {0: 1024}),))],
            (), 0)
        self.index.add_claim('u', uuids.guest,
                             RequestNeed((RequestNodeNeed(pinned=4),)), 0)


class OwnerTraitTest(IndexedTestCase):

    def list_required_traits(self, added):
        """Return the traits of a new request before Nova adds any.

        :param added: traits that Nova adds.
        """
        found = []

        def select_hosts(_manager, call):
            found.extend(call.spec.root_required)
            call.spec.root_required.update(added)
        self.patch(manager.CoreSchedulerManager, '_select_hosts', select_hosts)
        self.manager._select_hosts(SelectCall(None, (), {
            'spec_obj': objects.RequestSpec()}))
        return found

    def test_trait_that_nova_has_required_is_required_beforehand(self):
        self.assertEqual([], self.list_required_traits({'OWNER_NOVA'}))
        self.assertEqual(['OWNER_NOVA'], self.list_required_traits(()))

    def test_trait_that_some_host_lacks_is_left_to_nova(self):
        for _request in range(2):
            self.assertEqual([], self.list_required_traits(()))


class ClaimTest(IndexedTestCase):

    def claim(self, claimed, servers=1):
        """Claim a candidate of the host; return whether it is refused now."""
        client = mock.Mock(claim_resources=mock.Mock(return_value=claimed))
        need = RequestNeed((RequestNodeNeed(pinned=1),))
        self.manager._indexed._current.search = index_search.Search(
            None, need, servers=servers)
        self.assertEqual(claimed, indexed_manager.IndexClient(
            client, self.manager._indexed).claim_resources(
                None, uuids.guest, {'allocations': {'u': {}, 'node': {}}}))
        view, = self.index.list_views()
        return need in (view.refused or {})

    def test_host_whose_claim_placement_refuses_is_not_proposed_again(self):
        self.assertFalse(self.claim(True))
        self.assertTrue(self.claim(False))

    def test_refused_claim_of_several_servers_blames_no_host(self):
        # Placement may have refused the host of an earlier server.
        self.assertFalse(self.claim(False, servers=2))


class CastsTest(IndexedTestCase):

    def count_free_cpus(self):
        view, = self.index.list_views()
        return view.amounts.nodes[0].free[0]

    def start(self, host):
        guests = objects.InstanceList(
            objects=[objects.Instance(uuid=uuids.guest)])
        self.manager.update_instance_info(None, host, guests)
        self.manager.host_manager.update_instance_info.assert_called_with(
            None, host, guests)

    def test_claim_ends_when_its_host_has_started_the_guest(self):
        self.start('another')
        self.assertEqual(4, self.count_free_cpus())
        self.start('host')
        self.assertEqual(8, self.count_free_cpus())

    def test_claim_ends_when_the_guest_has_left_its_host(self):
        remove = self.manager.host_manager.delete_instance_info
        for host, free in (('another', 4), ('host', 8)):
            self.manager.delete_instance_info(None, host, uuids.guest)
            remove.assert_called_with(None, host, uuids.guest)
            self.assertEqual(free, self.count_free_cpus())

    def test_error_of_the_index_is_logged_and_nova_goes_on(self):
        log = self.useFixture(fixtures.FakeLogger())
        with mock.patch.object(self.index, 'confirm_claims',
                               side_effect=ValueError):
            self.start('host')
        self.assertIn('cannot confirm the claims of started guests',
                      log.output)

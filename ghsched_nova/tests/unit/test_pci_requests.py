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


from nova import exception
from nova import objects
from nova.pci import request as nova_request
from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel

from ghsched_nova.features.numa_auto import vf_requests
from ghsched_nova.nova_fixes import evacuated_devices
from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova import pci_requests
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base

objects.register_all()


class WithVfsTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        pci_requests.patch_nova_pci_requests()
        conf = shared.config()
        conf.set_override('alias', [jsonutils.dumps(
            {'vendor_id': '8086', 'product_id': '1520', 'name': name,
             'device_type': 'type-VF', 'numa_policy': 'required'})
            for name in ('nic', 'fast')], group='pci')
        self.addCleanup(conf.clear_override, 'alias', group='pci')

    def requests(self, affinity_policy=None, **specs):
        flavor = {'extra_specs': {'hw:numa_nodes': '1'} | {
            name.replace('__', ':').replace('_N', '.'): value
            for name, value in specs.items()}}
        return nova_request.get_pci_requests_from_flavor(
            flavor, affinity_policy=affinity_policy).requests


class WithVfsTest(WithVfsTestCase):

    def test_novas_requests_come_first_and_stay_as_they_are(self):
        nova, ours = self.requests(pci_passthrough__alias='fast:2',
                                   ghsched__vfs='nic:3')
        self.assertEqual(('fast', 2, None, 'required'),
                         (nova.alias_name, nova.count,
                          pci_requests.get_guest_node(nova),
                          nova.numa_policy))
        self.assertEqual(('nic', 3, 0), (ours.alias_name, ours.count,
                                         pci_requests.get_guest_node(
                                             ours)))

    def test_one_request_for_each_alias_and_guest_node(self):
        found = self.requests(hw__numa_nodes='2', ghsched__vfs='nic:4,fast:1')
        self.assertEqual(
            (policy.Vfs(0, 'nic', 2), policy.Vfs(0, 'fast', 1),
             policy.Vfs(1, 'nic', 2)), pci_requests.parse_vf_requests(found))
        self.assertEqual(3, len({request.request_id for request in found}))

    def test_alias_named_for_each_node_has_no_guest_node_and_another_policy(
            self):
        # Why ghsched:vfs is no other spelling of Nova's own key, see "VFs" in
        # doc/source/contributor/design.rst.
        def shown(found):
            return [(request.alias_name, request.count, request.requester_id,
                     request.numa_policy) for request in found]
        self.assertEqual(
            [('nic', 1, None, 'required'), ('nic', 1, None, 'required')],
            shown(self.requests(hw__numa_nodes='2',
                                pci_passthrough__alias='nic:1,nic:1')))
        self.assertEqual(
            [('nic', 1, 'ghsched-vfs-node0', 'preferred'),
             ('nic', 1, 'ghsched-vfs-node1', 'preferred')],
            shown(self.requests(hw__numa_nodes='2', ghsched__vfs='nic:2')))

    def test_near_devices_are_preferred_unless_the_flavor_says_more(self):
        (ours,) = self.requests(ghsched__vfs='nic:1')
        self.assertEqual('preferred', ours.numa_policy)
        (ours,) = self.requests(affinity_policy='socket',
                                ghsched__vfs='nic:1')
        self.assertEqual('socket', ours.numa_policy)

    def test_the_guest_node_is_kept_with_the_instance(self):
        found = self.requests(hw__numa_nodes='2', ghsched__vfs='nic:2')
        stored = jsonutils.dumps([
            request.obj_to_primitive()['nova_object.data']
            for request in found])
        again = objects.InstancePCIRequests.obj_from_db(
            None, uuidsentinel.instance, stored)
        self.assertEqual(pci_requests.parse_vf_requests(found),
                         pci_requests.parse_vf_requests(
                             pci_requests.select_vf_requests(again.requests)))

    def test_ports_and_flavors_without_vfs_are_not_ours(self):
        port = objects.InstancePCIRequest(requester_id='a-port')
        self.assertEqual([], pci_requests.select_vf_requests([port]))
        self.assertEqual([], pci_requests.select_vf_requests(None))
        self.assertEqual([], self.requests())
        flavor = objects.Flavor(name='plain')
        self.assertEqual(
            [], nova_request.get_pci_requests_from_flavor(flavor).requests)

    def test_a_locality_alone_asks_for_nothing(self):
        flavor = {'extra_specs': {'ghsched:vfs_locality': 'node'}}
        policy.check_flavor(flavor['extra_specs'], flavor['extra_specs'])
        self.assertEqual(
            [], nova_request.get_pci_requests_from_flavor(flavor).requests)

    def test_bad_keys_are_bad_requests(self):
        error = self.assertRaises(exception.PciInvalidAlias, self.requests,
                                  ghsched__vfs='nic')
        self.assertIn('ghsched:vfs', str(error))
        self.assertRaises(exception.PciInvalidAlias, self.requests,
                          ghsched__vfs_N1='nic:1')
        self.assertRaises(exception.PciRequestAliasNotDefined, self.requests,
                          ghsched__vfs='none:1')

    def test_registering_twice_asks_once(self):
        pci_requests.patch_nova_pci_requests()
        self.assertEqual(1, len(self.requests(ghsched__vfs='nic:1')))


class AutoTest(WithVfsTestCase):
    """Requests made before the number of guest NUMA nodes is chosen."""

    def setUp(self):
        super().setUp()
        self.made = self.auto(pci_passthrough__alias='fast:1',
                              ghsched__vfs='nic:5,fast:1')

    def auto(self, **specs):
        flavor = {'extra_specs': {'ghsched:numa': 'auto'} | {
            name.replace('__', ':'): value for name, value in specs.items()}}
        return nova_request.get_pci_requests_from_flavor(flavor).requests

    def join_requests(self, count):
        return [(request.alias_name, request.count, request.requester_id)
                for request in vf_requests.join_vf_requests(self.made,
                                                            count)]

    def test_requests_are_for_parts_that_stay_on_one_node(self):
        self.assertEqual(
            [('fast', 1, None), ('nic', 3, 'ghsched-vfs-0-of-5'),
             ('nic', 2, 'ghsched-vfs-3-of-5'),
             ('fast', 1, 'ghsched-vfs-0-of-1')],
            [(request.alias_name, request.count, request.requester_id)
             for request in self.made])
        self.assertEqual(self.made[1:],
                         pci_requests.select_vf_requests(self.made))

    def test_joined_requests_are_those_of_a_fixed_number(self):
        for count in (1, 2):
            fixed = self.requests(
                hw__numa_nodes=str(count), pci_passthrough__alias='fast:1',
                ghsched__vfs='nic:5,fast:1')
            self.assertEqual(
                [(request.alias_name, request.count, request.requester_id)
                 for request in fixed], self.join_requests(count))
        self.assertEqual(3, self.made[1].count)

    def test_ports_stay_behind_the_vfs(self):
        port = objects.InstancePCIRequest(
            request_id=uuidsentinel.port, count=1, requester_id='a-port',
            alias_name=None)
        self.made.append(port)
        self.assertEqual((None, 1, 'a-port'), self.join_requests(1)[-1])

    def test_number_of_a_larger_maximum_has_one_request_for_each_node(self):
        self.made = self.auto(ghsched__vfs='nic:6', ghsched__numa_max='4')
        self.assertEqual([('nic', 2, f'ghsched-vfs-node{node}')
                          for node in range(3)], self.join_requests(3))
        self.assertEqual([('nic', 2, 'ghsched-vfs-node0'),
                          ('nic', 2, 'ghsched-vfs-node1'),
                          ('nic', 1, 'ghsched-vfs-node2'),
                          ('nic', 1, 'ghsched-vfs-node3')],
                         self.join_requests(4))

    def test_suffixes_of_joined_vfs_lead_back_to_the_parts(self):
        first, second, fast = (request.request_id
                               for request in self.made[1:])
        self.assertEqual({f'{first}-0': f'{first}-0',
                          f'{first}-1': f'{first}-1',
                          f'{first}-2': f'{first}-2',
                          f'{first}-3': f'{second}-0',
                          f'{first}-4': f'{second}-1',
                          f'{fast}-0': f'{fast}-0'},
                         vf_requests.map_original_suffixes(self.made, 1))
        self.assertEqual(f'{second}-1', vf_requests.map_original_suffixes(
            self.made, 2)[f'{second}-1'])

    def test_claimed_vfs_are_of_the_nodes_that_the_guest_has(self):
        devices = [objects.PciDevice(request_id=request.request_id,
                                     numa_node=number)
                   for number, request in enumerate(self.made[1:3])]
        for count, nodes in ((1, [(0, 0), (0, 1)]), (2, [(0, 0), (1, 1)])):
            instance = objects.Instance(
                pci_requests=objects.InstancePCIRequests(requests=self.made),
                pci_devices=objects.PciDeviceList(objects=devices),
                numa_topology=objects.InstanceNUMATopology(cells=[
                    objects.InstanceNUMACell(id=node)
                    for node in range(count)]))
            self.assertEqual(nodes,
                             pci_requests.list_claimed_vf_nodes(instance))

    def test_bad_maximum_is_a_bad_request(self):
        self.assertRaises(exception.PciInvalidAlias, self.auto,
                          ghsched__vfs='nic:1', ghsched__numa_max='0')


class DevicesLeftBehindTest(base.TestCase):

    def setUp(self):
        super().setUp()
        patches.apply_patches(evacuated_devices.__name__,
                              registry.COMPUTE)
        self.port = objects.InstancePCIRequest(
            request_id=uuidsentinel.port, count=1, requester_id='port',
            spec=[{}])
        self.vf = objects.InstancePCIRequest(
            request_id=uuidsentinel.vf, count=1, alias_name='nic', spec=[{}])
        self.instance = objects.Instance(
            flavor=objects.Flavor(extra_specs={'ghsched:vfs': 'nic:1'}),
            old_flavor=None, new_flavor=None,
            pci_requests=objects.InstancePCIRequests(
                requests=[self.port, self.vf]),
            pci_devices=objects.PciDeviceList(objects=[
                objects.PciDevice(request_id=request) for request in (
                    uuidsentinel.of_dead_host, uuidsentinel.port,
                    uuidsentinel.vf)]))

    def found(self, **kwargs):
        return [device.request_id for device
                in self.instance.get_pci_devices(**kwargs)]

    def test_a_guest_has_those_of_its_own_requests(self):
        self.assertEqual([uuidsentinel.port, uuidsentinel.vf], self.found())
        for request in (self.port, self.vf):
            self.assertEqual([request.request_id],
                             self.found(source=request.source))
            self.assertEqual([request.request_id],
                             self.found(request_id=request.request_id))

    def test_one_without_devices_is_not_asked_for_requests(self):
        self.instance.pci_devices.objects = []
        del self.instance.pci_requests
        self.assertEqual([], self.found(source=self.vf.source))


class GivenPfsTest(base.TestCase):
    """PFs of a scheduled request in PCI requests with other ids."""

    groups = {f'{uuidsentinel.old_alias}-0': [uuidsentinel.pf0],
              f'{uuidsentinel.old_alias}-1': [uuidsentinel.pf1],
              f'{uuidsentinel.old_vfs}-0': [uuidsentinel.pf2],
              'a-port': [uuidsentinel.port]}

    def setUp(self):
        super().setUp()
        self.alias = objects.InstancePCIRequest(
            request_id=uuidsentinel.alias, count=2, alias_name='fast',
            spec=[{}, {}])
        self.vfs = objects.InstancePCIRequest(
            request_id=uuidsentinel.vfs, count=1, alias_name='nic',
            requester_id='ghsched-vfs-node0', spec=[{}])
        self.port = objects.InstancePCIRequest(
            request_id=uuidsentinel.port, count=1, requester_id='a-port',
            spec=[{}])
        self.instance = objects.Instance(
            flavor=objects.Flavor(extra_specs={'ghsched:vfs': 'nic:1'}),
            pci_requests=objects.InstancePCIRequests(requests=[
                self.port, self.alias, self.vfs]))

    def given(self):
        return [[spec.get('rp_uuids') for spec in request.spec]
                for request in (self.port, self.alias, self.vfs)]

    def claim(self, requests=None):
        pci_requests.store_allocated_pfs(
            self.instance.pci_requests.requests if requests is None
            else requests, self.groups)
        with pci_requests.claiming_allocated_pfs(self.instance):
            return self.given()

    def test_all_requests_of_a_server_with_a_key_name_their_pfs(self):
        both = f'{uuidsentinel.pf0},{uuidsentinel.pf1}'
        self.assertEqual([[None], [both, both], [uuidsentinel.pf2]],
                         self.claim())

    def test_aliases_of_other_servers_are_left_to_nova(self):
        self.instance.flavor.extra_specs = {'hw:numa_nodes': '1'}
        self.assertEqual([[None], [None, None], [uuidsentinel.pf2]],
                         self.claim())

    def test_pfs_of_another_flavor_are_not_taken(self):
        self.alias.count = 3
        self.assertEqual([[None], [None, None], [None]], self.claim())

    def test_pfs_of_another_instance_are_not_taken(self):
        nothing = [[None], [None, None], [None]]
        self.assertEqual(nothing, self.claim([self.alias, self.vfs]))
        with pci_requests.claiming_allocated_pfs(self.instance):
            self.assertEqual(nothing, self.given())

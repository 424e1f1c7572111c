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

from nova import objects
from oslo_utils.fixture import uuidsentinel

from ghsched_nova.nova_fixes import rolled_back_resize
from ghsched_placement.tests import base

objects.register_all()


def flavor(name, **specs):
    return objects.Flavor(
        flavorid=name, name=name, memory_mb=512, vcpus=2, root_gb=1,
        ephemeral_gb=0, swap=0, extra_specs={
            'hw:numa_nodes': '1', **{f'ghsched:{key}': value
                                     for key, value in specs.items()}})


def requests(*counts):
    return objects.InstancePCIRequests(requests=[
        objects.InstancePCIRequest(
            request_id=getattr(uuidsentinel, f'request{number}'),
            alias_name='nic', count=count,
            requester_id='ghsched-vfs-node0', spec=[{}])
        for number, count in enumerate(counts)])


def instance(its_flavor, its_requests):
    return objects.Instance(
        flavor=its_flavor, pci_requests=its_requests, task_state=None,
        system_metadata={}, image_ref='', uuid=uuidsentinel.instance,
        trusted_certs=None)


def spec(its_flavor, its_requests):
    return objects.RequestSpec(flavor=its_flavor, numa_topology=None,
                               pci_requests=its_requests)


class AgreeTest(base.TestCase):

    def test_one_that_agrees_is_left_alone(self):
        guest = instance(flavor('a', mem_bw_min='30'), requests(2))
        known = spec(flavor('a', mem_bw_min='30'), requests(2))
        known.pci_requests.requests[0].request_id = uuidsentinel.other
        self.assertFalse(
            rolled_back_resize.copy_flavor_to_request_spec(known, guest))
        self.assertIsNot(guest.pci_requests, known.pci_requests)

    def test_flavor_and_topology_are_those_of_the_instance(self):
        guest = instance(flavor('a', mem_bw_min='30'), requests())
        for other in (flavor('b', mem_bw_min='60'), flavor('b'),
                      flavor('a', mem_bw_min='20')):
            known = spec(other, requests())
            self.assertTrue(
                rolled_back_resize.copy_flavor_to_request_spec(known, guest))
            self.assertIs(guest.flavor, known.flavor)
            self.assertEqual(1, len(known.numa_topology.cells))
            self.assertFalse(
                rolled_back_resize.copy_flavor_to_request_spec(known, guest))

    def test_devices_that_were_forgotten_come_back(self):
        guest = instance(flavor('a', vfs='nic:2'), requests(2))
        for devices in (None, requests(), requests(1)):
            known = spec(flavor('a', vfs='nic:2'), devices)
            self.assertTrue(
                rolled_back_resize.copy_flavor_to_request_spec(known, guest))
            self.assertEqual(2, known.pci_requests.requests[0].count)

    def test_a_guest_that_never_had_a_key_of_ours_is_left_to_nova(self):
        guest = instance(flavor('a'), requests())
        self.assertFalse(rolled_back_resize.copy_flavor_to_request_spec(
            spec(flavor('b'), requests(1)), guest))

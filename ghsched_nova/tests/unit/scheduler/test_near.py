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
from nova.objects import fields

from ghsched_nova.scheduler import near
from ghsched_placement.tests import base

objects.register_all()

REQUIRED = fields.PCINUMAAffinityPolicy.REQUIRED
PREFERRED = fields.PCINUMAAffinityPolicy.PREFERRED


def port(network='physnet2', **spec):
    return objects.InstancePCIRequest(
        count=1, spec=[{'physical_network': network, **spec}],
        numa_policy=PREFERRED)


def alias(name, count=1, requester=None):
    return objects.InstancePCIRequest(
        count=count, spec=[{'vendor_id': '8086'}], alias_name=name,
        requester_id=requester, numa_policy=PREFERRED)


class RequireTest(base.TestCase):

    def test_all_but_our_vfs_have_to_be_near(self):
        requests = [alias('nic', requester='ghsched-vfs-node0'),
                    port(), alias('fast')]
        self.assertEqual(
            [PREFERRED, REQUIRED, REQUIRED],
            [request.numa_policy
             for request in near.require_near_devices(requests)])
        self.assertEqual(requests[1:],
                         near.list_requests_without_vf_policy(requests))
        self.assertEqual([], near.list_requests_without_vf_policy(None))


class ShortageTest(base.TestCase):

    def shortage_of(self, free, *requests):
        return near.describe_device_shortage(requests, lambda request: free)

    def test_ports_of_a_network_are_counted_together(self):
        self.assertEqual(
            '2 of physical network physnet2 needed, available: 1 on host NUMA '
            'node 0, 4 on host NUMA node 3; 3 of alias fast needed, '
            'available: 1 on host NUMA node 0, 4 on host NUMA node 3',
            self.shortage_of({3: 4, 0: 1}, port(), port(), alias('fast', 3)))

    def test_a_host_that_does_not_tell_the_node(self):
        self.assertIn('available: 2 on a node that the host does not tell',
                      self.shortage_of({None: 2}, port()))

    def test_no_device_at_all(self):
        self.assertEqual('1 of physical network physnet2 needed, none is '
                         'free', self.shortage_of({}, port()))

    def test_a_tunnelled_network_and_a_port_with_its_interface(self):
        self.assertIn('1 of ports without a physical network needed',
                      self.shortage_of({}, port(None)))
        self.assertIn('1 of physical network physnet2 (ens2) needed',
                      self.shortage_of({}, port(parent_ifname='ens2')))

    def test_our_vfs_are_not_reported(self):
        self.assertEqual('', self.shortage_of(
            {0: 1}, alias('nic', requester='ghsched-vfs-node1')))

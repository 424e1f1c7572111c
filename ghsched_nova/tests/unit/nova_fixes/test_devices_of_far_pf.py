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

"""Claims of devices against what Placement gave, for pools of any shape."""

from collections import Counter
import random
from unittest import mock

import ddt
from nova import exception
from nova import objects
from nova.objects import fields
from nova.pci import stats
from oslo_utils.fixture import uuidsentinel

from ghsched_nova.nova_fixes import devices_of_far_pf
from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_seams import registry
from ghsched_placement.tests import base

objects.register_all()

POLICY = fields.PCINUMAAffinityPolicy
OURS = objects.Flavor(extra_specs={'ghsched:monitor': 'true'})
NODES = 4


def socket_of(node):
    return node // 2


class Pool:
    """VFs of one PF that are free."""

    def __init__(self, number, node, free):
        self.number, self.node, self.free = number, node, free
        self.uuid = getattr(uuidsentinel, f'pf{number}')

    def of_nova(self):
        # Of type-PCI, so that claiming one looks for no parent.
        devices = [objects.PciDevice(
            address=f'0000:{self.number:02x}:00.{number}', compute_node_id=1,
            vendor_id='8086', product_id='1520', numa_node=self.node,
            dev_type='type-PCI', parent_addr=None, status='available',
            extra_info={'rp_uuid': self.uuid})
            for number in range(self.free)]
        return {'vendor_id': '8086', 'product_id': '1520',
                'numa_node': self.node, 'dev_type': 'type-VF',
                'address': f'0000:{self.number:02x}:00.0',
                'remote_managed': 'false', 'count': self.free,
                'devices': devices, 'rp_uuid': self.uuid}


class Case:
    """Pools of a host, an allocation of them, and where the guest is."""

    def __init__(self, pools, given, policy, nodes):
        self.pools, self.policy, self.nodes = pools, policy, nodes
        self.given = [pool.uuid for pool in given]

    def __repr__(self):
        free = [(pool.node, pool.free) for pool in self.pools]
        given = [self.by_uuid(uuid).number for uuid in self.given]
        return f'{free}, given {given}, {self.policy}, guest on {self.nodes}'

    def by_uuid(self, uuid):
        return next(pool for pool in self.pools if pool.uuid == uuid)

    @property
    def is_right(self):
        """Whether all given devices are free and near enough."""
        return all(self.by_uuid(uuid).free >= count and
                   self.is_near(self.by_uuid(uuid).node)
                   for uuid, count in Counter(self.given).items())

    def is_near(self, node):
        if not self.nodes or self.policy == POLICY.PREFERRED:
            return True
        if node is None:
            return self.policy in (POLICY.LEGACY, None)
        if self.policy == POLICY.SOCKET:
            return socket_of(node) in map(socket_of, self.nodes)
        return node in self.nodes

    def fits(self, count):
        """Return what nova-scheduler's filter finds of a number of VFs."""
        host, request, cells = self._question(count)
        return host.support_requests([request], None, cells)

    def _question(self, count):
        host = stats.PciDeviceStats(objects.NUMATopology(cells=[
            objects.NUMACell(id=node, socket=socket_of(node))
            for node in range(NODES)]))
        host.pools = [pool.of_nova() for pool in self.pools]
        request = objects.InstancePCIRequest(
            count=count, alias_name='nic', numa_policy=self.policy,
            request_id=uuidsentinel.request, spec=[{
                'vendor_id': '8086', 'product_id': '1520',
                'dev_type': 'type-VF', 'rp_uuids': ','.join(self.given)}])
        cells = [objects.InstanceNUMACell(id=node) for node in self.nodes]
        return host, request, cells or None

    def claim(self):
        """Return the number of devices of each PF that nova-compute takes;
        None if it refuses.
        """
        host, request, cells = self._question(len(self.given))
        try:
            fits = host.support_requests([request], None, cells)
            devices = host.consume_requests([request], cells)
        except exception.PciDeviceRequestFailed:
            return None
        left = sum(pool['count'] for pool in host.pools)
        assert fits
        assert left + len(devices) == sum(pool.free for pool in self.pools)
        return Counter(device.extra_info['rp_uuid'] for device in devices)


def any_case(chance):
    pools = [Pool(number, chance.choice([None, *range(NODES)]),
                  chance.randint(1, 5))
             for number in range(chance.randint(1, 4))]
    given = chance.choices(pools, k=chance.randint(1, 4))
    policy = chance.choice([None, POLICY.LEGACY, POLICY.REQUIRED,
                            POLICY.SOCKET, POLICY.PREFERRED])
    nodes = chance.sample(range(NODES), chance.randint(0, 2))
    return Case(pools, given, policy, nodes)


#: The near PF has enough free devices, the far one was given too.
FAR = Case([Pool(0, 1, 4), Pool(1, 3, 7)], [Pool(0, 1, 4), Pool(1, 3, 7)],
           POLICY.PREFERRED, [3])


@ddt.ddt
class ClaimTest(base.TestCase):

    def setUp(self):
        super().setUp()
        patches.apply_patches(devices_of_far_pf.__name__,
                              registry.COMPUTE)

    @ddt.data(*range(20))
    def test_claim_of_any_allocation_takes_it_or_is_refused_rightly(
            self, seed):
        chance = random.Random(seed)  # noqa: S311
        for case in (any_case(chance) for _number in range(150)):
            with devices_of_far_pf.limited_to_allocated_devices(OURS):
                claimed = case.claim()
            expected = Counter(case.given) if case.is_right else None
            self.assertEqual(expected, claimed, case)

    @ddt.data({}, {'hw:numa_nodes': '1'}, {'ghsched': '1'}, None)
    def test_server_without_our_keys_is_claimed_as_nova_claims_it(
            self, extra_specs):
        flavor = (objects.Flavor() if extra_specs is None
                  else objects.Flavor(extra_specs=extra_specs))
        unchanged = stats.PciDeviceStats._filter_pools.__wrapped__
        with mock.patch.object(stats.PciDeviceStats, '_filter_pools',
                               unchanged):
            expected = FAR.claim()
        with devices_of_far_pf.limited_to_allocated_devices(flavor):
            self.assertEqual(expected, FAR.claim())
        self.assertEqual(expected, FAR.claim())

    def test_filter_takes_a_pf_that_the_mapping_names_once_for_all_vfs(self):
        """Filters may run before the one that names the PF of each VF."""
        for free, fits in ((4, True), (3, False)):
            case = Case([Pool(0, 0, free)], [], POLICY.PREFERRED, [0])
            case.given = [case.pools[0].uuid]
            with devices_of_far_pf.limited_to_allocated_devices(OURS):
                self.assertEqual(fits, case.fits(count=4))

    def test_repair_ends_with_its_context(self):
        outside = FAR.claim()
        with devices_of_far_pf.limited_to_allocated_devices(OURS):
            self.assertEqual(Counter(FAR.given), FAR.claim())
        self.assertEqual(outside, FAR.claim())

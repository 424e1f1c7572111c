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


from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from ghsched_nova.guest import metadata
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

DOMAIN = """<domain type='kvm'>
  <name>instance-00000001</name>
  <metadata><nova:instance xmlns:nova='http://openstack.org/nova'/></metadata>
  <vcpu>2</vcpu>
</domain>"""

node_policies = st.builds(
    NodePolicy, l3_ways=st.integers(0, 64), burst=st.integers(0, 100),
    minimum=st.integers(0, 100), maximum=st.integers(1, 100),
    hardlimit=st.booleans(),
    priority=st.none() | st.integers(0, 7))


@st.composite
def domains(draw):
    nodes = draw(st.lists(node_policies, max_size=8))
    hosts = draw(st.lists(st.integers(0, 63), min_size=len(nodes),
                          max_size=len(nodes)))
    places = hosts or draw(st.lists(st.integers(0, 63), max_size=8))
    permille = draw(st.just(()) | st.lists(
        st.integers(0, 9000), min_size=len(places),
        max_size=len(places)).map(tuple))
    return metadata.DomainPolicy(
        GuestPolicy(tuple(nodes), monitor=draw(st.booleans()),
                    device_numa=draw(st.sampled_from(
                        ('required', 'preferred', 'none'))),
                    rt_permille=permille),
        tuple(hosts), draw(st.booleans()),
        tuple(places if permille else ()))


class MetadataTest(base.TestCase):

    @given(domains())
    def test_written_values_are_read_back(self, domain):
        self.assertEqual(domain,
                         metadata.read_policy(metadata.write_policy(DOMAIN,
                                                                    domain)))

    @given(domains(), domains())
    def test_writing_again_replaces(self, first, second):
        xml = metadata.write_policy(
            metadata.write_policy(DOMAIN, first), second)
        self.assertEqual(second, metadata.read_policy(xml))
        self.assertEqual(metadata.write_policy(DOMAIN, second), xml)

    def test_novas_own_metadata_stays(self):
        domain = metadata.DomainPolicy(GuestPolicy((NodePolicy(60),)), (1,))
        root = etree.fromstring(metadata.write_policy(DOMAIN, domain))
        self.assertIsNotNone(root.find(
            'metadata/{http://openstack.org/nova}instance'))

    def test_a_domain_without_metadata_gets_some(self):
        domain = metadata.DomainPolicy(GuestPolicy((NodePolicy(60),)), (1,))
        xml = metadata.write_policy('<domain><name>a</name></domain>', domain)
        self.assertEqual(domain, metadata.read_policy(xml))

    @given(domains())
    def test_the_fragment_is_the_same_without_its_namespace(self, domain):
        whole = etree.fromstring(metadata.write_policy(DOMAIN, domain)).find(
            f'metadata/{{{metadata.NAMESPACE}}}policy')
        alone = etree.fromstring(metadata.render_policy(domain))
        self.assertEqual({}, alone.nsmap)
        self.assertEqual(
            [(etree.QName(one).localname, dict(one.attrib))
             for one in whole.iter()],
            [(one.tag, dict(one.attrib)) for one in alone.iter()])

    def test_a_guest_of_somebody_else_has_no_policy(self):
        self.assertIsNone(metadata.read_policy(DOMAIN))

    def test_other_numbers_of_nodes_than_the_policy_has_are_refused(self):
        two = (NodePolicy(60), NodePolicy(30))
        for policy, hosts, realtime in (
                (GuestPolicy(), (0,), ()), (GuestPolicy(), (), (0,)),
                (GuestPolicy(two), (0,), ()), (GuestPolicy(two), (), ()),
                (GuestPolicy(rt_permille=(800,)), (), ()),
                (GuestPolicy(two, rt_permille=(1, 2)), (0, 1), (1, 0))):
            self.assertRaises(ValueError, metadata.DomainPolicy, policy,
                              hosts, realtime_nodes=realtime)

    @given(domains())
    def test_policy_on_other_nodes_is_the_same_policy(self, domain):
        moved = domain.replace_host_nodes(
            tuple(node + 1 for node in domain.allocated_nodes))
        self.assertEqual(domain.policy, moved.policy)
        self.assertEqual([node + 1 for node in domain.allocated_nodes],
                         list(moved.allocated_nodes))
        self.assertEqual(domain,
                         moved.replace_host_nodes(domain.allocated_nodes))

    def test_earlier_releases_read_the_policy_of_a_real_time_guest(self):
        root = etree.fromstring(metadata.write_policy(
            DOMAIN, metadata.DomainPolicy(
                GuestPolicy((NodePolicy(60),), rt_permille=(800,)), (1,),
                realtime_nodes=(1,))))
        node, = root.iter(f'{{{metadata.NAMESPACE}}}node')
        self.assertEqual({'host', 'min', 'max', 'hardlimit'}, {*node.attrib})

    def test_nonsense_is_an_error_of_its_own(self):
        xml = metadata.write_policy(DOMAIN, metadata.DomainPolicy(
            GuestPolicy((NodePolicy(60),)), (1,)))
        for bad in (xml.replace('min="60"', 'min="much"'),
                    xml.replace('host="1"', ''),
                    xml.replace('hardlimit="true"', 'hardlimit="maybe"')):
            self.assertRaises(metadata.MetadataError,
                              metadata.read_policy, bad)

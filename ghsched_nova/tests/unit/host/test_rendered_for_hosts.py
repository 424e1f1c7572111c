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

"""Each kind of policy, live migrated between each two kinds of host.

A destination accepts a guest if its kernel has what the guest's flavor
requests. So no element of the domain XML, and no check, may need more.
"""

from dataclasses import replace
import itertools
import types
from typing import Any
from unittest import mock

from lxml import etree
from nova import exception

from ghsched_nova.guest import metadata
from ghsched_nova.host import domain_xml
from ghsched_nova.host import migration_xml
from ghsched_nova.lab.emulator import described
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl.cache_facts import CacheWays
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_nova.tests.fixtures import captured
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_nova.virt import instance_claims
from ghsched_nova.virt import migration_checks
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

DOMAIN = ('<domain><name>i-1</name><vcpu>4</vcpu><cputune/><numatune>'
          '<memnode cellid="0" mode="strict" nodeset="0"/>'
          '<memnode cellid="1" mode="strict" nodeset="1"/>'
          '</numatune></domain>')
L3 = CacheWays(('L3',), 0xfffff, 0x3ffff, 1, {0: (0,), 1: (1,)})
NO_BANDWIDTH = resctrl_host.ResctrlHost(
    dialect=dialects.UNCONTROLLED, num_closids=8, num_rmids=224)

#: Hosts with and without each control. Nodes 0 and 1 back the guest; of a host
#: called "split", they have two resctrl domains each.
HOSTS = {
    f'{name}{suffix}': change(replace(host, cache=cache))
    for name, host in (
        ('openeuler', captured.openeuler()),
        ('openeuler-split', captured.openeuler(
            domains_by_node={0: (0, 1), 1: (8, 9)})),
        ('openeuler-one-node', captured.openeuler(
            domains_by_node={0: (0,)}, left_out={1: 'it has no CPU'})),
        ('intel', captured.intel()),
        ('no-bandwidth', NO_BANDWIDTH))
    for suffix, cache, change in (
        ('', None, replace), ('+ways', L3, replace),
        ('-monitor', None, captured.without_monitor),
        ('+ways-monitor', L3, captured.without_monitor))}

PARTS: dict[str, dict[str, Any]] = {
    'min': {'minimum': 30}, 'burst': {'burst': 20}, 'max': {'maximum': 50},
    'soft': {'maximum': 50, 'hardlimit': False}, 'priority': {'priority': 5},
    'ways': {'l3_ways': 2}, 'no cap': {'maximum': 100}}

#: One and two of these parts, for both guest nodes or for the first alone.
POLICIES = {
    f'{"+".join(names)} of {count}{" monitored" * monitor}': GuestPolicy(
        (NodePolicy(**parts), NodePolicy(**parts if count == 2 else {})),
        monitor)
    for length in (1, 2)
    for names in itertools.combinations(PARTS, length)
    for parts in [{key: value for name in names
                   for key, value in PARTS[name].items()}]
    for count in (1, 2) for monitor in (False, True)}
POLICIES['monitored'] = GuestPolicy(monitor=True)

NODES = (0, 1)


def can_hold(host, policy):
    """Whether a host has the controls that a policy needs on its nodes."""
    return policy.get_needed_capabilities() <= host.capabilities() and all(
        node in host.domains_by_node for node, one
        in zip(NODES, policy.nodes, strict=False)
        if one.minimum or one.burst or one.maximum < 100 or one.priority)


def make_renderer(host, libvirt):
    renderer = domain_xml.DomainXml(types.SimpleNamespace(
        read_resctrl_host=lambda: host, can_share_groups=False,
        all_threads=False,
        section=types.SimpleNamespace(memorytune_attributes=libvirt)))
    renderer.libvirt = domain_xml.LibvirtFeatures(extended=True)
    return renderer


def find_fault(host, policy, xml):
    """Return why libvirt or nova-compute of a host refuses an XML, or "".

    libvirt refuses a node without bandwidth control, and a monitor where the
    kernel measures no bandwidth.
    """
    tune = etree.fromstring(xml).find('cputune/memorytune')
    domains = {domain for domains in host.domains_by_node.values()
               for domain in domains}
    for element in [] if tune is None else tune:
        if element.tag == 'monitor' and not host.monitored:
            return 'the kernel measures no bandwidth'
        if element.tag == 'node' and int(element.get('id')) not in domains:
            return f'no bandwidth control of node {element.get("id")}'
    domain = metadata.read_policy(xml)
    try:
        resolve.resolve_settings(host, domain.policy, domain.host_nodes)
        with mock.patch.object(instance_claims, 'parse_policy',
                               return_value=policy):
            migration_checks.check_domain_numbers(types.SimpleNamespace(
                read_resctrl_host=lambda: host), None)
    except (resolve.PolicyRefused, exception.MigrationPreCheckError) as error:
        return str(error)
    return ''


def render_for_destination(source, policy, libvirt):
    """Return the XML that a source sends to any destination.

    :param libvirt: ``[ghsched]memorytune_attributes`` of the source.
    """
    renderer = make_renderer(source, libvirt)
    return migration_xml.render_for_destination(
        renderer, renderer.render_policy(DOMAIN, policy, NODES), NODES)


def list_able_hosts(policy):
    """Names of hosts between which guests with a policy can be migrated.

    Guests with bandwidth limits cannot be live migrated to and from hosts
    whose resctrl domains are not numbered as their NUMA nodes.
    """
    limits = policy.get_needed_capabilities() - {'L3_WAYS', 'MEM_BW_MONITOR'}
    return [name for name, host in HOSTS.items() if can_hold(host, policy)
            and not (limits and 'split' in name)]


@base.needs_features('l3_ways')
class RenderedForHostsTest(base.TestCase):

    def test_live_migration_to_any_able_host_is_accepted(self):
        faults = {}
        for name, policy in POLICIES.items():
            able = list_able_hosts(policy)
            self.assertTrue(able, name)
            rendered = {
                render_for_destination(HOSTS[source], policy, libvirt): source
                for source in able for libvirt in ('none', 'basic')}
            for (xml, source), target in itertools.product(
                    rendered.items(), able):
                fault = find_fault(HOSTS[target], policy, xml)
                if fault:
                    faults[f'{name}: {source} to {target}'] = fault
        self.assertEqual({}, faults)

    def test_limits_that_were_lifted_do_not_stay_for_the_destination(self):
        renderer = make_renderer(HOSTS['intel+ways'], 'basic')
        xml = renderer.render_policy(DOMAIN, GuestPolicy(
            (NodePolicy(maximum=50, l3_ways=2),)), (0,))
        self.assertIn('<memorytune', xml)
        lifted = GuestPolicy((NodePolicy(l3_ways=2),))
        xml = migration_xml.render_for_destination(
            renderer, metadata.write_policy(xml, metadata.DomainPolicy(
                lifted, (0,))), (1,))
        self.assertNotIn('<memorytune', xml)
        self.assertEqual('', find_fault(
            HOSTS['no-bandwidth+ways'], lifted, xml))


class RoundedByTheSourceTest(base.TestCase):
    """Caps in the XML of the source, as libvirt of the destination reads it.

    The caps are those of the source's kernel, because Nova's migrate data
    cannot say how the destination rounds. nova-compute of the destination
    writes its own as soon as the guest has arrived.
    """

    #: Largest difference in percentage points until the guest has arrived.
    DIFFERENCE = 3

    X86 = ('intel', 'intel-snc-cdp', 'intel-mbps', 'amd')

    def setUp(self):
        super().setUp()
        self.hosts = {
            name: world.measured_host(described.build(name, emulated.NODES))
            for name in machines.DIALECTS}

    def list_pairs(self, extended):
        """Return hosts between which libvirt takes a guest with its caps.

        No guest is migrated between architectures.
        """
        able = [name for name, host in self.hosts.items()
                if host.can_libvirt_make_groups(extended)]
        return [(source, target)
                for source, target in itertools.permutations(able, 2)
                if (source in self.X86) == (target in self.X86)]

    def find_cap(self, name, maximum):
        setting, = resolve.resolve_settings(
            self.hosts[name], GuestPolicy((NodePolicy(maximum=maximum),)),
            (0,))
        return setting.memorytune['bandwidth']

    def test_caps_of_the_source_are_taken_by_libvirt_of_any_destination(self):
        pairs = {pair for extended in (False, True)
                 for pair in self.list_pairs(extended)}
        self.assertLess(10, len(pairs))
        for (source, target), maximum in itertools.product(
                sorted(pairs), range(1, 100)):
            cap = self.find_cap(source, maximum)
            host = self.hosts[target]
            # libvirt refuses other values (virresctrl.c).
            self.assertEqual(0, cap % host.granularity, (source, target))
            self.assertLessEqual(host.min_bandwidth, cap, (source, target))
            self.assertLessEqual(
                abs(cap - self.find_cap(target, maximum)), self.DIFFERENCE,
                (source, target, maximum))

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

"""The host as a guest with ``ghsched:guest_topology=host`` sees it."""

import dataclasses
import json
import os
import unittest

from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from ghsched_nova.features.guest_topology import host_topology
from ghsched_nova.features.guest_topology.host_topology import CpuIds
from ghsched_nova.features.guest_topology.host_topology import CpuTopology
from ghsched_nova.features.guest_topology.host_topology import HostTopology
from ghsched_nova.tests.fixtures import samples
from ghsched_placement.flavor import policy as policies
from ghsched_placement.tests import base

SCHEMA = '/usr/share/libvirt/schemas/domain.rng'
GB = 10 ** 9

#: Two nodes of the CPUs that the guest of samples.NOVA is pinned to, which
#: are two threads of a core each.
HOST = HostTopology(
    distances={0: {0: 10, 1: 21}, 1: {0: 21, 1: 10}},
    latency={0: 100, 1: 110}, bandwidth={0: 100 * GB, 1: 100 * GB},
    cpus={0: CpuIds(0, 0, 0, 0), 1: CpuIds(0, 0, 0, 0),
          80: CpuIds(1, 0, 0, 0), 81: CpuIds(1, 0, 0, 0)})


def policy(nodes=2, **keys):
    specs = {f'ghsched:{key}': value for key, value in keys.items()}
    return policies.parse_policy(
        {'ghsched:guest_topology': 'host', **specs}, nodes)


def rendered(xml=samples.NOVA, host=HOST, nodes=(0, 1), **keys):
    return host_topology.render_topology(xml, policy(**keys), nodes, host)


def places():
    number = st.integers(0, 2)
    return st.lists(st.builds(CpuIds, number, number, number, number),
                    min_size=1, max_size=12)


class RenderTest(base.TestCase):

    def test_a_guest_that_does_not_ask_keeps_its_text(self):
        self.assertIs(samples.NOVA, host_topology.render_topology(
            samples.NOVA, policies.GuestPolicy(), (0, 1), HOST))

    def test_each_cell_has_the_distances_of_its_host_node(self):
        root = etree.fromstring(rendered(nodes=(1, 0)))
        self.assertEqual(
            [[('0', '10'), ('1', '21')], [('0', '21'), ('1', '10')]],
            [[(one.get('id'), one.get('value')) for one in cell.iter(
                'sibling')] for cell in root.iter('cell')])

    def test_each_cell_has_the_latency_of_its_host_node(self):
        root = etree.fromstring(rendered())
        self.assertEqual(
            [('0', '100'), ('1', '110')],
            [(one.get('target'), one.get('value'))
             for one in root.iter('latency')])

    def test_bandwidth_is_the_guarantee_and_else_the_cap(self):
        for keys, shares in (({}, (100, 100)),
                             ({'mem_bw_min.0': '20'}, (20, 100)),
                             ({'mem_bw_min': '20', 'mem_bw_max': '50'},
                              (20, 20)),
                             ({'mem_bw_max': '50'}, (50, 50))):
            root = etree.fromstring(rendered(**keys))
            seen = [int(one.get('value')) for one
                    in root.iter('bandwidth')]
            for kib, share in zip(seen, shares, strict=True):
                wanted = share * GB / 1024
                self.assertTrue(wanted - 2048 < kib <= wanted, (keys, seen))

    def test_facts_missing_from_the_host_are_left_out(self):
        text = rendered(host=HostTopology())
        for tag in ('distances', 'interconnects', 'topology'):
            self.assertNotIn(f'<{tag}', text)

    def test_threads_of_a_core_are_threads_of_the_guest(self):
        root = etree.fromstring(rendered())
        self.assertEqual({'sockets': '2', 'cores': '1', 'threads': '2'},
                         dict(root.find('cpu/topology').attrib))

    def test_a_guest_whose_vcpus_float_keeps_its_topology(self):
        root = etree.fromstring(rendered(samples.WITHOUT_CPUTUNE))
        self.assertIsNone(root.find('cpu/topology'))

    def render_floating(self, sockets, nodes=2, vcpus=160,
                        arch='x86_64" machine="q35'):
        """Return the topology of a guest whose vCPUs float on their nodes.

        :param sockets: socket of each host node, of 80 CPUs.
        """
        each = vcpus // nodes
        pins = ''.join(
            f'<vcpupin vcpu="{vcpu}" '
            f'cpuset="{80 * (vcpu // each)}-{80 * (vcpu // each) + 79}"/>'
            for vcpu in range(vcpus))
        cells = ''.join(
            f'<cell id="{node}" cpus="{node * each}-{node * each + each - 1}" '
            'memory="1"/>' for node in range(nodes))
        xml = (f'<domain><vcpu>{vcpus}</vcpu><cputune>{pins}</cputune><os>'
               f'<type arch="{arch}">hvm</type></os><cpu mode="host-model">'
               f'<topology sockets="{vcpus}" cores="1" threads="1"/>'
               f'<numa>{cells}</numa></cpu></domain>')
        host = HostTopology(cpus={
            cpu: CpuIds(sockets[cpu // 80], 0, cpu // 8, cpu // 2)
            for cpu in range(80 * len(sockets))})
        root = etree.fromstring(rendered(xml, host, range(nodes)))
        return dict(root.find('cpu/topology').attrib)

    def test_vcpus_that_float_on_a_node_are_cores_of_its_socket(self):
        for sockets, topology in (
                ((0, 1), {'sockets': '2', 'cores': '80', 'threads': '1'}),
                ((0, 0), {'sockets': '1', 'dies': '2', 'cores': '80',
                          'threads': '1'})):
            self.assertEqual(topology, self.render_floating(sockets))
        self.assertEqual(
            {'sockets': '1', 'cores': '160', 'threads': '1'},
            self.render_floating((0, 0), arch='aarch64" machine="virt'))
        self.assertEqual(
            {'sockets': '1', 'cores': '3', 'threads': '1'},
            self.render_floating((0, 0), nodes=1, vcpus=3))

    def test_no_latency_is_zero_where_bandwidth_is_known(self):
        for latency, shown in (({}, ['100', '100']), ({1: 130}, ['130'] * 2),
                               ({0: 90, 1: 130}, ['90', '130'])):
            root = etree.fromstring(rendered(
                host=dataclasses.replace(HOST, latency=latency)))
            self.assertEqual(shown, [one.get('value') for one
                                     in root.iter('latency')])

    def test_clusters_are_for_arm_and_dies_for_x86(self):
        host = HostTopology(cpus={
            0: CpuIds(0, 0, 0, 0), 1: CpuIds(0, 0, 1, 1),
            80: CpuIds(0, 1, 0, 0), 81: CpuIds(0, 1, 1, 1)}, clusters=True)
        x86 = etree.fromstring(rendered(host=host))
        virt = samples.NOVA.replace(
            'arch="x86_64" machine="q35"', 'arch="aarch64" machine="virt"')
        arm = etree.fromstring(rendered(virt, dataclasses.replace(
            host, clusters=False)))
        clustered = etree.fromstring(rendered(virt, dataclasses.replace(
            host, cpus={cpu: dataclasses.replace(place, die=0,
                                                 cluster=place.die)
                        for cpu, place in host.cpus.items()})))
        self.assertEqual(
            {'sockets': '1', 'dies': '2', 'cores': '2', 'threads': '1'},
            dict(x86.find('cpu/topology').attrib))
        self.assertEqual({'sockets': '1', 'cores': '4', 'threads': '1'},
                         dict(arm.find('cpu/topology').attrib))
        self.assertEqual(
            {'sockets': '1', 'clusters': '2', 'cores': '2', 'threads': '1'},
            dict(clustered.find('cpu/topology').attrib))

    def test_the_guest_can_read_its_own_policy(self):
        root = etree.fromstring(rendered(
            mem_bw_min='20', vcpu_scheduler='batch'))
        entry = root.findtext("sysinfo[@type='smbios']/oemStrings/entry")
        self.assertTrue(entry.startswith('ghsched='))
        told = json.loads(entry.partition('=')[2])
        self.assertEqual([20, 20], [one['mem_bw_min']
                                    for one in told['nodes']])
        self.assertEqual({'vcpus': 'batch'}, told['scheduler'])
        self.assertEqual('sysinfo', root.find('os/smbios').get('mode'))

    @unittest.skipUnless(os.path.exists(SCHEMA), "libvirt's schemas are not "
                                                 'installed')
    def test_libvirts_grammar_takes_all_of_it(self):
        schema = etree.RelaxNG(file=SCHEMA)
        for text in (samples.NOVA, samples.ONE_LINE):
            root = etree.fromstring(rendered(text, mem_bw_max='50'))
            for foreign in root.xpath('//comment()|//metadata/*'):
                foreign.getparent().remove(foreign)
            schema.validate(root)
            self.assertEqual([], [str(one) for one in schema.error_log])


class ShapeTest(base.TestCase):

    def test_each_level_is_what_lies_within_the_one_above(self):
        cpus = [CpuIds(socket, die, cluster, core)
                for socket in range(2) for die in range(2)
                for cluster in range(2) for core in range(3)
                for _thread in range(2)]
        self.assertEqual(
            CpuTopology(2, 2, 2, 3, 2),
            host_topology.compute_cpu_topology(cpus))

    def test_an_uneven_level_counts_as_one(self):
        cpus = [CpuIds(0, 0, 0, 0), CpuIds(0, 0, 0, 1), CpuIds(0, 0, 1, 2),
                CpuIds(1, 0, 0, 0), CpuIds(1, 0, 0, 1), CpuIds(1, 0, 1, 2)]
        self.assertEqual(
            CpuTopology(2, 1, 1, 3, 1),
            host_topology.compute_cpu_topology(cpus))

    @given(places())
    def test_it_has_as_many_threads_as_the_guest_has_vcpus(self, cpus):
        found = host_topology.compute_cpu_topology(cpus)
        self.assertEqual(len(cpus), found.sockets * found.dies
                         * found.clusters * found.cores * found.threads)


class BandwidthTest(base.TestCase):

    @given(st.lists(st.integers(1, 10 ** 13), min_size=1, max_size=4),
           st.integers(1, 100))
    def test_it_is_never_more_and_fits_the_table(self, speeds, share):
        host = HostTopology(bandwidth=dict(enumerate(speeds)))
        found = host_topology.compute_guest_bandwidths(
            policy(len(speeds), mem_bw_max=str(share)),
            range(len(speeds)), host)
        if not found:
            return
        mib = [kib // 1024 for kib in found.values()]
        self.assertEqual([kib % 1024 for kib in found.values()],
                         [0] * len(mib))
        step = min(one & -one for one in mib)
        self.assertLess(max(mib) // step, 0xffff)


class FlavorTest(base.TestCase):

    def test_a_cpu_topology_of_novas_own_is_refused(self):
        with self.assertRaisesRegex(policies.PolicyError, 'hw:cpu_cores'):
            policies.parse_policy({'ghsched:guest_topology': 'host',
                                   'hw:cpu_cores': '2'}, 1)

    def test_it_needs_numa_nodes(self):
        with self.assertRaisesRegex(policies.PolicyError, 'NUMA topology'):
            policy(0)

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

"""Shared vCPUs of guests on the CPUs of few L3 caches of a host."""

import logging
from pathlib import Path
import random

import fixtures
from lxml import etree

from ghsched_nova.features.cpu_cache import cpu_cache
from ghsched_nova.features.cpu_cache import shared_pins
from ghsched_nova.guest import thread_pins
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_placement.base import cpulist
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base

#: Shared CPUs of two host NUMA nodes by L3 cache.
CACHES = {0: [frozenset(range(4)), frozenset(range(4, 8))],
          1: [frozenset(range(8, 12)), frozenset(range(12, 16))]}


def make_xml(uuid, *cells, wish='prefer'):
    """A guest of which each NUMA node has vCPUs on some CPUs."""
    root = etree.fromstring(
        f'<domain><name>i-{uuid}</name><uuid>{uuid}</uuid>'
        '<metadata/><vcpu/><cputune/><cpu><numa/></cpu></domain>')
    first = 0
    for number, (vcpus, cpus) in enumerate(cells):
        own = range(first, first + vcpus)
        etree.SubElement(root.find('cpu/numa'), 'cell', id=str(number),
                         cpus=cpulist.render_cpu_list(own), memory='1024')
        for vcpu in own if cpus else ():
            etree.SubElement(root.find('cputune'), 'vcpupin', vcpu=str(vcpu),
                             cpuset=cpus)
        first += vcpus
    root.find('vcpu').text = str(first)
    xml = etree.tostring(root, encoding='unicode')
    return shared_pins.render_wish(xml, wish) if wish else xml


class Host:
    """Host with guests, which stands in for libvirt's connection."""

    def __init__(self):
        self.xml, self.jobs, self.pinned = {}, {}, []
        self.ratio = 2.0
        self.part = cpu_cache.CpuCaches(
            Path('/nowhere'), lambda: CACHES, lambda: self.ratio, self.list,
            lambda: self)

    def list(self):
        return [desired.parse_running_domain(xml) for xml
                in self.xml.values()]

    def start(self, uuid, *cells, wish='prefer'):
        self.xml[uuid] = make_xml(uuid, *cells, wish=wish)
        self.part.reconcile_guest(desired.parse_running_domain(
            self.xml[uuid]))

    def reconcile(self):
        return list(self.part.reconcile_guests(self.list()))

    def lookupByUUIDString(self, uuid):
        return Domain(self, uuid)

    def read(self, uuid):
        """CPU sets of the vCPUs of a guest, in their order."""
        pins = thread_pins.parse_pins(etree.fromstring(self.xml[uuid]))
        return [cpulist.render_cpu_list(pins[place]) for place
                in sorted(pins)]


class Domain:

    def __init__(self, host, uuid):
        self.host, self.uuid = host, uuid

    def XMLDesc(self):
        return self.host.xml[self.uuid]

    def jobInfo(self):
        return [self.host.jobs.get(self.uuid, 0)] + [0] * 11

    def pinVcpuFlags(self, vcpu, cpus, flags):
        assert flags == 1, flags
        root = etree.fromstring(self.host.xml[self.uuid])
        root.find(f"cputune/vcpupin[@vcpu='{vcpu}']").set(
            'cpuset', cpulist.render_cpu_list(
                cpu for cpu, there in enumerate(cpus) if there))
        self.host.xml[self.uuid] = etree.tostring(root, encoding='unicode')
        self.host.pinned.append(self.uuid)


class BoundGuestsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.host = Host()
        self.log = self.useFixture(fixtures.FakeLogger(level=logging.WARNING))

    def test_guests_start_on_the_cache_with_least_load(self):
        for uuid in 'abc':
            self.host.start(uuid, (2, '0-7'))
        self.assertEqual(['0-3', '0-3'], self.host.read('a'))
        self.assertEqual(['4-7', '4-7'], self.host.read('b'))
        self.assertEqual(['0-3', '0-3'], self.host.read('c'))

    def test_each_guest_node_is_bound_on_its_host_node(self):
        self.host.start('a', (2, '8-15'), (3, '0-7'))
        self.assertEqual(['8-11'] * 2 + ['0-3'] * 3, self.host.read('a'))

    def test_guests_without_the_key_are_counted_and_stay(self):
        self.host.start('n', (8, '0-3'), wish='')
        self.host.start('a', (2, '0-7'))
        self.assertEqual(['4-7', '4-7'], self.host.read('a'))
        self.assertEqual([], self.host.reconcile())
        self.assertEqual({'a'}, set(self.host.pinned))

    def test_other_vcpus_are_not_pinned(self):
        """Dedicated CPUs, no pins, CPUs of two nodes, one cache for all."""
        for cpus in ('20', '', '0-15', '30-33'):
            self.host.start('a', (2, cpus))
        self.assertEqual([], self.host.pinned)

    def test_prefer_spills_where_the_ratio_would_be_exceeded(self):
        self.host.start('n', (7, '0-3'), (7, '4-7'), wish='')
        self.host.start('p', (2, '0-7'))
        self.host.start('r', (2, '0-7'), wish='require')
        self.assertEqual(['0-7', '0-7'], self.host.read('p'))
        self.assertEqual(['0-3', '0-3'], self.host.read('r'))

    def test_report_binds_a_spilled_guest_when_there_is_room_again(self):
        self.host.start('n', (7, '0-3'), (7, '4-7'), wish='')
        self.host.start('p', (2, '0-7'))
        del self.host.xml['n']
        self.assertEqual(['cache_pins'], self.host.reconcile())
        self.assertEqual(['0-3', '0-3'], self.host.read('p'))
        self.assertEqual([], self.host.reconcile())

    def test_report_moves_a_guest_only_to_less_load(self):
        for uuid in 'abcd':
            self.host.start(uuid, (2, '0-7'))
        self.host.pinned.clear()
        del self.host.xml['b'], self.host.xml['d']
        self.assertEqual(['cache_pins'], self.host.reconcile())
        self.assertEqual({'0-3', '4-7'},
                         {self.host.read(uuid)[0] for uuid in 'ac'})
        self.assertEqual([], self.host.reconcile())

    def test_report_binds_a_guest_that_another_has_pinned(self):
        self.host.start('a', (2, '0-7'), wish='require')
        self.host.xml['a'] = self.host.xml['a'].replace('"0-3"', '"2-5"')
        self.assertEqual(['cache_pins'], self.host.reconcile())
        self.assertEqual(['0-3', '0-3'], self.host.read('a'))

    def test_guest_in_a_job_of_libvirt_is_left_to_the_next_report(self):
        self.host.xml['a'] = make_xml('a', (2, '0-7'))
        self.host.xml['b'] = make_xml('b', (2, '0-7'))
        self.host.jobs['a'] = 2
        self.assertEqual(['cache_pins'], self.host.reconcile())
        self.assertEqual(['0-7', '0-7'], self.host.read('a'))
        self.host.jobs.clear()
        self.assertEqual(['cache_pins'], self.host.reconcile())

    def test_error_of_one_guest_is_logged_and_others_are_bound(self):
        self.host.xml['a'] = make_xml('a', (2, '0-7'))
        self.host.xml['b'] = make_xml('b', (2, '0-7'))
        self.fail_on('a')
        self.assertEqual(['cache_pins'], self.host.reconcile())
        self.assertIn("vCPUs of guest i-a to CPUs of few L3 caches",
                      self.log.output)

    def fail_on(self, uuid):
        find = self.host.lookupByUUIDString

        def find_or_fail(found):
            if found == uuid:
                raise RuntimeError('libvirt is busy')
            return find(found)
        self.host.lookupByUUIDString = find_or_fail

    def test_guest_that_cannot_be_bound_starts_on_its_whole_node(self):
        self.fail_on('a')
        self.host.start('a', (2, '0-7'), wish='require')
        self.assertEqual(['0-7', '0-7'], self.host.read('a'))
        self.assertIn('guest i-a to CPUs of few L3 caches', self.log.output)

    def test_guest_that_moves_between_nodes_meanwhile_is_left_alone(self):
        """A report read the guest on node 0, and then a move pinned it."""
        self.host.xml['a'] = make_xml('a', (2, '0-7'))
        find = self.host.lookupByUUIDString

        def move_and_find(uuid):
            self.host.xml['a'] = make_xml('a', (2, '8-15'))
            return find(uuid)
        self.host.lookupByUUIDString = move_and_find
        self.assertEqual([], self.host.reconcile())
        self.assertEqual(['8-15', '8-15'], self.host.read('a'))

    def test_guests_without_a_topology_are_counted_where_they_may_run(self):
        for cpuset, expected in (('', '0-3'), ('0-7', '0-7')):
            self.host.xml['n'] = make_xml('n', (20, ''), wish='').replace(
                '<vcpu>', f'<vcpu cpuset="{cpuset}">' if cpuset else '<vcpu>')
            self.host.start('a', (2, '0-7'))
            self.assertEqual([expected] * 2, self.host.read('a'), cpuset)

    def test_required_caches_hold_as_guests_come_and_go(self):
        draw = random.Random(300)  # noqa: S311
        self.host.ratio = 1.0
        for number in range(300):
            if draw.random() < .4 and self.host.xml:
                del self.host.xml[draw.choice(sorted(self.host.xml))]
            node = draw.choice(('0-7', '8-15'))
            self.host.start(str(number), (draw.choice((1, 2, 4, 6)), node),
                            wish=draw.choice(('require', 'prefer', '')))
            if draw.random() < .3:
                self.host.reconcile()
            for one in self.host.list():
                if shared_pins.read_wish(one.root) == 'require':
                    sets = {*self.host.read(one.domain.uuid)}
                    vcpus = len(self.host.read(one.domain.uuid))
                    self.assertEqual(1, len(sets))
                    self.assertEqual(4 if vcpus <= 4 else 8, len(
                        cpulist.parse_cpu_list(sets.pop())))

    def test_reports_come_to_an_end_of_moves(self):
        draw = random.Random(5)  # noqa: S311
        for number in range(40):
            self.host.xml[str(number)] = make_xml(
                str(number), (draw.choice((1, 2, 3, 4, 6)),
                              draw.choice(('0-7', '0-3', '4-7'))),
                wish=draw.choice(('require', 'prefer')))
        self.host.ratio = 16.0
        reports = 0
        while self.host.reconcile():
            reports += 1
            self.assertLess(reports, 10)


class RenderTest(base.TestCase):

    def render(self, extra_specs):
        found = policy.parse_policy(extra_specs, 1, 2)
        return Host().part.render(
            make_xml('a', (2, '0-7'), wish=''),
            compute_hooks.StartingGuest(found, [0], (11, 0, 0)))

    def test_only_shared_vcpus_are_bound_while_the_guest_runs(self):
        for extra_specs, wish in (
                ({'ghsched:cpu_cache': 'require'}, 'require'),
                ({'ghsched:cpu_cache': 'prefer'}, 'prefer'),
                ({'ghsched:cpu_cache': 'none'}, ''),
                ({'ghsched:cpu_cache': 'prefer',
                  'hw:cpu_policy': 'dedicated'}, ''),
                ({'ghsched:cpu_cache': 'prefer',
                  'hw:cpu_policy': 'mixed'}, '')):
            xml = self.render(extra_specs)
            self.assertEqual(wish, shared_pins.read_wish(
                etree.fromstring(xml)), extra_specs)
            self.assertIn('cpuset="0-7"', xml)

    def test_wish_is_written_once(self):
        xml = shared_pins.render_wish(make_xml('a', (2, '0-7')), 'require')
        self.assertEqual(1, xml.count('wish='))

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

import functools
from types import SimpleNamespace
from unittest import mock

import fixtures
from lxml import etree
from nova.virt.libvirt import config

from ghsched_nova.features.load import load_use
from ghsched_nova.features.rebalance import addresses
from ghsched_nova.features.rebalance import conntrack
from ghsched_nova.features.rebalance import conntrack_table
from ghsched_nova.features.rebalance import privileged
from ghsched_nova.features.rebalance import traffic_report as virt_traffic
from ghsched_nova.guest import document
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_nova.resctrl import model
from ghsched_nova.tests.fixtures import observing
from ghsched_placement.features.rebalance import traffic
from ghsched_placement.tests import base

LINE = ('ipv4 2 tcp 6 9 ESTABLISHED src=10.0.0.5 dst=10.0.0.6 sport=1 dport=2 '
        'packets=1 bytes={0} src=10.0.0.6 dst=10.0.0.5 sport=2 dport=1 '
        'packets=1 bytes=0 mark=0\n')


def xml(*ips):
    """A domain as Nova writes it."""
    guest = config.LibvirtConfigGuest()
    guest.virt_type = 'kvm'
    meta = config.LibvirtConfigGuestMetaNovaInstance()
    meta.package = '33'
    meta.ports = config.LibvirtConfigGuestMetaNovaPorts([
        config.LibvirtConfigGuestMetaNovaPort('port', [
            config.LibvirtConfigGuestMetaNovaIp(kind, address, '4')
            for kind, address in ips])])
    guest.metadata.append(meta)
    return guest.to_xml()


class AddressesTest(base.TestCase):

    def test_fixed_addresses_in_their_shortest_form(self):
        self.assertEqual(
            {'10.0.0.5', 'fd00::5'},
            addresses.parse_fixed_addresses(xml(('fixed', '10.0.0.5'),
                                                ('fixed', 'fd00:0::5'),
                                                ('floating', '192.0.2.1'))))

    def test_a_domain_that_is_not_of_nova(self):
        self.assertEqual(
            frozenset(), addresses.parse_fixed_addresses('<domain/>')
        )
        root = etree.fromstring(xml(('fixed', 'no address')))
        self.assertEqual(
            frozenset(), addresses.parse_fixed_addresses(etree.tostring(root)))


def running(*ports):
    return desired.Running(model.Domain('uuid', 1, 'one'), xml(*ports))


class ParseTest(base.TestCase):

    def test_xml_is_parsed_once_for_load_and_traffic(self):
        running = desired.Running(model.Domain('a', 1, 'x'), '<domain/>')
        with mock.patch.object(document, 'parse_element',
                               wraps=document.parse_element) as parse, (
                mock.patch.object(virt_traffic, '_make_meter')):
            for _report in range(2):
                list(load_use.list_measurable_guests([running]))
                virt_traffic.GuestTraffic(SimpleNamespace(
                    affinity_source='conntrack')).observe(
                        compute_hooks.HostSnapshot(time=5.0,
                                                   guests=[running]))
        self.assertEqual(1, parse.call_count)


class GuestTrafficTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.count = 0
        self.useFixture(fixtures.MonkeyPatch(
            f'{privileged.__name__}.read_connections',
            lambda addresses: conntrack_table.select_connections(
                [LINE.format(self.count)], addresses)))
        self.clock = iter(range(0, 1000, 10))
        patched = mock.patch.object(virt_traffic.time, 'monotonic',
                                    lambda: next(self.clock))
        patched.start()
        self.addCleanup(patched.stop)
        affinity = virt_traffic.affinity
        self.patch(affinity, 'AffinitySettings', functools.partial(
            affinity.AffinitySettings, half_life=0.01, delay=60))

    def made(self, source='conntrack'):
        return observing.Reports(virt_traffic.GuestTraffic(SimpleNamespace(
            affinity_source=source)))

    def traffic_of(self, found, address='10.0.0.5'):
        guest = SimpleNamespace(
            name='one', get_xml_desc=lambda: xml(('fixed', address)))
        return traffic.parse_traffic_diagnostics(
            found.host.add_diagnostics({}, guest))

    def test_a_guest_is_reported_after_two_looks(self):
        found = self.made()
        for count in (10 ** 9, 10 ** 9 + 10 ** 8):
            self.count = count
            found.report(1.0, guests=[running(('fixed', '10.0.0.5'))])
        self.assertEqual(
            (traffic.AddressTraffic('10.0.0.5', '10.0.0.6', 1e7),),
            self.traffic_of(found))
        self.assertEqual((), self.traffic_of(found, '10.0.0.7'))

    def test_nothing_is_reported_where_nobody_measures(self):
        found = self.made(None)
        found.report(1.0, guests=[running()])
        self.assertIsNone(self.traffic_of(found))

    def test_uncountable_values_are_unknown_and_logged_once(self):
        found = self.made()
        with mock.patch.object(conntrack.Conntrack, 'flows', side_effect=(
                conntrack.SourceError('no table'))), mock.patch.object(
                    compute_hooks.LOG, 'warning') as warned:
            found.report(1.0, guests=[running()])
            found.report(1.0, guests=[running()])
        self.assertIsNone(self.traffic_of(found))
        self.assertEqual(1, warned.call_count)

    def test_a_source_that_is_not_installed_stops_nothing(self):
        found = self.made('nobody')
        found.report(1.0, guests=[running()])
        self.assertIsNone(self.traffic_of(found))

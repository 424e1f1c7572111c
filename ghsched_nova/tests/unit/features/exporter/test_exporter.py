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


"""ghsched-exporter, scraped over HTTP. All figures are simulated."""

import contextlib
import dataclasses
import io
import json
import os
from pathlib import Path
import re
import shutil
import socket
import tempfile
import threading
import time
from unittest import mock

import requests

from ghsched_nova.features.exporter import exporter
from ghsched_nova.features.exporter import metrics
from ghsched_nova.features.top import guest_reader
from ghsched_nova.features.top import top_source
from ghsched_nova.guest import metadata
from ghsched_nova.monitor import reader
from ghsched_nova.resctrl import naming
from ghsched_nova.tests.fixtures import exporter_case
from ghsched_nova.tests.fixtures import pylibvirt
from ghsched_nova.tests.fixtures import trees
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

QEMU = exporter_case.QEMU
GUEST = exporter_case.GUEST
DASHBOARDS = Path(__file__).parents[5] / 'etc' / 'ghsched' / 'grafana'


class ScrapeTest(exporter_case.ExporterTestCase):

    def test_counters_are_counters(self):
        host = self.host('intel', QEMU)
        self.serve(host)
        key = self.figure('ghsched_memory_bytes_total')
        first = self.scrape()
        host.run(2.0)
        second = self.scrape()
        self.assertEqual('counter', self.types['ghsched_memory_bytes'])
        self.assertNotIn('ghsched_memory_bytes_per_second', self.types)
        self.assertAlmostEqual(8e9, second[key] - first[key], delta=128)
        self.assertEqual(0, second[self.figure(
            'ghsched_memory_bytes_total', '0', '0')])

    def test_rates_are_gauges(self):
        self.serve(self.host('openeuler66', QEMU))
        found = self.scrape()
        self.assertEqual('gauge',
                         self.types['ghsched_memory_bytes_per_second'])
        self.assertNotIn('ghsched_memory_bytes', self.types)
        self.assertEqual(4e9, found[self.figure(
            'ghsched_memory_bytes_per_second')])
        self.assertIn(self.figure(
            'ghsched_memory_bytes_per_second', group='/', guest_uuid='',
            guest_name=''), found)

    def test_occupancy_of_caches_where_it_is_wanted_and_reported(self):
        for dialect, wanted, cache in (
                ('intel', True, '1'), ('intel', False, '1'),
                ('openeuler66', True, '122')):
            host = self.host(dialect, QEMU)
            host.reader = reader.Reader(host.root, host.top / 'sysfs',
                                        occupancy=wanted)
            self.serve(host)
            found = self.scrape()
            key = self.figure('ghsched_cache_occupancy_bytes', cache)
            self.assertEqual(wanted, key in found, dialect)
            if wanted:
                path = f'mon_data/mon_L3_{cache:0>2}/llc_occupancy'
                self.assertEqual(
                    int((host.root / QEMU / path).read_text()), found[key])
                self.assertEqual(
                    'gauge', self.types['ghsched_cache_occupancy_bytes'])

    def test_energy_of_cores_where_the_kernel_tells_it(self):
        for dialect, wanted, told in (('intel-snc-cdp', True, True),
                                      ('intel-snc-cdp', False, False),
                                      ('intel', True, False)):
            host = self.host(dialect, QEMU)
            host.reader = reader.Reader(host.root, host.top / 'sysfs',
                                        energy=wanted)
            self.serve(host)
            found = self.scrape()
            joules = {dict(labels)['package']: value
                      for (name, labels), value in found.items()
                      if name == 'ghsched_core_energy_joules_total'
                      and set(GUEST.items()) <= labels}
            there = {path.parent.name.removeprefix('mon_PERF_PKG_').lstrip('0')
                     or '0': float(path.read_text()) for path in
                     (host.root / QEMU / 'mon_data').glob('*/core_energy')}
            self.assertEqual(there if told else {}, joules)
            self.assertEqual(told, any(joules.values()))

    def test_energy_needs_no_option(self):
        host = self.host('intel-snc-cdp', QEMU)
        with mock.patch.object(exporter, 'make_host_metrics_server',
                               side_effect=OSError) as made:
            self.assertEqual(2, exporter.main([
                '--no-libvirt', '--resctrl', str(host.root), '--sysfs',
                str(host.top / 'sysfs')]))
        self.assertTrue(
            made.call_args.args[0].reader.read_monitor_files().energy)

    def test_energy_that_cannot_be_read_has_no_sample(self):
        host = self.host('intel-snc-cdp', QEMU)
        host.reader = reader.Reader(host.root, host.top / 'sysfs',
                                    energy=True)
        path = next((host.root / QEMU / 'mon_data').glob('*/core_energy'))
        for text in ('Unavailable\n', 'Error\n', '', '-1\n', '1e9\n', 'nan\n',
                     None):
            path.write_text(text) if text is not None else path.unlink()
            self.serve(host)
            seen = [labels for name, labels in self.scrape()
                    if name == 'ghsched_core_energy_joules_total'
                    and dict(labels)['group'] == QEMU]
            self.assertEqual(len(list(path.parent.parent.glob(
                'mon_PERF_PKG_*'))) - 1, len(seen), text)

    def test_asked_and_effective(self):
        host = self.host('openeuler66', QEMU)
        host.model.write(f'/{QEMU}/schemata', 'MB:1=70\n')
        host.sync()
        self.serve(host)
        found = self.scrape()
        for name, labels, value in (
                ('asked_min_percent', {}, 20), ('asked_max_percent', {}, 60),
                ('effective_min_percent', {'group': QEMU}, 0),
                ('effective_max_percent', {'group': QEMU}, 70),
                ('effective_max_bytes_per_second', {'group': QEMU},
                 trees.CAPACITY * 70 // 100)):
            self.assertEqual(value, found[self.key(
                f'ghsched_{name}', node='1', **labels, **GUEST)], name)
        self.assertEqual(trees.CAPACITY, found[self.key(
            'ghsched_node_capacity_bytes_per_second', node='1')])
        self.assertEqual(1, found[self.key(
            'ghsched_host_info', unit='rate_mb',
            dialect='openEuler 24.03 (OLK-6.6) MPAM')])

    def test_no_number_has_no_sample(self):
        host = self.host('amd', QEMU)
        host.model.write(f'/{QEMU}/mbm_L3_assignments',
                         'mbm_total_bytes:*=_\n')
        host.sync()
        self.serve(host)
        found = self.scrape()
        self.assertEqual([], [
            labels for name, labels in found
            if name == 'ghsched_memory_bytes_total'
            and ('group', QEMU) in labels])
        states = {dict(labels)['state']: value
                  for (name, labels), value in found.items()
                  if name == 'ghsched_unread_figures'}
        self.assertEqual({'unassigned': 4, 'unavailable': 0, 'missing': 0,
                          'error': 0}, states)

    def test_sum_over_a_guest_counts_nothing_twice(self):
        host = self.host('intel', QEMU)
        host.model.mkdir(f'/{QEMU}/mon_groups/{QEMU}')
        host.model.mkdir('/mon_groups/qemu-8-b-vcpus_0')
        host.sync()
        self.serve(host)
        groups = {dict(labels)['group']: dict(labels)['kind']
                  for name, labels in self.scrape()
                  if name == 'ghsched_memory_bytes_total'}
        self.assertEqual({'/': 'control', QEMU: 'control',
                          'mon_groups/qemu-8-b-vcpus_0': 'monitor'}, groups)

    def test_a_group_whose_name_is_no_text(self):
        host = self.host('openeuler66', QEMU)
        shutil.copytree(host.root / QEMU, host.root / 'p\udcff')
        self.serve(host)
        found = self.scrape()
        for group in (QEMU, 'p\\udcff'):
            guest = GUEST if group == QEMU else dict.fromkeys(GUEST, '')
            self.assertIn(self.figure('ghsched_memory_bytes_per_second',
                                      group=group, **guest), found)

    def share(self, *members):
        """Guest 7 and others in a group of 40 %, some measured there."""
        policy = metadata.DomainPolicy(
            GuestPolicy((NodePolicy(20, 60, False),)), (1,), shared=True)
        name = naming.render_shared_name(
            policy.policy.nodes, policy.host_nodes
        )
        host = self.host('openeuler66', name)
        host.model.write(f'/{name}/schemata', 'MB:1=40\n')
        for uuid in members:
            host.model.mkdir(
                f'/{name}/mon_groups/{naming.render_own_group_name(uuid)}'
            )
        host.sync()
        self.serve(host, metadata.render_policy(policy))
        return {
            (dict(labels)['guest_uuid'], dict(labels)['guest_name']): value
            for (metric, labels), value in self.scrape().items()
            if metric == 'ghsched_effective_max_percent'
            and {('group', name), ('node', '1')} <= labels}

    def test_each_guest_has_what_its_shared_group_holds(self):
        other = trees.UUID[:-1] + '0'
        for members in ((trees.UUID, other), (other,)):
            self.assertEqual(
                {tuple(GUEST.values()): 40, (other, other): 40},
                self.share(*members))

    def test_a_guest_that_is_not_protected_is_counted(self):
        for groups, count in (((QEMU,), 0), ((), 1)):
            self.serve(self.host('openeuler66', *groups))
            self.assertEqual(count, self.scrape()[self.key(
                'ghsched_guest_not_protected', **GUEST)])

    def test_guest_on_a_host_without_resctrl_is_counted(self):
        host = self.host('openeuler66', QEMU)
        self.serve(host)
        key = self.key('ghsched_guest_not_protected', **GUEST)
        self.assertEqual(0, self.scrape()[key])
        shutil.rmtree(host.root / 'info')
        found = self.scrape()
        self.assertEqual((0, 1), (found[self.key('ghsched_resctrl_up')],
                                  found[key]))

    def test_one_that_shares_its_group_is_protected(self):
        self.share(trees.UUID)
        self.assertEqual(0, self.scrape()[self.key(
            'ghsched_guest_not_protected', **GUEST)])

    def test_a_shared_group_of_which_no_guest_is_known(self):
        host = self.host('openeuler66', naming.DEFAULT)
        self.serve(host)
        self.assertEqual(100, self.scrape()[self.key(
            'ghsched_effective_max_percent', group=naming.DEFAULT, node='1',
            guest_uuid='', guest_name='')])

    def test_interrupts_that_the_host_has_handled(self):
        self.serve(self.host('intel', QEMU))
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        proc = Path(directory.name)
        (proc / 'interrupts').write_text(
            '9: 4 2 IR-PCI-MSI 0-edge vfio-msix[0](0000:18:00.2)\n'
            '10: 1 2 IR-PCI-MSI 0-edge vfio-msix[0](0000:99:00.2)\n')
        self.module.domains[0].domain_xml = (
            '<domain><vcpu>2</vcpu><memory>1024</memory><devices>'
            '<hostdev mode="subsystem" type="pci"><source><address '
            'domain="0x0000" bus="0x18" slot="0x00" function="0x2"/>'
            '</source></hostdev></devices></domain>')
        source = dataclasses.replace(self.source, proc=proc)
        samples = [sample for family in metrics.HostCollector(source).collect()
                   for sample in family.samples
                   if sample.name == 'ghsched_guest_vfio_interrupts_total']
        self.assertEqual([6], [sample.value for sample in samples])
        self.assertEqual({'device': '0000:18:00.2', **GUEST},
                         samples[0].labels)

    def test_guest_that_requires_direct_interrupts_is_known(self):
        for value, expected in (('required', [1]), ('preferred', [])):
            self.serve(self.host('intel', QEMU))
            self.patch(
                guest_reader.LibvirtReader, '_read_metadata_element',
                lambda _self, _domain, _namespace, value=value: (
                    '<instance xmlns="x"><name>web</name><flavor name="f">'
                    '<extraSpecs><extraSpec name="ghsched:irq_bypass">'
                    f'{value}</extraSpec></extraSpecs></flavor></instance>'
                    if _namespace == guest_reader.NOVA else None))
            self.assertEqual(expected, [
                sample.value
                for family in metrics.HostCollector(self.source).collect()
                for sample in family.samples
                if sample.name == 'ghsched_guest_irq_bypass_required'])

    def test_counters_of_vcpus_that_libvirt_reports(self):
        """The names are those of libvirt 9.0 with QEMU 7.2 under KVM."""
        self.serve(self.host('intel', QEMU))
        for stats, wanted in (
                ({'vcpu.current': 2, 'vcpu.0.exits.sum': 3856,
                  'vcpu.1.exits.sum': 144, 'vcpu.0.mmio_exits.sum': 539,
                  'vcpu.0.halt_poll_success_ns.sum': 1500000000,
                  'vcpu.0.halt_poll_fail_ns.sum': 250000000,
                  'vcpu.1.delay': 3000000000, 'vcpu.0.blocking.cur': False},
                 {('exits_total', None): 4000,
                  ('halt_poll_seconds_total', 'success'): 1.5,
                  ('halt_poll_seconds_total', 'fail'): 0.25,
                  ('steal_seconds_total', None): 3}),
                # Without KVM.
                ({'vcpu.current': 2, 'vcpu.0.delay': 620661059},
                 {('steal_seconds_total', None): 0.620661059})):
            self.module.stats = stats
            found = {
                (name.removeprefix('ghsched_guest_'),
                 dict(labels).get('outcome')): value
                for (name, labels), value in self.scrape().items()
                if 'exits' in name or 'poll' in name or 'steal' in name}
            self.assertEqual(wanted, found)

    def test_errors_are_reported(self):
        host = self.host('intel', QEMU)
        self.serve(host)
        found = self.scrape()
        self.assertEqual((1, 1, 0, 0), self.health(found))
        shutil.rmtree(host.root / 'info')
        self.module.fails = True
        self.assertEqual((0, 0, 1, 1), self.health(self.scrape()))
        self.assertEqual((0, 0, 2, 2), self.health(self.scrape()))
        self.assertNotIn('ghsched_memory_bytes', self.types)
        host.sync()
        self.module.fails = False
        self.assertEqual((1, 1, 2, 2), self.health(self.scrape()))


class BoundsTest(exporter_case.ExporterTestCase):
    """Connections, and a host that does not answer."""

    def connect(self):
        port = int(self.url.rpartition(':')[2].partition('/')[0])
        one = socket.create_connection(('127.0.0.1', port),
                                       timeout=base.GIVE_UP_S)
        self.addCleanup(one.close)
        with contextlib.suppress(ConnectionError):    # hung up already
            one.sendall(b'GET /metr')
        return one

    def check_hung_up(self, one):
        """Check that the server has ended a connection, read or unread."""
        with contextlib.suppress(ConnectionResetError):
            self.assertEqual(b'', one.recv(1))

    def test_who_says_nothing_more_is_hung_up_on(self):
        self.patch(exporter._Handler, 'timeout', 0.2)
        self.serve(self.host('intel', QEMU))
        self.check_hung_up(self.connect())

    def test_connections_that_are_held_keep_nobody_out(self):
        self.patch(exporter._Handler, 'timeout', 2 * base.GIVE_UP_S)
        self.serve(self.host('intel', QEMU))
        before = threading.active_count()
        held = [self.connect() for _ in range(exporter.CONNECTIONS + 20)]
        self.assertIn(self.figure('ghsched_memory_bytes_total'),
                      self.scrape())
        # The oldest had to go.
        self.check_hung_up(held[0])
        # A thread ends after its connection, and well before the time-out
        # that would end those that are held.
        most = before + exporter.CONNECTIONS + 1
        self.eventually(lambda: threading.active_count() <= most)

    def test_connections_that_come_at_once_wait_for_the_server(self):
        """A kernel whose queue is full lets clients try again in seconds."""
        with exporter.make_host_metrics_server(
            mock.Mock(), port=0
        ) as listening:
            for _ in range(3 * exporter.CONNECTIONS):
                self.addCleanup(socket.create_connection(
                    listening.server_address, timeout=base.GIVE_UP_S).close)

    def block_libvirt(self):
        """Block libvirt's answers until the returned event is set."""
        answers = threading.Event()
        self.addCleanup(answers.set)
        listed = self.module.listAllDomains

        def wait(*args):
            answers.wait()
            return listed(*args)

        self.module.listAllDomains = wait
        return answers

    def test_scrape_without_an_answer_of_libvirt_has_the_bandwidth(self):
        self.patch(guest_reader, 'TIMEOUT', 0.2)
        self.serve(self.host('intel', QEMU))
        answers = self.block_libvirt()
        found = self.scrape()
        self.assertEqual((1, 0, 0, 1), self.health(found))
        self.assertIn('ghsched_memory_bytes', self.types)
        answers.set()
        self.eventually(lambda: self.health(self.scrape())[1] == 1)

    def test_scrapes_without_an_answer_of_libvirt_are_bounded(self):
        # Threads of other tests in this process end meanwhile.
        self.patch(guest_reader, 'TIMEOUT', 2.0)
        self.serve(self.host('intel', QEMU))
        answers = self.block_libvirt()
        before = threading.active_count()
        files = len(os.listdir('/proc/self/fd'))
        port = int(self.url.rpartition(':')[2].partition('/')[0])
        for _scrape in range(5 * exporter.CONNECTIONS):
            with socket.create_connection(('127.0.0.1', port)) as one:
                one.sendall(b'GET /metrics HTTP/1.0\r\n\r\n')
            self.assertLessEqual(threading.active_count(),
                                 before + exporter.CONNECTIONS + 2)
            self.assertLessEqual(len(os.listdir('/proc/self/fd')),
                                 files + exporter.CONNECTIONS + 2)
        answers.set()
        # 503 until those that wait have gone.
        self.eventually(lambda: self.scrape().get(
            self.key('ghsched_libvirt_up')) == 1)

    def test_scrapes_that_are_too_many_are_answered_503(self):
        self.serve(self.host('intel', QEMU))
        answers = self.block_libvirt()
        asked = []
        for _scrape in range(exporter.CONNECTIONS):
            one = socket.create_connection(
                ('127.0.0.1', int(self.url.split(':')[2].split('/')[0])),
                timeout=base.GIVE_UP_S)
            self.addCleanup(one.close)
            one.sendall(b'GET /metrics HTTP/1.0\r\n\r\n')
            asked.append(one)
        self.eventually(lambda: not self.server._silent and len(
            self.server._begun) == exporter.CONNECTIONS)
        self.assertEqual(503, requests.get(self.url,
                                           timeout=base.GIVE_UP_S).status_code)
        answers.set()
        for one in asked:
            self.assertIn(b'200 OK', one.recv(100))

    def test_scrape_of_a_host_that_cannot_be_read_is_answered_503(self):
        self.patch(metrics, 'TIMEOUT', 0.2)
        self.serve(self.host('intel', QEMU))
        answers = self.block_libvirt()
        found = requests.get(self.url, timeout=base.GIVE_UP_S)
        self.assertEqual(503, found.status_code)
        self.assertIn('could not be read: no answer', found.text)
        answers.set()
        self.eventually(lambda: requests.get(
            self.url, timeout=base.GIVE_UP_S).status_code == 200)

    def test_scrapes_at_one_time_read_the_host_once(self):
        self.serve(self.host('intel', QEMU))
        answers = self.block_libvirt()
        waited = mock.Mock(wraps=self.module.listAllDomains)
        self.module.listAllDomains = waited
        found = []
        threads = [threading.Thread(target=lambda: found.append(
            self.health(self.scrape()))) for _scrape in range(5)]
        for thread in threads:
            thread.start()
        self.eventually(lambda: not self.server._silent and len(
            self.server._begun) == 5)
        answers.set()
        for thread in threads:
            thread.join()
        self.assertEqual([(1, 1, 0, 0)] * 5, found)
        self.assertLess(waited.call_count, 5)

    def test_connection_that_lasts_too_long_is_hung_up_on(self):
        self.patch(exporter, 'CONNECTION_TIMEOUT', 0.1)
        self.serve(self.host('intel', QEMU))
        self.check_hung_up(self.connect())

    def eventually(self, condition):
        end = time.monotonic() + base.GIVE_UP_S
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)


class CommandTest(exporter_case.ExporterTestCase):

    def test_port_in_use(self):
        self.serve(self.host('intel'))
        port = re.search(r':([0-9]+)/', self.url)[1]
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.assertEqual(2, exporter.main(['--port', port]))
        self.assertIn(f'cannot listen on 127.0.0.1 port {port}',
                      errors.getvalue())

    def test_wrong_port(self):
        for port in ('x', '65536', '-1'):
            with contextlib.redirect_stderr(io.StringIO()):
                self.assertRaises(SystemExit, exporter.main,
                                  [f'--port={port}'])


class DashboardTest(exporter_case.ExporterTestCase):

    def exported(self):
        found = set()
        for dialect in ('intel', 'openeuler66'):
            host = self.host(dialect, QEMU)
            # Without a cap there is no figure of it.
            host.model.write(f'/{QEMU}/schemata', 'MB:1=70\n')
            host.sync()
            source = top_source.HostReader(
                host.reader, guest_reader.LibvirtReader(
                    'test:///', pylibvirt.Module(pylibvirt.Domain(
                        7, pylibvirt.ELEMENT))))
            for family in metrics.HostCollector(source).collect():
                found |= {sample.name for sample in family.samples}
        return found

    def test_asks_for_what_there_is(self):
        exported = self.exported()
        document = json.loads(
            (DASHBOARDS / 'ghsched-bandwidth.json').read_text())
        asked = [target['expr'] for panel in document['panels']
                 for target in panel['targets']]
        self.assertEqual(sorted({panel['id']
                                 for panel in document['panels']}),
                         list(range(1, len(document['panels']) + 1)))
        names = {name for expression in asked
                 for name in re.findall(r'\bghsched_\w+', expression)}
        self.assertEqual(set(), names - exported)
        self.assertEqual(
            {'ghsched_host_info', 'ghsched_libvirt_up',
             'ghsched_scrape_duration_seconds'}, exported - names)

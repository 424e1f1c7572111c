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

"""Nova's services and a real Placement in one process, with our parts in.

Stand-ins: Nova's fake libvirt (no guest runs), and a directory with the files
of an openEuler 6.6 resctrl in place of the kernel's. What the driver would
write there is recorded.
"""

import contextlib
import copy
import os
from pathlib import Path
import sys

import fixtures
from lxml import etree
from nova import context as nova_context
from nova import objects
from nova.scheduler import request_filter as nova_request_filter
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api import client
from nova.tests.functional import integrated_helpers
from nova.tests.functional.libvirt import base as libvirt_base
from nova import version
from oslo_serialization import jsonutils

import ghsched_import_hook
from ghsched_nova import compat
from ghsched_nova.guest import metadata
from ghsched_nova.guest import move_record
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import reconcile
from ghsched_placement import cpulist
from ghsched_placement import names
from ghsched_placement.tests import base

ghsched_import_hook.install()
compat.config()

#: Major number of the Nova under test.
RELEASE = int(version.version_string().partition('.')[0])

ApiException = client.OpenStackApiException

FILTER = 'ghsched_nova.scheduler.filters.GhschedNUMATopologyFilter'
OURS = {metadata.NAMESPACE: 'policy', move_record.NAMESPACE: 'move'}
#: Elements of <cputune> that the fake of Nova forgets.
CPUTUNE = ('memorytune', 'vcpusched', 'emulatorsched', 'iothreadsched')
MANAGER = 'ghsched_nova.scheduler.manager.GhschedSchedulerManager'


class KeptElements(fixtures.Fixture):
    """Nova's fake Domain forgets what it does not know; libvirt does not.

    It has one definition where libvirt has two, loses a domain that runs when
    it is defined again, and its number when it is started again.
    """

    def _setUp(self):
        path = 'nova.tests.fixtures.libvirt.'
        for name, wrap in (('Domain._parse_definition', _keeping),
                           ('Domain.XMLDesc', _telling),
                           ('Domain.createWithFlags', _starting),
                           ('Connection.defineXML', _defining_again),
                           ('Connection.listAllDomains', _listing_all)):
            owner, method = name.split('.')
            function = getattr(getattr(fakelibvirt, owner), method)
            self.useFixture(fixtures.MonkeyPatch(path + name,
                                                 wrap(function)))
        for name, function in (('setMetadata', set_metadata),
                               ('pinVcpuFlags', pin_vcpu),
                               ('pinEmulator', pin_emulator),
                               ('pinIOThread', pin_iothread)):
            self.useFixture(fixtures.MonkeyPatch(f'{path}Domain.{name}',
                                                 function))


def _ours(root):
    return ([element for name in CPUTUNE
             for element in root.findall(f'cputune/{name}')],
            [element for uri, name in OURS.items()
             for element in root.findall(f'metadata/{{{uri}}}{name}')])


def _keeping(parse):
    def keep(self, xml):
        return {**parse(self, xml), '_kept': _ours(etree.fromstring(xml))}
    return keep


def _telling(describe):
    def tell(self, flags):
        now = self._def
        if flags & fakelibvirt.VIR_DOMAIN_XML_INACTIVE:
            self._def = now.get('_stored', now)
        root = etree.fromstring(describe(self, flags))
        elements, self._def = self._def['_kept'], now
        for name, some in zip(('cputune', 'metadata'), elements,
                              strict=True):
            parent = root.find(name)
            if parent is None and some:
                parent = etree.SubElement(root, name)
            for element in some:
                parent.append(etree.fromstring(etree.tostring(element)))
        return etree.tostring(root, encoding='unicode')
    return tell


def _defining_again(define):
    def define_again(self, xml):
        root = etree.fromstring(xml)
        old = self._vms.get(root.findtext('name'))
        if old is None or old._transient or not old.isActive():
            return define(self, xml)
        old._def['_stored'] = old._parse_definition(xml)
        return old
    return define_again


def _listing_all(list_some):
    def list_all(self, flags=0):
        # No flag of a group of flags asks for all of it; Nova's fake answers
        # with none, and then what says that nothing is left cannot fail.
        return list_some(self, flags or (
            fakelibvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
            | fakelibvirt.VIR_CONNECT_LIST_DOMAINS_INACTIVE))
    return list_all


def _starting(create):
    def start(self, flags):
        self._def = self._def.get('_stored', self._def)
        # Nova's fake has no number for one that is started a second time.
        if self._id < 0:
            self._id = self._connection._id_counter
        return create(self, flags)
    return start


def set_metadata(domain, kind, text, key, uri, flags=0):
    """As virDomainSetMetadata, which gives each element the namespace."""
    if uri not in OURS:
        return    # Nova's own, of which its fake keeps nothing
    assert (kind, flags) == (2, 3), (kind, flags)
    element = [] if text is None else [_with_namespace(text, key, uri)]
    for definition in (domain._def, domain._def.get('_stored', {})):
        if definition:
            tunes, old = definition['_kept']
            definition['_kept'] = (tunes, [
                one for one in old
                if etree.QName(one).namespace != uri] + element)


def _with_namespace(text, key, uri):
    plain = etree.fromstring(text)
    element = etree.Element(f'{{{uri}}}{plain.tag}', plain.attrib,
                            nsmap={key: uri})
    element.text = plain.text
    for child in plain:
        etree.SubElement(element, f'{{{uri}}}{child.tag}', child.attrib)
    return element


def pin_vcpu(domain, vcpu, cpus, flags):
    """As virDomainPinVcpuFlags; a domain that runs has a definition more."""
    assert flags == 1, flags
    domain._def.setdefault('_stored', copy.deepcopy(domain._def))
    domain._def['cpu_pins'][str(vcpu)] = _cpuset(cpus)


def pin_emulator(domain, cpus, flags):
    """Likewise virDomainPinEmulator."""
    assert flags == 1, flags
    domain._def.setdefault('_stored', copy.deepcopy(domain._def))
    domain._def['emulator_pin'] = _cpuset(cpus)


def pin_iothread(domain, number, cpus, flags):
    """Likewise virDomainPinIOThread; Nova's fake has one such thread."""
    assert (number, flags) == (1, 1), (number, flags)
    domain._def.setdefault('_stored', copy.deepcopy(domain._def))
    domain._def['iothread_pin'] = _cpuset(cpus)


def _cpuset(cpus):
    return cpulist.render(cpu for cpu, is_in in enumerate(cpus) if is_in)


class FakeKernel(fixtures.Fixture):
    """The files that read_host reads, and a record of what is enforced.

    :ivar enforced: (domain id, vcpus, desired lines) in order; the UUID in
        place of the domain id where nova-compute makes the group.
    :ivar error: raised by the next enforcement when set.
    :ivar reconciled: how often guests were, one or all.
    """

    def __init__(self, nodes=2, closids=32):
        super().__init__()
        self.nodes, self.closids = nodes, closids
        self.enforced, self.error = [], None
        self.reconciled, self.unable = 0, None

    def _setUp(self):
        self.path = self.useFixture(fixtures.TempDir()).path
        self.write()
        self.useFixture(fixtures.MockPatch(
            'ghsched_nova.resctrl.privileged.remove_own',
            self._remove_own))
        self.useFixture(fixtures.MockPatch(
            'ghsched_nova.resctrl.privileged.reconcile',
            self._reconcile))

    def write(self):
        each = range(self.nodes)
        files = {
            'info/MB/num_closids': f'{self.closids}\n',
            'info/MB/min_bandwidth': '1\n',
            'info/MB/bandwidth_gran': '1\n',
            'info/L3/num_closids': f'{self.closids}\n',
            'info/L3/cbm_mask': 'fffffff\n',
            'info/MB_MON/num_rmids': '128\n',
            'info/MB_MON/mon_features': 'mbm_total_bytes\n',
            'info/L3_MON/num_rmids': '128\n',
            'info/L3_MON/mon_features': 'llc_occupancy\n',
            'info/last_cmd_status': 'ok\n',
            'schemata': ''.join(
                f'{name:>6}:' + ';'.join(f'{node}={value}'
                                         for node in each) + '\n'
                for name, value in (
                    ('MB', '0000100'), ('MBMIN', '00000'),
                    ('MBHDL', '0000001'), ('MBPRI', '0000003'))),
            **{f'devices/system/node/node{node}/cpulist':
               f'{4 * node}-{4 * node + 3}\n' for node in each},
        }
        for name, text in files.items():
            target = os.path.join(self.path, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, 'w') as stream:
                stream.write(text)

    def vanish(self):
        for directory, _directories, files in os.walk(self.path):
            for name in files:
                os.unlink(os.path.join(directory, name))

    def own_groups(self):
        return sorted(name for name in os.listdir(self.path)
                      if name.startswith(naming.PREFIX))

    def own_monitors(self):
        top = os.path.join(self.path, naming.MONITORS)
        return sorted(naming.MONITORS + name for name in (
            os.listdir(top) if os.path.isdir(top) else ()))

    def _remove_own(self, root, uuid):
        os.rmdir(os.path.join(self.path, naming.group_name(uuid)))
        return True

    def take_groups(self, count):
        """Somebody else makes control groups."""
        for number in range(count):
            os.mkdir(os.path.join(self.path, f'pqos-{number}'))

    def _reconcile(self, root, run_path, wanted):
        """As the real one, of which the groups made here are what is left."""
        model.check(wanted)
        if self.unable:
            raise self.unable
        self.reconciled += 1
        problems = []
        for guest in wanted.guests:
            ours = guest.maker == 'ghsched'
            if ours:
                os.makedirs(os.path.join(self.path, guest.group),
                            exist_ok=True)
            try:
                self._enforce(guest.domain.uuid if ours
                              else guest.domain.id, guest)
            except fs.GroupError as error:
                problems.append(model.Problem(guest.domain.uuid, guest.group,
                                              str(error)))
        uuids = {domain.uuid for domain in wanted.domains}
        shared = {guest.shared for guest in wanted.guests}
        for name in wanted.removable.intersection(
                [*self.own_groups(), *self.own_monitors()]):
            if name not in shared and naming.guest_of(name) not in uuids:
                os.rmdir(os.path.join(self.path, name))
        return reconcile.Report((), tuple(problems))

    def _enforce(self, domain, guest):
        self.enforced.append((domain, sorted(guest.vcpus), guest.desired))
        if self.error:
            raise self.error


class NovaTestCase(base.TestCase):
    """The base of ours that a functional test class of Nova lacks."""

    FILTER_NAME = 'GhschedNUMATopologyFilter'

    def setUp(self):
        self.useFixture(KeptElements())
        self.kernel = self.useFixture(FakeKernel())
        # Nova's fake libvirt cannot be asked, and what this machine does
        # meanwhile must not say where guests go.
        self.flags(resctrl_path=self.kernel.path,
                   sysfs_path=self.kernel.path,
                   memorytune_attributes='basic',
                   device_numa_renderer='expander', load_placement=False,
                   group='ghsched')
        super().setUp()

    def _setup_services(self):
        # An installed Nova keeps it below the prefix, Nova's own fixture
        # looks beside the source.
        self.flags(api_paste_config=os.path.join(
            sys.prefix, 'etc/nova/api-paste.ini'), group='wsgi')
        super()._setup_services()

    def _setup_compute_service(self):
        self.flags(compute_driver='ghsched.GhschedLibvirtDriver')

    def _setup_scheduler_service(self):
        self.useFixture(fixtures.MonkeyPatch(
            'nova.scheduler.request_filter.ALL_REQUEST_FILTERS',
            list(nova_request_filter.ALL_REQUEST_FILTERS)))
        from ghsched_nova.scheduler import request_filter
        request_filter.register()
        self.flags(available_filters=['nova.scheduler.filters.all_filters',
                                      FILTER], group='filter_scheduler')
        enabled = [name for name in self.base_filters()
                   if name != 'NUMATopologyFilter']
        self.flags(enabled_filters=[*enabled, self.FILTER_NAME],
                   group='filter_scheduler')
        return self.start_service('scheduler', manager=MANAGER)

    def base_filters(self):
        return libvirt_base.CONF.filter_scheduler.enabled_filters


class GhschedTestCase(NovaTestCase, libvirt_base.LibvirtMigrationMixin,
                      libvirt_base.ServersTestBase,
                      integrated_helpers.InstanceHelperMixin):
    """Hosts with two NUMA nodes of four CPUs, all for pinned guests."""

    microversion = 'latest'
    ADMIN_API = True

    def setUp(self):
        super().setUp()
        self.flags(cpu_dedicated_set='0-7', group='compute')
        self.useFixture(fixtures.MonkeyPatch(
            'nova.compute.manager.ComputeManager.'
            '_live_migration_cleanup_flags',
            lambda *args, **kwargs: (True, True)))

    def _wait_for_migration_status(self, server, expected_statuses):
        """As Nova's, which gives up after 5 s: a busy machine takes longer.
        """
        for _ in range(24):
            with contextlib.suppress(self.failureException):
                return super()._wait_for_migration_status(
                    server, expected_statuses)
        return super()._wait_for_migration_status(server, expected_statuses)

    def track_vfs(self, **aliases):
        """Have VFs tracked in Placement; to be called before setUp().

        :param aliases: product id by name in [pci]alias.
        """
        specs = {name: {'vendor_id': fakelibvirt.PCI_VEND_ID,
                        'product_id': product}
                 for name, product in aliases.items()}
        self.flags(
            device_spec=[jsonutils.dumps(spec) for spec in specs.values()],
            alias=[jsonutils.dumps({**spec, 'device_type': 'type-VF',
                                    'name': name})
                   for name, spec in specs.items()],
            report_in_placement=True, group='pci')
        self.flags(pci_in_placement=True, group='filter_scheduler')

    # -- what a test arranges -------------------------------------------------

    def start_host(self, name='host_a', nodes=2, cores=4):
        self.kernel.nodes = nodes
        self.kernel.write()
        return self.start_compute(name, host_info=fakelibvirt.HostInfo(
            cpu_nodes=nodes, cpu_sockets=1, cpu_cores=cores, cpu_threads=1,
            kB_mem=16 * 1024 * 1024))

    def start_measured_host(self, name, capacity, *percents):
        """A host with so much of the bandwidth of each node in use.

        :param capacity: bytes that a node can move in a second.
        """
        for node, percent in enumerate(percents):
            path = Path(self.kernel.path, 'mon_data', f'mon_MB_{node:02}')
            path.mkdir(parents=True, exist_ok=True)
            (path / 'mbm_total_bytes').write_text(
                f'{capacity * percent // 100}\n')
        self.start_compute(name)

    def reserve(self, host=None, **nodes):
        """reserve(n0=60): the host itself keeps 60 % of its node 0."""
        self.flags(reserved_bandwidth={
            name[1:]: percent for name, percent in nodes.items()},
            group='ghsched')
        for name in [host] if host else self.computes:
            self.computes[name].manager.update_available_resource(
                nova_context.get_admin_context())

    def flavor(self, vcpus=2, nodes=1, policy='dedicated', ram=512,
               extra=None, **keys):
        specs = {f'ghsched:{key.replace("__", ".")}': str(value)
                 for key, value in keys.items()}
        if nodes:
            specs['hw:numa_nodes'] = str(nodes)
        if policy:
            specs['hw:cpu_policy'] = policy
        return self._create_flavor(
            vcpu=vcpus, memory_mb=ram, disk=1, ephemeral=0,
            extra_spec={**specs, **(extra or {})})

    def unchecked_flavor(self, **kwargs):
        """A flavor as made where nova-api does not have this extension."""
        with fixtures.MonkeyPatch('ghsched_placement.policy.check_flavor',
                                  lambda *args: None):
            return self.flavor(**kwargs)

    def boot(self, flavor, state='ACTIVE', **kwargs):
        return self._create_server(flavor_id=flavor, networks='none',
                                   expected_state=state, **kwargs)

    # -- what a test looks at -------------------------------------------------

    def provider(self, host, node):
        return names.numa_provider_uuid(self.compute_rp_uuids[host], node)

    def instance(self, server):
        return objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), server['id'],
            expected_attrs=['numa_topology', 'resources', 'flavor'])

    def host_nodes(self, server):
        return list(compat.host_cells(self.instance(server).numa_topology))

    def bandwidth(self, consumer):
        """{provider: percent} that Placement holds for a consumer."""
        allocations = self.placement.get(
            f'/allocations/{consumer}').body['allocations']
        return {provider: allocation['resources'][names.MEM_BW_PCT]
                for provider, allocation in allocations.items()
                if names.MEM_BW_PCT in allocation['resources']}

    def fault(self, server):
        return self.api.get_server(server['id'])['fault']['message']

    def domain(self, host, server):
        connection = self.computes[host].driver._host.get_connection()
        return connection.lookupByUUIDString(server['id']).XMLDesc(0)

    def domains(self, host):
        """All that libvirt has, whether they run or not."""
        connection = self.computes[host].driver._host.get_connection()
        return connection.listAllDomains(0)

    def tuned_nodes(self, host, server):
        """{resctrl domain: bandwidth} in the XML of the guest."""
        root = etree.fromstring(self.domain(host, server))
        return {int(node.get('id')): int(node.get('bandwidth'))
                for node in root.findall('cputune/memorytune/node')}

    def assert_agreement(self, server, host, shares):
        """Claim, allocation, XML and metadata name the same host nodes.

        :param shares: percent by guest NUMA node.
        """
        nodes = self.host_nodes(server)
        self.assertEqual(
            {self.provider(host, nodes[guest]): share
             for guest, share in enumerate(shares)},
            self.bandwidth(server['id']))
        self.assertEqual(set(nodes), set(self.tuned_nodes(host, server)))
        domain = metadata.read(self.domain(host, server))
        self.assertEqual(tuple(nodes), domain.host_nodes)
        self.assertEqual(list(shares), [node.minimum for node
                                        in domain.policy.nodes])

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
import functools
import gc
import inspect
from pathlib import Path
import sys

import fixtures
from lxml import etree
from nova import context as nova_context
from nova import objects
from nova.scheduler import request_filter as nova_request_filter
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.fixtures import notifications
from nova.tests.functional.api import client
from nova.tests.functional import integrated_helpers
from nova.tests.functional.libvirt import base as libvirt_base
from nova import version
from oslo_serialization import jsonutils
from testtools import content

from ghsched_nova.cmd import compute as program
from ghsched_nova.guest import metadata
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import services
from ghsched_nova.nova_seams import shared
from ghsched_nova.resctrl import fs
from ghsched_nova.tests.fixtures import kernel
from ghsched_nova.tests.fixtures import libvirt
from ghsched_nova.tests.functional import done_once
from ghsched_nova.tests.functional import patient_waits
from ghsched_nova.virt import driver as ghsched_driver
from ghsched_placement.providers import names
from ghsched_placement.tests import base

services.register_driver_class(program.DRIVER)
services.replace_manager_class('nova-compute', program.MANAGER)
shared.config()
done_once.do_all()
ghsched_driver.prepare_nova()

# What is loaded by now lives as long as the process.
gc.freeze()

#: Major number of the Nova under test.
RELEASE = int(version.version_string().partition('.')[0])

ApiException = client.OpenStackApiException

FILTER = 'ghsched_nova.scheduler.filters.GhschedNUMATopologyFilter'
MANAGER = 'ghsched_nova.features.declared_scheduler.GhschedSchedulerManager'


def _wait_n(original, subscriber, n, event, timeout):
    return original(subscriber, n, event, timeout * patient_waits.WAITS)


def _init_without_job(original, domain, *args, **kwargs):
    original(domain, *args, **kwargs)
    domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_NONE


class NovaTestCase(patient_waits.PatientWaits, base.TestCase):
    """The base of ours that a functional test class of Nova lacks."""

    FILTER_NAME = 'GhschedNUMATopologyFilter'

    def setUp(self):
        self.useFixture(libvirt.KeptElements())
        self.wake_on_changes()
        # Each test has a kernel of its own, of which the files here tell.
        self.flags(state_path=self.useFixture(fixtures.TempDir()).path)
        self.kernel = self.useFixture(kernel.FakeKernel())
        # Nova's fake libvirt cannot be asked, and what this machine does
        # meanwhile must not say where guests go.
        self.flags(resctrl_path=self.kernel.path,
                   sysfs_path=self.kernel.path,
                   memorytune_attributes='basic',
                   device_numa_renderer='expander', load_placement=False,
                   # The whole node is guaranteed: round figures.
                   reserved_bandwidth={'*': 0},
                   group='ghsched')
        # Nova's fake libvirt has detached a device when it answers, and tells
        # no event of it, which Nova would wait for.
        self.flags(device_detach_timeout=1, group='libvirt')
        # No service is taken for dead because the machine is busy.
        self.flags(service_down_time=base.GIVE_UP_S)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.notifications._Sub.wait_n',
            functools.partialmethod(functools.partial(
                _wait_n, notifications._Sub.wait_n))))
        # Before Nova 34 a fake domain has a job from its start, so that a
        # live migration that fails before the copy would never end.
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Domain.__init__',
            functools.partialmethod(functools.partial(
                _init_without_job, fakelibvirt.Domain.__init__))))
        super().setUp()

    def _setup_services(self):
        self.flags(api_paste_config=self._write_paste_config(), group='wsgi')
        super()._setup_services()

    def _write_paste_config(self):
        """Write Nova's api-paste.ini with the filter of ghsched in it.

        An installed Nova keeps it below the prefix, Nova's own fixture looks
        beside the source.
        """
        source = Path(sys.prefix, 'etc/nova/api-paste.ini')
        path = Path(self.useFixture(fixtures.TempDir()).path,
                    'api-paste.ini')
        path.write_text(source.read_text().replace(
            ' osapi_compute_app_v21', ' ghsched osapi_compute_app_v21') + (
            '\n[filter:ghsched]\npaste.filter_factory = '
            'ghsched_nova.api.server_filter:filter_factory\n'))
        return str(path)

    def _setup_compute_service(self):
        self.flags(compute_driver='ghsched.GhschedLibvirtDriver')

    def _setup_scheduler_service(self):
        self.useFixture(fixtures.MonkeyPatch(
            'nova.scheduler.request_filter.ALL_REQUEST_FILTERS',
            list(nova_request_filter.ALL_REQUEST_FILTERS)))
        from ghsched_nova.scheduler import request_filter
        request_filter.register_request_filter()
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
    _step = None

    def setUp(self):
        super().setUp()
        self.flags(cpu_dedicated_set='0-7', group='compute')
        self.useFixture(fixtures.MonkeyPatch(
            'nova.compute.manager.ComputeManager.'
            '_live_migration_cleanup_flags',
            lambda *args, **kwargs: (True, True)))

    def track_vfs(self, **aliases):
        """Configure Nova to track VFs in Placement; call this before setUp().

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

    # -- how a test tells its story -------------------------------------------

    @contextlib.contextmanager
    def step(self, name):
        """Name a step of a journey; a failure within it shows the name.

        Options of groups, what use_in_step() is given and errors of the
        kernel end with the step; what it does to servers and hosts stays.
        """
        self.addDetail('step', content.text_content(name))
        enforce = self.kernel._enforce
        with contextlib.ExitStack() as self._step:
            yield
        self._step = None
        self.kernel.error = self.kernel.unable = None
        self.kernel._enforce = enforce

    def take_steps(self, *steps, tidy=True):
        """Call methods in order, each as a step named by its method.

        :param tidy: False for steps from which nobody goes back.
        """
        for step in steps:
            with self.step(step.__name__):
                step()
            if tidy:
                self.tidy_up()
                self.kernel.enforced.clear()

    def tidy_up(self):
        """Make all as it was before the step that has been taken."""

    def use_in_step(self, fixture):
        """Use a fixture until the end of the step."""
        return self._step.enter_context(fixture)

    def flags(self, group=None, **options):
        if self._step and group:
            for name in options:
                self._step.callback(libvirt_base.CONF.set_override, name,
                                    libvirt_base.CONF[group][name], group)
        super().flags(group=group, **options)

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
        with fixtures.MonkeyPatch('ghsched_placement.flavor.policy.'
                                  'check_flavor',
                                  lambda *args: None):
            return self.flavor(**kwargs)

    def boot(self, flavor, state='ACTIVE', **kwargs):
        return self._create_server(flavor_id=flavor, networks='none',
                                   expected_state=state, **kwargs)

    def _build_server(self, name=None, image_uuid=None, *args, **kwargs):
        if image_uuid is None:
            # Nova's helper lists all images to find the first.
            image_uuid = self.glance.image1['id']
        return super()._build_server(name, image_uuid, *args, **kwargs)

    def _live_migrate(self, server, *args, **kwargs):
        """Live migrate a server.

        Nova 31 waits for no fault, and cannot be told not to.
        """
        migrate = super()._live_migrate
        if 'wait_for_fault_key' not in inspect.signature(migrate).parameters:
            kwargs.pop('wait_for_fault_key', None)
        return migrate(server, *args, **kwargs)

    def _confirm_resize(self, server, *args, **kwargs):
        # A source removes its domain if CONF.host, which all hosts of this
        # process share, is not the host of the server.
        moved = objects.Migration.get_by_instance_and_status(
            nova_context.get_admin_context(), server['id'], 'finished')
        self.flags(host=moved.source_compute)
        return super()._confirm_resize(server, *args, **kwargs)

    def stop_host(self, name):
        """A host fails; Nova knows it."""
        service = self.computes[name]
        service.stop()
        self.api.put_service_force_down(service.service_ref.uuid, True)

    # -- what a test looks at -------------------------------------------------

    def lose_resctrl_after_check(self, host):
        """Break a destination's resctrl once a live migration is checked.
        """
        driver = self.computes[host].driver
        check = driver.check_source_migrate_data_at_dest

        def check_and_fail(*args, **kwargs):
            try:
                return check(*args, **kwargs)
            finally:
                self.kernel.unable = fs.GroupError('lost since')
        self.useFixture(fixtures.MockPatchObject(
            driver, check.__name__, check_and_fail))

    def provider(self, host, node):
        return names.make_numa_provider_uuid(self.compute_rp_uuids[host], node)

    def instance(self, server):
        return objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), server['id'],
            expected_attrs=['numa_topology', 'resources', 'flavor'])

    def host_nodes(self, server):
        return list(numa.list_host_nodes(self.instance(server).numa_topology))

    def resources(self, consumer):
        """{provider: resources} that Placement holds for a consumer."""
        allocations = self.placement.get(
            f'/allocations/{consumer}').body['allocations']
        return {provider: allocation['resources']
                for provider, allocation in allocations.items()}

    def amounts(self, consumer, resource_class):
        """{provider: amount} of one class."""
        return {provider: resources[resource_class] for provider, resources
                in self.resources(consumer).items()
                if resource_class in resources}

    def bandwidth(self, consumer):
        """{provider: percent} that Placement holds for a consumer."""
        return self.amounts(consumer, names.MEM_BW_PCT)

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
        domain = metadata.read_policy(self.domain(host, server))
        self.assertEqual(tuple(nodes), domain.host_nodes)
        self.assertEqual(list(shares), [node.minimum for node
                                        in domain.policy.nodes])

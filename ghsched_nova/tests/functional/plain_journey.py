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

"""Operations of a server without a key of ghsched, as a program.

usage: python -m ghsched_nova.tests.functional.plain_journey stock|ghsched OUT

Prints nothing; writes as JSON which requests Placement got for the server,
what Nova's records had after each operation, and what was logged. A process
of its own for each, because what replaces a function of Nova stays replaced.
"""

import collections
import contextlib
import json
import logging
from pathlib import Path
import re
import sys
from typing import Any
import unittest

import fixtures
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional import integrated_helpers
from nova.tests.functional.libvirt import base as libvirt_base

from ghsched_nova.nova_seams import registry
from ghsched_nova.tests.functional import done_once
from ghsched_nova.tests.functional import patient_waits
from ghsched_placement.tests import base

_UUID = re.compile(r'[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}')
_VARIES = re.compile(r'req-\S+|host_[ab]|0x[0-9a-f]+|\d+(?:\.\d+)?|/\S*/')
#: Fields of Nova's records that an operation changes.
_SERVER_FIELDS = ('host', 'node', 'vm_state', 'task_state', 'power_state')
#: An image of Nova's fake image service.
IMAGE = '155d900f-4e14-4e4c-a73d-069cbf4541e6'

_FAILURE = exception.NovaException('a failure made for this operation')

#: Beginnings of messages about how busy the machine is, and of what a periodic
#: task of Nova meets by chance; both depend on the clock, not on ghsched.
_OF_CLOCK = ('oslo.service.',
             'nova.virt.libvirt.driver: Periodic task is updating')


class _Seen(logging.Handler):
    """Keeps what was logged until all names of the server are known."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self.names = {}

    def emit(self, record):
        if (record.name.startswith('ghsched')
                or record.name in ('placement.requestlog',
                                   'nova.compute.manager')
                or record.levelno >= logging.WARNING):
            self.lines.append((record.name, getattr(record, 'instance', ''),
                               record.getMessage()))

    def requests(self):
        """Return how often each request about the server was logged."""
        return collections.Counter(
            self.normalize(text) for logger, _server, text in self.lines
            if logger == 'placement.requestlog' and self.is_named(text))

    def messages(self):
        """Return how often each message of another logger was logged.

        What ghsched logs about hosts is no matter of the server.
        """
        lines = (f'{logger}: {self.normalize(text)}'
                 for logger, server, text in self.lines
                 if logger != 'placement.requestlog' and (
                     not logger.startswith('ghsched')
                     or self.is_named(f'{server}{text}')))
        return collections.Counter(
            line for line in lines if not line.startswith(_OF_CLOCK))

    def is_named(self, text):
        return any(name in text for name in self.names)

    def normalize(self, text):
        """Return a message without numbers and names that vary."""
        text = _UUID.sub(lambda found: self.names.get(found[0], 'UUID'), text)
        # CPUs and addresses are in what follows.
        text = re.split(r' len:|MigrateData\(|Traceback', text)[0]
        return _VARIES.sub('#', text)


class JourneyTestCase(patient_waits.PatientWaits, base.TestCase,
                      libvirt_base.LibvirtMigrationMixin,
                      libvirt_base.ServersTestBase,
                      integrated_helpers.InstanceHelperMixin):
    """Two hosts of two NUMA nodes, and one server."""

    microversion = 'latest'
    ADMIN_API = True
    CAST_AS_CALL = False
    FILTER_NAME = 'NUMATopologyFilter'
    # testtools forgets attributes of a test when it has run.
    seen = _Seen()
    states: list[Any] = []

    def setUp(self):
        self.wake_on_changes()
        super().setUp()
        logging.getLogger().addHandler(self.seen)
        self.addCleanup(logging.getLogger().removeHandler, self.seen)
        self.flags(cpu_dedicated_set='0-7', group='compute')
        self.flags(shelved_offload_time=0)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.compute.manager.ComputeManager.'
            '_live_migration_cleanup_flags',
            lambda *args, **kwargs: (True, True)))
        self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.driver.LibvirtDriver.'
            'migrate_disk_and_power_off', return_value='{}'))
        self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.driver.LibvirtDriver.snapshot'))

    def _setup_services(self):
        self.flags(api_paste_config=self._write_paste_config(), group='wsgi')
        super()._setup_services()

    def _write_paste_config(self):
        return str(Path(sys.prefix, 'etc/nova/api-paste.ini'))

    def start(self, name):
        self.start_compute(name, host_info=fakelibvirt.HostInfo(
            cpu_nodes=2, cpu_sockets=1, cpu_cores=4, cpu_threads=1,
            kB_mem=16 * 1024 * 1024))

    def plain_flavor(self, vcpus):
        return self._create_flavor(
            vcpu=vcpus, memory_mb=512, disk=1, ephemeral=0, extra_spec={
                'hw:numa_nodes': '1', 'hw:cpu_policy': 'dedicated'})

    # -- what is written down -------------------------------------------------

    def note(self, operation):
        """Write down Nova's records and Placement's of the server."""
        self.wait_until(self.is_settled)
        instance = self.instance()
        held = self.placement.get(
            f'/allocations/{self.server["id"]}').body['allocations']
        topology = instance.numa_topology
        context = nova_context.get_admin_context()
        spec = objects.RequestSpec.get_by_instance_uuid(
            context, self.server['id'])
        self.states.append([operation, {
            **{name: getattr(instance, name) for name in _SERVER_FIELDS},
            'kept': [name for name in ('old_flavor', 'new_flavor',
                                       'migration_context')
                     if name in instance and getattr(instance, name)],
            'flavor': instance.flavor.vcpus,
            # Which node and CPUs is a matter of what was freed before.
            'pinned': [len(cell.cpu_pinning or ()) for cell
                       in (topology.cells if topology else ())],
            'request': spec.flavor.vcpus,
            'held': sorted((self.host_of(provider), sorted(
                answer['resources'].items()))
                for provider, answer in held.items()),
            'migrations': [(one.migration_type, one.status)
                           for one in objects.MigrationList.get_by_filters(
                               context, {'instance_uuid':
                                         self.server['id']})]}])
        self.name_migrations()

    def is_settled(self):
        """Whether nova-compute has written its last of an operation."""
        instance = self.instance()
        return instance.task_state is None and (
            instance.vm_state in ('resized', 'error')
            or instance.old_flavor is None)

    def name_migrations(self):
        for one in objects.MigrationList.get_by_filters(
                nova_context.get_admin_context(),
                {'instance_uuid': self.server['id']}):
            self.seen.names.setdefault(one.uuid, 'MIGRATION')

    def instance(self):
        return objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), self.server['id'],
            expected_attrs=['numa_topology', 'flavor', 'migration_context'])

    def host_of(self, provider):
        return {uuid: name for name, uuid
                in self.compute_rp_uuids.items()}.get(provider, provider)

    # -- the journey ----------------------------------------------------------

    @contextlib.contextmanager
    def failing(self, method):
        with fixtures.MockPatch(
                f'nova.virt.libvirt.driver.LibvirtDriver.{method}',
                side_effect=_FAILURE):
            yield

    def act(self, action, argument, *status):
        """Ask for an action and wait until the server has a status."""
        self.api.post_server_action(self.server['id'], {action: argument})
        self.wait_until(lambda: self.api.get_server(self.server['id'])[
            'status'] in status and self.instance().task_state is None)

    def boot(self, flavor):
        """Boot a server on host_a, the one that the next operations are of."""
        self.server = self._create_server(
            flavor_id=flavor, networks='none', expected_state='ACTIVE',
            host='host_a')
        self.seen.names[self.server['id']] = 'SERVER'
        self.note('boot')

    def runTest(self):  # noqa: N802
        for name in ('host_a', 'host_b'):
            self.start(name)
        small, large = self.plain_flavor(2), self.plain_flavor(3)
        self.boot(small)
        self.successes(large)
        self._delete_server(self.server)
        for fail in (self.fail_resize, self.fail_live_migration,
                     self.fail_rebuild, self.fail_unshelving,
                     self.fail_evacuation):
            self.boot(small)
            fail(large)
            self._delete_server(self.server)
        with self.failing('_get_guest_xml'):
            self._create_server(
                flavor_id=small, networks='none', expected_state='ERROR')

    def successes(self, large):
        for operation, action, argument, status in (
                ('resize', 'resize', {'flavorRef': large}, 'VERIFY_RESIZE'),
                ('revert', 'revertResize', None, 'ACTIVE'),
                ('resize', 'resize', {'flavorRef': large}, 'VERIFY_RESIZE'),
                ('confirm', 'confirmResize', None, 'ACTIVE'),
                ('cold migration', 'migrate', None, 'VERIFY_RESIZE'),
                ('confirm', 'confirmResize', None, 'ACTIVE'),
                ('rebuild', 'rebuild', {'imageRef': IMAGE}, 'ACTIVE'),
                ('shelve', 'shelve', None, 'SHELVED_OFFLOADED'),
                ('unshelve', 'unshelve', {'host': 'host_a'}, 'ACTIVE'),
                ('reboot', 'reboot', {'type': 'HARD'}, 'ACTIVE')):
            self.act(action, argument, status)
            self.note(operation)
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']
        self.api.post_server_action(self.server['id'], {
            'os-migrateLive': {'host': None, 'block_migration': 'auto'}})
        self._wait_for_migration_status(self.server, ['completed'])
        self.note('live migration')
        with self.lost('host_b'):
            self._evacuate_server(self.server, expected_host='host_a')
            self.note('evacuation')

    def fail_resize(self, large):
        with self.failing('finish_migration'):
            self.act('resize', {'flavorRef': large}, 'ERROR')
        self.note('resize fails on the new host')

    def fail_live_migration(self, _large):
        with self.failing('check_can_live_migrate_destination'):
            self.api.post_server_action(self.server['id'], {
                'os-migrateLive': {'host': None, 'block_migration': 'auto'}})
            self._wait_for_migration_status(self.server, ['error', 'failed'])
        self.note('live migration fails before the copy')

    def fail_rebuild(self, _large):
        with self.failing('spawn'):
            self.act('rebuild', {'imageRef': IMAGE}, 'ERROR')
        self.note('rebuild fails')

    def fail_unshelving(self, _large):
        self.act('shelve', None, 'SHELVED_OFFLOADED')
        with self.failing('spawn'):
            self.api.post_server_action(self.server['id'], {'unshelve': None})
            self._wait_for_instance_action_event(
                self.server, 'unshelve', 'compute_unshelve_instance', 'Error')
        self.note('unshelving fails')

    def fail_evacuation(self, _large):
        with self.lost('host_a'), self.failing('spawn'):
            self.api.post_server_action(
                self.server['id'], {'evacuate': {'host': 'host_b'}})
            self._wait_for_migration_status(self.server, ['failed', 'error'])
            self.note('evacuation fails')

    @contextlib.contextmanager
    def lost(self, host):
        """Within this context, Nova knows that a host is down."""
        service = self.computes[host].service_ref.uuid
        self.computes[host].stop()
        self.api.put_service_force_down(service, True)
        yield
        self.restart_compute_service(host)
        self.api.put_service_force_down(service, False)


def make_ghsched_journey():
    """Return the journey with driver, scheduler and nova-api of ghsched.

    Importing the driver replaces functions of Nova in this process.
    """
    from ghsched_nova.tests.functional import nova_base

    class GhschedJourneyTestCase(nova_base.NovaTestCase, JourneyTestCase):
        pass
    return GhschedJourneyTestCase()


def main(kind, out):
    done_once.do_all()
    found = {'stock': JourneyTestCase,
             'ghsched': make_ghsched_journey}[kind]()
    result = unittest.TestResult()
    found.run(result)
    problems = [text for _test, text in (*result.errors, *result.failures)]
    Path(out).write_text(json.dumps({
        'problems': problems, 'states': found.states,
        'requests': found.seen.requests(), 'messages': found.seen.messages(),
        'replaced': sorted(registry.REPLACED)}))


if __name__ == '__main__':
    main(*sys.argv[1:])

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

"""Commands of a cloud whose message bus is down.

Nova and Placement answer over HTTP, with one host and one server; nova-api
never answers what it has to ask nova-compute.
"""

from http import server
import io
import json
import threading
import types
from urllib import parse

import fixtures
from keystoneauth1 import session
from keystoneauth1 import token_endpoint
from openstack import connection
import requests
from requests import adapters

from ghsched_nova.tests.functional import test_osc_answers as answers
from ghsched_placement.osc import plugin
from ghsched_placement.providers import names
from ghsched_placement.providers import tree
from ghsched_placement.tests import base

ROOT = '3f5b1a52-93a3-4b8e-a5e5-0c1d9a64c0aa'
SERVER = '5c7d5f0f-1f0b-4f63-8a69-4d8c1b0a9e11'
NODES = [names.make_numa_provider_uuid(ROOT, number) for number in (0, 1)]
FLAVOR = {'id': '1', 'name': 'x', 'original_name': 'x', 'vcpus': 1,
          'ram': 64, 'disk': 0, 'swap': 0, 'OS-FLV-EXT-DATA:ephemeral': 0,
          'extra_specs': {'hw:numa_nodes': '1', 'ghsched:mem_bw_min': '30'}}

#: Commands that find nothing to do in this cloud.
WITHOUT_ROWS = {'PlanRebalance', 'ApplyRebalance', 'ListRefusals'}
#: Commands that ask for what only nova-compute knows or can change.
CHANGES = {'SetServer', 'MoveServerNodes', 'BlameServer'}
#: Commands whose answer has figures that only the host knows.
ASK_HOSTS = {'Audit', 'ShowCapacity', 'CheckFlavor', 'ShowHost',
             'PlanRebalance', 'ApplyRebalance', 'ShowServerBandwidth',
             'ListServers', 'ListFlavorCapacities', 'PlanDensity'}
SAMPLES = {'ShowHost': ['a']}


def provider(uuid, name, parent):
    return {'uuid': uuid, 'name': name, 'parent_provider_uuid': parent,
            'root_provider_uuid': ROOT, 'generation': 1}


PROVIDERS = [provider(ROOT, 'a', None)] + [
    provider(uuid, f'a_NUMA{number}', ROOT)
    for number, uuid in enumerate(NODES)]
RECORD: dict[str, object] = {
    'id': SERVER, 'name': 'x', 'status': 'ACTIVE', 'tenant_id': 'p',
    'OS-EXT-STS:vm_state': 'active', 'OS-EXT-STS:task_state': None,
    'OS-EXT-STS:power_state': 1, 'OS-EXT-SRV-ATTR:host': 'a',
    'OS-EXT-SRV-ATTR:hypervisor_hostname': 'a', 'addresses': {},
    'flavor': FLAVOR, 'links': []}
HELD = {ROOT: {names.RESCTRL_GROUP: 1}, NODES[0]: {names.MEM_BW_PCT: 30}}


def placement(path, query):
    """Return Placement's answer."""
    parts = path.strip('/').split('/')
    if parts[0] == 'traits':
        return {'traits': sorted([names.NUMA_NODE_TRAIT,
                                  *names.CAPABILITY_TRAITS.values()])}
    if parts[0] == 'resource_classes':
        return {'resource_classes': [
            {'name': name} for name in sorted(names.OUR_CLASSES)]}
    if parts[0] == 'allocation_candidates':
        return {'allocation_requests': [], 'provider_summaries': {}}
    if parts[0] == 'allocations':
        return {'allocations': {uuid: {'resources': held, 'generation': 1}
                                for uuid, held in HELD.items()}}
    if len(parts) == 1:
        whole = 'in_tree' in query or not query
        return {'resource_providers': PROVIDERS if whole else PROVIDERS[:1]}
    return of_provider(*parts[1:])


def of_provider(uuid, what=''):
    inventories = ({names.RESCTRL_GROUP: tree.make_inventory(8),
                    'VCPU': tree.make_inventory(8),
                    'MEMORY_MB': tree.make_inventory(4096)} if uuid == ROOT
                   else {names.MEM_BW_PCT: tree.make_inventory(100)})
    held = HELD.get(uuid, {})
    return {
        '': next(one for one in PROVIDERS if one['uuid'] == uuid),
        'inventories': {'inventories': inventories},
        'usages': {'usages': {name: held.get(name, 0)
                              for name in inventories}},
        'traits': {'traits': sorted(names.CAPABILITY_TRAITS.values()) + (
            [names.NUMA_NODE_TRAIT] if uuid != ROOT else [])},
        'allocations': {'allocations': {SERVER: {'resources': held}}
                        if held else {}},
    }[what]


def nova(path, _query):
    """Return nova-api's answer."""
    parts = path.strip('/').split('/')
    found = {
        'os-hypervisors': {'hypervisors': [{
            'id': ROOT, 'hypervisor_hostname': 'a', 'state': 'up',
            'status': 'enabled', 'service': {'host': 'a'}}]},
        'os-migrations': {'migrations': []},
        'os-server-groups': {'server_groups': []},
        'flavors': ({'flavor': FLAVOR} if parts[1:] == ['x']
                    else {'flavors': [FLAVOR]}),
        'servers': {'servers': [RECORD]}}[parts[0]]
    if parts[0] == 'servers' and parts[1:] not in ([], ['detail']):
        found = {'topology': {'nodes': [{'host_node': 0}]},
                 'os-instance-actions': {'instanceActions': []},
                 '': {'server': RECORD}}[(parts + [''])[2]]
    return found


class Handler(server.BaseHTTPRequestHandler):

    protocol_version = 'HTTP/1.1'

    def log_message(self, *_arguments):
        """Print nothing."""

    def do_GET(self):
        self.rfile.read(int(self.headers.get('Content-Length') or 0))
        split = parse.urlsplit(self.path)
        service, _, path = split.path.strip('/').partition('/')
        answer = {'compute': nova, 'placement': placement}.get(service)
        if answer is None:
            self.send_error(404)
            return
        found = (answer(path, split.query) if path else
                 versions(service, self.server.server_port))
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_GET


def versions(service, port):
    most = {'compute': '2.100', 'placement': '1.39'}[service]
    return {'versions': [{
        'id': 'v2.1' if service == 'compute' else 'v1.0',
        'status': 'CURRENT', 'version': most, 'max_version': most,
        'min_version': '2.1' if service == 'compute' else '1.0',
        'links': [{'rel': 'self',
                   'href': f'http://127.0.0.1:{port}/{service}/'}]}]}


class SilentHosts(adapters.HTTPAdapter):
    """Lets each request time out that nova-api passes to nova-compute.

    A request without a time limit would wait for ever. No clock decides.

    :ivar asked: paths of these requests.
    """

    def __init__(self):
        super().__init__()
        self.asked = []

    def send(self, request, *args, timeout=None, **how):
        path = parse.urlsplit(request.url).path
        if not path.endswith(('/diagnostics', '/action')):
            return super().send(request, *args, timeout=timeout, **how)
        assert timeout is not None, path
        self.asked.append(path)
        raise requests.exceptions.ReadTimeout(path, request=request)


class BusDownTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.cloud = server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.cloud.daemon_threads = True
        self.addCleanup(self.cloud.server_close)
        self.addCleanup(self.cloud.shutdown)
        threading.Thread(target=self.cloud.serve_forever,
                         daemon=True).start()

    def run_command(self, kind):
        """Return status, rows and log of a command, and what asked hosts."""
        hosts, transport = SilentHosts(), requests.Session()
        transport.mount('http://', hosts)
        url = f'http://127.0.0.1:{self.cloud.server_port}'
        cloud = plugin.make_client(types.SimpleNamespace(
            sdk_connection=connection.Connection(
                session=session.Session(
                    auth=token_endpoint.Token(url, 'token'),
                    session=transport),
                compute_endpoint_override=f'{url}/compute',
                placement_endpoint_override=f'{url}/placement')))
        app = types.SimpleNamespace(
            stdout=io.StringIO(), stdin=io.StringIO(), stderr=io.StringIO(),
            client_manager=types.SimpleNamespace(ghsched=cloud))
        command = kind(app, None)
        parser = command.get_parser('openstack ghsched')
        # Changes are confirmed, and the second measurement comes at once.
        parser.set_defaults(yes=True, interval=0.0)
        words = SAMPLES.get(kind.__name__) or answers.arguments(kind, parser)
        with fixtures.FakeLogger() as log:
            status = command.run(parser.parse_args(['-f', 'json', *words]))
        text = app.stdout.getvalue()
        rows = json.loads(text) if text else []
        return status, rows, log.output, hosts.asked

    def test_command_ends_with_what_is_known_and_a_note(self):
        for kind in answers.commands():
            name = kind.__name__
            with self.subTest(command=name):
                status, rows, log, asked = self.run_command(kind)
                for text in answers.FOREIGN:
                    self.assertNotIn(text, log)
                if name in CHANGES:
                    self.assertEqual(2, status)
                    self.assertIn('Nova does not answer', log)
                    continue
                self.assertEqual(name in WITHOUT_ROWS, not rows, log)
                self.assertEqual(
                    name in ASK_HOSTS,
                    'nova-compute did not answer within' in log, log)
                # A host that is silent is waited for once.
                self.assertEqual(1 if name in ASK_HOSTS else 0, len(asked),
                                 asked)

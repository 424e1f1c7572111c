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

"""Refusals of services, and the messages for users."""

from concurrent import futures
import sys
import types

import fixtures
from keystoneauth1 import exceptions as ksa_exceptions
from openstack import exceptions as sdk_exceptions
from osc_lib import exceptions

from ghsched_placement.audit import repair
from ghsched_placement.features.flavor_check import flavor_check
from ghsched_placement.features.live_change import past_moves
from ghsched_placement.osc import client
from ghsched_placement.osc import nova_reader
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures.responses import make_client
from ghsched_placement.tests.fixtures.responses import Response


class Adapter:
    """A service that has these answers, by path."""

    def __init__(self, **answers):
        self.answers, self.asked = answers, []

    def get(self, path, microversion=None, **_how):
        self.asked.append(path)
        found = self.answers[path.split('/')[1].split('?')[0].replace(
            '-', '_')]
        return found.pop(0) if isinstance(found, list) else found


class TopologyTest(base.TestCase):

    def test_dedicated_cpus_of_a_server_are_those_of_all_its_nodes(self):
        for nodes, cpus in (
                ([{'cpu_pinning': {'0': 3, '1': 9}},
                  {'cpu_pinning': {'2': 4}}], {3, 4, 9}),
                ([{'vcpu_set': [0]}], set()), ([], set())):
            client = make_client(compute=Adapter(
                servers=Response(200, {'nodes': nodes})))
            self.assertEqual(cpus, client.get_dedicated_cpus('u'))


class RefusalTest(base.TestCase):

    def refused(self, response):
        with self.assertRaises(exceptions.CommandError) as raised:
            make_client(Adapter(traits=response)).list_hosts()
        return str(raised.exception)

    def test_a_user_without_rights_is_refused_with_a_hint(self):
        self.assertEqual(
            'Placement does not let you read /traits (HTTP 403). This '
            'command is for admins; see OS_CLOUD or --os-cloud',
            self.refused(Response(403, {'errors': []})))

    def test_words_of_the_service_are_kept(self):
        for body, words in (
                ({'errors': [{'detail': 'No such trait'}]}, 'No such trait'),
                ({'badRequest': {'message': 'Not so'}}, 'Not so'),
                ({'errors': []}, '{"errors": []}'), ([1], '[1]')):
            self.assertEqual(f'Placement: GET /traits: HTTP 400 {words}',
                             self.refused(Response(400, body)))

    def test_an_answer_that_is_no_json(self):
        self.assertIn('HTTP 500 <html>', self.refused(
            Response(500, text='<html>' + 'x' * 500)))

    def test_names_that_nobody_or_two_have(self):
        for error, words in (
                (sdk_exceptions.NotFoundException, 'no server x'),
                (sdk_exceptions.DuplicateResource,
                 'more than one server has the name x; pass its UUID')):
            def find(name, ignore_missing=True, error=error, **how):
                if not ignore_missing:
                    raise error()
            with self.assertRaisesRegex(exceptions.CommandError, words):
                make_client(compute=types.SimpleNamespace(
                    find_server=find)).find_server('x')


class SilenceTest(base.TestCase):
    """Hosts that do not answer, or only some of them."""

    def setUp(self):
        super().setUp()
        self.asked, self.dead = [], {'a'}

        def get(path, **how):
            host = path.split('/')[2][0]
            self.asked.append((host, how['timeout']))
            if host in self.dead:
                raise ksa_exceptions.ConnectTimeout('late')
            return Response(200, {'up': host})

        self.log = self.useFixture(fixtures.FakeLogger())
        self.client = client.Client(types.SimpleNamespace(
            compute=types.SimpleNamespace(get=get)), workers=2)

    def ask(self, *hosts):
        return [self.client.get_diagnostics(f'{host}-1', host).get('up')
                for host in hosts]

    def test_host_without_an_answer_is_asked_once(self):
        self.assertEqual([None, 'b', None, 'c'],
                         self.ask('a', 'b', 'a', 'c'))
        self.assertEqual([('a', 5), ('b', 5), ('c', 5)], self.asked)
        self.assertEqual(1, self.log.output.count(
            'nova-compute did not answer within 5 s for server a-1 on a'))

    def test_no_host_is_asked_once_as_many_as_workers_are_silent(self):
        self.dead = set('abcd')
        self.assertEqual([None] * 4, self.ask('a', 'b', 'c', 'd'))
        self.assertEqual(['a', 'b'], [host for host, _time in self.asked])

    def test_silence_counted_by_threads_is_exact(self):
        """Threads that change turns as often as Python lets them."""
        silence = nova_reader._SilentHosts(1000)
        before = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, before)
        sys.setswitchinterval(1e-6)
        with futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: silence.add_silent_host(f'h{number}',
                                                                 'u'),
                          range(1000)))
        self.assertTrue(silence.is_host_skipped('another'))
        self.assertEqual(1, self.log.output.count('did not answer'))


class FindTest(base.TestCase):

    def found(self, own, all_projects):
        """Return the server found; ``all_projects`` is the one found in other
        projects.
        """
        def find(name, ignore_missing=True, all_projects_of=all_projects,
                 **how):
            if not how:
                if own is None and not ignore_missing:
                    raise sdk_exceptions.NotFoundException()
                return own
            if isinstance(all_projects_of, Exception):
                raise all_projects_of
            return all_projects_of

        nova = Adapter(servers=Response(200, {'server': {'id': 'u'}}))
        nova.find_server = find
        return make_client(compute=nova).find_server('x')

    def test_in_the_own_project_first(self):
        server = types.SimpleNamespace(id='u')
        self.assertEqual({'id': 'u'}, self.found(server, ValueError()))

    def test_an_admin_finds_it_anywhere(self):
        self.assertEqual({'id': 'u'}, self.found(
            None, types.SimpleNamespace(id='u')))

    def test_who_is_no_admin_does_not(self):
        with self.assertRaisesRegex(exceptions.CommandError, 'no server x'):
            self.found(None, sdk_exceptions.ForbiddenException())


class ReadTest(base.TestCase):

    def test_all_pages_are_read(self):
        nova = Adapter(servers=[
            Response(200, {'servers': [{'id': 1}, {'id': 2}],
                           'servers_links': [{'rel': 'next'}]}),
            Response(200, {'servers': [{'id': 3}]})])
        self.assertEqual(
            [1, 2, 3],
            [one['id'] for one in make_client(compute=nova).list_servers()])
        self.assertEqual('/servers/detail?all_tenants=1&marker=2',
                         nova.asked[1])

    def test_a_provider_that_goes_away_meanwhile_is_left_out(self):
        root = {'uuid': 'u', 'name': 'a', 'parent_provider_uuid': None,
                'root_provider_uuid': 'u'}
        placement = Adapter(
            traits=Response(200, {'traits': ['CUSTOM_GHSCHED_DEVICE_NUMA']}),
            resource_providers=[
                *[Response(200, {'resource_providers': [root]})] * 2,
                *[Response(404)] * 3])
        self.assertEqual((), make_client(placement).list_hosts())

    def test_moves_inside_a_host_are_among_the_actions(self):
        def action(name, request, time):
            return {'action': name, 'request_id': request, 'start_time': time}
        nova = Adapter(servers=[
            Response(200, {'instanceActions': [
                action('create', 'r1', 't1'), action('ghsched', 'r2', 't2'),
                action('ghsched', 'r3', 't3')]}),
            *(Response(200, {'instanceAction': {'events': [{'event': name}]}})
              for name in ('ghsched_set_bandwidth', 'ghsched_move_nodes'))])
        self.assertEqual(['t3'], past_moves.list_moves_within_host(
            make_client(compute=nova), 'u', 'then'))
        self.assertEqual(
            ['/servers/u/os-instance-actions?changes-since=then',
             '/servers/u/os-instance-actions/r2',
             '/servers/u/os-instance-actions/r3'], nova.asked)

    def test_a_server_that_is_gone_was_not_moved(self):
        self.assertEqual([], past_moves.list_moves_within_host(
            make_client(compute=Adapter(servers=Response(404))),
            'u', 'then'))

    def test_migrations_of_a_server_are_read_page_by_page(self):
        nova = Adapter(os_migrations=[
            Response(200, {'migrations': [{'uuid': 'm1'}],
                           'migrations_links': [{'rel': 'next'}]}),
            Response(200, {'migrations': [{'uuid': 'm2'}]})])
        self.assertEqual({'m1', 'm2'}, make_client(
            compute=nova).list_migrations_of_server('u'))
        self.assertEqual(['/os-migrations?instance_uuid=u',
                          '/os-migrations?instance_uuid=u&marker=m1'],
                         nova.asked)

    def diagnostics(self, response):
        return make_client(
            compute=Adapter(servers=response)).get_server_report('u')

    def test_host_that_reports_nothing_of_a_guest_gives_no_report(self):
        for response in (Response(404, {}), Response(200, {'cpu0_time': 1})):
            self.assertIsNone(self.diagnostics(response))

    def test_host_that_does_not_run_a_guest_says_so(self):
        self.assertFalse(self.diagnostics(Response(409, {})).runs)


class CandidateTest(base.TestCase):
    """Whether Placement would give a request to a host."""

    HOST = types.SimpleNamespace(uuid='u')

    def found(self, response):
        return flavor_check.is_allocation_candidate(
            make_client(Adapter(allocation_candidates=response)),
            self.HOST, [('resources1', 'CUSTOM_RT_CPU_PERMILLE:300')])

    def test_no_host_has_what_placement_has_never_seen(self):
        for detail in ('Invalid resource class in resources parameter: No '
                       'such resource class CUSTOM_RT_CPU_PERMILLE.',
                       'No such trait(s): CUSTOM_X.'):
            self.assertFalse(self.found(Response(
                400, {'errors': [{'detail': detail}]})))

    def test_a_query_that_is_wrong_is_no_answer(self):
        with self.assertRaises(exceptions.CommandError):
            self.found(Response(400, {'errors': [{'detail': 'Malformed'}]}))


class RepairTest(base.TestCase):
    """Repair of an allocation of 30 that should be 20."""

    def setUp(self):
        super().setUp()
        self.generations = []
        self.written = []

    def repair(self, *answers):
        """Return the reason of a refusal.

        :param answers: Placement's answers to one write after the other.
        """
        left = list(answers)
        placement = Adapter(allocations=[Response(200, {
            'allocations': {'p': {'resources': {'X': 30}}},
            'project_id': 'p', 'user_id': 'u',
            'consumer_generation': number}) for number in range(9)])

        def put(_path, json, **_how):
            self.generations.append(json['consumer_generation'])
            self.written.append(json['allocations']['p']['resources'])
            return left.pop(0)

        placement.put = put
        return make_client(placement).write_allocation_repair(
            repair.Repair('host', 'c', 'text', {'p': {'X': 20}}))

    def refuse(self, code, detail='no room'):
        return Response(409, {'errors': [{
            'code': f'placement.{code}', 'detail': detail}]})

    def test_conflict_is_retried_with_the_allocation_read_again(self):
        self.assertEqual('', self.repair(
            self.refuse('concurrent_update'), Response(204)))
        self.assertEqual([0, 1], self.generations)
        self.assertEqual([{'X': 20}] * 2, self.written)

    def test_other_refusal_is_final(self):
        self.assertEqual('HTTP 409 no room',
                         self.repair(self.refuse('undefined_code')))
        self.assertEqual([0], self.generations)

    def test_refusal_whose_text_names_the_conflict_code_is_final(self):
        self.assertEqual('HTTP 409 not a concurrent_update', self.repair(
            self.refuse('undefined_code', 'not a concurrent_update')))
        self.assertEqual([0], self.generations)


class OwnedTest(base.TestCase):
    """Whether nova-scheduler asks for OWNER_NOVA."""

    def owned(self, traits, without):
        return make_client(Adapter(
            traits=Response(200, {'traits': traits}),
            resource_providers=Response(200, {
                'resource_providers': [{'uuid': uuid} for uuid in without]}),
        )).is_owner_trait_required()

    def test_all_compute_nodes_have_it(self):
        self.assertTrue(self.owned(['OWNER_NOVA'], []))

    def test_one_compute_service_is_older(self):
        self.assertFalse(self.owned(['OWNER_NOVA'], ['a']))

    def test_placement_does_not_know_it(self):
        self.assertFalse(self.owned([], []))

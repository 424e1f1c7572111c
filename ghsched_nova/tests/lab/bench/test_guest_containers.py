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

import subprocess

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.bench import container_plan
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import guest_containers
from ghsched_placement.tests import base

SURVEY = '''ghsched-bench engine taskset
ghsched-bench engine podman
ghsched-bench server python3
ghsched-bench cpus 0-7
ghsched-bench emulated yes
ghsched-bench nic eth0 -1 main
ghsched-bench nic eth1 1 free
'''
#: Whatever a guest may print, also lines that look like ours.
HOSTILE = st.lists(st.one_of(
    st.text(max_size=40),
    st.text(max_size=40).map(lambda text: f'ghsched-bench {text}'),
    st.tuples(st.sampled_from(SURVEY.splitlines()), st.text(max_size=9)).map(
        ''.join),
    st.from_regex('ghsched-bench started [0-9,-]{1,9} cpus [0-9,-]{1,9} '
                  'irqs( [0-9]{1,3}:[0-9,-]{1,9}){0,3}', fullmatch=True))
).map('\n'.join)


def facts(engines=('podman', 'taskset'), server='redis-server'):
    return guest_containers.GuestFacts(
        engines, server, frozenset({0, 1}), False, 'eth0', ())


def order(engine='taskset', irq_cpus=(1,), irq_nic='eth1', **values):
    return guest_containers.ContainerOrder(
        **{'container': container_plan.ContainerPlace(3, 0, 0, 0, 1, False),
           'engine': engine, 'image': 'redis', 'memory': '8g',
           'irq_cpus': irq_cpus, 'irq_nic': irq_nic, 'vf': '', 'address': '',
           'server': ('redis-server', '--save', ''), **values})


class FactsTest(base.TestCase):

    def test_facts_of_a_guest(self):
        self.assertEqual(guest_containers.GuestFacts(
            ('podman', 'taskset'), 'python3', frozenset(range(8)), True,
            'eth0', (container_plan.GuestNic('eth1', 1),)),
            guest_containers.parse_facts(SURVEY.replace('\n', '\r\n')))

    def test_lines_of_others_are_not_taken(self):
        found = guest_containers.parse_facts(
            'ghsched-bench cpus 0-1\nghsched-bench engine rkt\n'
            'ghsched-bench nic ../eth1 0 free\n'
            'ghsched-bench nic eth1 0 free; reboot\n'
            'x ghsched-bench server redis-server\n')
        self.assertEqual(((), '', ()),
                         (found.engines, found.server, found.nics))

    def test_the_end_of_a_long_output_is_not_read(self):
        long = 'ghsched-bench cpus 0\n' + 'x' * 70000 + '\n' + SURVEY
        self.assertEqual((), guest_containers.parse_facts(long).engines)
        many = 'ghsched-bench cpus 0\n' + ''.join(
            f'ghsched-bench nic e{number} 0 free\n' for number in range(900))
        self.assertEqual(512, len(guest_containers.parse_facts(many).nics))

    def test_guest_without_a_list_of_cpus_is_refused(self):
        for text in ('', 'ghsched-bench cpus 9-3', 'ghsched-bench cpus ,'):
            self.assertRaises(errors.ParseError,
                              guest_containers.parse_facts, text)

    @given(HOSTILE)
    def test_any_output_is_facts_or_a_refusal(self, text):
        for parse in (guest_containers.parse_facts,
                      guest_containers.parse_started):
            try:
                parse(text)
            except errors.BenchError:
                continue


class StartedTest(base.TestCase):

    def started(self, text):
        return list(guest_containers.find_deviations(
            order(), guest_containers.parse_started(text)))

    def test_container_as_it_was_ordered(self):
        self.assertEqual([], self.started(
            'hello\nghsched-bench started 3 cpus 0 irqs 24:1 25:1\n'))

    def test_deviations_are_named(self):
        self.assertEqual(
            ['container 3: its server has CPUs 0-1, not 0',
             'container 3: interrupts 25 are not on CPUs 1'],
            self.started('ghsched-bench started 3 cpus 0-1 irqs 24:1 25:0-7'))
        self.assertEqual(
            ['container 3: the guest started 4',
             'container 3: no interrupt of its device was found'],
            self.started('ghsched-bench started 4 cpus 0 irqs'))

    def test_container_without_a_device_has_no_interrupts(self):
        self.assertEqual([], list(guest_containers.find_deviations(
            order(irq_nic=''),
            guest_containers.parse_started(
                'ghsched-bench started 3 cpus 0 irqs'))))

    def test_container_that_was_not_started(self):
        self.assertRaises(errors.ParseError, guest_containers.parse_started,
                          'ghsched-bench started 3 cpus irqs')


class ChoiceTest(base.TestCase):

    def test_best_engine_unless_one_is_asked_for(self):
        self.assertEqual('podman', guest_containers.choose_engine(
            'auto', facts()))
        self.assertEqual('taskset', guest_containers.choose_engine(
            'taskset', facts()))
        for asked, found in (('docker', facts()), ('auto', facts(()))):
            self.assertRaises(errors.BenchError,
                              guest_containers.choose_engine, asked, found)

    def command(self, engine, server):
        return guest_containers.server_command(
            engine, facts(server=server), 6380, ['redis-server'])

    def test_server_is_redis_or_a_stand_in(self):
        self.assertEqual(('redis-server',), self.command('podman', ''))
        self.assertEqual(('redis-server',),
                         self.command('cgroup', 'redis-server'))
        self.assertEqual(('python3', '6380'),
                         self.command('taskset', 'python3')[::2])
        self.assertRaises(errors.BenchError, self.command, 'cgroup', '')


class ScriptTest(base.TestCase):

    def test_scripts_are_of_the_posix_shell(self):
        for start in (order(), order(server=('python3', '/x.py', '1')),
                      order('podman', vf='eth1', image="it's")):
            for script in (guest_containers.SURVEY,
                           guest_containers.start_script(start, 'pass\n')):
                done = subprocess.run(['sh', '-n'], input=script, text=True,
                                      capture_output=True, check=False)
                self.assertEqual('', done.stderr)

    def test_words_of_an_order_stay_words(self):
        script = guest_containers.start_script(
            order(image='x; reboot', server=('redis-server', '--save', '')),
            '')
        self.assertIn("image='x; reboot'\n", script)
        self.assertIn("set -- redis-server --save ''\n", script)

    def test_command_fits_into_what_small_ssh_servers_take(self):
        from ghsched_nova.lab.bench.scenarios import gh_density
        script = guest_containers.start_script(order(server=(
            'python3', guest_containers._STANDIN, '6379')),
            gh_density._STANDIN.read_text())
        self.assertIn('asyncio', script)
        self.assertLess(len(script.replace("'", "'\"'\"'")), 9000)

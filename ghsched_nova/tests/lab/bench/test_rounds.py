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

"""Output of guests, and the part of it that is parsed."""

import subprocess

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import rounds
from ghsched_nova.tests.fixtures.results import capture
from ghsched_placement.tests import base

#: What programs print; sh drops empty lines at the end.
TEXTS = st.text(st.characters(codec='ascii', categories=['L', 'N', 'P', 'Zs']),
                max_size=20).map(lambda text: text.strip())
ROUNDS = st.lists(st.lists(TEXTS, min_size=1, max_size=4), max_size=6)
NOISE = st.sampled_from([
    '[   12.3] virtio_net: link up', 'ghsched-bench', 'login:', '',
    'ghsched-bench 7 begun', 'ghsched-bench x| y'])


def printed(texts):
    """The lines of a guest, one list a run."""
    found = []
    for number, lines in enumerate(texts, 1):
        found.append([*(f'ghsched-bench {number}| {line}' for line in lines),
                      f'ghsched-bench {number} ended 0 {len(lines)}'])
    return found


class RoundsTest(base.TestCase):

    @given(ROUNDS, st.data())
    def test_lines_of_others_change_nothing(self, texts, data):
        lines = [line for run in printed(texts) for line in run]
        mixed = []
        for line in lines:
            mixed += [*data.draw(st.lists(NOISE, max_size=2)), line]
        self.assertEqual(rounds.rounds('\n'.join(lines)),
                         rounds.rounds('\n'.join(mixed)))

    @given(ROUNDS, st.integers(0, 30))
    def test_a_run_of_which_only_the_end_is_left_is_none(self, texts, cut):
        runs = printed(texts)
        lines = [line for run in runs for line in run]
        found = rounds.rounds('\n'.join(lines[cut:]))
        whole = [number for number in range(1, len(runs) + 1)
                 if sum(map(len, runs[:number - 1])) >= cut]
        self.assertEqual(whole, [one.number for one in found])

    @given(st.text())
    def test_any_text_is_read(self, text):
        rounds.rounds(text)
        rounds.problem(text)

    @given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 4),
           st.integers(1, 5))
    def test_only_runs_that_began_later_count(self, count, since, warm_up,
                                              runs):
        found = [rounds.Round(number, 0, '')
                 for number in range(1, count + 1)]
        kept = rounds.fresh(found, since, warm_up, runs)
        first = since + 2 + warm_up
        if count - first + 1 < runs:
            self.assertIsNone(kept)
        else:
            self.assertEqual(list(range(first, first + runs)),
                             [one.number for one in kept])

    def test_a_run_that_failed_ends_it_if_it_counts(self):
        found = [rounds.Round(1, 1, 'no memory'), rounds.Round(2, 0, ''),
                 rounds.Round(3, 0, '')]
        self.assertEqual(3, rounds.fresh(found, 1, 0, 1)[0].number)
        error = self.assertRaises(errors.BenchError, rounds.fresh,
                                  [rounds.Round(2, 1, 'no memory')], 0, 0, 1)
        self.assertIn('ended with 1: no memory', str(error))


class ScriptsTest(base.TestCase):
    """Scripts run by the sh of this machine."""

    def output(self, script, lines):
        """The first lines; then its standard output is closed."""
        with subprocess.Popen(['sh', '-c', script], text=True,
                              stdout=subprocess.PIPE) as process:
            found = [process.stdout.readline() for _ in range(lines)]
            process.stdout.close()
            process.terminate()
        return ''.join(found)

    def test_a_load_is_repeated_and_numbered(self):
        text = self.output(rounds.repeated(
            ['sh', '-c', 'printf "a  b\\rc\\n\\nd%%\\n"; exit 3']), 11)
        self.assertEqual(
            [(1, 3, 'a  b\nc\n\nd%'), (2, 3, 'a  b\nc\n\nd%')],
            [(one.number, one.status, one.text)
             for one in rounds.rounds(text)])

    def test_a_program_that_the_image_has_not(self):
        for make in (rounds.repeated, rounds.served):
            self.assertEqual('the image has no no-such-program',
                             rounds.problem(self.output(
                                 make(['no-such-program']), 1)))

    def test_a_server_takes_the_place_of_the_script(self):
        self.assertEqual('a b\n', self.output(
            rounds.served(['echo', 'a b']), 1))


class LoadsTest(base.TestCase):

    def test_output_of_the_programs(self):
        stress = rounds.inside('stress', 5, 'stream')
        found = stress.read(capture('stress-ng-0.15.06.txt'))
        self.assertAlmostEqual(1000, found.latency * found.rate)
        self.assertIn('--stream', stress.argv)
        disk = rounds.inside('fio', 5, '').read(
            capture('fio-3.33-randrw.json'))
        self.assertGreater(disk.latency, 0)
        self.assertGreater(rounds.client(['redis-benchmark']).read(capture(
            'redis-benchmark-7.0.15-get-threads.txt')).rate, 0)

    def test_no_operation_is_no_figure(self):
        line = ('stress-ng: metrc: [7] stream 0 5.00 0.00 0.00 0.00 0.00')
        self.assertRaises(errors.ParseError,
                          rounds.inside('stress', 5, 'stream').read, line)

    def test_in_a_container(self):
        self.assertEqual(('fio', '-v'),
                         rounds.contained('none', 'x', ['fio', '-v']))
        self.assertEqual(
            'podman run --rm --network host x fio -v',
            ' '.join(rounds.contained('podman', 'x', ['fio', '-v'])))

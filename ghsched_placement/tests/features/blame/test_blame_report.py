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


import contextlib
import functools
import json
import operator

from ghsched_placement.features.blame import blame
from ghsched_placement.features.blame import blame_report
from ghsched_placement.features.blame import blame_trials
from ghsched_placement.flavor import policy as policies
from ghsched_placement.tests import base

NAMES = {'s': blame_report.GuestName('web', 'mine'),
         'a': blame_report.GuestName('noisy', 'other'),
         'b': blame_report.GuestName('calm', 'mine')}
EFFECT = blame_trials.Effect(0.42, 0.3, 0.55, 4)
SAMPLE = blame.BlameSample(1.0, 1.0, {'s': 5e9, 'a': 4e10}, 0.8, 0.9, 0.01)


def report(kind=blame.VerdictKind.GUEST, prove=True, **verdict):
    found = blame.BlameEvidence(
        blame.BlameVerdict(kind, **verdict), (
            blame.Suspect('a', 0.75, 0.5, -0.8, 12, 0.6,
                          EFFECT if prove else None, miss_share=0.6),
            blame.Suspect('b', 0.2, untried='it may not'),
            blame.Suspect(blame.HOST, 0.05)),
        0.8, {'a': [blame_trials.Trial(1e9, 2e9, 1e9)]} if prove else {},
        (SAMPLE,))
    return blame_report.make_report('s', 'host_a', (1, 0), found, NAMES,
                                    prove)


def paths_of(value, path=()):
    """Yield the keys that lead to each leaf of a JSON document."""
    inner = (value.items() if isinstance(value, dict)
             else enumerate(value) if isinstance(value, list) else None)
    if not inner:
        yield path
    for key, one in inner or ():
        yield from paths_of(one, (*path, key))


class ReportTest(base.TestCase):

    def test_report_is_json_with_all_evidence(self):
        shown = json.loads(json.dumps(report(suspect='a', proven=True)))
        self.assertEqual(
            {'server', 'verdict', 'prove', 'nodes', 'load', 'figure', 'own',
             'uncounted', 'suspects', 'trials'}, set(shown))
        self.assertEqual([0.6, None, None], [
            one['miss_share'] for one in shown['suspects']])
        self.assertEqual(('noisy', [0, 1], 5e9), (
            shown['verdict']['name'], shown['nodes'], shown['own']['used']))
        self.assertEqual(
            (0.42, 0.3, 0.55, 4), tuple(
                shown['suspects'][0][name] for name
                in ('effect', 'low', 'high', 'trials')))
        self.assertIsNone(shown['suspects'][2]['uuid'])
        self.assertEqual([{'suspect': 'a', 'before': 10 ** 9,
                           'during': 2 * 10 ** 9, 'after': 10 ** 9}],
                         shown['trials'])

    def test_rows_have_as_many_cells_as_the_header(self):
        rows = list(blame_report.list_suspect_rows(report(suspect='a')))
        self.assertEqual(
            ('noisy', '75', '50', '-0.80', '0.60', '42', '30 to 55', '4',
             '-'), rows[0])
        self.assertEqual({len(blame_report.HEADER)}, set(map(len, rows)))
        self.assertEqual('(the host)', rows[2][0])

    def test_effect_of_unbounded_interval_is_null(self):
        found = blame.BlameEvidence(
            blame.BlameVerdict(blame.VerdictKind.NOBODY),
            (blame.Suspect('a', 1.0, effect=blame_trials.measure_effect(
                [blame_trials.Trial(1.0, 2.0, 1.0)])),))
        shown = blame_report.make_report('s', 'h', (), found, {}, True)
        self.assertNotIn('Infinity', json.dumps(shown))

    def test_sentence_of_each_verdict_names_the_reason(self):
        for shown, text in (
                (report(suspect='a', proven=True),
                 'noisy disturbs web: while it was capped, web did 42 % more '
                 '(30 to 55 %, 4 trials).'),
                (report(suspect='a', prove=False),
                 'by its share of the bandwidth (60 % of the cache misses of '
                 'other guests are its); --prove shows'),
                (report(blame.VerdictKind.HOST), 'processes and devices'),
                (report(blame.VerdictKind.NOBODY, proven=True),
                 'web was as fast while other guests were capped'),
                (report(blame.VerdictKind.NOBODY), 'none has a clear effect'),
                (report(blame.VerdictKind.UNKNOWN), 'is not measured'),
                (report(blame.VerdictKind.NOT_MEMORY,
                        cause=blame.NonMemoryCause.IDLE,
                        value=0.0),
                 'its vCPUs are idle (busy 0 % of the time)'),
                *((report(blame.VerdictKind.NOT_MEMORY, cause=cause,
                          value=0.3),
                   '30 % of the') for cause in blame.NonMemoryCause)):
            self.assertIn(text, blame_report.summarize_verdict(shown))

    def test_evidence_that_is_missing_is_named_with_the_reason(self):
        for reason in blame.UncountedReason:
            shown = {**report(suspect='a'), 'uncounted': str(reason)}
            text = blame_report.summarize_verdict(shown)
            self.assertIn('are not among the evidence: the', text)
            self.assertTrue(text.startswith(
                blame_report.summarize_verdict(report(suspect='a'))))
            # The server waits for something else.
            shown = {**report(blame.VerdictKind.NOT_MEMORY,
                              cause=blame.NonMemoryCause.IDLE),
                     'uncounted': str(reason)}
            self.assertNotIn('evidence',
                             blame_report.summarize_verdict(shown))

    def test_pressure_is_named_as_what_the_server_reports(self):
        shown = report(suspect='a')
        self.assertNotIn('itself reports', blame_report.summarize_verdict(
            shown))
        shown['own'].update(reported_cpu=0.4, reported_memory=0.02,
                            reported_steal=0.0)
        self.assertIn(
            'web itself reports that its tasks wait for a vCPU 40 % and for '
            'memory 2 % of the time, and that 0 % of its CPU time went to '
            'others.', blame_report.summarize_verdict(
                blame_report.hide_other_guests(shown, 'mine')))

    def test_report_of_an_older_host_is_shown(self):
        shown = report(suspect='a')
        del shown['uncounted']
        for one in shown['suspects']:
            del one['miss_share']
        self.assertIn('of the bandwidth; no trial has shown it.',
                      blame_report.summarize_verdict(shown))
        self.assertNotIn('evidence', blame_report.summarize_verdict(shown))

    def test_names_of_other_projects_are_hidden(self):
        shown = blame_report.hide_other_guests(
            report(suspect='a', proven=True), 'mine')
        text = json.dumps(shown)
        for word in ('noisy', '"a"', '"other"'):
            self.assertNotIn(word, text)
        self.assertIn('calm', text)
        self.assertEqual('other guest 1', shown['verdict']['name'])
        self.assertIn('other guest 1 disturbs web',
                      blame_report.summarize_verdict(shown))

    def test_hidden_report_repeats_no_text_of_the_host(self):
        # Only the user's own server and guest may be named.
        own = {('server', 'uuid'), ('server', 'name'),
               ('suspects', 1, 'uuid'), ('suspects', 1, 'name')}
        whole = report(suspect='a', proven=True)
        for path in [path for path in paths_of(whole) if path not in own]:
            for poison in ('UUID-secret', ['UUID-secret'],
                           {'UUID-secret': 'UUID-secret'}):
                poisoned = json.loads(json.dumps(whole))
                *parents, last = path
                functools.reduce(operator.getitem, parents,
                                 poisoned)[last] = poison
                with contextlib.suppress(KeyError, TypeError,
                                         AttributeError):
                    self.assertNotIn('secret', json.dumps(
                        blame_report.hide_other_guests(poisoned, 'mine')),
                        str(path))

    def test_hidden_report_of_own_guests_names_them(self):
        found = report(suspect='b')
        found['trials'].append({**found['trials'][0], 'suspect': 'gone'})
        shown = blame_report.hide_other_guests(found, 'mine')
        self.assertEqual(('b', 'calm'), (shown['verdict']['suspect'],
                                         shown['verdict']['name']))
        self.assertEqual('it could not be capped',
                         shown['suspects'][1]['untried'])
        self.assertEqual(['other guest 1', 'other guest'],
                         [one['suspect'] for one in shown['trials']])
        self.assertIsNone(shown['server']['host'])
        self.assertEqual(found['own'], shown['own'])
        self.assertEqual(set(found), set(shown))
        for one, other in zip(found['suspects'], shown['suspects'],
                              strict=True):
            self.assertEqual(set(one), set(other))
        list(blame_report.list_suspect_rows(shown))

    def test_request_that_is_malformed_is_refused(self):
        for asked in ({'blame': False}, {'blame': 1},
                      {'blame': True, 'prove': 'yes'},
                      {'blame': True, 'x': 1}):
            self.assertRaises(policies.PolicyError,
                              blame_report.parse_prove_flag, asked)
        self.assertFalse(blame_report.parse_prove_flag({'blame': True}))
        self.assertTrue(blame_report.parse_prove_flag(
            {'blame': True, 'prove': True}))

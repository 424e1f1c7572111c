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

"""The soak's verdict: findings of the audit, and facts that it misses."""

import types
from unittest import mock
from xml.etree import ElementTree as etree

from ghsched_nova.tests.fixtures import cloud_tools
from ghsched_placement.audit import audit_host
from ghsched_placement.audit.findings import Finding

SERVER = '5c7d5f0f-1f0b-4f63-8a69-4d8c1b0a9e11'


class RecordsTest(cloud_tools.CloudToolsTestCase):

    def setUp(self):
        super().setUp()
        from aio import records
        self.records = records

    def verdict(self, findings=(), unchecked=(), facts=(), repaired=()):
        """Return the disagreements of a cloud with one host.

        :param facts: what the records show by another way: names and text.
        :param repaired: consumers whose allocation ``--fix`` changes.
        """
        seen = types.SimpleNamespace(findings=findings, unchecked=unchecked)
        with mock.patch.multiple(
                self.records.audit,
                audit_hosts=lambda *_args: [seen],
                list_planned_repairs=lambda _seen: [types.SimpleNamespace(
                    host='a', consumer=one) for one in repaired]), \
                mock.patch.object(self.records, '_facts', lambda _lab: [
                    self.records._Fact(frozenset(subjects), text)
                    for subjects, text in facts]):
            return self.records.disagreements(types.SimpleNamespace(
                cloud=None))

    def finding(self, kind, subject=SERVER):
        return Finding('a', kind, subject, 'text', 'remedy')

    def test_records_that_agree_are_no_disagreement(self):
        self.assertEqual([], self.verdict())

    def test_finding_of_the_audit_alone_is_a_disagreement(self):
        found, = self.verdict([self.finding('domain-missing')])
        self.assertTrue(found.startswith('audit: '))
        self.assertIn(SERVER, found)

    def test_host_that_the_audit_cannot_check_is_a_disagreement(self):
        found, = self.verdict(unchecked=[
            self.finding(audit_host.NOT_CHECKED, 'a')])
        self.assertIn(audit_host.NOT_CHECKED, found)

    def test_fact_that_the_audit_names_is_no_second_disagreement(self):
        facts = [({SERVER}, 'holds shares {1: 60}, but its XML says {}')]
        found, = self.verdict([self.finding('domain-missing')], facts=facts)
        self.assertTrue(found.startswith('audit: '))

    def test_fact_that_the_audit_misses_is_a_fault_of_the_audit(self):
        facts = [({SERVER}, 'holds shares {1: 60}, but its XML says {}')]
        for findings in ([], [self.finding('domain-missing', 'another')]):
            found = self.verdict(findings, facts=facts)
            self.assertIn('the audit does not name: holds shares {1: 60}, '
                          'but its XML says {}', found)

    def judge_classes(self, latency=(20, {11: 'CPU 0/KVM'}),
                      rest=(10, {12: 'CPU 1/KVM', 13: 'worker'}),
                      allocated=30):
        """Return what the soak says of a guest with two vCPU classes.

        :param latency: guarantee and threads of the group of one class.
        :param allocated: percent of host node 1 that Placement has.
        """
        from aio.lab import Group
        xml = etree.fromstring(
            '<domain><metadata><p:policy xmlns:p="x"><p:node host="1" min="30"'
            '/><p:class name="latency" vcpus="1" moved="0"><p:node min="20"/>'
            '</p:class><p:class name="default" vcpus="0,2" moved="1-2">'
            '<p:node min="10"/></p:class></p:policy></metadata></domain>')
        host = self.records._Host(None, {'i': xml}, {'i': {
            11: 'CPU 0/KVM', 12: 'CPU 1/KVM'}}, [
                Group(name, {'MBMIN': {0: '0', 1: f'{share}'}}, threads)
                for name, (share, threads) in {
                    'g.latency': latency, 'g.default': rest}.items()])
        return list(self.records._of_group(
            host, types.SimpleNamespace(instance_name='i'), {1: allocated}))

    def test_groups_by_class_that_agree_are_no_disagreement(self):
        self.assertEqual([], self.judge_classes())

    def test_class_with_wrong_threads_or_values_is_a_disagreement(self):
        for values, text in (
                ({'latency': (25, {11: 'CPU 0/KVM'})}, 'has {1: 20}'),
                ({'latency': (20, {})}, 'class latency are in '),
                ({'latency': (20, {}), 'rest': (10, {
                    11: 'CPU 0/KVM', 12: 'CPU 1/KVM'})}, 'in g.default')):
            self.assertIn(text, self.judge_classes(**values)[0])

    def test_classes_with_more_than_is_allocated_are_a_disagreement(self):
        self.assertEqual([], self.judge_classes(allocated=35))
        self.assertEqual(
            ['groups of its classes have 30 % of node 1, allocated are 29'],
            self.judge_classes(allocated=29))

    def test_finding_that_fix_repairs_is_distinguished(self):
        found, = self.verdict([self.finding('allocation-elsewhere')],
                              repaired=[SERVER])
        self.assertTrue(found.startswith(self.records.FIXABLE))

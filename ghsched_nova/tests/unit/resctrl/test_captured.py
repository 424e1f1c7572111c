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

"""Policies on the captured machines: parse, plan, write and read back."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import differences
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_nova.resctrl import rounding
from ghsched_nova.resctrl import schemata
from ghsched_nova.tests.fixtures import captured
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces


def _hosts():
    """The machines on which a limit can be held, by name."""
    found = {}
    for name in captured.all_machines():
        try:
            found[name] = captured.read_machine(
                name, cap='hard', node_bandwidth={
                    node: 150000 + 10000 * node for node in range(8)})
        except resctrl_host.ResctrlUnavailable:
            continue
    return found


HOSTS = _hosts()


def _written(text, line):
    """A schemata after one line was written to it, as an exact kernel does."""
    change = schemata.parse_schemata(line).lines[0]
    parsed = schemata.parse_schemata(text)
    assert parsed.line(change.name) is not None, line
    new_lines = [
        schemata.Line(old.name, tuple(
            (domain, dict(change.values).get(domain, value))
            for domain, value in old.values), old.body)
        if old.name == change.name else old for old in parsed.lines]
    return ''.join(
        f'{new.name}:{new.body or schemata.render_values(new.values)}\n'
        if new.name else f'{new.body}\n' for new in new_lines)


class CapturedTest(base.TestCase):

    def test_each_dialect_has_a_machine(self):
        self.assertEqual(set(dialects.BY_NAME),
                         {host.dialect.name for host in HOSTS.values()
                          if host.dialect.knobs})

    def test_every_machine(self):
        for name, host in spaces.choose(HOSTS.items()):
            if host.dialect.knobs:
                self._check_machine(name, host)

    def _check_machine(self, name, host):
        @settings(deadline=None, max_examples=40, database=None)
        @given(st.data())
        def check(data):
            self._check(data, name, host)

        check()

    def _check(self, data, name, host):
        text = (captured.MACHINES / name / 'resctrl' / 'schemata').read_text()
        places = data.draw(st.lists(
            st.sampled_from(sorted(host.domains_by_node)), min_size=1,
            max_size=2, unique=True))
        nodes = [data.draw(captured.policies_of(host))] * len(places)
        desired = resolve.make_desired_lines(host, resolve.resolve_settings(
            host, GuestPolicy(nodes=tuple(nodes)), places))
        defaults = host.unused_domain_values
        after = text
        for line in differences.plan_schemata_writes(
            schemata.parse_kernel_schemata(text), desired, defaults
        ):
            self.check_line(host, schemata.parse_schemata(line).lines[0])
            after = _written(after, line)
        self.assertEqual(
            (),
            differences.find_schemata_differences(
                schemata.parse_kernel_schemata(after), desired, defaults
            ),
        )
        self.assertEqual(
            (),
            differences.plan_schemata_writes(
                schemata.parse_kernel_schemata(after), desired, defaults
            ),
        )
        self.assertEqual(_others(text, host), _others(after, host))

    def check_line(self, host, line):
        """Only what the kernel takes just as it is."""
        knob = next(knob for knob in host.dialect.knobs
                    if knob.line == line.name)
        for _domain, text in line.values:
            value = int(text)
            self.assertTrue(knob.can_show(value), line)
            if knob.fraction:
                self.assertIn(value, rounding.make_mpam_percentages(
                    host.granularity, host.min_bandwidth).written)
            elif knob.stepped and value != host.no_cap:
                self.assertEqual(0, value % host.granularity, line)


def _others(text, host):
    knobs = {knob.line for knob in host.dialect.knobs}
    return [line for line in schemata.parse_schemata(text).lines
            if line.name not in knobs]

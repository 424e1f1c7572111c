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

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.planner.client import PlannerError
from ghsched_placement.features.planner import flavors
from ghsched_placement.tests import base

NAMES = st.text('abcdefgh.-', min_size=1)
VALUES = st.text('abcxyz019:.,- ', min_size=1).map(
    lambda text: text.strip(', ') or 'x')


class ParseTest(base.TestCase):

    def test_sizes_and_extra_specs(self):
        self.assertEqual(
            flavors.Flavor('bw60', 2, 4096, 20, 1024,
                           {'hw:numa_nodes': '1', 'ghsched:mem_bw_min': '60'}),
            flavors.parse_flavor_argument(
                'bw60:vcpus=2,ram=4096,disk=20,swap=1024,'
                'hw:numa_nodes=1,ghsched:mem_bw_min=60'))

    def test_a_value_may_have_commas(self):
        self.assertEqual({'ghsched:vfs': 'nic:4,gpu:1', 'hw:numa_nodes': '1'},
                         flavors.parse_flavor_argument(
                             'a:vcpus=1,ram=1,ghsched:vfs=nic:4,gpu:1,'
                             'hw:numa_nodes=1').extra_specs)

    @given(NAMES, st.integers(1, 999), st.integers(1, 10 ** 6),
           st.dictionaries(NAMES.map('hw:{}'.format), VALUES))
    def test_written_values_are_read(self, name, vcpus, ram, specs):
        text = ','.join([f'{name}:vcpus={vcpus}', f'ram={ram}',
                         *(f'{key}={value}' for key, value
                           in specs.items())])
        self.assertEqual(flavors.Flavor(name, vcpus, ram, extra_specs=specs),
                         flavors.parse_flavor_argument(text))

    @given(st.text())
    def test_anything_else_is_refused_with_a_reason(self, text):
        try:
            found = flavors.parse_flavor_argument(text)
        except PlannerError as error:
            self.assertIn('flavor', str(error))
        else:
            self.assertGreater(found.vcpus, 0)

    def refused(self, text):
        return str(
            self.assertRaises(PlannerError, flavors.parse_flavor_argument,
                              text))

    def test_mistakes_are_named(self):
        self.assertIn('is not NAME:KEY=VALUE', self.refused('vcpus=1'))
        self.assertIn('ram: is missing', self.refused('a:vcpus=1'))
        self.assertIn('cpus: unknown', self.refused('a:cpus=1,ram=1'))
        self.assertIn('vcpus is given twice',
                      self.refused('a:vcpus=1,vcpus=2,ram=1'))
        self.assertIn("'many' is not a whole number",
                      self.refused('a:vcpus=many,ram=1'))


class MappingTest(base.TestCase):

    def test_words_of_yaml_are_as_in_an_extra_spec(self):
        found = flavors.build_flavor('a', {
            'vcpus': 1, 'ram': 512, 'ghsched:monitor': True,
            'extra_specs': {'hw:numa_nodes': 2}})
        self.assertEqual({'ghsched:monitor': 'true', 'hw:numa_nodes': '2'},
                         found.extra_specs)


class MixTest(base.TestCase):

    KNOWN = {name: flavors.Flavor(name, 1, 1) for name in ('a', 'b')}

    def test_numbers_by_name(self):
        self.assertEqual({'a': 2, 'b': 5},
                         flavors.parse_flavor_mix('a=2, b=5', self.KNOWN))

    def test_mistakes_are_named(self):
        for text, reason in (('a', 'is not NAME=N'), ('a=0', 'N from 1'),
                             ('c=1', 'is not one of'), ('a=1,a=2', 'twice')):
            error = self.assertRaises(PlannerError, flavors.parse_flavor_mix,
                                      text, self.KNOWN)
            self.assertIn(reason, str(error))

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


import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.load import load
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import texts

COUNTS = st.none() | st.integers(0, 2 ** 40)
SHARES = st.none() | st.integers(0, 10 ** 9).map(lambda ten: ten / 10 ** 4)
HOST_NODES = st.builds(
    load.HostNodeLoad, node=st.integers(0, 64),
    **{field.name: COUNTS for field in dataclasses.fields(load.HostNodeLoad)
       if field.name in ('cpus', 'vcpus', 'memory', 'memory_free')},
    **{field.name: SHARES for field in dataclasses.fields(load.HostNodeLoad)
       if field.type == float | None},
    bottlenecks=st.none() | st.lists(
        st.sampled_from(load.RESOURCES), unique=True).map(tuple))
GUEST_NODES = st.builds(
    load.GuestNodeLoad, guest=texts.printable(36), node=st.integers(0, 8),
    host_node=st.none() | st.integers(0, 64),
    vcpus=COUNTS, memory=COUNTS,
    **{field.name: SHARES for field in dataclasses.fields(load.GuestNodeLoad)
       if field.type == float | None})
LOADS = st.builds(
    load.HostLoad, st.integers(0, 2 * 10 ** 10).map(lambda ten: ten / 10),
    st.integers(1, 10 ** 6).map(lambda thousand: thousand / 1000),
    st.lists(HOST_NODES, max_size=4).map(tuple),
    st.lists(GUEST_NODES, max_size=4).map(tuple))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(
        st.text(max_size=4) | st.sampled_from(
            ['version', 'time', 'period', 'nodes', 'guests', 'node',
             'guest']), some, max_size=5), max_leaves=20)


def parse_text(text):
    return load.parse_load_stats({load.KEY: text})


class RecordTest(base.TestCase):

    @given(LOADS)
    def test_it_is_read_as_it_was_written(self, written):
        self.assertEqual(written, parse_text(
            load.FORMAT.render(written)))

    @given(LOADS)
    def test_stats_have_the_hosts_nodes_alone(self, written):
        self.assertEqual(dataclasses.replace(written, guests=()),
                         load.parse_load_stats(load.make_load_stats(written)))

    @given(LOADS)
    def test_fields_of_a_newer_release_are_dropped(self, written):
        document = json.loads(load.FORMAT.render(written))
        document['more'] = 1
        for node in (*document['nodes'], *document['guests']):
            node['newer'] = [1]
        self.assertEqual(written, parse_text(json.dumps(document)))

    @given(LOADS)
    def test_another_version_is_not_read(self, written):
        document = json.loads(load.FORMAT.render(written))
        document['version'] = load.VERSION + 1
        self.assertIsNone(parse_text(json.dumps(document)))

    @given(JSON)
    def test_nonsense_is_no_record_or_one_without_figures(self, document):
        found = parse_text(json.dumps(document))
        if found is not None:
            load.FORMAT.render(found)

    @given(JSON, JSON)
    def test_a_value_without_sense_is_not_known(self, node, value):
        found = parse_text(json.dumps(
            {'version': 1, 'time': 1, 'period': 1,
             'nodes': [node, {'node': 3, 'cpu_load': 0.5,
                              'cpu_wait': value}]}))
        self.assertEqual(0.5, found.nodes[-1].cpu_load)

    @given(st.text())
    def test_no_text_is_an_error(self, text):
        load.parse_load_stats({load.KEY: text})

    def test_unknown_is_left_out_and_not_zero(self):
        node = load.HostNodeLoad(0, cpu_load=0.0)
        text = load.FORMAT.render(load.HostLoad(1.0, 60.0, (node,)))
        self.assertIn('"cpu_load":0.0', text)
        self.assertNotIn('cpu_wait', text)
        node, = parse_text(text).nodes
        self.assertEqual({'cpu_load': 0.0}, node.get_loads_by_resource())

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


"""Rules of Nova that the dry run repeats, compared with Nova itself."""

from urllib import parse

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from nova import exception
from nova import objects
from nova.scheduler import request_filter
from nova.scheduler import utils
from nova.virt import hardware

from ghsched_nova.scheduler import request_filter as ours
from ghsched_placement.features.flavor_check import images
from ghsched_placement.features.flavor_check import query
from ghsched_placement.flavor import policy as policies
from ghsched_placement.flavor import topology
from ghsched_placement.query import request
from ghsched_placement.tests import base

objects.register_all()

REFUSALS = (exception.NovaException, ValueError)
CPUS = st.sampled_from(['0', '1', '0-1', '2,3', '2-3', '^1', '0-3,^2', '7',
                        '1-0', 'x', ''])
MEMORY = st.sampled_from(['512', '1024', '1536', '2048'])


def some(specs):
    """Some of these extra specs, with one of the values each."""
    return st.fixed_dictionaries({}, optional={
        key: value if isinstance(value, st.SearchStrategy)
        else st.sampled_from(value) for key, value in specs.items()})


def merged_specs(*parts):
    """Extra specs of all of these together."""
    return st.tuples(*parts).map(
        lambda dicts: {k: v for one in dicts for k, v in one.items()})


NUMA = st.one_of(
    some({'hw:numa_nodes': ['1', '2', '4', '3', '0', 'x', '02', ''],
          'hw:mem_page_size': ['small', 'large', 'any', 'foo', '2048', '2MB',
                               '3MB', '0', '', '2 MB', '1.5GB', '1B'],
          'hw:locked_memory': ['true', 'no']}),
    st.fixed_dictionaries({
        'hw:numa_nodes': st.sampled_from(['1', '2', '2', '2', '3']),
        'hw:numa_cpus.0': CPUS, 'hw:numa_mem.0': MEMORY}, optional={
        'hw:numa_cpus.1': CPUS, 'hw:numa_mem.1': MEMORY}))
PINNING: st.SearchStrategy[dict[str, str]] = st.one_of(
    st.just({}),
    some({'hw:cpu_policy': ['shared', 'x'],
          'hw:cpu_thread_policy': ['isolate'],
          'hw:emulator_threads_policy': ['isolate', 'share']}),
    merged_specs(
        st.just({'hw:cpu_policy': 'dedicated'}),
        some({'hw:cpu_thread_policy': ['prefer', 'isolate', 'require'],
              'hw:emulator_threads_policy': ['isolate', 'share']})),
    merged_specs(
        st.just({'hw:cpu_policy': 'mixed'}),
        some({'hw:cpu_dedicated_mask': ['0', '^0', '0-3', '^0-1', '9'],
              'hw:emulator_threads_policy': ['isolate']})),
    merged_specs(
        some({'hw:cpu_policy': ['shared', 'dedicated', 'mixed', '']}),
        some({'hw:cpu_thread_policy': ['prefer', 'x'],
              'hw:emulator_threads_policy': ['isolate', 'x', ''],
              'hw:cpu_dedicated_mask': ['0', ''],
              'hw:cpu_realtime': ['yes', 'false'],
              'hw:cpu_realtime_mask': ['0', '^0', '^9', '7', '0-3', 'x', ''],
              'trait:HW_CPU_HYPERTHREADING': ['required', 'forbidden']})),
    some({'resources:PCPU': ['4', '3', '0', '5', 'x'],
          'resources1:PCPU': ['1', '4'], 'resources:VCPU': ['0', '4', '7'],
          'hw:cpu_policy': ['dedicated'],
          'hw:emulator_threads_policy': ['isolate'],
          'hw:cpu_thread_policy': ['isolate']}))
OTHER = some({
    'group_policy': ['none', 'isolate', 'x'],
    'resources:CUSTOM_GOLD': ['1', '0', 'x'], 'resources:DISK_GB': ['7'],
    'resources:NO_SUCH': ['3'], 'resources1:CUSTOM_A': ['1', '0'],
    'resources_b:CUSTOM_B': ['2'], 'trait1:CUSTOM_U': ['required'],
    'trait:CUSTOM_T': ['required', 'forbidden', 'x']})
OURS = some({
    'ghsched:mem_bw_min': ['0', '40'], 'ghsched:mem_bw_max.0': ['50', '100'],
    'ghsched:mem_bw_hardlimit': ['true', 'no'],
    'ghsched:monitor': ['true', 'false']})
EXTRA_SPECS = merged_specs(NUMA, PINNING, OTHER, OURS)


def flavor_of(extra_specs, swap=0):
    return objects.Flavor(
        name='f', vcpus=4, memory_mb=2048, root_gb=10, ephemeral_gb=3,
        swap=swap, extra_specs=extra_specs)


def numa_of(flavor):
    return hardware.numa_get_constraints(flavor, objects.ImageMeta(
        properties=objects.ImageMetaProps()))


def fits(numa):
    """Whether a host that is large enough has such pages for each cell."""
    return all((cell.pagesize or 0) < 1
               or hardware._numa_cell_supports_pagesize_request(
        objects.NUMACell(mempages=[objects.NUMAPagesTopology(
            size_kb=cell.pagesize, total=10 ** 9, used=0, reserved=0)]), cell)
        for cell in numa.cells)


class TopologyTest(base.TestCase):

    @settings(max_examples=150, deadline=None)
    @given(EXTRA_SPECS)
    def test_cells_are_those_of_nova(self, extra_specs):
        try:
            expected = numa_of(flavor_of(extra_specs))
        except REFUSALS:
            return
        if expected and not fits(expected):
            return
        guest = topology.split_guest(4, 2048, extra_specs)
        cells = expected.cells if expected else []
        self.assertEqual(
            [(cell.cpuset | cell.pcpuset, cell.memory) for cell in cells],
            [(cell.vcpus, cell.memory_mb) for cell in guest.cells])

    @settings(max_examples=300, deadline=None)
    @given(EXTRA_SPECS)
    def test_refusals_agree(self, extra_specs):
        reason = None
        try:
            topology.split_guest(4, 2048, extra_specs)
        except topology.TopologyError as error:
            reason = str(error)
        try:
            numa = numa_of(flavor_of(extra_specs))
        except REFUSALS:
            self.assertIsNotNone(reason)
        else:
            if reason and 'multiple' in reason:
                self.assertFalse(fits(numa), reason)
            else:
                self.assertIsNone(reason)

    @settings(max_examples=100, deadline=None)
    @given(st.sampled_from(['2048', '3MB', '1.5GB', '1GB', '65536']),
           st.sampled_from([512, 1536, 2048, 3072, 4608]),
           st.sampled_from(['1', '2']))
    def test_ram_is_of_whole_pages(self, size, memory_mb, nodes):
        extra_specs = {'hw:mem_page_size': size, 'hw:numa_nodes': nodes}
        flavor = flavor_of(extra_specs)
        flavor.memory_mb = memory_mb
        numa = numa_of(flavor)
        try:
            topology.split_guest(4, memory_mb, extra_specs)
        except topology.TopologyError as error:
            self.assertIn('multiple', str(error))
            self.assertFalse(fits(numa))
        else:
            self.assertTrue(fits(numa))


IMAGE = some({
    'hw_numa_nodes': ['1', '2'], 'hw_cpu_policy': ['dedicated', 'shared'],
    'hw_cpu_thread_policy': ['prefer', 'isolate'],
    'hw_emulator_threads_policy': ['isolate', 'share'],
    'hw_mem_page_size': ['small', 'any', '2048']})


class ImageTest(base.TestCase):

    def of_nova(self, extra_specs, properties):
        return hardware.numa_get_constraints(
            flavor_of(extra_specs), objects.ImageMeta.from_dict(
                {'properties': properties}))

    @settings(max_examples=300, deadline=None)
    @given(merged_specs(NUMA, PINNING), IMAGE)
    def test_an_image_adds_what_it_adds_in_nova(self, extra_specs,
                                                properties):
        try:
            expected = self.of_nova(extra_specs, properties)
        except REFUSALS:
            return
        if expected and not fits(expected):
            return
        guest = topology.split_guest(
            4, 2048, images.merge_image_properties(extra_specs, properties))
        cells = expected.cells if expected else []
        self.assertEqual(
            [(cell.cpuset | cell.pcpuset, cell.memory) for cell in cells],
            [(cell.vcpus, cell.memory_mb) for cell in guest.cells])
        if expected:
            self.assertEqual(
                sum(len(cell.pcpuset) for cell in cells)
                + (expected.emulator_threads_policy == 'isolate'),
                guest.pcpus or sum(len(cell.pcpuset) for cell in cells))

    @settings(max_examples=300, deadline=None)
    @given(merged_specs(NUMA, PINNING), IMAGE)
    def test_refused_input_is_refused_by_nova(self, extra_specs, properties):
        try:
            images.merge_image_properties(extra_specs, properties)
        except images.ImageError as error:
            with self.assertRaises(REFUSALS, msg=str(error)):
                self.of_nova(extra_specs, properties)


class QueryTest(base.TestCase):

    def novas(self, flavor, numa):
        """The query of nova-scheduler with our filter and its own."""
        spec = objects.RequestSpec(
            flavor=flavor, numa_topology=numa, is_bfv=False,
            requested_resources=[], image=objects.ImageMeta(
                properties=objects.ImageMetaProps()))
        spec.request_level_params = objects.RequestLevelParams(
            root_required={'OWNER_NOVA'})
        request_filter.compute_status_filter(None, spec)
        ours.ghsched_request_filter(None, spec)
        return utils.resources_from_request_spec(
            None, spec, None).to_querystring()

    @settings(max_examples=150, deadline=None)
    @given(EXTRA_SPECS, st.sampled_from([0, 1, 1024, 1025]))
    def test_the_query_is_that_of_nova(self, extra_specs, swap):
        flavor = flavor_of(extra_specs, swap)
        try:
            numa = numa_of(flavor)
            expected = self.novas(flavor, numa)
        except REFUSALS:
            return
        if numa and not fits(numa):
            return
        guest = topology.split_guest(4, 2048, extra_specs)
        policy = policies.parse_policy(extra_specs, len(guest.cells))
        told = parse.urlencode(query.make_candidates_query(
            query.FlavorAmounts(vcpus=guest.shared, pcpus=guest.pcpus,
                                memory_mb=2048, disk_gb=13, swap_mb=swap,
                                extra_specs=extra_specs),
            request.build_request(policy or policies.GuestPolicy(), 'min')))
        self.assertEqual(expected, told)

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


"""Steps that remove a host's providers, on a Placement of dictionaries."""


from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.doctor import retire
from ghsched_placement.providers import names
from ghsched_placement.tests import base

ROOT = 'root'
OURS = [names.MEM_BW_PCT, names.RESCTRL_GROUP]
TRAITS = [names.CAPABILITY_TRAITS['DEVICE_NUMA'], names.NUMA_ROOT_TRAIT,
          names.OWNER_TRAIT, names.make_share_trait('a' * 8, 0),
          'CUSTOM_OTHER']


def subsets(values):
    return st.frozensets(st.sampled_from(values))


@st.composite
def trees(draw):
    nodes = draw(st.integers(0, 3))
    found = [retire.RetiredProvider(ROOT, 'host', '',
                                    draw(subsets([*OURS, 'PCPU', 'VCPU'])),
                                    draw(subsets(TRAITS)))]
    for number in range(nodes):
        uuid = f'node{number}'
        found.append(retire.RetiredProvider(
            uuid, uuid, ROOT, draw(subsets([*OURS, 'MEMORY_MB'])),
            draw(subsets(TRAITS)) | {names.NUMA_NODE_TRAIT}))
        found += [retire.RetiredProvider(f'{uuid}_pf{pf}', 'pf', uuid,
                                         frozenset({'CUSTOM_PCI'}))
                  for pf in range(draw(st.integers(0, 2)))]
    return found


def after(providers, steps):
    """Return Placement's providers after the steps; refuse to delete a parent.
    """
    found = {one.uuid: one for one in providers}
    for step in steps:
        old = found[step.provider.uuid]
        if step.kind == 'delete':
            assert not any(one.parent == old.uuid for one in found.values())
            del found[old.uuid]
            continue
        parent, classes, traits = old.parent, old.classes, old.traits
        if step.kind == 'move':
            parent, = step.value
        elif step.kind == 'class':
            classes -= set(step.value)
        else:
            traits -= set(step.value)
        found[old.uuid] = retire.RetiredProvider(old.uuid, old.name, parent,
                                                 classes, traits)
    return list(found.values())


class StepsTest(base.TestCase):

    @given(trees())
    def test_nothing_of_ours_is_left_and_nothing_else_is_lost(self, before):
        left = after(before, retire.plan_retirement(before))
        self.assertEqual(
            {(one.uuid, name) for one in before for name in one.classes
             if name not in OURS},
            {(one.uuid, name) for one in left for name in one.classes})
        traits = {trait for one in left for trait in one.traits}
        self.assertLessEqual(traits, {names.NUMA_ROOT_TRAIT,
                                      names.OWNER_TRAIT, 'CUSTOM_OTHER'})
        self.assertEqual(
            {one.uuid for one in before if 'pf' in one.name},
            {one.uuid for one in left if one.parent == ROOT
             and 'pf' in one.name})

    @given(trees())
    def test_a_second_run_has_nothing_to_do(self, before):
        left = after(before, retire.plan_retirement(before))
        self.assertEqual((), retire.plan_retirement(left))

    @given(trees(), st.integers(0, 20))
    def test_one_that_was_cut_short_is_completed(self, before, done):
        steps = retire.plan_retirement(before)
        some = after(before, steps[:done])
        self.assertEqual(
            sorted(map(repr, after(before, steps))),
            sorted(map(repr, after(some, retire.plan_retirement(some)))))

    def test_each_step_says_what_it_does(self):
        node = retire.RetiredProvider('u', 'h_NUMA0', ROOT)
        for kind, value, text in (
                ('move', (ROOT,), 'move h_NUMA0 below the compute node'),
                ('class', ('X',), 'remove the inventory X of h_NUMA0'),
                ('traits', ('A', 'B'), 'remove from h_NUMA0: A, B'),
                ('delete', (), 'delete h_NUMA0')):
            self.assertEqual(text, str(retire.Step(kind, node, value)))

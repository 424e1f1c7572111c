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


"""Hosts and guests for the tests of the weigher."""

from hypothesis import strategies as st

from ghsched_placement.fragmentation import DeviceNeed
from ghsched_placement.fragmentation import GuestNode
from ghsched_placement.fragmentation import HostNode
from ghsched_placement.fragmentation import Share

POOLS = ('pf0', 'pf1')


@st.composite
def shares(draw, most=64):
    total = draw(st.integers(0, most))
    return Share(total, draw(st.just(total) | st.integers(-2, total)))


@st.composite
def host_nodes(draw, number=0, whole=None):
    pinned = draw(shares())
    if whole is not None:
        total = pinned.total + 1
        pinned = Share(total, total if whole else min(total - 1, pinned.free))
    shared = draw(shares())
    return HostNode(
        number=number, pinned=pinned,
        shared=Share(shared.total, shared.total) if whole else shared,
        memory=draw(shares(4096)),
        devices=draw(st.dictionaries(st.sampled_from(POOLS),
                                     st.integers(0, 20))),
        guarded=whole or draw(st.booleans()),
        memory_free=draw(st.integers(0, 4096)))


@st.composite
def hosts(draw, least=1, most=3, kinds=(None,)):
    """
    :param kinds: whether the first nodes are whole; None for either.
    """
    count = draw(st.integers(max(least, len(kinds)), most))
    return [draw(host_nodes(number, kind)) for number, kind in
            zip(range(count), [*kinds, *[None] * count], strict=False)]


guest_nodes = st.builds(GuestNode, pinned=st.integers(0, 16),
                        shared=st.integers(0, 16),
                        memory=st.integers(0, 2048))

device_needs = st.lists(st.builds(
    DeviceNeed, count=st.integers(1, 8),
    pools=st.frozensets(st.sampled_from(POOLS)),
    anywhere=st.booleans()), max_size=2)


def node(number=0, cpus=8, free=8, memory=1024, memory_free=None, **values):
    """A host node whose CPUs are all for pinned guests."""
    left = memory * free // cpus if memory_free is None else memory_free
    return HostNode(number=number, pinned=Share(cpus, free),
                    memory=Share(memory, left), memory_free=left, **values)

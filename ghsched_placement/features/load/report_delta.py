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

"""Choice between the last load report of a host and a new one (pure).

Each changed report must be written to Nova's database and processed by every
nova-scheduler. Therefore a host repeats its last report until a load has
changed by more than a threshold, or the report is old. nova-compute does not
write a repeated report again.
"""

from ghsched_placement.features.load.load import HostLoad
from ghsched_placement.features.load.load import HostNodeLoad
from ghsched_placement.features.load.load import RESOURCES

#: Largest change of a load or waiting time that is not reported, as a part of
#: 1.
LOAD_THRESHOLD = 0.05

#: Largest change of the mean number of waiting I/O requests that is not
#: reported.
QUEUE_THRESHOLD = 0.5

#: Fields of a host NUMA node of which every change is reported.
_EXACT_FIELDS = ('node', 'cpus', 'vcpus', 'memory', 'bottlenecks')


def choose_load_report(last: HostLoad | None, measured: HostLoad,
                       max_age: float) -> HostLoad:
    """Return the load record to report: the newest one, or the last one again.

    The last record is reported again if no load has changed by more than a
    threshold and the record is younger than half of its maximum age. So a
    repeated record never gets too old for nova-scheduler: if reports come at
    intervals shorter than half of the maximum age, it is replaced in time; if
    they come at longer intervals, no record is repeated.

    :param last: record that the host reported last.
    :param measured: newest measurement; the loads of guests are not compared.
    :param max_age: age in seconds at which nova-scheduler ignores a record.
    """
    if (last is not None and 0 <= measured.time - last.time < max_age / 2
            and _are_loads_similar(last, measured)):
        return last
    return measured


def _are_loads_similar(last: HostLoad, measured: HostLoad) -> bool:
    """Whether two load records of a host have equal nodes and similar loads.

    Two loads are similar if they differ by at most LOAD_THRESHOLD, or, for
    waiting I/O requests, QUEUE_THRESHOLD.
    """
    return len(last.nodes) == len(measured.nodes) and all(
        _are_similar_nodes(old, new) for old, new
        in zip(last.nodes, measured.nodes, strict=True))


def _are_similar_nodes(last: HostNodeLoad, measured: HostNodeLoad) -> bool:
    return all(getattr(last, name) == getattr(measured, name)
               for name in _EXACT_FIELDS) and all(
        _differ_at_most(getattr(last, name), getattr(measured, name),
                        QUEUE_THRESHOLD if name == 'io_wait'
                        else LOAD_THRESHOLD)
        for name in RESOURCES)


def _differ_at_most(last: float | None, measured: float | None,
                    threshold: float) -> bool:
    if last is None or measured is None:
        return last is measured
    return abs(last - measured) <= threshold

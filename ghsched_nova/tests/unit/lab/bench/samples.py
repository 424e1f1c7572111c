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

"""What the tests of benchmarks share."""

from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st

from ghsched_nova.lab.bench.record import Environment
from ghsched_nova.lab.bench.record import Finding
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Result
from ghsched_nova.lab.bench.record import Series

HERE = Path(__file__).parent


def capture(name):
    """What a real tool printed; its name has the version of the tool."""
    return (HERE / 'captures' / name).read_text(encoding='utf-8')


def reference(name):
    """Raw figures of measurements that others published."""
    return (HERE / 'reference' / name).read_text(encoding='utf-8')


ENVIRONMENT = Environment(
    cpu_model='Example 1', cpus=8, numa_nodes=1, memory_mib=1024,
    architecture='x86_64', kernel='6.6.0', distribution='Example OS',
    mitigations=(('meltdown', 'Not affected'),
                 ('spectre_v2', 'Mitigation: Retpolines')),
    virtual='none', governors='performance', tools=(('mbw', '1.2.2'),),
    load=0.5)


def result(*series, scenario='virt-overhead', status='done', reasons=(),
           parameters=(('runs', 3),), findings=(), skipped=(), **changes):
    """A result; changes are of its environment."""
    return Result(scenario, status, reasons, tuple(parameters),
                  replace(ENVIRONMENT, **changes),
                  Measured(tuple(series), tuple(findings), tuple(skipped)),
                  1.5)


TEXT = st.text(st.characters(codec='utf-8', exclude_categories=['Cs']),
               max_size=12)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)
FINITE = st.floats(allow_nan=False, allow_infinity=False)

SERIES = st.builds(
    Series, metric=TEXT, unit=TEXT,
    better=st.sampled_from(['lower', 'higher', 'neither']),
    samples=st.lists(FINITE, min_size=1, max_size=5).map(tuple),
    conditions=PAIRS, warm_up=st.integers(0, 9))
MEASURED = st.builds(
    Measured, series=st.lists(SERIES, max_size=3).map(tuple),
    findings=st.lists(st.builds(
        Finding, name=TEXT, text=TEXT, value=st.none() | FINITE, unit=TEXT),
        max_size=2).map(tuple), skipped=PAIRS)
RESULTS = st.builds(
    Result, scenario=TEXT, status=st.sampled_from(
        ['done', 'skipped', 'failed']),
    reasons=st.lists(TEXT, max_size=2).map(tuple),
    parameters=st.lists(st.tuples(
        TEXT, TEXT | st.integers() | FINITE | st.booleans()),
        max_size=3).map(tuple),
    environment=st.just(ENVIRONMENT), measured=MEASURED,
    seconds=st.floats(0, 1e6))

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

"""Results of benchmarks, as records that can be stored.

A report is JSON that names the version of its own form. It holds every
sample, so whatever is said of them can be said again. It holds no name of a
host: reports are made to be shown.
"""

from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass
import json
import math
from typing import Any

import jsonschema

from ghsched_nova.lab.bench import errors

#: Changed whenever an older reader would misunderstand a newer report.
SCHEMA = 'ghsched-bench/1'

#: What is better of a metric.
BETTER = ('lower', 'higher', 'neither')
STATUS = ('done', 'skipped', 'failed')

Value = str | int | float | bool


@dataclass(frozen=True)
class Environment:
    """The machine that a benchmark ran on.

    :param memory_mib: of the whole machine.
    :param kernel: release, as ``uname -r`` says it.
    :param mitigations: (vulnerability, state) as the kernel reports them.
    :param virtual: the hypervisor below it, "none", or "unknown".
    :param governors: frequency governors of its CPUs, "none" without any.
    :param tools: (program, version).
    :param load: of the last minute, before the benchmark began.
    """

    cpu_model: str
    cpus: int
    numa_nodes: int
    memory_mib: int
    architecture: str
    kernel: str
    distribution: str
    mitigations: tuple[tuple[str, str], ...]
    virtual: str
    governors: str
    tools: tuple[tuple[str, str], ...]
    load: float


@dataclass(frozen=True)
class Series:
    """Samples of one metric under the same conditions.

    :param conditions: (name, value), what sets it apart from the other
        series of this metric.
    :param better: one of :data:`BETTER`.
    :param samples: in the order in which they were taken.
    :param warm_up: how many were taken before them and discarded.
    """

    metric: str
    unit: str
    better: str
    samples: tuple[float, ...]
    conditions: tuple[tuple[str, str], ...] = ()
    warm_up: int = 0

    def __post_init__(self) -> None:
        if not self.samples:
            raise errors.BenchError(f'{self.title}: there are no samples')
        if not all(map(math.isfinite, self.samples)):
            raise errors.BenchError(f'{self.title}: a sample is not finite')
        if self.better not in BETTER:
            raise errors.BenchError(f'{self.title}: {self.better!r} is none '
                                    f'of {", ".join(BETTER)}')

    @property
    def title(self) -> str:
        """Metric and conditions in a few words."""
        return ', '.join([self.metric, *(
            f'{name} {value}' for name, value in self.conditions)])


@dataclass(frozen=True)
class Finding:
    """A conclusion, with the figure that it rests on where there is one."""

    name: str
    text: str
    value: float | None = None
    unit: str = ''


@dataclass(frozen=True)
class Measured:
    """Series and findings of a scenario.

    :param skipped: (part, reason) of what could not be measured here.
    """

    series: tuple[Series, ...]
    findings: tuple[Finding, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Result:
    """Result of one run of a scenario.

    :param status: one of :data:`STATUS`.
    :param reasons: why it was skipped or failed.
    :param parameters: (name, value), all of them.
    :param seconds: how long it took, with its warm-up.
    """

    scenario: str
    status: str
    reasons: tuple[str, ...]
    parameters: tuple[tuple[str, Value], ...]
    environment: Environment
    measured: Measured = Measured(())
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """Results in one file.

    :param made_by: the program that wrote it, with its version.
    """

    results: tuple[Result, ...]
    made_by: str = 'ghsched-bench'


# -- as JSON ------------------------------------------------------------------

_TEXT = {'type': 'string'}
_NUMBER = {'type': 'number'}


def _list(item: Mapping[str, Any]) -> dict[str, Any]:
    return {'type': 'array', 'items': item}


def _object(**keys: Mapping[str, Any]) -> dict[str, Any]:
    return {'type': 'object', 'properties': keys,
            'required': sorted(keys), 'additionalProperties': False}


def _pair(second: Mapping[str, Any]) -> dict[str, Any]:
    return {'type': 'array', 'prefixItems': [_TEXT, second],
            'minItems': 2, 'maxItems': 2}


_PAIRS = _list(_pair(_TEXT))
_COUNT = {'type': 'integer', 'minimum': 0}
_MEASURED = _object(
    series=_list(_object(
        metric=_TEXT, unit=_TEXT, better={'enum': list(BETTER)},
        samples={**_list(_NUMBER), 'minItems': 1}, conditions=_PAIRS,
        warm_up=_COUNT)),
    findings=_list(_object(
        name=_TEXT, text=_TEXT, value={'type': ['number', 'null']},
        unit=_TEXT)),
    skipped=_PAIRS)
_ENVIRONMENT = _object(
    cpu_model=_TEXT, cpus=_COUNT, numa_nodes=_COUNT, memory_mib=_COUNT,
    architecture=_TEXT, kernel=_TEXT, distribution=_TEXT, mitigations=_PAIRS,
    virtual=_TEXT, governors=_TEXT, tools=_PAIRS, load=_NUMBER)
_REPORT = _object(
    schema={'const': SCHEMA}, made_by=_TEXT,
    results=_list(_object(
        scenario=_TEXT, status={'enum': list(STATUS)}, reasons=_list(_TEXT),
        parameters=_list(_pair({'type': ['string', 'number', 'boolean']})),
        environment=_ENVIRONMENT, measured=_MEASURED, seconds=_NUMBER)))


def to_json(report: Report) -> str:
    """Return the text of a report; the same for the same report."""
    return json.dumps({'schema': SCHEMA, **asdict(report)}, indent=1,
                      ensure_ascii=False, allow_nan=False) + '\n'


def from_json(text: str) -> Report:
    """Read a report.

    :raises BenchError: when it is none, or one of another version.
    """
    try:
        document = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise errors.BenchError(f'is no JSON: {error}') from None
    version = document.get('schema') if isinstance(document, dict) else None
    if version != SCHEMA:
        raise errors.BenchError(
            f'is no report of this version: its schema is {version!r}, not '
            f'{SCHEMA!r}')
    try:
        jsonschema.Draft202012Validator(_REPORT).validate(document)
    except jsonschema.ValidationError as error:
        raise errors.BenchError(
            f'{error.json_path}: {error.message[:200]}') from None
    return Report(tuple(map(_result, document['results'])),
                  document['made_by'])


def _no_number(text: str) -> float:
    raise ValueError(f'{text} is not a number of JSON')


def _pairs(items: list[list[Any]]) -> tuple[tuple[Any, Any], ...]:
    return tuple((name, value) for name, value in items)


def _result(entry: dict[str, Any]) -> Result:
    environment = Environment(**{
        **entry['environment'],
        'mitigations': _pairs(entry['environment']['mitigations']),
        'tools': _pairs(entry['environment']['tools'])})
    return Result(**{
        **entry, 'reasons': tuple(entry['reasons']),
        'parameters': _pairs(entry['parameters']),
        'environment': environment,
        'measured': _measured(entry['measured'])})


def _measured(entry: dict[str, Any]) -> Measured:
    return Measured(
        series=tuple(Series(**{
            **series, 'samples': tuple(series['samples']),
            'conditions': _pairs(series['conditions'])})
            for series in entry['series']),
        findings=tuple(Finding(**found) for found in entry['findings']),
        skipped=_pairs(entry['skipped']))

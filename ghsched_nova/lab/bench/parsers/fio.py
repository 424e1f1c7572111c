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

"""``fio --output-format=json``."""

from dataclasses import dataclass
import json
from typing import Any

from ghsched_nova.lab.bench import errors


@dataclass(frozen=True)
class Direction:
    """Reads or writes of a job.

    :param job: its name.
    :param name: "read" or "write".
    :param bandwidth: bytes per second.
    :param mean: completion latency in ns, as those that follow.
    """

    job: str
    name: str
    operations: int
    iops: float
    bandwidth: float
    mean: float
    p50: float
    p99: float


def parse(text: str) -> tuple[Direction, ...]:
    """Return the directions in which jobs moved data.

    :raises ParseError: when it is no such document, when a job failed, or
        when nothing was moved.
    """
    try:
        # fio writes its warnings before the document.
        document = json.loads(text[text.index('{'):])
        found = tuple(
            _direction(job, name) for job in document['jobs']
            for name in ('read', 'write') if job[name]['total_ios'])
        failed = [job['jobname'] for job in document['jobs'] if job['error']]
    except (ValueError, KeyError, TypeError, AttributeError,
            RecursionError) as error:
        raise errors.ParseError('fio', f'is not what it prints: {error!r}',
                                text) from None
    if failed:
        raise errors.ParseError('fio', f'job {failed[0]} failed', text)
    if not found:
        raise errors.ParseError('fio', 'no job moved any data', text)
    return found


def _direction(job: dict[str, Any], name: str) -> Direction:
    part = job[name]
    latency = part['clat_ns']
    return Direction(
        job=job['jobname'], name=name, operations=int(part['total_ios']),
        iops=float(part['iops']), bandwidth=float(part['bw_bytes']),
        mean=float(latency['mean']),
        p50=float(latency['percentile']['50.000000']),
        p99=float(latency['percentile']['99.000000']))

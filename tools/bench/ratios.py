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

"""Timing and printing that all benchmarks of times share."""

from collections.abc import Callable
from collections.abc import Sequence
import os
import platform
import statistics
import time
from typing import Any


def measure_seconds(task: Callable[..., Any], *args: Any) -> float:
    """Return the processor time of one call."""
    begin = time.process_time()
    task(*args)
    return time.process_time() - begin


def describe_conditions(count: int, warm_up: int) -> str:
    """Return how often each thing is measured, and on what."""
    return (f'processor time; n = {count} of each, {warm_up} discarded before '
            f'as warm-up; Python {platform.python_version()}, '
            f'{platform.machine()}, {os.cpu_count()} CPUs')


def format_row(name: str, seconds: Sequence[float],
               base: Sequence[float] | None, more: str = '') -> str:
    """Return median, quartiles, extremes and the ratio of two medians.

    :param base: seconds of what the row is compared with, None if unknown.
    """
    median = statistics.median(seconds)
    quartiles = (statistics.quantiles(seconds, n=4) if len(seconds) > 1
                 else [median] * 3)
    low, high, least, most = (
        one * 1e3 for one in (quartiles[0], quartiles[2], min(seconds),
                              max(seconds)))
    ratio = f'{median / statistics.median(base):.2f}' if base else 'unknown'
    return (f'{name:46} median {median * 1e3:8.3f} ms  quartiles '
            f'{low:.3f}..{high:.3f}  range {least:.3f}..{most:.3f}  ratio '
            f'{ratio}{more}')

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
from collections.abc import Iterable
from collections.abc import Sequence
import os
import platform
import statistics
import time
from typing import Any

#: No file of resctrl or procfs that a benchmark reads is longer.
_BYTES = 4096


def read_files(paths: Iterable[str]) -> None:
    """Open, read and close each file, by one system call each."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.read(handle, _BYTES)
        os.close(handle)


def measure_seconds(task: Callable[..., Any], *args: Any) -> float:
    """Return the processor time of one call."""
    begin = time.process_time()
    task(*args)
    return time.process_time() - begin


def print_conditions(count: int, warm_up: int) -> None:
    """Print how often each thing was measured, and on what."""
    print(f'processor time; n = {count} of each, {warm_up} discarded before '
          f'as warm-up; Python {platform.python_version()}, '
          f'{platform.machine()}')


def print_row(name: str, seconds: Sequence[float], base: Sequence[float],
              more: str = '') -> None:
    """Print median, quartiles, extremes and the ratio of two medians.

    :param base: seconds of what the row is compared with.
    """
    median = statistics.median(seconds)
    quartiles = (statistics.quantiles(seconds, n=4) if len(seconds) > 1
                 else [median] * 3)
    low, high, least, most = (
        one * 1e3 for one in (quartiles[0], quartiles[2], min(seconds),
                              max(seconds)))
    print(f'{name:46} median {median * 1e3:8.3f} ms  quartiles '
          f'{low:.3f}..{high:.3f}  range {least:.3f}..{most:.3f}  ratio '
          f'{median / statistics.median(base):.2f}{more}')

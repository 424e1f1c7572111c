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

"""Measure the CPU time of ``ghsched-host plan`` with nothing to do.

Each round is a process of its own, imports included. libvirt is its test
driver, whose one domain has no policy. The base is Python that imports what
every such command needs: the binding of libvirt, oslo.config and lxml.

usage::

    python tools/bench/host_plan_bench.py [--count N]
"""

import bench_path  # noqa: F401

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys

BASE = 'import libvirt, lxml.etree, oslo_config.cfg'
PLAN = ('import sys; from ghsched_nova.cmd import host; '
        'sys.exit(host.main(["plan", "--connect", "test:///default", '
        f'"--config-file", "{os.devnull}"]))')
WARM_UP = 2


def seconds(program: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, '-c', program], check=True,
                   stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime
            - before.ru_utime - before.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--count', type=int, default=20,
                        help='rounds that count (20)')
    count = parser.parse_args().count
    times: dict[str, list[float]] = {'libraries': [], 'plan': []}
    for _turn in range(WARM_UP + count):
        times['libraries'].append(seconds(BASE))
        times['plan'].append(seconds(PLAN))
    print(f'n = {count} of each, {WARM_UP} discarded before as warm-up; '
          f'Python {platform.python_version()}, {platform.machine()}; '
          'processor time')
    base = statistics.median(times['libraries'][WARM_UP:])
    for what, values in times.items():
        low, median, high = statistics.quantiles(values[WARM_UP:], n=4)
        print(f'{what:10} median {median:.3f} s  quartiles '
              f'{low:.3f}..{high:.3f}  ratio {median / base:.2f}')


if __name__ == '__main__':
    main()

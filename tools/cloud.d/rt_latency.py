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

"""Wake-up latency in servers of two flavors, beside a hog on their CPU.

usage: with a cloud that is up, python tools/cloud.d/rt_latency.py [RUNS]

Each server runs cyclictest, as ``ghsched-bench run rt-latency --in-guest``
does without a cloud, while a program computes on the host CPU that Nova has
pinned its vCPU to. Both have a CPU of their own (``hw:cpu_policy``) and QEMU
another; one has ``ghsched:vcpu_scheduler=rr`` with priority 10. The guests run
with TCG.
"""

from collections.abc import Iterator
import contextlib
from pathlib import Path
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from aio import catalog
from aio import cli
from aio.lab import Lab
from aio.services import COMPUTE
from aio.settings import read
from ghsched_nova.lab.bench import guest
from ghsched_nova.lab.bench.machine import Machine
from ghsched_nova.lab.bench.scenarios import guest_latency
from ghsched_nova.lab.bench.scenarios import rt_latency

IMAGE = 'rt-latency'
OPTIONS = (('compute', 'cpu_dedicated_set', '0'),
           ('compute', 'cpu_shared_set', '1'))
PINNED = {'hw__numa_nodes': 1, 'hw__cpu_policy': 'dedicated',
          'hw__emulator_threads_policy': 'share'}
FLAVORS = {'rt-other': PINNED,
           'rt-rr10': {**PINNED, 'ghsched__vcpu_scheduler': 'rr',
                       'ghsched__vcpu_priority': 10}}


def upload(lab: Lab, runs: int) -> None:
    """The guest image with cyclictest in its ramdisk."""
    values = rt_latency.SCENARIO.values({
        'runs': runs, 'interval': 10000, 'loops': 100})
    files = lab.settings.cache / 'guest'
    machine = Machine()
    with tempfile.TemporaryDirectory() as directory:
        ramdisk = guest.make_ramdisk(
            machine, Path(directory),
            guest_latency.init(values).replace('read -r word', 'sleep 10'),
            [machine.which('cyclictest')])
        catalog.upload_guest(lab.cloud, IMAGE, catalog.GuestFiles(
            files / 'vmlinuz', ramdisk, files / 'disk.raw'),
            'console=ttyS0 quiet no_timer_check')


@contextlib.contextmanager
def pinning(lab: Lab) -> Iterator[None]:
    """A CPU for guests of their own, and one for QEMU."""
    try:
        for section, key, value in OPTIONS:
            cli.set_option(lab.settings, section, key, value)
        cli.restart(lab.settings, [COMPUTE])
        lab.until(lambda: 'PCPU' in lab.usage(lab.providers()[0]), 120,
                  'Placement does not have the dedicated CPU')
        yield
    finally:
        lab.clean()
        for section, key, _value in OPTIONS:
            cli.set_option(lab.settings, section, key, None)
        cli.restart(lab.settings, [COMPUTE])


def measure(lab: Lab, flavor: str, runs: int) -> list[list[int]]:
    """Minimum, median, average and maximum of each run, in us."""
    server: Any = lab.boot(flavor, flavor)
    if server.status != 'ACTIVE':
        raise SystemExit(lab.fault(server))
    lab.console(server)
    with subprocess.Popen(['taskset', '-c', '0', 'sh', '-c',
                           'while :; do :; done']) as hog:
        try:
            lab.until(lambda: 'GUEST-DONE' in lab.printed(server),
                      60 + 60 * runs, 'the guest has not done its runs')
        finally:
            hog.kill()
    found = [[int(word) for word in line.split()[1:]]
             for line in lab.printed(server) if line.startswith('GUEST-RUN')]
    lab.delete(server)
    return found[1:]


def main(runs: int) -> int:
    lab = Lab(read(), 'rt')
    upload(lab, runs)
    lab.image_name = IMAGE
    medians = {}
    with pinning(lab):
        for flavor, specs in FLAVORS.items():
            lab.flavor(flavor, **specs)
            rows = measure(lab, flavor, runs)
            medians[flavor] = statistics.median(row[1] for row in rows)
            worst = max(row[3] for row in rows)
            print(f'{flavor}: {len(rows)} runs, median of medians '
                  f'{medians[flavor]:g} us, worst {worst} us; {rows}',
                  flush=True)
    ratio = medians['rt-other'] / medians['rt-rr10']
    print(f'other / rr: {ratio:.1f}')
    return 0 if ratio >= 10 else 1


if __name__ == '__main__':
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))

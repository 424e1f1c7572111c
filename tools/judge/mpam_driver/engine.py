#!/usr/bin/env python3
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
"""Compare registers with what the host engine promises to guests.

``engine.py PROGRAM [GUESTS [SEED]]`` runs PROGRAM, which build.sh beside this
file builds. The engine starts guests with random caps on hosts with bandwidth
controls of 1 to 16 bits, with and without narrowed PARTIDs, and repairs caps
that somebody else has changed; what it writes goes to the driver. Each
register has to hold the least cap, from that of the flavor on, that the driver
can be brought to hold.
"""

from pathlib import Path
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from ghsched_nova.tests.fixtures import mpam_driver  # noqa: E402


def main(argv):
    program = str(Path(argv[0]).resolve())
    wanted = int(argv[1]) if argv[1:] else 10000
    seed = argv[2] if argv[2:] else '1'
    machines = [(bits, narrowed) for bits in mpam_driver.WIDTHS
                for narrowed in (False, True)]
    hosts = -(-wanted // (mpam_driver.GUESTS * len(machines)))
    guests = writes = failures = 0
    for bits, narrowed in machines:
        driver = mpam_driver.ProgramDriver(program, bits, narrowed)
        distance = 0
        for number in range(hosts):
            found = mpam_driver.check(
                mpam_driver.run(f'{seed}/{number}', bits, narrowed), bits,
                driver)
            guests += found.guests
            writes += found.writes
            failures += len(found.wrong)
            distance = max(distance, found.distance)
            for sentence in found.wrong:
                print(f'{bits} bits, host {number}: {sentence}')
        print(f'{bits} bits{", narrowed" if narrowed else ""}: at most '
              f'{float(distance):.2f} bands from the cap of a flavor',
              flush=True)
    print(f'{guests} guests, {writes} writes: {failures} failures')
    return bool(failures)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

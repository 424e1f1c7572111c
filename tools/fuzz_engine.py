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

"""Random hosts, disturbed and repaired by the host engine.

Each case is an emulated host of one dialect with guests that Placement could
have put there, see ghsched_nova/tests/unit/resctrl/fuzz.py. In half of them
the engine is killed before some operation, in a quarter the kernel refuses
something; then one repair must be enough, and one more must change nothing.
Checked are the guests' values and threads, the sum of the guarantees in each
domain, and that groups of others are as they were. A failure names its case,
which ``--seed SEED --only NUMBER`` runs again.
"""

import argparse
from pathlib import Path
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ghsched_nova.tests.unit.resctrl import described_fuzz  # noqa: E402
from ghsched_nova.tests.unit.resctrl import fuzz  # noqa: E402


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--cases', type=int, default=10000, metavar='N')
    parser.add_argument('--seed', default='1')
    parser.add_argument('--only', type=int, metavar='NUMBER')
    parser.add_argument('--described', action='store_true',
                        help='hosts whose kernel describes its controls, see '
                             'described_fuzz.py there')
    args = parser.parse_args(argv)
    count = fuzz.Count()
    for number in (range(args.cases) if args.only is None
                   else (args.only,)):
        (described_fuzz if args.described else fuzz).run(
            args.seed, number, count)
    for failure in count.failures:
        print(failure)
    print(f'{count.cases} cases on {len(count.dialects)} dialects, '
          f'{count.guests} guests, {count.killed} kills, {count.refused} '
          f'with a refusal: {len(count.failures)} failures')
    return bool(count.failures)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

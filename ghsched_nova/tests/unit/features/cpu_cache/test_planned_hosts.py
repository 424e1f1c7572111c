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

"""Guests of few L3 caches on hosts that files describe."""

import contextlib
import io
from pathlib import Path

from ghsched_nova.cmd import main
from ghsched_placement.tests import base

EPYC = Path(__file__).parents[5] / 'etc/ghsched/hosts/amd-epyc9755.yaml'


def run_plan(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main.main(['plan', *arguments])
    return status, out.getvalue(), err.getvalue()


@base.needs_features('planner')
class PlanTest(base.TestCase):

    def test_cpus_of_one_cache_limit_the_guests_of_a_host(self):
        """Each of 32 L3 caches with 16 threads has room for one guest of 12.

        A node of 256 threads has room for 21 without the key.
        """
        for wish, guests in (('none', 42), ('prefer', 42), ('require', 32)):
            status, out, err = run_plan(
                '--no-more', '--hosts', str(EPYC), '--flavor',
                'a:vcpus=12,ram=1024,hw:cpu_policy=dedicated,'
                f'ghsched:cpu_cache={wish}')
            self.assertEqual((0, ''), (status, err))
            self.assertIn(f'Flavor a: {guests} more guests', out)
            self.assertEqual(wish == 'require',
                             'dedicated CPUs of one L3 cache free, 12 needed '
                             '(ghsched:cpu_cache)' in out)

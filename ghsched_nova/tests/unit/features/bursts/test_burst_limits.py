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

from oslo_config import cfg

from ghsched_nova import conf
from ghsched_nova.features.bursts import burst_use
from ghsched_placement.features.bursts import burst
from ghsched_placement.tests import base


class BurstRiskTest(base.TestCase):

    def limits(self, text):
        path = self.create_tempfiles([('nova', f'[ghsched]\n{text}\n')])[0]
        options = cfg.ConfigOpts()
        conf.register_opts(options)
        options([], project='nova', default_config_files=[path],
                default_config_dirs=[])
        return burst_use.make_burst_limits(options.ghsched)

    def test_default_is_the_medium_risk(self):
        self.assertEqual(burst.BurstLimits(24, 99.0, 0.3, 1.2, 3.0),
                         self.limits(''))
        self.assertEqual(self.limits(''), self.limits('burst_risk = medium'))

    def test_lower_risk_expects_busier_guests(self):
        low, medium, high = (self.limits(f'burst_risk = {risk}')
                             for risk in ('low', 'medium', 'high'))
        self.assertTrue(low.correlation > medium.correlation
                        > high.correlation)
        self.assertTrue(low.safety > medium.safety > high.safety)
        self.assertEqual({3.0}, {low.ratio, medium.ratio, high.ratio})

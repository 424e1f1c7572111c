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


"""The alert rules that are shipped."""

import inspect
from pathlib import Path
import re

import yaml

from ghsched_nova.features import declared_exporter
from ghsched_nova.features.exporter import cloud_metrics
from ghsched_nova.features.exporter import metrics
from ghsched_nova.features.load import load_metrics
from ghsched_placement.tests import base

RULES = Path(__file__).parents[5] / 'etc' / 'ghsched' / 'prometheus'


class AlertsTest(base.TestCase):

    def test_they_ask_for_metrics_that_exist(self):
        text = (RULES / 'ghsched.rules.yaml').read_text()
        exported = (inspect.getsource(metrics)
                    + inspect.getsource(load_metrics)
                    + inspect.getsource(cloud_metrics)
                    + ' '.join(
                        one.name for declared in declared_exporter.FILE_METRICS
                        for one in declared.make_collector(
                            Path('none')).collect()))
        for name in set(re.findall(r'\bghsched_[a-z_]+', text)):
            name = re.sub('_total$', '', name)
            name = re.sub('^ghsched_effective_', '', name)
            self.assertIn(name, exported)

    def test_each_says_what_it_is_about(self):
        rules = yaml.safe_load((RULES / 'ghsched.rules.yaml').read_text())
        for rule in rules['groups'][0]['rules']:
            self.assertTrue(rule['annotations']['summary'].endswith('.'))
            self.assertIn(rule['labels']['severity'],
                          ('critical', 'warning', 'info'))

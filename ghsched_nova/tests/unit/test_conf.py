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
from oslotest import base

from ghsched_nova import conf
from ghsched_nova import privsep


class TestListedOptions(base.BaseTestCase):

    def test_privsep_section_is_that_of_our_context(self):
        listed = {group.name: {opt.name: opt.default for opt in opts}
                  for group, opts in conf.list_opts()}
        section = listed[privsep.context.cfg_section]
        self.assertEqual(set(privsep.context.conf), set(section))
        self.assertEqual([], section['capabilities'])


class TestRegistered(base.BaseTestCase):

    def test_what_is_set_in_one_does_not_reach_another(self):
        one, other = cfg.ConfigOpts(), cfg.ConfigOpts()
        for options in (one, other):
            conf.register(options)
            conf.register(options)
            options([], project='nova', default_config_files=[],
                    default_config_dirs=[])
        one.set_override('control_threads', 'all', 'ghsched')
        self.assertEqual(('all', 'vcpus'), (one.ghsched.control_threads,
                                            other.ghsched.control_threads))

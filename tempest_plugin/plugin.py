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

"""Plugin by which tempest finds the tests of ghsched."""

import pathlib

from tempest.test_discover import plugins

from tempest_plugin import config

_PACKAGE = pathlib.Path(__file__).resolve().parent


class GhschedTempestPlugin(plugins.TempestPlugin):
    """The plugin ``ghsched_tests`` of ``tempest list-plugins``."""

    def load_tests(self):
        """Return the paths of the tests and of their top-level directory."""
        return str(_PACKAGE / 'tests'), str(_PACKAGE.parent)

    def register_opts(self, conf):
        """Register ghsched's options in the tempest configuration."""
        conf.register_opt(config.service_option, group='service_available')
        conf.register_group(config.group)
        conf.register_opts(config.options, config.group)

    def get_opt_lists(self):
        """Return ghsched's options by group, for the sample tempest.conf."""
        return [('service_available', [config.service_option]),
                (config.group.name, config.options)]

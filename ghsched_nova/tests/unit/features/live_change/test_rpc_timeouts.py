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

"""Time-outs of RPC calls, as Nova's configuration has them."""

from oslo_config import cfg

from ghsched_nova.features.live_change import rpcapi
from ghsched_nova.nova_seams import shared
from ghsched_placement.tests import base


class ResponseTimeoutTest(base.TestCase):

    def test_time_out_is_read_before_the_first_rpc_client(self):
        options = cfg.ConfigOpts()
        options([], default_config_files=[])
        self.patch(shared, 'config', lambda: options)
        self.assertRaises(cfg.NoSuchOptError,
                          lambda: options.rpc_response_timeout)
        self.assertEqual(60, rpcapi.get_rpc_timeout())
        options.set_override('rpc_response_timeout', 7)
        self.assertEqual(7, rpcapi.get_rpc_timeout())

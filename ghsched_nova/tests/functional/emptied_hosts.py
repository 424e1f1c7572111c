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

"""Journeys on one cloud, of which each step begins without servers."""


class EmptiedHosts:
    """Deletes all servers after each step.

    To stand before the base class that has take_steps().

    :ivar kept: servers that stay for the next steps.
    """

    kept = ()

    def tidy_up(self):
        """Delete the servers and report the hosts."""
        kept = {server['id'] for server in self.kept}
        for server in self.api.get_servers(detail=False):
            if server['id'] not in kept:
                self._delete_server(server)
        self._run_periodics()

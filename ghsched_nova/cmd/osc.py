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

"""``openstack ghsched server set``: :mod:`ghsched_nova.cmd.server_set`.

A command of python-openstackclient (the extra ``osc``). It runs where
nova-manage runs, as ``ghsched server set`` does; the client's own credentials
are used only to find a server by its name.
"""

import argparse
import uuid

from osc_lib import exceptions

from ghsched_nova.cmd import server_set
from ghsched_nova.live import errors
from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients
from ghsched_placement import policy as policies


class SetServer(base.Lister):
    """Give a server another memory bandwidth policy, without a restart.

    Runs where nova-manage runs.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        server_set.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        parsed_args.server = self._uuid(parsed_args.server)
        try:
            plan = server_set.carry_out(parsed_args)
        except (policies.PolicyError, errors.Refused) as error:
            raise base.Refused(f'refused: {error}') from error
        except (server_set.NotHere, errors.LeftOver) as error:
            raise exceptions.CommandError(str(error)) from error
        self.log.warning(server_set.summary(plan, parsed_args.dry_run))
        return server_set.HEADER, list(server_set.rows(plan))

    def _uuid(self, server: str) -> str:
        try:
            return str(uuid.UUID(server))
        except ValueError:
            return str(clients.of(self.app).find_server(server)['id'])

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

"""``openstack ghsched server blame``."""

import argparse

from ghsched_placement.features.blame import blame_report
from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients


class BlameServer(base.Lister):
    """Find out which guest of its host slows a server down by memory traffic.

    Shows how much memory bandwidth each other guest uses, and how well that
    correlates with the speed of the server. With --prove, the bandwidth of
    suspected guests is capped for a short time, and the effect on the server
    is shown, too. If the server waits for something other than memory, the
    command says so. It takes up to a minute. nova-api must have the filter of
    ghsched in its api-paste.ini. The rule os_compute_api:ghsched:blame of its
    policy says who may use this; with --prove,
    os_compute_api:ghsched:blame-prove as well.
    """

    nothing = 'No other guest uses memory of its host NUMA nodes.'

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('server', metavar='<server>',
                            help='Server (name or ID)')
        parser.add_argument(
            '--prove', action='store_true',
            help='Cap the bandwidth of suspected guests for a short time, one '
                 'at a time, and measure whether the server gets faster; '
                 'their guarantees are not reduced')
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        client = clients.get_client(self.app)
        # With a proof, the host may cap other guests for a short time.
        shown = client.post_server_action(
            str(client.find_server(parsed_args.server)['id']),
            {'blame': True, 'prove': parsed_args.prove})
        self.log.warning(blame_report.summarize_verdict(shown))
        return blame_report.HEADER, list(blame_report.list_suspect_rows(shown))

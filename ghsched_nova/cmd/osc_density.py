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

"""``openstack ghsched density plan`` with descriptions of hosts.

The command is :mod:`ghsched_placement.osc.density`, which can not read them.
"""

import argparse

from ghsched_nova.cmd import plan_input
from ghsched_placement.osc import density
from ghsched_placement.planner.predict import Target


class PlanDensity(density.PlanDensity):
    __doc__ = density.PlanDensity.__doc__

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--machine', metavar='<file>', action='append', default=[],
            dest='machines',
            help='Description of a host, as those in etc/ghsched/hosts, with '
                 'a section "contention": predict what guests hold there '
                 '(simulated; repeat for several)')
        return parser

    def targets(self, parsed_args: argparse.Namespace) -> tuple[Target, ...]:
        return plan_input.targets(parsed_args.machines)

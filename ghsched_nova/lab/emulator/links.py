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


"""Lines of schemata whose values depend on each other's."""

from collections.abc import Sequence
import errno

from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import staging


def root_values(machine: machines.Machine) -> staging.Values:
    """Return what the root group holds after the mount.

    It has all of a bounded line that the other groups leave
    (cbqri_rcid0_rbwb() of the RISC-V patches of June 2026).
    """
    values = staging.defaults(machine)
    for line in machine.lines:
        if line.bound:
            rest = line.bound - (machine.num_closids - 1) * line.default
            values[line.name] = dict.fromkeys(values[line.name], rest)
    return values


def check_sums(machine: machines.Machine, others: Sequence[staging.Values],
               staged: staging.Values) -> None:
    """Refuse values that make a bounded line add up to too much.

    All ids count, those of groups that are not there as well
    (cbqri_apply_rbwb()).

    :param others: what the other control groups hold.
    :param staged: what is written to a group.
    :raises ResctrlError: EINVAL.
    """
    free = machine.num_closids - len(others) - 1
    for line in machine.lines:
        if not line.bound:
            continue
        for domain, value in staged.get(line.name, {}).items():
            total = value + free * line.default + sum(
                values[line.name][domain] for values in others)
            if total > line.bound:
                raise staging.ResctrlError(errno.EINVAL)


def followed(machine: machines.Machine,
             staged: staging.Values) -> staging.Values:
    """Return written values, and those of lines that follow them."""
    found = dict(staged)
    for line in machine.lines:
        view = machine.line(line.backs) if line.backs else None
        if view is None:
            continue
        for source, target in ((view, line), (line, view)):
            if source.name in staged and target.name not in staged:
                found[target.name] = {
                    domain: -(-value * target.maximum // source.maximum)
                    for domain, value in staged[source.name].items()}
    return found

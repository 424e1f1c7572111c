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

"""Groups of the emulated kernel: CLOSIDs, RMIDs and defaults of new ones."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
import errno
import time

from ghsched_nova.lab.emulator import links
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import staging

#: A place that a thread runs on: NUMA node, L3 cache.
Place = tuple[int, int]
ResctrlError = staging.ResctrlError


@dataclass(eq=False)
class Group:
    """A CTRL_MON group, or with a parent a MON group."""

    name: str
    closid: int
    rmid: int
    parent: 'Group | None' = None
    values: staging.Values = field(default_factory=dict)
    cpus: frozenset[int] = frozenset()
    mode: str = 'shareable'
    event: str = 'mbm_local_bytes'
    children: dict[str, 'Group'] = field(default_factory=dict)
    iommu_groups: set[int] = field(default_factory=set)
    number: int = 0
    traffic: dict[Place, float] = field(default_factory=dict)
    before: dict[Place, float] = field(default_factory=dict)
    rates: dict[Place, float] = field(default_factory=dict)
    looked_at: float = 0.0
    created: float = field(default_factory=time.time)

    @property
    def family(self) -> 'list[Group]':
        """The group and its MON groups."""
        return [self, *self.children.values()]

    @property
    def control(self) -> 'Group':
        """The control group: itself, or the parent of a MON group."""
        return self.parent or self


class Groups:
    """Existing groups; the root group is always one of them.

    :param clock: seconds, by which RMIDs leave limbo.
    """

    def __init__(
        self, machine: machines.Machine, clock: Callable[[], float]
    ):
        self._machine = machine
        self._clock = clock
        self._limbo: dict[int, float] = {}
        self._numbers = 0
        self.named: dict[str, Group] = {}
        #: What the traffic of devices holds, where it has a CLOSID (io_alloc).
        self.io_alloc: Group | None = None
        #: What was written last, where that goes to the next group, too.
        self.staged = (staging.Staged(machine) if machine.old_layout
                       else None)
        self.root = Group(
            '', 0, 0, values=links.root_values(machine), cpus=machine.cpus,
            number=self._number(), looked_at=clock(),
        )

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def controls(self) -> Iterator[Group]:
        """Control groups, the root group first."""
        yield self.root
        yield from self.named.values()

    def holders(self) -> Iterator[Group]:
        """Yield all that have a CLOSID: control groups and devices."""
        yield from self.controls()
        if self.io_alloc:
            yield self.io_alloc

    def every_group(self) -> Iterator[Group]:
        """Yield the control groups, each followed by its MON groups."""
        for control in self.controls():
            yield control
            yield from control.children.values()

    def make_control(self, name: str) -> Group:
        """Return a new control group.

        :raises ResctrlError: ENOSPC, EBUSY.
        """
        used = {group.closid for group in self.holders()}
        free = set(range(self._machine.num_closids)) - used
        if not free:
            raise ResctrlError(errno.ENOSPC, 'Out of CLOSIDs\n')
        closid = min(free)
        group = self.named[name] = Group(
            name, closid, self._new_rmid(closid), values=self.new_values(),
            number=self._number(), looked_at=self._clock(),
        )
        if self.staged:
            self.staged.reset()
        return group

    def make_monitor(self, name: str, parent: Group) -> Group:
        """Return a new MON group.

        :raises ResctrlError: ENOSPC, EBUSY.
        """
        group = parent.children[name] = Group(
            name, parent.closid, self._new_rmid(parent.closid), parent,
            number=self._number(), looked_at=self._clock(),
        )
        return group

    def new_values(self) -> staging.Values:
        """Defaults, without the cache portions that cannot be shared.

        Those are what only exclusive groups or devices have, see
        __init_one_rdt_domain().

        :raises ResctrlError: ENOSPC.
        """
        values = staging.defaults(self._machine)
        for line in self._machine.lines:
            if line.base != 16:
                continue
            for domain in values[line.name]:
                taken = 0
                shared = line.maximum * line.shareable
                for group in self.holders():
                    mask = staging.used(line, group.values, domain)
                    if group.mode == 'shareable':
                        shared |= mask
                    else:
                        taken |= mask
                # cbm_ensure_valid(): sparse masks are taken as they are.
                mask = line.default & (~taken | shared)
                if not line.sparse_masks:
                    mask = staging.lowest_run(mask)
                if mask.bit_count() < line.minimum:
                    raise ResctrlError(
                        errno.ENOSPC, f'No space on {line.name}:{domain}\n'
                    )
                values[line.name][domain] = mask
        return values

    def _new_rmid(self, closid: int) -> int:
        """Return a free RMID; on MPAM one of the control group's own few."""
        if not self._machine.monitors:
            return 0
        now = self._clock()
        self._limbo = {x: t for x, t in self._limbo.items() if t > now}
        groups = [*self.every_group()]
        used = {group.rmid for group in groups}
        own = sum(group.closid == closid for group in groups)
        free = set(range(self._machine.num_rmids)) - used - set(self._limbo)
        per_closid = self._machine.rmids_per_closid
        if not free or per_closid and own >= per_closid:
            raise ResctrlError(
                errno.EBUSY if self._limbo and not free else errno.ENOSPC,
                'Out of RMIDs\n',
            )
        return min(free)

    def remove(self, group: Group) -> None:
        """Take out a group with its MON groups; its CPUs go up."""
        if group.parent is None:
            self.root.cpus |= group.cpus
            del self.named[group.name]
        else:
            if group.parent is not self.root:  # it lists none
                group.parent.iommu_groups |= group.iommu_groups
            del group.parent.children[group.name]
        self._free_rmids(group.family)

    def _free_rmids(self, groups: Iterable[Group]) -> None:
        if self._machine.limbo_seconds:
            until = self._clock() + self._machine.limbo_seconds
            self._limbo |= {group.rmid: until for group in groups}

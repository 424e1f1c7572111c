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


"""Checks of many requests at once with two of each service."""

from collections.abc import Iterator
import contextlib
from typing import Any

from aio.lab import REPORT
from aio import records
from e2e_move_room import MoveRoom

_BOOTS = 100
#: As many guests of 30 % as a host has room for, and as the second has
#: control groups for.
_SHARE = 30
_GROUPS_LEFT = 4
WORKERS = (('scheduler', 'workers', '2'), ('conductor', 'workers', '2'))


class Races(MoveRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def test_races(self) -> None:
        """A hundred boots at once: what fits is placed, and no more."""
        with self._with(('nova-scheduler', 'nova-conductor'), *WORKERS), \
                self._few_groups(2):
            self.lab.flavor('race', hw__numa_nodes=1,
                            ghsched__mem_bw_min=_SHARE)
            servers = self._boot_at_once('race', 'race', _BOOTS)
            self.checks.equal('guests by host', self._by_host(servers),
                              self._fitting())
            self._no_host_for([one for one in servers
                               if one.status == 'ERROR'])
            self._agrees('all booted or refused')
            self.lab.clean()
            self._agrees('all deleted')

    # -- parts of tests -------------------------------------------------------

    def _fitting(self) -> dict[str, int]:
        """Return how many guests fit on each host."""
        first, second = self.settings.each_host
        by_share = 100 // _SHARE
        return {first.host.name: by_share * first.host.nodes,
                second.host.name: min(_GROUPS_LEFT,
                                      by_share * second.host.nodes)}

    def _by_host(self, servers: list[Any]) -> dict[str, int]:
        running = [one.compute_host for one in servers
                   if one.status == 'ACTIVE']
        return {one.host.name: running.count(one.host.name)
                for one in self.settings.each_host}

    @contextlib.contextmanager
    def _few_groups(self, number: int) -> Iterator[None]:
        """Somebody else has made control groups, for a while."""
        lab = self.lab.on(self._host(number).host)
        count = self._groups_left(lab) - _GROUPS_LEFT
        names = [f'/sys/fs/resctrl/{records.OTHERS}{one}'
                 for one in range(count)]
        lab.on_host('mkdir', *names)
        try:
            self.lab.until(
                lambda: self._groups_left(lab) == _GROUPS_LEFT, REPORT,
                'Placement does not know of the groups')
            yield
        finally:
            self.lab.clean()
            lab.on_host('rmdir', *names)
            self.lab.until(
                lambda: self._groups_left(lab) > _GROUPS_LEFT, REPORT,
                'Placement does not know that they are gone')

    def _groups_left(self, lab: Any) -> int:
        root = next(one for one in lab.providers() if one.parent is None)
        inventory = lab.inventory(root)['CUSTOM_RESCTRL_GROUP']
        return int(inventory['total'] - inventory['reserved'])

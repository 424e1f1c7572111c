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


"""Checks of how control groups are counted and shared."""

from aio.lab import REPORT
from e2e_guest_room import CONTROL_GROUP
from e2e_guest_room import GuestRoom


class Groups(GuestRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def test_groups_counted(self) -> None:
        """Placement refuses a guest for which no control group is left."""
        usable = self.settings.control_groups - 1
        with self._options(('ghsched', 'reserved_control_groups',
                            str(usable - 1))):
            first = self._active(self.lab.boot('first', 'bw10'))
            root = self.lab.providers()[0]
            self.checks.equal(f'{CONTROL_GROUP} used',
                              self.lab.usage(root).get(CONTROL_GROUP), 1)
            self._refused('bw10',
                          'no host has a resctrl control group left')
            self.lab.delete(first)
            again = self._active(self.lab.boot('again', 'bw10'))
            self._agrees(again, 10)

    def test_groups_taken(self) -> None:
        """Groups that others have are not offered to guests, until freed."""
        taken = self._take_groups()
        try:
            self._offered(0)
            self._refused('bw60',
                          'no host has a resctrl control group left')
            self.nothing_left(but=taken)
        finally:
            self._give_groups_back(taken)
        self._offered(len(taken))
        self._active(self.lab.boot('then', 'bw60'))

    def test_group_shared(self) -> None:
        """More equal guests than control groups, and one without a policy."""
        usable = self.settings.control_groups - 1
        with self._options(
                ('ghsched', 'reserved_control_groups', str(usable - 2)),
                ('ghsched', 'group_sharing', 'on'),
                ('ghsched', 'default_bandwidth_max', '40')):
            self._offered(1)
            servers = [self._active(self.lab.boot('1', 'bw10'))]
            node, = self.lab.allocated_nodes(servers[0])
            self.lab.until(
                lambda: any(trait.startswith('CUSTOM_GHSCHED_SHARES_')
                            for trait in self.lab.traits(
                                self.lab.node_provider(node))),
                60, 'Placement does not learn of the group')
            servers += [self._active(self.lab.boot(name, 'bw10'))
                        for name in '23']
            self.checks.equal(f'{CONTROL_GROUP} used', self.lab.usage(
                self.lab.providers()[0]).get(CONTROL_GROUP), 1)
            self.checks.equal(
                'nodes of the three',
                [self.lab.allocated_nodes(one) for one in servers],
                [[node]] * 3)
            self.checks.equal(
                'groups of the three',
                len({self.lab.group(one).name for one in servers}), 1)
            self.checks.equal('MBMIN of their group',
                              self._values(servers[0], 'MBMIN'),
                              {node: 30, 1 - node: 0})
            plain = self._active(self.lab.boot('plain', 'numa1'))
            self.checks.equal('group of a guest without a policy',
                              self.lab.group(plain).name, 'ghsched-default')
            self.checks.equal('its cap', self._values(plain, 'MB'),
                              {0: 40, 1: 40})
        self.nothing_left()

    # -- parts of tests -------------------------------------------------------

    def _take_groups(self) -> tuple[str, ...]:
        """Make groups until the host has none left."""
        script = ('cd /sys/fs/resctrl; n=0; '
                  'while mkdir "foreign$n" 2>&-; do n=$((n+1)); done; echo $n')
        count = int(self.lab.on_host('sh', '-c', script))
        self.checks.equal('groups taken by others', count,
                          self.settings.control_groups - 1)
        return tuple(f'foreign{number}' for number in range(count))

    def _offered(self, count: int) -> None:
        """Wait until the host has told Placement of so many groups."""
        root = self.lab.providers()[0]

        def offered() -> int:
            record = self.lab.inventory(root).get(CONTROL_GROUP)
            return record['total'] - record['reserved'] if record else 0

        self.lab.until(
            lambda: offered() == count, REPORT,
            lambda: f'the host offers {offered()} control groups and not '
                    f'{count}')
        self.checks.equal('groups offered to guests', offered(), count)

    def _give_groups_back(self, taken: tuple[str, ...]) -> None:
        self.lab.on_host('sh', '-c', 'cd /sys/fs/resctrl && rmdir '
                         + ' '.join(taken))

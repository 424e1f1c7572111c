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


"""Checks of what the tools show of busy guests (simulated)."""

from collections.abc import Iterator
import contextlib

from aio import cli
from aio.settings import ComputeHost
from e2e_guest_room import GuestRoom
from e2e_load import BUSY
from e2e_load import Load


_SCHEDULER = 'nova-scheduler'


class Busy(GuestRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def test_busy_guest(self) -> None:
        """ghsched-top, the exporter and Nova show a busy guest (simulated)."""
        server = self._active(self.lab.boot('busy', 'bw10'))
        node, = self.lab.allocated_nodes(server)
        load = Load(self.lab)
        self.lab.tell(server, 'busy')
        frame = load.busy_frame(server)
        print(load.top('--batch').rstrip())
        seen = [('the guest in ghsched-top', load.of_guest(frame, server)),
                ('all guests in ghsched-top', load.of_guests(frame))]
        with load.exporter() as address:
            seen.append(('rate in ghsched-exporter', load.scrape(
                address, 'ghsched_memory_bytes_per_second', server)))
        for text, rates in seen:
            self.checks.note(*load.only_on(text, rates, node))
        self.lab.until(
            lambda: self._reported_busy(load, node), 240,
            'the stats of the compute node do not show the load, or are old')
        self.lab.tell(server, 'idle')
        self.checks.holds(
            'the guest in ghsched-top, idle again',
            load.of_guest(load.idle_frame(server), server),
            f'less than {BUSY:.0f} bytes/s')

    def test_busy_host(self) -> None:
        """The scheduler takes the host that has bandwidth left (simulated)."""
        server = self._active(self.lab.boot('busy', 'bw10'))
        self.lab.tell(server, 'busy')
        load, node = Load(self.lab), self.lab.allocated_nodes(server)[0]
        with self._two_hosts(), self._with(
                (_SCHEDULER,),
                ('DEFAULT', 'debug', 'true'),
                # Nova's own weigher wants the busy host.
                ('filter_scheduler', 'ram_weight_multiplier', '-1'),
                # An idle host uses up to 1 % for its own services.
                ('ghsched', 'bottleneck_thresholds',
                 'memory_load:10,cpu_load:0,cpu_wait:0,memory_wait:0,'
                 'io_load:0,io_wait:0'),
                # A guest that gets few CPUs still counts for more than
                # what other weighers (fragments) see.
                ('ghsched', 'load_weight_multiplier', '100')):
            self.lab.until(lambda: self._reported_busy(load, node), 120,
                           'the stats of the compute node do not show it')
            with self.lab.log_of(_SCHEDULER) as log:
                other = self.lab.boot('other', 'two-nodes')
                for words in (('RAMWeigher: normalized',),
                              ('ghsched: ', 'GhschedLoadWeigher')):
                    for line in log.lines(*words):
                        print('        ' + line.partition(' - ')[2][-200:])
            self._active(other)
            self.checks.equal('host of the new guest', other.compute_host,
                              ComputeHost(2).name)

    # -- parts of tests -------------------------------------------------------

    def _reported_busy(self, load: Load, node: int) -> bool:
        """Whether stats of the last minute show a busy node.

        Load is measured over 30 seconds, and reported every ten; on a busy
        machine a report comes late.
        """
        age, used = load.reported()
        return 0 <= age <= 60 and used.get(node, 0) >= BUSY

    @contextlib.contextmanager
    def _two_hosts(self) -> Iterator[None]:
        """A second host, for a while."""
        cli.up_with(self.settings, (ComputeHost(), ComputeHost(2)))
        try:
            yield
        finally:
            self.lab.clean()
            cli.up_with(self.settings, (ComputeHost(),))

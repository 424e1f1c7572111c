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


"""Checks of the used bandwidth that the host's tools and Nova report.

All figures are *simulated*: the emulated resctrl counts so many bytes for
each second of processor time, on the node where a thread runs.
"""

from collections.abc import Iterator
import contextlib
import json
import re
import subprocess
import time
from typing import Any

from aio import host
from aio.lab import Lab
from aio.settings import CloudError
from aio.settings import HOST
from prometheus_client import parser

#: Bytes per second that tell a busy guest from one that is idle; a twentieth
#: of what one CPU can do, because the machine may be busy with other things.
BUSY = 2e8

Nodes = dict[int, float]


class Load:
    """The figures of one simulated host."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._settings = lab.settings

    @staticmethod
    def only_on(text: str, seen: Nodes, node: int) -> tuple[bool, str]:
        """Whether bandwidth is seen on one node alone, and a line of that."""
        return (seen.get(node, 0) >= BUSY
                and not any(rate for one, rate in seen.items() if one != node),
                f'{text}, bytes/s by node: {seen}, expected node {node} alone')

    # -- ghsched-top ----------------------------------------------------------

    def top(self, *options: str) -> str:
        """Return one update of ``ghsched-top``."""
        return self._lab.on_host(
            f'{self._settings.venv}/bin/ghsched-top', '-n', '1', '-d', '1',
            '--node-bandwidth', host.node_bandwidth(), *options)

    def frame(self) -> dict[str, Any]:
        """Return one update as ``--json`` prints it."""
        return dict(json.loads(self.top('--json')))

    @staticmethod
    def of_guest(frame: dict[str, Any], server: Any) -> Nodes:
        """Bytes per second of a guest by host NUMA node."""
        for guest in frame['guests']:
            if guest['uuid'] == server.id:
                return {row['nodes'][0]: row['used']['bytes_per_second'] or 0
                        for row in guest['nodes']}
        return {}

    @staticmethod
    def of_guests(frame: dict[str, Any]) -> Nodes:
        """Bytes per second of all guests by host NUMA node."""
        return {row['nodes'][0]: row['guests']['bytes_per_second'] or 0
                for row in frame['nodes']}

    def busy_frame(self, server: Any) -> dict[str, Any]:
        """The first frame in which a guest is busy."""
        return dict(self._lab.until(
            lambda: self._if(server, lambda most: most >= BUSY), 120,
            f'ghsched-top does not show that {server.name} is busy'))

    def idle_frame(self, server: Any) -> dict[str, Any]:
        """The first frame in which it is not."""
        return dict(self._lab.until(
            lambda: self._if(server, lambda most: most < BUSY), 120,
            f'ghsched-top shows {server.name} as busy'))

    def _if(self, server: Any, wanted: Any) -> dict[str, Any] | None:
        frame = self.frame()
        most = max(self.of_guest(frame, server).values(), default=0)
        return frame if wanted(most) else None

    # -- ghsched-exporter -----------------------------------------------------

    @contextlib.contextmanager
    def exporter(self) -> Iterator[str]:
        """The address of an exporter that runs on the host."""
        running = subprocess.Popen(
            host.inside(self._settings, (
                *self._settings.program('ghsched-exporter'), '--port', '0')),
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            yield self._address(running)
        finally:
            running.terminate()
            running.communicate(timeout=10)

    @staticmethod
    def _address(running: 'subprocess.Popen[str]') -> str:
        said = running.stderr.readline() if running.stderr else ''
        match = re.search(r'(127[.]0[.]0[.]1) port ([0-9]+)', said)
        if match is None:
            raise CloudError(f'ghsched-exporter said {said!r}')
        return f'{match[1]}:{match[2]}'

    def scrape(self, address: str, metric: str, server: Any) -> Nodes:
        """The samples of a guest by host NUMA node."""
        text = subprocess.run(
            ['curl', '-sS', '--fail', f'http://{address}/metrics'],
            check=True, capture_output=True, text=True).stdout
        found: Nodes = {}
        for family in parser.text_string_to_metric_families(text):
            for sample in family.samples:
                if (sample.name == metric
                        and sample.labels['guest_uuid'] == server.id):
                    node = int(sample.labels['node'])
                    found[node] = found.get(node, 0) + sample.value
        return found

    # -- Nova -----------------------------------------------------------------

    def reported(self) -> tuple[float, Nodes]:
        """Return the age and the use by node from the compute node's stats."""
        found = self._lab.reported('ghsched_load', HOST)
        if found is None:
            return float('inf'), {}
        return time.time() - found['time'], {
            node['node']: node.get('bandwidth', 0.0)
            for node in found['nodes']}

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

"""ghsched-bench on this cloud; "tools/e2e.sh --bench".

The path is real: Nova boots the guests, podman runs the load in them, and the
client reaches them over a network. The figures are not: guests are emulated
(TCG), and bandwidth is that of the emulated resctrl.
"""

from collections.abc import Iterator
import contextlib
import json
import os
from pathlib import Path
import subprocess
import sys
from typing import Any

from aio import catalog
from aio import database
from aio.lab import Lab
from aio import network
from aio.settings import CloudError
from aio.settings import read
from e2e_room import main
from e2e_room import Room

IMAGE = 'ghsched-bench'
#: What tools/cloud.d/bench/image.sh calls it.
_CONTAINER = 'ghsched-load'
#: The TSC of an emulated CPU is measured wrongly at boot on a busy machine;
#: the clock of the guest would then be too fast by far.
_COMMAND_LINE = ('console=ttyS0 quiet nokaslr mitigations=off tsc=unstable '
                 'clocksource=acpi_pm no_timer_check net.ifnames=0')
_FLAVORS = ('bench-plain', 'bench-bound')
#: Guests of each flavor at most.
_UP_TO = 2
#: Containers in two guests at most.
_CONTAINERS = 3
#: Seconds for a guest to boot and to start a container, on a busy machine.
_BOOT = 1800
#: The guest's user data is on a config drive, as there is no metadata
#: service; hosts look at their load often enough for a short run, and forget
#: what was before it.
_OPTIONS = (('DEFAULT', 'force_config_drive', 'true'),
            ('ghsched', 'load_period', '5'),
            ('ghsched', 'load_smoothing', '0'))


class Bench(Room):
    """The tests; a method's name without ``test_`` is the test's name."""

    def prepare(self) -> None:
        for name, specs in zip(_FLAVORS, (
                {}, {'hw__numa_nodes': 1, 'ghsched__mem_bw_min': 20}),
                strict=True):
            self.lab.flavor(name, ram=512, **specs)
        self._upload()

    def test_redis_in_containers(self) -> None:
        """Density, bandwidth of nodes and three ways, by guests of Nova."""
        with self._network() as address:
            report = self._bench(
                'redis', '--workload', 'redis', '--container', 'podman',
                '--up-to', str(_UP_TO), '--flavors', ','.join(_FLAVORS),
                '--runs', '5', '--client-flavor', _FLAVORS[0], '--host',
                'local', '--host-address', address)
        series = report['series']
        for flavor in _FLAVORS:
            self._judged(report, flavor)
            self.checks.equal(
                f'numbers of guests of {flavor}',
                self._values(series, 'N', 'p99 latency', flavor),
                [str(count + 1) for count in range(_UP_TO)])
            self.checks.equal(
                f'nodes of {flavor} whose bandwidth is known',
                self._values(series, 'node', 'bandwidth of a node', flavor),
                ['0', '1'])
        self.checks.equal('ways from client to server',
                          self._values(series, 'path', 'p99 latency'),
                          ['guest-guest', 'guest-host', 'host-host'])

    def test_gh_density(self) -> None:
        """Containers in two guests, by what protects the observed one."""
        arms = ('none', 'bind', 'keys', 'classes')
        with self._network(), self._key() as (name, path):
            report = self._bench(
                'gh-density', 'gh-density', '--key', name, '--ssh-options',
                f'-i {path}', '--vcpus', '2', '--memory', '768',
                '--cpu-policy', 'shared', '--container-memory', '64m',
                '--up-to', str(_CONTAINERS), '--step', '1', '--runs', '3')
        findings = {one['name']: one['text'] for one in report['findings']}
        self.checks.equal('arms that were not measured', report['skipped'],
                          [])
        self._contains('simulated', findings.get('simulated', ''),
                       'emulated (TCG)')
        for arm in arms:
            self.checks.equal(f'containers of {arm}',
                              findings.get(f'{arm}: containers'),
                              'containers of podman with redis-server')
            self.checks.holds(f'density of {arm}',
                              findings.get(f'{arm}: density'), 'a sentence')
            self.checks.equal(f'deviations of {arm}',
                              findings.get(f'{arm}: not as planned'), None)
        self.checks.equal(
            'arms compared with none',
            sorted(name for name in findings if name.endswith(' over none')),
            ['bind over none', 'classes over none', 'keys over none'])
        self.checks.equal(
            'arms with a latency',
            self._values(report['series'], 'arm', 'p99 latency'),
            sorted(arms))

    # -- parts of tests -------------------------------------------------------

    @contextlib.contextmanager
    def _key(self) -> Iterator[tuple[str, Path]]:
        """A pair of keys for ssh: its name in Nova, and the private one."""
        name, compute = 'ghsched-bench', self.lab.cloud.compute
        path = self.settings.state / name
        if not path.exists():
            database.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '',
                          '-f', str(path)])
        compute.delete_keypair(name)
        compute.create_keypair(
            name=name, public_key=path.with_suffix('.pub').read_text())
        try:
            yield name, path
        finally:
            compute.delete_keypair(name)

    def _judged(self, report: dict[str, Any], flavor: str) -> None:
        texts = {one['name']: one['text'] for one in report['findings']}
        found = texts.get(f'density of {flavor}', '')
        self.checks.holds(f'density of {flavor}', found, 'a sentence')

    @staticmethod
    def _values(series: list[Any], condition: str, metric: str,
                flavor: str = '') -> list[str]:
        """The values of a condition among series of a metric."""
        found = set()
        for one in series:
            of = dict(one['conditions'])
            if one['metric'] == metric and flavor in ('', of.get('flavor')):
                found.add(of.get(condition))
        return sorted(value for value in found if value is not None)

    @contextlib.contextmanager
    def _network(self) -> Iterator[str]:
        """Guests can be reached; the address of this machine."""
        address = network.connect_guests(self.settings, self.lab.cloud)
        try:
            with self._with(('nova-compute',), *_OPTIONS):
                yield address
        finally:
            network.disconnect_guests(self.settings)

    def _bench(self, name: str, *options: str) -> Any:
        """Run ghsched-bench cloud; the one result of its report.

        :param name: of the report.

        :raises CloudError: when it fails.
        """
        path = self.settings.log / f'bench-{name}.json'
        done = subprocess.run(
            [f'{self.settings.venv}/bin/ghsched-bench', 'cloud', *options,
             '--image', IMAGE, '--network', network.GUESTS,
             '--image-of-container', _CONTAINER, '--boot-timeout', str(_BOOT),
             '--requests', '4000', '--connections', '4', '--threads', '1',
             '--go-on', 'yes', '-o', str(path)],
            env={**os.environ, **self.settings.admin}, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True)
        print(done.stdout + done.stderr, flush=True)
        if done.returncode:
            raise CloudError(f'ghsched-bench ended with {done.returncode}')
        print(f'        the report is {path}')
        result, = json.loads(path.read_text())['results']
        return result['measured']

    def _upload(self) -> None:
        """Put the guest image into Glance, if it is not there."""
        files = self.settings.cache / 'bench-guest'
        catalog.upload_guest(
            self.lab.cloud, IMAGE, catalog.GuestFiles(
                files / 'vmlinux', files / 'initrd.img', files / 'root.img'),
            _COMMAND_LINE, ' '.join(((files / 'revision').read_text().strip(),
                                     _COMMAND_LINE)))


if __name__ == '__main__':
    sys.exit(main((Bench,), Lab(read(), 'ghsched-bench'), sys.argv[1:]))

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


"""Boot guests on the cloud and look at them from every side.

The side of the API and of Placement is asked through openstacksdk; the
simulated host is read with virsh and cat, as an admin would.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
from dataclasses import dataclass
import json
import os
from pathlib import Path
import subprocess
import time
from typing import Any
from xml.etree import ElementTree

from aio import catalog
from aio import database
from aio import host
from aio.placement import PlacementReader
from aio.settings import CloudError
from aio.settings import ComputeHost
from aio.settings import Settings
from openstack import exceptions

#: Seconds until a guest must be up; a busy machine without hardware
#: virtualisation needs some.
BOOT = 180
#: Seconds to wait for a periodic report of nova-compute, for a busy machine.
REPORT = 300

#: Namespace of the policy in a domain's metadata.
POLICY_NAMESPACE = 'https://opendev.org/x/ghsched/domain/1.0'

_RESCTRL = '/sys/fs/resctrl'
#: Directories beside the control groups.
NOT_GROUPS = ('info', 'mon_groups', 'mon_data')


@dataclass(frozen=True)
class Group:
    """A resctrl control group, as its files say.

    :param schemata: value by line and domain.
    :param threads: name by thread id.
    """

    name: str
    schemata: Mapping[str, Mapping[int, str]]
    threads: Mapping[int, str]

    def lines(self) -> list[str]:
        """The schemata again as text."""
        return [f'{name}:' + ';'.join(
            f'{domain}={value}' for domain, value in values.items())
            for name, values in self.schemata.items()]


class Lab(PlacementReader):
    """The running cloud.

    :param prefix: every server made here is named so, and removed by
        :meth:`clean`.
    """

    #: What servers boot from.
    image_name = catalog.IMAGE

    def __init__(self, settings: Settings, prefix: str) -> None:
        super().__init__(settings)
        self.prefix = prefix

    # -- flavors and servers --------------------------------------------------

    def flavor(self, name: str, vcpus: int = 1, ram: int = 192,
               **extra_specs: object) -> Any:
        """A flavor with exactly these extra specs.

        :param extra_specs: colons are written as ``__`` and a guest node as
            ``__at__N``: ``ghsched__mem_bw_min__at__0``.
        """
        specs = {key.replace('__at__', '.').replace('__', ':'): str(value)
                 for key, value in extra_specs.items()}
        old = self.cloud.compute.find_flavor(name, get_extra_specs=True)
        if old is not None:
            if (dict(old.extra_specs), old.vcpus, old.ram) == (
                    specs, vcpus, ram):
                return old
            self.cloud.compute.delete_flavor(old)
        made = self.cloud.compute.create_flavor(
            name=name, vcpus=vcpus, ram=ram, disk=0)
        if specs:
            self.cloud.compute.create_flavor_extra_specs(made, specs)
        return made

    def create(self, name: str, flavor: str, **more: object) -> Any:
        """Ask for a server and return at once."""
        image = self.cloud.image.find_image(self.image_name)
        if image is None:
            raise CloudError(f'there is no image {self.image_name}')
        return self.cloud.compute.create_server(
            name=f'{self.prefix}-{name}',
            flavor_id=self.cloud.compute.find_flavor(flavor).id,
            **{'image_id': image.id, 'networks': 'none', **more})

    def create_many(self, name: str, flavor: str, count: int) -> None:
        """Ask for several servers in one request."""
        self.create(name, flavor, min_count=count, max_count=count)

    def wait(self, server: Any, *states: str, seconds: float = BOOT) -> Any:
        """Wait until a server is in one of the states, the final by default.
        """
        wanted = states or ('ACTIVE', 'ERROR')
        return self.until(
            lambda: self._in_state(server, wanted), seconds,
            lambda: f'{server.name} is not {" or ".join(wanted)}, but '
                    f'{self.server(server).status}')

    def _in_state(self, server: Any, wanted: tuple[str, ...]) -> Any:
        now = self.server(server)
        return now if now.status in wanted and now.task_state is None else None

    def until(self, look: Any, seconds: float, failure: Any) -> Any:
        """Poll until ``look`` returns something true.

        :param failure: text, or a function that makes it.
        :raises CloudError: when time is up.
        """
        end = time.monotonic() + seconds
        while True:
            seen = look()
            if seen:
                return seen
            if time.monotonic() > end:
                text = failure() if callable(failure) else failure
                raise CloudError(f'{text}, after {seconds:.0f} s')
            time.sleep(0.3)

    def boot(self, name: str, flavor: str) -> Any:
        """Create a server and wait until it is ACTIVE or in ERROR."""
        return self.wait(self.create(name, flavor))

    def server(self, server: Any) -> Any:
        return self.cloud.compute.get_server(server.id)

    def servers(self) -> list[Any]:
        return [one for one in self.cloud.compute.servers()
                if one.name.startswith(self.prefix + '-')]

    def fault(self, server: Any) -> str:
        return str((self.server(server).fault or {}).get('message', ''))

    def delete(self, *servers: Any, seconds: float = 60) -> None:
        """Delete servers and wait until they are gone."""
        for one in servers:
            self.cloud.compute.delete_server(one.id, ignore_missing=True)
        for one in servers:
            self.until(
                lambda one=one: self.cloud.compute.find_server(
                    one.id, ignore_missing=True) is None,
                seconds, f'{one.name} is not deleted')

    def clean(self) -> None:
        """Delete every server of ours."""
        self.delete(*self.servers())

    def console(self, server: Any, seconds: float = BOOT) -> list[str]:
        """The GUEST-* lines of a guest's console, once it is ready."""
        def ready() -> list[str]:
            lines = self.printed(server)
            return lines if 'GUEST-READY' in lines else []
        found: list[str] = self.until(
            ready, seconds, f'{server.name} does not print GUEST-READY')
        return found

    def printed(self, server: Any) -> list[str]:
        """The GUEST-* lines of a guest's console that have come to an end."""
        output = self.cloud.compute.get_server_console_output(server.id)
        ended, _, _ = output['output'].rpartition('\n')
        return [line.strip() for line in ended.splitlines()
                if line.startswith('GUEST-')]

    def tell(self, server: Any, word: str, seconds: float = BOOT) -> None:
        """Type a word that the guest knows, and wait for its answer.

        :param word: ``busy`` or ``idle``, see guest-init.
        """
        answer = f'GUEST-LOAD {word}'
        before = self.console(server).count(answer)
        self.type(server, word)
        self.until(lambda: self.console(server).count(answer) > before,
                   seconds, f'{server.name} is not {word}')

    def type(self, server: Any, word: str) -> None:
        """Type a word on a guest's console.

        QEMU looks once a second whether somebody is there, and reads nothing
        before it has seen so.
        """
        self.on_host('sh', '-c', 'exec 3<> "$(virsh ttyconsole "$0")" && '
                     'echo "$1" >&3 && sleep 2',
                     self.domain_name(server), word)

    def topology(self, server: Any) -> list[dict[str, Any]]:
        """Return the guest's NUMA nodes as Nova has recorded them.

        :raises openstack.exceptions.NotFoundException: it is deleted.
        """
        answer = self.cloud.compute.get(f'/servers/{server.id}/topology',
                                        microversion='2.100')
        exceptions.raise_from_response(answer)
        return list(answer.json()['nodes'])

    # -- hosts ---------------------------------------------------------------

    def on(self, host: ComputeHost) -> 'Lab':
        """The same, with another host to look at."""
        return type(self)(self.settings.on(host), self.prefix)

    def at(self, server: Any) -> 'Lab':
        """The same, with the host to look at that a server is on."""
        name = self.server(server).compute_host
        return next(self.on(host) for host in self.settings.hosts
                    if host.name == name)

    # -- the command line -----------------------------------------------------

    def openstack(self, *arguments: str, of: str = 'ghsched', status: int = 0
                  ) -> Any:
        """Run a command of ``openstack``; return its JSON output.

        :param of: its first word.
        :param status: expected exit status.
        :raises CloudError: when it ends with another status.
        """
        done = subprocess.run(
            [f'{self.settings.venv}/bin/openstack', of, *arguments,
             '-f', 'json'], env={**os.environ, **self.settings.admin},
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False)
        if done.returncode != status:
            raise CloudError(f'openstack {of} {" ".join(arguments)}: '
                             f'{done.stderr.strip()}')
        return json.loads(done.stdout)

    # -- the host -------------------------------------------------------------

    def on_host(self, *command: str) -> str:
        return host.run(self.settings, command)

    def groups(self) -> list[Group]:
        """Every control group on the host but the kernel's default one."""
        script = (
            f'cd {_RESCTRL} && for g in */; do g=${{g%/}}; '
            'echo "group $g"; [ -f "$g/schemata" ] || continue; '
            'sed "s/^ */line /" "$g/schemata"; '
            'sed "s/^/task /" "$g/tasks"; done')
        found = []
        for text in self.on_host('sh', '-c', script).split('group ')[1:]:
            name, *rest = text.splitlines()
            if name not in NOT_GROUPS:
                found.append(_group(name, rest))
        return found

    def group(self, server: Any) -> Group:
        """The control group that holds a guest's vCPU threads."""
        mine = set(self.vcpu_threads(server))
        holding = [one for one in self.groups() if mine & set(one.threads)]
        if len(holding) != 1 or not mine <= set(holding[0].threads):
            raise CloudError(
                f'the vCPU threads {sorted(mine)} of {server.name} are not '
                f'in one group, but in {[one.name for one in holding]}')
        return holding[0]

    def vcpu_threads(self, server: Any) -> dict[int, str]:
        """Thread ids and names of a guest's vCPUs, from /proc."""
        found = self.threads_of(self.domain_name(server))
        if not found:
            raise CloudError(f'no QEMU runs for {server.name}')
        return found

    def threads_of(self, domain: str) -> dict[int, str]:
        """Return the threads of a domain; none if no QEMU runs."""
        pid = self.on_host('sh', '-c', 'cat "$0" 2>&- || true',
                           f'/run/libvirt/qemu/{domain}.pid').strip()
        if not pid:
            return {}
        threads = {
            int(task.name): _thread_name(int(task.name))
            for task in Path(f'/proc/{pid}/task').iterdir()}
        return {thread: comm for thread, comm in threads.items()
                if comm.startswith('CPU ')}

    def domain_name(self, server: Any) -> str:
        return str(self.server(server).instance_name)

    def domains(self) -> list[str]:
        return self.on_host('virsh', '-q', 'list', '--all', '--name').split()

    def domain_xml(self, server: Any) -> ElementTree.Element:
        """The XML of the domain as Nova has defined it.

        In the XML of the running domain libvirt names the other NUMA nodes
        too, with the values it has copied from the default group.
        """
        return self.xml_of(self.domain_name(server))

    def xml_of(self, domain: str) -> ElementTree.Element:
        """The same by the domain's name."""
        return ElementTree.fromstring(  # noqa: S314 - libvirt's own
            self.on_host('virsh', 'dumpxml', '--inactive', domain))

    @staticmethod
    def policy_nodes(xml: ElementTree.Element) -> list[int]:
        """Host NUMA nodes of the policy in a domain's metadata."""
        return [int(node.get('host', -1)) for node in xml.iterfind(
            f'metadata/{{{POLICY_NAMESPACE}}}policy/*')]

    def reported(self, key: str, host: str) -> Any:
        """A record in the stats of a compute node; None when there is none.
        """
        text = database.query(
            self.settings,
            'select json_unquote(json_extract(stats, '  # noqa: S608
            f"'$.{key}')) from nova_cell1.compute_nodes "
            f"where deleted = 0 and host = '{host}'").strip()
        return json.loads(text) if text and text != 'NULL' else None

    # -- logs -----------------------------------------------------------------

    @contextlib.contextmanager
    def log_of(self, service: str) -> Iterator['LogReader']:
        """Yield a reader of the lines that a service logs from now on."""
        yield LogReader(self.settings.log / f'{service}.log')


class LogReader:
    """Reader of the lines that are appended to a log from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._from = path.stat().st_size if path.exists() else 0

    def lines(self, *words: str) -> list[str]:
        """The new lines that hold all of the words."""
        with self._path.open('rb') as log:
            log.seek(self._from)
            text = log.read().decode(errors='replace')
        return [line for line in text.splitlines()
                if all(word in line for word in words)]


def _group(name: str, lines: list[str]) -> Group:
    schemata = {}
    threads = {}
    for line in lines:
        kind, _, text = line.partition(' ')
        if kind == 'task':
            threads[int(text)] = _thread_name(int(text))
        elif kind == 'line' and ':' in text:
            resource, _, values = text.partition(':')
            schemata[resource] = {
                int(domain): value for domain, _, value in
                (one.partition('=') for one in values.split(';'))}
    return Group(name, schemata, threads)


def _thread_name(thread: int) -> str:
    try:
        return Path(f'/proc/{thread}/comm').read_text().strip()
    except OSError:
        return ''

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


"""Emulated machines, as the host engine sees them."""

import contextlib
from pathlib import Path

from ghsched_nova.resctrl import apply
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.testing import kernel
from ghsched_nova.testing import machines
from ghsched_nova.testing import topology

#: Where the model is, for what works on paths.
ROOT = Path('/model')

#: Four CPUs a node, and a node of memory alone.
NODES = '0=0-3;1=4-7;2='


class NoThreads:
    """A machine on which nothing runs."""

    def sample(self, _tid):
        return None

    def all(self):
        return set()

    def offspring(self, _tid):
        return set()

    def now(self):
        return 0


def model(dialect: str, nodes: str = NODES) -> kernel.ResctrlModel:
    return kernel.ResctrlModel(machines.build(dialect, nodes), NoThreads())


def write_tree(emulated: kernel.ResctrlModel, top: Path,
               speed: int = 0) -> None:
    """What the kernel shows, as files.

    :param speed: read_bandwidth of the nodes in MiB/s; 0 for none.
    """
    _write_directory(emulated, '', top / 'resctrl')
    topology.write_sysfs(emulated.machine, top / 'sysfs', speed)


def _write_directory(emulated: kernel.ResctrlModel, path: str,
                     target: Path) -> None:
    target.mkdir(parents=True)
    for name in emulated.listdir(path or '/'):
        if emulated.lookup(f'{path}/{name}').children is not None:
            _write_directory(emulated, f'{path}/{name}', target / name)
            continue
        with contextlib.suppress(kernel.ResctrlError):
            (target / name).write_text(emulated.read(f'{path}/{name}'))


def read_host(
        emulated: kernel.ResctrlModel, top: Path, speed: int = 0,
        told: resctrl_host.Told | None = None) -> resctrl_host.ResctrlHost:
    write_tree(emulated, top, speed)
    return resctrl_host.read_host(
        top / 'resctrl', top / 'sysfs', told or resctrl_host.Told())


class Files(apply.Files):
    """A model in place of the file system below ROOT."""

    def __init__(self, emulated: kernel.ResctrlModel):
        self.model = emulated
        self.writes: list[str] = []

    def _path(self, path: Path) -> str:
        return '/' + str(path.relative_to(ROOT)).removeprefix('.')

    def read(self, path: Path) -> str:
        with _os_error(path):
            return self.model.read(self._path(path))

    def write(self, path: Path, text: str) -> None:
        self.writes.append(text)
        with _os_error(path):
            self.model.write(self._path(path), text)

    def make_directory(self, path: Path) -> None:
        with _os_error(path):
            self.model.mkdir(self._path(path))

    def remove_directory(self, path: Path) -> None:
        with _os_error(path):
            self.model.rmdir(self._path(path))


@contextlib.contextmanager
def _os_error(path: Path):
    try:
        yield
    except kernel.ResctrlError as exc:
        raise OSError(exc.number, 'refused', str(path)) from exc

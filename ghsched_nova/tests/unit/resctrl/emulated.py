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

from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import topology
from ghsched_nova.resctrl import host as resctrl_host

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

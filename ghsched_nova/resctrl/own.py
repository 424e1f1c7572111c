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


"""Control groups that nova-compute makes itself, where libvirt cannot.

libvirt up to 12.8 reads every line of the root group whose name begins with
``MB`` as the ``MB`` line (``virResctrlAllocParseMemoryBandwidthLine``), and
takes ``L3PRI`` for a cache (``virResctrlAllocParseCacheLine``). On a kernel
with such lines (:func:`schemata.libvirt_reads`) it refuses to start a guest
that has a ``<node>`` in its ``<memorytune>``. openEuler's libvirt knows them;
with any other :mod:`ghsched_nova.resctrl.reconcile` makes the group and puts
the vCPU threads into it while the guest is paused.

A guest that is to be measured and not to be held needs no control group, but
a monitoring group in the kernel's default group. Where libvirt cannot make
that either, it is made here in the same way.
"""

from collections.abc import Sequence
from pathlib import Path
import re

from ghsched_nova.resctrl import apply
from ghsched_nova.resctrl import groups
from ghsched_placement.policy import digest
from ghsched_placement.policy import NodePolicy

#: Begins the name of every group that is ours; the guest's UUID follows.
PREFIX = 'ghsched-'

#: Where the monitoring groups of the kernel's default group are.
MONITORS = 'mon_groups/'

_SHARED_PREFIX = PREFIX + 'shared-'
_SHARED = re.compile(re.escape(_SHARED_PREFIX) + '[0-9a-f]{16}')

#: The group of all guests that ask for no bandwidth, if they are capped.
DEFAULT = PREFIX + 'default'

_PROC = Path('/proc')


def group_name(uuid: str) -> str:
    """The group of one guest."""
    return PREFIX + uuid


def monitor_name(uuid: str) -> str:
    """The monitoring group of a guest that has no control group."""
    return MONITORS + group_name(uuid)


def guest_of(name: str) -> str | None:
    """UUID of the guest whose group this is; None for a group of others."""
    name = name.removeprefix(MONITORS)
    if is_shared(name) or not name.startswith(PREFIX):
        return None
    return name[len(PREFIX):]


def shared_name(nodes: Sequence[NodePolicy],
                host_nodes: Sequence[int]) -> str:
    """The group of all guests that ask for the same on the same host nodes.

    Which guest node is on which host node does not matter: the group holds
    values for host nodes.

    :param nodes: what is asked for by guest NUMA node.
    :param host_nodes: the host NUMA node of each.
    """
    return _SHARED_PREFIX + digest(sorted(
        f'{host}={node}' for host, node in zip(host_nodes, nodes,
                                               strict=True)))


def is_shared(name: str) -> bool:
    """Whether a group is one that guests share."""
    return name == DEFAULT or bool(_SHARED.fullmatch(name))


def remove(root: Path, uuid: str, *, files: apply.Files | None = None,
           proc: Path = _PROC,
           lock_timeout: float = apply.LOCK_TIMEOUT) -> bool:
    """Remove a guest's own group, unless a guest still runs in it.

    :returns: whether there was one to remove.
    :raises EnforcementError: when the kernel refused.
    """
    files = files or apply.Files()
    path = root / group_name(uuid)
    with apply.locked(files, root, lock_timeout):
        try:
            tasks = files.read(path / 'tasks')
            if groups.vcpu_threads(groups.threads(tasks), proc):
                return False
            apply.write_devices(files, root, root,
                                sorted(groups.iommu_groups(tasks)))
            files.remove_directory(path)
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise apply.os_error('cannot be removed', path, exc) from exc
    return True

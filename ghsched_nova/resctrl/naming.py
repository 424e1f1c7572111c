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


"""Names of resctrl groups, and their guests and creators (pure).

nova-compute creates these groups:

* ``ghsched-<UUID>``: control group of one guest;
* ``ghsched-<UUID>.<class>``: control group of a vCPU class of one guest;
* ``ghsched-shared-<digest>``: control group of guests with equal policies;
* ``ghsched-default``: control group that caps guests without a policy;
* ``mon_groups/ghsched-<UUID>``: monitoring group, in the kernel's default
  group, of a guest that is only measured.

libvirt creates groups ``qemu-<id>-<name>-vcpus_<list>``, and
``qemu-<id>-<name>`` for a whole QEMU process (libvirt 12.8 and later, for a
``<memorytune>`` without ``vcpus``). All other groups belong to other software.

nova-compute creates groups if libvirt cannot. libvirt up to 12.8 parses every
line of the root group whose name begins with ``MB`` as the ``MB`` line
(``virResctrlAllocParseMemoryBandwidthLine``), and ``L3PRI`` as a cache
(``virResctrlAllocParseCacheLine``). On a kernel with such lines
(:func:`schemata.can_libvirt_parse`) it refuses to start a guest that has a
``<node>`` in its ``<memorytune>``. openEuler's libvirt can parse these lines.
With any other libvirt, :mod:`ghsched_nova.resctrl.reconcile` creates the group
and moves the vCPU threads into it while the guest is paused.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
import functools
import re
from typing import Annotated

from ghsched_nova.base import bounds
from ghsched_placement.base import cpulist
from ghsched_placement.flavor.policy import compute_digest
from ghsched_placement.flavor.policy import NodePolicy

#: Directories in the mount point of resctrl that are no control groups.
NOT_GROUPS = frozenset({'info', 'mon_groups', 'mon_data'})

#: Prefix of the names of nova-compute's groups.
PREFIX = 'ghsched-'

#: Directory of the monitoring groups of a control group.
MONITORS = 'mon_groups/'

_SHARED_PREFIX = PREFIX + 'shared-'
_SHARED = re.compile(re.escape(_SHARED_PREFIX) + '[0-9a-f]{16}')

#: Name of the control group that caps all guests without a policy.
DEFAULT = PREFIX + 'default'

#: Name of the temporary control group in which
#: :mod:`ghsched_nova.resctrl.measure` measures how the kernel rounds values.
PROBE = PREFIX + 'probe'

_UUID = re.compile(r'[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}')
#: UUID of a guest.
Uuid = Annotated[str, bounds.Text(_UUID.pattern, 36)]
_LIBVIRT = re.compile(r'qemu-([0-9]{1,9})-([A-Za-z0-9.-]*?)'
                      r'(?:-vcpus_[0-9,-]+)?')
_LETTERS = re.compile(r'[^A-Za-z0-9]')
#: Maximum length of the machine names that libvirt derives from domain names.
_MACHINE_LENGTH = 64


def render_machine_name(domain_id: int, name: str) -> str:
    """Return the name that libvirt derives from a domain's id and name.

    The name of the domain's control group begins with it. It has letters,
    digits and single dots or dashes, and at most 64 characters, as in
    virDomainGenerateMachineName() of libvirt's src/conf/domain_conf.c.
    """
    prefix = f'qemu-{domain_id}-'
    text, after_mark = '', True
    for letter in name:
        if len(prefix) + len(text) >= _MACHINE_LENGTH:
            break
        if letter in '.-':
            text += '' if after_mark else letter
            after_mark = True
            continue
        if letter.isascii() and letter.isalnum():
            after_mark = False
            text += letter
    return prefix + text.rstrip('.-')


@functools.lru_cache(maxsize=4096)
def parse_machine_name(name: str) -> tuple[int, str] | None:
    """Return the domain id and domain name in a libvirt control group's name.

    libvirt may have shortened the domain name. Returns None if libvirt did not
    create the group.
    """
    match = _LIBVIRT.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def is_derived_from_domain_name(part: str, name: str) -> bool:
    """Whether libvirt may have derived a group's name from a domain's name.

    Only letters and digits are compared, and the group name may be shortened.

    :param part: group name without the domain id.
    :param name: domain name.
    """
    return _LETTERS.sub('', name).startswith(_LETTERS.sub('', part))


def find_libvirt_groups(
    names: Iterable[str], domain_id: int, vcpus: Collection[int]
) -> list[str]:
    """Return the control groups that libvirt may have created for a domain.

    Groups are compared by domain id and vCPUs, because libvirt may shorten the
    domain name. Several groups match if libvirt used the id before.

    :param names: directories in the resctrl mount point.
    :param domain_id: libvirt's id of the running domain.
    :param vcpus: vCPUs in the guest's <memorytune>.
    """
    cpus = cpulist.render_cpu_list(vcpus)
    pattern = re.compile(f'qemu-{domain_id}-[A-Za-z0-9.-]*-vcpus_'
                         + re.escape(cpus))
    return sorted(name for name in names if pattern.fullmatch(name))


def render_own_group_name(uuid: str, vcpu_class: str = '') -> str:
    """Return the name of the control group that a single guest has.

    :param vcpu_class: class of vCPUs in the group; empty for all vCPUs.
    """
    return PREFIX + uuid + (f'.{vcpu_class}' if vcpu_class else '')


def render_monitor_path(uuid: str) -> str:
    """Return the path of the monitoring group of a guest without limits.

    The guest is only measured. It has no control group of its own, so its
    monitoring group is in the default control group. The path is relative to
    the resctrl mount point.
    """
    return MONITORS + render_own_group_name(uuid)


def parse_guest_uuid(name: str) -> str | None:
    """Return the guest UUID in a resctrl group's name.

    Returns None if the name has no UUID.
    """
    name = name.removeprefix(MONITORS)
    if is_shared_group(name) or not name.startswith(PREFIX):
        return None
    return name[len(PREFIX):].partition('.')[0]


def parse_vcpu_class(name: str) -> str:
    """Return the vCPU class in the name of a guest's own control group.

    The result is empty if the group is for all vCPUs of its guest.
    """
    return name.partition('.')[2] if parse_own_group_uuid(name) else ''


def render_shared_name(nodes: Sequence[NodePolicy],
                       host_nodes: Sequence[int]) -> str:
    """Return the name of the group that guests with equal policies share.

    The name is derived from the policy and the host NUMA nodes of the guests.

    :param nodes: requested bandwidth by guest NUMA node.
    :param host_nodes: host NUMA node of each guest NUMA node.
    """
    return _SHARED_PREFIX + compute_digest(sorted(
        f'{host}={node}' for host, node in zip(host_nodes, nodes,
                                               strict=True)))


def is_shared_group(name: str) -> bool:
    """Whether a control group of this name is for several guests."""
    return name == DEFAULT or bool(_SHARED.fullmatch(name))


def parse_own_group_uuid(name: str) -> str | None:
    """Return the guest UUID in the name of a single guest's resctrl group.

    Returns None for any other name, such as that of a shared group.
    """
    uuid = parse_guest_uuid(name)
    return uuid if uuid and _UUID.fullmatch(uuid) else None


def is_nova_group(name: str) -> bool:
    """Whether nova-compute creates resctrl groups of this name."""
    return (
        parse_own_group_uuid(name) is not None
        or is_shared_group(name)
        or name == PROBE
    )


def is_guest_group(name: str) -> bool:
    """Whether nova-compute or libvirt creates resctrl groups of this name."""
    return is_nova_group(name) or parse_machine_name(name) is not None


#: Path of a group of guests below the mount point.
GuestGroup = Annotated[
    str, bounds.Text(r'(mon_groups/)?(?!\.)[A-Za-z0-9_.,-]+', 300),
    bounds.Is(is_guest_group, 'the name of a group of guests')]
#: Name of a control group for several guests; empty for none.
SharedGroup = Annotated[
    str, bounds.Text('[a-z0-9-]*', 64),
    bounds.Is(lambda name: not name or is_shared_group(name),
              'the name of a shared group')]


def list_foreign_groups(names: Iterable[str]) -> frozenset[str]:
    """Return the control groups that neither nova-compute nor libvirt created.
    """
    return frozenset(name for name in names
                     if name not in NOT_GROUPS and not is_guest_group(name))

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
from dataclasses import dataclass
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
_OWN = re.compile(
    rf'{PREFIX}(?P<uuid>{_UUID.pattern})(?:\.(?P<vcpu_class>.*))?', re.DOTALL)
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


@dataclass(frozen=True)
class GroupName:
    """Name of a resctrl group, and the guests and creator that it tells.

    :param control: name of the control group; empty for the kernel's default
        group.
    :param monitor: name of a monitoring group in the control group; empty for
        the control group itself.
    """

    control: str = ''
    monitor: str = ''

    @property
    def path(self) -> str:
        """Path of the group below the mount point of resctrl."""
        if not self.monitor:
            return self.control
        above = f'{self.control}/' if self.control else ''
        return f'{above}{MONITORS}{self.monitor}'

    @property
    def top(self) -> str:
        """Path of the group without which this group does not exist.

        This is the control group. A monitoring group in the kernel's default
        group, which always exists, depends on itself only.
        """
        return self.control or self.path

    @property
    def is_default_monitor(self) -> bool:
        """Whether this is a monitoring group in the kernel's default group."""
        return bool(self.monitor) and not self.control

    @property
    def is_shared(self) -> bool:
        """Whether this is a control group for several guests."""
        return not self.monitor and (
            self.control == DEFAULT or bool(_SHARED.fullmatch(self.control)))

    @functools.cached_property
    def uuid(self) -> str | None:
        """UUID of the guest for which nova-compute made a group of its own.

        None for any other group, such as a shared group.
        """
        match = _OWN.fullmatch(self.monitor or self.control)
        return match['uuid'] if match else None

    @property
    def vcpu_class(self) -> str:
        """Class of vCPUs in a guest's own group; empty for all vCPUs."""
        match = _OWN.fullmatch(self.monitor or self.control)
        return match['vcpu_class'] or '' if match else ''

    @functools.cached_property
    def machine(self) -> tuple[int, str] | None:
        """Id and name of the libvirt domain for which libvirt made the group.

        They are parsed from the name of the group, as ``qemu-1-instance``.
        libvirt may have shortened the name. None for groups of others.
        """
        match = _LIBVIRT.fullmatch(self.monitor or self.control)
        return (int(match[1]), match[2]) if match else None

    @property
    def is_ghsched(self) -> bool:
        """Whether nova-compute creates resctrl groups of this name."""
        return (self.uuid is not None or self.is_shared
                or self.path == PROBE)

    @property
    def is_managed(self) -> bool:
        """Whether nova-compute may change and remove groups of this name.

        These are groups of nova-compute and control groups of libvirt.
        """
        return self.is_ghsched or (
            not self.monitor and self.machine is not None)

    def is_of_domain(self, number: int, name: str) -> bool:
        """Whether libvirt gives this name to groups of a domain.

        :param number: libvirt's id of the running domain.
        :param name: name of the domain.
        """
        return (self.machine is not None and self.machine[0] == number
                and is_derived_from_domain_name(self.machine[1], name))

    def is_of_vcpus(self, vcpus: Collection[int]) -> bool:
        """Whether libvirt gives this name to a group of these vCPUs only."""
        return (self.monitor or self.control).endswith(
            f'-vcpus_{cpulist.render_cpu_list(vcpus)}')


@functools.lru_cache(maxsize=4096)
def parse_group_name(path: str) -> GroupName:
    """Parse the path of a resctrl group below the mount point."""
    control, _, monitor = path.partition(MONITORS)
    return GroupName(control.rstrip('/'), monitor)


def is_derived_from_domain_name(part: str, name: str) -> bool:
    """Whether libvirt may have derived a group's name from a domain's name.

    Only letters and digits are compared, and the group name may be shortened.

    :param part: group name without the domain id.
    :param name: domain name.
    """
    return _LETTERS.sub('', name).startswith(_LETTERS.sub('', part))


def render_own_group_name(uuid: str, vcpu_class: str = '') -> str:
    """Return the name of the control group that a single guest has.

    :param vcpu_class: class of vCPUs in the group; empty for all vCPUs.
    """
    return PREFIX + uuid + (f'.{vcpu_class}' if vcpu_class else '')


def render_monitor_path(uuid: str, control: str = '') -> str:
    """Return the path of a guest's monitoring group below the mount point.

    :param control: name of the control group that the guest shares; empty for
        a guest without limits, which is only measured.
    """
    return GroupName(control, render_own_group_name(uuid)).path


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


#: Path of a group of guests below the mount point.
GuestGroup = Annotated[
    str, bounds.Text(r'(mon_groups/)?(?!\.)[A-Za-z0-9_.,-]+', 300),
    bounds.Is(lambda path: parse_group_name(path).is_managed,
              'the name of a group of guests')]
#: Name of a control group for several guests; empty for none.
SharedGroup = Annotated[
    str, bounds.Text('[a-z0-9-]*', 64),
    bounds.Is(lambda name: not name or parse_group_name(name).is_shared,
              'the name of a shared group')]


def list_foreign_groups(names: Iterable[str]) -> frozenset[str]:
    """Return the control groups that neither nova-compute nor libvirt created.
    """
    return frozenset(name for name in names
                     if name not in NOT_GROUPS
                     and not parse_group_name(name).is_managed)

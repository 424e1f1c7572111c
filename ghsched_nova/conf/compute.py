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


"""Options of compute hosts: paths, devices and threads."""

import os

from oslo_config import cfg
from oslo_config import types

#: Longest path of an option, and longest name in it, in bytes. Linux opens
#: 4095 and 255 (PATH_MAX and NAME_MAX in include/uapi/linux/limits.h); what is
#: left is for the names of files below the path.
_LONGEST_PATH, _LONGEST_NAME = 3071, 255


class _Path(types.String):
    """Path that Linux can open; it need not exist."""

    def __call__(self, value: str) -> str:
        """Check that Linux can open a path, and return the path.

        :raises ValueError: if the path or a name in it is too long, or if it
            has a NUL character.
        """
        path: str = super().__call__(value)
        if '\0' in path:
            raise ValueError('path has a NUL character')
        if (len(os.fsencode(path)) > _LONGEST_PATH
                or any(len(os.fsencode(name)) > _LONGEST_NAME
                       for name in path.split('/'))):
            raise ValueError(f'path is longer than {_LONGEST_PATH} bytes, or '
                             f'a name in it than {_LONGEST_NAME}')
        return path


OPTS: list[cfg.Opt] = [
    cfg.Opt(
        'resctrl_path', type=_Path(), default='/sys/fs/resctrl',
        help='Mount point of the resctrl file system. libvirt always uses '
             '/sys/fs/resctrl, so another path is of use for tests only. '
             'Used by nova-compute.'),
    cfg.ListOpt(
        'resctrl_magic', item_type=types.Integer(), default=[0x7655821],
        help='Types of file system (f_type of statfs(2)) that the privileged '
             'helper accepts as resctrl; 124082209 is the kernel\'s. A test '
             'host with ghsched-resctrl-emulator, which is FUSE, adds '
             '1702057286. Used by the helper of nova-compute.'),
    cfg.Opt(
        'sysfs_path', type=_Path(), default='/sys',
        help='Mount point of sysfs. nova-compute reads there which cache '
             'belongs to which NUMA node.'),
    cfg.Opt(
        'libvirt_run_path', type=_Path(), default='/run/libvirt/qemu',
        help='Directory of libvirt with the process IDs of its guests, from '
             'which nova-compute finds the threads of a guest.'),
    cfg.StrOpt(
        'device_numa_renderer', default='auto',
        choices=[('auto', 'ask libvirt by defining a domain and reading it '
                          'back'),
                 ('element', 'libvirt keeps <numa node="N"/> in a device'),
                 ('expander', 'put devices behind a pcie-expander-bus')],
        help='How the XML of a guest shows the NUMA node of a passthrough '
             'device (ghsched:device_numa). Used by nova-compute.'),
    cfg.BoolOpt(
        'device_numa_nearest', default=False,
        help='Under ghsched:device_numa=preferred, whether a device of a host '
             'NUMA node that backs no guest NUMA node is shown on the guest '
             'node that is nearest to it. Used by nova-compute.'),
    cfg.IntOpt(
        'device_numa_spare_ports', default=1, min=0, max=8,
        help='Number of ports per guest NUMA node that are reserved for '
             'passthrough ports that are attached to a running guest with '
             'ghsched:device_numa. Used by nova-compute, if libvirt does not '
             'use them for other devices.'),
    cfg.StrOpt(
        'control_threads', default='vcpus',
        choices=[('vcpus', 'the vCPU threads alone'),
                 ('all', 'its emulator, I/O and vhost threads as well')],
        help='Which threads of a guest are in its control group. With all, '
             'memory traffic of a guest\'s disks and network adapters '
             'counts as its own bandwidth. Used by nova-compute and '
             'ghsched-host.'),
    cfg.BoolOpt(
        'control_devices', default=False,
        help='Whether memory traffic of a guest\'s passthrough devices counts '
             'as its bandwidth and is limited with it. Their IOMMU groups '
             'are then in its control group. Only openEuler\'s 6.6 kernel '
             'supports it; with others this option has no effect. Used by '
             'nova-compute and ghsched-host.'),
]

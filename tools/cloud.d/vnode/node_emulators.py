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


"""Prepare the virtual compute node for resctrl and libvirt; runs there.

libvirt finds emulators that run KVM guests on TCG, a device that looks like
KVM's, a directory to mount the emulated resctrl on, control groups, and one
level 3 cache per node.

usage: node_emulators.py DIALECT NODES

as for ghsched_nova.lab.emulator.resctrl
"""

import os
from pathlib import Path
import subprocess
import sys

from ghsched_nova.lab.emulator import cpusets
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import namespace

_STATE = '/var/lib/vnode'

_LIBVIRTD = """\
auth_unix_rw = "none"
auth_unix_ro = "none"
log_outputs = "2:file:/var/log/vnode/libvirtd-messages.log"
"""

_QEMU = """\
user = "root"
group = "root"
security_driver = "none"
stdio_handler = "file"
cgroup_controllers = [ "cpuset" ]
namespaces = [ ]
"""


def _share_caches(machine: machines.Machine) -> None:
    """Give each level 3 cache the id that it has in the emulated resctrl.

    QEMU describes a cache for each CPU; its files are covered one by one.
    """
    for node in machine.nodes:
        for name, text in (
                ('id', str(node.l3)),
                ('shared_cpu_list', cpusets.format_list(node.cpus)),
                ('shared_cpu_map', cpusets.format_mask(
                    node.cpus, len(machine.cpus)))):
            source = Path(_STATE, f'{name}-{node.id}')
            source.write_text(text + '\n')
            for cpu in node.cpus:
                target = (f'/sys/devices/system/cpu/cpu{cpu}/cache/index3/'
                          f'{name}')
                subprocess.run(['mount', '--bind', str(source), target],
                               check=True)


def main(dialect: str, nodes: str) -> None:
    os.makedirs(f'{_STATE}/bin', exist_ok=True)
    os.makedirs('/var/log/vnode', exist_ok=True)
    os.makedirs('/etc/libvirt', exist_ok=True)
    namespace.mount_sysfs(_STATE)
    # libvirt gives each guest a cpuset of its own, whose memory can be moved.
    subprocess.run(['mount', '-t', 'cgroup2', 'cgroup2', '/sys/fs/cgroup'],
                   check=True)
    namespace.mount_kvm(_STATE)
    namespace.write_emulators(_STATE)
    _share_caches(machines.build(dialect, nodes))
    Path('/etc/libvirt/libvirtd.conf').write_text(_LIBVIRTD)
    Path('/etc/libvirt/qemu.conf').write_text(_QEMU)


if __name__ == '__main__':
    main(*sys.argv[1:])

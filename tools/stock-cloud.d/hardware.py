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

"""Give the machine of tools/stock-cloud.sh simulated NUMA nodes and resctrl.

Run by its systemd before libvirtd, as root. Mounts two NUMA nodes, KVM and
the files of the kernel, then becomes the emulator of resctrl.
"""

import os
from pathlib import Path
import stat
import subprocess  # noqa: S404
import sys

from ghsched_nova.lab.emulator import cpusets
from ghsched_nova.lab.emulator import namespace
from ghsched_nova.lab.emulator import testhost

STATE = '/var/lib/simulated-host'
SETTINGS = testhost.Settings(nodes=2, closids=16)


def main() -> None:
    """Make the mounts and execute the emulator in place of this program."""
    machine = SETTINGS.machine()
    os.makedirs(f'{STATE}/bin', exist_ok=True)
    namespace.write_topology(machine, STATE)
    namespace.write_proc(machine, STATE)
    namespace.write_emulators(STATE)
    if not Path('/dev/kvm').exists():
        os.mknod('/dev/kvm', stat.S_IFCHR | 0o666,
                 os.stat('/dev/null').st_rdev)
        os.chmod('/dev/kvm', 0o666)  # noqa: S103
    # Otherwise what is mounted on /sys is unmounted with its copy.
    subprocess.run(['mount', '--make-rprivate', '/sys'], check=True)
    namespace.mount_sysfs(STATE)
    namespace.mount_topology(STATE, machine.cpus)
    namespace.mount_proc(STATE)
    nodes = ';'.join(f'{node.id}={cpusets.format_list(node.cpus)}'
                     for node in machine.nodes)
    os.execv(sys.executable, [  # noqa: S606
        sys.executable, '-m', 'ghsched_nova.lab.emulator.resctrl',
        '--dialect', SETTINGS.dialect, '--nodes', nodes,
        '--closids', str(SETTINGS.closids), '--own-namespace',
        testhost.RESCTRL])


if __name__ == '__main__':
    main()

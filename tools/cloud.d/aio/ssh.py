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


"""ssh between the simulated hosts.

Nova copies the disk of a guest that moves with it. A host's ``/etc/ssh`` is
its own, so that neither the machine's keys nor its daemon are touched.
"""

from pathlib import Path
import subprocess

from aio.settings import Settings

_SERVER = """\
ListenAddress {address}:{port}
HostKey {key}
AuthorizedKeysFile {key}.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
StrictModes no
PidFile none
Subsystem sftp internal-sftp
"""
_CLIENT = """\
Host 127.0.1.*
    Port {port}
    IdentityFile {key}
    IdentitiesOnly yes
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
"""


def configure(settings: Settings) -> Path:
    """Write what is ``/etc/ssh`` on the host; one key serves all hosts.

    :returns: the directory.
    """
    key = settings.state / 'ssh' / 'id'
    if not key.exists():
        key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        subprocess.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f',
                        str(key)], stdin=subprocess.DEVNULL, check=True)
    # Where sshd keeps its unprivileged half, see sshd(8).
    Path('/run/sshd').mkdir(mode=0o755, exist_ok=True)
    directory = settings.etc / f'sshd{settings.host.suffix}'
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in (('sshd_config', _SERVER), ('ssh_config', _CLIENT)):
        (directory / name).write_text(text.format(
            address=settings.host.address, port=settings.port('ssh'),
            key=key))
    return directory

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

"""Signatures of reports, by ssh-keygen.

They show that a report is as it was when somebody with the key had measured
it, and that several reports are of the same origin.
"""

from pathlib import Path
import re

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.machine import Machine

_NAMESPACE = 'ghsched-bench'
_GOOD = re.compile(r'Good .* signature with (\S+ key \S+)')


def sign_file(machine: Machine, path: Path, key: Path) -> Path:
    """Sign a file, and return the path of the signature.

    :param key: private key of OpenSSH; made if there is none.
    :raises BenchError: if ssh-keygen fails.
    """
    if not key.exists():
        machine.check(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '',
                       '-C', 'ghsched-bench', '-f', str(key)])
    signature = path.with_name(f'{path.name}.sig')
    # ssh-keygen asks before it replaces a file.
    signature.unlink(missing_ok=True)
    machine.check(['ssh-keygen', '-q', '-Y', 'sign', '-n', _NAMESPACE,
                   '-f', str(key), str(path)])
    return signature


def verify_file(machine: Machine, path: Path) -> str:
    """Return the key that has signed a file, by type and fingerprint.

    :raises BenchError: if the signature is missing or is not of this content.
    """
    signature = path.with_name(f'{path.name}.sig')
    if not signature.exists():
        raise errors.BenchError(f'{signature}: there is no signature')
    output = machine.run([
        'sh', '-c', 'ssh-keygen -Y check-novalidate -n "$0" -s "$1" < "$2"',
        _NAMESPACE, str(signature), str(path)])
    found = _GOOD.search(output.stdout + output.stderr)
    if output.status or not found:
        raise errors.BenchError(f'{path}: the signature is of another '
                                'content')
    return found[1]

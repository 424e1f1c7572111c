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


"""Boot the virtual node without a cloud, and look at interrupts of a VF."""

import dataclasses
from pathlib import Path
import subprocess
import tempfile

from aio.settings import CloudError
from aio.settings import Settings
from vnode import machine
from vnode import node_config

#: What the last line of the node begins with when all is well.
_DONE = 'VNODE interrupts are as they should be'

#: Seconds that a busy machine may need; two minutes are usual.
_PATIENCE = 900

#: node-init reads it as soon as it has unpacked the parcel; of what that
#: script does then nothing is needed.
_VARIABLES = """\
mkdir -p {venv}
mount -t ext4 -o ro,noatime /dev/vdb {venv}
{venv}/bin/python -W ignore /usr/local/sbin/vnode-interrupts
echo o > /proc/sysrq-trigger
sleep 600
"""


def show(settings: Settings, files: machine.Files, top: Path) -> int:
    """Run it, and print what the node says.

    :param top: of the source tree.
    :returns: 0 when all is as it should be.
    :raises CloudError: when the node does not end by itself.
    """
    with tempfile.TemporaryDirectory() as directory:
        parcel = Path(directory, 'parcel.tar')
        node_config.write_parcel(_parcel(settings, top), parcel)
        try:
            subprocess.run(
                machine.command(settings, dataclasses.replace(
                    files, parcel=parcel)), check=True, timeout=_PATIENCE,
                stdin=subprocess.DEVNULL, capture_output=True)
        except subprocess.SubprocessError as error:
            raise CloudError(f'{machine.console(settings)}: {error}') from (
                error)
    text = machine.console(settings).read_text(errors='replace')
    said = text[text.find('VNODE init'):].replace('\r', '')
    print(said)
    return 0 if f'\n{_DONE}' in said else 1


def _parcel(settings: Settings, top: Path) -> dict[str, tuple[str, int]]:
    return {
        'etc/vnode': (_VARIABLES.format(venv=settings.venv), 0o644),
        'usr/local/sbin/vnode-interrupts': (
            Path(__file__).with_name('node_interrupts.py').read_text(),
            0o755),
        'usr/local/bin/ghsched-guest': (
            (top / 'etc/ghsched/guest/ghsched-guest').read_text(),
            0o755),
    }

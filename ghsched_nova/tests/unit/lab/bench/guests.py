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

"""A cloud whose guests are processes of this machine.

A guest runs what a guest of a cloud would run, on an address of the loopback
interface; its console is a file.
"""

import subprocess

from ghsched_nova.lab.bench import cloud
from ghsched_nova.lab.bench import density


class Guests:
    """Takes the place of ``ghsched_nova.lab.bench.cloud.Cloud``.

    :param directory: empty; gets the consoles, and a file in ``guests`` for
        each guest that runs.
    :param room: guests at most.
    :param load_of: what hosts tell.
    """

    def __init__(self, directory, room, load_of=None):
        self.directory = directory
        (directory / 'guests').mkdir()
        self.room = room
        self.load_of = load_of
        self.running = {}
        self.booted = []

    def boot(self, flavor, user_data=''):
        if len(self.running) == self.room:
            raise density.FullError('No valid host was found.')
        self.booted.append(flavor)
        number = len(self.booted)
        guest = cloud.Guest(str(number), f'127.0.0.{number + 1}', 'one')
        console = self.directory / guest.uuid
        script = user_data.replace('>/dev/console', f'>{console}').replace(
            'exec redis-server', f'exec redis-server --bind {guest.address}')
        (self.directory / 'guests' / guest.uuid).touch()
        self.running[guest.uuid] = subprocess.Popen(['sh', '-c', script])
        return guest

    def console(self, guest):
        path = self.directory / guest.uuid
        return path.read_text() if path.exists() else ''

    def delete(self, guest):
        process = self.running.pop(guest.uuid)
        process.terminate()
        process.wait()
        (self.directory / 'guests' / guest.uuid).unlink()

    def load(self, guest):
        return self.load_of

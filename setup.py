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

"""Build script: pbr, plus the ``.pth`` file that makes the driver loadable.

Nova imports its driver as ``nova.virt.<compute_driver>``. ``ghsched.pth``,
in the site directory that pip installs to, registers the finder of
``ghsched_nova/_import_hook.py`` for that name. setuptools has no option that
puts a file there, so two commands are extended: one for ordinary wheels, one
for editable ones.
"""

import base64
import hashlib
import os
import pathlib
import zipfile

import setuptools
from setuptools.command import build_py
from setuptools.command import editable_wheel

PTH = 'ghsched.pth'


class BuildPy(build_py.build_py):
    """Put the .pth file in the root of an ordinary wheel."""

    def _target(self):
        return os.path.join(self.build_lib, PTH)

    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_file(PTH, self._target())

    def get_outputs(self, include_bytecode=True):
        outputs = super().get_outputs(include_bytecode)
        return outputs if self.editable_mode else [*outputs, self._target()]


class EditableWheel(editable_wheel.editable_wheel):
    """Put the .pth file in the root of an editable wheel.

    Done on the finished wheel, whose format is a standard (PEP 427); the
    parts that setuptools builds it from are private and change.
    """

    def run(self):
        super().run()
        for wheel in pathlib.Path(self.dist_dir).glob('ghsched-*.whl'):
            add_to_wheel(wheel, PTH)


def add_to_wheel(wheel, name):
    """Add a file to a wheel's root and to the wheel's RECORD."""
    data = pathlib.Path(name).read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    entry = f'{name},sha256={digest.rstrip(b"=").decode()},{len(data)}\n'
    new = wheel.with_suffix('.tmp')
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(
            new, 'w', zipfile.ZIP_DEFLATED) as out:
        for item in old.infolist():
            content = old.read(item)
            if item.filename.endswith('.dist-info/RECORD'):
                content += entry.encode()
            out.writestr(item, content)
        out.writestr(name, data)
    new.replace(wheel)


setuptools.setup(
    setup_requires=['pbr>=6.1.1'],
    pbr=True,
    cmdclass={'build_py': BuildPy, 'editable_wheel': EditableWheel})

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

"""The project's build backend: pbr's, plus one file in every wheel.

Nova imports its driver as ``nova.virt.<compute_driver>``. ``ghsched.pth``,
in the root of the site directory that pip installs to, registers the finder
of ``ghsched_import_hook.py`` for that name. Neither pbr nor setuptools
has an option that puts a file there for ordinary and for editable installs,
and pbr replaces the command classes that a setup.py gives. So the file is
added to the finished wheel, whose format is a standard (PEP 427).
"""

import base64
import hashlib
import pathlib
import zipfile

from pbr import build

build_sdist = build.build_sdist
get_requires_for_build_editable = build.get_requires_for_build_editable
get_requires_for_build_sdist = build.get_requires_for_build_sdist
get_requires_for_build_wheel = build.get_requires_for_build_wheel
prepare_metadata_for_build_editable = build.prepare_metadata_for_build_editable
prepare_metadata_for_build_wheel = build.prepare_metadata_for_build_wheel

PTH = 'ghsched.pth'


def build_wheel(wheel_directory, config_settings=None,
                metadata_directory=None):
    """PEP 517: build a wheel and return its file name."""
    name = build.build_wheel(wheel_directory, config_settings,
                             metadata_directory)
    add_to_wheel(pathlib.Path(wheel_directory, name), PTH)
    return name


def build_editable(wheel_directory, config_settings=None,
                   metadata_directory=None):
    """PEP 660: build a wheel that points to this tree."""
    name = build.build_editable(wheel_directory, config_settings,
                                metadata_directory)
    add_to_wheel(pathlib.Path(wheel_directory, name), PTH)
    return name


def add_to_wheel(wheel, name):
    """Add a file of this tree to the wheel's root and to its RECORD."""
    data = pathlib.Path(name).read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    line = f'{name},sha256={digest.rstrip(b"=").decode()},{len(data)}\n'
    new = wheel.with_suffix('.tmp')
    with (zipfile.ZipFile(wheel) as old,
          zipfile.ZipFile(new, 'w', zipfile.ZIP_DEFLATED) as out):
        for item in old.infolist():
            content = old.read(item)
            if item.filename.endswith('.dist-info/RECORD'):
                out.writestr(name, data)
                content += line.encode()
            out.writestr(item, content)
    new.replace(wheel)

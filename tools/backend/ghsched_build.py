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

"""The project's build backend: pbr's, with three differences.

**One more file.** Nova imports its driver as ``nova.virt.<compute_driver>``.
``ghsched.pth``, in the root of the site directory that pip installs to,
registers the finder of ``ghsched_import_hook.py`` for that name. Neither pbr
nor setuptools has an option that puts a file there for ordinary and for
editable installs, and pbr replaces the command classes that a setup.py gives.
So the file is added to the finished wheel, whose format is a standard
(PEP 427).

**No requirement of Nova.** requirements.txt begins with it, for those who work
on this tree. Who installs a package has a Nova, which pip must not replace, or
needs none: an admin's laptop, tempest. They can ask for the extra ``nova``.
oslo.messaging, which brings eventlet, is used beside Nova only and comes with
it.

**No tests** in the wheel but those of the tempest plugin.
"""

import base64
import functools
import hashlib
import os
import pathlib
import re
import tempfile
import zipfile

from pbr import build

PTH = 'ghsched.pth'

_NOVA = re.compile(r'(nova|oslo\.messaging)\s*[<>=!~;#]', re.IGNORECASE)
_TESTS = re.compile(r'ghsched_\w+/tests/')


def without_nova(requirements):
    """The lines of a requirements file that packages are to have."""
    return ''.join(line for line in requirements.splitlines(keepends=True)
                   if not _NOVA.match(line))


def _asking_for_no_nova(hook):
    """Have pbr read its requirements from a copy of requirements.txt."""
    @functools.wraps(hook)
    def called(*args, **kwargs):
        text = pathlib.Path('requirements.txt').read_text()
        with tempfile.TemporaryDirectory() as directory:
            copy = pathlib.Path(directory, 'requirements.txt')
            copy.write_text(without_nova(text))
            os.environ['PBR_REQUIREMENTS_FILES'] = str(copy)
            try:
                return hook(*args, **kwargs)
            finally:
                del os.environ['PBR_REQUIREMENTS_FILES']
    return called


build_sdist = _asking_for_no_nova(build.build_sdist)
get_requires_for_build_editable = build.get_requires_for_build_editable
get_requires_for_build_sdist = build.get_requires_for_build_sdist
get_requires_for_build_wheel = build.get_requires_for_build_wheel
prepare_metadata_for_build_editable = _asking_for_no_nova(
    build.prepare_metadata_for_build_editable)
prepare_metadata_for_build_wheel = _asking_for_no_nova(
    build.prepare_metadata_for_build_wheel)


@_asking_for_no_nova
def build_wheel(wheel_directory, config_settings=None,
                metadata_directory=None):
    """PEP 517: build a wheel and return its file name."""
    name = build.build_wheel(wheel_directory, config_settings,
                             metadata_directory)
    add_to_wheel(pathlib.Path(wheel_directory, name), PTH)
    return name


@_asking_for_no_nova
def build_editable(wheel_directory, config_settings=None,
                   metadata_directory=None):
    """PEP 660: build a wheel that points to this tree."""
    name = build.build_editable(wheel_directory, config_settings,
                                metadata_directory)
    add_to_wheel(pathlib.Path(wheel_directory, name), PTH)
    return name


def add_to_wheel(wheel, name):
    """Add a file of this tree to the wheel's root and to its RECORD.

    The tests go from both.
    """
    data = pathlib.Path(name).read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    line = f'{name},sha256={digest.rstrip(b"=").decode()},{len(data)}\n'
    new = wheel.with_suffix('.tmp')
    with (zipfile.ZipFile(wheel) as old,
          zipfile.ZipFile(new, 'w', zipfile.ZIP_DEFLATED) as out):
        for item in old.infolist():
            if _TESTS.match(item.filename):
                continue
            content = old.read(item)
            if item.filename.endswith('.dist-info/RECORD'):
                out.writestr(name, data)
                content = b''.join(
                    one for one in content.splitlines(keepends=True)
                    if not _TESTS.match(one.decode())) + line.encode()
            out.writestr(item, content)
    new.replace(wheel)

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

"""Makes ``compute_driver = ghsched.GhschedLibvirtDriver`` importable.

Nova imports ``nova.virt.<compute_driver>`` and nothing else. This module,
which ``ghsched.pth`` imports at the start of every interpreter, registers a
finder that answers for ``nova.virt.ghsched`` with a file of ours.

A package ``nova/virt/ghsched`` in our own wheel would do only where Nova and
ghsched share one site directory, and a ``nova/__init__.py`` of ours would
hide Nova itself.

It is a module of its own and not one of ``ghsched_nova``, because an import
from there would fix that package to the installed one before the directory
of a program, which may be a source tree, is on the path. And it keeps to the
standard library: it runs before any program of the environment, and Nova's
services refuse to start when eventlet was imported before they chose their
threading model.
"""

import sys

#: Module name -> our package, and the file in it.
_MODULES = {'nova.virt.ghsched': ('ghsched_nova', ('shim', 'virt.py'))}


class GhschedFinder:
    """Meta path finder for the module names above."""

    @staticmethod
    def find_spec(fullname, path=None, target=None):  # type: ignore
        """The spec of a module of ours; None for any other name."""
        if fullname not in _MODULES:
            return None
        # Imported late, so that programs without Nova pay nothing.
        import importlib.util
        import os
        package, relative = _MODULES[fullname]
        home = importlib.util.find_spec(package)
        if home is None or not home.origin:
            return None
        location = os.path.join(os.path.dirname(home.origin), *relative)
        if not os.path.exists(location):
            return None
        return importlib.util.spec_from_file_location(fullname, location)


def install() -> None:
    """Register the finder, once, after every finder of the interpreter."""
    if GhschedFinder not in sys.meta_path:
        sys.meta_path.append(GhschedFinder)


install()

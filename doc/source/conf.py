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

"""Configuration of the manual."""

import contextlib
from importlib import import_module
from importlib import metadata
import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

extensions = [
    'openstackdocstheme',
    'oslo_policy.sphinxext',
]
# Pictures of a PDF (tox -e pdf-docs); pages of HTML have them as they are.
with contextlib.suppress(ImportError):
    extensions.append(import_module('sphinxcontrib.rsvgconverter').__name__)

project = 'ghsched'
copyright = 'ghsched contributors'
author = 'ghsched contributors'
exclude_patterns: list[str] = []
pygments_style = 'native'

html_theme = 'openstackdocs'
# A search box of the manual; the theme's own searches docs.openstack.org.
html_theme_options = {'sidebar_search': True}
html_static_path = ['_static']
html_css_files = ['ghsched.css']
openstackdocs_repo_name = 'x/ghsched'
openstackdocs_use_storyboard = False
openstackdocs_auto_name = False
# Without a tag of git the theme would show 0.0.1.
openstackdocs_auto_version = False
version = release = metadata.version('ghsched')

man_pages = [
    (f'reference/commands/{name}', name, text, [author], 1)
    for name, text in (
        ('ghsched', 'memory bandwidth of OpenStack guests, for admins'),
        ('ghsched-bench', 'measure a machine, compare two measurements'),
        ('ghsched-exporter', 'memory bandwidth of guests for Prometheus'),
        ('ghsched-host', 'control groups of a compute host'),
        ('ghsched-status', 'checks before an upgrade'),
        ('ghsched-top', 'who uses the memory bandwidth of this host'),
        ('openstack-ghsched', 'memory bandwidth in an OpenStack cloud'))]


def _expand_tree(app: Any, page: str, template: str, context: dict[str, Any],
                 doctree: Any) -> None:
    """Show the pages of all guides in the side bar, not of one guide alone."""
    toctree = context['toctree']
    context['toctree'] = lambda **options: toctree(
        collapse=False, includehidden=True, titles_only=True, **options)


def setup(app: Any) -> None:
    app.connect('html-page-context', _expand_tree)

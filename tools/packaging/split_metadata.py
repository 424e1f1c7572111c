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

"""Give each package of a distribution the entry points of its own programs.

usage: split_metadata.py SITE-DIRECTORY

A wheel has one list of entry points. Where the wheel is split into packages,
an entry point must come with the package that is for its users: the commands
of openstack with ghsched-client, the validators of nova-api with ghsched-api,
what is of the laboratory with ghsched-lab. Their lists are put beside, as
metadata of the same version, and leave the list of the library.
"""

import configparser
import pathlib
import sys

LIBRARY = 'ghsched'


def owner(group: str, value: str) -> str:
    """Return the name of the package whose metadata has an entry point."""
    if (value.startswith(('ghsched_nova.lab', 'tempest_plugin'))
            or group == 'tempest.test_plugins'):
        return 'ghsched-lab'
    if group.startswith('openstack.'):
        return 'ghsched-client'
    if group.startswith('nova.api.'):
        return 'ghsched-api'
    return LIBRARY


def parse(text: str) -> configparser.ConfigParser:
    """Return entry points with the names as they are written."""
    parser = configparser.ConfigParser(delimiters=('=',), interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    parser.read_string(text)
    return parser


def split(text: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return groups of entry points by package."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    parser = parse(text)
    for group in parser.sections():
        for name, value in parser[group].items():
            found.setdefault(owner(group, value), {}).setdefault(
                group, {})[name] = value
    return found


def render(groups: dict[str, dict[str, str]]) -> str:
    return '\n'.join(
        f'[{group}]\n' + ''.join(f'{name} = {value}\n'
                                 for name, value in sorted(entries.items()))
        for group, entries in sorted(groups.items()))


def main() -> None:
    site = pathlib.Path(sys.argv[1])
    library, = site.glob(f'{LIBRARY}-*.dist-info')
    version = library.name.removesuffix('.dist-info').partition('-')[2]
    for package, groups in split(
            (library / 'entry_points.txt').read_text()).items():
        directory = site / f'{package.replace("-", "_")}-{version}.dist-info'
        directory.mkdir(exist_ok=True)
        (directory / 'entry_points.txt').write_text(render(groups))
        if package != LIBRARY:
            (directory / 'METADATA').write_text(
                f'Metadata-Version: 2.1\nName: {package}\n'
                f'Version: {version}\nRequires-Dist: {LIBRARY}\n')
    for name in ('RECORD', 'direct_url.json', 'REQUESTED'):
        (library / name).unlink(missing_ok=True)


if __name__ == '__main__':
    main()

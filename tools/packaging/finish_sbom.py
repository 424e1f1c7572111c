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

"""Complete the CycloneDX file of a release.

usage: finish_sbom.py FILE

cyclonedx-py describes an environment. This makes ghsched the component that
the file is about, drops paths of the machine that built it, and refuses a file
in which a component has no licence or a required component is missing.
"""

import json
import pathlib
import sys
from typing import Any

NAME = 'ghsched'


def finish(document: dict[str, Any]) -> dict[str, Any]:
    """Return the file about ghsched and what it needs.

    :raises ValueError: for components without a licence, or without an entry
        in the list of dependencies.
    """
    components = document['components']
    for component in components:
        component['externalReferences'] = [
            one for one in component.get('externalReferences', ())
            if not one['url'].startswith('file:')]
        component.pop('properties', None)
    bare = [one['name'] for one in components if not one.get('licenses')]
    if bare:
        raise ValueError(f'no licence is known of {", ".join(bare)}')
    subject, = (one for one in components if one['name'] == NAME)
    subject['type'] = 'application'
    subject['purl'] = f'pkg:pypi/{NAME}@{subject["version"]}'
    document['metadata']['component'] = subject
    document['components'] = [one for one in components if one is not subject]
    entries = {one['ref']: one.get('dependsOn', [])
               for one in document['dependencies']}
    unknown = {one['bom-ref'] for one in components} - entries.keys()
    if unknown or not entries[subject['bom-ref']]:
        raise ValueError(f'no dependencies are known of {sorted(unknown)}')
    return document


def main() -> None:
    path = pathlib.Path(sys.argv[1])
    document = finish(json.loads(path.read_text()))
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + '\n')


if __name__ == '__main__':
    main()

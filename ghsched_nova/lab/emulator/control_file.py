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

"""Files that control a running emulator."""

import json
from typing import Any


def read_object(text: str, error: type[ValueError]) -> dict[str, Any] | None:
    """Return the JSON object in a file; None when the file is empty.

    :raises error: it is none; says why.
    """
    if not text.strip():
        return None
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise error(f'not JSON: {exc}') from exc
    if not isinstance(found, dict):
        raise error('want one JSON object')
    return found

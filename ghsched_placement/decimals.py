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

"""Numbers in texts of the kernel, of libvirt and of files (pure)."""

import re

_DECIMAL = re.compile(r'[0-9]{1,20}')


def decimal(text: str) -> int | None:
    """Return the number that a text is; None for any other text.

    int() reads digits of all scripts, and raises for one that it does not
    read ('²'.isdigit() is true) or for more than 4300 digits.

    :param text: with at most 20 digits and blanks around them.
    """
    stripped = text.strip()
    return int(stripped) if _DECIMAL.fullmatch(stripped) else None

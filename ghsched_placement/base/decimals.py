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

"""Parse numbers in texts of the kernel, libvirt and files (pure)."""

import re

_DECIMAL = re.compile(r'[0-9]{1,20}')


def parse_decimal(text: str) -> int | None:
    """Parse a decimal number of at most 20 digits.

    Blanks around the number are ignored. Signs, underscores and digits of
    other scripts are not allowed.

    :returns: None if the text is not such a number.
    """
    stripped = text.strip()
    return int(stripped) if _DECIMAL.fullmatch(stripped) else None

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

"""Text tables of commands that do not use cliff."""

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import prettytable


def render_table(titles: Sequence[str], rows: Iterable[Sequence[Any]],
                 **limits: int) -> str:
    """Render a text table with left-aligned columns and one line for each row.

    :param limits: ``max_width`` of each column, ``max_table_width``.
    """
    table = prettytable.PrettyTable(titles, **limits)
    table.align = 'l'
    table.add_rows([[format_cell(value) for value in row] for row in rows])
    return table.get_string()


def format_cell(value: Any) -> str:
    """Return a table cell's text: "-" for None, "true" or "false" for a bool.
    """
    if value is None:
        return '-'
    if isinstance(value, bool):
        return 'true' if value else 'false'
    return str(value)

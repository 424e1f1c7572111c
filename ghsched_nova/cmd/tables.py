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

"""Text tables of the commands on a host."""

from collections.abc import Sequence
import shutil
import sys

from ghsched_placement.base import text_table


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a text table no wider than the terminal."""
    limits = {'max_width': 60}
    if sys.stdout is not None and sys.stdout.isatty():
        limits['max_table_width'] = max(
            40, shutil.get_terminal_size().columns)
    return text_table.render_table(header, rows, **limits)

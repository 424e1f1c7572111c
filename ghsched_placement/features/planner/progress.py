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

"""Progress bar of a command that takes more than a second."""

import sys
import time
from typing import TextIO

#: Seconds before the progress bar is displayed.
DELAY = 1.0
WIDTH = 30


class Bar:
    """Progress bar on one line of a terminal.

    :param stream: file that the bar is written to.
    :param shown: whether to show the bar.
    :param began: start of the work, by time.monotonic(); now by default.
    """

    def __init__(self, stream: TextIO = sys.stderr, shown: bool = True,
                 began: float | None = None) -> None:
        self._stream, self._shown = stream, shown
        self._start = time.monotonic() if began is None else began
        self._drawn = 0

    def __call__(self, fraction: float, step: str) -> None:
        if not self._shown or time.monotonic() - self._start < DELAY:
            return
        line = render_progress_bar(fraction, step)
        self._stream.write('\r' + line.ljust(self._drawn))
        self._stream.flush()
        self._drawn = len(line)

    def clear(self) -> None:
        """Erase the progress bar from the terminal."""
        if self._drawn:
            self._stream.write('\r' + ' ' * self._drawn + '\r')
            self._stream.flush()
            self._drawn = 0


def render_progress_bar(fraction: float, step: str) -> str:
    """Render a progress bar such as ``[#####.....]  50 % reading the cloud``.

    :param fraction: progress, 0 to 1.
    :param step: description of the current step.
    """
    fraction = min(1.0, max(0.0, fraction))
    full = round(fraction * WIDTH)
    return (
        f'[{"#" * full}{"." * (WIDTH - full)}] {round(100 * fraction):3d} % '
        f'{step}')

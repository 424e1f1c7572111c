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

"""A function call that several threads share, each waiting for a limited time.
"""

from collections.abc import Callable
from concurrent import futures
import functools
import threading
import time
from typing import Generic
from typing import TypeVar

_Result = TypeVar('_Result')


class NoAnswer(Exception):  # noqa: N818
    """Raised if a function does not finish in time; it keeps running."""


class SharedWork(Generic[_Result]):
    """Runs a function at most once at a time, for all concurrent callers.

    The function runs in a thread of its own. A caller that arrives while the
    function runs waits for this run and gets its result.

    :param work: the function.
    :param timeout: seconds from the start of a run after which its callers
        stop waiting.
    """

    def __init__(self, work: Callable[[], _Result], timeout: float) -> None:
        self._work = work
        self.timeout = timeout
        self._guard = threading.Lock()
        self._running: futures.Future[_Result] | None = None
        self._begun = 0.0

    def get_result(self) -> _Result:
        """Run the function and return its result.

        If the function is running already for another caller, wait for that
        run and return its result.

        :raises NoAnswer: if the run does not finish in time.
        :raises Exception: any exception of the function.
        """
        with self._guard:
            if self._running is None:
                begun: futures.Future[_Result] = futures.Future()
                self._begun = time.monotonic()
                threading.Thread(target=self._run, args=(begun,),
                                 daemon=True).start()
                self._running = begun
            running = self._running
            left = self._begun + self.timeout - time.monotonic()
        futures.wait([running], max(0.0, left))
        if not running.done():
            raise NoAnswer(f'no answer within {self.timeout:g} s')
        return running.result()

    def _run(self, running: 'futures.Future[_Result]') -> None:
        found: Callable[[], None]
        try:
            found = functools.partial(running.set_result, self._work())
        except BaseException as error:
            found = functools.partial(running.set_exception, error)
        with self._guard:
            self._running = None
        found()

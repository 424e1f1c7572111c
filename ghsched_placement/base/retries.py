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

"""Retries of calls that conflict with another process."""

from collections.abc import Callable
import fcntl
import functools
from typing import cast, TypeVar

import tenacity

_Result = TypeVar('_Result')

_NO_WAIT = tenacity.wait_none()

#: Seconds between two attempts to lock a file.
_LOCK_INTERVAL_S = 0.01


def call_with_retries(
        function: Callable[[], _Result],
        condition: tenacity.retry_base,
        limit: tenacity.stop.stop_base,
        wait: tenacity.wait.wait_base = _NO_WAIT,
        on_retry: Callable[[tenacity.RetryCallState], None] | None = None
) -> _Result:
    """Call a function; retry while its outcome meets a condition.

    The outcome of the last call is returned or raised.

    :param condition: results or exceptions after which to retry.
    :param limit: number of calls, or seconds, after which not to retry.
    :param on_retry: called before each retry.
    """
    return tenacity.Retrying(
        retry=condition, stop=limit, wait=wait, before_sleep=on_retry,
        retry_error_callback=_return_last_outcome)(function)


def _return_last_outcome(state: tenacity.RetryCallState) -> object:
    return cast(tenacity.Future, state.outcome).result()


def acquire_file_lock(descriptor: int, timeout: float,
                      kind: int = fcntl.LOCK_EX) -> None:
    """Lock an open file or directory; wait while another process holds it.

    :param timeout: maximum time to wait in seconds.
    :raises TimeoutError: if the lock is not free within the timeout.
    """
    try:
        call_with_retries(
            functools.partial(fcntl.flock, descriptor, kind | fcntl.LOCK_NB),
            tenacity.retry_if_exception_type(BlockingIOError),
            tenacity.stop_after_delay(timeout),
            tenacity.wait_fixed(_LOCK_INTERVAL_S))
    except BlockingIOError:
        raise TimeoutError from None

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
"""Cache whose values have a maximum age and a maximum number."""

import threading
import time
from typing import Generic
from typing import TypeVar

Key = TypeVar('Key')
Value = TypeVar('Value')


class AgedCache(Generic[Key, Value]):
    """Cache whose values expire; thread-safe.

    :param max_age: seconds for which a value is kept.
    :param max_values: number of values above which the oldest is dropped.
    """

    def __init__(self, max_age: float, max_values: int) -> None:
        self._max_age, self._max_values = max_age, max_values
        self._lock = threading.Lock()
        self._values: dict[Key, tuple[Value, float]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get_fresh_value(self, key: Key) -> Value | None:
        """Return the value of a key; None if there is none or it is old."""
        with self._lock:
            known = self._values.get(key)
        if known is None or time.monotonic() - known[1] > self._max_age:
            return None
        return known[0]

    def set_value(self, key: Key, value: Value) -> None:
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value, time.monotonic()
            if len(self._values) > self._max_values:
                del self._values[next(iter(self._values))]

    def clear(self) -> None:
        with self._lock:
            self._values.clear()

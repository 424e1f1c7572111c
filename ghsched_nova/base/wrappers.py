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

"""Wrappers of objects of other software, and of their attributes."""

from collections.abc import Iterator
import contextlib
from typing import Any


class ObjectWrapper:
    """Wrapper that passes to an object what a subclass does not define.

    :param wrapped: the object.
    """

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


@contextlib.contextmanager
def setting_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Within this context, an attribute of an object has another value.

    :param owner: the object; a ``threading.local`` for the current thread.
    """
    before = getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)

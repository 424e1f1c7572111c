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

"""The part of an exhaustive test that one commit runs: one eighth.

``GHSCHED_SAMPLE`` is the number of the eighth, or ``all``. tools/test.sh
derives the number from the commit, so that eight commits in a row run some
two thirds of the whole and every number comes; tools/nightly.sh runs all.
"""

from collections.abc import Iterable
import os
from typing import TypeVar
import unittest
import zlib

T = TypeVar('T')

PARTS = 8
ALL = 'all'


def number() -> int | None:
    """Return the number of the eighth to run; None for all."""
    text = os.environ.get('GHSCHED_SAMPLE', '0')
    return None if text == ALL else int(text) % PARTS


def choose(items: Iterable[T]) -> list[T]:
    """Return every eighth item; one item where there are fewer than eight."""
    items = list(items)
    part = number()
    if part is None or not items:
        return items
    return items[part::PARTS] or [items[part % len(items)]]


def count(examples: int) -> int:
    """Return an eighth of a number of random examples, at least one."""
    return examples if number() is None else max(1, examples // PARTS)


def run_sample(test_class: type[unittest.TestCase]) -> type:
    """Decorate a class of independent tests: skip those of other eighths.

    A test is skipped before its setUp() begins.
    """
    part = number()
    if part is None:
        return test_class
    for name in unittest.defaultTestLoader.getTestCaseNames(test_class):
        key = f'{test_class.__module__}.{test_class.__qualname__}.{name}'
        if zlib.crc32(key.encode()) % PARTS != part:
            setattr(test_class, name, unittest.skip(
                f'not in part {part} of {PARTS} (GHSCHED_SAMPLE)')(
                    _make_stand_in()))
    return test_class


def _make_stand_in():  # type: ignore[no-untyped-def]
    return lambda self: None

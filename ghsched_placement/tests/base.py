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

"""Base class of all tests of the two packages."""

from typing import Any
import unittest

from oslotest import base

from ghsched_placement.features.declared_needs import NEEDS

#: Seconds after which a test gives up on a program or a thread. It is a hang
#: then: however busy a machine is, what works has happened before.
GIVE_UP_S = 600


def needs_features(*names: str) -> Any:
    """Return a decorator that skips a test of a pair where a part is deleted.

    :param names: features whose keys or modules a test of another part uses.
    """
    gone = sorted({*names} - NEEDS.keys())
    return unittest.skipIf(gone, f'features that are deleted: {gone}')


class TestCase(base.BaseTestCase):
    """A test with a limit of time, and with files and a home of its own."""

    def assertRaises(self, *args: Any,  # noqa: N802
                     **kwargs: Any) -> Any:
        """Call unittest's assertRaises() as a context; testtools before 2.8
        has none.
        """
        if len(args) == 1:
            return unittest.TestCase.assertRaises(self, *args, **kwargs)
        return super().assertRaises(*args, **kwargs)

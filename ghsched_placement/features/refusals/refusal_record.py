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

"""Record of the flavors for which nova-scheduler found no host (pure).

The record is limited to the flavors that were refused most recently.
"""

from collections.abc import Iterable
import dataclasses
from dataclasses import dataclass
from typing import Any

from ghsched_placement.base import wire

VERSION = 1

#: Maximum number of flavors in a record.
MAX_FLAVORS = 100

#: Maximum length of a flavor's name and ID, as Nova has it.
_MAX_TEXT = 255


@dataclass(frozen=True)
class RefusalCount:
    """Number and time of the requests for a flavor that found no host.

    :param flavor: ID of the flavor.
    :param name: name of the flavor.
    :param count: number of requests for which there was no host.
    :param last: time of the last refusal, seconds since 1970.
    """

    flavor: str
    name: str
    count: int
    last: float


def add_refusal(record: Iterable[RefusalCount], flavor: str, name: str,
                now: float) -> tuple[RefusalCount, ...]:
    """Add one refusal to the record of flavors for which no host was found.

    nova-scheduler refuses a request if it finds no host. If there are too many
    flavors, the one that was refused least recently is dropped.

    :param record: refused flavors until now.
    :param flavor: ID of the flavor.
    :param name: name of the flavor.
    :param now: seconds since 1970.
    :returns: the record with the refusal.
    """
    return merge_refusals(record, [RefusalCount(flavor, name, 1, now)])


def merge_refusals(*records: Iterable[RefusalCount]
                   ) -> tuple[RefusalCount, ...]:
    """Merge records of refused flavors, adding up the counts of each flavor.

    nova-scheduler refuses a flavor if it finds no host for it. The flavors
    that were refused last come first.
    """
    found: dict[str, RefusalCount] = {}
    for one in (one for record in records for one in record):
        known = found.get(one.flavor, one)
        newest = max(known, one, key=lambda each: each.last)
        found[one.flavor] = newest if known is one else dataclasses.replace(
            newest, count=known.count + one.count)
    return tuple(sorted(found.values(),
                        key=lambda one: (-one.last, one.flavor))[:MAX_FLAVORS])


def list_recent_refusals(record: Iterable[RefusalCount],
                         since: float) -> list[RefusalCount]:
    """Return the flavors refused since a given time, the most refused first.

    nova-scheduler refuses a flavor if it finds no host for it.

    :param since: seconds since 1970.
    """
    return sorted((one for one in record if one.last >= since),
                  key=lambda one: (-one.count, -one.last, one.flavor))


def _parse_flavor(mapping: dict[str, Any]) -> RefusalCount:
    """Parse how often and when one flavor was refused, from its record.

    :raises KeyError, TypeError, ValueError: if a value is missing, has the
        wrong type or is out of range.
    """
    return RefusalCount(
        wire.check_text(mapping['flavor'], _MAX_TEXT),
        wire.check_text(mapping['name'], _MAX_TEXT),
        wire.check_integer(mapping['count'], minimum=1),
        wire.check_number(mapping['last'], wire.MAX_TIME))


#: Record of refused flavors.
FORMAT: wire.FileFormat[tuple[RefusalCount, ...]] = wire.FileFormat(
    'ghsched-refusals.json', VERSION,
    lambda found: tuple(map(_parse_flavor, found['refused'][:MAX_FLAVORS])),
    lambda record: {'refused': [*map(dataclasses.asdict, record)]}, tuple)

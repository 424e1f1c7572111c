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

"""Parse the records of a host in the diagnostics of a guest.

The records are not trusted: an attacker may have taken over the host.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from ghsched_placement.audit import diagnostics
from ghsched_placement.base import wire
from ghsched_placement.features import declared_records
from ghsched_placement.fit import node_capacity

#: Records of the core and of the features, each under a key of its own.
_FORMATS: tuple[wire.RecordFormat, ...] = (
    node_capacity.FORMAT, *declared_records.RECORDS)


def parse_report(fields: Mapping[str, Any]) -> diagnostics.GuestReport | None:
    """Parse nova-compute's report on a guest from Nova's server diagnostics.

    The report names all records in the diagnostics that cannot be read.

    :returns: None if the diagnostics contain no report.
    """
    report = diagnostics.parse_guest_diagnostics(fields)
    malformed = tuple(_list_malformed_records(fields))
    if report is None:
        return diagnostics.make_malformed_report(malformed) if (
            malformed) else None
    return dataclasses.replace(report,
                               malformed=(*report.malformed, *malformed))


def _list_malformed_records(fields: Mapping[str, Any]) -> list[str]:
    """Return the keys of records in the diagnostics that cannot be read.

    The report of :mod:`ghsched_placement.audit.diagnostics` is left out.
    """
    return [one.name for one in _FORMATS if one.is_malformed(fields)]

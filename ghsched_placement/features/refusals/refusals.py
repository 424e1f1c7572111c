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

"""``openstack ghsched refusal list``: flavors that found no host."""

import argparse
import datetime
from typing import Any

from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients

COLUMNS = ('Flavor', 'Name', 'Refusals', 'Last')


class ListRefusals(base.Lister):
    """List the flavors for which nova-scheduler found no host.

    nova-scheduler counts the requests that it refuses by flavor, of the 100
    flavors that were refused last. Each host with nova-scheduler has a record
    of its own, and the list has their sum. "rebalance plan --for" finds moves
    that make room for a flavor.
    """

    nothing = 'No request has been refused.'

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        record, silent = clients.get_client(self.app).list_refused_flavors()
        if silent:
            self.log.warning('nova-scheduler did not answer on %s: its '
                             'refusals are missing', ', '.join(silent))
        return COLUMNS, [(one.flavor, one.name, one.count,
                          _format_unix_time(one.last)) for one in record]


def _format_unix_time(seconds: float) -> str:
    """Format a time as ISO 8601 text in UTC, without fractions of a second.

    :param seconds: seconds since 1970.
    """
    return datetime.datetime.fromtimestamp(
        int(seconds), datetime.UTC).isoformat()

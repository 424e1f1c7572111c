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
import json
from typing import Any

from osc_lib import exceptions

from ghsched_placement.features.refusals import refusal_record
from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients

COLUMNS = ('Flavor', 'Name', 'Refusals', 'Last')


class ListRefusals(base.Lister):
    """List the flavors for which nova-scheduler found no host.

    nova-scheduler counts the requests that it refuses by flavor, of the 100
    flavors that were refused last. Each host with nova-scheduler has a record
    of its own, and the list has their sum. "rebalance plan --for" finds moves
    that make room for a flavor. The rule os_compute_api:ghsched:list-refusals
    of nova-api's policy says who may use this.
    """

    nothing = 'No request has been refused.'

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        record, silent = list_refused_flavors(
            clients.get_client(self.app))
        if silent:
            self.log.warning('nova-scheduler did not answer on %s: its '
                             'refusals are missing', ', '.join(silent))
        return COLUMNS, [(one.flavor, one.name, one.count,
                          _format_unix_time(one.last)) for one in record]


def list_refused_flavors(client: clients.Client) -> tuple[
        tuple[refusal_record.RefusalCount, ...], tuple[str, ...]]:
    """Return the flavors for which nova-scheduler recently found no host.

    :returns: the refused flavors, and the hosts whose nova-scheduler did not
        answer.
    :raises CommandError: if nova-api runs without ghsched's API filter.
    """
    answer = client.query_nova('/ghsched/refusals', clients.COMPUTE,
                               default={})
    if not answer:
        raise exceptions.CommandError(
            'nova-api of this cloud has no filter of ghsched, or an older '
            'one; see "Change a guest that runs" in the manual')
    return refusal_record.FORMAT.parse(json.dumps({
        'version': refusal_record.VERSION,
        'refused': answer.get('refusals')})), tuple(
        map(str, answer.get('silent') or ()))


def _format_unix_time(seconds: float) -> str:
    """Format a time as ISO 8601 text in UTC, without fractions of a second.

    :param seconds: seconds since 1970.
    """
    return datetime.datetime.fromtimestamp(
        int(seconds), datetime.UTC).isoformat()

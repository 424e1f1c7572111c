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

"""Source of network traffic: the kernel's connection tracking table.

The table has the connections that pass the IP stack or Open vSwitch of the
host with a stateful firewall: not those of VFs, and not those of ports without
port security. Bytes are counted with ``net.netfilter.nf_conntrack_acct=1``
only. A connection that begins and ends between two readings is not counted.
"""

from collections.abc import Iterable
import logging
import math

from ghsched_nova.base import privsep
from ghsched_nova.features.rebalance.flow_source import Flow
from ghsched_nova.features.rebalance.flow_source import Source
from ghsched_nova.features.rebalance.flow_source import SourceError
from ghsched_nova.features.rebalance import privileged

LOG = logging.getLogger(__name__)


class Conntrack(Source):
    """Reader of the network connections in this host's conntrack table."""

    def __init__(self) -> None:
        super().__init__()
        self._was_complete = True

    def flows(self, addresses: frozenset[str]) -> Iterable[Flow]:
        try:
            found = privileged.read_connections(addresses)
        except OSError as error:
            raise SourceError(
                f'{privileged.TABLE} cannot be read: {error.strerror}; does '
                'the kernel have CONFIG_NF_CONNTRACK_PROCFS?') from error
        except privsep.HelperTimeout as error:
            raise SourceError(str(error)) from error
        if not found.is_counted:
            raise SourceError('the kernel counts no bytes of connections; set '
                              'net.netfilter.nf_conntrack_acct=1')
        if self._was_complete and not found.is_complete:
            LOG.warning('ghsched: cannot read all of %(table)s within '
                        '%(seconds)d s; network traffic statistics of guests '
                        'are incomplete',
                        {'table': privileged.TABLE,
                         'seconds': privileged.READ_TIMEOUT})
        self._was_complete = found.is_complete
        # Any flow may be in the part that was not read.
        self.floors = (found.floors if found.is_complete
                       else dict.fromkeys(addresses, math.inf))
        return found.flows

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

"""``iperf3 --json``."""

from dataclasses import dataclass
import json

from ghsched_nova.lab.bench import errors


@dataclass(frozen=True)
class Transfer:
    """Throughput of a test over TCP, in bits per second.

    :param received: over the whole time, as the receiver counts it.
    :param intervals: by second, as the sender counts it; omitted ones are
        not among them.
    :param retransmits: segments that were sent again, None where the
        sender's kernel does not tell.
    """

    received: float
    intervals: tuple[float, ...]
    retransmits: int | None


def parse(text: str) -> Transfer:
    """Return a client's report.

    :raises ParseError: when it is none, or reports an error.
    """
    try:
        document = json.loads(text)
        if document.get('error'):
            raise errors.ParseError('iperf3', str(document['error']))
        end = document['end']
        return Transfer(
            received=float(end['sum_received']['bits_per_second']),
            intervals=tuple(
                float(part['sum']['bits_per_second'])
                for part in document['intervals']
                if not part['sum'].get('omitted')),
            retransmits=end['sum_sent'].get('retransmits'))
    except (ValueError, KeyError, TypeError, AttributeError,
            RecursionError) as error:
        raise errors.ParseError('iperf3', f'is not what it prints: {error!r}',
                                text) from None

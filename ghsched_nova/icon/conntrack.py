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

"""The kernel's table of connections as a source (nf_conntrack).

It knows what passes the IP stack or Open vSwitch of the host with a firewall
that keeps state: not what a VF sends, and not a port without port security.
It counts bytes with ``net.netfilter.nf_conntrack_acct=1`` only. A connection
that begins and ends between two looks is not counted.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import ipaddress

from ghsched_nova.icon import privileged
from ghsched_nova.icon.traffic import Flow
from ghsched_nova.icon.traffic import Source
from ghsched_nova.icon.traffic import SourceError

#: What makes a connection another one, beside its addresses.
_KEYS = ('sport', 'dport', 'type', 'code', 'id')


class Conntrack(Source):
    """Reads the table of this host."""

    def flows(self, addresses: frozenset[str]) -> Iterable[Flow]:
        try:
            text = privileged.connections()
        except OSError as error:
            raise SourceError(
                f'{privileged.TABLE} cannot be read: {error.strerror}; does '
                'the kernel have CONFIG_NF_CONNTRACK_PROCFS?') from error
        return parse(text, addresses)


def parse(text: str, addresses: frozenset[str]) -> tuple[Flow, ...]:
    """The connections of some addresses (pure).

    The same connection is there once for each zone that it passes, so the
    largest of its counts is the one. The ends are where it was begun and who
    answers: what is between them may translate addresses.

    :raises SourceError: when there are connections, and none is counted.
    """
    found: dict[str, Flow] = {}
    lines = uncounted = 0
    for line in text.splitlines():
        fields = list(_fields(line))
        lines += 1
        uncounted += not any(name == 'bytes' for name, _value in fields)
        flow = _flow(line, fields)
        if flow and {flow.source, flow.destination} & addresses:
            found[flow.key] = max(found.get(flow.key, flow), flow,
                                  key=lambda one: one.count)
    if lines and uncounted == lines:
        raise SourceError('the kernel counts no bytes of connections; set '
                          'net.netfilter.nf_conntrack_acct=1')
    return tuple(found.values())


def _fields(line: str) -> Iterator[tuple[str, str]]:
    for word in line.split():
        name, equals, value = word.partition('=')
        if equals:
            yield name, value


def _flow(line: str, fields: list[tuple[str, str]]) -> Flow | None:
    """A connection with both ends and a count; None for anything else."""
    sources = [value for name, value in fields if name == 'src']
    counts = [value for name, value in fields if name == 'bytes']
    if len(sources) != 2 or not counts:
        return None
    try:
        ends = [str(ipaddress.ip_address(source)) for source in sources]
        count = sum(map(int, counts))
    except ValueError:
        return None
    words = line.split()
    # The first of each is that of who began.
    first = dict(reversed(fields))
    key = ' '.join([words[2] if len(words) > 2 else '', *ends,
                    *(first.get(name, '') for name in _KEYS)])
    return Flow(key, ends[0], ends[1], count)

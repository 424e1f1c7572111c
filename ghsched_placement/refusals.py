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

"""Why hosts were refused, gathered so that a request logs little (pure)."""

from collections.abc import Iterable
from dataclasses import dataclass

#: How many host names a log line carries.
NAMED_HOSTS = 5


@dataclass(frozen=True)
class Refusal:
    """Why one host cannot take a guest.

    :param reason: one clause that a cloud admin can act on. Hosts refused
        for the same reason are told in one line, so it names no host.
    """

    reason: str


class Gathered:
    """Refusals of one request, by reason."""

    def __init__(self) -> None:
        self._hosts: dict[Refusal, list[str]] = {}

    def add(self, host: str, refusal: Refusal) -> None:
        self._hosts.setdefault(refusal, []).append(host)

    def lines(self, flavor: str, what: str = 'refused') -> list[str]:
        """One line per reason, the most frequent first."""
        return [
            f'ghsched: flavor {flavor} {what} on {_count(hosts)}: '
            f'{refusal.reason}'
            for refusal, hosts in sorted(
                self._hosts.items(), key=lambda item: -len(item[1]))]


def _count(hosts: list[str]) -> str:
    shown = _join(hosts[:NAMED_HOSTS])
    if len(hosts) > NAMED_HOSTS:
        shown += f' and {len(hosts) - NAMED_HOSTS} more'
    noun = 'host' if len(hosts) == 1 else 'hosts'
    return f'{len(hosts)} {noun} ({shown})'


def _join(words: Iterable[str]) -> str:
    return ', '.join(words)

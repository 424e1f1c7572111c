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

"""Stand-in for redis-server in guests that have Python but no redis.

It runs in the guest, needs Python 3.6 and nothing else, and knows what
redis-benchmark and ghsched-bench send: PING, GET, SET, CONFIG and INFO.
"""

import asyncio
import sys

_LONGEST = 65536

keys = {}    # type: dict[bytes, bytes]
calls = {}    # type: dict[bytes, int]


def answer(words: 'list[bytes]') -> bytes:
    """Return the answer to a command."""
    command = words[0].lower()
    calls[command] = calls.get(command, 0) + 1
    if command == b'ping':
        return b'+PONG\r\n'
    if command == b'set' and len(words) == 3:
        keys[words[1]] = words[2]
        return b'+OK\r\n'
    if command == b'get' and len(words) == 2:
        found = keys.get(words[1])
        return b'$-1\r\n' if found is None else bulk(found)
    if command == b'info':
        return bulk(b''.join(
            b'cmdstat_%s:calls=%d,usec=0\r\n' % item
            for item in sorted(calls.items())))
    if command == b'config' and len(words) == 3:
        return b'*2\r\n' + bulk(words[2]) + bulk(b'')
    return b'-ERR unknown command\r\n'


def bulk(text: bytes) -> bytes:
    """Return a string in the form of redis."""
    return b'$%d\r\n%s\r\n' % (len(text), text)


async def read_number(reader: asyncio.StreamReader, kind: bytes) -> int:
    """Return the number of a line such as ``*3``."""
    line = await reader.readline()
    number = int(line[1:])
    if line[:1] != kind or not 0 <= number <= _LONGEST:
        raise ValueError(line)
    return number


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter
                ) -> None:
    """Answer the commands of one client until it leaves."""
    try:
        while True:
            words = []
            for _word in range(await read_number(reader, b'*')):
                size = await read_number(reader, b'$')
                words.append((await reader.readexactly(size + 2))[:-2])
            writer.write(answer(words))
            await writer.drain()
    except (ValueError, IndexError, OSError, asyncio.IncompleteReadError):
        writer.close()


def main() -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(
        asyncio.start_server(serve, '0.0.0.0',  # noqa: S104
                             int(sys.argv[1])))
    loop.run_forever()


if __name__ == '__main__':
    main()

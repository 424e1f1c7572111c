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


"""``ghsched-exporter``: memory bandwidth for Prometheus.

It listens on the loopback address unless it is told otherwise: the names of
guests are for nobody else, and it knows no passwords.
"""

import argparse
from collections.abc import Callable
from collections.abc import Sequence
import contextlib
from pathlib import Path
import signal
import socket
import socketserver
import sys
import threading
from typing import Any
from typing import NoReturn
from wsgiref import simple_server

import prometheus_client

from ghsched_nova.cmd import console
from ghsched_nova.monitor import burst_metrics
from ghsched_nova.monitor import metrics
from ghsched_nova.monitor import repair_metrics
from ghsched_nova.monitor import top_source
from ghsched_placement import exits

ADDRESS = '127.0.0.1'
PORT = 9889


#: How many are served at a time; each has a thread and a file descriptor.
CONNECTIONS = 20


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    """Hangs up on the oldest connection when there are too many."""

    daemon_threads = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._connections: list[socket.socket] = []
        self._changing = threading.Lock()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            self._connections.append(request)
            if len(self._connections) > CONNECTIONS:
                oldest = self._connections.pop(0)
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing, contextlib.suppress(ValueError):
            self._connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of who has gone, or was hung up on."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(simple_server.WSGIRequestHandler):
    #: Seconds to wait for each part of a request.
    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each scrape."""


def application(source: top_source.Source, bursts: Path | None = None,
                repairs: Path | None = None) -> Callable[..., Any]:
    """The WSGI application that is scraped.

    :param bursts: what nova-compute knows of them.
    :param repairs: likewise.
    """
    registry = prometheus_client.CollectorRegistry()
    registry.register(metrics.Collector(source))
    if bursts is not None:
        registry.register(burst_metrics.Collector(bursts))
    if repairs is not None:
        registry.register(repair_metrics.Collector(repairs))
    application: Callable[..., Any] = prometheus_client.make_wsgi_app(
        registry)
    return application


def server(source: top_source.Source, address: str = ADDRESS,
           port: int = PORT, bursts: Path | None = None,
           repairs: Path | None = None) -> simple_server.WSGIServer:
    """A server that listens and does not serve yet.

    :param port: 0 takes any that is free.
    :raises OSError: when it cannot listen there.
    """
    return simple_server.make_server(
        address, port, application(source, bursts, repairs),
        server_class=_Server6 if ':' in address else _Server,
        handler_class=_Handler)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog='ghsched-exporter',
        description='Tell Prometheus the memory bandwidth of guests.')
    console.add_version(options)
    top_source.add_options(options)
    options.add_argument(
        '--repairs', type=Path, metavar='FILE',
        help='count what nova-compute has repaired, from '
             'ghsched-repairs.json in its state_path')
    options.add_argument(
        '--address', default=ADDRESS,
        help='to listen on (%(default)s); anybody who reaches it can read')
    options.add_argument('--port', type=_port, default=PORT,
                         help='to listen on (%(default)s)')
    return options


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f'{text!r} is no port')
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Console script; its result is the exit status."""
    arguments = parser().parse_args(argv)
    try:
        listening = server(
            top_source.source(arguments), arguments.address, arguments.port,
            arguments.bursts, arguments.repairs)
    except OSError as error:
        print(f'ghsched-exporter: cannot listen on {arguments.address} port '
              f'{arguments.port}: {error}', file=sys.stderr)
        return exits.COULD_NOT
    signal.signal(signal.SIGTERM, _end)
    print(f'ghsched-exporter: {arguments.address} port '
          f'{listening.server_port}, /metrics', file=sys.stderr, flush=True)
    with listening, contextlib.suppress(KeyboardInterrupt):
        listening.serve_forever()
    return exits.DONE


def _end(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == '__main__':
    sys.exit(main())

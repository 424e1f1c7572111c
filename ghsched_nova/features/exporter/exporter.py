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

By default, it listens on the loopback address only, because everybody who can
reach the port can read the metrics of all guests: the exporter checks no
password. The labels of a guest are its UUID and the name of its libvirt
domain, not the name that the tenant gave the server.
"""

import argparse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from pathlib import Path
import signal
import socket
import socketserver
import sys
import threading
import time
from typing import Any
from wsgiref import simple_server

import prometheus_client
from prometheus_client import registry as prometheus_registry

from ghsched_nova.cmd import console
from ghsched_nova.features import declared_exporter
from ghsched_nova.features.exporter import cloud_exporter
from ghsched_nova.features.exporter import cloud_metrics
from ghsched_nova.features.exporter import metrics
from ghsched_nova.features.top import shared_work
from ghsched_nova.features.top import top_source
from ghsched_placement.base import decimals
from ghsched_placement.base import exits
from ghsched_placement.features.planner import client

ADDRESS = '127.0.0.1'
PORT = 9889


#: Maximum number of connections at a time; each has a thread and a file
#: descriptor.
CONNECTIONS = 20
#: Seconds that a connection may last.
CONNECTION_TIMEOUT = 30.0
#: Seconds to wait until a connection ends that the server has shut down.
_END_TIMEOUT = 1.0
_BUSY = '503 Service Unavailable'


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    """HTTP server that limits the number and duration of connections.

    If there are too many connections, the oldest one without a request is
    closed. If all have sent a request, the new one is answered with 503.
    """

    daemon_threads = True
    #: Connections that wait in the kernel until they are answered.
    request_queue_size = 128

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Start time of each open connection, in the order of the start times.
        self._begun: dict[socket.socket, float] = {}
        self._silent: dict[socket.socket, None] = {}
        self._changing = threading.Lock()
        self._places = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False) and not (
                self._close_oldest_idle_connection()
                and self._places.acquire(timeout=_END_TIMEOUT)):
            _send_busy_response(request)
            super().shutdown_request(request)
            return
        with self._changing:
            self._begun[request] = time.monotonic()
            self._silent[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:   # e.g. no thread can be started
            self._release_connection(request)
            raise

    def process_request_thread(self, request: Any,
                               client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._release_connection(request)

    def mark_request_received(self, connection: Any) -> None:
        """Record that a connection has sent a request, to keep it open.

        If there are too many connections, the server closes one that has not
        sent a request.
        """
        with self._changing:
            self._silent.pop(connection, None)

    def service_actions(self) -> None:
        """Close connections that are older than CONNECTION_TIMEOUT seconds.

        The base class calls this method regularly.
        """
        end = time.monotonic() - CONNECTION_TIMEOUT
        with self._changing:
            for request, begun in self._begun.items():
                if begun < end:
                    _shut_down_socket(request)

    def _close_oldest_idle_connection(self) -> bool:
        """Close the oldest connection that has not sent a request yet.

        :returns: False if there is no such connection.
        """
        with self._changing:
            connection = next(iter(self._silent), None)
            if connection is not None:
                del self._silent[connection]
                _shut_down_socket(connection)
            return connection is not None

    def _release_connection(self, connection: Any) -> None:
        """Stop tracking a connection that has ended, and admit another one."""
        with self._changing:
            self._silent.pop(connection, None)
            if self._begun.pop(connection, None) is not None:
                self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error of an HTTP request, except for a lost connection."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _shut_down_socket(request: socket.socket) -> None:
    """Shut down the socket of a client, even if it is already closed."""
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def _send_busy_response(request: socket.socket) -> None:
    """Send HTTP status 503 to a client because there are too many connections.

    The function does not wait for the client.
    """
    with contextlib.suppress(OSError):
        request.setblocking(False)
        request.send(f'HTTP/1.0 {_BUSY}\r\nContent-Length: 0\r\n\r\n'
                     .encode())


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(simple_server.WSGIRequestHandler):
    #: Seconds to wait for each part of a request.
    timeout = 10

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        if isinstance(self.server, _Server):
            self.server.mark_request_received(self.request)
        return parsed

    def log_message(self, format: str, *args: Any) -> None:
        """Ignore the access log message of an HTTP request."""


def make_registry_application(registry: prometheus_client.CollectorRegistry
                              ) -> Callable[..., Any]:
    """Return a WSGI application that serves the metrics of a registry.

    The application responds with 503 if the host cannot be read in time.
    """
    scraped: Callable[..., Any] = prometheus_client.make_wsgi_app(registry)

    def application(environ: Any, start_response: Any) -> Any:
        try:
            return scraped(environ, start_response)
        except shared_work.NoAnswer as error:
            start_response(_BUSY, [('Content-Type', 'text/plain')])
            return [f'the host could not be read: {error}\n'.encode()]
    return application


def make_host_metrics_server(
    source: top_source.HostReader, address: str = ADDRESS, port: int = PORT,
    collectors: Iterable[prometheus_registry.Collector] = ()
) -> simple_server.WSGIServer:
    """Return a listening HTTP server that serves a host's Prometheus metrics.

    :param source: source of the measurements.
    :param port: TCP port; 0 for any free port.
    :param collectors: collectors of metrics that are not measured here.
    :raises OSError: if the server cannot listen on the address.
    """
    registry = prometheus_client.CollectorRegistry()
    for collector in (metrics.HostCollector(source), *collectors):
        registry.register(collector)
    return make_listening_server(make_registry_application(registry), address,
                                 port)


def make_listening_server(
    application: Callable[..., Any], address: str, port: int
) -> simple_server.WSGIServer:
    """Return an HTTP server that listens and serves a WSGI application.

    :raises OSError: when the server cannot listen on the address.
    """
    return simple_server.make_server(
        address, port, application,
        server_class=_Server6 if ':' in address else _Server,
        handler_class=_Handler)


def make_parser() -> argparse.ArgumentParser:
    """Return the command-line parser of ``ghsched-exporter``."""
    options = argparse.ArgumentParser(
        prog='ghsched-exporter',
        description='Export the memory bandwidth of guests to Prometheus.')
    console.add_version_option(options)
    top_source.add_source_options(options)
    for metrics_of_file in declared_exporter.FILE_METRICS:
        if metrics_of_file.help:
            options.add_argument(
                '--' + metrics_of_file.option.replace('_', '-'), type=Path,
                metavar='FILE', help=metrics_of_file.help)
    options.add_argument(
        '--address', default=ADDRESS,
        help='address to listen on (default: %(default)s); everybody who can '
             'connect to it can read the metrics')
    options.add_argument('--port', type=_parse_port, default=PORT,
                         help='port to listen on (default: %(default)s)')
    cloud_exporter.add_cloud_export_options(options)
    return options


def _parse_port(text: str) -> int:
    """Parse a command-line argument as a TCP port number."""
    port = decimals.parse_decimal(text)
    if port is None or port >= 65536:
        raise argparse.ArgumentTypeError(f'{text!r} is not a port')
    return port


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ghsched-exporter``: serve Prometheus metrics until interrupted.

    :returns: exit status.
    """
    options = make_parser()
    arguments = options.parse_args(argv)
    try:
        listening = (
            _make_cloud_metrics_server(arguments) if arguments.cloud
            else make_host_metrics_server(
                top_source.make_measurement_source(arguments, energy=True),
                arguments.address, arguments.port,
                _make_file_collectors(arguments)))
    except argparse.ArgumentTypeError as error:
        options.error(str(error))
    except client.PlannerError as error:
        print(f'ghsched-exporter: {error}', file=sys.stderr)
        return exits.COULD_NOT
    except OSError as error:
        print(f'ghsched-exporter: cannot listen on {arguments.address} port '
              f'{arguments.port}: {error}', file=sys.stderr)
        return exits.COULD_NOT
    signal.signal(signal.SIGTERM, console.raise_keyboard_interrupt)
    print(f'ghsched-exporter: {arguments.address} port '
          f'{listening.server_port}, /metrics', file=sys.stderr, flush=True)
    with listening, contextlib.suppress(KeyboardInterrupt):
        listening.serve_forever()
    return exits.DONE


def _make_file_collectors(
    arguments: argparse.Namespace
) -> Iterator[prometheus_registry.Collector]:
    """Yield a metrics collector for each file named on the command line."""
    for metrics_of_file in declared_exporter.FILE_METRICS:
        path = getattr(arguments, metrics_of_file.option)
        if path is not None:
            yield metrics_of_file.make_collector(path)


def _make_cloud_metrics_server(
    arguments: argparse.Namespace,
) -> simple_server.WSGIServer:
    """Return an HTTP server that serves the metrics of a whole cloud.

    A thread that reads the cloud periodically is started, too.

    :raises PlannerError: if the cloud is unknown or a module is missing.
    :raises ArgumentTypeError: if an option is malformed.
    :raises OSError: if the server cannot listen on the address.
    """
    cloud = cloud_exporter.make_cloud_reader(arguments)
    registry = prometheus_client.CollectorRegistry()
    registry.register(cloud_metrics.CloudCollector(cloud.get_cloud_reading))
    listening = make_listening_server(make_registry_application(registry),
                                      arguments.address, arguments.port)
    cloud.start_refreshing()
    return listening


if __name__ == '__main__':
    sys.exit(main())

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

"""``ghsched-host blame``: find the guests that slow down a guest."""

import argparse
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import functools
import json
from pathlib import Path
import signal
import socket
import sys
import threading
from typing import Any
from typing import NoReturn

from ghsched_nova.cmd import configured
from ghsched_nova.cmd import console
from ghsched_nova.cmd import domains
from ghsched_nova.cmd import tables
from ghsched_nova.guest import nova_metadata
from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_nova.host import readings
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import reconcile
from ghsched_placement.base import exits
from ghsched_placement.features.blame import blame_report
from ghsched_placement.features.load import pressure


def add_blame_command(subparsers: Any) -> None:
    """Add the sub-command ``blame`` to the parser of ``ghsched-host``."""
    command = console.add_host_command(
        subparsers, 'blame', run_blame_command,
        'find out which guest disturbs another one by memory, from shares of '
        'the bandwidth, their correlation with its own figure, and trials '
        'with caps; exit status 0: there is an answer, 2: wrong usage or an '
        'error')
    command.add_argument('server', metavar='SERVER',
                         help='UUID of the server, its name in Nova, or that '
                              'of its libvirt domain')
    command.add_argument(
        '--prove', action='store_true',
        help='cap the suspected guests briefly, one at a time, and measure '
             'whether the server gets faster; guarantees stay in force')


def run_blame_command(arguments: argparse.Namespace) -> int:
    """Run ``ghsched-host blame``: print which guests slow down a guest.

    Guests slow down each other by their memory traffic.

    :returns: exit status.
    :raises HostError: if the host cannot be read.
    """
    server = find_running_guest(
        domains.list_running_domains(arguments.connect), arguments.server)
    with _exit_on_termination_signals():
        shown = _investigate_slowdown(arguments, server)
    print(json.dumps(shown, indent=2) if arguments.format == 'json'
          else format_blame_report(shown))
    return exits.DONE


def _investigate_slowdown(arguments: argparse.Namespace,
                          server: str) -> dict[str, Any]:
    """Return a report of which guests slow down a guest by memory traffic.

    :param server: UUID of the slowed-down guest.
    :raises HostError: if the guest cannot be investigated.
    """
    # The imports are slow, and other commands of ghsched-host need none.
    from ghsched_nova.features.blame import blame_cap
    from ghsched_nova.features.blame import blame_periods
    from ghsched_nova.features.blame import counters
    from ghsched_nova.features.blame import host_blame

    state_path = configured.read_state_path(arguments.config_file)
    host = _make_host_engine(arguments, state_path)
    investigator = host_blame.Investigator(
        blame_cap.Capper(
            host, threading.RLock(), lambda uuid: next(
                (one for one in domains.list_running_domains(arguments.connect)
                 if one.domain.uuid == uuid), None), _print_cap_event),
        socket.gethostname(), host.running,
        lambda: blame_periods.FORMAT.read(
            state_path / blame_periods.FORMAT.name),
        functools.partial(counters.count_guest_events,
                          Path(host.section.libvirt_run_path)),
        pressure_file=state_path / pressure.FILE)
    try:
        return investigator.investigate_server(server, arguments.prove)
    except host_blame.NotInvestigated as error:
        raise domains.HostError(str(error)) from error


def _make_host_engine(arguments: argparse.Namespace,
                      state_path: Path) -> engine.HostEngine:
    """Return the engine, which sets the bandwidth limits of guests on a host.

    The engine changes resctrl as root, without nova-compute.
    """
    section = configured.read_ghsched_options(arguments.config_file)
    host = engine.HostEngine(section, readings.RoundingCache(
        Path(section.resctrl_path), state_path / readings.FILE, saves=False))
    host.running = lambda: domains.list_running_domains(arguments.connect)
    host.run_reconcile = _set_limits_as_root
    return host


def find_running_guest(
    running: Sequence[desired.Running], name_or_uuid: str
) -> str:
    """Return the UUID of the running guest that has a given name or UUID.

    :param name_or_uuid: name of the server or of the libvirt domain, or UUID.
    :raises HostError: if there is no such guest, or several.
    """
    found = [one.domain.uuid for one in running if name_or_uuid in (
        one.domain.uuid, one.domain.name,
        nova_metadata.read_server_name(one.root) if one.is_readable else '')]
    if len(found) != 1:
        raise domains.HostError(
            f'{len(found) or "no"} running guests of this host are called '
            f'{name_or_uuid!r}; name it by its UUID')
    return found[0]


def _set_limits_as_root(root: Path, run_path: Path,
                        wanted: model.Wanted) -> reconcile.ReconcileReport:
    """Set the bandwidth limits of guests in resctrl, as root.

    nova-compute makes this change in a privileged process. ``ghsched-host``
    already runs as root and needs no such process.

    :param root: path of the resctrl file system.
    :param run_path: path of libvirt's run-time files.
    :param wanted: the desired limits.
    """
    return reconcile.reconcile_groups(reconcile.HostPaths(root, run_path),
                                      wanted)


def _print_cap_event(event: str, uuid: str) -> None:
    """Print that a guest's temporary bandwidth limit (cap) begins or ends.

    :param event: ``start`` or ``end``.
    :param uuid: UUID of the guest.
    """
    print(f'ghsched-host: {event} of a cap on guest {uuid}', file=sys.stderr)


@contextlib.contextmanager
def _exit_on_termination_signals() -> Iterator[None]:
    """Within this context, the signals SIGTERM and SIGHUP raise SystemExit.

    Without an exception, the command would end at once and leave the
    temporary bandwidth limits of guests in place.
    """
    def end(number: int, _frame: object) -> NoReturn:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end)
              for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def format_blame_report(report: dict[str, Any]) -> str:
    """Render the report of ``ghsched-host blame`` as a table and sentences.

    :param report: report on which guests slow down a guest.
    """
    rows = list(blame_report.list_suspect_rows(report))
    parts = [tables.render_table(blame_report.HEADER, rows)] if rows else []
    return '\n'.join([*parts, blame_report.summarize_verdict(report)])

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


"""``ghsched-host retire``: return a host to the stock driver."""

import argparse
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
import logging
import os
from pathlib import Path
import sys
from typing import Any

from ghsched_nova.cmd import configured
from ghsched_nova.cmd import console
from ghsched_nova.cmd import domains
from ghsched_nova.features.doctor import leftovers
from ghsched_nova.features.live_change import set_command
from ghsched_nova.guest import nova_metadata
from ghsched_nova.host import desired
from ghsched_nova.resctrl import fs
from ghsched_placement.base import exits
from ghsched_placement.features.doctor import retire
from ghsched_placement.providers.placement_client import PlacementClient
from ghsched_placement.providers.placement_client import PlacementError

_OURS = 'ghsched.'

_UNREACHED = ('Placement does not answer, or Keystone on the way to it; see '
              '[placement] in nova.conf')


def add_retire_command(subparsers: Any) -> None:
    """Add the sub-command ``retire`` to the parser of ``ghsched-host``."""
    command = console.add_host_command(
        subparsers, 'retire', run_retire_command,
        'remove from Placement what this host has reported to it, before its '
        'nova-compute starts with the stock driver; exit status 0: removed, '
        '1: a guest or an allocation is still there, 2: wrong usage or an '
        'error', formats=('table',))
    command.add_argument(
        '--node', metavar='NAME',
        help='name of the compute node in Nova (default: the hostname that '
             'libvirt reports)')
    command.add_argument(
        '--dry-run', action='store_true',
        help='show what would be removed, and change nothing')


def run_retire_command(arguments: argparse.Namespace) -> int:
    """Run ``ghsched-host retire``: remove ghsched's inventories of this host.

    The command is for a host that will run without ghsched. It also removes
    the resctrl groups of guests.

    :returns: exit status.
    :raises HostError: if the host cannot be read.
    :raises GroupError: if resctrl cannot be used.
    """
    session, section = load_retire_configuration(
        arguments.config_file, arguments.dry_run)
    client = PlacementClient(session)
    node = arguments.node or domains.get_libvirt_host_name(arguments.connect)
    try:
        providers = retire.read_provider_tree(client, node)
        guests = domains.list_all_domains(arguments.connect)
        kept = [
            *_describe_guests_with_policy(guests),
            *_describe_remaining_consumers(providers, {
                guest.domain.uuid for guest in guests
                if desired.may_have_policy(guest.xml)}),
        ]
        if not providers:
            kept.append(f'Placement has no compute node {node}; name it with '
                        '--node')
        for line in kept:
            print(f'ghsched-host: {line}', file=sys.stderr)
        if kept:
            return exits.FOUND
        for step in retire.plan_retirement(providers):
            print(step)
            if not arguments.dry_run:
                retire.apply_retirement_step(client, step)
    except PlacementError as error:
        raise domains.HostError(str(error) if error.code
                                else _UNREACHED) from error
    return _remove_resctrl_groups(
        Path(section.resctrl_path), arguments.dry_run
    )


def load_retire_configuration(
    files: Sequence[str] | None, dry_run: bool
) -> tuple[Any, Any]:
    """Return a Placement client and the ``[ghsched]`` options of this host.

    :param dry_run: whether nothing will be removed. If so, nova-compute may
        still be configured for ghsched's driver.
    :raises HostError: if nova-compute is still configured for ghsched's
        driver, which would report the inventories again.
    """
    if files is None:
        files = configured.list_nova_conf_files()
    try:
        set_command.read_nova_service_conf(
            'nova-compute', files, init_rpc=False
        )
    except set_command.NotHere as error:
        raise domains.HostError(str(error)) from error
    from ghsched_nova.nova_seams import shared
    logging.getLogger('keystoneauth').setLevel(logging.ERROR)
    options = shared.config()
    driver = options.compute_driver or ''
    if driver.startswith(_OURS) and not dry_run:
        raise domains.HostError(
            f'compute_driver = {driver} is still set in {", ".join(files)}; '
            'stop nova-compute, then remove ghsched-compute.conf or set '
            'compute_driver = libvirt.LibvirtDriver')
    try:
        return shared.get_placement_client(), options.ghsched
    except shared.PLACEMENT_DOWN as error:
        raise domains.HostError(_UNREACHED) from error


def _describe_guests_with_policy(
    guests: Sequence[desired.Running],
) -> Iterator[str]:
    """Yield an error message for each guest that still has a bandwidth policy.
    """
    for guest in guests:
        if desired.may_have_policy(guest.xml):
            name = (nova_metadata.read_server_name(guest.root)
                    if guest.is_readable else '')
            yield (f'guest {name or guest.domain.name} '
                   f'({guest.domain.uuid}) has a '
                   'policy of ghsched; move it away, or resize it to a '
                   'flavor without one')


def _describe_remaining_consumers(
    providers: Sequence[retire.RetiredProvider], described: Collection[str],
) -> Iterator[str]:
    """Yield an error message for each consumer of ghsched's resources.

    :param described: UUIDs of guests of this host, which are left out.
    """
    held: dict[str, list[str]] = {}
    for provider in providers:
        for consumer in provider.holders:
            held.setdefault(consumer, []).append(provider.name)
    for consumer in sorted(held.keys() - set(described)):
        yield (f'consumer {consumer} holds what {", ".join(held[consumer])} '
               'offers; it is a server that is stopped or moving, or see '
               '"nova-manage placement audit"')


def _remove_resctrl_groups(resctrl_path: Path, dry_run: bool) -> int:
    """Remove the resctrl groups that ghsched created.

    The kernel moves the tasks of the groups into the root group.

    :param dry_run: whether to only print what would be removed.
    :returns: exit status.
    """
    if not os.path.isdir(resctrl_path / 'info'):
        return exits.DONE
    files, status = fs.Files(), exits.DONE
    with fs.resctrl_lock(files, resctrl_path, fs.LOCK_TIMEOUT):
        for path in leftovers.list_own_groups(files, resctrl_path):
            print(f'remove the control group {path}')
            try:
                if not dry_run:
                    files.remove_directory(path)
            except OSError as error:
                print(f'ghsched-host: {error}', file=sys.stderr)
                status = exits.FOUND
    return status

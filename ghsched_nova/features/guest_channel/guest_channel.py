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
"""Channels between this host and guests with ``ghsched:guest_channel``.

Each channel is a virtio-serial port, to which nova-compute writes through
libvirt. It is opened when its guest starts or arrives, and again with a report
of the host if it has ended. A guest whose port cannot be opened runs without
being informed. A guest is informed of a change of its policy and of a move
when they are done, and within a second that the host cannot enforce its
policy, or can again.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import logging
from pathlib import Path
import threading
import time
from typing import Any

from lxml import etree

from ghsched_nova.base import record_file
from ghsched_nova.features.guest_channel import channel as channels
from ghsched_nova.features.guest_channel import class_moves
from ghsched_nova.features.guest_channel import domain_facts
from ghsched_nova.features.guest_channel import lines
from ghsched_nova.features.guest_channel import stream as streams
from ghsched_nova.guest import document
from ghsched_nova.guest import metadata
from ghsched_nova.guest import nova_metadata
from ghsched_nova.host import bandwidth_use
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_nova.monitor import view
from ghsched_placement.features.guest_channel import channel_part
from ghsched_placement.features.load import pressure
from ghsched_placement.flavor.policy import GuestPolicy

LOG = logging.getLogger(__name__)

#: Seconds between two checks for requests of guests and lost protection.
POLL_PERIOD_S = 1.0
_ALIAS = 'ua-ghsched-'
#: VIR_DOMAIN_METADATA_ELEMENT and VIR_DOMAIN_AFFECT_LIVE.
_ELEMENT, _LIVE = 2, 1
#: VIR_DOMAIN_JOB_NONE.
_NO_JOB = 0
#: Function that enforces other classes, given UUID and lists of vCPUs.
SetClasses = Callable[[str, Mapping[str, str]], desired.Running]
#: Function that reads the limits in force of some guests.
Measure = Callable[[Sequence[view.MonitoredGuest]], view.Snapshot | None]


class GuestChannels(compute_hooks.ComputeHooks):
    """Channels of the guests of this host; thread-safe.

    :param connect: function that returns a connection of libvirt.
    :param get_not_held: function that returns, by UUID of the guest, why its
        policy is not enforced; enforced policies are left out.
    :param set_classes: function that enforces other vCPU classes of a running
        guest, and returns the domain.
    :param list_running: function that reads all running guests from libvirt.
    :param measure: function that reads the limits in force of some guests.
    :param path: file with the pressure that guests report.
    """

    def __init__(self, connect: Callable[[], Any],
                 get_not_held: Callable[[], Mapping[str, str]],
                 set_classes: SetClasses,
                 list_running: Callable[[], Sequence[desired.Running]],
                 measure: Measure, path: Path) -> None:
        self._connect = connect
        self._get_not_held = get_not_held
        self._set_classes = set_classes
        self._list_running = list_running
        self._measure = measure
        self._follower: threading.Thread | None = None
        self._lock = threading.Lock()
        self._channels: dict[str, channels.Channel] = {}
        self._usage: dict[str, view.GuestUsage] = {}
        self._capacity: dict[int, int] = {}
        self._file = record_file.RecordFile(path, pressure.FILE_FORMAT)
        self._pressures: pressure.Pressures = self._file.read()

    def render(self, xml: str, guest: compute_hooks.StartingGuest) -> str:
        """Return a domain XML with the guest channel's port, if requested."""
        part = guest.policy.get_part(channel_part.ChannelPart)
        return add_channel_port(xml, part.mode) if part.is_open else xml

    def reconcile_guest(self, running: desired.Running,
                        has_arrived: bool = False) -> None:
        """Send its state to a guest that starts, arrives or changes."""
        if lines.PORT in running.xml:
            channel = self._channels.get(running.domain.uuid)
            if has_arrived and channel is not None:
                # A report found the guest here before its move was over.
                channel.forget_state()
            self._read_and_inform(
                [running], lines.MOVED if has_arrived else lines.STARTED)

    def observe(self, snapshot: compute_hooks.HostSnapshot) -> None:
        """Send changed states to guests, and record the pressure they report.

        Channels that have ended are opened again.
        """
        with self._lock:
            if snapshot.bandwidth is not None:
                self._usage.clear()
                self._store_limits(snapshot.bandwidth)
            self._end_streams_of_lost_connection()
            new = self._list_new_guests(snapshot)
            for uuid in self._channels.keys() - new - {
                    one.domain.uuid for one in snapshot.running}:
                self._close(uuid)
                self._usage.pop(uuid, None)
            known = [one for one in snapshot.running
                     if one.domain.uuid not in new]
            # A guest may have been changed since the host was read.
            news = {one.domain.uuid for one in known if self._has_news(one)}
            for one in (*(one for one in known if one.domain.uuid not in news),
                        *self._read_guests(news)):
                self._send_state(one, lines.REPEATED)
            for channel in self._channels.values():
                channel.is_listed = True
            pressures = {
                one.domain.uuid: pressure.ReportedPressure(
                    found, nova_metadata.read_project_id(one.root),
                    nova_metadata.read_flavor_name(one.root))
                for one in snapshot.running
                if (found := self._find_pressure(one.domain.uuid))}
        if pressures or self._pressures:
            self._file.write(pressures)
        self._pressures = pressures

    def _end_streams_of_lost_connection(self) -> None:
        """Close the streams of libvirt connections that have been replaced.

        libvirt reports no event on a stream whose libvirtd has ended. Lines
        that libvirtd had not yet passed to the guest are lost.
        """
        if not self._channels:
            return
        try:
            connection = self._connect()
        except Exception:  # libvirtd is not back
            connection = None
        for channel in self._channels.values():
            if channel.stream and channel.connection is not connection:
                channel.stream.close()

    def _list_new_guests(self, snapshot: compute_hooks.HostSnapshot
                         ) -> set[str]:
        """Return the UUIDs of guests that started after a snapshot was begun.

        The snapshot does not have them, or has their state before a reboot.
        """
        ids = {one.domain.uuid: one.domain.id for one in snapshot.running}
        return {uuid for uuid, channel in self._channels.items()
                if not channel.is_listed
                and ids.get(uuid) != channel.domain_id}

    def make_diagnostics(self, guest: Any,
                         found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a guest's last report of its pressure, as diagnostics."""
        found_pressure = self._find_pressure(guest.uuid)
        return (pressure.make_pressure_diagnostics(found_pressure)
                if found_pressure
                else {})

    def _find_pressure(self, uuid: str) -> pressure.Pressure | None:
        """Return the pressure that a guest reported; None if it is not recent.
        """
        channel = self._channels.get(uuid)
        return channel.stream.pressure if channel and channel.stream else None

    def _store_limits(self, bandwidth: view.Snapshot | None) -> None:
        """Store the limits in force of guests; keep those of other guests."""
        for usage in bandwidth.guests if bandwidth else ():
            self._usage[usage.guest.uuid] = usage
        self._capacity |= {
            usage.nodes[0]: usage.capacity
            for usage in (bandwidth.nodes if bandwidth else ())
            if len(usage.nodes) == 1 and usage.capacity}

    def _read_and_inform(self, running: Sequence[desired.Running], first: str,
                         always: bool = False) -> None:
        """Read the limits in force of guests, and send guests their states."""
        limits = self._measure(
            bandwidth_use.list_guests_and_policies(running))
        with self._lock:
            for one in running:
                self._usage.pop(one.domain.uuid, None)
            self._store_limits(limits)
            for one in running:
                self._send_state(one, first, always)

    def _read_state(self, running: desired.Running
                    ) -> tuple[str, lines.GuestState] | None:
        """Return a guest's channel mode and state; None without a channel.

        A guest that cannot be read has the policy that was last sent to it.
        """
        if running.xml and lines.PORT not in running.xml:
            return None
        uuid = running.domain.uuid
        is_enforced = uuid not in self._get_not_held()
        try:
            found = running.policy or metadata.DomainPolicy(GuestPolicy(), ())
            mode = read_channel_mode(running.root)
            facts = domain_facts.describe_domain_for_guest(running.root)
        except desired.POLICY_ERRORS:
            channel = self._channels.get(uuid)
            return (channel.mode, dataclasses.replace(
                channel.last, is_enforced=is_enforced, effective=(),
                effective_by_class={})) if channel and channel.last else None
        return (mode, lines.make_guest_state(
            found.policy, found.host_nodes, is_enforced,
            self._usage.get(uuid), self._capacity, facts)) if mode else None

    def _has_news(self, running: desired.Running) -> bool:
        """Whether a guest's state differs from the state last sent to it."""
        channel = self._channels.get(running.domain.uuid)
        found = self._read_state(running)
        return bool(channel and found and found[1] != channel.last)

    def _send_state(self, running: desired.Running, first: str,
                    always: bool = False) -> None:
        """Send a guest its state, if it has a channel and the state is new.

        :param first: reason of the first line.
        :param always: whether an unchanged state is sent, too.
        """
        found = self._read_state(running)
        if found is None:
            return
        mode, state = found
        uuid = running.domain.uuid
        channel = self._channels.get(uuid)
        if channel is None or channel.domain_id != running.domain.id:
            self._close(uuid)
            channel = channels.Channel(running.domain.id, mode)
            self._channels[uuid] = channel
        channel.log_problems(uuid)
        try:
            self._send_line(uuid, channel, state, first, always)
        except Exception as error:
            if channels.is_domain_gone_error(error):
                self._close(uuid)
                return
            channel.log(uuid, f'{error}; trying again with each report of '
                        'the host')

    def _send_line(self, uuid: str, channel: channels.Channel,
                   state: lines.GuestState, first: str, always: bool) -> None:
        """Open a guest's stream if necessary, and send a new state on it."""
        reason = channel.choose_reason(state, first) or (
            lines.REPEATED if always else '')
        if channel.stream is None or not channel.stream.is_open:
            channel.connection = self._connect()
            channel.stream = self._open(
                channel.connection, uuid, channel.mode)
            if self._follower is None:
                self._follower = threading.Thread(
                    target=self._poll, name='ghsched-channels', daemon=True)
                self._follower.start()
        if reason:
            why = lines.explain_change(channel.last, state, reason) if (
                channel.last) else ''
            channel.sending = state, reason
            channel.stream.send(lines.render_line(state, reason, why),
                                lines.render_line(state, lines.REPEATED))

    def _poll(self) -> None:
        while True:
            time.sleep(POLL_PERIOD_S)
            self.serve_vcpu_move_requests()
            try:
                self.inform_of_enforcement_changes()
            except Exception as error:
                LOG.warning('ghsched: cannot inform guests whether their '
                            'policies are enforced; retrying: %s', error)

    def inform_of_enforcement_changes(self) -> None:
        """Inform guests whose policy is no longer, or is again, enforced."""
        with self._lock:
            not_held = self._get_not_held()
            changed = {
                uuid for uuid, channel in self._channels.items()
                if channel.stream and channel.stream.is_open and channel.last
                and channel.last.is_enforced == (uuid in not_held)}
        if running := self._read_guests(changed):
            self._read_and_inform(running, lines.REPEATED)

    def _read_guests(self, uuids: Collection[str]) -> list[desired.Running]:
        """Read the running guests that have the given UUIDs."""
        return [one for one in (self._list_running() if uuids else ())
                if one.domain.uuid in uuids]

    def serve_vcpu_move_requests(self) -> None:
        """Move vCPUs between classes of guests as the guests requested."""
        with self._lock:
            channels = list(self._channels.items())
        for uuid, channel in channels:
            request = channel.stream and channel.stream.pop_move_request()
            if not request:
                continue
            try:
                self._answer_class_request(uuid, channel, request)
            except Exception as error:
                # Such as of a stream that ends meanwhile.
                with self._lock:
                    channel.log(uuid, f'cannot answer it: {error}')

    def _answer_class_request(self, uuid: str, channel: channels.Channel,
                              request: lines.VcpuMoveRequest) -> None:
        now, running = time.monotonic(), None
        try:
            if (len(channel.moves) == channels.MOVES_PER_MINUTE
                    and now - channel.moves[0] < 60.0):
                raise class_moves.NotMovedError(
                    f'not more than {channels.MOVES_PER_MINUTE} times in a '
                    'minute')
            channel.moves.append(now)
            running, why = self._set_classes(uuid, request.vcpus), ''
        except class_moves.NotMovedError as error:
            why = str(error)
        except Exception as error:
            why = 'the host could not do it'
            with self._lock:
                channel.log(uuid, 'cannot move vCPUs between vCPU classes: '
                            f'{error}')
        stream, state = channel.stream, channel.last
        if stream is None or not stream.is_open:
            return
        if running is not None:
            self._read_and_inform([running], lines.CHANGED, always=True)
        elif state is not None:
            stream.send(lines.render_line(state, lines.REFUSED, why),
                        lines.render_line(state, lines.REPEATED))

    @staticmethod
    def _open(connection: Any, uuid: str, mode: str) -> streams.GuestStream:
        stream = connection.newStream(streams.NONBLOCK)
        connection.lookupByUUIDString(uuid).openChannel(
            lines.PORT, stream, streams.FORCE)
        return streams.GuestStream(stream, mode == 'write')

    def _close(self, uuid: str) -> None:
        channel = self._channels.pop(uuid, None)
        if channel is not None and channel.stream is not None:
            channel.stream.close()


def make_compute_hooks(services: compute_hooks.ComputeServices
                       ) -> GuestChannels:
    """Return nova-compute's channels of guests."""
    return GuestChannels(
        lambda: services.libvirt_host.get_connection(),
        lambda: services.engine.not_held,
        lambda uuid, asked: set_vcpu_classes(services, uuid, asked),
        services.list_running,
        bandwidth_use.BandwidthMeter(services.section).measure_bandwidth,
        services.state_path / pressure.FILE)


def set_vcpu_classes(services: compute_hooks.ComputeServices, uuid: str,
                     asked: Mapping[str, str]) -> desired.Running:
    """Move vCPUs of a running guest between its vCPU classes.

    Only the live metadata of the domain is changed; the next start of the
    server restores the classes of its flavor.

    :param asked: list of vCPUs by name of the class, as the guest wrote it.
    :returns: the domain with the new classes.
    :raises NotMovedError: if the guest may not have these classes.
    :raises GroupError: if the kernel refuses the move.
    """
    domain = services.libvirt_host.get_connection().lookupByUUIDString(uuid)
    # A migration keeps the metadata locked until it ends.
    if domain.jobInfo()[0] != _NO_JOB:
        raise class_moves.NotMovedError('the server is being moved or saved')
    with services.changing:
        running = services.find_running(uuid)
        found = running.policy if running else None
        if running is None or found is None:
            raise class_moves.NotMovedError('this server has no vCPU classes')
        nodes = [cell.vcpus for cell in running.cells]
        classes = class_moves.move_vcpus(
            found.policy.classes, class_moves.parse_vcpu_request(
                asked, sum(map(len, nodes))), nodes)
        try:
            _write_policy(domain, dataclasses.replace(
                found, policy=dataclasses.replace(found.policy,
                                                  classes=classes)))
            moved = desired.parse_running_domain(domain.XMLDesc(0),
                                                 running.domain.id)
            services.engine.reconcile_guest(moved)
        except Exception:
            _write_policy(domain, found)
            services.engine.reconcile_guest(running)
            raise
        return moved


def _write_policy(domain: Any, policy: metadata.DomainPolicy) -> None:
    domain.setMetadata(_ELEMENT, metadata.render_policy(policy),
                       metadata.PREFIX, metadata.NAMESPACE, _LIVE)


def add_channel_port(xml: str, mode: str) -> str:
    """Return a domain XML with the virtio port of a guest channel.

    libvirt does not change an alias that begins with ``ua-``.

    :param mode: ``read`` or ``write``, which is stored in the port's alias.
    :raises DocumentError: if the document is not a domain.
    """
    root = document.parse_document(xml)
    devices = root.find('devices')
    if devices is None or devices.find(
            f"channel/target[@name='{lines.PORT}']") is not None:
        return xml
    channel = etree.Element('channel', type='unix')
    etree.SubElement(channel, 'target', type='virtio', name=lines.PORT)
    etree.SubElement(channel, 'alias', name=_ALIAS + mode)
    document.insert_children(devices, [channel], len(devices))
    return document.render_document(root)


def read_channel_mode(domain: etree._Element) -> str:
    """Return the mode of a domain's guest channel; empty without one.

    :param domain: root element of the domain XML.
    """
    for channel in domain.iterfind('devices/channel'):
        alias = channel.find('alias')
        if channel.find(f"target[@name='{lines.PORT}']") is not None:
            return ('' if alias is None else
                    str(alias.get('name', '')).removeprefix(_ALIAS))
    return ''

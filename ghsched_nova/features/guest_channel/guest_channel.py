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
libvirt. It is opened when its guest starts or arrives, and again with a
report of the host if it has ended. A guest whose port cannot be opened runs
on without news.
"""

import collections
from collections.abc import Mapping
import logging
import threading
import time
from typing import Any

from lxml import etree

from ghsched_nova.features.guest_channel import lines
from ghsched_nova.features.guest_channel import stream as streams
from ghsched_nova.guest import document
from ghsched_nova.guest import metadata
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_nova.monitor import view
from ghsched_placement.features.guest_channel import channel_part
from ghsched_placement.flavor.policy import GuestPolicy

LOG = logging.getLogger(__name__)

#: Name of the guest's pressure in its diagnostics.
KEY = 'ghsched_pressure'
#: Seconds between two messages about one guest.
LOG_PERIOD_S = 3600.0
_ALIAS = 'ua-ghsched-'
#: Maximum number of guests that were rendered and have not started.
MAX_RENDERED = 1000


class _Channel:
    """Stream of a guest, and the state of which it was informed last."""

    def __init__(self) -> None:
        self.stream: streams.GuestStream | None = None
        self.informed: lines.GuestState | None = None
        self.logged_at = float('-inf')


class GuestChannels(compute_hooks.ComputePart):
    """Channels of the guests of this host; thread-safe.

    :param connect: function that returns a connection of libvirt.
    :param not_held: reason by UUID of each guest whose policy is not enforced.
    """

    def __init__(self, connect: Any, not_held: Mapping[str, str]) -> None:
        self._connect = connect
        self._not_held = not_held
        self._lock = threading.Lock()
        self._channels: dict[str, _Channel] = {}
        self._usage: dict[str, view.GuestUsage] = {}
        self._capacity: dict[int, int] = {}
        self._rendered: collections.deque[str] = collections.deque(
            maxlen=MAX_RENDERED)

    def render(self, xml: str, guest: compute_hooks.StartingGuest) -> str:
        """Return a domain XML with the port, if the policy requests it."""
        part = guest.policy.get_part(channel_part.ChannelPart)
        if not part.is_open:
            return xml
        xml, uuid = add_port(xml, part.mode)
        self._rendered.append(uuid)
        return xml

    def reconcile_guest(self, running: desired.Running) -> None:
        """Open the channel of a guest that starts or has arrived."""
        uuid = running.domain.uuid
        reason = lines.MOVED
        if uuid in self._rendered:
            self._rendered.remove(uuid)
            reason = lines.STARTED
        with self._lock:
            self._close(uuid)
            self._inform(running, reason)

    def observe(self, snapshot: compute_hooks.HostSnapshot) -> None:
        """Inform guests of changes, and open channels that have ended."""
        with self._lock:
            if snapshot.bandwidth is not None:
                self._usage = {usage.guest.uuid: usage
                               for usage in snapshot.bandwidth.guests}
                self._capacity = {
                    usage.nodes[0]: usage.capacity
                    for usage in snapshot.bandwidth.nodes
                    if len(usage.nodes) == 1 and usage.capacity}
            for uuid in self._channels.keys() - {
                    one.domain.uuid for one in snapshot.running}:
                self._close(uuid)
            for one in snapshot.running:
                self._inform(one, lines.REPEATED)

    def make_diagnostics(self, guest: Any,
                         found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the pressure that a guest has reported."""
        channel = self._channels.get(guest.uuid)
        pressure = channel and channel.stream and channel.stream.pressure
        return {KEY: {**vars(pressure)}} if pressure else {}

    def _inform(self, running: desired.Running, reason: str) -> None:
        """Inform a guest of its state, if it has a channel and there is news.

        :param reason: reason in the first line on a new stream.
        """
        if lines.PORT not in running.xml:
            return
        uuid = running.domain.uuid
        try:
            found = running.policy or metadata.DomainPolicy(GuestPolicy(), ())
            mode = read_mode(running.root)
        except desired.POLICY_ERRORS:
            return
        state = lines.make_state(
            found.policy, found.host_nodes, uuid not in self._not_held,
            self._usage.get(uuid), self._capacity)
        channel = self._channels.setdefault(uuid, _Channel())
        self._log_problems(running, channel)
        try:
            stream = channel.stream
            if stream is None or not stream.is_open:
                stream = self._open(uuid, mode)
                channel.stream = stream
            elif channel.informed is not None:
                reason = lines.choose_reason(channel.informed, state)
            if reason:
                stream.send(lines.render_line(state, reason),
                            lines.render_line(state, lines.REPEATED))
                channel.informed = state
        except Exception as error:  # of libvirt, or that QEMU is gone
            self._log(running, channel, error)

    def _open(self, uuid: str, mode: str) -> streams.GuestStream:
        connection = self._connect()
        stream = connection.newStream(streams.NONBLOCK)
        connection.lookupByUUIDString(uuid).openChannel(
            lines.PORT, stream, streams.FORCE)
        return streams.GuestStream(stream, mode == 'write')

    def _close(self, uuid: str) -> None:
        channel = self._channels.pop(uuid, None)
        if channel is not None and channel.stream is not None:
            channel.stream.close()

    def _log_problems(self, running: desired.Running,
                      channel: _Channel) -> None:
        """Log once an hour that a guest writes what it should not."""
        stream = channel.stream
        if stream is None:
            return
        if stream.is_flooding:
            self._log(running, channel, 'the guest wrote more than '
                      f'{streams.MAX_RECEIVED} bytes in a minute')
        elif stream.malformed:
            self._log(running, channel,
                      f'{stream.malformed} lines of the guest are malformed')

    def _log(self, running: desired.Running, channel: _Channel,
             problem: object) -> None:
        now = time.monotonic()
        if now - channel.logged_at >= LOG_PERIOD_S:
            channel.logged_at = now
            LOG.warning('ghsched: cannot use the channel of guest %(guest)s '
                        'now; trying again with each report of the host: '
                        '%(problem)s',
                        {'guest': running.domain.uuid, 'problem': problem})


def make_part(services: compute_hooks.ComputeServices) -> GuestChannels:
    """Return the part of guests' channels in nova-compute."""
    return GuestChannels(lambda: services.libvirt_host.get_connection(),
                         services.engine.not_held)


def add_port(xml: str, mode: str) -> tuple[str, str]:
    """Return a domain XML with the port of the channel, and its UUID.

    libvirt keeps an alias that begins with ``ua-`` as it is.

    :param mode: ``read`` or ``write``; the alias of the port keeps it.
    :raises DocumentError: if the document is not a domain.
    """
    root = document.parse_document(xml)
    uuid = root.findtext('uuid') or ''
    devices = root.find('devices')
    if devices is None or devices.find(
            f"channel/target[@name='{lines.PORT}']") is not None:
        return xml, uuid
    channel = etree.Element('channel', type='unix')
    etree.SubElement(channel, 'target', type='virtio', name=lines.PORT)
    etree.SubElement(channel, 'alias', name=_ALIAS + mode)
    document.insert_children(devices, [channel], len(devices))
    return document.render_document(root), uuid


def read_mode(domain: etree._Element) -> str:
    """Return the mode of the channel that a domain has.

    :param domain: root element of the domain XML.
    """
    for channel in domain.iterfind('devices/channel'):
        alias = channel.find('alias')
        if channel.find(f"target[@name='{lines.PORT}']") is not None:
            return ('' if alias is None else
                    str(alias.get('name', '')).removeprefix(_ALIAS))
    return ''

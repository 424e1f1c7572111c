#!/usr/bin/python3 -I
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


"""Lets unmodified libvirt run ``<domain type='kvm'>`` without KVM, on TCG.

libvirt refuses ``<memorytune>`` and ``<cachetune>`` for any other domain
type. This file is copied under the name of an emulator
(``qemu-system-x86_64``) into a directory that libvirtd has first in PATH.

* When libvirt probes the emulator (``-machine none,accel=kvm:tcg -qmp ...``),
  QEMU is started with TCG behind a QMP proxy that reports KVM as there:
  ``query-kvm`` and, of newer versions, ``query-accelerators``. The CPU model
  ``host``, which TCG does not have, becomes ``max``.
* When libvirt starts a guest, the arguments are rewritten and QEMU is
  executed in place: same pid, same open files. vCPUs get a thread each,
  because libvirt only knows the threads of such guests.
* Memory is bound to a host NUMA node only if the kernel has that node; a
  node that merely appears in a faked /sys is left out. This covers guests as
  they are started, not memory that is plugged in later.
* Memory in pages of 1 GB is ordinary memory: the machine has none of these
  pages.

Only the standard library is used: libvirtd starts it with the system's
Python. Checked with libvirt 9.0 and QEMU 7.2.
"""

import json
import os
import shutil
import socket
import subprocess  # noqa: S404
import sys
import tempfile
import threading
from typing import Any

#: Directory of the real emulators.
REAL_DIR = '/usr/bin'
#: Name of the directory that libvirt finds pages of 1 GB in.
GIGANTIC_PAGES = 'hugepages-1048576kB'
#: How long libvirt may take to connect after QEMU is up, in seconds.
CONNECT_TIMEOUT = 60


# Arguments (pure) --------------------------------------------------------


def _value_index(args: list[str], option: str) -> int:
    """Return the index of an option's value in arguments; 0 if the option is
    missing.
    """
    if option in args[:-1]:
        return args.index(option) + 1
    return 0


def is_probe(args: list[str]) -> bool:
    """Whether libvirt asks what the emulator can do, with KVM first."""
    machine = _value_index(args, '-machine')
    monitor = _value_index(args, '-qmp')
    if not machine or not monitor:
        return False
    parts = args[machine].split(',')
    return (
        parts[0] == 'none'
        and any(x.split(':')[0] == 'accel=kvm' for x in parts)
        and args[monitor].startswith('unix:')
    )


def monitor_path(args: list[str]) -> str:
    """Return the socket that a probe wants QMP on."""
    value = args[_value_index(args, '-qmp')]
    return value.split(',')[0].partition(':')[2]


def probe_args(args: list[str], path: str) -> list[str]:
    """Return a probe's arguments for TCG, with QMP on another socket."""
    args = list(args)
    args[_value_index(args, '-machine')] = 'none,accel=tcg'
    args[_value_index(args, '-qmp')] = f'unix:{path},server=on,wait=off'
    return args


def rewrite(args: list[str], real_nodes: set[int]) -> list[str]:
    """Return a guest's arguments for TCG.

    :param real_nodes: NUMA nodes that memory can be bound to.
    """
    result = list(args)
    for index in range(1, len(result)):
        change = _CHANGES.get(result[index - 1])
        if change is not None:
            result[index] = change(result[index], real_nodes)
    return result


def _accel(value: str, _nodes: set[int]) -> str:
    if value.split(',')[0] == 'kvm':
        return 'tcg,thread=multi'
    return value


def _machine(value: str, _nodes: set[int]) -> str:
    parts = []
    for part in value.split(','):
        if part.startswith('accel=kvm'):
            part = 'accel=tcg'
        # Both need KVM.
        if not part.startswith(('kernel_irqchip=', 'kernel-irqchip=')):
            parts.append(part)
    return ','.join(parts)


def _cpu(value: str, _nodes: set[int]) -> str:
    # With its features: they are the host's, and migratable= is only known
    # to the model "host".
    return 'max' if value.split(',')[0] == 'host' else value


def _object(value: str, real_nodes: set[int]) -> str:
    if not value.startswith('{'):
        return _object_of_old(value, real_nodes)
    try:
        props = json.loads(value)
    except ValueError:
        return value
    _bind_to_real_nodes(props, real_nodes)
    if GIGANTIC_PAGES in str(props.get('mem-path', '')).split('/'):
        props['qom-type'] = 'memory-backend-ram'
        del props['mem-path']
        for name in ('prealloc', 'prealloc-context'):
            props.pop(name, None)
    return json.dumps(props)


def _bind_to_real_nodes(props: dict[str, Any], real_nodes: set[int]) -> None:
    nodes = props.get('host-nodes')
    if not isinstance(nodes, list) or set(nodes) <= real_nodes:
        return
    kept = [node for node in nodes if node in real_nodes]
    props['host-nodes'] = kept
    if not kept:
        del props['host-nodes']
        props.pop('policy', None)


def _object_of_old(value: str, real_nodes: set[int]) -> str:
    """``memory-backend-ram,id=x,host-nodes=0-1,policy=bind``."""
    parts = value.split(',')
    nodes = [x.partition('=')[2] for x in parts if x.startswith('host-nodes=')]
    named: set[int] = set()
    for one in nodes:
        named |= parse_nodes(one)
    if named <= real_nodes:
        return value
    kept = [f'host-nodes={node}' for node in sorted(named & real_nodes)]
    drop = ['host-nodes='] if kept else ['host-nodes=', 'policy=']
    rest = [x for x in parts if not x.startswith(tuple(drop))]
    return ','.join(rest + kept)


_CHANGES = {
    '-accel': _accel,
    '-machine': _machine,
    '-M': _machine,
    '-cpu': _cpu,
    '-object': _object,
}


def parse_nodes(text: str) -> set[int]:
    """``0-1,4`` -> {0, 1, 4}."""
    nodes: set[int] = set()
    for part in text.strip().split(','):
        first, _, last = part.partition('-')
        if first.isdigit() and (last or first).isdigit():
            nodes.update(range(int(first), int(last or first) + 1))
    return nodes


def allowed_nodes(status: str) -> set[int]:
    """Return NUMA nodes that the kernel knows, from /proc/self/status.

    A faked /sys/devices/system/node does not show there.
    """
    for line in status.splitlines():
        name, _, value = line.partition(':')
        if name == 'Mems_allowed_list':
            return parse_nodes(value)
    return {0}


# QMP (pure) --------------------------------------------------------------


def to_qemu(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request of libvirt as QEMU on TCG understands it."""
    arguments = request.get('arguments')
    if not isinstance(arguments, dict):
        return request
    model = arguments.get('model')
    if isinstance(model, dict) and model.get('name') == 'host':
        model = dict(model, name='max')
        arguments = dict(arguments, model=model)
        request = dict(request, arguments=arguments)
    return request


def to_libvirt(command: str | None, reply: dict[str, Any]) -> dict[str, Any]:
    """QEMU's reply to ``command``, with KVM there."""
    if command == 'query-kvm' and 'return' in reply:
        return dict(reply, **{'return': {'enabled': True, 'present': True}})
    if command == 'query-accelerators' and 'return' in reply:
        found = dict(reply['return'])
        found['enabled'] = 'kvm'
        found['present'] = sorted(set(found.get('present', [])) | {'kvm'})
        return dict(reply, **{'return': found})
    return reply


# Edges -------------------------------------------------------------------


class _Proxy:
    """Passes QMP on between libvirt and QEMU, line by line."""

    def __init__(self, front: socket.socket, back: socket.socket):
        self._front = front
        self._back = back
        self._commands: dict[Any, str | None] = {}
        self._lock = threading.Lock()

    def run(self) -> None:
        thread = threading.Thread(target=self._requests, daemon=True)
        thread.start()
        for line in self._back.makefile('rb'):
            try:
                self._front.sendall(self._reply(line))
            except OSError:
                break

    def _requests(self) -> None:
        for line in self._front.makefile('rb'):
            try:
                request = json.loads(line)
                with self._lock:
                    self._commands[request.get('id')] = request.get('execute')
                line = json.dumps(to_qemu(request)).encode() + b'\r\n'
            except (ValueError, AttributeError):
                pass  # not ours to judge: QEMU answers with the error
            self._back.sendall(line)
        # libvirt is gone; without this QEMU's side would never end.
        self._back.shutdown(socket.SHUT_RDWR)

    def _reply(self, line: bytes) -> bytes:
        reply = json.loads(line)
        with self._lock:
            command = self._commands.pop(reply.get('id'), None)
        return json.dumps(to_libvirt(command, reply)).encode() + b'\r\n'


def probe(real: str, args: list[str]) -> int:
    """Start QEMU behind a proxy; returns the status for libvirt.

    The caller's process ends when both sockets are up, as QEMU's own does
    with -daemonize.
    """
    private = tempfile.mkdtemp(prefix='qmp-')
    path = os.path.join(private, 'sock')
    try:
        status = subprocess.call([real] + probe_args(args, path))  # noqa: S603
        if status:
            return status
        back = socket.socket(socket.AF_UNIX)
        back.connect(path)
    finally:
        shutil.rmtree(private, ignore_errors=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(monitor_path(args))
    listener.listen(1)
    if os.fork():
        return 0
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    listener.settimeout(CONNECT_TIMEOUT)
    front, _ = listener.accept()
    front.settimeout(None)
    _Proxy(front, back).run()
    os._exit(0)


def main(argv: list[str]) -> int:
    """Run as an emulator of that name; argv[0] names it."""
    real = os.path.join(REAL_DIR, os.path.basename(argv[0]))
    if not os.access(real, os.X_OK):
        sys.stderr.write(f'{real}: no such emulator\n')
        return 127
    args = argv[1:]
    if is_probe(args):
        return probe(real, args)
    with open('/proc/self/status') as stream:
        nodes = allowed_nodes(stream.read())
    os.execv(real, [real] + rewrite(args, nodes))  # noqa: S606


if __name__ == '__main__':
    sys.exit(main(sys.argv))

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


"""Privileged helpers (oslo.privsep) of nova-compute for ghsched.

Files of resctrl belong to root and are writable for their owner (the kernel
creates them with mode 0644), and locking the mount point only requires opening
it. But the kernel creates the top directory and ``mon_groups`` below it with
mode 0555 (``kernfs_create_root`` of Linux), so not even their owner can create
a control group there without CAP_DAC_OVERRIDE. The helper has no other
capability; it needs none to read the names of QEMU's threads in /proc. Files
of /proc/irq belong to root, too (kernel/irq/proc.c creates them with mode
0644).

:func:`entrypoint` registers a function with a helper: the helper checks its
arguments (:mod:`ghsched_nova.base.bounds`), and the caller waits for a limited
time. The helper is root and its caller is not, so the permitted values of
numbers and names come from the helper's own configuration. They bound the
caller only if it cannot choose that configuration, see "Privileges" in the
manual.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import logging
from pathlib import Path
import socket
import threading
from typing import Annotated
from typing import Any
from typing import ParamSpec
from typing import TypeVar

from oslo_config import cfg
from oslo_privsep import capabilities
from oslo_privsep import comm
from oslo_privsep import priv_context

from ghsched_nova.base import bounds
from ghsched_nova.base import qemu
from ghsched_nova import conf

LOG = logging.getLogger(__name__)

conf.register_opts(cfg.CONF)

#: Maximum time-out of a call in seconds.
MAX_TIMEOUT = 600.0
#: Seconds after which sending a call to a helper that does not read fails.
SEND_TIMEOUT = 60.0

#: Process or thread ID up to PID_MAX_LIMIT of include/linux/threads.h.
Pid = Annotated[int, bounds.Range(1, 2 ** 22)]
#: Start time of a thread in clock ticks since boot.
StartTime = Annotated[int, bounds.Range(0, 2 ** 63 - 1)]

_Arguments = ParamSpec('_Arguments')
_Result = TypeVar('_Result')


class HelperTimeout(Exception):  # noqa: N818
    """Raised if a privileged helper does not answer in time.

    The helper may still carry out the call.
    """


class Context(priv_context.PrivContext):
    """oslo.privsep context with a time-out for sending a call to the helper.

    oslo.privsep sends under a lock that all calls of a context share. Without
    a time-out, a helper that is stopped would block all calls.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._counting = threading.Lock()
        self._calls = 0
        self._used = False

    @contextlib.contextmanager
    def call_in_progress(self) -> Iterator[None]:
        """Within this context, the helper does not count as idle."""
        with self._counting:
            self._calls += 1
            self._used = True
        try:
            yield
        finally:
            with self._counting:
                self._calls -= 1

    def stop_if_idle(self) -> None:
        """Stop the helper if nothing was called since the last such check.

        The next call starts a new helper.
        """
        with self._counting:
            idle = not self._calls and not self._used
            self._used = False
            if idle:
                _close(self, patience=5.0)

    def start(self, method: priv_context.Method
              = priv_context.Method.ROOTWRAP) -> None:
        super().start(method)
        # Only the writer: oslo.privsep's reader ignores socket time-outs.
        if (channel := self.channel) is not None:
            channel.writer.writesock.settimeout(SEND_TIMEOUT)


def _make_context(name: str, section: str, *needed: int) -> Context:
    """Return the context of a privileged helper.

    :param name: name of the context in this module.
    :param section: section of the configuration with the helper's options.
    :param needed: Linux capabilities of the helper.
    """
    return Context('ghsched_nova', cfg_section=section,
                   pypath=f'{__name__}.{name}', capabilities=list(needed))


context = _make_context('context', 'ghsched_privsep',
                        capabilities.CAP_DAC_OVERRIDE)

#: Helper that sets scheduling classes of QEMU's threads, which belong to
#: another user (sched_setscheduler(2)).
threads = _make_context('threads', 'ghsched_threads_privsep',
                        capabilities.CAP_SYS_NICE)

#: Helper that binds and moves the memory of QEMU, which belongs to another
#: user (move_pages(2), ptrace(2)), and writes ``cpuset.mems`` of its groups.
memory = _make_context(
    'memory', 'ghsched_memory_privsep', capabilities.CAP_DAC_OVERRIDE,
    capabilities.CAP_SYS_NICE, capabilities.CAP_SYS_PTRACE)

#: Helper that reads the connection tracking table, whose owner is root (mode
#: 0440 of nf_conntrack_standalone.c). It has no other calls to delay.
connections = _make_context('connections', 'ghsched_connections_privsep')

#: Helper that counts events of QEMU's threads, which belong to another user
#: (perf_event_open(2)).
counters = _make_context('counters', 'ghsched_counters_privsep',
                         capabilities.CAP_PERFMON)


def entrypoint(owner: Context, timeout: float
               ) -> Callable[[Callable[_Arguments, _Result]],
                             Callable[_Arguments, _Result]]:
    """Return a decorator that runs a function in a privileged helper process.

    :param owner: privsep context whose helper runs the function.
    :param timeout: seconds after which the caller gets :class:`HelperTimeout`.
    """
    if type(timeout) is not float or not 0 < timeout <= MAX_TIMEOUT:
        raise TypeError(f'the timeout {timeout!r} is not in 0 to '
                        f'{MAX_TIMEOUT:g} seconds')

    def register(function: Callable[_Arguments, _Result]
                 ) -> Callable[_Arguments, _Result]:
        remote = owner.entrypoint_with_timeout(timeout)(
            bounds.Checked(function))

        @functools.wraps(remote)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs
                 ) -> _Result:
            try:
                with owner.call_in_progress():
                    answer: _Result = remote(*args, **kwargs)
            except (comm.PrivsepTimeout, TimeoutError) as error:
                # A partly sent call corrupts the following ones.
                _close_if_unusable(owner, isinstance(error, TimeoutError))
                raise HelperTimeout(
                    f'the privileged helper of [{owner.cfg_section}] has not '
                    f'answered within {timeout:g} seconds') from None
            return answer
        return call
    return register


def _close_if_unusable(owner: priv_context.PrivContext, force: bool) -> None:
    """Close the channel to a privileged helper if it cannot be used again.

    The next call starts a new helper. Without this, oslo.privsep keeps using a
    channel whose reader thread has ended by an exception, such as an answer
    that msgpack cannot decode.

    :param force: whether to close the channel even if the thread is alive,
        because a call was only partly sent.
    """
    channel = owner.channel
    if channel is not None and (
            force or not channel.reader_thread.is_alive()):
        _close(owner)


def _close(owner: priv_context.PrivContext, patience: float = 0.0) -> None:
    """Close the channel to a privileged helper, which then ends.

    :param patience: seconds to read what the helper logs as it ends. Where
        nobody reads, it writes a traceback to the log of its service.
    """
    channel = owner.channel
    if channel is not None:
        channel.writer.close()
        channel.reader_thread.join(patience)
        # Else stop() waits for a helper that is itself stopped.
        channel.writer.writesock.shutdown(socket.SHUT_RDWR)
        owner.stop()


def stop_idle_helpers() -> None:
    """Stop privileged helpers that were not used since the previous check.

    Each helper takes some 36 MiB. The helper of resctrl is not stopped,
    because each report of the host calls it.
    """
    for owner in (threads, memory, connections, counters):
        try:
            owner.stop_if_idle()
        except OSError as error:
            LOG.debug('cannot stop the idle privileged helper of '
                      '[%(section)s]: %(error)s',
                      {'section': owner.cfg_section, 'error': error})


def get_qemu_pid_directory() -> Path:
    """Return the configured directory of libvirt's QEMU PID files."""
    return Path(cfg.CONF.ghsched.libvirt_run_path)


def check_qemu_process(process: tuple[str, int]) -> None:
    """Check that a process is the QEMU process of a libvirt domain.

    :param process: name of the domain, and process ID.
    :raises OutOfBounds: if the process does not run this domain.
    """
    name, pid = process
    if qemu.find_qemu_process(get_qemu_pid_directory(), name) != pid:
        raise bounds.OutOfBounds(
            f'process {pid} does not run domain {name}, according to '
            f'{get_qemu_pid_directory()}')

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


"""The privileged half of nova-compute that ghsched needs.

Files of resctrl belong to root and are writable for their owner (the kernel
makes them with mode 0644), and the lock on the mount point needs no more than
to open it. But the kernel makes the top directory and ``mon_groups`` below it
with mode 0555 (``kernfs_create_root`` of Linux), so not even their owner makes
a control group there without CAP_DAC_OVERRIDE. That is all that the daemon has
of root's capabilities; it needs none to read the names of QEMU's threads in
/proc. Files of /proc/irq are root's likewise (kernel/irq/proc.c makes them
with mode 0644).

:func:`entrypoint` makes a function one of a context: the helper checks its
arguments (:mod:`ghsched_nova.bounds`), and the caller waits for a bounded
time. The helper is root and its caller is not, so what a number or a name may
refer to is read from the helper's own configuration.
"""

from collections.abc import Callable
import functools
from pathlib import Path
import socket
from typing import Annotated
from typing import ParamSpec
from typing import TypeVar

from oslo_config import cfg
from oslo_privsep import capabilities
from oslo_privsep import comm
from oslo_privsep import priv_context

from ghsched_nova import bounds
from ghsched_nova import conf
from ghsched_nova import qemu

#: Seconds that a caller can wait for a helper at most.
MAX_TIMEOUT = 600.0
#: Seconds for which a call waits until a helper takes more of it.
SEND_TIMEOUT = 60.0

#: Of libvirt; it becomes the name of a file.
DomainName = Annotated[str, bounds.Text(r'[^/\x00]+', 251)]
#: PID_MAX_LIMIT of include/linux/threads.h.
Pid = Annotated[int, bounds.Range(1, 2 ** 22)]
#: Clock ticks since boot.
StartTime = Annotated[int, bounds.Range(0, 2 ** 63 - 1)]

_Arguments = ParamSpec('_Arguments')
_Result = TypeVar('_Result')


class HelperTimeout(Exception):  # noqa: N818
    """A privileged helper that has not answered in time.

    The helper may still carry out the call.
    """


class Context(priv_context.PrivContext):
    """A context whose calls do not wait for ever to be sent.

    oslo.privsep sends under a lock that all calls of a context share, and a
    helper that is stopped reads nothing.
    """

    def start(self, method: priv_context.Method
              = priv_context.Method.ROOTWRAP) -> None:
        super().start(method)
        # A reader of oslo.privsep reads on after a time-out of the socket.
        if (channel := self.channel) is not None:
            channel.writer.writesock.settimeout(SEND_TIMEOUT)


context = Context(
    'ghsched_nova',
    cfg_section='ghsched_privsep',
    pypath=f'{__name__}.context',
    capabilities=[capabilities.CAP_DAC_OVERRIDE],
)

#: Sets scheduling classes of QEMU's threads, which belong to another user
#: (sched_setscheduler(2)), and does nothing else.
threads = Context(
    'ghsched_nova',
    cfg_section='ghsched_threads_privsep',
    pypath=f'{__name__}.threads',
    capabilities=[capabilities.CAP_SYS_NICE],
)

#: Binds and moves the memory of QEMU, which belongs to another user
#: (move_pages(2), ptrace(2)), and writes ``cpuset.mems`` of its groups.
memory = Context(
    'ghsched_nova',
    cfg_section='ghsched_memory_privsep',
    pypath=f'{__name__}.memory',
    capabilities=[capabilities.CAP_DAC_OVERRIDE,
                  capabilities.CAP_SYS_NICE,
                  capabilities.CAP_SYS_PTRACE],
)

#: Reads the table of connections, whose owner is root (mode 0440 of
#: nf_conntrack_standalone.c). No other call waits for this context.
connections = Context(
    'ghsched_nova',
    cfg_section='ghsched_connections_privsep',
    pypath=f'{__name__}.connections',
    capabilities=[],
)


def entrypoint(owner: priv_context.PrivContext, timeout: float
               ) -> Callable[[Callable[_Arguments, _Result]],
                             Callable[_Arguments, _Result]]:
    """Return a decorator that makes a function an entry point of a context.

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
                answer: _Result = remote(*args, **kwargs)
            except (comm.PrivsepTimeout, TimeoutError) as error:
                # A call that was sent in part spoils those behind it.
                _drop_if_useless(owner, isinstance(error, TimeoutError))
                raise HelperTimeout(
                    f'the privileged helper of [{owner.cfg_section}] has not '
                    f'answered within {timeout:g} seconds') from None
            return answer
        return call
    return register


def _drop_if_useless(owner: priv_context.PrivContext, useless: bool) -> None:
    """Close the channel of a context; the next call starts a helper.

    oslo.privsep takes a channel for running whose reader has ended by an
    exception (an answer that msgpack does not take).

    :param useless: whether to do so although the reader is alive.
    """
    channel = owner.channel
    if channel is not None and (
            useless or not channel.reader_thread.is_alive()):
        channel.writer.writesock.shutdown(socket.SHUT_RDWR)
        owner.stop()


def run_path() -> Path:
    """Return where libvirt has ``<domain name>.pid``, by this process."""
    conf.register(cfg.CONF)
    return Path(cfg.CONF.ghsched.libvirt_run_path)


def check_process(value: tuple[str, int]) -> None:
    """Refuse a process that is not that of the running domain of a name.

    :param value: name of the domain, process.
    :raises Refused: names both.
    """
    name, process = value
    if qemu.process_of(run_path(), name) != process:
        raise bounds.Refused(
            f'process {process} does not run domain {name}, according to '
            f'{run_path()}')

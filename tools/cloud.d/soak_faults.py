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


"""Faults that are injected while a guest is changed."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
from dataclasses import dataclass
import os
from pathlib import Path
import random
import signal
import time

from aio import cli
from aio import host
from aio.lab import Lab
from aio import process
from aio import services
from aio.settings import CloudError
from aio.settings import Settings
import host_failure
from openstack import exceptions

#: Seconds for which a service of the control plane is away.
_AWAY = 20.0

_SHARING = ('ghsched', 'group_sharing')
#: Seconds that are waited for a service that was killed, and for a guest that
#: never answers; between two reports; and until Nova destroys what a host
#: still has of a deleted server.
_SHORT = (('DEFAULT', 'rpc_response_timeout', '30'),
          ('libvirt', 'wait_soft_reboot_seconds', '5'),
          ('DEFAULT', 'update_resources_interval', '5'),
          ('DEFAULT', 'running_deleted_instance_poll_interval', '10'))


@dataclass(frozen=True)
class Fault:
    """Something that fails, and comes back within the block.

    :param begin: takes a host, too; the cloud is as before at the end of the
        block, but for what was lost.
    :param of_host: whether it happens on that host.
    """

    name: str
    begin: Callable[[Lab, Settings, random.Random],
                    contextlib.AbstractContextManager[None]]
    of_host: bool = True


def _killed(name: str) -> Fault:
    """A service is killed, and started again some seconds later."""
    of_host = name == services.COMPUTE

    @contextlib.contextmanager
    def begin(lab: Lab, settings: Settings, rng: random.Random
              ) -> Iterator[None]:
        cloud = services.cloud(lab.settings)
        one = cloud.compute(settings) if of_host else cloud[name]
        process.kill(one)
        print(f'      {one.name} is killed')
        yield
        time.sleep(rng.uniform(0, 5))

    return Fault(f'kill {name}', begin, of_host)


def _away(name: str) -> Fault:
    """A service is stopped for a while."""

    @contextlib.contextmanager
    def begin(lab: Lab, _settings: Settings, _rng: random.Random
              ) -> Iterator[None]:
        process.stop([services.cloud(lab.settings)[name]])
        yield
        time.sleep(_AWAY)

    return Fault(f'stop {name}', begin, of_host=False)


@contextlib.contextmanager
def _libvirtd(_lab: Lab, settings: Settings, rng: random.Random
              ) -> Iterator[None]:
    host.control(settings, 'restart-libvirtd',
                 *rng.choice(((), ('--kill',))))
    yield


@contextlib.contextmanager
def _qemu(_lab: Lab, settings: Settings, _rng: random.Random
          ) -> Iterator[None]:
    """Every guest that runs on the host."""
    host.run(settings, (
        # The pid file of libvirt's QEMU driver, beside them, is libvirtd's.
        'sh', '-c', 'for f in /run/libvirt/qemu/instance-*.pid; do '
                    'kill -9 "$(cat "$f")"; done 2>&-; true'))
    yield


@contextlib.contextmanager
def _resctrl(_lab: Lab, settings: Settings, rng: random.Random
             ) -> Iterator[None]:
    """Somebody unmounts resctrl; an admin mounts it, and restarts Nova."""
    host.control(settings, 'umount-resctrl')
    yield
    time.sleep(rng.uniform(0, 10))
    host.control(settings, 'mount-resctrl')
    process.stop([services.cloud(settings).compute(settings)])


def _refused(name: str, faults: Mapping[str, object]) -> Fault:
    """The kernel of a host refuses something for a while."""

    @contextlib.contextmanager
    def begin(_lab: Lab, settings: Settings, _rng: random.Random
              ) -> Iterator[None]:
        host.set_faults(settings, faults)
        yield
        time.sleep(_AWAY)
        host.set_faults(settings, {})

    return Fault(name, begin)


@contextlib.contextmanager
def _privsep(_lab: Lab, settings: Settings, rng: random.Random
             ) -> Iterator[None]:
    """oslo.privsep starts no daemon twice: nova-compute has to start again.
    """
    compute = services.cloud(settings).compute(settings)
    for pid in _privsep_daemons(compute.pid):
        os.kill(pid, signal.SIGKILL)
    yield
    time.sleep(rng.uniform(0, 10))
    process.kill(compute)


def _privsep_daemons(compute: int | None) -> list[int]:
    """Helpers in the mount namespace of a nova-compute."""
    found = []
    for directory in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            words = (directory / 'cmdline').read_bytes()
            if b'privsep-helper' in words and os.readlink(
                    directory / 'ns/mnt') == os.readlink(
                        f'/proc/{compute}/ns/mnt'):
                found.append(int(directory.name))
    return found


@contextlib.contextmanager
def _disk_full(_lab: Lab, settings: Settings, _rng: random.Random
               ) -> Iterator[None]:
    host.fill(settings)
    yield
    time.sleep(_AWAY)
    host.unfill(settings)


@contextlib.contextmanager
def _lost(lab: Lab, settings: Settings, _rng: random.Random
          ) -> Iterator[None]:
    """A host fails, its guests are evacuated, and then it is back."""
    host_failure.fails(lab, settings)
    for one in lab.servers():
        if one.compute_host == settings.host.name:
            try:
                lab.cloud.compute.evacuate_server(one)
            except exceptions.SDKException as error:
                print(f'      {one.name}: {str(error)[:120]}')
    yield
    # A host must not come back while its guests are evacuated.
    with contextlib.suppress(CloudError):
        lab.until(lambda: not any(one.task_state for one in lab.servers()),
                  120, 'the evacuation takes too long')
    host_failure.comes_back(lab, settings)


@contextlib.contextmanager
def _reboot(_lab: Lab, settings: Settings, _rng: random.Random
            ) -> Iterator[None]:
    process.kill(services.cloud(settings).compute(settings))
    host.down(settings)
    yield


FAULTS = (
    _killed(services.COMPUTE), _killed('nova-conductor'),
    _killed('nova-scheduler'), _away('rabbitmq'), _away('mariadb'),
    _away('placement'), Fault('restart libvirtd', _libvirtd),
    Fault('kill QEMU', _qemu), Fault('unmount resctrl', _resctrl),
    _refused('no control groups', {'mkdir': {
        'error': 'ENOSPC', 'status': 'Out of CLOSIDs'}}),
    _refused('refuse writes', {'schemata:MBMIN': {
        'error': 'EINVAL', 'match': '?*', 'status': 'not now'}}),
    Fault('kill privsep', _privsep), Fault('reboot', _reboot),
    Fault('fill disk', _disk_full), Fault('lose host', _lost))


def _evacuating(second: Fault) -> Fault:
    """A host is lost, and then something fails where its guests go."""

    @contextlib.contextmanager
    def begin(lab: Lab, settings: Settings, rng: random.Random
              ) -> Iterator[None]:
        other = next(one for one in lab.settings.each_host
                     if one.host != settings.host)
        with _lost(lab, settings, rng):
            with second.begin(lab, other, rng):
                yield
            cli.up_without(lab.settings, settings.host)

    return Fault(f'{second.name} while evacuating', begin)


#: Not with two hosts that are away.
EVACUATIONS = tuple(_evacuating(one) for one in FAULTS
                    if one.name not in ('reboot', 'lose host'))


def prepare_hosts(lab: Lab, sharing: str) -> None:
    """Hosts whose disks can be filled without harm to this machine.

    :param sharing: their ``[ghsched]group_sharing``.
    """
    for section, key, value in (*_SHORT, (*_SHARING, sharing)):
        cli.set_option(lab.settings, section, key, value)
    _on_hosts(lab, lambda one: host.small_disk(one, '256m'))


def restore_hosts(lab: Lab) -> None:
    for section, key, *_value in (*_SHORT, _SHARING):
        cli.set_option(lab.settings, section, key, None)
    _on_hosts(lab, host.no_small_disk)


def _on_hosts(lab: Lab, work: Callable[[Settings], None]) -> None:
    """Do something to hosts that are down meanwhile."""
    for one in lab.settings.each_host:
        cli.host_down(one)
        work(one)
    with contextlib.redirect_stdout(None):
        cli.up(lab.settings)


@contextlib.contextmanager
def happening(fault: Fault, lab: Lab, rng: random.Random,
              where: Settings | None = None) -> Iterator[None]:
    """Inject the fault within this context; start all services afterwards.

    :param where: on which host; drawn by default.
    """
    if where is None:
        where = (rng.choice(lab.settings.each_host) if fault.of_host
                 else lab.settings)
    with fault.begin(lab, where, rng):
        yield
    with contextlib.redirect_stdout(None):
        cli.up(lab.settings)

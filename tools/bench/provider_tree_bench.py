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


"""Time a compute host's report to Placement.

Two hosts of one shape, one with our driver and one with Nova's own, in one
process with a real Placement: 4 NUMA nodes, 320 threads, PFs with 80 VFs
each. The hosts are simulated, by Nova's fake libvirt and with the files of a
resctrl in a directory. Nothing changes on them. What is timed in turn, on
both:

- ``update_provider_tree()`` of the driver,
- the whole periodic report, ``ComputeManager.update_available_resource()``,
  with Placement's own work for the requests that it makes.
"""

import argparse
import collections
import copy
from dataclasses import dataclass
from dataclasses import field
import logging
from typing import Any
import uuid

import ratios
import testtools

# The first import of Nova has to be one of nova.tests.functional.
from ghsched_nova.tests.functional import test_vfs

import fixtures
from nova import context as nova_context
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import host as libvirt_host

WARM_UP = 3
DRIVERS = {'Nova': 'libvirt.LibvirtDriver',
           'ghsched': 'ghsched.GhschedLibvirtDriver'}
UPDATE, REPORT = 'update_provider_tree()', 'whole report'


@dataclass(frozen=True)
class Shape:
    """A host.

    :param cores: of each of 4 NUMA nodes; each has two threads.
    :param pfs: NUMA node of each PF.
    :param vfs: VFs of each PF.
    :param guests: how many have an allocation of the host; they are in
        Placement alone.
    """

    cores: int = 40
    pfs: tuple[int, ...] = (0, 0, 2, 2)
    vfs: int = 80
    guests: int = 0


@dataclass
class Found:
    """Measurements of one host.

    :ivar seconds: processor time of each run, by what and by whose driver.
    :ivar requests: requests to Placement of all reports together, by method
        and by whose driver.
    :ivar providers: in the tree, by whose driver.
    """

    seconds: dict[tuple[str, str], list[float]] = field(
        default_factory=lambda: collections.defaultdict(list))
    requests: dict[str, collections.Counter[str]] = field(
        default_factory=lambda: collections.defaultdict(collections.Counter))
    providers: dict[str, int] = field(default_factory=dict)


class Bench(test_vfs.VfsTestCase):
    """Nova's functional tests have all that is needed; this is not a test."""

    def __init__(self, shape: Shape, count: int, found: Found) -> None:
        super().__init__('measure')
        self.shape, self.count, self.found = shape, count, found

    def measure(self) -> None:
        for name, driver in DRIVERS.items():
            self.flags(compute_driver=driver)
            self._start(name)
        self._requests: collections.Counter[str] = collections.Counter()
        for method in ('get', 'put', 'post', 'delete'):
            self._count(method)
        for number in range(-WARM_UP, self.count):
            for name in DRIVERS:
                self._once(name, number >= 0)

    def _start(self, name: str) -> None:
        self.kernel.nodes = 4
        self.kernel.write()
        info = fakelibvirt.HostInfo(
            cpu_nodes=2, cpu_sockets=2, cpu_cores=self.shape.cores,
            cpu_threads=2, kB_mem=1024 ** 3)
        # A mock of Nova's.
        libvirt_host.Host.get_online_cpus.return_value = set(
            range(info.cpus))
        # Nova's start_compute() makes a connection to small hosts only.
        self.start_compute(name, connection=fakelibvirt.Connection(
            'qemu:///system', version=fakelibvirt.FAKE_LIBVIRT_VERSION,
            hv_version=fakelibvirt.FAKE_QEMU_VERSION, hostname=name,
            host_info=info, pci_info=test_vfs.devices(
                *((node, self.shape.vfs) for node in self.shape.pfs))))
        for _number in range(self.shape.guests):
            self.placement.put(f'/allocations/{uuid.uuid4()}', {
                'allocations': {self.compute_rp_uuids[name]: {
                    'resources': {'MEMORY_MB': 1}}},
                'project_id': 'p', 'user_id': 'u',
                'consumer_generation': None, 'consumer_type': 'INSTANCE',
            }, version='1.39')

    def _count(self, method: str) -> None:
        client = report.SchedulerReportClient
        call = getattr(client, method)

        def count_and_call(*args: Any, **kwargs: Any) -> Any:
            self._requests[method] += 1
            return call(*args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(
            f'{client.__module__}.{client.__name__}.{method}', count_and_call))

    def _once(self, name: str, counts: bool) -> None:
        context = nova_context.get_admin_context()
        manager = self.computes[name].manager
        before = self._requests.copy()
        reported = ratios.measure_seconds(
            manager.update_available_resource, context)
        requests = self._requests - before
        tree = manager.reportclient.get_provider_tree_and_ensure_root(
            context, self.compute_rp_uuids[name])
        copied = copy.deepcopy(tree)
        updated = ratios.measure_seconds(
            manager.driver.update_provider_tree, copied, name)
        if counts:
            self.found.seconds[UPDATE, name].append(updated)
            self.found.seconds[REPORT, name].append(reported)
            self.found.requests[name] += requests
            self.found.providers[name] = len(tree.get_provider_uuids(
                self.compute_rp_uuids[name]))


def measure(shape: Shape, count: int) -> Found:
    """Run in an environment of Nova's functional tests.

    :raises RuntimeError: when that does not come up.
    """
    # Nova's test class forgets what it has when it is done.
    found, result = Found(), testtools.TestResult()
    Bench(shape, count, found).run(result)
    for _test, reason in (*result.errors, *result.failures):
        raise RuntimeError(reason)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--count', type=int, default=30,
                        help='runs that count (30)')
    parser.add_argument('--cores', type=int, default=Shape.cores,
                        help='cores of a NUMA node (40)')
    parser.add_argument('--vfs', type=int, default=Shape.vfs,
                        help='VFs of a PF (80)')
    parser.add_argument('--guests', type=int, default=Shape.guests,
                        help='guests that Placement has of each host (0)')
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    shape = Shape(options.cores, vfs=options.vfs, guests=options.guests)
    try:
        found = measure(shape, options.count)
    except RuntimeError as error:
        parser.exit(1, f'{error}\n')
    print(f'simulated host: 4 NUMA nodes, {4 * 2 * shape.cores} threads, '
          f'{len(shape.pfs)} PFs of {shape.vfs} VFs; providers: '
          + ', '.join(f'{name} {number}'
                      for name, number in found.providers.items()))
    print(ratios.describe_conditions(options.count, WARM_UP))
    for (what, name), values in sorted(found.seconds.items(), reverse=True):
        print(ratios.format_row(f'{what} {name}', values,
                                found.seconds[what, 'Nova']))
    for name, requests in found.requests.items():
        writes = requests.total() - requests['get']
        print(f'Placement, {name}: {requests["get"] / options.count:g} reads '
              f'and {writes / options.count:g} writes per report')

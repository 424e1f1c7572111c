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

"""Time ``ghsched plan`` for a fleet, compared with plain Placement.

The hosts are *simulated*: those of a host file, once all empty and alike, and
once with guests so that no two are alike. The baseline, in the same run, is
Placement asked and claimed of for one guest after the other, as a scheduler
does it; it is measured on a few guests and reckoned up to all of them.

usage::

    python tools/bench/plan_bench.py [--hosts 200]
"""

import bench_path

import argparse
from collections.abc import Sequence
import dataclasses
import os
import platform
import random
import sys
import time

import simulated_placement

from ghsched_nova.host_files import planner_hosts
from ghsched_nova.host_files import planner_inputs
from ghsched_placement.planner.flavors import Flavor
from ghsched_placement.planner.flavors import parse_flavor_argument
from ghsched_placement.planner.hosts import Host
from ghsched_placement.planner import need as needs
from ghsched_placement.planner import plan
from ghsched_placement.planner.private import PrivatePlacement
from ghsched_placement.planner.stage import Stage
from ghsched_placement.planner.state import State

#: Seconds that a plan may take.
LIMIT = 30.0

FLAVORS = (
    'bw20:vcpus=4,ram=8192,hw:numa_nodes=1,ghsched:mem_bw_min=20',
    'wide:vcpus=16,ram=32768,hw:numa_nodes=2,ghsched:mem_bw_min=30,'
    'ghsched:vfs.0=nic:8',
    'small:vcpus=2,ram=4096',
)
MIX = {'bw20': 3, 'wide': 1, 'small': 4}


def hosts(path: str, count: int, alike: bool) -> list[Host]:
    """Hosts of a file: empty, or each with other guests."""
    (known,) = planner_inputs.load_hosts([f'{path}*{count}'])
    chance = random.Random(7)  # noqa: S311
    found = [
        planner_hosts.make_planner_host(known.file, name)
        for name in known.names
    ]
    return found if alike else [_used(host, chance) for host in found]


def _used(host: Host, chance: random.Random) -> Host:
    """Return a host with random usage, up to half of each resource."""
    return dataclasses.replace(host, providers=tuple(
        dataclasses.replace(provider, used={
            name: chance.randrange(int(record['total']) // 2 + 1)
            for name, record in provider.inventories.items()})
        for provider in host.providers))


def timed_plan(fleet: Sequence[Host], flavors: Sequence[Flavor],
               aliases: dict[str, str]) -> tuple[float, float, plan.Plan]:
    """Seconds by the clock, and of processor time, with Placement's."""
    begin, used = time.monotonic(), _processor_time()
    found = plan.plan_host_capacity(fleet, flavors, MIX,
                                    plan.Settings(aliases=aliases))
    return time.monotonic() - begin, _processor_time() - used, found


def _processor_time() -> float:
    return sum(os.times()[:4])


def plain(fleet: Sequence[Host], flavor: Flavor, aliases: dict[str, str],
          guests: int) -> float:
    """Seconds for one guest: candidates of all hosts, and a claim."""
    need = needs.build_flavor_need(flavor, aliases=aliases)
    states = [State(host) for host in fleet]
    with PrivatePlacement() as placement:
        stage = Stage(placement)
        stage.load_hosts(states)
        begin = time.monotonic()
        for _ in range(guests):
            offers = stage.list_placements(need, 'any', {})
            number = next(n for n, ways in enumerate(offers) if ways)
            nodes = states[number].find_host_nodes(need, offers[number][0])
            states[number].place_guest(need, offers[number][0], nodes or ())
            stage.write_new_allocations()
        return (time.monotonic() - begin) / guests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--hosts', type=int, default=200, metavar='N')
    parser.add_argument('--file', metavar='FILE',
                        default=str(bench_path.TOP / 'etc/ghsched/hosts'
                                    / 'kunpeng920-2nic.yaml'))
    parser.add_argument('--plain', type=int, default=5, metavar='N',
                        help='guests that the baseline is measured on (5)')
    arguments = parser.parse_args()
    (known,) = planner_inputs.load_hosts([arguments.file])
    aliases = planner_inputs.map_pci_aliases_to_classes([known])
    flavors = [parse_flavor_argument(text) for text in FLAVORS]
    print(f'Python {platform.python_version()}, '
          f'{simulated_placement.processor()}; {arguments.hosts} simulated '
          f'hosts as {known.file.name}, {len(flavors)} flavors and a mix')
    failed = False
    for alike in (True, False):
        fleet = hosts(arguments.file, arguments.hosts, alike)
        seconds, used, found = timed_plan(fleet, flavors, aliases)
        each = plain(fleet, flavors[0], aliases, arguments.plain)
        guests = sum(flavor.guests for flavor in found.flavors) + sum(
            found.mix.guests.values() if found.mix else ())
        failed = failed or seconds > LIMIT
        print(f'{"all alike" if alike else "no two alike"}: {seconds:.1f} s '
              f'({used:.1f} s of processor time) for {guests} guests and what '
              f'one more buys; one by one {each * guests:.0f} s '
              f'({1000 * each:.0f} ms each), '
              f'{each * guests / seconds:.0f} x; '
              f'{"fail" if seconds > LIMIT else "pass"} '
              f'(at most {LIMIT:.0f} s)')
    return int(failed)


if __name__ == '__main__':
    sys.exit(main())

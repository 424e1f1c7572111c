#!/usr/bin/env python3
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


"""Measure the cost of reading load and waiting of a host full of guests.

Starts processes with threads that are named as QEMU names those of vCPUs, and
that sleep, and measures them as nova-compute does: parsing the XML of each
domain, reading a sample, making figures, smoothing, judging, writing the
record. Prints the CPU time of one measurement, median and most, and the part
of one CPU that this is at a period. The first measurement, which finds the
threads, is printed alone. The reading is real, the guests are not.
"""

import bench_path  # noqa: F401

import argparse
import ctypes
import json
import os
from pathlib import Path
import signal
import statistics
import tempfile
import threading
import time

from ghsched_nova.host import desired
from ghsched_nova.host import load_use
from ghsched_nova.monitor import load_meter
from ghsched_nova.monitor import load_reader
from ghsched_nova.resctrl import model
from ghsched_placement import bottleneck
from ghsched_placement import load

_PR_SET_NAME = 15


def _vcpu(number: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f'CPU {number}/KVM'.encode(),
                            0, 0, 0)
    threading.Event().wait()


def _guest(vcpus: int, ready: int) -> int:
    """A process with so many threads."""
    child = os.fork()
    if child == 0:
        for number in range(vcpus):
            threading.Thread(target=_vcpu, args=(number,),
                             daemon=True).start()
        time.sleep(0.2)
        os.write(ready, b'x')
        signal.pause()
        os._exit(0)
    return child


def _xml(vcpus: int, node: int) -> str:
    return (f'<domain><name>g</name><memory>4194304</memory>'
            f'<vcpu>{vcpus}</vcpu><cpu><numa><cell id="0" '
            f'cpus="0-{vcpus - 1}" memory="4194304" unit="KiB"/></numa></cpu>'
            f'<numatune><memnode cellid="0" mode="strict" nodeset="{node}"/>'
            '</numatune></domain>')


def measure(guests: int, vcpus: int, rounds: int) -> dict[str, float]:
    """CPU seconds of a measurement."""
    ready, written = os.pipe()
    with tempfile.TemporaryDirectory() as run:
        children = [_guest(vcpus, written) for _number in range(guests)]
        try:
            for _child in children:
                os.read(ready, 1)
            for number, child in enumerate(children):
                Path(run, f'g{number}.pid').write_text(f'{child}\n')
            return _measure(run, guests, vcpus, rounds)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _measure(run: str, guests: int, vcpus: int,
             rounds: int) -> dict[str, float]:
    meter = load_meter.LoadMeter(
        load_reader.LoadReader(load_reader.Paths(run=Path(run))),
        bottleneck.make_bottleneck_limits({}), smoothing=120.0)
    xml = _xml(vcpus, 0)
    spent = []
    for _round in range(rounds + 1):
        began = time.process_time()
        meter.measure_host_load(list(load_use.list_measurable_guests(
            desired.Running(model.Domain(f'uuid-{number}', number,
                                         f'g{number}'), xml)
            for number in range(guests))))
        if meter.load is not None:
            load.to_stats(meter.load)
        spent.append(time.process_time() - began)
    if meter.load is None or len(meter.load.guests) != guests or any(
            one.cpu_wait is None for one in meter.load.guests):
        raise SystemExit('not all guests were measured')
    return {'first_seconds': spent[0],
            'median_seconds': statistics.median(spent[1:]),
            'most_seconds': max(spent[1:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--guests', type=int, default=512)
    parser.add_argument('--vcpus', type=int, default=4)
    parser.add_argument('--rounds', type=int, default=10)
    parser.add_argument('--period', type=float, default=60.0,
                        help='seconds between two measurements')
    arguments = parser.parse_args()
    found = measure(arguments.guests, arguments.vcpus, arguments.rounds)
    print(json.dumps({
        **vars(arguments),
        **{name: round(value, 4) for name, value in found.items()},
        'percent_of_one_cpu': round(
            100 * found['median_seconds'] / arguments.period, 3)}))


if __name__ == '__main__':
    main()

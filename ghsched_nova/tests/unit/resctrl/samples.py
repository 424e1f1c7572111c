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


"""What the tests of the host engine share."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.resctrl import schemata
from ghsched_placement import policy

MACHINES = Path(__file__).parent / 'machines'


def all_machines() -> list[str]:
    return sorted(path.name for path in MACHINES.iterdir() if path.is_dir())


def read_machine(name: str, **told: Any) -> resctrl_host.ResctrlHost:
    return resctrl_host.read_host(MACHINES / name / 'resctrl',
                                  MACHINES / name / 'sysfs',
                                  resctrl_host.Told(**told))


def openeuler(**changes: Any) -> resctrl_host.ResctrlHost:
    host = resctrl_host.ResctrlHost(
        dialect=dialects.OPENEULER_66, num_closids=32, num_rmids=128,
        min_bandwidth=1, granularity=1, domains_by_node={0: (0,), 1: (1,)},
        monitored=True, priority_default=3)
    return replace(host, **changes)


def intel(**changes: Any) -> resctrl_host.ResctrlHost:
    host = resctrl_host.ResctrlHost(
        dialect=dialects.INTEL, num_closids=8, num_rmids=224,
        min_bandwidth=10, granularity=10,
        domains_by_node={0: (0,), 1: (1,)}, monitored=True)
    return replace(host, **changes)


def node_policies(**parts):
    """Strategy of policies of one node with minimum <= maximum."""
    shares = st.tuples(st.integers(0, 100), st.integers(1, 100)).filter(
        lambda pair: pair[0] <= pair[1])
    return st.builds(
        lambda pair, **rest: policy.NodePolicy(
            minimum=parts.get('minimum', pair[0]), maximum=pair[1], **rest),
        shares, hardlimit=parts.get('hardlimit', st.booleans()),
        priority=parts.get('priority', st.none() | st.integers(0, 7)))


def policies_of(host):
    """Strategy of policies of one node that a host can hold."""
    held = host.capabilities()
    limits = [limit for limit, name in ((True, 'MEM_BW_HARDLIMIT'),
                                        (False, 'MEM_BW_SOFTLIMIT'))
              if name in held]
    parts = {'hardlimit': st.sampled_from(limits)}
    if 'MEM_BW_MIN' not in held:
        parts['minimum'] = 0
    if 'MEM_BW_PRIORITY' not in held:
        parts['priority'] = st.none()
    return node_policies(**parts)


class Model:
    """A control group as the kernel keeps it: padded, rounded, ranged."""

    def __init__(self, host: resctrl_host.ResctrlHost,
                 domains: range, start: Mapping[str, int] | None = None):
        self.host = host
        self.knobs = {knob.line: knob for knob in host.dialect.knobs}
        self.held = {
            line: dict.fromkeys(domains, (start or {}).get(
                line, knob.default))
            for line, knob in self.knobs.items()}

    def text(self) -> str:
        return '   L3:0=fffff;1=fffff\n' + ''.join(
            f'{line:>6}:' + ';'.join(f'{domain}={value:07}'
                                     for domain, value in values.items())
            + '\n' for line, values in self.held.items())

    def write(self, text: str) -> None:
        assert text.endswith('\n') and text.count('\n') == 1, text
        line = schemata.parse(text).lines[0]
        knob = self.knobs[line.name]
        for domain, value in line.values:
            number = int(value)
            assert knob.minimum <= number <= knob.maximum, text
            if knob.role == 'maximum':
                assert number >= self.host.min_bandwidth, text
            if knob.stepped:
                step = self.host.granularity
                number = min(-(-number // step) * step, knob.maximum)
            assert domain in self.held[line.name], text
            self.held[line.name][domain] = number


def add_threads(proc: Path, process: int, threads: Mapping[int, str]) -> None:
    """Threads of a process in a made-up /proc."""
    for tid, name in threads.items():
        (proc / str(tid)).mkdir()
        (proc / str(tid) / 'comm').write_text(name + '\n')
        (proc / str(tid) / 'status').write_text(
            f'Name:\t{name}\nTgid:\t{process}\nPid:\t{tid}\n')

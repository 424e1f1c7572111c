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


"""Checks of the policy of a running guest, and of its changes."""

import hashlib
import json
from typing import Any
from xml.etree import ElementTree

from aio.lab import Group
from aio import process
from aio.services import COMPUTE
from e2e_guest_room import GuestRoom


class Policy(GuestRoom):
    """The tests; a method's name without ``test_`` is the test's name."""

    def test_hard_reboot(self) -> None:
        """A hard reboot makes the same XML and the same group again."""
        server = self._active(self.lab.boot('reboot', 'bw-all'))
        before = self.lab.group(server)
        xml = _parts(self.lab.domain_xml(server))
        self.lab.cloud.compute.reboot_server(server, 'HARD')
        self.lab.until(lambda: self._has_new_threads(server, before), 90,
                       'the guest does not run again')
        after = self.lab.group(server)
        self.checks.equal('schemata', after.lines(), before.lines())
        self.checks.equal('XML', _parts(self.lab.domain_xml(server)), xml)
        self.checks.equal('groups', len(self.lab.groups()), 1)

    def test_live_change(self) -> None:
        """A running guest gets other values, and keeps them."""
        server = self._active(self.lab.boot('live', 'bw-all'))
        node, = self.lab.allocated_nodes(server)
        before = self.lab.group(server)
        self._set(server, 0, 'Done.', '--mem-bw-min', '20', '--mem-bw-max',
                  '0=70', '--mem-bw-priority', '6')
        wanted = {'MB': 70, 'MBMIN': 20, 'MBHDL': 1, 'MBPRI': 6}
        self._holds(server, wanted)
        self.checks.equal('share allocated', self._used(node), 20)
        self.checks.equal('threads in the group',
                          self.lab.group(server).threads, before.threads)
        after = self._all_of(server)
        self._set(server, 0, 'Nothing to change.', '--mem-bw-min', '20')
        self.checks.equal('the same once more', self._all_of(server), after)
        self.lab.cloud.compute.reboot_server(server, 'HARD')
        self.lab.until(lambda: self._has_new_threads(server, before), 90,
                       'the guest does not run again')
        self._holds(server, wanted)
        self.lab.cloud.compute.stop_server(server)
        self.lab.wait(server, 'SHUTOFF')
        self._set(server, 0, 'when the server starts', '--mem-bw-min', '0')
        self.lab.cloud.compute.start_server(server)
        self._active(self.lab.wait(server, 'ACTIVE'))
        self._holds(server, {**wanted, 'MBMIN': 0})
        self.checks.equal('share allocated', self._used(node), 0)

    def test_guest_channel(self) -> None:
        """A guest hears its policy and each change, and tells its pressure."""
        self.lab.flavor('channel', hw__numa_nodes=1, ghsched__mem_bw_min=30,
                        ghsched__guest_channel='write')
        server = self._active(self.lab.boot('channel', 'channel'))
        self._hears(server, 'started', 30)
        self._set(server, 0, 'Done.', '--mem-bw-min', '40')
        self._hears(server, 'changed', 40)
        self._hears_the_limits(server, 40)
        self.lab.tell(server, 'pressure')
        self.checks.equal('pressure in the diagnostics', json.loads(
            self.lab.until(
                lambda: self._diagnostics(server).get('ghsched_pressure'), 60,
                'the diagnostics do not show the pressure')),
            {'version': 1, 'cpu': 7, 'memory': 3, 'steal': 1})

    def test_vcpu_classes(self) -> None:
        """Each vCPU class has a group, and a bandwidth that can change."""
        self.lab.flavor(
            'classes', 2, hw__numa_nodes=2, ghsched__guest_channel='write',
            ghsched__vcpu_classes='latency:0',
            ghsched__mem_bw_min__at__latency=30, ghsched__mem_bw_min=10,
            ghsched__mem_bw_max=40)
        server = self._active(self.lab.boot('classes', 'classes'))
        first, second = self._topology_nodes(server)
        limits = {'latency': ({0}, {first: (30, 100), second: (0, 100)}),
                  'default': ({1}, {first: (0, 100), second: (10, 40)})}
        self.checks.equal('vCPUs, guarantees and caps by class',
                          self._read_classes(server), limits)
        self.checks.equal('shares allocated', [
            self._used(first), self._used(second)], [30, 10])
        self._set(server, 0, 'Done.', '--mem-bw-min', 'latency=20')
        limits['latency'] = ({0}, {first: (20, 100), second: (0, 100)})
        self.checks.equal('after a live change of one class',
                          self._read_classes(server), limits)
        self.checks.equal('share allocated', self._used(first), 20)
        self.lab.until(
            lambda: any('"effective_by_class":{"latency":[{"mem_bw_min":20,'
                        in line for line in self.lab.printed(server)),
            120, 'the guest does not hear what is enforced of its class')
        self.lab.tell(server, 'classes')
        self.lab.until(
            lambda: any('"reason":"refused"' in line and 'latency has no vCPU '
                        'on NUMA node 1' in line
                        for line in self.lab.printed(server)),
            60, 'the guest does not hear that its vCPU 1 cannot move')
        self.checks.equal('after a refused move of a vCPU',
                          self._read_classes(server), limits)
        self.lab.cloud.compute.stop_server(server)
        self.lab.wait(server, 'SHUTOFF')
        self.checks.equal('groups of the stopped guest',
                          [one.name for one in self.lab.groups()], [])

    def _read_classes(self, server: Any
                      ) -> dict[str, tuple[set[int], dict[int, Any]]]:
        """vCPUs, and guarantee and cap by node, of each class."""
        vcpu_of = {tid: int(name.split()[1].partition('/')[0]) for tid, name
                   in self.lab.vcpu_threads(server).items()}
        return {group.name.partition('.')[2]: (
            {vcpu_of[tid] for tid in group.threads if tid in vcpu_of},
            {node: (int(group.schemata['MBMIN'][node]), int(cap))
             for node, cap in group.schemata['MB'].items()})
            for group in self.lab.groups() if server.id in group.name}

    def _hears(self, server: Any, reason: str, share: int) -> None:
        """Lines on the guest's console have a reason, and what holds."""
        def read() -> list[Any]:
            lines = [json.loads(line.partition(' ')[2]) for line
                     in self.lab.printed(server)
                     if line.startswith('GUEST-CHANNEL {')]
            return [line for line in lines if line['reason'] == reason
                    and line['policy']['nodes'][0]['mem_bw_min'] == share]
        self.lab.until(read, 120, f'the guest does not hear "{reason}"')
        self.checks.holds(f'the guest hears of {share} %', True, reason)

    def _hears_the_limits(self, server: Any, share: int) -> None:
        """A line has what the kernel enforces, once that is measured."""
        self.lab.until(
            lambda: any(f'"effective":[{{"mem_bw_min":{share},' in line
                        for line in self.lab.printed(server)),
            120, f'the guest does not hear that {share} % are enforced')
        self.checks.holds('the guest hears what is enforced', True, share)

    def _diagnostics(self, server: Any) -> Any:
        return self.lab.cloud.compute.get(
            f'/servers/{server.id}/diagnostics', microversion='2.47').json()

    def test_live_change_refused(self) -> None:
        """Placement, the host or a key refuses: all is as it was."""
        server = self._active(self.lab.boot('live', 'bw-all'))
        others = [self._active(self.lab.boot(name, 'bw60')) for name in '12']
        before = self._all_of(server)
        self._set(server, 1, 'has 40 % of its memory bandwidth left',
                  '--mem-bw-min', '45')
        self.checks.equal('after Placement refused', self._all_of(server),
                          before)
        self.lab.delete(*others)
        for fault in ('EINVAL', 'ENOSPC'):
            with self._faults({'schemata:MBMIN': {'error': fault,
                                                  'times': 1}}):
                self._set(server, 1, fault, '--mem-bw-min', '45',
                          '--mem-bw-max', '90', '--mem-bw-priority', '1')
            self.checks.equal('after the host refused',
                              self._all_of(server), before)
        self._set(server, 1, 'ghsched:mem_bw_min: 60 is more than',
                  '--mem-bw-min', '60')
        self.checks.equal('after a key was refused', self._all_of(server),
                          before)
        hasty = self.settings.state / 'hasty.conf'
        hasty.write_text('[DEFAULT]\nrpc_response_timeout = 5\n')
        process.stop([self.services[COMPUTE]])
        try:
            self._set(server, 1, 'did not answer in time', '--mem-bw-min',
                      '45', *self._nova_files(), '--config-file', str(hasty))
        finally:
            self._restart_compute()
        self.checks.equal('after nobody answered', self._all_of(server),
                          before)

    def test_reassert(self) -> None:
        """A manual change is repaired when nova-compute starts."""
        server = self._active(self.lab.boot('tampered', 'bw-all'))
        node, = self.lab.allocated_nodes(server)
        group = self.lab.group(server)
        self.lab.on_host('sh', '-c', f'echo "MBMIN:{node}=1" > '
                                     f'/sys/fs/resctrl/{group.name}/schemata')
        self._restart_compute()
        self.lab.until(
            lambda: self._values(server, 'MBMIN').get(node) == 30, 30,
            'MBMIN is not put right')
        self.checks.equal('schemata', self.lab.group(server).lines(),
                          group.lines())

    def test_openstack_commands(self) -> None:
        """Output of "openstack ghsched ..." agrees with the host."""
        server = self._active(self.lab.boot('asked', 'bw-all'))
        node, = self.lab.allocated_nodes(server)
        host_name = self.lab.providers()[0].name
        self.checks.equal(
            'capacity show: used and largest guarantee of each node',
            [(row['BW Used (%)'], row['Largest Guarantee (%)'])
             for row in self.lab.openstack('capacity', 'show', host_name)],
            [(30, 70) if one == node else (0, 100) for one in (0, 1)])
        self.checks.equal(
            'host list: state, guests and drift of each host',
            [(row['Host'], row['State'], row['Guests'], row['Drift'])
             for row in self.lab.openstack('host', 'list')],
            [(host_name, 'up', 1, 0)])
        shown = self.lab.openstack('host', 'show', host_name)
        self.checks.equal('host show: drift', shown['drift'], [])
        self.checks.equal('host show: set on the host', [
            one['effective_percent'] for one in shown['numa_nodes']],
            [30 if one == node else 0 for one in (0, 1)])
        row, = self.lab.openstack('server', 'bandwidth', 'show', server.id)
        self.checks.equal(
            'server bandwidth show: node, asked, allocated, effective',
            [row[name] for name in (
                'Host Node', 'Min (%)', 'Allocated (%)', 'Effective Min (%)',
                'Effective Max (%)', 'Effective Priority')],
            [node, 30, 30, 30, 50, 5])
        row, = self.lab.openstack('flavor', 'check', 'bw60')
        self.checks.equal('flavor check: guests of 60 % that fit',
                          (row['Fits'], row['Guests That Fit']), (True, 2))
        row, = self.lab.openstack('density', 'plan', '--flavor', 'bw60')
        self.checks.equal('density plan: guests of 60 % that fit',
                          row['Guests'], 2)
        self.lab.delete(server)

    # -- parts of tests -------------------------------------------------------

    def _holds(self, server: Any, values: dict[str, int]) -> None:
        """The group and the policy in both XMLs have these on one node."""
        node, = self._topology_nodes(server)
        self.checks.equal(
            f'values of node {node}', {
                line: self._values(server, line).get(node)
                for line in values}, values)
        name = self.lab.domain_name(server)
        for which in ([], ['--inactive']):
            policy = ElementTree.fromstring(  # noqa: S314 - libvirt's own
                self.lab.on_host('virsh', 'dumpxml', *which, name)).find(
                    'metadata/{*}policy/{*}node')
            seen = {} if policy is None else dict(policy.attrib)
            self.checks.equal(
                f'policy in the XML {" ".join(which)}', seen,
                {'host': str(node), 'min': str(values['MBMIN']),
                 'max': str(values['MB']), 'priority': str(values['MBPRI']),
                 'hardlimit': 'true' if values['MBHDL'] else 'false'})

    def _all_of(self, server: Any) -> dict[str, object]:
        """All that a change of the policy would change."""
        name = self.lab.domain_name(server)
        found = self.lab.server(server)
        return {
            'state': (found.status, found.task_state),
            'specs': dict(found.flavor.extra_specs),
            'allocations': self.lab.allocations(server),
            'schemata': self.lab.group(server).lines(),
            'xml': [hashlib.sha256(self.lab.on_host(
                'virsh', 'dumpxml', *which, name).encode()).hexdigest()[:12]
                for which in ([], ['--inactive'])]}

    def _has_new_threads(self, server: Any, before: Group) -> bool:
        now = self.lab.server(server)
        if now.status != 'ACTIVE' or now.task_state:
            return False
        return not set(self.lab.vcpu_threads(server)) & set(before.threads)


def _parts(xml: ElementTree.Element) -> list[tuple[str, dict[str, str]]]:
    """Return the parts of a domain's XML about bandwidth and NUMA nodes."""
    found = [xml.find('metadata'), xml.find('cputune'), xml.find('numatune')]
    return [(one.tag, dict(one.attrib)) for part in found if part is not None
            for one in part.iter() if 'nova' not in one.tag]

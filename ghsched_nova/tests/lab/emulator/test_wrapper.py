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


import json

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.emulator import qemu_tcg_as_kvm as wrapper
from ghsched_placement.tests import base

PROBE = [
    '-S', '-no-user-config', '-nodefaults', '-nographic', '-machine',
    'none,accel=kvm:tcg', '-qmp',
    'unix:/var/lib/libvirt/qemu/qmp-X/qmp.monitor,server=on,wait=off',
    '-pidfile', '/x', '-daemonize',
]


class ProbeTest(base.TestCase):
    def test_probe_of_libvirt_9_0(self):
        self.assertTrue(wrapper.is_probe(PROBE))
        self.assertEqual(
            '/var/lib/libvirt/qemu/qmp-X/qmp.monitor',
            wrapper.monitor_path(PROBE),
        )
        args = wrapper.probe_args(PROBE, '/private')
        self.assertIn('none,accel=tcg', args)
        self.assertIn('unix:/private,server=on,wait=off', args)
        self.assertEqual(len(PROBE), len(args))

    def test_probe_of_newer_libvirt(self):
        args = [x.replace('kvm:tcg', 'kvm:mshv:tcg') for x in PROBE]
        self.assertTrue(wrapper.is_probe(args))

    def test_probe_for_tcg_is_left_alone(self):
        args = [x.replace('kvm:tcg', 'tcg') for x in PROBE]
        self.assertFalse(wrapper.is_probe(args))

    def test_guest_is_no_probe(self):
        self.assertFalse(
            wrapper.is_probe(['-machine', 'q35', '-accel', 'kvm'])
        )


class RewriteTest(base.TestCase):
    def rewrite(self, *args, nodes=(0,)):
        return wrapper.rewrite(list(args), set(nodes))[1:]

    def test_accelerator(self):
        self.assertEqual(
            ['tcg,thread=multi'], self.rewrite('-accel', 'kvm')
        )
        self.assertEqual(['tcg'], self.rewrite('-accel', 'tcg'))

    def test_machine(self):
        self.assertEqual(
            ['pc-q35-7.2,accel=tcg,usb=off'],
            self.rewrite(
                '-machine', 'pc-q35-7.2,accel=kvm,usb=off,kernel_irqchip=on'
            ),
        )

    def test_host_model_of_the_cpu(self):
        self.assertEqual(
            ['max'], self.rewrite('-cpu', 'host,migratable=on,-vmx')
        )
        self.assertEqual(['EPYC,acpi=on'],
                         self.rewrite('-cpu', 'EPYC,acpi=on'))

    def memory(self, nodes, real):
        props = {'qom-type': 'memory-backend-ram', 'id': 'ram-node0',
                 'size': 1, 'host-nodes': nodes, 'policy': 'bind'}
        (text,) = self.rewrite('-object', json.dumps(props), nodes=real)
        return json.loads(text)

    def test_memory_is_not_bound_to_a_node_that_is_faked(self):
        props = self.memory([1], real=[0])
        self.assertEqual({'qom-type', 'id', 'size'}, set(props))

    def test_memory_stays_bound_to_real_nodes(self):
        props = self.memory([0, 1], real=[0, 1])
        self.assertEqual(([0, 1], 'bind'),
                         (props['host-nodes'], props['policy']))
        self.assertEqual([1], self.memory([1, 2], real=[0, 1])['host-nodes'])

    def test_pages_that_the_machine_does_not_have_are_ordinary_memory(self):
        props = {'qom-type': 'memory-backend-file', 'id': 'ram-node0',
                 'mem-path': '/x/hugepages-1048576kB/libvirt/qemu/1-a',
                 'prealloc': True, 'prealloc-context': 'tc-ram-node0',
                 'share': True, 'size': 1}
        (text,) = self.rewrite('-object', json.dumps(props))
        self.assertEqual(
            {'qom-type': 'memory-backend-ram', 'id': 'ram-node0',
             'share': True, 'size': 1}, json.loads(text))
        props['mem-path'] = '/dev/hugepages/libvirt/qemu/1-a'
        (text,) = self.rewrite('-object', json.dumps(props))
        self.assertEqual(props, json.loads(text))

    def test_memory_in_the_old_form(self):
        text = 'memory-backend-ram,id=m,host-nodes=0-1,policy=bind,size=1'
        self.assertEqual(
            ['memory-backend-ram,id=m,policy=bind,size=1,host-nodes=0'],
            self.rewrite('-object', text),
        )
        self.assertEqual([text], self.rewrite('-object', text, nodes=(0, 1)))
        self.assertEqual(
            ['memory-backend-ram,id=m,size=1'],
            self.rewrite('-object', text, nodes=(7,)),
        )

    @given(st.lists(st.text(max_size=20), max_size=8))
    def test_anything_else_is_passed_on(self, args):
        known = {'-accel', '-machine', '-M', '-cpu', '-object'}
        args = [x for x in args if x not in known]
        self.assertEqual(args, wrapper.rewrite(args, {0}))

    @given(st.text(max_size=30))
    def test_any_object_is_passed_on(self, text):
        self.assertEqual(2, len(wrapper.rewrite(['-object', text], {0})))

    def test_nodes_that_the_kernel_knows(self):
        text = 'Name:\tx\nMems_allowed:\t1\nMems_allowed_list:\t0-1,3\n'
        self.assertEqual({0, 1, 3}, wrapper.allowed_nodes(text))
        self.assertEqual({0}, wrapper.allowed_nodes(''))


class QMPTest(base.TestCase):
    def test_kvm_is_reported(self):
        reply = {'return': {'enabled': False, 'present': False}, 'id': 'a'}
        self.assertEqual(
            {'return': {'enabled': True, 'present': True}, 'id': 'a'},
            wrapper.to_libvirt('query-kvm', reply),
        )

    def test_accelerators_are_reported(self):
        reply = {'return': {'enabled': 'tcg', 'present': ['tcg']}}
        self.assertEqual(
            {'return': {'enabled': 'kvm', 'present': ['kvm', 'tcg']}},
            wrapper.to_libvirt('query-accelerators', reply),
        )

    def test_other_replies_and_errors_are_passed_on(self):
        error = {'error': {'class': 'CommandNotFound'}}
        for command in ('query-kvm', 'query-accelerators', None):
            self.assertEqual(error, wrapper.to_libvirt(command, error))
        event = {'event': 'STOP'}
        self.assertEqual(event, wrapper.to_libvirt(None, event))

    def test_host_model_is_asked_for_as_max(self):
        request = {
            'execute': 'query-cpu-model-expansion',
            'arguments': {'type': 'static', 'model': {'name': 'host'}},
        }
        model = wrapper.to_qemu(request)['arguments']['model']
        self.assertEqual({'name': 'max'}, model)
        self.assertEqual('host', request['arguments']['model']['name'])

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

"""The devstack plugin, sourced as stack.sh does, with devstack stubbed.

Each function of devstack that the plugin uses is replaced by one that prints
its name and its arguments, so that a test reads what a phase does.
"""

import os
import pathlib
import shlex
import subprocess

import fixtures

from ghsched_placement.tests import base

TOP = pathlib.Path(__file__).parents[3]
DEVSTACK = TOP / 'devstack'

STUBS = '''
for name in setup_develop iniset iniset_multiline echo_summary stop_process \\
        run_process inidelete async_wait systemctl upgrade_project \\
        ensure_services_started; do
    eval "$name() { echo $name \\"\\$@\\"; }"
done
exec 3>&1
sudo() {
    if [ "$1" = tee ]; then
        sed "s|^|$(basename "$2"): |" >&3
    else
        echo sudo "$@"
    fi
}
die() { shift; echo "$@" >&2; exit 1; }
findmnt() { echo "$FOUND_MOUNTS"; }
define_plugin() { :; }
get_python_exec_prefix() { echo "${PREFIX:-/opt/stack/data/venv/bin}"; }
trueorfalse() { echo "${!2:-$1}"; }
openstack() {
    case "$*" in
    *' trait list '*) printf '%s\\n' $TRAITS ;;
    *' resource class list '*) printf '%s\\n' $CLASSES ;;
    esac
}
enable_service() { ENABLED="$ENABLED $1"; }
is_service_enabled() { [[ " $ENABLED " == *" $1 "* ]]; }
iniget() {
    case $3 in
    enabled_filters) echo "$ENABLED_FILTERS" ;;
    weight_classes) echo "$WEIGHT_CLASSES" ;;
    keystone) echo "$PIPELINE" ;;
    esac
}
grep() {
    case "${@: -1}" in
    /proc/filesystems) [ "$KERNEL_HAS_RESCTRL" = yes ] ;;
    /proc/mounts) [ "$MOUNTED" = yes ] ;;
    *) command grep "$@" ;;
    esac
}
SYSTEMCTL=systemctl SYSTEMD_DIR=${SYSTEMD_DIR:-/etc/systemd/system}
DATA_DIR=/opt/stack/data STACK_USER=stack LIBVIRT_GROUP=libvirt
NOVA_CPU_CONF=/etc/nova/nova-cpu.conf
DEST=/opt/stack NOVA_CONF=/etc/nova/nova.conf NOVA_CONF_DIR=/etc/nova
NOVA_API_PASTE_INI=/etc/nova/api-paste.ini
PLACEMENT_CONF=/etc/placement/placement.conf
NOVA_BIN_DIR=/opt/stack/data/venv/bin TEMPEST_CONFIG=/opt/stack/tempest.conf
/opt/stack/data/venv/bin/ghsched-status() {
    echo "ghsched-status $@"
    echo "$UPGRADE_CHECK"
    return ${UPGRADE_STATUS:-0}
}
'''

FILTER = 'GhschedNUMATopologyFilter'
WEIGHERS = ('ghsched_nova.features.packing.gradient_weigher.'
            'GhschedGradientWeigher,'
            'ghsched_nova.features.load.load_weigher.'
            'GhschedLoadWeigher')


class GrenadeTest(base.TestCase):
    """devstack/upgrade/upgrade.sh, with devstack and grenade of stubs."""

    def upgrade(self, enabled):
        """Lines that the script prints."""
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        nova = [line for line in STUBS.splitlines() if 'NOVA_' in line]
        files = {'grenaderc': '', 'functions': '\n'.join(
            line for line in STUBS.splitlines() if line not in nova),
            'stackrc': '', 'lib/tls': '', 'lib/apache': '',
            'lib/nova': 'NOVA_CPU_CONF=/etc/nova/nova-cpu.conf\n'
                        'NOVA_CONF=/etc/nova/nova.conf\n'
                        'NOVA_CONF_DIR=/etc/nova\n'
                        'NOVA_API_PASTE_INI=/etc/nova/api-paste.ini\n'
                        'NOVA_BIN_DIR=/opt/stack/data/venv/bin\n'}
        for name, text in files.items():
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text(text)
        self.tree = directory / 'ghsched'
        self.tree.symlink_to(TOP)
        done = subprocess.run(
            ['bash', str(DEVSTACK / 'upgrade' / 'upgrade.sh')], env={
                'PATH': os.environ['PATH'], 'GRENADE_DIR': str(directory),
                'TARGET_DEVSTACK_DIR': str(directory), 'ENABLED': enabled,
                'TARGET_RELEASE_DIR': str(directory)},
            capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout.splitlines()

    def test_rootwrap_filter_is_where_nova_looks(self):
        self.assertIn('/etc/nova/rootwrap.d/ghsched.filters', [
            line.split()[-1] for line in self.upgrade('n-cpu')
            if line.startswith('sudo install')])

    def test_services_start_again_with_what_was_installed(self):
        lines = self.upgrade('n-sch n-cpu')
        restarts = [f'systemctl restart devstack@{service}.service'
                    for service in ('n-sch', 'n-cpu')]
        self.assertEqual(
            ['ensure_services_started n-sch n-cpu'],
            [line for line in lines[lines.index(restarts[1]):]
             if line.startswith('ensure')])
        self.assertLess(lines.index(f'setup_develop {self.tree}'),
                        lines.index(restarts[0]))

    def test_compute_host_gets_our_program(self):
        self.assertIn(
            'ghsched.conf: ExecStart=/opt/stack/data/venv/bin/'
            'ghsched-nova-compute --config-file /etc/nova/nova-cpu.conf',
            self.upgrade('n-cpu'))
        self.assertIn(
            'ghsched.conf: ExecStart=/opt/stack/data/venv/bin/'
            'ghsched-nova-scheduler --config-file /etc/nova/nova.conf',
            self.upgrade('n-sch'))


class DevstackPluginTest(base.TestCase):

    COMPUTE = 'ghsched.conf: ExecStart='

    def run_phase(self, *words, enabled='n-sch n-cpu tempest', **variables):
        """Source the plugin in a phase; return the process that did."""
        settings = {'ENABLED': enabled, 'GHSCHED_DIR': str(TOP),
                    'KERNEL_HAS_RESCTRL': 'yes',
                    'MOUNTED': 'no', 'WEIGHT_CLASSES': '',
                    'PIPELINE': 'authtoken keystonecontext app',
                    'ENABLED_FILTERS': 'ComputeFilter,NUMATopologyFilter,'
                                       'PciPassthroughFilter', **variables}
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        script = directory / 'stack.sh'
        script.write_text('\n'.join([
            'set -o errexit',
            *(f'{name}={shlex.quote(value)}'
              for name, value in settings.items()),
            STUBS, f'. {DEVSTACK}/settings',
            f'. {DEVSTACK}/plugin.sh {shlex.join(words)}']))
        return subprocess.run(['bash', script], capture_output=True,
                              text=True, check=False)

    def phase(self, *words, **variables):
        """Return the lines printed while the plugin is sourced in a phase."""
        done = self.run_phase(*words, **variables)
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        return [line for line in done.stdout.splitlines()
                if not line.startswith('echo_summary')]

    def make_systemd_directory(self, *units):
        """Return a directory with some units, as SYSTEMD_DIR."""
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        for unit in units:
            (directory / unit).touch()
        return str(directory)

    def test_placement_makes_no_end_of_candidates(self):
        def lines(**variables):
            return [line for line in self.phase(
                'stack', 'post-config', enabled='n-sch placement-api',
                **variables) if '/placement.conf ' in line]
        start = 'iniset /etc/placement/placement.conf placement '
        self.assertEqual(
            [start + 'max_allocation_candidates 10000',
             start + 'allocation_candidates_generation_strategy '
             'breadth-first'], lines())
        self.assertEqual([], lines(GHSCHED_MAX_ALLOCATION_CANDIDATES=''))

    def test_api_gets_the_filter_of_live_changes_behind_the_context(self):
        def lines(pipeline):
            return [line for line in self.phase(
                'stack', 'post-config', enabled='n-api', PIPELINE=pipeline)
                if 'api-paste' in line]
        start = 'iniset /etc/nova/api-paste.ini '
        the_filter = (start + 'filter:ghsched paste.filter_factory '
                      'ghsched_nova.api.server_filter:filter_factory')
        self.assertEqual(
            [start + 'composite:openstack_compute_api_v21 keystone '
             'cors authtoken keystonecontext ghsched app', the_filter],
            lines('cors authtoken keystonecontext app'))
        self.assertEqual([the_filter],
                         lines('cors authtoken keystonecontext ghsched app'))

    def test_api_pipeline_without_context_ends_stack(self):
        done = self.run_phase('stack', 'post-config', enabled='n-api',
                              PIPELINE='cors noauth2 app')
        self.assertEqual(1, done.returncode)
        self.assertIn('/etc/nova/api-paste.ini has no keystonecontext: '
                      'cors noauth2 app', done.stderr)

    def test_failed_check_of_nova_ends_stack_with_the_reason(self):
        def run(check, result='Failure', **variables):
            return self.run_phase(
                'stack', 'post-config', UPGRADE_CHECK=f'''
| Check: {check}  |
| Result: {result} |
| Details: limits are off in nova-api |
+-----+
| Check: Compute host |
| Result: Failure |''', **variables)
        for check in ('Functions of Nova', 'Releases and configuration'):
            done = run(check, UPGRADE_STATUS='2')
            self.assertEqual(1, done.returncode)
            self.assertIn('ghsched does not work with this Nova', done.stderr)
            self.assertIn('Details: limits are off in nova-api', done.stdout)
            self.assertIn('ghsched-status --config-file /etc/nova/nova.conf '
                          'upgrade check', done.stdout)
            for result in ('Success', 'Warning'):
                done = run(check, result, UPGRADE_STATUS='2')
                self.assertEqual((0, ''), (done.returncode, done.stderr))

    def test_check_of_nova_without_result_ends_stack(self):
        done = self.run_phase('stack', 'post-config', UPGRADE_STATUS='255',
                              UPGRADE_CHECK='Error: a traceback')
        self.assertEqual(1, done.returncode)
        self.assertIn('Error: a traceback', done.stdout)

    def test_install_installs_the_tree(self):
        self.assertEqual([f'setup_develop {TOP}'],
                         self.phase('stack', 'install'))

    def test_our_filter_replaces_novas_and_is_last(self):
        lines = self.phase('stack', 'post-config')
        self.assertIn(
            'iniset /etc/nova/nova.conf filter_scheduler enabled_filters '
            f'ComputeFilter,PciPassthroughFilter,{FILTER}', lines)
        self.assertIn(
            'iniset_multiline /etc/nova/nova.conf filter_scheduler '
            'available_filters nova.scheduler.filters.all_filters '
            f'ghsched_nova.scheduler.filters.{FILTER}', lines)

    def test_a_second_run_does_not_add_the_filter_twice(self):
        lines = self.phase('stack', 'post-config',
                           ENABLED_FILTERS=f'ComputeFilter,{FILTER}')
        self.assertIn(
            'iniset /etc/nova/nova.conf filter_scheduler enabled_filters '
            f'ComputeFilter,{FILTER}', lines)

    def test_filter_stands_alone_when_nova_has_none(self):
        lines = self.phase('stack', 'post-config',
                           ENABLED_FILTERS='NUMATopologyFilter')
        self.assertIn(
            'iniset /etc/nova/nova.conf filter_scheduler enabled_filters '
            + FILTER, lines)

    def test_our_weighers_come_next_to_those_of_nova(self):
        for named, left in (('', 'nova.scheduler.weights.all_weighers'),
                            (f'{WEIGHERS},one.Other', 'one.Other')):
            lines = self.phase('stack', 'post-config', WEIGHT_CLASSES=named)
            self.assertIn('iniset /etc/nova/nova.conf filter_scheduler '
                          f'weight_classes {left},{WEIGHERS}', lines)

    def test_compute_host_gets_driver_rootwrap_and_resctrl(self):
        lines = self.phase('stack', 'post-config')
        self.assertIn('iniset /etc/nova/nova.conf DEFAULT compute_driver '
                      'ghsched.GhschedLibvirtDriver', lines)
        self.assertIn(
            'sudo install -o root -g root -m 0644 '
            f'{TOP}/etc/nova/rootwrap.d/ghsched.filters '
            '/etc/nova/rootwrap.d/ghsched.filters', lines)
        self.assertIn('sudo mount -t resctrl ghsched-devstack '
                      '/sys/fs/resctrl', lines)
        self.assertIn('sudo chgrp libvirt /sys/fs/resctrl', lines)
        self.assertIn('sudo chmod 0750 /sys/fs/resctrl', lines)

    def test_mounted_resctrl_is_left_alone(self):
        lines = self.phase('stack', 'post-config', MOUNTED='yes')
        self.assertEqual([], [line for line in lines if 'mount' in line])

    def test_host_without_resctrl_is_no_error(self):
        lines = self.phase('stack', 'post-config', KERNEL_HAS_RESCTRL='no')
        self.assertIn('This host has no resctrl; it will offer no memory '
                      'bandwidth.', lines)

    def test_controller_gets_no_driver(self):
        lines = self.phase('stack', 'post-config', enabled='n-sch')
        self.assertEqual([], [line for line in lines
                              if 'compute_driver' in line
                              or 'rootwrap' in line])

    def test_options_of_local_conf_reach_nova(self):
        lines = self.phase(
            'stack', 'post-config', GHSCHED_RESERVED_BANDWIDTH='0:10,1:5',
            GHSCHED_BANDWIDTH_ACCOUNTING='max',
            GHSCHED_RESERVED_CONTROL_GROUPS='2',
            GHSCHED_LOAD_MULTIPLIER='3',
            GHSCHED_GROUP_SHARING='True',
            GHSCHED_DEFAULT_BANDWIDTH_MAX='40',
            GHSCHED_BANDWIDTH_BURSTS='0:40,1:40',
            GHSCHED_NODE_BANDWIDTH='0:230000,1:230000')
        for option in ('reserved_bandwidth 0:10,1:5',
                       'load_weight_multiplier 3',
                       'group_sharing True',
                       'default_bandwidth_max 40',
                       'node_bandwidth 0:230000,1:230000',
                       'bandwidth_bursts 0:40,1:40',
                       'bandwidth_accounting max',
                       'reserved_control_groups 2'):
            self.assertIn(f'iniset /etc/nova/nova.conf ghsched {option}',
                          lines)

    def test_our_scheduler_runs_in_the_place_of_novas(self):
        lines = self.phase('stack', 'post-config')
        self.assertIn(
            'ghsched.conf: ExecStart=/opt/stack/data/venv/bin/'
            'ghsched-nova-scheduler --config-file /etc/nova/nova.conf', lines)

    def test_services_keep_their_names_in_the_journal(self):
        for service, name in (('n-sch', 'nova-scheduler'),
                              ('n-cpu', 'nova-compute')):
            lines = self.phase('stack', 'post-config', enabled=service)
            self.assertEqual(
                [f'ghsched.conf: SyslogIdentifier={name}'],
                [line for line in lines if 'SyslogIdentifier' in line])

    def test_compute_host_runs_our_program_with_novas_arguments(self):
        command, = [line for line in self.phase(
            'stack', 'post-config', enabled='n-cpu')
            if line.startswith('ghsched.conf: ExecStart=')
            and not line.endswith('=')]
        self.assertEqual(self.COMPUTE + '/opt/stack/data/venv/bin/'
                         'ghsched-nova-compute --config-file '
                         '/etc/nova/nova-cpu.conf', command)

    def test_compute_only_node_has_no_scheduler(self):
        self.assertNotIn('ghsched-nova-scheduler', '\n'.join(self.phase(
            'stack', 'post-config', enabled='n-cpu')))

    def test_nobody_else_writes_nova_conf_meanwhile(self):
        self.assertEqual('async_wait configure_neutron_nova',
                         self.phase('stack', 'post-config')[0])

    def test_tempest_knows_of_ghsched_and_how_to_reach_the_host(self):
        lines = self.phase(
            'stack', 'test-config',
            TRAITS='HW_CPU_X86_AVX CUSTOM_GHSCHED_MEM_BW_MIN',
            CLASSES='VCPU CUSTOM_RT_CPU_PERMILLE')
        for line in ('service_available ghsched True',
                     'ghsched live_change True',
                     'ghsched capabilities MEM_BW_MIN,RT_CPU_PERMILLE',
                     'ghsched cli_dir /opt/stack/data/venv/bin',
                     'ghsched host_command sudo'):
            self.assertIn(f'iniset /opt/stack/tempest.conf {line}', lines)

    def test_unstack_removes_what_runs_our_programs(self):
        directory = self.make_systemd_directory()
        self.assertEqual(
            ['stop_process n-cpu',
             'sudo rm -f /etc/nova/rootwrap.d/ghsched.filters '
             f'{directory}/devstack@n-cpu.service.d/ghsched.conf '
             f'{directory}/devstack@n-sch.service.d/ghsched.conf '
             f'{directory}/devstack@ghsched-host.service',
             'systemctl daemon-reload'],
            self.phase('unstack', SYSTEMD_DIR=directory))

    def test_unstack_stops_a_simulated_host_that_was_set_up(self):
        lines = self.phase('unstack', SYSTEMD_DIR=self.make_systemd_directory(
            'devstack@ghsched-host.service'))
        self.assertEqual(
            ['stop_process n-cpu',
             'systemctl disable --now devstack@ghsched-host.service'],
            lines[:2])

    def test_clean_unmounts_only_what_the_plugin_mounted(self):
        removed = 'sudo rm -rf /opt/stack/data/ghsched/host'
        self.assertEqual(
            ['sudo umount /sys/fs/resctrl', removed],
            self.phase('clean', MOUNTED='yes',
                       FOUND_MOUNTS='/sys/fs/resctrl'))
        self.assertEqual([removed], self.phase('clean', MOUNTED='yes'))

    def test_simulated_host_program_is_where_devstack_installs(self):
        self.assertIn(
            'iniset /opt/stack/tempest.conf ghsched host_command sudo '
            '/usr/local/bin/ghsched-testhost exec --state '
            '/opt/stack/data/ghsched/host --',
            self.phase('stack', 'test-config', PREFIX='/usr/local/bin',
                       GHSCHED_SIMULATED_HOST='True'))


class SimulatedHostTest(DevstackPluginTest):
    """The same with GHSCHED_SIMULATED_HOST, and what is different."""

    TESTHOST = ('/opt/stack/data/venv/bin/ghsched-testhost {} '
                '--state /opt/stack/data/ghsched/host ')
    COMPUTE = ('ghsched.conf: ExecStart=+' + TESTHOST.format('exec')
               + '-- setpriv --reuid=stack --regid=libvirt --init-groups ')

    def phase(self, *words, **variables):
        return super().phase(*words, **{'GHSCHED_SIMULATED_HOST': 'True',
                                        **variables})

    def test_install_installs_the_tree(self):
        self.assertEqual([f'setup_develop {TOP} testing'],
                         self.phase('stack', 'install'))

    def test_compute_host_gets_driver_rootwrap_and_resctrl(self):
        lines = self.phase('stack', 'post-config')
        self.assertIn('ghsched.conf: After=devstack@ghsched-host.service',
                      lines)
        self.assertIn(
            'devstack@ghsched-host.service: ExecStart='
            + self.TESTHOST.format('up')
            + '--nodes 2 --dialect openeuler66 --closids 16', lines)
        self.assertIn('iniset /etc/nova/nova.conf libvirt virt_type kvm',
                      lines)
        self.assertEqual([], [line for line in lines if 'mount' in line])
        for command in ('chgrp libvirt', 'chmod 0750'):
            self.assertIn('devstack@ghsched-host.service: ExecStartPost='
                          + self.TESTHOST.format('exec')
                          + f'-- {command} /sys/fs/resctrl', lines)

    def test_other_hosts_reach_the_libvirtd_of_the_simulated_host(self):
        self.assertIn(
            'iniset /etc/nova/nova.conf libvirt live_migration_uri '
            'qemu+ssh://stack@%s/system?socket='
            '/opt/stack/data/ghsched/host/run/libvirt/libvirt-sock',
            self.phase('stack', 'post-config'))

    def test_host_without_resctrl_is_no_error(self):
        self.assertIn('systemctl restart devstack@ghsched-host.service',
                      self.phase('stack', 'post-config',
                                 KERNEL_HAS_RESCTRL='no'))

    def test_tempest_knows_of_ghsched_and_how_to_reach_the_host(self):
        self.assertIn(
            'iniset /opt/stack/tempest.conf ghsched host_command sudo '
            '/opt/stack/data/venv/bin/ghsched-testhost exec --state '
            '/opt/stack/data/ghsched/host --',
            self.phase('stack', 'test-config'))

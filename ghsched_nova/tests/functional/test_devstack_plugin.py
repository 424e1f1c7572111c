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
        run_process inidelete async_wait systemctl git_clone_by_name \\
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
SERVICE_TIMEOUT=${SERVICE_TIMEOUT:-60}
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
WEIGHERS = ','.join((
    'ghsched_nova.features.packing.gradient_weigher.GhschedGradientWeigher',
    'ghsched_nova.features.load.load_weigher.GhschedLoadWeigher'))


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


#: Words of a phase.
CONFIG, TEST = ('stack', 'post-config'), ('stack', 'test-config')
NOVA = 'iniset /etc/nova/nova.conf '
FILTERS = NOVA + 'filter_scheduler enabled_filters '
WEIGHTS = NOVA + 'filter_scheduler weight_classes '
TEMPEST = 'iniset /opt/stack/tempest.conf ghsched '
VENV = '/opt/stack/data/venv/bin/'
EXEC = 'ghsched.conf: ExecStart='
UNIT = 'devstack@ghsched-host.service'
HOST = VENV + 'ghsched-testhost {} --state /opt/stack/data/ghsched/host '
CANDIDATES = 'iniset /etc/placement/placement.conf placement '
API_PASTE = 'iniset /etc/nova/api-paste.ini '
API_FILTER = (API_PASTE + 'filter:ghsched paste.filter_factory '
              'ghsched_nova.api.server_filter:filter_factory')
OPTIONS = {'RESERVED_BANDWIDTH': '0:10,1:5', 'BANDWIDTH_ACCOUNTING': 'max',
           'RESERVED_CONTROL_GROUPS': '2', 'GROUP_SHARING': 'True',
           'DEFAULT_BANDWIDTH_MAX': '40', 'BANDWIDTH_BURSTS': '0:40,1:40',
           'NODE_BANDWIDTH': '0:230000,1:230000'}
SIMULATED = {'GHSCHED_SIMULATED_HOST': 'True'}

#: What is tested: phase, variables, lines that are printed, and words that
#: are in no line.
PHASES: dict[str, tuple] = {
    'install': (('stack', 'install'), {}, [f'setup_develop {TOP}'], []),
    'install, simulated': (('stack', 'install'), SIMULATED,
                           [f'setup_develop {TOP} testing'], []),
    'our filter replaces that of Nova and is last': (CONFIG, {}, [
        FILTERS + f'ComputeFilter,PciPassthroughFilter,{FILTER}',
        'iniset_multiline /etc/nova/nova.conf filter_scheduler '
        'available_filters nova.scheduler.filters.all_filters '
        f'ghsched_nova.scheduler.filters.{FILTER}'], []),
    'a second run adds no second filter': (
        CONFIG, {'ENABLED_FILTERS': f'ComputeFilter,{FILTER}'},
        [FILTERS + f'ComputeFilter,{FILTER}'], []),
    'our filter alone': (CONFIG, {'ENABLED_FILTERS': 'NUMATopologyFilter'},
                         [FILTERS + FILTER], []),
    'weighers next to those of Nova': (CONFIG, {}, [
        WEIGHTS + f'nova.scheduler.weights.all_weighers,{WEIGHERS}'], []),
    'weighers next to those that are named': (
        CONFIG, {'WEIGHT_CLASSES': f'{WEIGHERS},one.Other'},
        [WEIGHTS + f'one.Other,{WEIGHERS}'], []),
    'compute host': (CONFIG, {}, [
        NOVA + 'DEFAULT compute_driver ghsched.GhschedLibvirtDriver',
        'sudo install -o root -g root -m 0644 '
        f'{TOP}/etc/nova/rootwrap.d/ghsched.filters '
        '/etc/nova/rootwrap.d/ghsched.filters',
        'sudo mount -t resctrl ghsched-devstack /sys/fs/resctrl',
        'sudo chgrp libvirt /sys/fs/resctrl',
        'sudo chmod 0750 /sys/fs/resctrl'], []),
    'compute host, simulated': (CONFIG, SIMULATED, [
        f'ghsched.conf: After={UNIT}',
        f'{UNIT}: ExecStart=' + HOST.format('up')
        + '--nodes 2 --dialect openeuler66 --closids 16',
        NOVA + 'libvirt virt_type kvm',
        *(f'{UNIT}: ExecStartPost=' + HOST.format('exec')
          + f'-- {command} /sys/fs/resctrl'
          for command in ('chgrp libvirt', 'chmod 0750')),
        NOVA + 'libvirt live_migration_uri qemu+ssh://stack@%s/system?socket='
        '/opt/stack/data/ghsched/host/run/libvirt/libvirt-sock',
        EXEC + '+' + HOST.format('exec') + '-- setpriv --reuid=stack '
        f'--regid=libvirt --init-groups {VENV}ghsched-nova-compute '
        '--config-file /etc/nova/nova-cpu.conf'], ['sudo mount']),
    'resctrl that is mounted': (CONFIG, {'MOUNTED': 'yes'}, [], ['mount']),
    'no resctrl': (CONFIG, {'KERNEL_HAS_RESCTRL': 'no'}, [
        'This host has no resctrl; it will offer no memory bandwidth.'], []),
    'no resctrl, simulated': (
        CONFIG, {'KERNEL_HAS_RESCTRL': 'no', **SIMULATED},
        [f'systemctl restart {UNIT}'], []),
    'controller': (CONFIG, {'enabled': 'n-sch'}, [
        EXEC + f'{VENV}ghsched-nova-scheduler --config-file '
        '/etc/nova/nova.conf',
        'ghsched.conf: SyslogIdentifier=nova-scheduler'],
        ['compute_driver', 'rootwrap']),
    'compute host alone': (CONFIG, {'enabled': 'n-cpu'}, [
        EXEC + f'{VENV}ghsched-nova-compute --config-file '
        '/etc/nova/nova-cpu.conf',
        'ghsched.conf: SyslogIdentifier=nova-compute'],
        ['ghsched-nova-scheduler']),
    'options of local.conf': (
        CONFIG, {'GHSCHED_LOAD_MULTIPLIER': '3', **{
            f'GHSCHED_{name}': value for name, value in OPTIONS.items()}},
        [NOVA + 'ghsched load_weight_multiplier 3', *(
            NOVA + f'ghsched {name.lower()} {value}'
            for name, value in OPTIONS.items())], []),
    'Placement makes no end of candidates': (
        CONFIG, {'enabled': 'n-sch placement-api'},
        [CANDIDATES + 'max_allocation_candidates 10000', CANDIDATES
         + 'allocation_candidates_generation_strategy breadth-first'], []),
    'candidates as Placement has them': (
        CONFIG, {'enabled': 'n-sch placement-api',
                 'GHSCHED_MAX_ALLOCATION_CANDIDATES': ''}, [], [CANDIDATES]),
    'API filter behind the context': (
        CONFIG, {'enabled': 'n-api',
                 'PIPELINE': 'cors authtoken keystonecontext app'}, [
            API_PASTE + 'composite:openstack_compute_api_v21 keystone cors '
            'authtoken keystonecontext ghsched app', API_FILTER], []),
    'API filter that is there': (
        CONFIG, {'enabled': 'n-api', 'PIPELINE': 'keystonecontext ghsched x'},
        [API_FILTER], ['composite']),
    'tempest': (TEST, {
        'TRAITS': 'HW_CPU_X86_AVX CUSTOM_GHSCHED_MEM_BW_MIN',
        'CLASSES': 'VCPU CUSTOM_RT_CPU_PERMILLE'}, [
            'iniset /opt/stack/tempest.conf service_available ghsched True',
            TEMPEST + 'live_change True',
            TEMPEST + 'capabilities MEM_BW_MIN,RT_CPU_PERMILLE',
            TEMPEST + 'cli_dir /opt/stack/data/venv/bin',
            TEMPEST + 'host_command sudo'], []),
    'tempest, simulated': (TEST, SIMULATED, [
        TEMPEST + f'host_command sudo {HOST.format("exec")}--'], []),
    'tempest, simulated, another prefix': (
        TEST, {'PREFIX': '/usr/local/bin', **SIMULATED},
        [TEMPEST + 'host_command sudo ' + HOST.format('exec').replace(
            VENV, '/usr/local/bin/') + '--'], []),
    'simulated, on a slow machine': (
        CONFIG, {'SERVICE_TIMEOUT': '600', **SIMULATED},
        ['devstack@ghsched-host.service: TimeoutStartSec=1800'], []),
    'clean unmounts what the plugin mounted': (
        ('clean',), {'MOUNTED': 'yes', 'FOUND_MOUNTS': '/sys/fs/resctrl'},
        ['sudo umount /sys/fs/resctrl',
         'sudo rm -rf /opt/stack/data/ghsched/host'], []),
    'clean leaves other mounts': (('clean',), {'MOUNTED': 'yes'}, [
        'sudo rm -rf /opt/stack/data/ghsched/host'], ['umount']),
}


class DevstackPluginTest(base.TestCase):

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

    def test_each_phase_prints_its_lines_and_no_others_of_a_kind(self):
        for name, (words, variables, expected, absent) in PHASES.items():
            with self.subTest(name):
                lines = self.phase(*words, **variables)
                self.assertEqual([], [line for line in expected
                                      if line not in lines])
                self.assertEqual([], [line for line in lines if any(
                    word in line for word in absent)])

    def test_nobody_else_writes_nova_conf_meanwhile(self):
        self.assertEqual('async_wait configure_neutron_nova',
                         self.phase(*CONFIG)[0])

    def test_api_pipeline_without_context_ends_stack(self):
        done = self.run_phase(*CONFIG, enabled='n-api',
                              PIPELINE='cors noauth2 app')
        self.assertEqual(1, done.returncode)
        self.assertIn('/etc/nova/api-paste.ini has no keystonecontext: '
                      'cors noauth2 app', done.stderr)

    def test_failed_check_of_nova_ends_stack_with_the_reason(self):
        def run(check, result='Failure', **variables):
            return self.run_phase(
                *CONFIG, UPGRADE_CHECK=f'''
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
        done = self.run_phase(*CONFIG, UPGRADE_STATUS='255',
                              UPGRADE_CHECK='Error: a traceback')
        self.assertEqual(1, done.returncode)
        self.assertIn('Error: a traceback', done.stdout)

    def make_systemd_directory(self, *units):
        """Return a directory with some units, as SYSTEMD_DIR."""
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        for unit in units:
            (directory / unit).touch()
        return str(directory)

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
